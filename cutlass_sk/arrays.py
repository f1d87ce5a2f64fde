"""Arrays of other libraries as tensors, without a copy: DLPack (CuPy, JAX, NumPy) and ``__cuda_array_interface__`` (Numba)."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from .errors import OperandError


def as_tensor(name: str, array: Any) -> torch.Tensor:
    """``array`` itself if it is a tensor, else a tensor of the same memory, on the device where it lies.

    Raises OperandError for what shares no memory: lists, numbers, arrays with negative strides, dtypes that torch lacks.
    """
    if isinstance(array, torch.Tensor):
        return array
    try:
        if hasattr(array, "__dlpack__"):
            return from_dlpack(array)
        if hasattr(array, "__cuda_array_interface__"):
            return torch.as_tensor(array, device="cuda")
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise OperandError(
            f"{name} is a {_kind(array)} that torch cannot share ({error}); pass a contiguous, writable one"
        ) from None
    raise OperandError(f"{name} is a {_kind(array)}; pass a torch.Tensor, or an array with __dlpack__ or __cuda_array_interface__")


def _kind(array: Any) -> str:
    return f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")
