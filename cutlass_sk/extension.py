"""The native extension, where there is one. Without it everything works: calls are repeated in Python."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from .generator import abi

if TYPE_CHECKING:
    from types import ModuleType

CUDA_STATE = tuple(getattr(torch._C, name, None) for name in ("_cuda_getDevice", "_cuda_isCurrentStreamCapturing"))
"""The index of the current device, and whether its current stream is captured; None where torch was built without CUDA."""
REMEDY = "install a C++ compiler and Python's headers (python3-dev), then cutlass_sk again"


def _load() -> tuple[ModuleType | None, str]:
    """The module, ready for use, or why there is none."""
    try:
        import cutlass_sk._native as _native
    except ModuleNotFoundError:
        return None, "it was not built"
    except ImportError as error:
        return None, f"it cannot be loaded ({error})"
    if abi.ABI_VERSION != _native.ABI_VERSION:
        return (
            None,
            f"it speaks version {_native.ABI_VERSION} of the kernel ABI, not {abi.ABI_VERSION}: it was built from other sources",
        )
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    increment = getattr(torch._C, "_increment_version", torch.autograd.graph.increment_version)
    if exchange is None:
        return None, f"torch {torch.__version__} has no DLPack functions for C; 2.11 and later have them"
    try:
        _native.bind(torch.Tensor, exchange, increment, torch.is_inference_mode_enabled, *CUDA_STATE)
    except TypeError as error:
        return None, f"it was built from other sources ({error})"
    except (RuntimeError, ValueError) as error:
        return None, str(error)
    return _native, ""


native, missing = _load()
"""``cutlass_sk._native``, or None and the reason."""


def _leave_cuda_alone() -> None:
    """In a child of a process that used CUDA, where nothing may be launched: the slow path meets torch, which says so."""
    if native is not None and torch.cuda._is_in_bad_fork():
        native.unbind()


os.register_at_fork(after_in_child=_leave_cuda_alone)
