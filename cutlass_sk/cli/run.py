"""``cutlass-sk run``: one problem on the GPU, checked and timed."""

from __future__ import annotations

import torch
from rich.console import Console

from ..errors import DeviceError
from .compare import METHOD, compare, comparison_table, compile_kernels
from .options import (
    DecompositionOption,
    DtypeOption,
    GenerationOption,
    K,
    LayoutOption,
    M,
    N,
    OutDtypeOption,
    SmsOption,
    SplitsOption,
    TileNOption,
)
from .planned import plan_problem, plan_table, why


def run(
    m: M,
    n: N,
    k: K,
    dtype: DtypeOption = "float16",
    out_dtype: OutDtypeOption = None,
    generation: GenerationOption = None,
    layout: LayoutOption = "tt",
    decomposition: DecompositionOption = None,
    splits: SplitsOption = None,
    sms: SmsOption = None,
    tile_n: TileNOption = None,
) -> None:
    """Compile if needed, run, check against fp64 and time against cuBLAS. Needs a GPU."""
    if not torch.cuda.is_available():
        raise DeviceError(f"run needs a CUDA GPU and a CUDA build of torch; without them, try `cutlass-sk plan {m} {n} {k}`")
    planned = plan_problem(
        m,
        n,
        k,
        dtype=dtype,
        out_dtype=out_dtype,
        generation=generation,
        layout=layout,
        decomposition=decomposition,
        splits=splits,
        sms=sms,
        tile_n=tile_n,
    )
    console = Console()
    console.print(plan_table(planned.plan))
    console.print(why(planned), highlight=False)
    compile_kernels([planned.plan.kernel])
    console.print(comparison_table([compare(planned)]))
    console.print(METHOD, style="dim", highlight=False)
