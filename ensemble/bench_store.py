"""A folder of measured times: a log that is appended to, and the table that is made of it.

``times.jsonl`` has a line for each problem, dtype and timing mode, and before the first line of each run one that says where it
comes from. It alone is what the folder holds: a line that was cut off is dropped, and ``times.parquet`` is made of it again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from cutlass_sk.ensemble.records import Log, RecordError, read
from cutlass_sk.ensemble.table import SCHEMA_VERSION, SUFFIX, Measurement, Table, TableError, check, write
from cutlass_sk.ensemble.table import read as read_table
from cutlass_sk.errors import WriteError, reason

LOG, TABLE = "times.jsonl", f"times{SUFFIX}"
COMMON = ("corpus", "dtype", "out_dtype", "m", "n", "k", "timing")
"""Columns that all contenders of a line share."""

OF_ONE_BUILD = ("schema", "made_up", "gpu", "commit", "torch", "corpus", "corpus_sha256", "layouts", "calibration", "pdl")
"""Of the provenance: what must be the same where times are merged."""
OF_ONE_FOLDER = (*OF_ONE_BUILD, "contenders")
"""And in one folder, whose contenders are timed side by side."""

Key = tuple[str, str, int, int, int, str]


class Folder:
    """Times that are being measured, into ``path``, which is made if needed. One process at a time.

    done       (dtype, out_dtype, m, n, k, timing) of what it holds
    suspects   those among which is one that the GPU did not survive

    TableError for a folder that holds something else than ``source`` would add, WriteError for one that cannot be written to.
    """

    def __init__(self, path: Path, source: Mapping[str, Any]) -> None:
        self.path, self._source, self._told = path, dict(source), False
        with ExitStack() as opened:
            try:
                path.mkdir(parents=True, exist_ok=True)
                lock = os.open(path, os.O_RDONLY)
                opened.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however that ends
            except BlockingIOError:
                raise WriteError(
                    f"{path} is being written to by another cutlass-sk bench; wait for it, or name a new folder"
                ) from None
            except OSError as error:
                raise WriteError(f"{path} cannot be written to: {reason(error)}; name another folder") from None
            log = path / LOG
            if not log.exists() and (path / TABLE).exists():
                raise TableError(f"{path} holds {TABLE} without the {LOG} that it was made of; name a new folder")
            try:
                self._log = Log(log)
            except RecordError as error:
                raise TableError(str(error)) from None
            except OSError as error:
                raise WriteError(f"{log} cannot be written: {reason(error)}; name another folder") from None
            opened.callback(self._log.__exit__, None, None, None)
            if self._log.rows:
                held = _table(self._log.rows, log)
                for earlier in held.sources:
                    _compare(str(path), earlier, "this run", source, OF_ONE_FOLDER, "name a new folder")
            self.done = {_key(row) for row in self._log.rows if _measured(row)}
            self.suspects = {tuple(key) for row in self._log.rows for key in row.get("suspects", ())}
            self._opened = opened.pop_all()

    def append(self, rows: Sequence[Measurement], **more: Any) -> None:
        """One line: all contenders of one problem, dtype and timing mode. It is with the system when this returns."""
        if not self._told:
            self._log.append({"run": self._source})
            self._told = True
        first = rows[0]._asdict()
        line = {name: first[name] for name in COMMON}
        line["contenders"] = {
            row.contender: {
                name: value
                for name, value in row._asdict().items()
                if name not in (*COMMON, "contender") and (value is not None or name == "us")
            }
            for row in rows
        }
        self._log.append({**line, **more})
        self.done.add(_key(line))

    def suspect(self, keys: Iterable[Key]) -> None:
        """Remembers measurements among which is one that the GPU did not survive."""
        self._log.append({"suspects": [list(key) for key in keys]})

    def sampled(self, summary: Mapping[str, Any]) -> None:
        """Remembers clocks and power of this run (``clocks.Sampler``); a part of its provenance. After something was appended."""
        if self._told and summary:
            self._log.append({"sampled": dict(summary)})

    def compact(self) -> Path | None:
        """Writes the table of all that the folder holds, whole or not at all, and gives its path; None if that is nothing."""
        if not self.done:
            return None
        write(self.path / TABLE, read_folder(self.path))
        return self.path / TABLE

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._opened.close()


def read_folder(path: Path) -> Table:
    """What a folder's log holds, in an order of its own: that of the columns. TableError for any other folder."""
    log = path / LOG
    if not log.exists():
        raise TableError(f"{path} holds no {LOG}; give a folder that `cutlass-sk bench -o` wrote, or a file")
    try:
        return _table(read(log), log)
    except RecordError as error:
        raise TableError(str(error)) from None


def merge(paths: Sequence[Path]) -> Table:
    """Folders, or tables that were made of them, as one table: the shards of a sweep.

    TableError, which names what differs, where they are not of one GPU, commit, schema and corpus, or hold a measurement twice."""
    found = [(path, read_folder(path) if path.is_dir() else read_table(path)) for path in paths]
    of = [(str(path), source) for path, table in found for source in table.sources]
    for name, source in of[1:]:
        _compare(*of[0], name, source, OF_ONE_BUILD, "merge what was measured alike")
    rows = [row for _, table in found for row in table.rows]
    check(rows, "the files together")
    return _sorted(rows, [source for _, source in of])


def _table(lines: Sequence[Mapping[str, Any]], log: Path) -> Table:
    sources: list[dict[str, Any]] = []
    for line in lines:
        if isinstance(line.get("run"), dict):
            sources.append(dict(line["run"]))
        elif isinstance(line.get("sampled"), dict) and sources:
            sources[-1]["sampled"] = line["sampled"]
    if not sources:
        raise TableError(f"{log} holds nothing that cutlass-sk bench measured; give another folder")
    if strange := [source.get("schema") for source in sources if source.get("schema") != SCHEMA_VERSION]:
        raise TableError(
            f"{log} has version {strange[0]} of the schema, and this program reads {SCHEMA_VERSION}; measure into a new folder"
        )
    rows = []
    for line in lines:
        if not _measured(line):
            continue
        try:
            common = {name: line[name] for name in COMMON}
            rows += [Measurement(**common, contender=name, **values) for name, values in line["contenders"].items()]
        except (KeyError, TypeError, AttributeError) as error:
            raise TableError(
                f"{log}: a line is none of cutlass-sk bench: {type(error).__name__} {error}; name a new folder"
            ) from None
    check(rows, log)
    return _sorted(rows, sources)


def _sorted(rows: Iterable[Measurement], sources: Iterable[Mapping[str, Any]]) -> Table:
    once: list[Mapping[str, Any]] = []
    for source in sources:
        if source not in once:
            once.append(source)
    return Table(tuple(sorted(rows, key=lambda row: row[:8])), tuple(once))


def _measured(line: Mapping[str, Any]) -> bool:
    return not {"run", "suspects", "sampled"} & line.keys()


def _key(line: Mapping[str, Any]) -> Key:
    return line["dtype"], line["out_dtype"], line["m"], line["n"], line["k"], line["timing"]


def _compare(
    name: str, one: Mapping[str, Any], other_name: str, other: Mapping[str, Any], what: Iterable[str], remedy: str
) -> None:
    if bool(one.get("made_up")) != bool(other.get("made_up")):
        measured, made_up = (other_name, name) if one.get("made_up") else (name, other_name)
        raise TableError(f"times of {made_up} are made up, those of {measured} are measured; {remedy}")
    if differing := [key for key in what if one.get(key) != other.get(key)]:
        texts = "; ".join(f"{key} {one.get(key)}, {other.get(key)}" for key in differing)
        raise TableError(f"{name} and {other_name} differ ({texts}); {remedy}")
