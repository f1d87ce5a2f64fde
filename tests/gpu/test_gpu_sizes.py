"""Sizes and offsets beyond 32 bits, long thin problems, and very long k: the value, or an error before anything is launched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from problems import KINDS, gemm_of

from cutlass_sk import Gemm, KernelSpec
from cutlass_sk.errors import PlanError

WHERE = "cuda"
BEYOND = 1 << 31
MANY, WIDE, FEW = 70000, 32776, 24
"""MANY x WIDE is beyond 2^31."""
LONG, LONGER = 10**6, 1 << 24
CHUNK = 1 << 27
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"decomposition": "data_parallel"})
CHOSEN = [spec for spec in KINDS if spec.dtype == spec.out_dtype and (spec.generation == "sm90a" or spec.dtype == "float16")]
kinds = pytest.mark.parametrize("spec", CHOSEN, ids=str)


@pytest.fixture(autouse=True)
def memory_is_given_back() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


def matrix(rows: int, columns: int, dtype: torch.dtype, column_major: bool = False) -> torch.Tensor:
    """-1, 0 and 1: sums have no rounding."""
    shape = (columns, rows) if column_major else (rows, columns)
    made = torch.randint(-1, 2, shape, device=WHERE, dtype=torch.int8).to(dtype)
    return made.t() if column_major else made


def poisoned(m: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((m, n), float("nan"), device=WHERE, dtype=dtype)


def wrong_elements(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> int:
    """How many of c differ from a @ b, rounded once."""
    m, wrong, y = c.shape[0], 0, b.double()
    step = max(1, CHUNK // max(a.shape[1], c.shape[1]))
    for first in range(0, m, step):
        rows = slice(first, min(first + step, m))
        wrong += int(((a[rows].double() @ y).to(c.dtype) != c[rows]).sum())
    return wrong


@kinds
@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("odd", [0, 3])
@pytest.mark.parametrize("large", ["a", "b", "c"])
def test_more_than_two_to_the_31_elements(large: str, odd: int, column_major: bool, spec: KernelSpec) -> None:
    m, n, k = {"a": (MANY, FEW, WIDE + odd), "b": (FEW, MANY + odd, WIDE), "c": (MANY, WIDE + odd, FEW)}[large]
    gemm = gemm_of(spec)
    a, b = matrix(m, k, gemm.dtype, column_major), matrix(k, n, gemm.dtype, column_major)
    c = poisoned(n, m, gemm.out_dtype).t() if column_major else poisoned(m, n, gemm.out_dtype)
    assert max(x.numel() for x in (a, b, c)) > BEYOND
    assert gemm.run(a, b, c) is c
    assert wrong_elements(c, a, b) == 0


@kinds
@pytest.mark.parametrize("offset", [8, 3])
def test_offsets_beyond_two_to_the_31(offset: int, spec: KernelSpec) -> None:
    m, n, k = 131, 77, 203
    gemm, place = gemm_of(spec), BEYOND + offset
    a, b, memory = matrix(m, k, gemm.dtype), matrix(k, n, gemm.dtype), torch.empty(0, device=WHERE)
    for far in ("a", "b", "c"):
        del memory
        memory = torch.full((BEYOND + (1 << 20),), 7.0, device=WHERE, dtype=gemm.dtype)
        x, y, z = a, b, poisoned(m, n, gemm.out_dtype)
        if far == "a":
            x = memory.as_strided((m, k), (k + 5, 1), place).copy_(a)
        elif far == "b":
            y = memory.as_strided((k, n), (n + 3, 1), place).copy_(b)
        else:
            z = memory.as_strided((m, n), (n + 3, 1), place).fill_(float("nan"))
        gemm.run(x, y, z)
        assert wrong_elements(z, a, b) == 0
        if far == "c":
            z.fill_(7.0)
            assert bool((memory[place - 4096 : place + (n + 3) * m + 4096] == 7.0).all())


@kinds
@pytest.mark.parametrize("column_major", [False, True])
def test_rows_that_lie_far_apart(column_major: bool, spec: KernelSpec) -> None:
    """Of five rows the last begins beyond 2^31 elements."""
    few, many, apart = 5, 72, BEYOND // 4 + 8
    gemm = gemm_of(spec)
    memory = torch.full((few * apart,), float("nan"), device=WHERE, dtype=gemm.dtype)

    def far(rows: int, columns: int, first: int) -> torch.Tensor:
        return memory.as_strided((rows, columns), (1, apart) if column_major else (apart, 1), first)

    short_rows = {"a": (few, 40, many), "b": (40, many, few), "c": (few, many, 40)}
    short_columns = {"a": (many, 40, few), "b": (40, few, many), "c": (many, few, 40)}
    for name, (m, n, k) in (short_columns if column_major else short_rows).items():
        a, b = matrix(m, k, gemm.dtype), matrix(k, n, gemm.dtype)
        c = poisoned(m, n, gemm.out_dtype)
        if name == "a":
            c = gemm.run(far(m, k, 16).copy_(a), b, c)
        elif name == "b":
            c = gemm.run(a, far(k, n, 16).copy_(b), c)
        else:
            c = gemm.run(a, b, far(m, n, 1))
        assert wrong_elements(c, a, b) == 0, name


@kinds
@pytest.mark.parametrize("k", [8, 5])
@pytest.mark.parametrize("shape", [(LONGER, 1), (1, LONGER)], ids=["column", "row"])
def test_long_thin_problems(shape: tuple[int, int], k: int, spec: KernelSpec) -> None:
    (m, n), gemm = shape, gemm_of(spec)
    a, b = matrix(m, k, gemm.dtype), matrix(k, n, gemm.dtype)
    for options in OPTIONS:
        plan = gemm.plan(m, n, k, **options)
        c = poisoned(m, n, gemm.out_dtype)
        assert wrong_elements(gemm.run(a, b, c, plan=plan), a, b) == 0, options
        if options and not spec.persistent and m > n:
            assert plan.grid > 65535


@kinds
@pytest.mark.parametrize("k", [LONG, LONG + 7, LONGER])
def test_very_long_k(k: int, spec: KernelSpec) -> None:
    m, n, gemm = 16, 24, gemm_of(spec)
    a, b = matrix(m, k, gemm.dtype), matrix(k, n, gemm.dtype)
    for options in (*OPTIONS, {"splits": 64}, {"decomposition": "stream_k", "sms": 101}):
        c = poisoned(m, n, gemm.out_dtype)
        assert wrong_elements(gemm.run(a, b, c, plan=gemm.plan(m, n, k, **options)), a, b) == 0, options


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_sizes_beyond_32_bits_are_refused_before_a_launch(dtype: str) -> None:
    gemm = Gemm(dtype, kernels=1)
    one = torch.ones(1, 1, device=WHERE, dtype=gemm.dtype)
    for a, b, name in (
        (one.expand(BEYOND, 1), one, "m"),
        (one, one.expand(1, BEYOND), "n"),
        (one.expand(1, BEYOND), one.expand(BEYOND, 1), "k"),
    ):
        c = torch.full((a.shape[0], b.shape[1]), 5.0, device=WHERE, dtype=gemm.dtype)
        with pytest.raises(PlanError, match=rf"{name}={BEYOND} must be a whole number from 1 to {BEYOND - 1}"):
            gemm.run(a, b, c)
        assert bool((c[:100, :100] == 5.0).all())
