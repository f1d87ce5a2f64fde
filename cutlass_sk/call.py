"""Calls that have been made before: what is left of ``run`` once operands, plan and kernel are known."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from . import env, workspace
from .generator import abi
from .kernel import Kernel
from .plan import Plan

CALL_CACHE_SIZE = 4096

Signature = tuple[object, ...]


@dataclass(frozen=True)
class Call:
    """A launch but for addresses, factors and stream. It holds no tensor.

    programmatic   whether the GPU knows programmatic dependent launch
    a_bytes, b_bytes, c_bytes   how far the operands reach from their addresses
    """

    kernel: Kernel
    plan: Plan
    launch: bytes
    programmatic: bool
    a_bytes: int
    b_bytes: int
    c_bytes: int

    def overlaps(self, a: int, b: int, c: int) -> bool:
        """Whether c's range of addresses meets that of a or b; side-by-side windows are told apart by ``operands.check`` alone."""
        end = c + self.c_bytes
        return (c < a + self.a_bytes and a < end) or (c < b + self.b_bytes and b < end)


def signature(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Signature:
    """All of the operands that decides a call, apart from where they lie: sizes, strides, dtypes, device and alignment."""
    addresses = a.data_ptr() | b.data_ptr() | c.data_ptr()
    shapes = (a.shape, a.stride(), b.shape, b.stride(), c.shape, c.stride())
    return (*shapes, a.dtype, b.dtype, c.dtype, a.get_device(), b.get_device(), c.get_device(), addresses & 15)


def plain(tensor: torch.Tensor) -> bool:
    """Whether nothing but its signature matters of a tensor: dense, no subclass or wrapper, no gradient, no pending negation."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cuda
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_neg() or tensor.is_nested)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def enqueue(call: Call, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, alpha: float, beta: float) -> None:
    """Launches on the current stream of the current device, which holds the operands."""
    launch = abi.LaunchStruct.from_buffer_copy(call.launch)
    launch.programmatic = call.programmatic and env.PDL.get()
    launch.a, launch.b, launch.c = a.data_ptr(), b.data_ptr(), c.data_ptr()
    launch.alpha, launch.beta = alpha, beta
    launch.stream = stream = torch._C._cuda_getCurrentRawStream(launch.device)
    if call.plan.sk_units:
        # Both stay alive until the launch is enqueued; the allocator keeps them from other streams.
        partials = workspace.partials(call.plan.partials_bytes, c.device)
        barriers = workspace.barriers(call.plan.barrier_bytes, c.device, stream)
        launch.partials, launch.barriers = partials.data_ptr(), barriers.data_ptr()
    call.kernel.launch(launch)
    # The kernel wrote behind torch's back: let autograd see it.
    torch.autograd.graph.increment_version(c)


def template(device: int, problem: abi.ProblemStruct, plan: abi.PlanStruct) -> bytes:
    """The bytes of a launch of ``plan`` on the CUDA device with this index."""
    return bytes(abi.LaunchStruct(struct_bytes=ctypes.sizeof(abi.LaunchStruct), device=device, problem=problem, plan=plan))
