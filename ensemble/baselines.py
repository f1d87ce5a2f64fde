"""Products by torch that are no plain ``torch.mm``: what ``attempt.Entrants`` takes as ``others``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from cutlass_sk.ensemble.attempt import Call

PADDED_TO = 8
"""What cuBLAS's fastest kernels want sizes to be multiples of, in elements."""
COMPILED_MODE = "max-autotune-no-cudagraphs"
COMPILED_OPTIONS = {
    "autotune_in_subproc": False,
    "autotune_num_choices_displayed": 0,
    "fx_graph_cache": False,
}
"""Beside the mode's own: tuned in this process, silently, and with the code written anew, so that it is seen."""
Allocate = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
"""Given size, stride and dtype, memory for a tensor."""


def mm(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """c <- a @ b by cuBLAS; c (m, n) may be of a wider type than a (m, k) and b (k, n)."""
    if a.dtype == c.dtype:
        torch.mm(a, b, out=c)
    else:
        torch.mm(a, b, out_dtype=c.dtype, out=c)


@contextmanager
def float32_sums() -> Iterator[None]:
    """Within, cuBLAS adds up partial sums of 16-bit products in float32 alone."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction = before


def fp32_reduce(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Call:
    """cuBLAS without sums in 16 bits. It needs nothing beside a (m, k), b (k, n) and c (m, n)."""

    def call(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        with float32_sums():
            mm(a, b, c)

    return call


def padded(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Call:
    """cuBLAS on copies of a (m, k) and b (k, n) whose sizes are multiples of ``PADDED_TO``, and c (m, n) copied back.

    Copies are in the layout of what they are of, and their padding of k is zero; what needs no padding is not copied.
    """
    m, n = c.shape
    wide_a, wide_b, wide_c = _padded(a), _padded(b), _padded(c)

    def call(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        for wide, own in ((wide_a, a), (wide_b, b)):
            if wide is not None:
                wide[: own.shape[0], : own.shape[1]].copy_(own)
        mm(a if wide_a is None else wide_a, b if wide_b is None else wide_b, c if wide_c is None else wide_c)
        if wide_c is not None:
            c.copy_(wide_c[:m, :n])

    return call


def compiled_unavailable() -> str | None:
    """Why ``compiled`` has no kernels of its own here, in a sentence; None if it has."""
    return None if find_spec("triton") else "torch.compile writes kernels in Triton, which is not installed; pip install triton."


def compiled(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Call:
    """torch.compile's product of a (m, k) and b (k, n), tuned for this problem in some seconds, in c (m, n) of the same dtype.

    Compiled is ``torch.mm(a, b)``: given ``out=c``, the code multiplies into memory of its own and copies that to c, and who takes
    the product as it comes pays for no copy. So the code that torch.compile wrote is called with c for the memory of the product,
    and without guards. The product is copied only if it lies elsewhere in the end. torch.compile is reset before each problem, for
    it gives up after eight that differ.
    """
    # No public way leads to the code. These load much, and only this needs them.
    from torch._inductor import list_mode_options
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.utils import run_and_get_code

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, b)

    torch.compiler.reset()
    options = {**list_mode_options(COMPILED_MODE), **COMPILED_OPTIONS}
    _, codes = run_and_get_code(torch.compile(product, fullgraph=True, dynamic=False, options=options), a, b)
    module = PyCodeCache.load(codes[-1])  # those before it are of ways to cut k that were tried
    allocate_by = f"empty_strided_{a.device.type}"
    allocate: Allocate = getattr(module, allocate_by)
    given: list[torch.Tensor] = []

    def allocate_c(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if given and (given[0].shape, given[0].stride(), given[0].dtype) == (size, stride, dtype):
            return given.pop()
        return allocate(size, stride, dtype)

    setattr(module, allocate_by, allocate_c)

    def call(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        given.append(c)
        try:
            (result,) = module.call([a, b])
        finally:
            given.clear()
        if result is not c:
            c.copy_(result)

    return call


def _padded(matrix: torch.Tensor) -> torch.Tensor | None:
    """Zeros of the next larger sizes that are multiples, in the same layout; None where the sizes are such."""
    rows, columns = (-(-size // PADDED_TO) * PADDED_TO for size in matrix.shape)
    if (rows, columns) == tuple(matrix.shape):
        return None
    if matrix.stride(1) == 1:
        return matrix.new_zeros(rows, columns)
    return matrix.new_zeros(columns, rows).t()
