"""Collections of GEMM problems: the paper's, real-world ones, sweeps, and a user's own."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from io import StringIO
from math import log2
from pathlib import Path
from random import Random
from statistics import geometric_mean, median
from typing import Literal

PAPER_COUNT = 32824
"""Problems of the Stream-K paper's corpus (arXiv 2301.03598, section 6)."""
SMALLEST, LARGEST = 128, 8192
SEED = 2301
ALIGNMENT = 8
COLUMNS = ("m", "n", "k")
LAYOUTS = ("tt", "tn", "nt", "nn", "any")


class CorpusError(ValueError):
    """A corpus cannot be read; the message names the file, the line and the way out."""


@dataclass(frozen=True)
class Problem:
    """c[m, n] = a[m, k] @ b[k, n]. ``layout``: a's and b's letters (t row-major, n column-major), or any."""

    m: int
    n: int
    k: int
    name: str = ""
    layout: str = "any"
    dtype: str = ""
    source: str = ""

    @property
    def flop(self) -> int:
        return 2 * self.m * self.n * self.k

    def intensity(self, element_bytes: int, out_bytes: int | None = None) -> float:
        """FLOP for each byte that must move: a and b read once, c written once."""
        moved = (self.m + self.n) * self.k * element_bytes + self.m * self.n * (out_bytes or element_bytes)
        return self.flop / moved


@dataclass(frozen=True)
class Corpus:
    """Problems under a name, in a fixed order."""

    name: str
    problems: tuple[Problem, ...]

    def __len__(self) -> int:
        return len(self.problems)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)

    def shard(self, index: int, count: int) -> Corpus:
        """Every ``count``-th problem from ``index`` (from 0) on: alike in mixture, apart in content."""
        if not 0 <= index < count:
            raise CorpusError(f"shard {index} of {count}: the index must lie between 0 and {count - 1}")
        return Corpus(f"{self.name}[{index}/{count}]", self.problems[index::count])


def paper(kind: Literal["aligned", "raw"] = "aligned", count: int = PAPER_COUNT, seed: int = SEED) -> Corpus:
    """``count`` problems with m, n and k log-uniform in [128, 8192]: any integer (``raw``), or rounded to 8 (``aligned``).

    A corpus of fewer problems is the beginning of a longer one. Python's generator gives the same numbers everywhere.
    """
    generator = Random(seed)
    step = ALIGNMENT if kind == "aligned" else 1

    def size() -> int:
        value = SMALLEST * 2 ** (generator.random() * log2(LARGEST / SMALLEST))
        return round(value / step) * step

    return Corpus(f"paper/{kind}", tuple(Problem(size(), size(), size()) for _ in range(count)))


def real() -> Corpus:
    """Problems that practitioners run, with their sources; each (m, n, k, layout) once, under the first of its names."""
    text = files("cutlass_sk.ensemble").joinpath("data/real_world.csv").read_text(encoding="utf-8")
    first: dict[tuple[int, int, int, str], Problem] = {}
    for problem in read_csv(text, "real_world.csv"):
        first.setdefault((problem.m, problem.n, problem.k, problem.layout), problem)
    return Corpus("real", tuple(first.values()))


def waves(tile: tuple[int, int] = (128, 128), sms: int = 132, k: int = 4096, least: float = 0.5, most: float = 3.0) -> Corpus:
    """Output tiles from ``least`` to ``most`` waves of ``sms`` SMs, in steps of about a twelfth, and one tile to either side of
    each whole wave: where data-parallel kernels fall off."""
    counts = {round(sms * step / 12) for step in range(round(least * 12), round(most * 12) + 1)}
    counts |= {sms * wave + offset for wave in range(1, int(most) + 1) for offset in (-1, 0, 1)}
    return Corpus("waves", tuple(_of_tiles(count, tile, k) for count in sorted(counts) if count > 0))


def strong_scaling(tile: tuple[int, int] = (128, 128), sms: int = 132, longest: int = 131072) -> Corpus:
    """One tile to one wave of tiles, k from 1024 to ``longest`` in powers of two: where only k is left to share."""
    counts = sorted({1, 2, 4, 8, 16, 32, 64, sms // 2, sms - 1, sms})
    depths = [1024 << step for step in range(max(0, (longest // 1024).bit_length()))]
    return Corpus("strong_scaling", tuple(_of_tiles(count, tile, k) for count in counts if count > 0 for k in depths))


def sm(tile: tuple[int, int] = (128, 128), sms: int = 132) -> Corpus:
    """The two sweeps around the SMs of a GPU: ``waves`` and ``strong_scaling``."""
    return Corpus("sm", (*waves(tile, sms), *strong_scaling(tile, sms)))


def from_csv(path: Path) -> Corpus:
    """A user's own problems: a CSV with columns m, n, k, and name, layout, dtype, source where they matter; others are ignored."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path} cannot be read: {error}; give a CSV file in UTF-8 with columns m, n, k") from error
    return Corpus(path.stem, tuple(read_csv(text, str(path))))


def by_name(name: str) -> Corpus:
    """``paper``, ``paper/aligned``, ``paper/raw``, ``real``, ``sm``, ``waves``, ``strong_scaling``, or the path of a CSV file."""
    known = {
        "paper": paper,
        "paper/aligned": paper,
        "paper/raw": lambda: paper("raw"),
        "real": real,
        "sm": sm,
        "waves": waves,
        "strong_scaling": strong_scaling,
    }
    if name in known:
        return known[name]()
    if name.endswith(".csv"):
        return from_csv(Path(name))
    raise CorpusError(f"corpus {name!r} is not known; there are {', '.join(known)}, or a path that ends in .csv")


def read_csv(text: str, origin: str) -> Iterator[Problem]:
    """Problems of a CSV text; CorpusError names ``origin`` and the line of what is wrong."""
    reader = csv.DictReader(StringIO(text))
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise CorpusError(f"{origin}, line 1: no column {', '.join(missing)}; the first line must name m, n and k")
    empty = True
    for row in reader:
        empty = False
        where = f"{origin}, line {reader.line_num}"
        m, n, k = (_size(row[column], column, where) for column in COLUMNS)
        layout = (row.get("layout") or "any").strip()
        if layout not in LAYOUTS:
            raise CorpusError(f"{where}: layout={layout!r} is not one of {', '.join(LAYOUTS)}")
        yield Problem(m, n, k, row.get("name") or "", layout, row.get("dtype") or "", row.get("source") or "")
    if empty:
        raise CorpusError(f"{origin} holds no problems; give one a line under the heading")


@dataclass(frozen=True)
class Summary:
    """What a corpus spans. FLOP counts, FLOP a byte, and waves of 128x128 (or other) tiles, as (least, median, most)."""

    name: str
    count: int
    flop: tuple[float, float, float]
    flop_geomean: float
    intensity: tuple[float, float, float]
    waves: tuple[float, float, float]
    aligned: float

    def __str__(self) -> str:
        def span(values: tuple[float, float, float]) -> str:
            return " / ".join(f"{value:.3g}" for value in values)

        return (
            f"{self.name}: {self.count} problems, least / median / most of: FLOP {span(self.flop)} (geometric mean "
            f"{self.flop_geomean:.3g}), FLOP a byte {span(self.intensity)}, waves {span(self.waves)}; {self.aligned:.1%} with "
            f"m, n and k multiples of {ALIGNMENT}"
        )


def summarize(corpus: Corpus, *, element_bytes: int = 2, tile: tuple[int, int] = (128, 128), sms: int = 132) -> Summary:
    """Volume, intensity and tiles per wave of a corpus, for elements of ``element_bytes`` and tiles of ``tile`` on ``sms`` SMs."""
    flop = [float(problem.flop) for problem in corpus]
    tiles = (-(-problem.m // tile[0]) * -(-problem.n // tile[1]) / sms for problem in corpus)
    even = sum(all(size % ALIGNMENT == 0 for size in (problem.m, problem.n, problem.k)) for problem in corpus)
    return Summary(
        corpus.name,
        len(corpus),
        _span(flop),
        geometric_mean(flop),
        _span(problem.intensity(element_bytes) for problem in corpus),
        _span(tiles),
        even / len(corpus),
    )


def _span(values: Iterable[float]) -> tuple[float, float, float]:
    listed = list(values)
    return min(listed), median(listed), max(listed)


def _of_tiles(count: int, tile: tuple[int, int], k: int) -> Problem:
    """A problem of exactly ``count`` tiles, as nearly square as its divisors allow."""
    rows = max(divisor for divisor in range(1, int(count**0.5) + 1) if count % divisor == 0)
    return Problem(rows * tile[0], count // rows * tile[1], k, name=f"{count} tiles")


def _size(text: str | None, column: str, where: str) -> int:
    try:
        value = int(text or "")
    except ValueError:
        raise CorpusError(f"{where}: {column}={text!r} is no whole number") from None
    if value < 1:
        raise CorpusError(f"{where}: {column}={value} must be 1 or more")
    return value
