"""Operands that TMA cannot load, copied into memory that it can: all of a call in one launch, where a GPU has the kernel for it."""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from . import env, prebuilt
from .device import Device, real
from .errors import CacheError, CompileError, KernelError, LaunchError, ToolchainError
from .generator import abi

Pair = tuple[torch.Tensor, torch.Tensor]
"""What is copied, and where: two matrices of one shape and dtype."""

_guard = threading.Lock()
_functions: dict[str, Callable[..., int] | None] = {}
"""By compile target; None where no library came compiled and none can be built."""


def _forget_guard() -> None:
    """In a forked child: whoever held it is not there to drop it."""
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_forget_guard)


def copy(pairs: Sequence[Pair]) -> list[abi.PackMatrixStruct] | None:
    """Enqueues the copies on the current stream. The targets are of our own making: aligned, and no part of anything else.

    Matrices with a unit stride go through one kernel, which came compiled or is built at its first use; all others through torch,
    and these as well where the kernel cannot be had. Gives what the kernel was told, None where torch copied. LaunchError.
    """
    if not pairs:
        return []
    own = [lines for pair in pairs if (lines := as_lines(*pair)) is not None]
    if len(own) == len(pairs) <= 2 and all(source.is_cuda for source, _ in pairs):
        device = real(pairs[0][0].device.index)
        if (function := _function(device)) is not None:
            _launch(function, own, device)
            return own
    for source, target in pairs:
        target.copy_(source)
    return None


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

    return compile_source("pack", PACK, _target(device)).library


def repeated(packed: Sequence[abi.PackMatrixStruct | None], device: Device) -> tuple[int, bytes] | None:
    """The address of the C function on ``device`` and what it is given, but for addresses and stream, to pack a and b like this
    again; None where nothing was packed."""
    if not any(packed):
        return None
    given = abi.PackStruct(struct_bytes=ctypes.sizeof(abi.PackStruct))
    for number, matrix in enumerate(packed):
        if matrix is not None:
            given.matrices[number] = matrix
    function: Any = _functions[_target(device)]
    return ctypes.cast(function, ctypes.c_void_p).value or 0, bytes(given)


def _target(device: Device) -> str:
    """What is compiled for: any code for an older GPU of the same major number would do."""
    return "90a" if device.generation == "sm90a" else "80"


def _prebuilt(device: Device) -> Path | None:
    """A library that came compiled and packs on ``device``, for whichever target its kernels are."""
    major, minor = device.capability
    targets = dict.fromkeys((_target(device), f"{major}{minor}", f"{major}0"))
    found = (prebuilt.find_packing(target) for target in targets)
    return next((library for library in found if library is not None), None)


def _function(device: Device) -> Callable[..., int] | None:
    """What packs on ``device``; looked for once."""
    target = _target(device)
    if target not in _functions:
        with _guard:
            if target not in _functions:
                _functions[target] = _found(device)
    return _functions[target]


def _found(device: Device) -> Callable[..., int] | None:
    try:
        return load(_prebuilt(device) or build(device))
    except (ToolchainError, CompileError, CacheError) as error:
        warnings.warn(f"cutlass_sk: operands are packed by torch, a copy each; the kernel cannot be had: {error}", stacklevel=2)
        return None


def _launch(function: Callable[..., int], matrices: Sequence[abi.PackMatrixStruct], device: Device) -> None:
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
