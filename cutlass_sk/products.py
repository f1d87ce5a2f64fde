"""Products of data: what the operators and functions of PyTorch's face come down to. They record and look at nothing else."""

from __future__ import annotations

import torch

from . import operands
from .dtypes import name_of, supported_dtypes
from .errors import DtypeError, OperandError
from .gemm import Gemm
from .generator.catalog import DTYPES

Dtype = torch.dtype | None

gemms: dict[tuple[torch.dtype, Dtype], Gemm] = {}
"""A Gemm for each (dtype, out_dtype) that was asked for; out_dtype None is dtype."""


def gemm_of(dtype: torch.dtype, out_dtype: Dtype) -> Gemm:
    """The Gemm that all operators share. Raises DtypeError where no kernel exists."""
    found = gemms.get((dtype, out_dtype))
    if found is None:
        if (dtype, out_dtype or dtype) not in supported_dtypes():
            raise DtypeError(
                f"no kernel multiplies {dtype} operands into {out_dtype or dtype}; cast them, as x.to(torch.bfloat16) does: "
                f"there are {', '.join(f'{inputs} -> {out}' for inputs, out in DTYPES)}"
            )
        same = gemms.setdefault((dtype, out_dtype or dtype), Gemm(dtype, out_dtype=out_dtype))
        found = gemms.setdefault((dtype, out_dtype), same)
    return found


def mm(a: torch.Tensor, b: torch.Tensor, out_dtype: Dtype = None, alpha: float = 1.0) -> torch.Tensor:
    return gemm_of(a.dtype, out_dtype).run(_bare(a), _bare(b), alpha=alpha)


def addmm(
    input: torch.Tensor, a: torch.Tensor, b: torch.Tensor, beta: float = 1.0, alpha: float = 1.0, out_dtype: Dtype = None
) -> torch.Tensor:
    check_2d(a, b)
    out = torch.empty(a.shape[0], b.shape[1], dtype=out_dtype or a.dtype, device=a.device)
    _add_into(out, input, _bare(a), _bare(b), beta, alpha)
    return out


def bmm(a: torch.Tensor, b: torch.Tensor, out_dtype: Dtype = None) -> torch.Tensor:
    check_batch(a, b)
    out = torch.empty(a.shape[0], a.shape[1], b.shape[2], dtype=out_dtype or a.dtype, device=a.device)
    gemm, a, b = gemm_of(a.dtype, out_dtype), _bare(a), _bare(b)
    for x, y, z in zip(a.unbind(), b.unbind(), out.unbind(), strict=True):
        gemm.run(x, y, z)
    return out


def mm_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, alpha: float = 1.0) -> None:
    gemm_of(a.dtype, out.dtype).run(_bare(a), _bare(b), _bare(out), alpha=alpha)


def addmm_out(
    input: torch.Tensor, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, beta: float = 1.0, alpha: float = 1.0
) -> None:
    """``out`` may be ``input``. Nothing is written to it before all operands are known to be right."""
    check_2d(a, b)
    a, b, out = _bare(a), _bare(b), _bare(out)
    gemm_of(a.dtype, out.dtype)
    if tuple(out.shape) != (a.shape[0], b.shape[1]):
        raise OperandError(f"out must be (m={a.shape[0]}, n={b.shape[1]}); it is {tuple(out.shape)}")
    operands.check(a, b, out, name_of(a.dtype), name_of(out.dtype))
    _add_into(out, input, a, b, beta, alpha)


def _add_into(out: torch.Tensor, input: torch.Tensor, a: torch.Tensor, b: torch.Tensor, beta: float, alpha: float) -> None:
    expanded = expanded_to(input, tuple(out.shape))
    if beta != 0 and input is not out:
        out.copy_(_bare(expanded))
    gemm_of(a.dtype, out.dtype).run(a, b, out, alpha=alpha, beta=beta)


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its gradient, and no Parameter: what repeated calls are recognised by."""
    return tensor if type(tensor) is torch.Tensor and not tensor.requires_grad else tensor.detach()


def check_2d(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dim() != 2 or b.dim() != 2:
        raise OperandError(f"a and b must have 2 dimensions; their shapes are {tuple(a.shape)} and {tuple(b.shape)}")
    operands.check_k(a, b)


def check_batch(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise OperandError(f"a must be (l, m, k) and b (l, k, n); they are {tuple(a.shape)} and {tuple(b.shape)}")


def expanded_to(input: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    try:
        return input.expand(shape)
    except RuntimeError:
        raise OperandError(f"input of shape {tuple(input.shape)} cannot be broadcast to (m={shape[0]}, n={shape[1]})") from None
