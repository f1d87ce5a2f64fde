"""Measured times as one columnar table, in parquet: a row for each problem, timing mode and contender.

A row is a ``Measurement``. The file's metadata hold the version of the schema and, as JSON, the provenance of what was measured.
pyarrow is imported where a file is read or written, and not before.
"""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.errors import Error, reason
from cutlass_sk.generator.spec import ELEMENT_BYTES
from cutlass_sk.provenance import save

if TYPE_CHECKING:
    import pyarrow

Timing = Literal["back_to_back", "isolated"]
Status = Literal["ok", "wrong", "failed", "not_timed"]
SCHEMA_VERSION = 1
VERSION_KEY, PROVENANCE_KEY = b"cutlass_sk.table_version", b"cutlass_sk.provenance"
SUFFIX = ".parquet"
MADE_UP = "MADE UP: a dry run"
"""What all that is said of times begins with where none was measured."""
LEVEL = 19
"""Of zstd: a table of 400,000 rows has a tenth fewer bytes than by default, and takes a second or two longer."""
WRITTEN_BY = "`cutlass-sk report RECORDS -o DIR --table FILE.parquet` writes one"


class TableError(Error, ValueError):
    """Measured times cannot be read or used; the message names the file, what is wrong and the way out."""


class Measurement(NamedTuple):
    """One time of one contender.

    corpus                     the collection that the problem is of
    dtype, out_dtype           element types of a and b, and of c
    timing                     ``back_to_back``: launches one after the other; ``isolated``: one launch, with a cold L2
    contender                  whose time it is: ``set``, ``single``, ``data_parallel``, ``cublas``, ...
    us                         microseconds a launch; None where it was not timed
    status                     ``ok``; ``wrong``: the result was; ``failed``: it did not run; ``not_timed``
    error                      largest difference from cuBLAS over sqrt(k); None where there is none, or it is no number
    kernel to predicted_us     the plan, and microseconds that were expected of it; None for contenders without one
    """

    corpus: str
    dtype: str
    out_dtype: str
    m: int
    n: int
    k: int
    timing: str
    contender: str
    us: float | None
    status: str
    error: float | None = None
    kernel: str | None = None
    decomposition: str | None = None
    grid: int | None = None
    sk_tiles: int | None = None
    sk_units: int | None = None
    splits: int | None = None
    raster: str | None = None
    predicted_us: float | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What was measured; a table has it once."""
        return self[:8]

    @property
    def problem(self) -> Problem:
        return Problem(self.m, self.n, self.k)

    @property
    def ok_us(self) -> float | None:
        """The time, where it counts: None unless the status is ok."""
        return self.us if self.status == "ok" else None


def _kind(annotation: Any) -> tuple[type, bool]:
    """The type of a field and whether it may be None, from its annotation, a text such as ``float | None``."""
    kind, _, rest = str(getattr(annotation, "__forward_arg__", annotation)).partition(" | ")
    return {"str": str, "int": int, "float": float}[kind], rest == "None"


KINDS = {name: _kind(annotation) for name, annotation in Measurement.__annotations__.items()}
NOUNS = {str: "text", int: "whole number", float: "number"}


@dataclass(frozen=True)
class Table:
    """Measurements, and the provenance of each run that they are from."""

    rows: tuple[Measurement, ...]
    sources: tuple[Mapping[str, Any], ...]

    @property
    def made_up(self) -> bool:
        """Whether its times are of a dry run."""
        return any(source.get("made_up") for source in self.sources)


def check(rows: Sequence[Measurement], origin: object) -> None:
    """Raises TableError, which names ``origin``, for a value that no measurement has, and for two rows of the same one."""
    if not _plain(rows):
        for row in rows:
            if wrong := _wrong(row):
                where = f"{row.contender} on {row.m} x {row.n} x {row.k}, {row.dtype}, {row.timing}"
                raise TableError(f"{origin}: {where}: {wrong}; correct the row, or measure it again")
    if len({row.key for row in rows}) < len(rows):
        twice, count = Counter(row.key for row in rows).most_common(1)[0]
        raise TableError(f"{origin}: {count} rows of the same measurement ({', '.join(map(str, twice))}); leave one")


def _plain(rows: Sequence[Measurement]) -> bool:
    """Whether no row can be wrong, column by column: a tenth of the time that ``_wrong`` takes. False says nothing."""
    if not rows:
        return True
    columns = dict(zip(Measurement._fields, zip(*rows, strict=True), strict=True))
    for name, (kind, nullable) in KINDS.items():
        if not set(map(type, columns[name])) <= {kind, *([type(None)] if nullable else [])}:
            return False
    texts = {"timing": get_args(Timing), "status": get_args(Status), "dtype": ELEMENT_BYTES, "out_dtype": ELEMENT_BYTES}
    if not all(set(columns[name]) <= set(allowed) for name, allowed in texts.items()):
        return False
    times = [us for us in columns["us"] if us is not None]
    without = {status for us, status in zip(columns["us"], columns["status"], strict=True) if us is None}
    whole = min(map(min, (columns["m"], columns["n"], columns["k"]))) >= 1
    return whole and "ok" not in without and all(map(isfinite, times)) and min(times, default=1.0) > 0


def _wrong(row: Measurement) -> str:
    for (name, (kind, nullable)), value in zip(KINDS.items(), row, strict=True):
        if value is None:
            if not nullable:
                return f"{name} is missing"
        elif not isinstance(value, (float, int) if kind is float else kind) or isinstance(value, bool):
            return f"{name}={value!r} is no {NOUNS[kind]}"
    for name, allowed in (("timing", get_args(Timing)), ("status", get_args(Status)), ("dtype", tuple(ELEMENT_BYTES))):
        if getattr(row, name) not in allowed:
            return f"{name}={getattr(row, name)!r} is not one of {', '.join(allowed)}"
    if row.out_dtype not in ELEMENT_BYTES:
        return f"out_dtype={row.out_dtype!r} is not one of {', '.join(ELEMENT_BYTES)}"
    if min(row.m, row.n, row.k) < 1:
        return "m, n and k must be 1 or more"
    if row.us is None:
        return "its status is ok and it has no time" if row.status == "ok" else ""
    return "" if isfinite(row.us) and row.us > 0 else f"us={row.us} is no time, in microseconds above 0"


def write(path: Path, table: Table) -> None:
    """Writes a table, whole or not at all. The same table gives the same bytes. TableError, WriteError."""
    arrow, parquet = _pyarrow()
    check(table.rows, path)
    metadata = {VERSION_KEY: str(SCHEMA_VERSION), PROVENANCE_KEY: json.dumps(table.sources, sort_keys=True)}
    columns = zip(*table.rows, strict=True) if table.rows else [() for _ in Measurement._fields]
    schema = _schema(arrow)
    arrays = [arrow.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    data = BytesIO()
    whole = arrow.Table.from_arrays(arrays, schema=schema.with_metadata(metadata))
    parquet.write_table(whole, data, compression="zstd", compression_level=LEVEL)
    save(path, data.getvalue())


def read(path: Path) -> Table:
    """A table that ``write`` wrote. TableError for any other file."""
    arrow, parquet = _pyarrow()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TableError(f"{path} cannot be read: {reason(error)}; give a table of measured times: {WRITTEN_BY}") from None
    try:
        found = parquet.read_table(BytesIO(data))
    except (OSError, arrow.ArrowException) as error:  # pyarrow raises OSError for some damage, too
        first = str(error).partition("\n")[0]
        raise TableError(f"{path} is no parquet file, or is cut off: {first}; {WRITTEN_BY}") from None
    metadata = found.schema.metadata or {}
    version = metadata.get(VERSION_KEY)
    if version is None:
        raise TableError(f"{path} is parquet, but no table of measured times: its metadata lack the schema's version; {WRITTEN_BY}")
    if version != str(SCHEMA_VERSION).encode():
        raise TableError(
            f"{path} has version {version.decode(errors='replace')} of the schema, and this program reads {SCHEMA_VERSION}; "
            "convert the records again"
        )
    _check_columns(path, found.schema, _schema(arrow))
    try:
        sources = json.loads(metadata.get(PROVENANCE_KEY, b""))
        if not (isinstance(sources, list) and all(isinstance(source, dict) for source in sources)):
            raise ValueError("it is no list of objects")
    except ValueError as error:
        raise TableError(f"{path}: the provenance in its metadata cannot be used: {error}; convert the records again") from None
    columns = [_values(found.column(name), KINDS[name][0]) for name in Measurement._fields]
    with no_search_for_cycles():
        rows = tuple(map(Measurement._make, zip(*columns, strict=True)))
    check(rows, path)
    return Table(rows, tuple(sources))


@contextmanager
def no_search_for_cycles() -> Iterator[None]:
    """Python's search for cycles of objects rests: among the rows of a large table, which have none, it takes most of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _values(column: Any, kind: type) -> list[Any]:
    """A column as a list. Of texts and whole numbers each is there once: a large table has millions of them, most of them alike."""
    if kind is float:
        return list(column.to_pylist())
    encoded = column.combine_chunks().dictionary_encode()
    values = [*encoded.dictionary.to_pylist(), None]
    return [values[-1 if place is None else place] for place in encoded.indices.to_pylist()]


def _check_columns(path: Path, found: pyarrow.Schema, schema: pyarrow.Schema) -> None:
    if missing := [name for name in schema.names if name not in found.names]:
        raise TableError(f"{path}: no column {', '.join(missing)}; convert the records again")
    if unknown := [name for name in found.names if name not in schema.names]:
        raise TableError(f"{path}: column {', '.join(unknown)} is not of the schema; take it out, or convert the records again")
    for field in schema:
        other = found.field(field.name)
        if found.names.count(field.name) > 1 or other.type != field.type or other.nullable != field.nullable:
            empty = "" if field.nullable else ", never null"
            raise TableError(f"{path}: column {field.name} must be {field.type}{empty}; convert the records again")


def _schema(arrow: Any) -> pyarrow.Schema:
    """The columns of a Measurement, in its order."""
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
    return arrow.schema([arrow.field(name, types[kind], nullable=nullable) for name, (kind, nullable) in KINDS.items()])


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise TableError(
            "tables in parquet need pyarrow, which is not installed; pip install 'cutlass-sk[report]', or give planner records"
        ) from None
    return pyarrow, pyarrow.parquet


def check_writable() -> None:
    """Raises TableError where tables cannot be written, for lack of pyarrow; asked before a long measurement is begun."""
    _pyarrow()


def merged(tables: Iterable[tuple[str, Table]]) -> Table:
    """The rows of several files, by their names, as one table. TableError where they are not of one GPU, or measured the same."""
    rows: list[Measurement] = []
    sources: list[Mapping[str, Any]] = []
    of: dict[object, tuple[str, tuple[str, ...]]] = {}
    gpus: dict[str, str] = {}
    for name, table in tables:
        runs = tuple(sorted({f"{source.get('commit')}, torch {source.get('torch')}" for source in table.sources}))
        for source in table.sources:
            gpus.setdefault(str(source.get("gpu")), name)
        for group in dict.fromkeys((row.corpus, row.dtype, row.out_dtype, row.timing) for row in table.rows):
            first, other = of.setdefault(group, (name, runs))
            if other != runs:
                raise TableError(
                    f"{name} and {first} measured {', '.join(map(str, group))} in different runs ({'; '.join({*runs, *other})}): "
                    "only times of one build compare; report them apart"
                )
        rows += table.rows
        sources += [source for source in table.sources if source not in sources]
    if len(gpus) > 1:
        raise TableError(f"{' and '.join(gpus.values())} are of different GPUs ({', '.join(gpus)}); report them apart")
    check(rows, "the files together")
    return Table(tuple(rows), tuple(sources))
