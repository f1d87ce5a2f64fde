"""Whatever a BLAS user may bring, as a table of calls that must give the value. On the CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan
from typing import Any

from cutlass_sk.ensemble.random_operands import Case, View
from cutlass_sk.generator.spec import Generation

M, N, K = 131, 77, 203
DTYPES = (
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
    ("float64", "float64"),
    ("float16", "float32"),
    ("bfloat16", "float32"),
)
DECOMPOSITIONS: dict[str, dict[str, Any]] = {
    "planned": {},
    "data_parallel": {"decomposition": "data_parallel"},
    "split_k": {"splits": 3},
    "stream_k": {"decomposition": "stream_k", "sms": 29},
}
FAR = 10**9
"""A stride of which no element comes."""

FACTORS: dict[str, dict[str, Any]] = {
    "beta = 0 does not read c": {"beta": 0.0},
    "-0.0 is 0": {"beta": -0.0},
    "alpha = 0 reads neither a nor b": {"alpha": 0.0, "beta": 2.0, "specials": 3},
    "alpha = beta = 0": {"alpha": -0.0, "beta": 0.0, "specials": 3},
    "k = 0 leaves beta * c": {"k": 0, "beta": -0.5},
    "k = 0 and beta = 0 leave zeros": {"k": 0},
    "k = 0 and alpha is NaN": {"k": 0, "alpha": nan, "beta": 2.0},
    "m = 0": {"m": 0, "beta": 1.0},
    "n = 0": {"n": 0, "beta": 1.0},
    "nothing at all": {"m": 0, "n": 0, "k": 0},
    "NaN and infinities in a and b travel on": {"specials": 3},
    "and are added to c": {"specials": 3, "alpha": -2.0, "beta": 0.5},
    "c is source and destination": {"alpha": 0.5, "beta": -2.0},
    "alpha is NaN": {"alpha": nan},
    "alpha is infinite": {"alpha": inf},
    "beta is NaN": {"beta": nan},
    "both are NaN": {"alpha": nan, "beta": nan},
    "factors of no round numbers": {"alpha": 0.3, "beta": -1.7, "exact": False},
    "no c": {"c": None},
}

VIEWS: dict[str, tuple[View, View]] = {
    "row-major": (View((K, 1)), View((N, 1))),
    "column-major": (View((1, M)), View((1, K))),
    "sliced": (View((K + 21, 1), 5), View((N + 19, 1), 9)),
    "sliced, aligned": (View((K + 21, 1), 8), View((N + 19, 1), 16)),
    "sliced, column-major": (View((1, M + 5), 3), View((1, K + 13), 1)),
    "every other column": (View((2 * K + 1, 2), 1), View((2 * N, 2))),
    "every third row": (View((3 * K, 1)), View((3 * N + 1, 1), 2)),
    "no unit stride, transposed": (View((3, 3 * M)), View((2, 2 * K + 1), 7)),
    "one row for all": (View((0, 1), 1), View((0, 1))),
    "one column for all": (View((1, 0)), View((2, 0), 3)),
    "one element for all": (View((0, 0), 5), View((0, 0))),
    "overlapping windows": (View((8, 1), 8), View((3, 1), 1)),
    "overlapping windows, transposed": (View((1, 16)), View((1, 5), 2)),
    "a pending negation": (View((K, 1), negated=True), View((1, K + 5), 8, negated=True)),
    "a pending negation without unit stride": (View((2 * K, 2), negated=True), View((2 * N, 2), 1, negated=True)),
}

OUTPUTS: dict[str, View] = {
    "row-major": View((N, 1)),
    "column-major": View((1, M)),
    "a window": View((N + 11, 1), 3),
    "an aligned window": View((N + 19, 1), 16),
    "a window, column-major": View((1, M + 5), 1),
    "every other column": View((2 * N, 2), 1),
    "every other row": View((2 * N, 1), 8),
    "no unit stride, transposed": View((3, 3 * M + 1)),
    "a pending negation": View((N, 1), negated=True),
    "a pending negation, column-major": View((1, M), negated=True),
}

SINGLE: dict[str, tuple[dict[str, int], View, View, View]] = {
    "one row": ({"m": 1}, View((FAR, 1)), View((N, 1)), View((0, 1))),
    "one row of any strides": ({"m": 1}, View((0, 3)), View((N, 1), 1), View((FAR, 2))),
    "one column": ({"n": 1}, View((K, 1)), View((1, FAR)), View((1, 0))),
    "one column of any strides": ({"n": 1}, View((K, 1), 3), View((5, 0)), View((7, FAR))),
    "k = 1": ({"k": 1}, View((1, FAR)), View((FAR, 1)), View((N, 1))),
    "k = 1 of any strides": ({"k": 1}, View((3, 0), 1), View((0, 2)), View((N, 1), 1)),
    "one element": ({"m": 1, "n": 1, "k": 1}, View((FAR, 0)), View((0, FAR)), View((FAR, FAR))),
}


def good(dtype: str, out_dtype: str, generation: Generation) -> Case:
    return Case(dtype, out_dtype, generation, M, N, K, View((K, 1)), View((N, 1)), View((N, 1), behind=5), seed=7)


def table(dtype: str, out_dtype: str, generation: Generation = "sm90a") -> Iterator[tuple[str, Case]]:
    """(what is brought, the call), without alignments."""
    case = good(dtype, out_dtype, generation)
    for name, changes in FACTORS.items():
        yield name, replace(case, **changes)
        for factors in ("cpu", "beside"):
            yield f"{name}, {factors}", replace(case, factors=factors, **changes)
    for name, (a, b) in VIEWS.items():
        yield f"a: {name}", replace(case, a=a)
        yield f"b: {name}", replace(case, b=b)
        yield f"both: {name}", replace(case, a=a, b=b, beta=1.0)
    for name, c in OUTPUTS.items():
        for beta in (0.0, 1.0):
            yield f"c: {name}, beta = {beta}", replace(case, c=c, beta=beta)
            yield f"c: {name}, beta = {beta}, beside", replace(case, c=c, beta=beta, factors="beside")
    for name, (sizes, a, b, c) in SINGLE.items():
        for beta in (0.0, 1.0):
            yield f"{name}, beta = {beta}", replace(case, a=a, b=b, c=c, beta=beta, **sizes)  # type: ignore[arg-type]


def alignments(dtype: str, out_dtype: str, generation: Generation = "sm90a", step: int = 1) -> Iterator[tuple[str, Case]]:
    """Every address and leading dimension up to 16 bytes off, of each operand alone and of all, row- and column-major."""
    case = good(dtype, out_dtype, generation)
    columns = {"a": K + 5, "b": N + 3, "c": N + 3}  # multiples of 8
    rows = {"a": M + 5, "b": K + 5, "c": M + 5}
    for offset in range(0, 9, step):
        for more in range(0, 9, step):
            by_rows = {name: View((size + more, 1), offset, behind=3) for name, size in columns.items()}
            by_columns = {name: View((1, size + more), offset, behind=3) for name, size in rows.items()}
            for order, views in (("row-major", by_rows), ("column-major", by_columns)):
                for name, view in views.items():
                    yield f"{name} {order}, {offset}, {more}", replace(case, **{name: view}, beta=1.0)
                yield f"all {order}, {offset}, {more}", replace(case, **views)


def with_plan(case: Case, decomposition: str) -> Case:
    return replace(case, forced=DECOMPOSITIONS[decomposition])
