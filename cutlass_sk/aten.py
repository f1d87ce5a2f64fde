"""torch's own products, read from the arguments of its operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .generator.spec import Layout

OPERANDS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2), "linear": (0, 1)}
"""aten operator -> positions of a and b among its arguments."""


@dataclass(frozen=True)
class Product:
    """c[l, m, n] = a[l, m, k] @ b[l, k, n], as a program asked for it.

    operator    of aten: ``mm``, ``addmm``, ``bmm``, ``baddbmm``, ``linear``
    dtype       of a and b; out_dtype of c
    layouts     of a and b: ``t`` row-major, ``n`` column-major
    device      ``cuda``, ``cpu``, ``meta``
    """

    operator: str
    l: int  # noqa: E741  the batch, as CUTLASS calls it
    m: int
    n: int
    k: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    layouts: tuple[Layout, Layout]
    device: str

    @property
    def flop(self) -> int:
        return 2 * self.l * self.m * self.n * self.k


def read(operator: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Product | None:
    """The product that an overload of ``aten::<operator>`` is called for; None if it is none, or its operands do not match.

    Only shapes, strides, dtypes and devices are looked at, so that fake and meta tensors do.
    """
    positions = OPERANDS.get(operator)
    if positions is None or len(arguments) <= positions[1]:
        return None
    a, b = (arguments[position] for position in positions)
    if not all(isinstance(x, torch.Tensor) and x.layout == torch.strided and not x.is_nested for x in (a, b)):
        return None
    if operator == "linear":
        if b.dim() != 2 or a.dim() < 1 or a.shape[-1] != b.shape[1]:
            return None
        k, n = int(a.shape[-1]), int(b.shape[0])
        l, m = 1, a.numel() // k if k else 0  # noqa: E741
        a, b = a.reshape(m, k) if a.dim() != 2 else a, b.t()
    else:
        dimensions = 3 if "bmm" in operator else 2
        if a.dim() != dimensions or b.dim() != dimensions or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
            return None
        l, m, k, n = int(a.shape[0]) if dimensions == 3 else 1, int(a.shape[-2]), int(a.shape[-1]), int(b.shape[-1])  # noqa: E741
    out = keywords.get("out")
    out_dtype = out.dtype if isinstance(out, torch.Tensor) else keywords.get("out_dtype") or _positional_dtype(arguments) or a.dtype
    return Product(operator, l, m, n, k, a.dtype, out_dtype, (_layout(a), _layout(b)), a.device.type)


def _positional_dtype(arguments: Sequence[Any]) -> torch.dtype | None:
    """``out_dtype`` of the overloads ``dtype`` and ``dtype_out``."""
    return next((x for x in arguments if isinstance(x, torch.dtype)), None)


def _layout(x: torch.Tensor) -> Layout:
    rows, columns = x.shape[-2:]
    return "n" if x.stride(-2) == 1 and x.stride(-1) != 1 and rows > 1 and columns > 1 else "t"
