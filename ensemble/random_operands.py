"""Products of whatever operands torch can make, drawn at random: see ``operand_cases``, which runs them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from math import nan
from random import Random

from cutlass_sk.generator.catalog import DTYPES
from cutlass_sk.generator.spec import Generation

GENERATIONS: tuple[Generation, ...] = (*("sm90a",) * 9, "sm80")
LARGEST = 520, 520, 2100
"""m, n and k. Sums of so many products of -1, 0 and 1, scaled by the factors of exact cases, have no rounding in any dtype."""
LEAST_SMS, MOST_SMS = 4, 132

Value = int | float | str


@dataclass(frozen=True)
class View:
    """A matrix in memory of its own: strides, first element and elements behind the last, and whether what is stored is negated."""

    strides: tuple[int, int]
    offset: int = 0
    behind: int = 0
    negated: bool = False


@dataclass(frozen=True)
class Case:
    """One call of ``Gemm.run``.

    c          None: a new one
    factors    how alpha and beta are given: ``number``, or as 0-d tensors on the ``cpu`` or beside the operands, ``beside``
    exact      elements are -1, 0 and 1, and factors such that no sum is rounded: the result must be the float64 one, rounded once.
               Otherwise they are normal, and errors are held to a bound
    specials   how many elements of a and of b are NaN or infinite, in exact cases
    forced     options of ``Gemm.plan``; none: no plan is given
    seed       of the data
    """

    dtype: str
    out_dtype: str
    generation: Generation
    m: int
    n: int
    k: int
    a: View
    b: View
    c: View | None
    alpha: float = 1.0
    beta: float = 0.0
    factors: str = "number"
    exact: bool = True
    specials: int = 0
    forced: dict[str, Value] = field(default_factory=dict)
    seed: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of_json(text: str) -> Case:
        read = json.loads(text)
        for name in ("a", "b", "c"):
            if read[name] is not None:
                read[name] = View(**{**read[name], "strides": tuple(read[name]["strides"])})
        return Case(**read)

    @property
    def reproduction(self) -> str:
        return f"python -m cutlass_sk.ensemble.operand_cases --case {shlex.quote(self.to_json())}"


def cases(count: int, seed: int, first: int = 0) -> Iterator[Case]:
    """``count`` cases of a seed, from number ``first`` on."""
    for number in range(first, first + count):
        yield random_case(Random(f"{seed}/{number}"))


def random_case(random: Random, largest: tuple[int, int, int] = LARGEST) -> Case:
    """A case from the choices of ``random``."""
    dtype, out_dtype = random.choice(DTYPES)
    m, n, k = (_size(random, most) for most in largest)
    if random.randint(1, 25) == 25:
        m, n, k = random.choice([(0, n, k), (m, 0, k), (m, n, 0), (0, 0, 0)])
    exact, generation = _chance(random, 6), random.choice(GENERATIONS)
    alpha, beta = _factor(random, 1.0, exact), _factor(random, 0.0, exact)
    return Case(
        dtype,
        out_dtype,
        generation,
        m,
        n,
        k,
        _view(random, m, k, shares=True),
        _view(random, k, n, shares=True),
        None if beta == 0 and _chance(random, 2) else _view(random, m, n, shares=False),
        alpha,
        beta,
        random.choice(["number"] * 8 + ["cpu", "beside"]),
        exact,
        random.choice([0, 0, 0, 0, 1, 3]),
        _forced(random, generation, dtype, out_dtype),
        random.getrandbits(32),
    )


def _chance(random: Random, tenths: int) -> bool:
    """True so many times of ten. Whole numbers alone are drawn, so that hypothesis can draw and shrink them, too."""
    return random.randint(1, 10) > 10 - tenths


def _factor(random: Random, usual: float, exact: bool) -> float:
    if _chance(random, 4):
        return usual
    if exact or _chance(random, 3):
        return random.choice([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, nan])
    return random.uniform(-3, 3)


def _size(random: Random, most: int) -> int:
    """Small, near a multiple of what tiles and vectors are made of, or anything."""
    kind = random.choice(["any", "near", "small"])
    if kind == "small":
        return random.randint(1, min(9, most))
    if kind == "near":
        step = random.choice([8, 16, 32, 64, 128, 256])
        return max(1, min(most, step * random.randint(1, max(1, most // step)) + random.choice([-1, 0, 0, 0, 1])))
    return max(1, random.randint(1, most) // random.choice([1, 2, 4, 8, 16]))


def _view(random: Random, rows: int, columns: int, *, shares: bool) -> View:
    """Any view of a matrix; ``shares``: elements may share memory."""
    lines, length = (rows, columns) if (row_major := _chance(random, 5)) else (columns, rows)
    kind = random.choice(["dense", "dense", "aligned", "aligned", "wide", "steps", *(["expanded", "windows"] if shares else [])])
    step = random.randint(2, 5) if kind == "steps" else 1
    line = max(1, (length - 1) * step + 1)
    if kind == "aligned":
        line = -(-line // 8) * 8 + random.choice([0, 0, 8, 64])
    elif kind in ("wide", "steps"):
        line += random.randint(0, 9)
    elif kind == "windows":
        line = random.randint(1, line)
    elif kind == "expanded":
        line, step = random.choice([(0, 1), (0, 0), (random.randint(1, 9), 0)])
    if lines == 1 and _chance(random, 5):  # strides of which no element comes
        line = random.choice([0, 1, 3, 10**9])
    if length == 1 and _chance(random, 5):
        step = random.choice([0, 1, 7, 10**9])
    offset = random.choice([0, 0, 0, 8, random.randint(1, 17)])
    behind = random.choice([0, random.randint(1, 99)])
    return View((line, step) if row_major else (step, line), offset, behind, _chance(random, 1))


def _forced(random: Random, generation: Generation, dtype: str, out_dtype: str) -> dict[str, Value]:
    """Options that every problem has a plan for."""
    kind = random.choice(["planned", "planned", "data_parallel", "split_k", "stream_k"])
    if kind == "planned":
        return {}
    forced: dict[str, Value] = {"decomposition": kind}
    if kind == "split_k":
        forced["splits"] = random.randint(2, 20)
    if kind == "stream_k" and _chance(random, 5):
        forced |= {"sk_tiles": random.randint(1, 60), "sk_units": random.randint(1, 150)}
    if _chance(random, 5):
        forced["sms"] = random.randint(LEAST_SMS, MOST_SMS)
    if _chance(random, 2):
        forced["reduction_mode"] = "nondeterministic"
    if generation == "sm90a" and _chance(random, 3):
        forced |= {"raster_order": random.choice(["along_m", "along_n"]), "raster_swizzle": random.choice([1, 2, 3, 8])}
    if generation == "sm90a" and dtype != "float64" and _chance(random, 3):
        forced["tile_n"] = 32 * random.randint(1, 8)
    elif generation == "sm90a" and out_dtype != dtype and _chance(random, 3):
        forced["promotion"] = random.choice([0, 64, 128])
    return forced
