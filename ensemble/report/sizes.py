"""Library size in a report: what ``cutlass-sk size --json`` writes, as a table, with the performance that was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from cutlass_sk.ensemble.planner_report import DTYPES
from cutlass_sk.ensemble.table import MADE_UP, TableError
from cutlass_sk.errors import reason

from .grid import Grid
from .groups import Group

REMEDY = "give a record of `cutlass-sk size --json`, such as results/h200/size.json"
ALL_DTYPES = ("cublas", "cublaslt")
"""Libraries of all dtypes at once: they are listed once, under their own names."""
MEGABYTE = 1e6


@dataclass(frozen=True)
class Size:
    """A library. ``vs_cublas``: geometric mean of cuBLAS's time over its own; what is not known is None."""

    kernels: int | None
    cubin_bytes: int | None
    so_bytes: int | None
    meaning: str
    vs_cublas: float | None = None

    @property
    def bytes_per_kernel(self) -> float | None:
        return self.cubin_bytes / self.kernels if self.cubin_bytes and self.kernels else None

    @property
    def vs_cublas_per_mb(self) -> float | None:
        """Performance for each 10^6 bytes of GPU code."""
        return self.vs_cublas / self.cubin_bytes * MEGABYTE if self.vs_cublas and self.cubin_bytes else None

    def to_json(self) -> dict[str, Any]:
        numbers = {"kernels": self.kernels, "cubin_bytes": self.cubin_bytes, "so_bytes": self.so_bytes}
        performance = {name: getattr(self, name) for name in ("bytes_per_kernel", "vs_cublas", "vs_cublas_per_mb")}
        return {**numbers, **{name: None if value is None else round(value, 4) for name, value in performance.items()}}


@dataclass(frozen=True)
class Sizes:
    """A record: libraries by pair of dtypes and name. ``curves``: kernels, bytes and performance of an ensemble that grows."""

    origin: str
    provenance: Mapping[str, Any]
    libraries: Mapping[str, Mapping[str, Size]]
    curves: Mapping[str, Sequence[tuple[int, int, float | None]]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """``library_size`` of summary.json: a library's name begins with its dtypes, but for those of all dtypes."""
        return {
            name if name in ALL_DTYPES else f"{dtypes}_{name}": size.to_json()
            for dtypes, several in self.libraries.items()
            for name, size in several.items()
        }


def read_sizes(path: Path) -> Sizes:
    """The sizes of a record. TableError for a file that is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TableError(f"{path} cannot be read: {reason(error)}; {REMEDY}") from None
    found = [name for name in DTYPES if name in record] if isinstance(record, dict) else []
    if not found or not isinstance(record.get("provenance"), dict):
        raise TableError(f"{path} holds no library sizes; {REMEDY}")
    libraries: dict[str, dict[str, Size]] = {}
    curves: dict[str, list[tuple[int, int, float | None]]] = {}
    for dtypes in found:
        try:
            libraries[dtypes] = {str(name): _size(own) for name, own in record[dtypes]["libraries"].items()}
            curves[dtypes] = [
                (_whole(step["kernels"]), _whole(step["code_bytes"]), _ratio(step["vs_cublas"])) for step in record[dtypes]["curve"]
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TableError(f"{path}: {dtypes} cannot be used: {type(error).__name__} {error}; {REMEDY}") from None
    return Sizes(path.name, record["provenance"], libraries, curves)


JOIN = {
    "oracle_of_set": ("set", "the fastest data-parallel plan of the set's kernels, at all widths"),
    "data_parallel": ("single", "the one Stream-K kernel, data-parallel"),
}
"""Contenders that need the same binaries as a library: name -> that library, and what the contender is."""
TIMED_AS = {"oracle_hopper": "oracle"}
"""Libraries whose performance is that of a contender of another name."""


def with_performance(sizes: Sizes, groups: Sequence[Group]) -> Sizes:
    """The sizes with the performance that ``groups`` measured, back to back, on the largest corpus of each pair of dtypes.

    Contenders that need the same binaries as others (``JOIN``) join. The origin says so where times are made up."""
    made: dict[str, dict[str, Size]] = {}
    for dtypes, libraries in sizes.libraries.items():
        own = dict(libraries)
        group = measured_by(groups, dtypes)
        if group is not None:
            for name, (of, meaning) in JOIN.items():
                if of in own and f"{name}_vs_cublas" in group.ratios:
                    same = own[of]
                    own[name] = Size(same.kernels, same.cubin_bytes, same.so_bytes, meaning)
            for name, size in own.items():
                ratios = group.ratios.get(f"{TIMED_AS.get(name, name)}_vs_cublas")
                if ratios is not None:
                    own[name] = Size(size.kernels, size.cubin_bytes, size.so_bytes, size.meaning, ratios.geomean)
        made[dtypes] = own
    made_up = any(group.made_up for group in groups)
    return Sizes(f"{MADE_UP}; {sizes.origin}" if made_up else sizes.origin, sizes.provenance, made, sizes.curves)


def measured_by(groups: Sequence[Group], dtypes: str) -> Group | None:
    """The group that says how fast the libraries of a pair of dtypes are."""
    alike = [group for group in groups if group.dtypes == dtypes and group.timing == "back_to_back" and len(group.problems) > 1]
    return max(alike, key=lambda group: len(group.problems), default=None)


def table(sizes: Sizes, groups: Sequence[Group]) -> Grid:
    """One library a row, those of all dtypes once."""
    rows: dict[tuple[str, str], tuple[str, ...]] = {}
    for dtypes, libraries in sizes.libraries.items():
        for name, size in libraries.items():
            of = "all" if name in ALL_DTYPES else " -> ".join(dict.fromkeys(DTYPES[dtypes]))
            whole = (size.kernels, size.cubin_bytes, size.bytes_per_kernel, size.so_bytes)
            parts = (size.vs_cublas, size.vs_cublas_per_mb)
            cells = [*("-" if n is None else f"{n:,.0f}" for n in whole), *("-" if n is None else f"{n:.3f}" for n in parts)]
            rows.setdefault((of, name), (of, name, *cells, size.meaning))
    known = [group.title for dtypes in sizes.libraries if (group := measured_by(groups, dtypes)) is not None]
    timed = f"; times: {'; '.join(known)}" if known else ""
    headings = (
        "kernels",
        "GPU code, bytes",
        "bytes a kernel",
        "shared objects, bytes",
        "over cuBLAS",
        "over cuBLAS a MB",
        "meaning",
    )
    return Grid(f"Library size ({sizes.origin}{timed})", ("dtypes", "library", *headings), tuple(rows.values()))


def _size(entry: Mapping[str, Any]) -> Size:
    kernels, code, whole = (
        None if entry[name] is None else _whole(entry[name]) for name in ("kernels", "code_bytes", "library_bytes")
    )
    return Size(kernels, code, whole, str(entry["meaning"]), _ratio(entry["vs_cublas"]))


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _ratio(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise ValueError(f"{value!r} is no number above 0")
    return float(value)
