"""Records that ``cutlass-sk size`` takes bytes and times from: read, and refused where they have another form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from cutlass_sk.errors import Error, reason


class SizeError(Error, ValueError):
    """A record of measurements cannot be read or used; the message names the file, what is missing and the way out."""


def read_times(path: Path, dtype: str) -> dict[str, Any]:
    """A record of ``planner_sweep`` with what ``size`` reads of it. ``dtype``: the name of the pair of dtypes there.

    Checked: kernels, bytes and shared_object_bytes, and the geomean of either ratio that is there.
    """
    record = _read(path, dtype)
    entry = _field(path, record, dtype, dict)
    ratios = [name for name in ("single_vs_cublas", "set_vs_cublas") if entry.get(name) is not None]
    for name in ratios:
        _number(path, _field(path, entry, name, dict, dtype), "geomean", f"{dtype}.{name}")
    if not ratios:
        raise _lacks(path, f"{dtype}.set_vs_cublas", "an object")
    kernels = _field(path, entry, "kernels", list, dtype)
    if not kernels or not all(isinstance(kernel, str) for kernel in kernels):
        raise _lacks(path, f"{dtype}.kernels", "a list of names")
    for name in ("bytes", "shared_object_bytes"):
        _number(path, entry, name, dtype)
    return record


def read_candidates(path: Path) -> dict[str, Any]:
    """A record of ``kernel_set``. Checked: bytes, where they are there, and the kernels and geomeans of the data-parallel curve."""
    record = _read(path, "curves")
    curves = _field(path, record, "curves", dict)
    if record.get("bytes") is not None:
        sizes = _field(path, record, "bytes", dict)
        for name in sizes:
            _number(path, sizes, name, "bytes")
    if "data_parallel" in curves:
        own = _field(path, curves, "data_parallel", dict, "curves")
        where = "curves.data_parallel.curve"
        for number, step in enumerate(_field(path, own, "curve", list, "curves.data_parallel")):
            if not isinstance(step, dict):
                raise _lacks(path, f"{where}[{number}]", "an object")
            _field(path, step, "kernel", str, f"{where}[{number}]")
            _number(path, step, "geomean", f"{where}[{number}]")
    return record


def _read(path: Path, must: str) -> dict[str, Any]:
    """A JSON object that has the key ``must``."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SizeError(
            f"{path} cannot be read: {reason(error)}; give a record of results/, such as results/h200/planner.json"
        ) from None
    if not isinstance(record, dict) or must not in record:
        raise SizeError(f"{path} is no such record: it has no {must!r}; `cutlass-sk size --help` says which file is meant")
    return record


def _field(path: Path, entry: Mapping[str, Any], name: str, kind: type, where: str = "") -> Any:
    if not isinstance(entry.get(name), kind):
        meant = {"dict": "an object", "list": "a list", "str": "a text"}[kind.__name__]
        raise _lacks(path, f"{where}.{name}" if where else name, meant)
    return entry[name]


def _number(path: Path, entry: Mapping[str, Any], name: str, where: str) -> None:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise _lacks(path, f"{where}.{name}", "a number above 0")


def _lacks(path: Path, what: str, meant: str) -> SizeError:
    return SizeError(f"{path} is no such record: {what} is missing or is not {meant}; `cutlass-sk size --help` says which is meant")
