"""Calls, from the first to the repeated ones: what is left of ``run`` once operands, plan and kernel are known.

A repeated call is recognised by the signature of its operands and enqueues what the first one prepared. ``_native`` does this in
C++ (cutlass_sk/native/); ``PythonCalls`` is the same in Python.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from . import env, extension, workspace
from .factors import rounded
from .generator import abi
from .kernel import Kernel, Prepared, plan_struct
from .operands import of_another_mode, reach_bytes
from .plan import Plan
from .workspace import Workspace

CALL_CACHE_SIZE = 4096

Signature = tuple[object, ...]


@dataclass(frozen=True)
class Call:
    """A launch but for addresses, factors and stream. It holds no tensor.

    device         index of the CUDA device
    programmatic   whether the GPU knows programmatic dependent launch
    packing        what packs operands before it, as ``packing.repeated`` says; None if they are used as they lie
    """

    kernel: Kernel
    plan: Plan
    prepared: Prepared
    device: int
    programmatic: bool
    packing: tuple[int, bytes] | None = None


class Calls(Protocol):
    """Calls that were made before, by the signature of their operands."""

    def repeat(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: Any, beta: Any, /) -> torch.Tensor | None:
        """c, launched on the current stream, if a call of the same signature is known, alpha and beta are plain numbers, and
        nothing else matters of the operands; else None, and nothing happened. Without c a new one is allocated."""

    def remember(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, call: Call) -> None:
        """Takes ``call`` for operands like these from now on, which must be ``plain``."""


def make_calls(dtype: torch.dtype, out_dtype: torch.dtype) -> Calls:
    """An empty table for products of these dtypes: the native one, if there is the extension."""
    return PythonCalls(out_dtype) if extension.native is None else NativeCalls(dtype, out_dtype)


class NativeCalls:
    """The table in C++."""

    def __init__(self, dtype: torch.dtype, out_dtype: torch.dtype) -> None:
        assert extension.native is not None
        self._table = extension.native.Calls(CALL_CACHE_SIZE, None if out_dtype == dtype else out_dtype)
        self.repeat = self._table.repeat

    def remember(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, call: Call) -> None:
        enqueue, prepared, plan = call.kernel.enqueue_address, call.prepared.address, call.plan
        owner, packing = (call.kernel, call.prepared), call.packing or (0, b"")
        self._table.add(a, b, c, enqueue, prepared, owner, plan.partials_bytes, plan.barrier_bytes, call.programmatic, *packing)


class PythonCalls:
    """The table in Python, which leaves calls that pack operands to the slow path."""

    def __init__(self, out_dtype: torch.dtype) -> None:
        self._out_dtype = out_dtype
        self._known: dict[Signature, Call] = {}

    def repeat(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: Any, beta: Any, /) -> torch.Tensor | None:
        if not (type(alpha) in (int, float) and type(beta) in (int, float) and plain(a) and plain(b)):
            return None
        try:
            alpha, beta = rounded(alpha, a.dtype), rounded(beta, a.dtype)
        except OverflowError:
            return None
        if alpha == 0 or torch.cuda.current_device() != a.get_device():
            return None
        if c is None:
            if beta != 0 or a.dim() != 2 or b.dim() != 2:
                return None
            c = a.new_empty(a.shape[0], b.shape[1], dtype=self._out_dtype)
        elif not plain(c) or of_another_mode(c):
            return None
        call = self._known.get(signature(a, b, c))
        if call is None or 0 in (a.data_ptr(), b.data_ptr(), c.data_ptr()) or overlap(c, a) or overlap(c, b):
            return None
        addresses, _workspace = addresses_of(call.plan, call.device, call.programmatic, a, b, c, alpha, beta)
        enqueue(call.kernel, call.prepared, addresses, c)
        return c

    def remember(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, call: Call) -> None:
        if call.packing is not None:
            return
        if len(self._known) >= CALL_CACHE_SIZE:
            self._known.clear()
        self._known[signature(a, b, c)] = call


def signature(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Signature:
    """All of the operands that decides a call, apart from where they lie: sizes, strides, dtypes, device and alignment."""
    shapes = (a.shape, a.stride(), b.shape, b.stride(), c.shape, c.stride())
    starts = a.data_ptr() & 15, b.data_ptr() & 15, c.data_ptr() & 15
    return (*shapes, a.dtype, b.dtype, c.dtype, a.get_device(), b.get_device(), c.get_device(), *starts)


def plain(tensor: torch.Tensor) -> bool:
    """Whether nothing but its signature matters of a tensor: dense, no subclass or wrapper, no gradient, no pending negation."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cuda
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_neg() or tensor.is_nested)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether ranges of addresses meet; side-by-side windows are told apart by ``operands.check`` alone."""
    first, other = x.data_ptr(), y.data_ptr()
    return first < other + reach_bytes(y) and other < first + reach_bytes(x)


def launch(
    kernel: Kernel,
    plan: Plan,
    problem: abi.ProblemStruct,
    device: int,
    programmatic: bool,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    alpha: float,
    beta: float,
) -> Call:
    """Prepares a call and enqueues it on the current stream of the current device, which holds the operands."""
    addresses, _workspace = addresses_of(plan, device, programmatic, a, b, c, alpha, beta)
    size = ctypes.sizeof(abi.LaunchStruct)
    prepared = kernel.prepare(
        abi.LaunchStruct(struct_bytes=size, device=device, problem=problem, plan=plan_struct(plan), addresses=addresses)
    )
    enqueue(kernel, prepared, addresses, c)
    return Call(kernel, plan, prepared, device, programmatic)


def addresses_of(
    plan: Plan, device: int, programmatic: bool, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, alpha: float, beta: float
) -> tuple[abi.AddressesStruct, Workspace | None]:
    """One call's addresses, and what must stay alive until it is enqueued."""
    stream = torch._C._cuda_getCurrentRawStream(device)
    addresses = abi.AddressesStruct(a=a.data_ptr(), b=b.data_ptr(), c=c.data_ptr(), alpha=alpha, beta=beta, stream=stream)
    addresses.programmatic = programmatic and env.PDL.get()
    if not plan.workspace_bytes:
        return addresses, None
    made = workspace.workspace(plan.partials_bytes, plan.barrier_bytes, c.device, stream)
    addresses.partials, addresses.barriers = made.partials.data_ptr(), made.barriers.data_ptr()
    return addresses, made


def enqueue(kernel: Kernel, prepared: Prepared, addresses: abi.AddressesStruct, c: torch.Tensor) -> None:
    kernel.enqueue(prepared, addresses)
    # The kernel wrote behind torch's back: let autograd see it.
    torch.autograd.graph.increment_version(c)
