"""The CUDA C++ text of a kernel: our kernel layer for Hopper, CUTLASS's own emitter for 2.x, our shim for the C ABI.

The same spec gives the same bytes. Each kernel lives in a namespace named after its spec, because the names that
``cutlass_library`` gives leave parts of a configuration out, and two kernels of one C++ name in one process share their statics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .spec import ELEMENT_BYTES, KernelSpec, Layout

if TYPE_CHECKING:
    from cutlass_library.gemm_operation import GemmOperation

FP64_INCLUDES = ("cutlass/cutlass.h", "cutlass_sk/fp64_epilogue.hpp", "cutlass_sk/fp64_mainloop.hpp")
FP64_KERNEL = """\
using mainloop = cutlass_sk::Fp64Mainloop<
    cute::Shape<{tile}>, cute::Shape<{cluster}>,
    {stages}, {warps}, {instruction_k}, cutlass::layout::{layout_a}, cutlass::layout::{layout_b}>;
using epilogue = cutlass_sk::Fp64Epilogue<mainloop, cutlass::layout::{layout_c}>;
struct gemm : public cutlass_sk::StreamKGemm<
    cute::Shape<int, int, int, int>, mainloop, epilogue, cutlass_sk::KernelPolicy<{concurrent_tiles}, {ctas_per_sm}>> {{ }};"""

CUTLASS_TYPE = {"float16": "cutlass::half_t", "bfloat16": "cutlass::bfloat16_t", "float32": "float", "float64": "double"}
CUTLASS_LAYOUT = {"t": "RowMajor", "n": "ColumnMajor"}

WGMMA_INCLUDES = ("cutlass/cutlass.h", "cutlass_sk/wgmma_epilogue.hpp", "cutlass_sk/wgmma_mainloop.hpp")
WGMMA_KERNEL = """\
using cluster = cute::Shape<{cluster}>;
using epilogue = cutlass_sk::WgmmaEpilogue<
    {element_c}, cutlass::layout::{layout_c}, {consumers}, {blocks_m}, {between}>;
using mainloop = cutlass_sk::WgmmaMainloop<
    {element}, cutlass::layout::{layout_a}, cutlass::layout::{layout_b}, cute::Shape<{tile}>, {narrowest}, cluster, {warpgroups},
    cutlass_sk::kStageMemory<epilogue, {ctas_per_sm}>, {promotable}>;
struct gemm : public cutlass_sk::StreamKGemm<
    cute::Shape<int, int, int, int>, mainloop, epilogue, cutlass_sk::KernelPolicy<{concurrent_tiles}, {ctas_per_sm}>> {{ }};"""

TEMPLATE = """\
// {name}
{includes}
#include "cutlass_sk/{shim}.h"

namespace {namespace} {{
{kernel}
}}  // namespace {namespace}

using Shim = cutlass_sk::{shim_class}<{namespace}::{operation}>;
CUTLASS_SK_EXPORT_KERNEL(Shim, "{name}")
"""

PACK = """\
// packs operands whose lines start anywhere
#include "cutlass_sk/pack.h"
"""
"""The text of the library that packs operands; ``abi.PACK`` is its one function."""

DATA_PARALLEL_TEMPLATE = """\
// {name}, data-parallel alone
{includes}
#include "cutlass/device_kernel.h"

namespace {namespace} {{
{kernel}
void const* address() {{ return reinterpret_cast<void const*>(cutlass::{launcher}<{operation}>); }}
}}  // namespace {namespace}
"""


def emit(spec: KernelSpec) -> str:
    """The translation unit of ``spec``: includes, the CUTLASS kernel type, and the exported C ABI around it."""
    _check(spec)
    if spec.api == "2x":
        includes, kernel, operation = _stock_kernel(spec)
    else:
        includes, kernel, operation = _fp64_kernel(spec) if spec.dtype == "float64" else _wgmma_kernel(spec)
    return TEMPLATE.format(
        name=spec.name,
        includes="\n".join(f'#include "{header}"' for header in includes),
        shim=f"gemm_{spec.api}",
        shim_class=f"Gemm{spec.api}",
        namespace=f"cutlass_sk_{spec.name}",
        kernel=kernel.strip(),
        operation=operation,
    )


def emit_data_parallel(spec: KernelSpec) -> str:
    """CUTLASS's own data-parallel kernel with the dtypes, tile, cluster, warps, stages and layouts of ``spec``, without a C ABI.

    It is there to be weighed, not to be run: what a library without Stream-K would hold in place of ``emit``'s. 2.x: the identity
    swizzle; 3.x: the persistent scheduler. Raises ValueError for kernels that CUTLASS lacks: fp64 by TMA, one consumer warpgroup.
    """
    from cutlass_library.gemm_operation import EmitGemmUniversal3xInstance, EmitGemmUniversalInstance

    _check(spec)
    if spec.api == "3x" and (spec.dtype == "float64" or spec.schedule == "single" or spec.ctas_per_sm > 1):
        raise ValueError(f"{spec.name} has no data-parallel twin in CUTLASS: its main loop or kernel layer is this project's")
    operation = _data_parallel_3x(spec) if spec.api == "3x" else _operation_2x(spec, stream_k=False)
    emitter = EmitGemmUniversal3xInstance() if spec.api == "3x" else EmitGemmUniversalInstance()
    return DATA_PARALLEL_TEMPLATE.format(
        name=spec.name,
        includes="\n".join(f'#include "{header}"' for header in emitter.includes),
        namespace=f"cutlass_sk_data_parallel_{spec.name}",
        kernel=emitter.emit(operation).strip(),
        launcher="device_kernel" if spec.api == "3x" else "Kernel2",
        operation=operation.procedural_name(),
    )


def _stock_kernel(spec: KernelSpec) -> tuple[list[str], str, str]:
    """Headers, text and type name of a whole kernel of CUTLASS 2.x."""
    from cutlass_library.gemm_operation import EmitGemmUniversalInstance

    operation, emitter = _operation_2x(spec), EmitGemmUniversalInstance()
    kernel = emitter.emit(operation)
    unwanted = ("adapter", "device/", "kernel/gemm_universal.hpp")  # the stock kernel layers, and what launches them
    includes = [header for header in emitter.includes if not any(part in header for part in unwanted)]
    return includes, kernel, operation.procedural_name()


def _wgmma_kernel(spec: KernelSpec) -> tuple[list[str], str, str]:
    """The same for a kernel of our wgmma main loop and epilogue."""
    layout_a, layout_b, layout_c = _kernel_layouts(spec)
    kernel = WGMMA_KERNEL.format(
        cluster=_shape((*spec.cluster, 1)),
        tile=_shape(spec.tile),
        narrowest=spec.narrowest or spec.tile[1],
        element=CUTLASS_TYPE[spec.dtype],
        element_c=CUTLASS_TYPE[spec.out_dtype],
        layout_a=CUTLASS_LAYOUT[layout_a],
        layout_b=CUTLASS_LAYOUT[layout_b],
        layout_c=CUTLASS_LAYOUT[layout_c],
        warpgroups=spec.tile_warpgroups,
        consumers=spec.tile_warpgroups * _concurrent_tiles(spec),
        blocks_m=spec.tile[0] // (64 * spec.tile_warpgroups),
        between=64 * spec.tile_warpgroups,
        promotable=str(spec.promotable).lower(),
        concurrent_tiles=_concurrent_tiles(spec),
        ctas_per_sm=spec.ctas_per_sm,
    )
    return list(WGMMA_INCLUDES), kernel, "gemm"


def _fp64_kernel(spec: KernelSpec) -> tuple[list[str], str, str]:
    """The same for a kernel of our fp64 collectives, which ``cutlass_library`` does not know."""
    layout_a, layout_b, layout_c = _kernel_layouts(spec)
    kernel = FP64_KERNEL.format(
        tile=_shape(spec.tile),
        cluster=_shape((*spec.cluster, 1)),
        stages=spec.stages,
        warps=4 * spec.tile_warpgroups,
        instruction_k=spec.instruction[2],
        layout_a=CUTLASS_LAYOUT[layout_a],
        layout_b=CUTLASS_LAYOUT[layout_b],
        layout_c=CUTLASS_LAYOUT[layout_c],
        concurrent_tiles=_concurrent_tiles(spec),
        ctas_per_sm=spec.ctas_per_sm,
    )
    return list(FP64_INCLUDES), kernel, "gemm"


def _kernel_layouts(spec: KernelSpec) -> tuple[Layout, Layout, Layout]:
    """Layouts of a, b and c as the 3.x kernel sees them: swapped, its a is b^T, its b is a^T, and its c is c^T."""
    if not spec.swapped:
        return spec.layout_a, spec.layout_b, "t"
    transposed: dict[Layout, Layout] = {"t": "n", "n": "t"}
    return transposed[spec.layout_b], transposed[spec.layout_a], "n"


def _shape(extents: tuple[int, ...]) -> str:
    return ", ".join(f"cute::Int<{extent}>" for extent in extents)


def _concurrent_tiles(spec: KernelSpec) -> int:
    return 2 if spec.schedule == "pingpong" else 1


def _check(spec: KernelSpec) -> None:
    """Raises ValueError for a tile that no kernel can have, before nvcc says so at length."""
    tile_m, tile_n, tile_k = spec.tile
    if spec.api == "3x" and spec.dtype == "float64":
        steps, block = 4 * spec.tile_warpgroups, max(16, 2 * spec.instruction[2])
        if tile_m % 16 or tile_n % 16 or tile_m * tile_n % (256 * steps) or tile_k % block or min(spec.tile) < 1 or spec.stages < 2:
            raise ValueError(
                f"{spec.name}: {spec.schedule} needs tile_m and tile_n in steps of 16 and {steps} blocks of 16 x 16 in a tile, "
                f"tile_k in steps of {block}, and two stages or more"
            )
        if spec.instruction not in ((16, 8, 4), (16, 8, 8), (16, 8, 16)):
            raise ValueError(f"{spec.name}: Hopper's fp64 instructions are 16x8x4, 16x8x8 and 16x8x16")
    elif spec.api == "3x":
        step = 64 * spec.tile_warpgroups
        if tile_m % step or tile_n % 32 or tile_n > 256 or tile_k != 64 or min(spec.tile) < 1:
            raise ValueError(f"{spec.name}: {spec.schedule} needs tile_m in steps of {step}, tile_n of 32 up to 256, tile_k 64")
        if tile_m > 256 * spec.cluster[1]:
            raise ValueError(f"{spec.name}: a CTA's share of {tile_m} rows is loaded at once, and TMA takes 256 at most")
        if spec.stages:
            raise ValueError(f"{spec.name}: stages={spec.stages} cannot be chosen; a launch has as many as fit beside its width")
        if tile_m * tile_n > 192 * 128 * spec.tile_warpgroups:
            raise ValueError(f"{spec.name}: sums of {tile_m} x {tile_n} do not fit in {spec.tile_warpgroups} warpgroups' registers")
    elif spec.stages < 2 or min(spec.warps) < 1 or tile_m % spec.warps[0] or tile_n % spec.warps[1]:
        raise ValueError(f"{spec.name}: warps must divide the tile, and there must be two stages or more")


def _data_type(dtype: str) -> Any:
    from cutlass_library import DataType

    return {"float16": DataType.f16, "bfloat16": DataType.bf16, "float32": DataType.f32, "float64": DataType.f64}[dtype]


def _math(spec: KernelSpec, instruction: tuple[int, int, int]) -> Any:
    from cutlass_library import MathInstruction, MathOperation, OpcodeClass

    element = _data_type(spec.dtype)
    accumulator = _data_type(spec.accumulator)
    return MathInstruction(list(instruction), element, element, accumulator, OpcodeClass.TensorOp, MathOperation.multiply_add)


def _data_parallel_3x(spec: KernelSpec) -> GemmOperation:
    """TMA and wgmma, TMA epilogue, persistent scheduler. CUTLASS's collectives for ping-pong are those of one warpgroup a tile."""
    from cutlass_library import (
        EpilogueFunctor,
        EpilogueScheduleType,
        GemmKind,
        KernelScheduleType,
        LayoutType,
        SwizzlingFunctor,
        TensorDescription,
        TileDescription,
        TileSchedulerType,
    )
    from cutlass_library.gemm_operation import GemmOperation

    layout = {"t": LayoutType.RowMajor, "n": LayoutType.ColumnMajor}
    element, out = _data_type(spec.dtype), _data_type(spec.out_dtype)
    alignment, alignment_c = 16 // ELEMENT_BYTES[spec.dtype], 16 // ELEMENT_BYTES[spec.out_dtype]
    math = _math(spec, (64, spec.tile[1], 16))
    layout_a, layout_b, layout_c = _kernel_layouts(spec)
    output = TensorDescription(out, layout[layout_c], alignment_c)
    cooperative = spec.schedule == "cooperative"
    return GemmOperation(
        GemmKind.Universal3x,
        90,
        TileDescription(list(spec.tile), spec.stages, [4, 1, 1], math, 90, 90, [*spec.cluster, 1]),
        TensorDescription(element, layout[layout_a], alignment),
        TensorDescription(element, layout[layout_b], alignment),
        output,
        _data_type(spec.accumulator),
        EpilogueFunctor.LinearCombination,
        SwizzlingFunctor.Identity1,
        output,
        KernelScheduleType.TmaWarpSpecializedCooperative if cooperative else KernelScheduleType.TmaWarpSpecializedPingpong,
        EpilogueScheduleType.TmaWarpSpecializedCooperative if cooperative else EpilogueScheduleType.TmaWarpSpecialized,
        TileSchedulerType.Persistent,
    )


def _operation_2x(spec: KernelSpec, *, stream_k: bool = True) -> GemmOperation:
    """cp.async and mma.sync, under ThreadblockSwizzleStreamK or in the order of tiles.

    A 2.x operation has a column-major output; the emitter exchanges its operands and transposes all layouts to instantiate the
    row-major kernel behind it. What is described here is therefore c^T = b^T a^T, so that the emitted kernel is c = a b.
    """
    from cutlass_library import EpilogueFunctor, GemmKind, LayoutType, SwizzlingFunctor, TensorDescription, TileDescription
    from cutlass_library.gemm_operation import GemmOperation

    transposed = {"t": LayoutType.ColumnMajor, "n": LayoutType.RowMajor}
    element = _data_type(spec.dtype)
    architecture = 90 if spec.generation == "sm90a" else 80
    return GemmOperation(
        GemmKind.Universal,
        architecture,
        TileDescription(list(spec.tile), spec.stages, [*spec.warps, 1], _math(spec, spec.instruction), architecture, 90),
        TensorDescription(element, transposed[spec.layout_b], spec.alignment),
        TensorDescription(element, transposed[spec.layout_a], spec.alignment),
        TensorDescription(_data_type(spec.out_dtype), LayoutType.ColumnMajor, spec.alignment_c),
        _data_type(spec.accumulator),
        EpilogueFunctor.LinearCombination,
        SwizzlingFunctor.StreamK if stream_k else SwizzlingFunctor.Identity1,
    )
