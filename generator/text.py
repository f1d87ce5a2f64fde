"""The text that is compiled of a kernel, whichever generation it is of."""

from __future__ import annotations

from . import blackwell
from . import emit as planned
from .spec import KernelSpec


def text_of(spec: KernelSpec) -> str:
    """The translation unit of ``spec``: with our C ABI where kernels are planned for and run, without it for ``sm100a``."""
    return blackwell.emit(spec) if spec.generation == "sm100a" else planned.emit(spec)
