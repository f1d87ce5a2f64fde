"""Products that ``cutlass-sk bench`` compares with: right, captured in a graph, from memory that they were not made for."""

from __future__ import annotations

from math import sqrt

import pytest
import torch

from cutlass_sk.dtypes import torch_dtype
from cutlass_sk.ensemble import baselines, cublaslt
from cutlass_sk.ensemble.arena import TOLERANCE
from cutlass_sk.ensemble.attempt import Call

pytestmark = pytest.mark.gpu


def operands(m: int, n: int, k: int, layouts: str, dtype: str, out_dtype: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normal a and b, and c of NaN, on the GPU."""

    def matrix(rows: int, columns: int, layout: str) -> torch.Tensor:
        shape = (rows, columns) if layout == "t" else (columns, rows)
        made = torch.randn(shape, dtype=torch_dtype(dtype), device="cuda")
        return made if layout == "t" else made.t()

    c = torch.full((m, n), float("nan"), dtype=torch_dtype(out_dtype), device="cuda")
    return matrix(m, k, layouts[0]), matrix(k, n, layouts[1]), c


def largest_error(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> float:
    """Of an element, over sqrt(k)."""
    return (c.double() - a.double() @ b.double()).abs().amax().item() / sqrt(a.shape[1])


def check(call: Call, made_for: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...], tolerance: float) -> None:
    """``call``, at once and replayed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for a, b, c in (made_for, other):
            call(a, b, c)
            assert largest_error(a, b, c) <= tolerance
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        call(a, b, c)
        graph.capture_end()
        c.fill_(float("nan"))
        graph.replay()
        assert largest_error(a, b, c) <= tolerance
    stream.synchronize()


@pytest.mark.parametrize("shape", [(256, 384, 4096), (137, 75, 203), (1, 64, 128), (64, 1, 128)], ids=str)
@pytest.mark.parametrize("layouts", ["tt", "tn", "nt", "nn"])
@pytest.mark.parametrize(("dtype", "out_dtype"), TOLERANCE)
def test_every_algorithm_of_cublaslt_is_right(dtype: str, out_dtype: str, layouts: str, shape: tuple[int, int, int]) -> None:
    pytest.importorskip("nvmath")
    assert cublaslt.unavailable() is None
    sets = [operands(*shape, layouts, dtype, out_dtype) for _ in range(2)]
    calls = cublaslt.algorithms(*sets[0])
    assert 1 <= len(calls) <= cublaslt.PROPOSALS
    for call in calls:
        check(call, *sets, TOLERANCE[dtype, out_dtype])


@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (137, 75, 203), (128, 128, 16384)], ids=str)
@pytest.mark.parametrize("layouts", ["tn", "nt"])
def test_a_compiled_product_is_right_and_not_copied(
    layouts: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    sets = [operands(*shape, layouts, "float16", "float16") for _ in range(2)]
    call = baselines.compiled(*sets[0])
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, other: pytest.fail("copied"))
    check(call, *sets, TOLERANCE["float16", "float16"])
