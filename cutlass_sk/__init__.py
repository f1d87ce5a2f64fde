"""Work-centric (Stream-K) GEMM for NVIDIA GPUs.

``cutlass_sk.Gemm(torch.float16).run(a, b, c)`` multiplies on a CUTLASS Stream-K kernel that is emitted and compiled from Python and
planned per problem by an analytical model. Importing starts neither CUDA nor a compiler.
"""

from .device import Device
from .dtypes import supported_dtypes
from .gemm import Gemm
from .generator.spec import KernelSpec
from .plan import Plan

__version__ = "0.1.0"

__all__ = ["Device", "Gemm", "KernelSpec", "Plan", "__version__", "supported_dtypes"]
