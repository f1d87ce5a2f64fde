"""What ``counters`` reads: options, records of a sweep, the manifest of what was launched; refused where they have another form."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

from cutlass_sk.ensemble.planner_report import DTYPES
from cutlass_sk.ensemble.records import RecordError, Row, read
from cutlass_sk.errors import reason

Shape = tuple[int, int, int]
Kinds = Mapping[str, type | tuple[type, ...]]
"""Key -> the type of its value."""

NUMBER = (int, float)
PROBLEM: Kinds = {"m": int, "n": int, "k": int, "ratio_recorded": (*NUMBER, type(None)), "padding": NUMBER, "plan": dict}
PLAN: Kinds = {"kernel": str, "decomposition": str, "grid": int, "iters_per_tile": int}


def shape(text: str) -> Shape:
    """``MxNxK``."""
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; give MxNxK, such as 7200x376x4856")
    m, n, k = map(int, text.split("x"))
    return m, n, k


def seconds(text: str) -> float:
    """A finite number above 0."""
    with suppress(ValueError):
        if isfinite(value := float(text)) and value > 0:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is no time; give a number of seconds above 0, such as 400")


def sweep_rows(path: Path) -> list[Row]:
    """The rows of a record of ``planner_sweep``. Checked: what is read of those where the set competes with cuBLAS."""
    rows = read(path)
    for number, row in enumerate(rows, 1):
        wrong = _wrong(row, {"part": str, "dtype": str})
        if not wrong and row["part"] == "main" and "set" in row and "cublas" in row:
            wrong = _wrong(row, {"m": int, "n": int, "k": int, "set": dict, "cublas": dict})
            wrong = wrong or _wrong(row["set"], {"us": (*NUMBER, type(None)), "kernel": str, "grid": int}, "set.")
            wrong = wrong or _wrong(row["cublas"], {"us": (*NUMBER, type(None))}, "cublas.")
        if wrong:
            raise RecordError(f"{path}, record {number}: {wrong} is missing or of another type; give records of planner_sweep")
    return rows


def read_manifest(path: Path) -> dict[str, Any]:
    """What was launched, as ``counters`` wrote it beside ncu's CSV."""
    remedy = "give the .manifest.json that was written beside the CSV"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path} cannot be read: {reason(error)}; {remedy}") from None
    kinds: Kinds = {"provenance": dict, "dtype": str, "layouts": list, "problems": list}
    if wrong := _wrong(manifest, kinds) or ("" if manifest["dtype"] in DTYPES else "dtype"):
        raise RecordError(f"{path} is no manifest: {wrong} is missing or of another type; {remedy}")
    for number, entry in enumerate(manifest["problems"]):
        if wrong := _wrong(entry, PROBLEM) or _wrong(entry["plan"], PLAN, "plan."):
            raise RecordError(f"{path} is no manifest: problems[{number}].{wrong} is missing or of another type; {remedy}")
    return dict(manifest)


def read_csv(path: Path) -> str:
    """ncu's CSV."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {reason(error)}; give ncu's CSV, as counters keeps it") from None


def launched(problems: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]] | None:
    """(number of the problem, contender) of every product that was profiled, in order; None where a manifest does not say."""
    if not any("profiled" in entry for entry in problems):
        return None
    return [(number, name) for number, entry in enumerate(problems) for name in entry.get("profiled", [])]


def _wrong(entry: object, kinds: Kinds, prefix: str = "") -> str:
    """The first of ``kinds`` that an object lacks or has of another type; empty if there is none."""
    found = entry if isinstance(entry, dict) else {}
    return next((prefix + name for name, kind in kinds.items() if name not in found or not isinstance(found[name], kind)), "")
