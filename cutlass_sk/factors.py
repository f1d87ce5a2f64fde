"""alpha and beta, and how a product is scaled by those that lie on the GPU: there, so that nothing waits for their values."""

from __future__ import annotations

from ctypes import c_float
from typing import Any

import torch

from .errors import OperandError
from .operands import scalar

Factor = float | torch.Tensor
"""A number, or a 0-d real tensor beside the operands on a GPU, whose value the host does not know."""


def factor(name: str, value: Any, device: torch.device, dtype: torch.dtype) -> Factor:
    """alpha or beta of operands of ``dtype`` on ``device``, a number rounded to the type of sums; OperandError for what is no real
    number, lies elsewhere, or wants a gradient."""
    if not isinstance(value, torch.Tensor):
        return rounded(scalar(name, value), dtype)
    if value.requires_grad and torch.is_grad_enabled():
        raise OperandError(f"{name} requires grad, which run() does not record; use torch.no_grad(), or detach {name}")
    if value.dim() != 0 or value.is_complex() or value.device != device or device.type == "cpu":
        return rounded(scalar(name, value), dtype)
    if value.layout != torch.strided or value.is_quantized or torch._C._functorch.is_functorch_wrapped_tensor(value):
        raise OperandError(f"{name} must be a real number or a plain 0-d tensor; it is a {type(value).__name__}, {value.layout}")
    return value


def rounded(value: float, dtype: torch.dtype) -> float:
    """A number as kernels of ``dtype`` take it: in the type of sums, where it may be 0. OverflowError for one too large."""
    return float(value) if dtype == torch.float64 else c_float(value).value


def add_scaled(c: torch.Tensor, product: torch.Tensor, alpha: Factor, beta: Factor) -> None:
    """c <- alpha * product + beta * c, rounded once to c's dtype; ``product`` (m, n), float32 or float64, is written to.

    A factor of 0 takes nothing, NaN neither, from what it scales. Reads no factor on the host.
    """
    _scale(product, alpha)
    if isinstance(beta, torch.Tensor) or beta != 0:
        product += _scale(c.to(product.dtype, copy=True), beta)
    c.copy_(product.to(c.dtype))  # apart: torch forgets about a pending negation where it copies float32 to float16


def _scale(x: torch.Tensor, by: Factor) -> torch.Tensor:
    x *= by
    if isinstance(by, torch.Tensor):
        x.masked_fill_(by.to(x.dtype) == 0, 0.0)
    elif by == 0:
        x.zero_()
    return x
