"""The text of kernels for compute capability 10.0: CUTLASS's own collectives (TMA, tcgen05) under its Stream-K scheduler.

They are there to be compiled, looked at and weighed. Nobody has run one, so that they have no C ABI: nothing can plan for them or
launch them. ``emit.py`` has the kernels that run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .spec import ELEMENT_BYTES, KernelSpec

if TYPE_CHECKING:
    from cutlass_library.gemm_operation import GemmOperation

TEMPLATE = """\
// {name}, compiled and never run
{includes}
#include "cutlass/device_kernel.h"

namespace cutlass_sk_{name} {{
{kernel}
void const* address() {{ return reinterpret_cast<void const*>(cutlass::device_kernel<{operation}>); }}
}}  // namespace cutlass_sk_{name}
"""


def emit(spec: KernelSpec) -> str:
    """The translation unit of ``spec``, of generation ``sm100a``. Raises ValueError for a tile that CUTLASS's collectives lack."""
    from cutlass_library.gemm_operation import EmitGemmUniversal3xInstance

    tile_m, tile_n, tile_k = spec.tile
    if tile_m not in (128, 256) or tile_n % 16 or not 16 <= tile_n <= 256 or tile_k != 64:
        raise ValueError(f"{spec.name}: tcgen05 needs tile_m 128 or 256, tile_n of 16 to 256 in steps of 16, and tile_k 64 here")
    if (tile_m == 256) != (spec.cluster == (2, 1)):
        raise ValueError(f"{spec.name}: a tile of 256 rows is shared by the two SMs of a 2x1 cluster, one of 128 rows by nobody")
    operation, emitter = _operation(spec), EmitGemmUniversal3xInstance()
    return TEMPLATE.format(
        name=spec.name,
        includes="\n".join(f'#include "{header}"' for header in emitter.includes),
        kernel=emitter.emit(operation).strip(),
        operation=operation.procedural_name(),
    )


def _operation(spec: KernelSpec) -> GemmOperation:
    """TMA, tcgen05 on one SM or two, sums in tensor memory, TMA epilogue."""
    from cutlass_library import (
        DataType,
        EpilogueFunctor,
        EpilogueScheduleType,
        GemmKind,
        KernelScheduleType,
        LayoutType,
        MathInstruction,
        MathOperation,
        OpcodeClass,
        SwizzlingFunctor,
        TensorDescription,
        TileDescription,
        TileSchedulerType,
    )
    from cutlass_library.gemm_operation import GemmOperation

    layout = {"t": LayoutType.RowMajor, "n": LayoutType.ColumnMajor}
    data_type = {"float16": DataType.f16, "bfloat16": DataType.bf16, "float32": DataType.f32}
    element, out, accumulator = (data_type[name] for name in (spec.dtype, spec.out_dtype, spec.accumulator))
    math = MathInstruction(
        [spec.tile[0], spec.tile[1], 16], element, element, accumulator, OpcodeClass.TensorOp, MathOperation.multiply_add
    )
    output = TensorDescription(out, LayoutType.RowMajor, 16 // ELEMENT_BYTES[spec.out_dtype])
    two_sms = spec.tile[0] == 256
    return GemmOperation(
        GemmKind.Universal3x,
        100,
        TileDescription(list(spec.tile), spec.stages, [4, 1, 1], math, 100, 100, [*spec.cluster, 1]),
        TensorDescription(element, layout[spec.layout_a], spec.alignment),
        TensorDescription(element, layout[spec.layout_b], spec.alignment),
        output,
        accumulator,
        EpilogueFunctor.LinearCombination,
        SwizzlingFunctor.Identity1,
        output,
        KernelScheduleType.TmaWarpSpecialized2SmSm100 if two_sms else KernelScheduleType.TmaWarpSpecialized1SmSm100,
        EpilogueScheduleType.TmaWarpSpecialized2Sm if two_sms else EpilogueScheduleType.TmaWarpSpecialized1Sm,
        TileSchedulerType.StreamK,
    )
