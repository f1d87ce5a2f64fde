"""What a corpus spans: volume, arithmetic intensity, and tiles per wave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import floor, log2
from statistics import geometric_mean, quantiles
from typing import Any

from .named import ALIGNMENT, SMS, TILE, check_tiles
from .problem import Corpus, CorpusError


@dataclass(frozen=True)
class Spread:
    """Least, quartiles and most of some values; between two values quartiles are interpolated."""

    least: float
    quarter: float
    median: float
    three_quarters: float
    most: float

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        listed = sorted(values)
        quarter, middle, three_quarters = quantiles(listed, n=4, method="inclusive") if len(listed) > 1 else listed * 3
        return Spread(listed[0], quarter, middle, three_quarters, listed[-1])

    def __str__(self) -> str:
        return " / ".join(f"{value:.3g}" for value in asdict(self).values())


@dataclass(frozen=True)
class Summary:
    """What a corpus spans.

    total_flop     of all problems, each as often as it counts
    flop           2 m n k of a problem
    intensity      FLOP for each byte of a, b and c
    octaves        problems by octave of intensity: 64 holds those from 64 to below 128 FLOP a byte, 0 those below 1
    tiles, waves   output tiles, and tiles over SMs
    wave_use       tiles over the slots of the whole waves that they take: how busy a data-parallel kernel of the tile keeps the SMs
    below_a_wave   part of the problems that have fewer tiles than there are SMs
    aligned        part of the problems with m, n and k multiples of 8
    """

    name: str
    count: int
    sha256: str
    total_flop: int
    flop: Spread
    flop_geomean: float
    intensity: Spread
    octaves: dict[int, int]
    tiles: Spread
    waves: Spread
    wave_use: Spread
    below_a_wave: float
    aligned: float

    def rows(self) -> list[tuple[str, str]]:
        """What each number is, and the number."""
        return [
            ("problems", f"{self.count:,}"),
            ("FLOP, in all", f"{self.total_flop:.4g}"),
            ("FLOP", f"{self.flop}  (geometric mean {self.flop_geomean:.3g})"),
            ("FLOP a byte", str(self.intensity)),
            ("problems from so many FLOP a byte on", ", ".join(f"{start}: {count}" for start, count in self.octaves.items())),
            ("tiles", str(self.tiles)),
            ("waves", f"{self.waves}  ({self.below_a_wave:.1%} below one)"),
            ("use of the waves' SMs", str(self.wave_use)),
            (f"m, n, k multiples of {ALIGNMENT}", f"{self.aligned:.1%}"),
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarize(corpus: Corpus, *, element_bytes: int = 2, tile: tuple[int, int] = TILE, sms: int = SMS) -> Summary:
    """The summary of a corpus for elements of ``element_bytes`` (of a, b and c) and output tiles of ``tile`` on ``sms`` SMs."""
    check_tiles(tile, sms)
    if not len(corpus):
        raise CorpusError(f"{corpus.name} holds no problems to summarise")
    flop = [problem.flop for problem in corpus]
    intensity = [problem.intensity(element_bytes) for problem in corpus]
    tiles = [-(-problem.m // tile[0]) * -(-problem.n // tile[1]) for problem in corpus]
    even = sum(all(size % ALIGNMENT == 0 for size in (problem.m, problem.n, problem.k)) for problem in corpus)
    octaves = Counter(2 ** floor(log2(value)) if value >= 1 else 0 for value in intensity)
    return Summary(
        name=corpus.name,
        count=len(corpus),
        sha256=corpus.sha256,
        total_flop=sum(problem.flop * problem.count for problem in corpus),
        flop=Spread.of(flop),
        flop_geomean=geometric_mean(flop),
        intensity=Spread.of(intensity),
        octaves={start: octaves[start] for start in sorted(octaves)},
        tiles=Spread.of(tiles),
        waves=Spread.of(count / sms for count in tiles),
        wave_use=Spread.of(count / (-(-count // sms) * sms) for count in tiles),
        below_a_wave=sum(count < sms for count in tiles) / len(tiles),
        aligned=even / len(corpus),
    )
