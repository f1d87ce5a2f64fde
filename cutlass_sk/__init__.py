"""Work-centric (Stream-K) GEMM for NVIDIA GPUs.

``cutlass_sk.Gemm(torch.float16).run(a, b, c)`` multiplies on a CUTLASS Stream-K kernel that is emitted and compiled from Python and
planned per problem by an analytical model. ``cutlass_sk.matmul``, ``addmm`` and ``linear`` are torch's, on these kernels. Importing
starts neither CUDA nor a compiler.
"""

from . import nn
from .device import Device
from .dtypes import supported_dtypes
from .functional import addmm, linear, matmul
from .gemm import Gemm
from .generator.spec import KernelSpec
from .plan import Plan
from .routing import override
from .tracing import trace

__version__ = "0.1.0"

__all__ = [
    "Device",
    "Gemm",
    "KernelSpec",
    "Plan",
    "__version__",
    "addmm",
    "linear",
    "matmul",
    "nn",
    "override",
    "supported_dtypes",
    "trace",
]
