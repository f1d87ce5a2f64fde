"""Performance against the number of kernels: the curves of a record of ``ensemble.kernel_set``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from cutlass_sk.ensemble.table import TableError
from cutlass_sk.errors import reason

REMEDY = "give a record of kernel_set, such as results/h200/kernel_set_widths.json"


@dataclass(frozen=True)
class Curve:
    """A set that grows a kernel a step. ``points``: kernels, bytes of GPU code (None: unknown), geometric mean over cuBLAS."""

    name: str
    meaning: str
    problems: int
    points: tuple[tuple[int, int | None, float], ...]


def read_curves(path: Path) -> list[Curve]:
    """The curves of a record. TableError for a file that is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TableError(f"{path} cannot be read: {reason(error)}; {REMEDY}") from None
    curves = record.get("curves") if isinstance(record, dict) else None
    if not isinstance(curves, dict) or not curves:
        raise TableError(f"{path} has no curves; {REMEDY}")
    found = []
    for name, own in curves.items():
        try:
            points = tuple(_point(step) for step in own["curve"])
            found.append(Curve(name, str(own["meaning"]), int(own["problems"]), points))
        except (KeyError, TypeError, ValueError) as error:
            raise TableError(f"{path}: curve {name!r} cannot be used: {type(error).__name__} {error}; {REMEDY}") from None
    return found


def _point(step: Any) -> tuple[int, int | None, float]:
    count, size, geomean = step["count"], step["bytes"], float(step["geomean"])
    if not isfinite(geomean) or geomean <= 0:
        raise ValueError(f"geomean={geomean} is no number above 0")
    return int(count), None if size is None else int(size), geomean
