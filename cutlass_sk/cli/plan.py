"""``cutlass-sk plan``: what would be launched, and why. Needs no GPU."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from .options import (
    DecompositionOption,
    DtypeOption,
    GenerationOption,
    JsonOption,
    K,
    LayoutOption,
    M,
    N,
    OutDtypeOption,
    SmsOption,
    SplitsOption,
    TileNOption,
)
from .planned import plan_problem, plan_record, plan_table, why

DeviceOption = Annotated[
    str | None,
    typer.Option("--device", help="h200, h100, a100, toy:P (P SMs) or a CUDA device.  \\[default: the GPU here, else h200]"),
]


def plan(
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
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan c[M, N] = a[M, K] @ b[K, N] and say why. Needs no GPU."""
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
        device=device,
    )
    if as_json:
        record = plan_record(planned.plan)
        record["data_parallel_predicted_time_us"] = planned.data_parallel.predicted_time_us
        print(json.dumps(record, indent=1))
        return
    console = Console()
    console.print(plan_table(planned.plan))
    console.print(why(planned), highlight=False)
