"""How many kernels CUTLASS's own library would hold: what its generator instantiates, counted and never compiled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutlass_sk.errors import DtypeError
from cutlass_sk.generator.catalog import DTYPES
from cutlass_sk.generator.spec import SHORT_NAME

if TYPE_CHECKING:
    from cutlass_library.gemm_operation import GemmOperation

CUDA_VERSION = "13.0.0"
"""The toolkit that the generator is told of; it leaves kernels out for older ones."""
GENERATORS = ("SM50", "SM60", "SM61", "SM70", "SM75", "SM80", "SM89", "SM90")
"""Those that ``cutlass_library.generator`` runs for every architecture up to Hopper."""


@dataclass(frozen=True)
class Manifest:
    """Dense GEMM kernels of one pair of dtypes.

    kernels        the filter
    in_layout      those whose a and b have the layouts asked for, beside a row-major c
    by_generation  their number by the oldest architecture that they are for
    operations     all GEMMs that the filter lets pass, of any type and kind
    """

    kernels: str
    count: int
    in_layout: int
    by_generation: dict[int, int]
    operations: int


def manifest(dtype: str, out_dtype: str, layouts: str = "tn", kernels: str = "all", architecture: str = "90a") -> Manifest:
    """What ``generator.py --operations=gemm --kernels=KERNELS --architectures=ARCHITECTURE`` makes for a, b of ``dtype`` and c of
    ``out_dtype``, with sums as here: float32, and float64 for float64.

    ``kernels`` is the generator's own filter: names, or parts of names with ``*`` between them, after commas; ``all`` is all of its
    default configurations, and an empty text the few that CUTLASS builds by itself. Batched, grouped, sparse and complex kernels
    are not counted.
    """
    from cutlass_library import generator
    from cutlass_library.manifest import Manifest as Made

    if (dtype, out_dtype) not in DTYPES:
        raise DtypeError(f"no kernel is {dtype} -> {out_dtype}; there are {', '.join(' -> '.join(pair) for pair in DTYPES)}")
    arguments = [f"--{name}={value}" for name, value in _options(kernels, architecture).items()]
    made = Made(generator.define_parser().parse_args(arguments))
    for name in GENERATORS:
        getattr(generator, f"Generate{name}")(made, CUDA_VERSION)
    operations = list(made.operations_by_name.values())
    counted = [operation for operation in operations if _matches(operation, dtype, out_dtype)]
    by_generation = Counter(int(operation.arch) for operation in counted)
    return Manifest(
        kernels,
        len(counted),
        sum(_layouts(operation) == layouts for operation in counted),
        {generation: by_generation[generation] for generation in sorted(by_generation)},
        len(operations),
    )


def _options(kernels: str, architecture: str) -> dict[str, str]:
    return {
        "operations": "gemm",
        "kernels": kernels,
        "architectures": architecture,
        "cuda-version": CUDA_VERSION,
        "log-level": "ERROR",
    }


def _matches(operation: GemmOperation, dtype: str, out_dtype: str) -> bool:
    """Whether an operation is a plain dense GEMM of these types."""
    from cutlass_library import GemmKind

    if operation.gemm_kind not in (GemmKind.Gemm, GemmKind.Universal, GemmKind.Universal3x) or operation.is_complex():
        return False
    elements = (operation.A.element, operation.B.element, operation.D.element, operation.accumulator_type())
    total = "float64" if dtype == "float64" else "float32"
    return [element.name for element in elements] == [SHORT_NAME[name] for name in (dtype, dtype, out_dtype, total)]


def _layouts(operation: GemmOperation) -> str:
    """Letters of a and b for a row-major c. Most operations have a column-major one: they are c^T = b^T a^T of ours."""
    from cutlass_library import LayoutType

    a, b = ("t" if operand.layout == LayoutType.RowMajor else "n" for operand in (operation.A, operation.B))
    if operation.D.layout == LayoutType.RowMajor:
        return a + b
    flipped = {"t": "n", "n": "t"}
    return flipped[b] + flipped[a]
