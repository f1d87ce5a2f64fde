"""Products by cuBLAS that are no plain ``torch.mm``: what ``attempt.Entrants`` takes as ``others``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cutlass_sk.ensemble.attempt import Call

PADDED_TO = 8
"""What cuBLAS's fastest kernels want sizes to be multiples of, in elements."""


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


def _padded(matrix: torch.Tensor) -> torch.Tensor | None:
    """Zeros of the next larger sizes that are multiples, in the same layout; None where the sizes are such."""
    rows, columns = (-(-size // PADDED_TO) * PADDED_TO for size in matrix.shape)
    if (rows, columns) == tuple(matrix.shape):
        return None
    if matrix.stride(1) == 1:
        return matrix.new_zeros(rows, columns)
    return matrix.new_zeros(columns, rows).t()
