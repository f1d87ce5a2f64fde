"""``cutlass-sk schedule``: who computes what and when, drawn. Needs no GPU and no kernel: any tile, any number of SMs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from ..device import toy
from ..errors import PlanError
from ..generator.spec import KernelSpec
from ..options import Options
from ..plan import Decomposition, Plan
from ..planner import make_plan
from ..timeline import Timeline, timeline
from ..work import cut_up
from .drawing import column_iters, gantt, legend
from .options import DecompositionOption, OptionalK, OptionalM, OptionalN, OutputOption, SplitsOption, extents, option_names, sizes
from .picture import save, schedule_picture

Hybrid = Literal["none", "one-tile", "two-tile"]
FigureName = Literal["1a", "1b", "2a", "2b", "3a", "3b", "3c", "9"]

SMS = 4
TILE = (128, 128, 64)


@dataclass(frozen=True)
class Drawn:
    """A problem and how it is cut up. ``hybrid``: which tiles stream_k shares: all, or those of the last wave or the last two."""

    size: tuple[int, int, int]
    tile: tuple[int, int, int] = TILE
    sms: int = SMS
    decomposition: Decomposition | None = None
    splits: int | None = None
    hybrid: Hybrid | None = None
    sk_tiles: int | None = None
    sk_units: int | None = None

    def plan(self) -> Plan:
        """Its plan; PlanError as ``Gemm.plan`` raises it."""
        device = toy(self.sms)
        # float64: its tiles are not split within clusters, which pictures do not show. A picture has no other use for the dtype.
        spec = KernelSpec("sm90a", "3x", "float64", "float64", self.tile)
        sk_tiles = self.sk_tiles
        if self.hybrid is not None:
            if self.decomposition != "stream_k" or sk_tiles is not None:
                raise PlanError(f"hybrid={self.hybrid!r} says what stream_k shares; use decomposition='stream_k', sk_tiles=None")
            tiles = cut_up(*self.size, spec, device).work_tiles
            last = tiles % self.sms or min(tiles, self.sms)
            sk_tiles = {"none": tiles, "one-tile": last, "two-tile": None}[self.hybrid]
        options = Options(self.decomposition, self.splits, sk_tiles=sk_tiles, sk_units=self.sk_units)
        return make_plan(*self.size, [spec], device, options)


SQUARE, TALL, DEEP = (384, 384, 128), (896, 384, 128), (128, 128, 384)
PAPER_TILE = (128, 128, 4)
FIGURES: dict[FigureName, tuple[str, Drawn]] = {
    "1a": ("data-parallel", Drawn(SQUARE, PAPER_TILE, decomposition="data_parallel")),
    "1b": ("data-parallel, smaller tiles", Drawn(SQUARE, (128, 64, 4), decomposition="data_parallel")),
    "2a": ("fixed-split, s = 2", Drawn(SQUARE, PAPER_TILE, decomposition="split_k", splits=2)),
    "2b": ("basic Stream-K, g = 4", Drawn(SQUARE, PAPER_TILE, decomposition="stream_k", hybrid="none")),
    "3a": ("basic Stream-K, g = 4", Drawn(TALL, PAPER_TILE, decomposition="stream_k", hybrid="none")),
    "3b": ("data-parallel + one-tile Stream-K", Drawn(TALL, PAPER_TILE, decomposition="stream_k", hybrid="one-tile")),
    "3c": ("two-tile Stream-K + data-parallel", Drawn(TALL, PAPER_TILE, decomposition="stream_k", hybrid="two-tile")),
    "9": ("basic Stream-K of one tile, g = 4", Drawn(DEEP, PAPER_TILE, decomposition="stream_k", hybrid="none")),
}
"""The schedules that the Stream-K paper (arXiv 2301.03598) draws, on its hypothetical GPU of four SMs. As our kernels run
them: a share backwards, and shared tiles before whole ones."""


def schedule(
    m: OptionalM = None,
    n: OptionalN = None,
    k: OptionalK = None,
    tile: Annotated[str | None, typer.Option("--tile", help="The tile, any.  \\[default: 128x128x64]")] = None,
    sms: Annotated[int | None, typer.Option("--sms", min=1, max=1024, help="SMs of the hypothetical GPU.  \\[default: 4]")] = None,
    decomposition: DecompositionOption = None,
    splits: SplitsOption = None,
    hybrid: Annotated[
        Hybrid | None,
        typer.Option(
            "--hybrid", help="With stream_k: share all tiles, the last wave's, or the last two waves'.  \\[default: two-tile]"
        ),
    ] = None,
    sk_tiles: Annotated[int | None, typer.Option("--sk-tiles", help="With stream_k: share so many tiles.")] = None,
    sk_units: Annotated[int | None, typer.Option("--sk-units", help="With stream_k: in so many shares.  \\[default: SMs]")] = None,
    fixup_iters: Annotated[
        int, typer.Option("--fixup-iters", min=0, max=10_000, help="What adding one peer's partial sums takes, in k-tiles.")
    ] = 0,
    figure: Annotated[FigureName | None, typer.Option("--figure", help="A schedule of the Stream-K paper.")] = None,
    figures: Annotated[bool, typer.Option("--figures", help="List those schedules.")] = False,
    output: OutputOption = None,
) -> None:
    """Draw the schedule of c[M, N] = a[M, K] @ b[K, N] on a hypothetical GPU. Needs no GPU."""
    if figures:
        Console().print(figures_table())
        return
    forced = {
        **{"tile": tile, "sms": sms, "decomposition": decomposition, "splits": splits, "hybrid": hybrid},
        **{"sk-tiles": sk_tiles, "sk-units": sk_units},
    }
    given = [name for name, value in {"M": m, "N": n, "K": k}.items() if value is not None]
    given += [f"--{name}" for name, value in forced.items() if value is not None]
    if figure is not None:
        if given:
            raise typer.BadParameter(f"--figure {figure} says all that {', '.join(given)} would say; leave one of them out")
        name, drawn = FIGURES[figure]
        name = f"Figure {figure} of the Stream-K paper: {name}"
    else:
        shape = TILE if tile is None else _tile(tile)
        drawn = Drawn(sizes(m, n, k), shape, sms or SMS, decomposition, splits, hybrid, sk_tiles, sk_units)
        name = ""
    with option_names():
        line = timeline(drawn.plan(), fixup_iters)
    title = f"{name or kind(line.plan)}\n{summary(line)}"
    if output is not None:
        save(schedule_picture(line, title), output)
        print(f"written to {output}")
        return
    _print(line, title)


def kind(plan: Plan) -> str:
    """The decomposition in the paper's words."""
    if plan.decomposition == "data_parallel":
        return "data-parallel"
    if plan.decomposition == "split_k":
        return f"fixed-split, s = {plan.splits}"
    return f"Stream-K, g = {plan.sk_units}" + (" + data-parallel" if plan.dp_tiles else "")


def summary(line: Timeline) -> str:
    """Problem, tiles, SMs and utilisation."""
    plan = line.plan
    shared = (
        f", {plan.sk_tiles} of them in Stream-K shares, {line.cut_tiles or 'none'} cut" if plan.sk_tiles and plan.dp_tiles else ""
    )
    return (
        f"{plan.m} x {plan.n} x {plan.k}: {_count(plan.tiles, 'tile')} of {'x'.join(map(str, plan.kernel.tile))}{shared}, "
        f"on {_count(line.sms, 'SM')}: {line.utilisation:.1%} utilisation"
    )


def figures_table() -> Table:
    """The paper's schedules, one a row."""
    table = Table("figure", "schedule", "problem", "tile", "SMs")
    for number, (name, drawn) in FIGURES.items():
        table.add_row(number, name, " x ".join(map(str, drawn.size)), "x".join(map(str, drawn.tile)), str(drawn.sms))
    return table


def _print(line: Timeline, title: str) -> None:
    console = Console(highlight=False)
    iters = column_iters(line, console.width)
    console.print(f"{title}; done after {_count(line.length, 'k-tile')}")
    console.print(legend(iters, console.color_system is not None))
    console.print(gantt(line, iters))


def _tile(text: str) -> tuple[int, int, int]:
    tile_m, tile_n, tile_k = extents(text, 3)
    if 0 in (tile_m, tile_n, tile_k):
        raise typer.BadParameter(f"{text!r} is an empty tile; each of its sides must be at least 1")
    return tile_m, tile_n, tile_k


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
