"""How products are differentiated and mapped: gradients, tangents and vmap are products again.

Gradients have the dtype of a and b, whatever the output's. The same rules serve three callers: ``torch.ops.cutlass_sk``, which
torch.compile and export see; ``recorded``, eager calls that need gradients and nothing else, at a third of the cost; and
``transformed``, for torch.func and forward mode, which need an autograd.Function in parts.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch._C import _are_functorch_transforms_active  # type: ignore[attr-defined,unused-ignore]
from torch.autograd import forward_ad

from . import products
from .products import Dtype, check_2d


class Operators(Protocol):
    """``products``, or the same with what torch does around an operator."""

    def mm(self, a: torch.Tensor, b: torch.Tensor, out_dtype: Dtype = None, alpha: float = 1.0, /) -> torch.Tensor: ...
    def addmm(
        self,
        input: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        beta: float = 1.0,
        alpha: float = 1.0,
        out_dtype: Dtype = None,
        /,
    ) -> torch.Tensor: ...
    def bmm(self, a: torch.Tensor, b: torch.Tensor, out_dtype: Dtype = None, /) -> torch.Tensor: ...
    def mm_out(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, alpha: float = 1.0, /) -> None: ...
    def addmm_out(
        self, input: torch.Tensor, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, beta: float = 1.0, alpha: float = 1.0, /
    ) -> None: ...


def operators() -> Operators:
    """What sees all that is in force, transforms included."""
    chosen: Operators = torch.ops.cutlass_sk
    return transformed if _are_functorch_transforms_active() or forward_ad._current_level >= 0 else chosen


def _grad_a(grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """(m, k); column-major where a is, so that a transposed weight's gradient is stored the way of the weight."""
    grad = grad.to(a.dtype)
    return _product(b, grad.t(), alpha).t() if _is_column_major(a) else _product(grad, b.t(), alpha)


def _grad_b(grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """(k, n), likewise."""
    grad = grad.to(a.dtype)
    return _product(grad.t(), a, alpha).t() if _is_column_major(b) else _product(a.t(), grad, alpha)


def _product(a: torch.Tensor, b: torch.Tensor, alpha: float) -> torch.Tensor:
    return operators().mm(a, b, None, alpha)


def _is_column_major(x: torch.Tensor) -> bool:
    return bool(x.stride(0) == 1 and x.stride(1) == x.shape[0] != 1)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, _, *alpha = inputs
    ctx.save_for_backward(a, b)
    ctx.alpha = alpha[0] if alpha else 1.0


def _mm_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    a, b = ctx.saved_tensors
    for_a, for_b = ctx.needs_input_grad[:2]
    return (
        _grad_a(grad, a, b, ctx.alpha) if for_a else None,
        _grad_b(grad, a, b, ctx.alpha) if for_b else None,
        None,
        None,
    )


def _save_addmm(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    input, a, b, ctx.beta, ctx.alpha, _ = inputs
    ctx.save_for_backward(a, b)
    ctx.shape, ctx.dtype = input.shape, input.dtype


def _addmm_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    a, b = ctx.saved_tensors
    for_input, for_a, for_b = ctx.needs_input_grad[:3]
    grad_input = None
    if for_input:
        grad_input = grad.sum_to_size(ctx.shape).to(ctx.dtype)
        grad_input = grad_input if ctx.beta == 1 else grad_input * ctx.beta
    return (
        grad_input,
        _grad_a(grad, a, b, ctx.alpha) if for_a else None,
        _grad_b(grad, a, b, ctx.alpha) if for_b else None,
        *(None,) * 3,
    )


def _bmm_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    a, b = ctx.saved_tensors
    grad = grad.to(a.dtype)
    for_a, for_b = ctx.needs_input_grad[:2]
    return (
        operators().bmm(grad, b.mT) if for_a else None,
        operators().bmm(a.mT, grad) if for_b else None,
        None,
    )


# vmap: a batch of a alone is more rows; any other is a batch of products.


def _batched(x: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    return x.movedim(dim, 0) if dim is not None else x.unsqueeze(0).expand(size, *x.shape)


def _vmap_mm(
    info: Any, in_dims: tuple[int | None, ...], a: torch.Tensor, b: torch.Tensor, out_dtype: Dtype = None, alpha: float = 1.0
) -> tuple[torch.Tensor, int]:
    in_a, in_b = in_dims[:2]
    if in_b is None:
        a = _batched(a, in_a, info.batch_size)
        check_2d(a[0], b)
        made = operators().mm(a.flatten(0, 1), b, out_dtype, alpha)
        return made.view(info.batch_size, a.shape[1], b.shape[1]), 0
    a, b = _batched(a, in_a, info.batch_size), _batched(b, in_b, info.batch_size)
    made = operators().bmm(a, b, out_dtype)
    return (made if alpha == 1.0 else made * alpha), 0


def _vmap_addmm(
    info: Any,
    in_dims: tuple[int | None, ...],
    input: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    beta: float = 1.0,
    alpha: float = 1.0,
    out_dtype: Dtype = None,
) -> tuple[torch.Tensor, int]:
    made, _ = _vmap_mm(info, in_dims[1:3], a, b, out_dtype, alpha)
    if in_dims[0] is not None:
        input = input.movedim(in_dims[0], 0)
        input = input.reshape(input.shape[0], *(1,) * (made.dim() - input.dim()), *input.shape[1:])
    return (made if beta == 0 else (made + beta * input).to(made.dtype)), 0


def _vmap_bmm(
    info: Any, in_dims: tuple[int | None, ...], a: torch.Tensor, b: torch.Tensor, out_dtype: Dtype = None
) -> tuple[torch.Tensor, int]:
    a, b = (_batched(x, dim, info.batch_size) for x, dim in zip((a, b), in_dims[:2], strict=True))
    made = operators().bmm(a.flatten(0, 1), b.flatten(0, 1), out_dtype)
    return made.unflatten(0, (info.batch_size, -1)), 0


# Tangents.


def _sum(x: torch.Tensor | None, y: torch.Tensor | None) -> torch.Tensor | None:
    return y if x is None else x if y is None else x + y


def _mm_jvp(ctx: Any, for_a: torch.Tensor | None, for_b: torch.Tensor | None, *_: Any) -> torch.Tensor | None:
    a, b = ctx.saved_tensors
    first = None if for_a is None else operators().mm(for_a, b, ctx.out_dtype, ctx.alpha)
    return _sum(first, None if for_b is None else operators().mm(a, for_b, ctx.out_dtype, ctx.alpha))


def _addmm_jvp(ctx: Any, for_input: torch.Tensor | None, *others: Any) -> torch.Tensor | None:
    made = _mm_jvp(ctx, *others)
    if for_input is None or ctx.beta == 0:
        return made
    shape = (ctx.saved_tensors[0].shape[0], ctx.saved_tensors[1].shape[1])
    return _sum((ctx.beta * for_input).to(ctx.out_dtype).expand(shape), made)


def _bmm_jvp(ctx: Any, for_a: torch.Tensor | None, for_b: torch.Tensor | None, *_: Any) -> torch.Tensor | None:
    a, b = ctx.saved_tensors
    first = None if for_a is None else operators().bmm(for_a, b, ctx.out_dtype)
    return _sum(first, None if for_b is None else operators().bmm(a, for_b, ctx.out_dtype))


# Functions.


def _recorded(name: str, save: Callable[..., None], backward: Callable[..., Any]) -> Any:
    kernel = getattr(products, name)

    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        made: torch.Tensor = kernel(*inputs)
        save(ctx, inputs, made)
        return made

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), methods)


def _transformed(
    name: str, save: Callable[..., None], backward: Callable[..., Any], jvp: Callable[..., Any], vmap: Callable[..., Any]
) -> Any:
    def forward(*inputs: Any) -> torch.Tensor:
        made: torch.Tensor = getattr(torch.ops.cutlass_sk, name)(*inputs)
        return made

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        save(ctx, inputs, output)
        ctx.save_for_forward(*ctx.to_save)
        ctx.out_dtype = output.dtype

    methods: dict[str, Callable[..., Any]] = {
        "forward": forward,
        "setup_context": setup_context,
        "backward": backward,
        "jvp": jvp,
        "vmap": vmap,
    }
    return type(name, (torch.autograd.Function,), {key: staticmethod(value) for key, value in methods.items()})


def _complete(functions: dict[str, Any], prepare: Callable[..., tuple[Any, ...]]) -> Operators:
    """Functions as operators: defaults filled in, for ``apply`` counts its arguments."""

    def mm(a: torch.Tensor, b: torch.Tensor, out_dtype: Dtype = None, alpha: float = 1.0) -> Any:
        return functions["mm"].apply(*prepare(a, b, out_dtype, alpha))

    def addmm(
        input: torch.Tensor, a: torch.Tensor, b: torch.Tensor, beta: float = 1.0, alpha: float = 1.0, out_dtype: Dtype = None
    ) -> Any:
        return functions["addmm"].apply(*prepare(input, a, b, beta, alpha, out_dtype))

    def bmm(a: torch.Tensor, b: torch.Tensor, out_dtype: Dtype = None) -> Any:
        return functions["bmm"].apply(*prepare(a, b, out_dtype))

    writing = {
        name: lambda *arguments, name=name: getattr(torch.ops.cutlass_sk, name)(*arguments) for name in ("mm_out", "addmm_out")
    }
    made: Any = SimpleNamespace(mm=mm, addmm=addmm, bmm=bmm, **writing)
    chosen: Operators = made
    return chosen


def cast(device: str, *arguments: Any) -> tuple[Any, ...]:
    """Arguments as autocast on ``device`` has them: floating-point tensors there, but float64 ones, in its dtype."""
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        x.to(dtype)
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64 and x.device.type == device
        else x
        for x in arguments
    )


def _cast_first(*arguments: Any) -> tuple[Any, ...]:
    device = arguments[1].device.type
    return cast(device, *arguments) if device in ("cuda", "cpu") and torch.is_autocast_enabled(device) else arguments


RULES: dict[str, tuple[Callable[..., None], Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "mm": (_save, _mm_backward, _mm_jvp, _vmap_mm),
    "addmm": (_save_addmm, _addmm_backward, _addmm_jvp, _vmap_addmm),
    "bmm": (_save, _bmm_backward, _bmm_jvp, _vmap_bmm),
}
"""Of each operator: what is kept, the gradients, the tangent, vmap."""

recorded: Operators = _complete({name: _recorded(name, *rules[:2]) for name, rules in RULES.items()}, lambda *arguments: arguments)
transformed: Operators = _complete({name: _transformed(name, *rules) for name, rules in RULES.items()}, _cast_first)
