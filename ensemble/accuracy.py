"""The exact product, near enough: what every result is judged by, element for element."""

from __future__ import annotations

import torch

SLICE_BITS = 18
SLICES = 3


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b in float64, more accurate than a float64 GEMM of it.

    16-bit and 32-bit inputs: products are exact in float64. float64 inputs are cut into three slices of 18 bits (Ozaki's scheme):
    the product of two slices is exact for k up to 2^17, and the nine products are added from the smallest on.
    """
    if a.dtype != torch.float64:
        return a.double() @ b.double()
    parts = [x @ y for x in _slices(a) for y in _slices(b)]
    order = sorted(range(len(parts)), key=lambda i: -(i // SLICES + i % SLICES))
    total = torch.zeros_like(parts[0])
    for index in order:
        total += parts[index]
    return total


def max_error(c: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest absolute error of an element; NaN if an element is NaN."""
    return float((c.double() - exact).abs().max()) if c.numel() else 0.0


def rounding(exact: torch.Tensor, dtype: torch.dtype) -> float:
    """Half a unit in the last place of ``dtype`` at the largest element: the error of one rounding."""
    largest = float(exact.abs().max()) if exact.numel() else 0.0
    return largest * torch.finfo(dtype).eps / 2


def _slices(x: torch.Tensor) -> list[torch.Tensor]:
    """Summands of x whose elements have 18 significant bits each, on one grid."""
    scale = 2.0 ** torch.log2(x.abs().max().clamp_min(1e-300)).ceil().item()
    slices, rest = [], x
    for index in range(SLICES):
        # Adding and taking away 1.5 * 2^(52 - bits) rounds to a multiple of the slice's last bit.
        anchor = 1.5 * scale * 2.0 ** (52 - SLICE_BITS * (index + 1))
        part = rest if index == SLICES - 1 else (rest + anchor) - anchor
        slices.append(part)
        rest = rest - part
    return slices
