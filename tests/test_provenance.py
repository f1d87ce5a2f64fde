"""Files are written whole or not at all, and an error says which one and why."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from cutlass_sk.errors import WriteError
from cutlass_sk.provenance import output_argument, output_file, save


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for data in ("first \u00b5s", b"second"):
        save(path, data)
        assert path.read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("method", ["replace", "write_bytes"])
def test_a_write_that_fails_leaves_nothing_and_names_the_target(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")

    def fails(self: Path, _: object) -> None:
        if method == "write_bytes":
            self.touch()
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, method, fails)
    with pytest.raises(WriteError) as caught:
        save(path, "new")
    assert str(caught.value) == f"{path} cannot be written: No space left on device; name a file in a folder that exists"
    assert list(tmp_path.iterdir()) == [path] and path.read_text() == "old"


def test_folders_must_exist_and_are_no_files(tmp_path: Path) -> None:
    absent = tmp_path / "absent" / "record.json"
    for path, why in ((absent, f"{absent.parent} is no folder"), (tmp_path, "it is a folder")):
        for refuse in (output_file, lambda path: save(path, "")):
            with pytest.raises(WriteError, match=f"{path} cannot be written: {why}"):
                refuse(path)
        with pytest.raises(argparse.ArgumentTypeError, match="name a file in a folder that exists"):
            output_argument(str(path))
    assert not absent.parent.exists() and list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        save(path, "text")
        assert os.read(reader, 10) == b"text" and path.is_fifo() and list(tmp_path.iterdir()) == [path]
    finally:
        os.close(reader)
