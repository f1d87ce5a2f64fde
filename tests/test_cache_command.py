"""``cutlass-sk cache`` says what is there, finds damage, and removes what it should and nothing else."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
from command_line import CommandLine

from cutlass_sk.jit import tidy
from cutlass_sk.jit.cache import Cache, Entry, Metadata
from cutlass_sk.jit.key import SCHEMA

DAY = 86400


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(tmp_path / "cache"))
    return Cache()


def publish(cache: Cache, digit: str, unused_days: float = 0, library_bytes: int = 1000) -> Entry:
    key = digit * 64
    with cache.lock(key, threading.Event()), cache.scratch(key) as directory:
        (directory / "kernel.so").write_bytes(b"x" * library_bytes)
        (directory / "kernel.cu").write_text("source")
        entry = cache.publish(key, directory, Metadata(f"kernel_{digit}", "90a", "nvcc ...", 1.5, {"nvcc": "13.0"}))
    then = time.time() - unused_days * DAY
    os.utime(entry.path / "entry.json", (then, then))
    return entry


def names(cache: Cache) -> list[str]:
    return [one.name for one in tidy.stored(cache)]


def as_version(entry: Entry, schema: int) -> Path:
    """Moves an entry into the layout of another version."""
    path = entry.path.parents[2] / str(schema) / entry.key[:2] / entry.key
    path.parent.mkdir(parents=True)
    return entry.path.rename(path)


def test_an_empty_cache(cutlass_sk: CommandLine, cache: Cache) -> None:
    assert cutlass_sk("cache", "list") == (0, f"{cache.root}: 0 kernels, 0 bytes\n", "")
    assert json.loads(cutlass_sk("cache", "list", "--json")[1]) == {"root": str(cache.root), "bytes": 0, "entries": []}
    assert cutlass_sk("cache", "verify") == (0, f"{cache.root}: 0 kernels, whole\n", "")
    for arguments in (("prune",), ("prune", "--keep-days", "1", "--max-bytes", "1"), ("clear",)):
        assert cutlass_sk("cache", *arguments) == (0, "0 kernels removed, 0 bytes; 0 kernels kept\n", "")
    assert not cache.root.exists()


def test_list(cutlass_sk: CommandLine, cache: Cache) -> None:
    entry = publish(cache, "a")
    old = as_version(publish(cache, "b", unused_days=20_000), 1)
    (old / "entry.json").write_text("[")
    status, text, _ = cutlass_sk("cache", "list")
    assert status == 0 and "kernel_a" in text and "sm_90a" in text and "another version's" in text and "2 kernels" in text
    record = json.loads(cutlass_sk("cache", "list", "--json")[1])
    ours, theirs = record["entries"]
    assert record["bytes"] == ours["nbytes"] + theirs["nbytes"]
    assert ours["nbytes"] == sum(path.stat().st_size for path in entry.path.iterdir())
    assert (ours["name"], ours["architecture"], ours["schema"], ours["this_version"]) == ("kernel_a", "90a", SCHEMA, True)
    assert ours["path"] == str(entry.path) and ours["used"] == time.strftime("%Y-%m-%d", time.gmtime())
    assert (theirs["name"], theirs["schema"], theirs["this_version"]) == ("b" * 64, 1, False)


def test_verify(cutlass_sk: CommandLine, cache: Cache) -> None:
    publish(cache, "a")
    broken = publish(cache, "b", unused_days=3)
    assert cutlass_sk("cache", "verify") == (0, f"{cache.root}: 2 kernels, whole\n", "")
    os.truncate(broken.library, 10)
    before = (broken.path / "entry.json").stat().st_mtime
    status, text, _ = cutlass_sk("cache", "verify")
    assert status == 1 and f"kernel_b: {broken.path}: kernel.so is not as it was written" in text and "1 of 2 kernels" in text
    assert (broken.path / "entry.json").stat().st_mtime == before, "looking is not using"
    cutlass_sk("cache", "prune")
    assert names(cache) == ["kernel_a"] and cutlass_sk("cache", "verify")[0] == 0


def test_verify_of_a_cache_that_is_not_private(cutlass_sk: CommandLine, cache: Cache) -> None:
    for digit in "abc":
        publish(cache, digit)
    cache.root.chmod(0o777)
    for command in ("verify", "prune"):
        status, _, errors = cutlass_sk("cache", command)
        assert status == 2 and errors.count("\n") == 1 and "others can write to" in errors and len(names(cache)) == 3
    assert cutlass_sk("cache", "clear")[0] == 0 and names(cache) == []


def test_prune_by_days(cutlass_sk: CommandLine, cache: Cache) -> None:
    """A use is noted to a day; a time in the future is as good as now."""
    for digit, unused_days in {"a": 0.5, "b": 10, "c": 40, "d": -3000}.items():
        publish(cache, digit, unused_days)
    assert cache.lookup("c" * 64) is not None
    assert cutlass_sk("cache", "prune", "--keep-days", "9")[0] == 0
    assert names(cache) == ["kernel_a", "kernel_c", "kernel_d"]
    assert cache.lookup("d" * 64) is not None
    assert all(abs(one.unused_days) < 1 for one in tidy.stored(cache)) and cache.lookup("b" * 64) is None
    assert cutlass_sk("cache", "prune", "--keep-days", "-1")[0] == 2


def test_prune_by_bytes_keeps_what_was_used_last(cutlass_sk: CommandLine, cache: Cache) -> None:
    for digit, unused_days in {"a": 3, "b": 1, "c": 2}.items():
        publish(cache, digit, unused_days, library_bytes=10_000)
    size = tidy.stored(cache)[0].nbytes
    status, text, _ = cutlass_sk("cache", "prune", "--max-bytes", str(2 * size + 10))
    assert (status, text) == (0, f"1 kernel removed, {size:,} bytes; 2 kernels kept\n")
    assert names(cache) == ["kernel_b", "kernel_c"]
    cutlass_sk("cache", "prune", "--max-bytes", str(size))
    assert names(cache) == ["kernel_b"]
    cutlass_sk("cache", "prune", "--max-bytes", "0")
    assert names(cache) == []


def test_clear_removes_kernels_of_all_versions_and_nothing_else(cutlass_sk: CommandLine, cache: Cache) -> None:
    publish(cache, "a")
    as_version(publish(cache, "b"), 1)
    with cache.lock("c" * 64, threading.Event()), cache.scratch("c" * 64) as directory:
        (directory / "kernel.cu").write_text("bad")
        cache.keep_failure("c" * 64, directory, "log")
    memo = cache.root / "headers" / ("d" * 64)
    memo.parent.mkdir()
    memo.write_text("e" * 64)
    os.utime(memo, (4_000_000_000, 4_000_000_000))
    strangers = [
        cache.root / "notes.txt",
        cache.root / "9/notes.txt",
        cache.root / "9/ab/notes.txt",
        cache.root / "failed/notes.txt",
    ]
    for path in strangers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a user's")
    status, text, _ = cutlass_sk("cache", "clear")
    assert status == 0 and text.startswith("2 kernels removed") and names(cache) == []
    assert all(path.read_text() == "a user's" for path in strangers)
    assert not memo.exists()
    assert list((cache.root / "failed").iterdir()) == [cache.root / "failed/notes.txt"]


def test_what_is_being_built_stays_and_left_overs_go(cache: Cache) -> None:
    left_over = cache.scratch("a" * 64)
    with cache.lock("a" * 64, threading.Event()):
        killed = left_over.__enter__()
        (killed / "kernel.cu").write_text("source")
    with cache.lock("b" * 64, threading.Event()), cache.scratch("b" * 64) as building:
        (building / "kernel.so").write_bytes(b"library")
        (building / "kernel.cu").write_text("source")
        assert tidy.clear(cache).nbytes == 6
        assert not killed.exists() and building.exists()
        cache.publish("b" * 64, building, Metadata("kernel_b", "90a", "", 1.0, {}))
    assert names(cache) == ["kernel_b"]


def test_a_cache_that_cannot_be_tidied_is_one_error(cutlass_sk: CommandLine, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(cache, "a")

    def rename(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "rename", rename)
    status, _, errors = cutlass_sk("cache", "clear")
    assert status == 2 and "cannot be tidied: " in errors and "Permission denied" in errors and errors.count("\n") == 1
    assert names(cache) == ["kernel_a"]


def test_a_path_that_is_no_text(cutlass_sk: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", f"{tmp_path}/\udcff[red]")
    publish(Cache(), "a")
    status, text, _ = cutlass_sk("cache", "list")
    assert status == 0 and "kernel_a" in text and "\\udcff[red]: 1 kernel" in text
    assert json.loads(cutlass_sk("cache", "list", "--json")[1])["entries"][0]["name"] == "kernel_a"
