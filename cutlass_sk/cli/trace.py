"""``cutlass-sk trace``: the products of a script, and what they would take. Needs no GPU."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..provenance import save
from ..tracing import checked, planned, recording
from .options import written_path

OutputPath = Annotated[Path | None, typer.Option(callback=written_path, help="Write all columns to this file.")]


def trace(
    script: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A Python program.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments, after --.")] = None,
    device: Annotated[str, typer.Option("--device", help="h200, h100, a100, toy:P (P SMs) or a CUDA device to plan for.")] = "h200",
    measure: Annotated[bool, typer.Option("--measure", help="Time each product on the GPU here, ours and cuBLAS's.")] = False,
    csv: OutputPath = None,
    html: OutputPath = None,
) -> None:
    """Run SCRIPT, record every matrix product that it asks PyTorch for, and plan them."""
    target = checked(device, measure)
    before = sys.argv, sys.path[:]
    sys.argv, sys.path[0:0] = [str(script), *(arguments or [])], [str(script.resolve().parent)]
    try:
        with recording() as counts:
            try:
                runpy.run_path(str(script), run_name="__main__")
            except SystemExit as ended:
                if ended.code not in (None, 0):
                    raise
    finally:
        sys.argv, sys.path[:] = before
    made = planned(counts, target, measure=measure)
    if csv is not None:
        save(csv, made.csv())
    if html is not None:
        save(html, made.html())
    console = Console()
    console.print(made.table(console.width))
