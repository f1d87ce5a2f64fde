"""The CUDA C++ text of a kernel: CUTLASS's own emitters for the kernel, our shim for its C ABI.

The same spec gives the same bytes. Each kernel lives in a namespace named after its spec, because the names that
``cutlass_library`` gives leave parts of a configuration out, and two kernels of one C++ name in one process share their statics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .spec import ELEMENT_BYTES, KernelSpec, Layout

if TYPE_CHECKING:
    from cutlass_library.gemm_operation import GemmOperation

STOCK_KERNEL, KERNEL = "cutlass::gemm::kernel::GemmUniversal<", "cutlass_sk::StreamKGemm<"
STOCK_SCHEDULER = "cutlass::gemm::StreamKScheduler"

FP64_INCLUDES = ("cutlass/cutlass.h", "cutlass_sk/fp64_epilogue.hpp", "cutlass_sk/fp64_mainloop.hpp")
FP64_KERNEL = """\
using mainloop = cutlass_sk::Fp64Mainloop<
    cute::Shape<{tile}>, cute::Shape<{cluster}>,
    {stages}, {warps}, {instruction_k}, cutlass::layout::{layout_a}, cutlass::layout::{layout_b}>;
using epilogue = cutlass_sk::Fp64Epilogue<mainloop, cutlass::layout::{layout_c}>;
struct gemm : public cutlass_sk::StreamKGemm<
    cute::Shape<int, int, int, int>, mainloop, epilogue, cutlass_sk::KernelPolicy<{concurrent_tiles}, {ctas_per_sm}>> {{ }};"""

TEMPLATE = """\
// {name}
{includes}
#include "cutlass_sk/{shim}.h"

namespace {namespace} {{
{kernel}
}}  // namespace {namespace}

using Shim = cutlass_sk::{shim_class}<{namespace}::{operation}{arguments}>;
CUTLASS_SK_EXPORT_KERNEL(Shim, "{name}")
"""

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
    includes, kernel, operation = _fp64_kernel(spec) if spec.api == "3x" and spec.dtype == "float64" else _stock_kernel(spec)
    return TEMPLATE.format(
        name=spec.name,
        includes="\n".join(f'#include "{header}"' for header in includes),
        shim=f"gemm_{spec.api}",
        shim_class=f"Gemm{spec.api}",
        namespace=f"cutlass_sk_{spec.name}",
        kernel=kernel.strip(),
        operation=operation,
        arguments=f", {str(spec.promotable).lower()}" if spec.api == "3x" else "",
    )


def emit_data_parallel(spec: KernelSpec) -> str:
    """CUTLASS's own data-parallel kernel with the dtypes, tile, cluster, warps, stages and layouts of ``spec``, without a C ABI.

    It is there to be weighed, not to be run: what a library without Stream-K would hold in place of ``emit``'s. 2.x: the identity
    swizzle; 3.x: the persistent scheduler. Raises ValueError for kernels that CUTLASS lacks: fp64 by TMA, one consumer warpgroup.
    """
    _check(spec)
    if spec.api == "3x" and (spec.dtype == "float64" or spec.schedule == "single" or spec.ctas_per_sm > 1):
        raise ValueError(f"{spec.name} has no data-parallel twin in CUTLASS: its main loop or kernel layer is this project's")
    operation = _operation_3x(spec, stream_k=False) if spec.api == "3x" else _operation_2x(spec, stream_k=False)
    emitter = _emitter(spec)
    return DATA_PARALLEL_TEMPLATE.format(
        name=spec.name,
        includes="\n".join(f'#include "{header}"' for header in emitter.includes),
        namespace=f"cutlass_sk_data_parallel_{spec.name}",
        kernel=emitter.emit(operation).strip(),
        launcher="device_kernel" if spec.api == "3x" else "Kernel2",
        operation=operation.procedural_name(),
    )


def _stock_kernel(spec: KernelSpec) -> tuple[list[str], str, str]:
    """Headers, text and type name of a kernel of CUTLASS's collectives, or of a whole kernel of CUTLASS 2.x."""
    operation = _operation_3x(spec) if spec.api == "3x" else _operation_2x(spec)
    emitter = _emitter(spec)
    kernel = emitter.emit(operation)
    if spec.api == "3x":
        kernel = _replaced(kernel, STOCK_KERNEL, KERNEL)
        kernel = _replaced(kernel, STOCK_SCHEDULER, f"cutlass_sk::KernelPolicy<{_concurrent_tiles(spec)}, {spec.ctas_per_sm}>")
        mainloop = f"{operation.procedural_name()}_mainloop"
        kernel = _replaced(kernel, f"{mainloop},\n", f"cutlass_sk::Mainloop<{mainloop}, {str(spec.promotable).lower()}>,\n")
    unwanted = ("adapter", "device/", "kernel/gemm_universal.hpp")  # the stock kernel layers, and what launches them
    includes = [header for header in emitter.includes if not any(part in header for part in unwanted)]
    return includes, kernel, operation.procedural_name()


def _fp64_kernel(spec: KernelSpec) -> tuple[list[str], str, str]:
    """The same for a kernel of our fp64 collectives, which ``cutlass_library`` does not know."""
    layout = {"t": "RowMajor", "n": "ColumnMajor"}
    layout_a, layout_b, layout_c = _kernel_layouts(spec)
    kernel = FP64_KERNEL.format(
        tile=_shape(spec.tile),
        cluster=_shape((*spec.cluster, 1)),
        stages=spec.stages,
        warps=4 * spec.tile_warpgroups,
        instruction_k=spec.instruction[2],
        layout_a=layout[layout_a],
        layout_b=layout[layout_b],
        layout_c=layout[layout_c],
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
        if tile_m % step or tile_n % 8 or tile_n > 256 or tile_k % 16 or min(spec.tile) < 1:
            raise ValueError(f"{spec.name}: {spec.schedule} needs tile_m in steps of {step}, tile_n of 8 up to 256, tile_k of 16")
    elif spec.stages < 2 or min(spec.warps) < 1 or tile_m % spec.warps[0] or tile_n % spec.warps[1]:
        raise ValueError(f"{spec.name}: warps must divide the tile, and there must be two stages or more")


def _replaced(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise RuntimeError(f"cutlass_library emitted {text.count(old)} times {old!r}, once was expected; its emitter has changed")
    return text.replace(old, new)


def _emitter(spec: KernelSpec) -> Any:
    from cutlass_library.gemm_operation import EmitGemmUniversal3xInstance, EmitGemmUniversalInstance

    return EmitGemmUniversal3xInstance() if spec.api == "3x" else EmitGemmUniversalInstance()


def _data_type(dtype: str) -> Any:
    from cutlass_library import DataType

    return {"float16": DataType.f16, "bfloat16": DataType.bf16, "float32": DataType.f32, "float64": DataType.f64}[dtype]


def _math(spec: KernelSpec, instruction: tuple[int, int, int]) -> Any:
    from cutlass_library import MathInstruction, MathOperation, OpcodeClass

    element = _data_type(spec.dtype)
    accumulator = _data_type(spec.accumulator)
    return MathInstruction(list(instruction), element, element, accumulator, OpcodeClass.TensorOp, MathOperation.multiply_add)


def _operation_3x(spec: KernelSpec, *, stream_k: bool = True) -> GemmOperation:
    """TMA and wgmma, TMA epilogue. CUTLASS's collectives for ping-pong are those of one warpgroup a tile."""
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
        TileSchedulerType.StreamK if stream_k else TileSchedulerType.Persistent,
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
