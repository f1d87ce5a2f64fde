"""Statistics of speed-ups: plain arithmetic on lists of ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp, floor, fsum, log, log10, sqrt
from typing import Any


@dataclass(frozen=True)
class Ratios:
    """Arithmetic mean of per-problem ratios, as in the Stream-K paper's tables, and more. ``std``: the sample's."""

    mean: float | None
    geomean: float | None
    min: float | None
    max: float | None
    std: float | None
    n: int

    @staticmethod
    def of(values: Sequence[float]) -> Ratios:
        if not values:
            return Ratios(None, None, None, None, None, 0)
        count = len(values)
        mean, geomean = fsum(values) / count, exp(fsum(map(log, values)) / count)
        # statistics.stdev counts in fractions, which takes a second for what a large corpus has.
        spread = sqrt(fsum((value - mean) ** 2 for value in values) / (count - 1)) if count > 1 else 0.0
        return Ratios(mean, geomean, min(values), max(values), spread, count)

    def to_json(self) -> dict[str, Any]:
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}


def half_decade(flop: float) -> float:
    """The power of ten, in halves, at which the half-decade of ``flop`` begins: 1e9 to 3.16e9 is 9.0."""
    return floor(2 * log10(flop) + 1e-9) / 2


def by_half_decade(pairs: Sequence[tuple[float, float]]) -> dict[float, Ratios]:
    """Ratios of (flop, ratio) pairs by the half-decade of their FLOP, from the smallest on."""
    groups: dict[float, list[float]] = {}
    for flop, ratio in pairs:
        groups.setdefault(half_decade(flop), []).append(ratio)
    return {start: Ratios.of(groups[start]) for start in sorted(groups)}
