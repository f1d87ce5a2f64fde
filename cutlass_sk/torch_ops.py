"""The operators ``torch.ops.cutlass_sk.*``: a product as torch.compile, export, autograd, autocast and vmap see it.

mm         (a, b, out_dtype, alpha): alpha * a @ b, 2-D
addmm      (input, a, b, beta, alpha, out_dtype): beta * input + alpha * a @ b, 2-D; ``input`` is broadcast
bmm        (a, b, out_dtype): a[i] @ b[i], 3-D, a launch each
mm_out, addmm_out   write to ``out``, and know no gradients

``cutlass_sk.functional`` is the face for people.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import gradients, products
from .errors import OperandError
from .products import Dtype, check_2d, check_batch, expanded_to, gemm_of


def _fake_mm(a: torch.Tensor, b: torch.Tensor, out_dtype: Dtype = None, alpha: float = 1.0) -> torch.Tensor:
    gemm_of(a.dtype, out_dtype)
    check_2d(a, b)
    return a.new_empty(a.shape[0], b.shape[1], dtype=out_dtype or a.dtype)


def _fake_addmm(
    input: torch.Tensor, a: torch.Tensor, b: torch.Tensor, beta: float = 1.0, alpha: float = 1.0, out_dtype: Dtype = None
) -> torch.Tensor:
    made = _fake_mm(a, b, out_dtype)
    expanded_to(input, tuple(made.shape))
    return made


def _fake_bmm(a: torch.Tensor, b: torch.Tensor, out_dtype: Dtype = None) -> torch.Tensor:
    gemm_of(a.dtype, out_dtype)
    check_batch(a, b)
    return a.new_empty(a.shape[0], a.shape[1], b.shape[2], dtype=out_dtype or a.dtype)


_library = torch.library.Library("cutlass_sk", "DEF")
# Strides decide the plan and so the bits: the compiler is to keep them.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)


def _register(schema: str, fake: Callable[..., Any]) -> str:
    name: str = _library.define(schema, tags=_TAGS)
    _library.impl(name, getattr(products, name), "CompositeExplicitAutograd")
    torch.library.register_fake(f"cutlass_sk::{name}", fake, lib=_library)
    return name


def _differentiable(schema: str, fake: Callable[..., torch.Tensor]) -> None:
    name = _register(schema, fake)
    save, backward, _, vmap = gradients.RULES[name]
    torch.library.register_autograd(f"cutlass_sk::{name}", backward, setup_context=save, lib=_library)
    torch.library.register_vmap(f"cutlass_sk::{name}", vmap, lib=_library)
    for device in ("cuda", "cpu"):
        _library.impl(name, _autocast(name, device), f"Autocast{device.upper()}")


def _autocast(name: str, device: str) -> Callable[..., torch.Tensor]:
    key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device.upper()}"))

    def autocast(*arguments: Any) -> torch.Tensor:
        with torch._C._ExcludeDispatchKeyGuard(key):
            made: torch.Tensor = getattr(torch.ops.cutlass_sk, name)(*gradients.cast(device, *arguments))
        return made

    return autocast


def _writing(schema: str, written: int) -> None:
    """An operator that writes to argument number ``written`` and records no gradient."""
    name = _register(schema, lambda *_: None)
    operator = getattr(torch.ops.cutlass_sk, name).default

    def autograd(keys: torch._C.DispatchKeySet, *arguments: Any) -> None:
        if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in arguments):
            raise OperandError(f"{name}: out= records no gradient, and an argument requires grad; leave out= away")
        with torch._C._AutoDispatchBelowAutograd():
            operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)

    def counted(keys: torch._C.DispatchKeySet, *arguments: Any) -> None:
        torch.autograd.graph.increment_version(arguments[written])
        with torch._C._AutoDispatchBelowADInplaceOrView():
            operator.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *arguments)

    _library.impl(name, autograd, "Autograd", with_keyset=True)
    _library.impl(name, counted, "ADInplaceOrView", with_keyset=True)


_differentiable("mm(Tensor a, Tensor b, ScalarType? out_dtype=None, float alpha=1.0) -> Tensor", _fake_mm)
_differentiable(
    "addmm(Tensor input, Tensor a, Tensor b, float beta=1.0, float alpha=1.0, ScalarType? out_dtype=None) -> Tensor", _fake_addmm
)
_differentiable("bmm(Tensor a, Tensor b, ScalarType? out_dtype=None) -> Tensor", _fake_bmm)
_writing("mm_out(Tensor a, Tensor b, Tensor(a!) out, float alpha=1.0) -> ()", 2)
_writing("addmm_out(Tensor input, Tensor a, Tensor b, Tensor(a!) out, float beta=1.0, float alpha=1.0) -> ()", 3)
