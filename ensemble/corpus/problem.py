"""One GEMM problem, and collections of them in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from cutlass_sk.errors import Error


class CorpusError(Error, ValueError):
    """A corpus cannot be read or made; the message names the file, the line, the value and the way out."""


LARGEST_SIZE = 2**31 - 1
"""Sizes are 32-bit numbers in a kernel."""
LARGEST_MATRIX = 2**38
"""Elements of an operand or of c: half a TiB in 16 bits, more than a GPU holds."""


@dataclass(frozen=True)
class Problem:
    """c[m, n] = a[m, k] @ b[k, n]. ``layout``: a's and b's letters (t row-major, n column-major), or any. ``count``: how often it
    occurs in whatever the corpus is of."""

    m: int
    n: int
    k: int
    name: str = ""
    layout: str = "any"
    dtype: str = ""
    source: str = ""
    count: int = 1

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

    @property
    def sha256(self) -> str:
        """Digest, in hexadecimal, of the lines "m,n,k": two corpora with the same one hold the same problems in the same order."""
        return sha256("\n".join(f"{p.m},{p.n},{p.k}" for p in self.problems).encode()).hexdigest()


def check_matrices(m: int, n: int, k: int, where: str, remedy: str) -> None:
    """Raises CorpusError, with ``remedy`` at its end, for a problem that no kernel or no GPU takes."""
    if (largest := max(m, n, k)) > LARGEST_SIZE:
        raise CorpusError(
            f"{where}: m={m}, n={n}, k={k}: {largest} is larger than {LARGEST_SIZE}, the most a kernel takes; {remedy}"
        )
    for operand, elements in ((f"a[{m}, {k}]", m * k), (f"b[{k}, {n}]", k * n), (f"c[{m}, {n}]", m * n)):
        if elements > LARGEST_MATRIX:
            raise CorpusError(
                f"{where}: m={m}, n={n}, k={k}: {operand} has {elements:,} elements, more than the {LARGEST_MATRIX:,} "
                f"that a GPU may hold; {remedy}"
            )
