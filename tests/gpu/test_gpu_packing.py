"""Lines that start anywhere, packed: every start and length, not a byte beside them, and in order with what is around."""

from __future__ import annotations

import random

import pytest
import torch

from cutlass_sk import Gemm, packing
from cutlass_sk.call import NativeCalls

DTYPES = [torch.float16, torch.float64]


def window(rows: int, columns: int, leading: int, start: int, dtype: torch.dtype) -> torch.Tensor:
    memory = torch.randn(start + rows * leading + columns, dtype=torch.float64, device="cuda").to(dtype)
    return memory.as_strided((rows, columns), (leading, 1), start)


def frame(rows: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory of sevens, and a window of it whose lines start on 16 bytes."""
    step = 16 // dtype.itemsize
    leading = -(-columns // step) * step + random.choice([0, step])
    memory = torch.full((rows * leading + 64,), 7.0, dtype=dtype, device="cuda")
    return memory, memory.as_strided((rows, columns), (leading, 1), 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_lines_are_copied_and_nothing_else_is_written(dtype: torch.dtype) -> None:
    random.seed(5)
    step = 16 // dtype.itemsize
    for _ in range(300):
        pairs, frames = [], []
        for _ in range(random.choice([1, 2])):
            rows, columns = random.choice([1, 2, 7, 129, 1000]), random.randint(1, random.choice([9, 70, 2100]))
            x = window(rows, columns, random.randint(columns, columns + 9), random.randint(0, 17), dtype)
            memory, y = frame(rows, columns, dtype)
            turned = random.random() < 0.5
            pairs.append((x.t(), y.t()) if turned else (x, y))
            frames.append((memory, y, x))
        assert all(packing.as_lines(*pair) is not None for pair in pairs)
        packing.copy(pairs)
        for memory, y, x in frames:
            case = tuple(x.shape), x.stride(), x.storage_offset(), y.stride()
            assert torch.equal(y, x), case
            rows, columns = y.shape
            leading, vectors = y.stride(0), -(-columns // step) * step
            lines = memory[: rows * leading].view(rows, leading)
            assert (lines[:, columns:vectors] == 0).all(), case
            assert (lines[:, vectors:] == 7).all() and (memory[rows * leading :] == 7).all(), case


def test_large_matrices_are_copied() -> None:
    for rows, columns in ((8191, 8191), (3, 1 << 24), (1 << 21, 5)):
        x = window(rows, columns, columns, 3, torch.float16)
        _, y = frame(rows, columns, torch.float16)
        packing.copy([(x, y)])
        assert torch.equal(y, x)


def test_packing_and_products_follow_what_came_before_them() -> None:
    """Nothing waits on the host: each step reads what the one before has written, through launches that overlap."""
    gemm = Gemm("float16", out_dtype="float32")
    m, n, k = 333, 259, 517
    a, b = torch.zeros(m, k, device="cuda", dtype=torch.float16), torch.ones(k, n, device="cuda", dtype=torch.float16)
    results = []
    for _ in range(200):
        a.add_(1)
        results.append(gemm.run(a, b)[::100, ::100].clone())
        if len(results) % 50 == 0:
            a.zero_()
    for number, result in enumerate(results):
        assert torch.equal(result, torch.full_like(result, float((number % 50 + 1) * k)))


def test_products_of_products_are_packed_in_order() -> None:
    """Each product packs what the one before has written, and may start before that is there: permutations, which are exact."""
    gemm, size = Gemm("float16"), 301
    order = torch.randperm(size, device="cuda")
    permutation = torch.eye(size, device="cuda", dtype=torch.float16)[order]
    first = torch.randint(-9, 10, (157, size), device="cuda").half()
    product, expected = first, first
    for _ in range(200):
        product, expected = gemm.run(product, permutation), expected[:, order.argsort()]
    assert torch.equal(product, expected)


def test_a_packed_product_is_captured_and_replayed_on_new_values() -> None:
    gemm = Gemm("float16", out_dtype="float32")
    a, b = (torch.randint(-1, 2, shape, device="cuda").half() for shape in ((131, 77), (77, 201)))
    c = torch.empty(131, 201, device="cuda")
    gemm.run(a, b, c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm.run(a, b, c)
    for _ in range(3):
        a.copy_(torch.randint(-1, 2, a.shape, device="cuda").half())
        graph.replay()
        assert torch.equal(c.double(), a.double() @ b.double())


@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(131, 201, 77), (136, 208, 77), (131, 200, 80), (136, 72, 9001)], ids=str)
def test_a_repeated_call_packs_again_without_python(shape: tuple[int, int, int], out_dtype: str) -> None:
    """New values in new places, on another stream, and without c: each time the value, and the slow path is taken once."""
    m, n, k = shape
    gemm = Gemm("float16", out_dtype=out_dtype)
    assert isinstance(gemm._calls, NativeCalls)
    for number in range(6):
        a, b = torch.randint(-1, 2, (m, k), device="cuda").half(), torch.randint(-1, 2, (n, k), device="cuda").half().t()
        c = torch.empty(m, n, device="cuda", dtype=gemm.out_dtype) if number % 2 else None
        stream = torch.cuda.Stream() if number > 3 else torch.cuda.current_stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            before = None if number < 2 else gemm._calls.repeat(a, b, c, 1.0, 0.0)
            made = gemm.run(a, b, c) if before is None else before
        torch.cuda.synchronize()
        assert torch.equal(made.double(), a.double() @ b.double())
        assert number not in (2, 3) or before is not None
    assert len(gemm._calls._table) == 1
