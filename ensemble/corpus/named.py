"""The corpora that have names. Each is the same, number for number, everywhere."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from math import log2
from pathlib import Path
from random import Random
from typing import Literal

from .csv_file import from_csv, read_csv
from .problem import Corpus, CorpusError, Problem, check_matrices

PAPER_COUNT = 32824
"""Problems of the Stream-K paper's corpus (arXiv 2301.03598, section 6)."""
SMALLEST, LARGEST = 128, 8192
SEED = 2301
ALIGNMENT = 8
TILE, SMS = (128, 128), 132
"""What ``sm`` is about where nothing else is said: a middling tile, and an H200."""


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


def waves(tile: tuple[int, int] = TILE, sms: int = SMS, k: int = 4096, least: float = 0.5, most: float = 3.0) -> Corpus:
    """Output tiles from ``least`` to ``most`` waves of ``sms`` SMs, in steps of about a twelfth, and one tile to either side of
    each whole wave: where data-parallel kernels fall off."""
    check_tiles(tile, sms)
    counts = {round(sms * step / 12) for step in range(round(least * 12), round(most * 12) + 1)}
    counts |= {sms * wave + offset for wave in range(1, int(most) + 1) for offset in (-1, 0, 1)}
    return Corpus("waves", tuple(_of_tiles(count, tile, k) for count in sorted(counts) if count > 0))


def strong_scaling(tile: tuple[int, int] = TILE, sms: int = SMS, longest: int = 131072) -> Corpus:
    """One tile to one wave of tiles, k from 1024 to ``longest`` in powers of two: where only k is left to share."""
    check_tiles(tile, sms)
    counts = sorted(count for count in {1, 2, 4, 8, 16, 32, 64, sms // 2, sms - 1, sms} if 0 < count <= sms)
    depths = [1024 << step for step in range(max(0, (longest // 1024).bit_length()))]
    return Corpus("strong_scaling", tuple(_of_tiles(count, tile, k) for count in counts for k in depths))


def sm(tile: tuple[int, int] = TILE, sms: int = SMS) -> Corpus:
    """The two sweeps around the SMs of a GPU: ``waves`` and ``strong_scaling``."""
    return Corpus("sm", (*waves(tile, sms), *strong_scaling(tile, sms)))


Sweep = Callable[[tuple[int, int], int], Corpus]
SWEEPS: dict[str, Sweep] = {"sm": sm, "waves": waves, "strong_scaling": strong_scaling}
NAMES = {
    "paper": f"{PAPER_COUNT:,} problems, log-uniform in [{SMALLEST}, {LARGEST}], rounded to {ALIGNMENT}: paper/aligned",
    "paper/aligned": "the same",
    "paper/raw": "the same, not rounded",
    "real": "problems that practitioners run, with their sources",
    "sm": "waves and strong_scaling",
    "waves": "half a wave of tiles to three, across each whole wave",
    "strong_scaling": "one tile to one wave, k to 131072",
}
"""The names that ``by_name`` knows, and what they stand for."""


def by_name(name: str, tile: tuple[int, int] = TILE, sms: int = SMS) -> Corpus:
    """One of ``NAMES``, or the path of a CSV file. ``tile`` and ``sms`` matter to ``sm``, ``waves`` and ``strong_scaling``."""
    if name in SWEEPS:
        return SWEEPS[name](tile, sms)
    if name in NAMES:
        return real() if name == "real" else paper("raw" if name == "paper/raw" else "aligned")
    if name.endswith(".csv"):
        return from_csv(Path(name))
    raise CorpusError(f"corpus {name!r} is not known; there are {', '.join(NAMES)}, or a path that ends in .csv")


def check_tiles(tile: tuple[int, int], sms: int) -> None:
    """Raises CorpusError for a tile or a number of SMs that nothing can be counted in."""
    if min(tile) < 1 or sms < 1:
        raise CorpusError(f"tile={tile[0]}x{tile[1]}, sms={sms}: give a tile of 1x1 or more, and one SM or more")


def _of_tiles(count: int, tile: tuple[int, int], k: int) -> Problem:
    """A problem of exactly ``count`` tiles, as nearly square as its divisors allow."""
    rows = max(divisor for divisor in range(1, int(count**0.5) + 1) if count % divisor == 0)
    m, n = rows * tile[0], count // rows * tile[1]
    check_matrices(m, n, k, f"{count} tiles of {tile[0]}x{tile[1]}", "take a smaller tile or fewer SMs")
    return Problem(m, n, k, name=f"{count} tiles")
