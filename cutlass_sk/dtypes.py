"""torch dtypes by name, and which combinations have kernels."""

from __future__ import annotations

import torch

from .errors import DtypeError
from .generator.catalog import DTYPES
from .generator.spec import dtype_named

_TORCH = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
_NAMES = {dtype: name for name, dtype in _TORCH.items()}


def name_of(dtype: torch.dtype | str) -> str:
    """``float16`` for torch.float16 or "float16" (also "half", "torch.float16"); DtypeError if no kernel knows the dtype."""
    if isinstance(dtype, torch.dtype) and dtype in _NAMES:
        return _NAMES[dtype]
    if isinstance(dtype, str) and (name := dtype_named(dtype)) in _TORCH:
        return name
    raise DtypeError(f"dtype={dtype!r} has no kernels; supported: {', '.join(sorted({inputs for inputs, _ in DTYPES}))}")


def torch_dtype(name: str) -> torch.dtype:
    return _TORCH[name]


def supported_dtypes() -> tuple[tuple[torch.dtype, torch.dtype], ...]:
    """All (dtype of a and b, dtype of c) that have kernels."""
    return tuple((_TORCH[inputs], _TORCH[out]) for inputs, out in DTYPES)
