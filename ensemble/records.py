"""Records of a measurement: one JSON object a line, appended and flushed, so that a run that is cut off can go on."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from cutlass_sk.errors import reason
from cutlass_sk.provenance import output_file

Row = dict[str, Any]
Key = tuple[str, str, int, int, int]


class RecordError(ValueError):
    """A file of records cannot be used; the message names it and the way out."""


def key(row: Row) -> Key:
    """What a row measured: dtype, part, and the problem."""
    return row["dtype"], row["part"], row.get("m", 0), row.get("n", 0), row.get("k", 0)


def read(path: Path) -> list[Row]:
    """The rows of a .jsonl or .jsonl.gz file, in order. A last line that was cut off is left out; other bad lines are errors."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = data.decode().split("\n")
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise RecordError(f"{path} cannot be read: {reason(error)}; give records of planner_sweep, .jsonl or .jsonl.gz") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("it is no object")
        except ValueError as error:
            if number == len(lines):
                break
            raise RecordError(f"{path}, line {number} is no record: {error}") from None
        rows.append(row)
    return rows


def compact(rows: Iterable[Row]) -> bytes:
    """The rows as the bytes of a .jsonl.gz file: the same bytes for the same rows."""
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


class Log:
    """Appends rows to a .jsonl file. ``rows`` is what it held when it was opened."""

    def __init__(self, path: Path) -> None:
        if path.suffix == ".gz":
            raise RecordError(f"{path} is compressed and cannot be appended to; unpack it, or name a new .jsonl file")
        self.rows = read(path) if path.exists() else []
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            _drop_last_line(path)
        self._file = output_file(path).open("a", encoding="utf-8")

    def append(self, row: Row) -> None:
        self._file.write(json.dumps(row, separators=(",", ":")) + "\n")
        self._file.flush()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def _drop_last_line(path: Path) -> None:
    """Takes away a line that was not written to its end; one that is whole but for its newline gets it. In place: a process that is
    killed here loses no other line."""
    head, newline, tail = path.read_bytes().rpartition(b"\n")
    try:
        json.loads(tail or b"null")
    except ValueError:
        os.truncate(path, len(head) + len(newline))
        return
    if tail:
        with path.open("ab") as file:
            file.write(b"\n")
