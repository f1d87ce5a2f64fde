"""Measured times as parquet: what is written is read, planner records are the same times, and other files get one clear error."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from cutlass_sk.ensemble import table_records
from cutlass_sk.ensemble.records import read as read_records
from cutlass_sk.ensemble.table import PROVENANCE_KEY, VERSION_KEY, Measurement, Table, TableError, merged, read, write
from cutlass_sk.errors import Error, WriteError

RECORDS = Path(__file__).parent.parent / "results/h200/planner.records.jsonl.gz"
SOURCE = {"commit": "abc", "gpu": "NVIDIA H200", "torch": "2.11", "corpus": "two problems"}
PLAN = {
    "kernel": "a_kernel",
    "decomposition": "stream_k",
    "grid": 132,
    "sk_tiles": 5,
    "sk_units": 4,
    "splits": 1,
    "raster": "along_m 1",
}
SET = Measurement("planner", "float16", "float32", 128, 256, 512, "back_to_back", "set", 4.0, "ok", 0.001, **PLAN, predicted_us=3.5)  # type: ignore[arg-type]
CUBLAS = Measurement("planner", "float16", "float32", 128, 256, 512, "back_to_back", "cublas", None, "not_timed")
TABLE = Table((SET, CUBLAS), (SOURCE,))


def record(**changes: Any) -> dict[str, Any]:
    ours = {"us": 4.0, "error": 0.001, **PLAN, "predicted_us": 3.5}
    row = {"part": "main", "dtype": "float16_float32", "m": 128, "n": 256, "k": 512, "tolerance": 0.01, "set": ours}
    return {**row, "cublas": {"us": 5.0}, **changes}


def records(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in ({"part": "provenance", "dtype": "", **SOURCE}, *rows)))
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "times.parquet"
    write(path, TABLE)
    assert read(path) == TABLE
    first = path.read_bytes()
    write(path, read(path))
    assert path.read_bytes() == first and os.listdir(tmp_path) == ["times.parquet"]
    schema = parquet.read_schema(path)
    assert schema.names == list(Measurement._fields)
    assert schema.metadata[VERSION_KEY] == b"1" and json.loads(schema.metadata[PROVENANCE_KEY]) == [SOURCE]
    assert schema.field("us") == pyarrow.field("us", pyarrow.float64(), nullable=True)
    assert schema.field("m") == pyarrow.field("m", pyarrow.int64(), nullable=False)
    write(path, Table((), ()))
    assert read(path) == Table((), ())


def test_a_table_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "times.parquet"
    write(path, TABLE)
    before = path.read_bytes()
    with pytest.raises(TableError, match=r"us=-1\.0 is no time"):
        write(path, Table((SET._replace(us=-1.0),), ()))
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["times.parquet"]
    with pytest.raises(WriteError, match="nowhere"):
        write(tmp_path / "nowhere" / "times.parquet", TABLE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"us": float("nan")}, "us=nan is no time, in microseconds above 0"),
        ({"us": None}, "its status is ok and it has no time"),
        ({"status": "fine"}, "status='fine' is not one of ok, wrong, failed, not_timed"),
        ({"timing": "hot"}, "timing='hot' is not one of back_to_back, isolated"),
        ({"dtype": "int8"}, "dtype='int8' is not one of float16"),
        ({"out_dtype": "int8"}, "out_dtype='int8' is not one of float16"),
        ({"k": 0}, "m, n and k must be 1 or more"),
        ({"k": "512"}, "k='512' is no whole number"),
        ({"grid": 1.5}, "grid=1.5 is no whole number"),
        ({"kernel": 7}, "kernel=7 is no text"),
        ({"corpus": None}, "corpus is missing"),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TableError) as raised:
        write(tmp_path / "times.parquet", Table((SET._replace(**changes),), ()))
    assert message in str(raised.value) and "times.parquet" in str(raised.value) and "correct the row" in str(raised.value)


def test_a_measurement_is_there_once(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"2 rows of the same measurement \(planner, float16, float32, 128, 256, 512"):
        write(tmp_path / "times.parquet", Table((SET, CUBLAS, SET._replace(us=9.0)), ()))


def rewritten(path: Path, change: Any) -> None:
    """The file with its pyarrow table changed."""
    parquet.write_table(change(parquet.read_table(path)), path)


def retyped(found: Any, name: str, kind: Any) -> Any:
    place = found.schema.get_field_index(name)
    return found.set_column(place, pyarrow.field(name, kind, nullable=False), found.column(name).cast(kind))


@pytest.mark.parametrize(
    ("change", "message", "remedy"),
    [
        (lambda found: found.drop_columns(["us", "grid"]), "no column us, grid", "convert the records again"),
        (lambda found: found.append_column("x", found.column("m")), "column x is not of the schema", "take it out"),
        (lambda found: retyped(found, "m", pyarrow.string()), "column m must be int64, never null", "convert"),
        (lambda found: found.replace_schema_metadata({}), "no table of measured times", "cutlass-sk report RECORDS -o DIR --table"),
        (lambda found: found.replace_schema_metadata({VERSION_KEY: b"2"}), "has version 2 of the schema", "convert the records"),
        (lambda found: found.replace_schema_metadata({VERSION_KEY: b"1", PROVENANCE_KEY: b"{"}), "the provenance", "convert"),
        (lambda found: found.replace_schema_metadata({VERSION_KEY: b"1", PROVENANCE_KEY: b"[1]"}), "no list of objects", "convert"),
    ],
)
def test_another_schema_is_one_clear_error(tmp_path: Path, change: Any, message: str, remedy: str) -> None:
    path = tmp_path / "times.parquet"
    write(path, TABLE)
    rewritten(path, change)
    with pytest.raises(TableError) as raised:
        read(path)
    assert isinstance(raised.value, Error)
    assert str(path) in str(raised.value) and message in str(raised.value) and remedy in str(raised.value)
    assert "\n" not in str(raised.value)


def test_other_files_are_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "times.parquet"
    for content in (b"", b"m,n,k\n1,2,3\n", b"PAR1" + bytes(100) + b"PAR1"):
        path.write_bytes(content)
        with pytest.raises(TableError, match="is no parquet file, or is cut off") as raised:
            read(path)
        assert str(path) in str(raised.value) and "\n" not in str(raised.value)
    for where in (tmp_path / "absent.parquet", tmp_path):
        with pytest.raises(TableError, match="cannot be read"):
            read(where)
    with pytest.raises(TableError, match=r"give a file that ends in \.parquet, \.jsonl or \.jsonl\.gz"):
        table_records.read_any(tmp_path / "times.csv")


def test_without_pyarrow_the_remedy_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(TableError, match=r"pip install 'cutlass-sk\[report\]'"):
        write(tmp_path / "times.parquet", TABLE)


def test_a_record_by_hand(tmp_path: Path) -> None:
    later, host = record(cublas={"us": None}), {"part": "host", "dtype": "float16", "bytes": 12, "kernels": ["a"]}
    found = table_records.from_records(records(tmp_path / "r.jsonl", record(), host, later))
    assert found.rows == (SET, CUBLAS)  # a later row replaces an earlier one
    (source,) = found.sources
    assert source["gpu"] == "NVIDIA H200" and source["runs"] == 1
    assert source["host"] == [{"dtype": "float16", "kernels": ["a"], "bytes": 12}]


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ({"us": 4.0, "error": 0.01}, "ok"),
        ({"us": 4.0, "error": 0.011}, "wrong"),
        ({"us": 4.0, "error": None}, "wrong"),
        ({"us": None, "error": None}, "failed"),
        ({"us": None, "error": 0.5}, "wrong"),
        ({"us": None, "error": 0.0}, "not_timed"),
        ({"us": None}, "not_timed"),
        ({"us": 4.0}, "ok"),
    ],
)
def test_the_status_of_a_record(value: dict[str, Any], status: str) -> None:
    assert table_records.status(value, 0.01) == status


def test_the_committed_records_are_the_same_times(tmp_path: Path) -> None:
    found = table_records.read_any(RECORDS)
    path = tmp_path / "times.parquet"
    write(path, found)
    assert table_records.read_any(path) == found
    times = {(row.corpus, row.dtype, row.out_dtype, row.m, row.n, row.k, row.timing, row.contender): row for row in found.rows}
    seen = 0
    for row in read_records(RECORDS):
        for contender, value in row.items():
            if isinstance(value, dict):
                corpus, timing = table_records.PARTS[row["part"]]
                dtype, _, out = row["dtype"].partition("_")
                one = times[corpus, dtype, out or dtype, row["m"], row["n"], row["k"], timing, contender]
                assert (one.us, one.status, one.kernel, one.grid) == (value["us"], "ok", value.get("kernel"), value.get("grid"))
                seen += 1
    assert seen == len(found.rows) > 35_000


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([record(part="elsewhere")], "no problem was measured"),
        ([record(dtype="int8")], "KeyError 'int8'"),
        ([{name: value for name, value in record().items() if name != "tolerance"}], "KeyError 'tolerance'"),
        ([record(set={"us": "4"})], "us='4' is no number"),
        ([record(set={"us": 4.0, "error": "0"})], "main, 128 x 256 x 512: TypeError"),
        ([record(m="128")], "m='128' is no whole number"),
        ([record(cublas={"us": 0.0})], "us=0.0 is no time"),
        ([{"dtype": "float16"}], "'part'"),
        ([{"part": "provenance", "dtype": "", **SOURCE, "gpu": "another"}], "records of different gpu"),
    ],
)
def test_other_records_are_one_clear_error(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    path = records(tmp_path / "r.jsonl", *rows)
    with pytest.raises(TableError) as raised:
        table_records.read_any(path)
    assert str(path) in str(raised.value) and message in str(raised.value) and "\n" not in str(raised.value)


def test_damaged_records_are_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    for content in (b"no gzip", gzip.compress(b"[1]\n[2]\n"), gzip.compress(b"")):
        path.write_bytes(content)
        with pytest.raises(TableError, match=r"r\.jsonl\.gz"):
            table_records.read_any(path)


def test_files_together() -> None:
    other = Table((SET._replace(corpus="real"),), ({**SOURCE, "commit": "def"},))
    whole = merged([("one", TABLE), ("two", other)])
    assert whole.rows == (*TABLE.rows, *other.rows) and [source["commit"] for source in whole.sources] == ["abc", "def"]
    assert merged([("one", TABLE), ("two", Table((SET._replace(m=8),), (SOURCE,)))]).sources == (SOURCE,)  # two shards of a run
    with pytest.raises(TableError, match=r"two and one measured planner, float16, float32, back_to_back in different runs"):
        merged([("one", TABLE), ("two", Table((SET._replace(m=8),), other.sources))])
    with pytest.raises(TableError, match="of different GPUs"):
        merged([("one", TABLE), ("two", Table(other.rows, ({**SOURCE, "gpu": "NVIDIA A100"},)))])
    with pytest.raises(TableError, match="2 rows of the same measurement"):
        merged([("one", TABLE), ("two", TABLE)])
