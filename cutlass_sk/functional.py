"""Products with torch's own semantics: ``matmul``, ``addmm`` and ``linear``.

They compile, export and have gradients; see ``cutlass_sk.torch_ops``. Where nothing of that matters (no gradient to record, no
autocast, mode or transform, not compiling), calls go to ``Gemm.run`` directly.

Operands are tensors, or arrays with ``__dlpack__`` or ``__cuda_array_interface__``, taken without a copy; results are tensors. They
have one dtype, of float16, bfloat16 and float64, and lie on one device. CPU ones, NumPy's too, are multiplied by the slow
reference; ``torch.from_dlpack(x).cuda()`` moves them.

Errors are OperandError and DtypeError, both RuntimeErrors as torch's are.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._C import (  # type: ignore[attr-defined,unused-ignore]
    _are_functorch_transforms_active,
    _is_any_autocast_enabled,
    _is_torch_function_mode_enabled,
    _is_tracing,
    _len_torch_dispatch_stack,
)
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from . import products, torch_ops  # noqa: F401  the operators are registered when torch_ops is imported
from .arrays import as_output, as_tensor
from .errors import DtypeError, OperandError
from .gradients import Operators, operators, recorded
from .operands import check_k, scalar
from .products import gemms


def matmul(
    a: torch.Tensor | Any,
    b: torch.Tensor | Any,
    *,
    out: torch.Tensor | Any | None = None,
    out_dtype: torch.dtype | None = None,
    bias: torch.Tensor | Any | None = None,
) -> torch.Tensor:
    """a @ b (+ bias), as torch.matmul: vectors, matrices, and batches of matrices that are broadcast.

    a, b        (..., m, k) and (..., k, n); a vector counts as one row of a, or one column of b. Leading dimensions of a are more
                rows where b is one matrix: one launch, without a copy where they are contiguous enough. Where b is a batch, each
                product of the batch is a launch: for many small ones torch.bmm is faster.
    out         where the result goes, of dtype ``out_dtype``; one without elements is resized. Records no gradient: refused then
    out_dtype   of the result: that of a and b (default), or float32 for float16 and bfloat16
    bias        added before the result is rounded (to a batch of b: after); of the dtype of a or of the result, broadcast to it

    Gradients are computed in the dtype of a and b.
    """
    if bias is None and type(a) is torch.Tensor and not is_compiling() and _undisturbed():
        gemm = gemms.get((a.dtype, out_dtype if out is None or out_dtype is not None else getattr(out, "dtype", None)))
        if gemm is not None and (known := gemm._calls.repeat(a, b, out, 1.0, 0.0)) is not None:
            return known
    a, b = as_tensor("a", a), as_tensor("b", b)
    bias = None if bias is None else as_tensor("bias", bias)
    return _matmul(a, b, out, out_dtype, bias)


def addmm(
    input: torch.Tensor | Any,
    mat1: torch.Tensor | Any,
    mat2: torch.Tensor | Any,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor | Any | None = None,
) -> torch.Tensor:
    """beta * input + alpha * mat1 @ mat2, rounded once, as torch.addmm.

    input        broadcast to (m, n); of the dtype of mat1, or of ``out``. Not read if beta is 0
    mat1, mat2   (m, k) and (k, n)
    beta, alpha  real numbers, or 0-d CPU tensors, whose gradients are not recorded
    out          (m, n) or without elements; may be ``input``
    """
    input, a, b = as_tensor("input", input), as_tensor("mat1", mat1), as_tensor("mat2", mat2)
    beta, alpha = scalar("beta", beta), scalar("alpha", alpha)
    for name, x in (("mat1", a), ("mat2", b)):
        if x.dim() != 2:
            raise OperandError(f"{name} must have 2 dimensions; its shape is {tuple(x.shape)}")
    check_k(a, b, "mat1", "mat2")
    shape = (a.shape[0], b.shape[1])
    _check_broadcast("input", input, shape)
    ops = _operators(input, a, b)
    if out is None:
        _check_dtypes("input", input, a, b, a.dtype)
        return ops.addmm(input, a, b, beta, alpha)
    target = _target(out, shape, None, input, a, b)
    _check_dtypes("input", input, a, b, target.dtype)
    _resized(target, shape, a.dtype)
    ops.addmm_out(input, a, b, target, beta, alpha)
    return target


def linear(input: torch.Tensor | Any, weight: torch.Tensor | Any, bias: torch.Tensor | Any | None = None) -> torch.Tensor:
    """input @ weight.T (+ bias), as torch.nn.functional.linear: (..., k), (n, k) or (k), (n) -> (..., n).

    The transpose is a view. The bias is added before the result is rounded.
    """
    if type(input) is torch.Tensor and not is_compiling() and _undisturbed():
        known = _repeated_linear(input, weight, bias)
        if known is not None:
            return known
    input, weight = as_tensor("input", input), as_tensor("weight", weight)
    if weight.dim() not in (1, 2):
        raise OperandError(f"weight must be (n, k) or (k); its shape is {tuple(weight.shape)}")
    bias = None if bias is None else as_tensor("bias", bias)
    return _matmul(input, weight.t(), None, None, bias, ("input", "weight.T"))


def _repeated_linear(input: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor | None:
    """A call like an earlier one, without gradients; else None, and nothing happened."""
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or not (bias is None or isinstance(bias, torch.Tensor)):
        return None
    gemm = gemms.get((input.dtype, None))
    if gemm is None or input.dim() < 2:
        return None
    if torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)):
        return None
    # Where gradients are switched off, views of what requires one do still.
    x, y = (tensor.detach() if tensor.requires_grad else tensor for tensor in (input, weight))
    x, y = x if x.dim() == 2 else x.flatten(0, -2), y.t()
    if bias is None:
        made = gemm._calls.repeat(x, y, None, 1.0, 0.0)
    elif bias.dim() == 1 and bias.shape[0] == y.shape[1] and bias.dtype == x.dtype and bias.device == x.device:
        made = gemm._calls.repeat(x, y, x.new_empty(x.shape[0], y.shape[1]).copy_(bias), 1.0, 1.0)
    else:
        return None
    return made if made is None or input.dim() == 2 else made.view(*input.shape[:-1], made.shape[1])


def _matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    out: Any,
    out_dtype: torch.dtype | None,
    bias: torch.Tensor | None,
    names: tuple[str, str] = ("a", "b"),
) -> torch.Tensor:
    if a.dim() == 0 or b.dim() == 0:
        raise OperandError(f"both operands need 1 or more dimensions; they have {a.dim()} and {b.dim()}")
    x = a.unsqueeze(0) if a.dim() == 1 else a
    y = b.unsqueeze(1) if b.dim() == 1 else b
    check_k(x, y, *names)
    batch = x.shape[:-2] if y.dim() == 2 else _batch(x, y)
    rows, columns = x.shape[-2], y.shape[-1]
    shape = (*batch, *(() if a.dim() == 1 else (rows,)), *(() if b.dim() == 1 else (columns,)))
    tensors = (a, b) if bias is None else (a, b, bias)
    ops = _operators(*tensors)
    target = None if out is None else _target(out, shape, out_dtype, *tensors)
    if target is not None:
        out_dtype = target.dtype
    _check_dtypes("bias", bias, a, b, out_dtype or a.dtype)
    if bias is not None:
        _check_broadcast("bias", bias, shape)
    if target is not None:
        _resized(target, shape, a.dtype)
    if y.dim() > 2 and any(size != 1 for size in y.shape[:-2]):
        return _batches(ops, x, y, (*batch, rows, columns), shape, target, out_dtype, bias)
    if y.dim() > 2:
        y = y.reshape(y.shape[-2:])
    if x.dim() > 2:
        x = x.flatten(0, -2)
    flat = (x.shape[0], columns)
    if bias is not None and (bias.dim() > 1 or b.dim() == 1):
        bias = bias.expand(shape).reshape(flat)
    if target is None:
        made = ops.mm(x, y, out_dtype) if bias is None else ops.addmm(bias, x, y, 1.0, 1.0, out_dtype)
        return made if made.shape == shape else made.view(shape)
    into = target if tuple(target.shape) == flat else _viewed(target, flat)
    written = torch.empty(flat, dtype=target.dtype, device=target.device) if into is None else into
    if bias is None:
        ops.mm_out(x, y, written)
    else:
        ops.addmm_out(bias, x, y, written)
    return target.copy_(written.view(shape)) if into is None else target


def _batches(
    ops: Operators,
    x: torch.Tensor,
    y: torch.Tensor,
    full: tuple[int, ...],
    shape: tuple[int, ...],
    target: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Products of a batch, (*batch, rows, columns) = ``full``, as ``shape``."""
    count = math.prod(full[:-2])
    x = x.expand(*full[:-2], *x.shape[-2:]).reshape(count, *x.shape[-2:])
    y = y.expand(*full[:-2], *y.shape[-2:]).reshape(count, *y.shape[-2:])
    made = ops.bmm(x, y, out_dtype).view(shape)
    if bias is not None:
        made = made + bias.to(made.dtype)
    return made if target is None else target.copy_(made)


def _undisturbed() -> bool:
    """Whether nothing stands between a call and its result but, perhaps, gradients of operands."""
    return (
        forward_ad._current_level < 0
        and not _len_torch_dispatch_stack()
        and not _is_torch_function_mode_enabled()
        and not _are_functorch_transforms_active()
        and not _is_any_autocast_enabled()
        and not _is_tracing()
    )


def _operators(*tensors: torch.Tensor) -> Operators:
    if is_compiling():
        chosen: Operators = torch.ops.cutlass_sk
        return chosen
    if not _undisturbed() or not all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in tensors):
        return operators()
    data: Operators = products
    return recorded if torch.is_grad_enabled() and any(x.requires_grad for x in tensors) else data


def _target(out: Any, shape: tuple[int, ...], out_dtype: torch.dtype | None, *inputs: torch.Tensor) -> torch.Tensor:
    """``out`` as a tensor, of this shape or to be resized; or what is wrong with it."""
    target = as_output("out", out)
    if out_dtype is not None and target.dtype != out_dtype:
        raise DtypeError(f"out is {target.dtype}, and out_dtype is {out_dtype}; leave one of them away")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (*inputs, target)):
        raise OperandError("out= records no gradient, and an operand or out requires grad; leave out= away, or use torch.no_grad()")
    if target.numel() and tuple(target.shape) != tuple(shape):
        raise OperandError(f"out must be {tuple(shape)} or have no elements; it is {tuple(target.shape)}")
    return target


def _resized(target: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """The last thing that happens to ``out`` before it is written: what has no kernel is refused before."""
    if tuple(target.shape) != tuple(shape):
        products.gemm_of(dtype, target.dtype)
        target.resize_(shape)


def _viewed(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor | None:
    try:
        return x.view(shape)
    except RuntimeError:
        return None


def _batch(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    try:
        return tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    except RuntimeError:
        raise OperandError(
            f"batches {tuple(a.shape[:-2])} of a and {tuple(b.shape[:-2])} of b cannot be broadcast: a is {tuple(a.shape)}, "
            f"b is {tuple(b.shape)}"
        ) from None


def _check_broadcast(name: str, x: torch.Tensor, shape: tuple[int, ...]) -> None:
    sizes = zip(reversed(x.shape), reversed(shape), strict=False)
    if x.dim() > len(shape) or any(size not in (1, other) for size, other in sizes):
        raise OperandError(f"{name} of shape {tuple(x.shape)} cannot be broadcast to the result's {tuple(shape)}")


def _check_dtypes(name: str, added: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype) -> None:
    """Outside autocast, which makes dtypes equal. Kernels refuse the rest."""
    if _is_any_autocast_enabled():
        return
    if a.dtype != b.dtype:
        raise DtypeError(f"a and b must have one dtype; they are {a.dtype} and {b.dtype}")
    if added is not None and added.dtype not in (a.dtype, out_dtype):
        raise DtypeError(f"{name} is {added.dtype}, the operands {a.dtype}, the result {out_dtype}; convert {name}")
