"""Records of ``planner_sweep`` as a table of measured times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutlass_sk.ensemble.bench_store import read_folder
from cutlass_sk.ensemble.planner_report import DTYPES, HOST, latest, right, source
from cutlass_sk.ensemble.records import RecordError, Row, read
from cutlass_sk.ensemble.table import SUFFIX, Measurement, Status, Table, TableError, check
from cutlass_sk.ensemble.table import read as read_table

PARTS: dict[str, tuple[str, str]] = {
    "main": ("planner", "back_to_back"),
    "isolated": ("planner", "isolated"),
    "exhaustive": ("planner/exhaustive", "back_to_back"),
    "square": ("square", "back_to_back"),
}
"""Part of the records -> corpus and timing mode. The search has a corpus of its own: it timed set and cuBLAS again."""
PLAN = ("kernel", "decomposition", "grid", "sk_tiles", "sk_units", "splits", "raster", "predicted_us")


def read_any(path: Path) -> Table:
    """A table (.parquet); a folder of ``cutlass-sk bench`` or planner records (.jsonl, .jsonl.gz) as one. TableError for others."""
    if path.is_dir():
        return read_folder(path)
    if path.suffix == SUFFIX:
        return read_table(path)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return from_records(path)
    raise TableError(f"{path} is no table and no records, by its name; give a file that ends in .parquet, .jsonl or .jsonl.gz")


def from_records(path: Path) -> Table:
    """A file of planner records as a table. Clocks, and what the host measured, go with the provenance.

    A later row of the same measurement replaces an earlier one. TableError for other records, and for those of several runs.
    """
    try:
        rows = latest(read(path))
        provenance = source(rows)
    except RecordError as error:
        text = str(error)
        raise TableError(text if text.startswith(str(path)) else f"{path}: {text}") from None
    except (KeyError, TypeError) as error:
        raise _foreign(path, f"a row without part, dtype or sizes ({error})") from None
    provenance["host"] = [{name: row[name] for name in ("dtype", *HOST) if name in row} for row in rows if row["part"] == "host"]
    found = []
    for row in rows:
        if row["part"] in PARTS:
            try:
                found += _measurements(row)
            except (KeyError, TypeError, AttributeError) as error:
                shape = " x ".join(str(row.get(name)) for name in ("m", "n", "k"))
                raise _foreign(path, f"{row['part']}, {shape}: {type(error).__name__} {error}") from None
    if not found:
        raise _foreign(path, "no problem was measured")
    check(found, path)
    return Table(tuple(found), (provenance,))


def _measurements(row: Row) -> list[Measurement]:
    corpus, timing = PARTS[row["part"]]
    dtype, out_dtype = DTYPES[row["dtype"]]
    found = []
    for contender, value in row.items():
        if isinstance(value, dict):
            problem = (corpus, dtype, out_dtype, row["m"], row["n"], row["k"], timing, contender)
            plan = (value.get(name) for name in PLAN)
            time = (value["us"], status(value, row["tolerance"]), value.get("error"))
            found.append(Measurement._make((*problem, *time, *plan)))
    return found


def status(value: Mapping[str, Any], tolerance: float) -> Status:
    """The status of a contender of a row. Only ours have an error; where it is no number, it was refused, or is wrong."""
    us = value["us"]
    if "error" in value and not right(value["error"], tolerance):
        return "failed" if us is None and value["error"] is None else "wrong"
    return "not_timed" if us is None else "ok"


def _foreign(path: Path, what: str) -> TableError:
    return TableError(f"{path} holds no records of planner_sweep: {what}; give those, or a table in parquet")
