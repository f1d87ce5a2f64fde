"""A folder of the bench survives being killed, takes what compares alone, and shards of it merge."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from benches import DRY, SOURCE, row
from command_line import CommandLine

import cutlass_sk.ensemble.cli  # noqa: F401  the command joins the command line
from cutlass_sk.ensemble.bench_store import LOG, TABLE, Folder, merge, read_folder
from cutlass_sk.ensemble.table import TableError, read
from cutlass_sk.errors import WriteError


def test_nothing_is_lost_or_doubled_by_sigkill(tmp_path: Path, cutlass_sk: CommandLine) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    options = ("--limit", "2500", *DRY)
    log, held = killed / LOG, b""
    for wanted in (30, 600):
        command = [sys.executable, "-c", "from cutlass_sk.ensemble.cli import main; main()", "bench", "-o", str(killed), *options]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        end = monotonic() + 60
        while not (log.exists() and log.read_bytes().count(b"\n") >= wanted):
            assert process.poll() is None and monotonic() < end, process.stderr and process.stderr.read()
            sleep(0.001)
        process.kill()
        assert process.wait() == -signal.SIGKILL and process.stderr
        process.stderr.close()
        now = log.read_bytes()
        assert now.startswith(held), "earlier lines stay as they were"
        held = now[: now.rindex(b"\n") + 1]
    assert not (killed / TABLE).exists()
    measured_before = sum(b'"run"' not in line for line in held.splitlines())
    status, _, err = cutlass_sk("bench", "-o", str(killed), *options)
    assert status == 0 and f". 2,500 of 2,500 problems, {2500 - measured_before:,} of them now" in err
    assert log.read_bytes().startswith(held)
    assert cutlass_sk("bench", "-o", str(whole), *options)[0] == 0
    assert read(killed / TABLE).rows == read(whole / TABLE).rows and len(read(whole / TABLE).sources) == 1
    assert log.read_bytes().count(b'{"run":') == 3


def test_a_line_that_was_cut_off_anywhere_is_measured_again(tmp_path: Path) -> None:
    with Folder(tmp_path, SOURCE) as folder:
        for m in (8, 16):
            folder.append([row(m), row(m, "cublas", None, "failed")])
    data = (tmp_path / LOG).read_bytes()
    second = data.index(b"\n", data.index(b"\n") + 1) + 1
    for end in range(data.index(b"\n") + 1, len(data)):
        (tmp_path / LOG).write_bytes(data[:end])
        complete = (end >= second - 1) + (end >= len(data) - 1)  # a newline alone may lack
        assert len(read_folder(tmp_path).rows) == 2 * complete
        with Folder(tmp_path, SOURCE) as folder:
            assert len(folder.done) == complete
            if complete < 2:
                folder.append([row(16), row(16, "cublas", None, "failed")])
        assert [r.m for r in read_folder(tmp_path).rows] == ([8] * 2 if complete else []) + [16] * 2


def test_shards_merged_are_one_whole_run(tmp_path: Path, cutlass_sk: CommandLine) -> None:
    shards = [str(tmp_path / f"s{index}") for index in range(3)]
    for index, folder in enumerate(shards):
        assert cutlass_sk("bench", "-o", folder, "--limit", "50", "--shard", f"{index}/3", *DRY)[0] == 0
    assert cutlass_sk("bench", "-o", str(tmp_path / "whole"), "--limit", "50", *DRY)[0] == 0
    mixed = [shards[0], shards[1], str(Path(shards[2]) / TABLE)]  # tables are taken, too
    status, _, err = cutlass_sk("bench", "merge", *mixed, "-o", str(tmp_path / "all.parquet"))
    assert status == 0 and err.endswith("all.parquet: 107 times\n")
    table = read(tmp_path / "all.parquet")
    assert table.rows == read(tmp_path / "whole" / TABLE).rows and [s["shard"] for s in table.sources] == ["0/3", "1/3", "2/3"]
    assert sum(r.contender == "cublas_again" for r in table.rows) == 7, "every 8th of all problems, not of a shard"
    with pytest.raises(TableError, match="2 rows of the same measurement"):
        merge([Path(shards[0]), Path(shards[0])])


DIFFERENCES: dict[str, tuple[Any, str]] = {
    "gpu": ("another", "gpu none, another"),
    "commit": ("def", "commit abc, def"),
    "corpus_sha256": ("0", "corpus_sha256 None, 0"),
    "made_up": (False, "b are measured"),
    "schema": (99, "version 99 of the schema, and this program reads 1"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_what_does_not_match_is_neither_merged_nor_added_to(tmp_path: Path, name: str) -> None:
    value, message = DIFFERENCES[name]
    for folder, source, m in (("a", SOURCE, 8), ("b", {**SOURCE, name: value}, 16)):
        with Folder(tmp_path / folder, source) as opened:
            opened.append([row(m)])
    with pytest.raises(TableError, match=message):
        merge([tmp_path / "a", tmp_path / "b"])
    before = (tmp_path / "b" / LOG).read_bytes()
    with pytest.raises(TableError, match="new folder"):
        Folder(tmp_path / "b", SOURCE)
    assert (tmp_path / "b" / LOG).read_bytes() == before


def test_a_folder_takes_one_process_and_one_list_of_contenders(tmp_path: Path) -> None:
    with Folder(tmp_path, SOURCE) as folder:
        folder.append([row(8)])
        with pytest.raises(WriteError, match="another cutlass-sk bench"):
            Folder(tmp_path, SOURCE)
    with pytest.raises(TableError, match=r"contenders \['set'\], \['cublas'\]"):
        Folder(tmp_path, {**SOURCE, "contenders": ["cublas"]})
    with Folder(tmp_path, SOURCE) as folder:
        assert folder.compact() == tmp_path / TABLE
    (tmp_path / LOG).unlink()
    with pytest.raises(TableError, match=r"without the times\.jsonl"):
        Folder(tmp_path, SOURCE)
    (tmp_path / LOG).write_text('{"part": "main"}\n')
    with pytest.raises(TableError, match="nothing that cutlass-sk bench measured"):
        Folder(tmp_path, SOURCE)
    with pytest.raises(TableError, match=r"holds no times\.jsonl"):
        read_folder(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot be written"):
        Folder(tmp_path / "file", SOURCE)
