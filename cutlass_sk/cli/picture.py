"""Timelines and the model's curves as pictures. Needs matplotlib; the same input gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import provenance
from ..errors import Error
from ..timeline import Step, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..curve import Curve

# Paul Tol's "light" scheme: told apart by colour-blind readers, and black text is legible on all of them.
HUES = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#44BB99", "#BBCC33", "#99DDFF", "#AAAA00")
SHADES = (0.0, 0.5, -0.18)
"""How much white (or, below 0, black) is mixed into the hues, one after the other."""
INK, PAPER, IDLE = "#222222", "#FFFFFF", "#EEEEEE"
CURVE, MINIMUM = "#0077BB", "#CC3311"
STYLE = {
    "svg.hashsalt": "cutlass-sk",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial"],
    "font.size": 9.0,
    "hatch.linewidth": 0.6,
}
LARGE, SMALL = 8.0, 6.5
INCHES, LEFT, RIGHT = 11.0, 0.75, 0.35
POINTS = 72.0
DPI = 144
GAP = 0.15
"""Of a row's height: what is left free above and below a box, for arrows."""
LANES = (0.0, -0.055, 0.055, -0.11, 0.11)
"""Where arrows run between two rows, in heights of a row."""
INSET = 3.5
"""What arrows keep from a box's end, and from each other, in points."""


def save(figure: Figure, path: Path) -> None:
    """Writes a picture of the kind that the suffix names; WriteError where it cannot be written."""
    provenance.save(path, rendered(figure, path.suffix))


def rendered(figure: Figure, suffix: str, dpi: int = DPI) -> bytes:
    """A picture as the bytes of a file with this suffix, ``.svg`` or ``.png``."""
    data = BytesIO()
    with style():
        metadata: dict[str, Any] = {"Date": None, "Creator": None} if suffix == ".svg" else {"Software": None}
        figure.savefig(data, format=suffix[1:], dpi=dpi, metadata=metadata)
    return data.getvalue()


def schedule_picture(timeline: Timeline, title: str) -> Figure:
    """SMs down, time across. Every piece is a group whose id says what it is: ``mac-sm0-cta0-tile2-k0-8``."""
    row = min(0.62, max(0.12, 14 / timeline.sms))
    top, bottom = 0.72, 0.95
    height = row * timeline.sms + top + bottom
    with style():
        figure = _figure(INCHES, height)
        axes = figure.add_axes((LEFT / INCHES, bottom / height, 1 - (LEFT + RIGHT) / INCHES, row * timeline.sms / height))
        axes.set(xlim=(0, timeline.length), ylim=(timeline.sms - 0.5, -0.5))
        _rows(axes, timeline)
        drawing = _Drawing(axes, (INCHES - LEFT - RIGHT) * POINTS / timeline.length, row * POINTS)
        for sm, end in enumerate(timeline.ends()):
            if end < timeline.length:
                drawing.box(f"idle-sm{sm}-{end}-{timeline.length}", sm, end, timeline.length, IDLE, (("idle", LARGE),), edge=None)
        for step in timeline.steps:
            drawing.step(step)
        drawing.fixups(timeline)
        _legend(figure, timeline)
        name, _, rest = title.partition("\n")
        figure.text(LEFT / INCHES, 1 - 0.3 / height, name, size=12, weight="bold", color=INK)
        figure.text(LEFT / INCHES, 1 - 0.55 / height, rest, size=10, color=INK)
    return figure


def curves_picture(curves: Sequence[Curve]) -> Figure:
    """Predicted time against g, a panel a problem, the minimum marked."""
    with style():
        from matplotlib.ticker import LogLocator, NullLocator

        figure = _figure(max(4.8, 3.6 * len(curves)), 3.6)
        figure.set_layout_engine("constrained")
        for number, curve in enumerate(curves):
            axes = figure.add_subplot(1, len(curves), number + 1)
            grids, best = range(1, curve.sms + 1), curve.best
            times, least = [curve.time_us(g) for g in grids], curve.time_us(best)
            axes.plot(grids, times, color=CURVE, linewidth=1.6, gid=f"curve-{number}")
            axes.plot([best], [least], "o", color=MINIMUM, markersize=7, gid=f"minimum-{number}-g{best}")
            place = "left" if best < 0.25 * curve.sms else "right" if best > 0.75 * curve.sms else "center"
            label = f"g = {best}: {least:.1f} us"
            axes.annotate(label, (best, least), (0, -18), textcoords="offset points", color=MINIMUM, ha=place, weight="bold")
            axes.set(xlim=(0, curve.sms + 2), xlabel="g (CTAs)", yscale="log", title=curve.title)
            axes.set_ylim(bottom=least / 1.05 / (max(times) / least) ** 0.2)
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(NullLocator())
            axes.set_ylabel("predicted time (us)" if number == 0 else "")
            axes.grid(color=IDLE)
            axes.spines[["top", "right"]].set_visible(False)
        between = "\n" if len(curves) == 1 else " "
        figure.suptitle(f"Basic Stream-K by the paper's model:{between}{curves[0].kernel} on {curves[0].device}", weight="bold")
    return figure


@contextmanager
def style() -> Iterator[None]:
    """The style of our pictures alone, whatever the user's matplotlibrc says."""
    try:
        import matplotlib
    except ImportError:
        raise Error("pictures need matplotlib, which is not installed; pip install 'cutlass-sk[report]'") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        yield


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor=PAPER)


def _rows(axes: Axes, timeline: Timeline) -> None:
    from matplotlib.ticker import MultipleLocator

    tile = "x".join(map(str, timeline.plan.kernel.tile))
    step = -(-timeline.sms // 64)
    axes.set_yticks(range(0, timeline.sms, step), [f"SM {sm}" for sm in range(0, timeline.sms, step)])
    axes.xaxis.set_major_locator(MultipleLocator(_tick(timeline)))
    axes.set_xlabel(f"time (MAC-loop iterations, of {tile} each)")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _tick(timeline: Timeline) -> int:
    """Iterations between ticks: those of a tile, doubled or halved."""
    tick = timeline.plan.iters_per_tile
    while timeline.length > 16 * tick:
        tick *= 2
    while tick % 2 == 0 and timeline.length < 8 * tick:
        tick //= 2
    return tick


class _Drawing:
    """Boxes on an axis of ``points`` an iteration and ``row`` points an SM; labels only where there is room."""

    def __init__(self, axes: Axes, points: float, row: float) -> None:
        self.axes, self.points, self.row = axes, points, row

    def step(self, step: Step) -> None:
        """One step; stores, and fix-ups that take no time, are marks."""
        segment, where = step.segment, f"sm{step.sm}-cta{step.worker}-tile{step.segment.work_tile}"
        if step.action == "mac":
            tile, k = f"tile {segment.work_tile}", _k_range(segment.k_begin, segment.k_end - 1)
            labels = (
                (f"{tile}, {k}", LARGE),
                (f"{tile}\n{k}", LARGE),
                (f"{tile}\n{k}", SMALL),
                (tile, LARGE),
                (str(segment.work_tile), LARGE),
            )
            name = f"mac-{where}-k{segment.k_begin}-{segment.k_end}"
            self.box(name, step.sm, step.begin, step.end, tile_color(segment.work_tile), labels)
        elif step.action == "wait":
            name = f"wait-{where}-unit{step.peer}"
            self.box(name, step.sm, step.begin, step.end, PAPER, (("wait", LARGE),), hatch="....")
        elif step.action == "fixup" and step.end > step.begin:
            self.box(f"fixup-{where}-unit{step.peer}", step.sm, step.begin, step.end, PAPER, (), hatch="xxxx")

    def box(
        self,
        name: str,
        sm: int,
        begin: int,
        end: int,
        color: str,
        labels: Sequence[tuple[str, float]],
        hatch: str = "",
        edge: str | None = INK,
    ) -> None:
        """A box, with the first of ``labels``, texts and their sizes, that fits."""
        from matplotlib.patches import Rectangle

        width = end - begin
        style: dict[str, Any] = {
            "facecolor": color,
            "edgecolor": edge or "none",
            "linewidth": 0.6,
            "hatch": hatch,
            "clip_on": False,
            "gid": name,
        }
        self.axes.add_patch(Rectangle((begin, sm - 0.5 + GAP), width, 1 - 2 * GAP, **style))
        height = self.row * (1 - 2 * GAP)
        for label, size in labels:
            fits = 1.2 * size * (label.count("\n") + 1) <= height
            if fits and text_points(label, size) <= width * self.points - 2 * INSET:
                background = {"facecolor": PAPER if hatch else color, "edgecolor": "none", "pad": 0.5}
                self.axes.text(
                    begin + width / 2, sm, label, size=size, ha="center", va="center", color=INK, zorder=4, bbox=background
                )
                break

    def fixups(self, timeline: Timeline) -> None:
        """A mark where partial sums are stored, and an arrow to where they are added."""
        added = {(step.peer, step.segment.work_tile): step for step in timeline.steps if step.action == "fixup"}
        taken: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for source in timeline.steps:
            if source.action == "store":
                target = added[source.segment.unit, source.segment.work_tile]
                self._fixup(source, target, taken)

    def _fixup(self, source: Step, target: Step, taken: dict[tuple[int, int], list[tuple[float, float]]]) -> None:
        """Down or up out of the row, along between rows in a lane that is free there, and into the row of the target."""
        inset = INSET / self.points
        side = -1 if target.sm < source.sm else 1
        begin, end = (
            source.end,
            (target.begin + target.end) / 2,
        )  # the mark is where time says; where arrows meet, they part a little
        if target.begin == target.end:
            end -= min((1 if side > 0 else 2.2) * inset, _half(target))
        lanes = [taken.setdefault((2 * source.sm + side, lane), []) for lane in range(len(LANES))]
        free = (
            number
            for number, spans in enumerate(lanes)
            if all(to < min(begin, end) or max(begin, end) < since for since, to in spans)
        )
        lane = next(free, 0)
        lanes[lane].append((min(begin, end), max(begin, end)))
        across, out = source.sm + side * 0.5 + LANES[lane], source.sm + side * (0.5 - GAP)
        into = target.sm + (0.5 - GAP) * (1 if target.sm <= source.sm else -1)
        where = f"tile{source.segment.work_tile}-unit{source.segment.unit}"
        name = f"sum-{where}-unit{target.segment.unit}"
        self._arrow(name, [(begin, out), (begin, across), (end, across), (end, into)])
        size = min(4.5, self.row / 6)
        self.axes.plot([begin], [out], "s", color=INK, markersize=size, clip_on=False, gid=f"store-{where}")

    def _arrow(self, name: str, points: list[tuple[float, float]]) -> None:
        from matplotlib.patches import FancyArrowPatch
        from matplotlib.path import Path as Line

        head = min(8.0, self.row / 4)
        style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": head, "color": INK, "linewidth": 0.9, "capstyle": "butt"}
        self.axes.add_patch(FancyArrowPatch(path=Line(points), clip_on=False, zorder=3, gid=name, **style))


def _k_range(first: int, last: int) -> str:
    return f"k {first}" if first == last else f"k {first}-{last}"


def _half(step: Step) -> float:
    """Half of the iterations of its segment."""
    return (step.segment.k_end - step.segment.k_begin) / 2


def _legend(figure: Figure, timeline: Timeline) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    actions = {step.action for step in timeline.steps}
    entries: list[Any] = [Patch(facecolor=HUES[0], edgecolor=INK, linewidth=0.6, label="MAC-loop iterations, coloured by tile")]
    if "store" in actions:
        entries.append(Line2D([], [], color=INK, marker="s", markersize=5, label="partial sums stored, and added at the arrow"))
    if "wait" in actions:
        entries.append(Patch(facecolor=PAPER, edgecolor=INK, linewidth=0.6, hatch="....", label="waiting for them"))
    if timeline.fixup_iters and "fixup" in actions:
        entries.append(Patch(facecolor=PAPER, edgecolor=INK, linewidth=0.6, hatch="xxxx", label="adding them"))
    if min(timeline.ends()) < timeline.length:
        entries.append(Patch(facecolor=IDLE, label="idle"))
    figure.legend(handles=entries, loc="lower center", ncols=len(entries), frameon=False, fontsize=8.5)


def tile_color(tile: int) -> str:
    """One of 24 colours; neighbours differ in hue."""
    shade, hue = SHADES[tile // len(HUES) % len(SHADES)], HUES[tile % len(HUES)]
    target = 255 if shade > 0 else 0
    channels = (int(hue[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (target - channel) * abs(shade)):02X}" for channel in channels)


@lru_cache(maxsize=4096)
def text_points(text: str, size: float) -> float:
    """The width of a text, in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size)
    return max(float(text_to_path.get_text_width_height_descent(line, font, ismath=False)[0]) for line in text.split("\n"))
