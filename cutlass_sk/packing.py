"""Operands that TMA cannot load, copied into memory that it can: all of a call in one launch, where a GPU has the kernel for it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from . import env
from .device import Device, real
from .errors import KernelError, LaunchError
from .generator import abi

Pair = tuple[torch.Tensor, torch.Tensor]
"""What is copied, and where: two matrices of one shape and dtype."""

_guard = threading.Lock()
_libraries: dict[str, Callable[..., int]] = {}
"""By generation of the GPU."""


def _forget_guard() -> None:
    """In a forked child: whoever held it is not there to drop it."""
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_forget_guard)


def copy(pairs: Sequence[Pair]) -> None:
    """Enqueues the copies on the current stream. The targets are of our own making: aligned, and no part of anything else.

    Matrices with a unit stride go through one kernel, which is built at its first use; all others through torch. LaunchError.
    """
    if not pairs:
        return
    own = [lines for pair in pairs if (lines := as_lines(*pair)) is not None]
    if len(own) == len(pairs) <= 2 and all(source.is_cuda for source, _ in pairs):
        _launch(own, pairs[0][0].device)
        return
    for source, target in pairs:
        target.copy_(source)


def as_lines(source: torch.Tensor, target: torch.Tensor) -> abi.PackMatrixStruct | None:
    """Two matrices as lines that are contiguous in both; None where they have none, or where values change on the way."""
    if source.is_neg() or source.is_conj() or source.dtype != target.dtype or source.element_size() % 2:
        return None
    if source.stride(1) != 1 or target.stride(1) != 1:
        source, target = source.t(), target.t()
    if source.stride(1) != 1 or target.stride(1) != 1 or source.stride(0) < 0:
        return None
    lines, length = source.shape
    nbytes, leading = source.element_size(), target.stride(0)
    if target.data_ptr() % 16 or leading * nbytes % 16 or (lines > 1 and leading * nbytes < -(-length * nbytes // 16) * 16):
        return None
    return abi.PackMatrixStruct(
        from_=source.data_ptr(),
        to=target.data_ptr(),
        lines=lines,
        line_bytes=length * nbytes,
        from_leading=source.stride(0) * nbytes,
        to_leading=leading * nbytes,
    )


def load(library: Path) -> Callable[..., int]:
    """``cutlass_sk_pack`` of a compiled library; needs no GPU. KernelError if it has none."""
    try:
        function: Callable[..., int] = ctypes.CDLL(os.fspath(library), mode=os.RTLD_LOCAL | os.RTLD_NOW)[abi.PACK]
    except (OSError, AttributeError) as error:
        raise KernelError(f"{library} cannot be loaded: {error}") from error
    function.argtypes = [ctypes.POINTER(abi.PackStruct), ctypes.POINTER(abi.ResultStruct)]  # type: ignore[attr-defined]
    return function


def build(device: Device) -> Path:
    """The library for ``device``, compiled if the cache lacks it: a few seconds, and no CUTLASS in it."""
    from .generator.emit import PACK
    from .jit.build import compile_source

    return compile_source("pack", PACK, "90a" if device.generation == "sm90a" else "80").library


def _launch(matrices: Sequence[abi.PackMatrixStruct], on: torch.device) -> None:
    device = real(on.index)
    if (function := _libraries.get(device.generation)) is None:
        with _guard:
            if (function := _libraries.get(device.generation)) is None:
                function = _libraries[device.generation] = load(build(device))
    given = abi.PackStruct(
        struct_bytes=ctypes.sizeof(abi.PackStruct),
        programmatic=device.capability >= (9, 0) and env.PDL.get(),
        stream=torch._C._cuda_getCurrentRawStream(device.index or 0),
    )
    for number, matrix in enumerate(matrices):
        given.matrices[number] = matrix
    result = abi.ResultStruct()
    if status := function(given, result):
        raise LaunchError(f"packing operands failed with status {status}: {result.message.decode(errors='replace')}")
