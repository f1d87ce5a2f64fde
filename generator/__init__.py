"""What a kernel is: specs, the catalogue, the CUDA C++ text and the C ABI. Needs no torch, no GPU and no disk."""

from .catalog import families, find, kernels
from .spec import KernelSpec

__all__ = ["KernelSpec", "families", "find", "kernels"]
