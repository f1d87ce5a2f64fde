"""``cutlass-sk model``: the time that the Stream-K paper's model predicts, against the number of CTAs. Needs no GPU."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .. import calibration
from ..curve import Curve
from ..device import resolve
from ..generator.catalog import families
from ..work import cut_up
from .options import DtypeOption, OptionalK, OptionalM, OptionalN, OutputOption, option_names, sizes
from .picture import curves_picture, save

FIGURE_8 = ((256, 3584, 8192), (1024, 1024, 1024), (128, 128, 16384))
"""The problems of Figure 8 of the paper (arXiv 2301.03598): a short and wide one, a square, a single tile."""


def model(
    m: OptionalM = None,
    n: OptionalN = None,
    k: OptionalK = None,
    dtype: DtypeOption = "float16",
    device: Annotated[str, typer.Option("--device", help="h200, h100, a100, toy:P (P SMs) or a CUDA device.")] = "a100",
    output: OutputOption = None,
) -> None:
    """Predict the time of basic Stream-K against its number of CTAs, g, by the paper's model and for its kernel. Needs no GPU.

    Without M N K: the three problems of the paper's Figure 8.
    """
    problems = FIGURE_8 if m is None and n is None and k is None else (sizes(m, n, k),)
    curves = [curve(size, dtype, device) for size in problems]
    if output is not None:
        save(curves_picture(curves), output)
        print(f"written to {output}")
        return
    console = Console(highlight=False)
    for one in curves:
        console.print(curve_table(one))


def curve(size: tuple[int, int, int], dtype: str, device: str) -> Curve:
    """The model's curve; PlanError for a size that cannot be, DeviceError for an unknown device."""
    (spec,) = families(dtype, dtype, "sm80")
    with option_names():
        target = resolve(device)
        work = cut_up(*size, spec, target)
    return Curve(
        size, spec.family, target.name, work.work_tiles, work.iters_per_tile, target.sms, calibration.constants(spec, target)
    )


def curve_table(curve: Curve) -> Table:
    """The curve at powers of two, at a CTA a tile, at a CTA an SM, and at its minimum.

    Peers are the model's, k-tiles of a tile over those of a CTA: a tile that begins within a share may meet one more.
    """
    marks = {"a tile a CTA": curve.tiles, "all SMs": curve.sms, "the fastest": curve.best}
    powers = (1 << power for power in range(curve.sms.bit_length()))
    table = Table(title=f"{curve.title}, {curve.kernel} on {curve.device}", title_justify="left")
    for heading in ("g", "k-tiles a CTA", "peers (model)", "predicted us"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for g in sorted({*powers, *(g for g in marks.values() if g <= curve.sms)}):
        cells = g, curve.iters_per_cta(g), curve.peers(g), f"{curve.time_us(g):.1f}"
        note = ", ".join(mark for mark, at in marks.items() if at == g)
        table.add_row(*map(str, cells), note, style="bold" if g == curve.best else None)
    return table
