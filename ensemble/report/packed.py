"""The numbers of the page's table of all problems, small enough for a page: whole numbers in columns, in gzip.

What is packed is a line of JSON, the header, and after it the bytes of all columns, one after the other. A column is written as
differences from an earlier one that is like it, if there is one (``minus``): a difference d of 0 or more as 2d, others as -2d - 1.
The lowest bytes of all rows come first, then the next ones, as many as ``bytes`` says. ``page.js`` unpacks it.

A time is a code: 0 where nothing was measured, then a code for each of ``statuses``, then times by their logarithms, in steps of
``step``. A time in the table is thus within 0.03% of what was measured.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from math import log
from typing import Any

import numpy

from cutlass_sk.ensemble.table import Measurement
from cutlass_sk.generator.spec import ELEMENT_BYTES

from .groups import RATIOS, Group, plan_text

STATUSES = ("wrong", "failed", "not_timed")
STEP = 1 / 1024
LEAST_US = 0.001
FIRST = len(STATUSES) + 1
"""The code of LEAST_US."""

SHOWN = tuple(name for name in RATIOS if name != "set_vs_exhaustive" and not name.endswith("_compute_bound"))
"""Ratios that have a column of their own in the table."""

Column = numpy.ndarray[Any, numpy.dtype[numpy.int64]]


def packed(groups: Sequence[Group]) -> bytes:
    """The table of all problems. Each kernel and plan is there once, under ``texts``; rows point to them."""
    columns, texts, made = _Columns(), dict[str, int](), list[dict[str, Any]]()
    sizes: dict[tuple[Any, ...], list[int]] = {}
    plans: dict[tuple[Any, ...], list[int]] = {}
    for group in groups:
        rows = list(group.problems.values())
        places = tuple((problem.m, problem.n, problem.k) for problem in group.problems)
        if places not in sizes:
            sizes[places] = [columns.add(values) for values in zip(*places, strict=True)]
        times: list[int] = []
        for contender in group.contenders:
            times.append(columns.add([code(row.get(contender)) for row in rows], times))
        # What an isolated launch ran is mostly what ran back to back.
        alike = plans.setdefault((group.dtypes, places), [])
        words = zip(*(_words(row.get("set") or row.get("single"), texts) for row in rows), strict=True)
        alike += [columns.add(values, alike[number::2]) for number, values in enumerate(words)]
        ratios = {
            name: (group.contenders.index(other), group.contenders.index(own))
            for name, (other, own, _) in RATIOS.items()
            if name in SHOWN and {other, own} <= set(group.contenders)
        }
        made.append(
            {
                "title": group.title,
                "contenders": group.contenders,
                "ratio_names": list(ratios),
                "ratios": list(ratios.values()),
                "bytes": ELEMENT_BYTES[group.dtype],
                "out_bytes": ELEMENT_BYTES[group.out_dtype],
                "rows": len(rows),
                "sizes": sizes[places],
                "times": times,
                "plan": alike[-2:],
            }
        )
    header = {
        "step": STEP,
        "least_us": LEAST_US,
        "statuses": [status.replace("_", " ") for status in STATUSES],
        "texts": list(texts),
        "columns": columns.described,
        "groups": made,
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    return gzip.compress(text + b"\n" + b"".join(columns.data), compresslevel=9, mtime=0)


def code(measured: Measurement | None) -> int:
    """The code of a time."""
    if measured is None:
        return 0
    if measured.status != "ok" or measured.us is None:
        return 1 + STATUSES.index(measured.status)
    return FIRST + max(0, round(log(measured.us / LEAST_US) / STEP))


def _words(measured: Measurement | None, texts: dict[str, int]) -> tuple[int, int]:
    """The places of kernel and plan among ``texts``."""
    words = (measured.kernel or "-", plan_text(measured) or "-") if measured else ("-", "-")
    kernel, plan = (texts.setdefault(word, len(texts)) for word in words)
    return kernel, plan


class _Columns:
    """The columns so far: ``described`` in the header, ``data`` after it."""

    def __init__(self) -> None:
        self.described: list[dict[str, int | None]] = []
        self.data: list[bytes] = []
        self._values: list[Column] = []

    def add(self, values: Sequence[int], like: Sequence[int] = ()) -> int:
        """The place of a new column. ``like``: places of those that it may be written as differences from."""
        own = numpy.asarray(values, dtype=numpy.int64)
        written = {place: own - (0 if place is None else self._values[place]) for place in (None, *like)}
        minus = min(written, key=lambda place: float(numpy.log2(1 + abs(written[place])).sum()))
        signed = written[minus]
        folded = numpy.where(signed < 0, -2 * signed - 1, 2 * signed).astype(numpy.uint32)
        width = max(1, (int(folded.max(initial=0)).bit_length() + 7) // 8)
        self.described.append({"rows": len(own), "bytes": width, "minus": minus})
        self.data += [(folded >> (8 * number) & 255).astype(numpy.uint8).tobytes() for number in range(width)]
        self._values.append(own)
        return len(self._values) - 1
