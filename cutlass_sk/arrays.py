"""Arrays of other libraries as tensors, without a copy: DLPack (CuPy, JAX, NumPy) and ``__cuda_array_interface__`` (Numba)."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from .errors import OperandError

VERSIONED, FLAGS_OFFSET, READ_ONLY = b"dltensor_versioned", 24, 1
"""DLManagedTensorVersioned: two 32-bit numbers, two pointers, then flags, of which the first bit says that it is read-only."""
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
LEGACY_STREAM = 1
"""cudaStreamLegacy: the default stream, as the interface names it."""


def as_tensor(name: str, array: Any) -> torch.Tensor:
    """``array`` itself if it is a tensor, else a tensor of the same memory, on the device where it lies.

    Raises OperandError for what shares no memory: lists, numbers, arrays with negative strides, dtypes that torch lacks.
    """
    if isinstance(array, torch.Tensor):
        return array
    if strides := negative_strides(array):
        raise OperandError(f"{name} is a {_kind(array)} with negative strides {strides}, which torch lacks; pass a copy of it")
    try:
        if hasattr(array, "__dlpack__"):
            return from_dlpack(array)
        if hasattr(array, "__cuda_array_interface__"):
            return _of_interface(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise OperandError(
            f"{name} is a {_kind(array)} that torch cannot share ({error}); pass a contiguous, writable one"
        ) from None
    raise OperandError(f"{name} is a {_kind(array)}; pass a torch.Tensor, or an array with __dlpack__ or __cuda_array_interface__")


def negative_strides(array: Any) -> tuple[int, ...] | None:
    """The strides of an array with negative ones, for which torch.from_dlpack would end the process; None for any other."""
    strides = getattr(array, "strides", None) or getattr(array, "__cuda_array_interface__", {}).get("strides")
    return strides if isinstance(strides, tuple) and any(stride < 0 for stride in strides) else None


def as_output(name: str, array: Any) -> torch.Tensor:
    """The same for what is to be written to: OperandError for an array that says that it is read-only, which torch overlooks."""
    if not isinstance(array, torch.Tensor) and _read_only(array):
        raise OperandError(f"{name} is a read-only {_kind(array)}; pass a writable one")
    return as_tensor(name, array)


def _read_only(array: Any) -> bool:
    writeable = getattr(getattr(array, "flags", None), "writeable", None)
    if writeable is not None:
        return not writeable
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return bool(interface["data"][1])
    try:
        capsule = array.__dlpack__(max_version=(1, 0))
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):  # as_tensor says what is wrong, if anything is
        return False
    try:
        managed = _pointer_of(capsule, VERSIONED)
    except ValueError:  # of before version 1, which cannot say
        return False
    return bool(ctypes.c_uint64.from_address(managed + FLAGS_OFFSET).value & READ_ONLY)


def _of_interface(array: Any) -> torch.Tensor:
    """The current stream waits for the array's, as version 3 of the interface asks of consumers."""
    made, interface = torch.as_tensor(array, device="cuda"), array.__cuda_array_interface__
    if made.numel() and made.data_ptr() != interface["data"][0]:
        raise BufferError("it lies on a GPU that is not current, and would be copied: call within torch.cuda.device()")
    if stream := interface.get("stream"):
        # torch takes the legacy stream's handle, which is odd, for a number of its own.
        legacy = stream == LEGACY_STREAM
        theirs = torch.cuda.default_stream(made.device) if legacy else torch.cuda.ExternalStream(stream, device=made.device)
        torch.cuda.current_stream(made.device).wait_stream(theirs)
    return made


def _kind(array: Any) -> str:
    return f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")
