"""The pictures of a report, as PNG and SVG. Needs matplotlib; the same input gives the same bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from cutlass_sk.cli import picture
from cutlass_sk.device import Device
from cutlass_sk.ensemble.planner_report import COMPUTE_BOUND
from cutlass_sk.ensemble.ratios import by_half_decade

from .curves import Curve
from .groups import CONTENDERS, RATIOS, Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Paul Tol's "vibrant" scheme: told apart by colour-blind readers.
COLORS = {
    "set": "#0077BB",
    "single": "#EE7733",
    "data_parallel": "#EE3377",
    "cublas": "#009988",
    "oracle": "#CC3311",
    "cublaslt_best": "#33BBEE",
    "best": "#CC3311",
}
OTHER, LINE, GRID = "#777777", "#222222", "#E4E4E4"
MARKERS = {"set": "o", "single": "^"}
DPI, SVG_DPI = 110, 220
"""Of a PNG, and of the points in an SVG that are too many to be vectors."""
COLORS_OF_PNG = 256
LEGEND_MARK = 5.0
"""Size of a mark in a legend, in points."""
PANELS = 4
"""Most panels side by side."""


@dataclass(frozen=True)
class Picture:
    """A picture under a name that a file may have, with what it shows in words."""

    name: str
    caption: str
    png: bytes
    svg: bytes


def of_group(group: Group, device: Device) -> list[Picture]:
    """Utilisation, and speed-up over cuBLAS where there is one. ``device``: whose data-sheet peaks utilisation is a part of."""
    found = []
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{group.dtypes}-{group.corpus}-{group.timing}").strip("-")
    if any(group.times(contender) for contender in group.contenders):
        caption = f"Utilisation against arithmetic intensity. {group.title}"
        found.append(_drawn(f"utilisation-{name}", caption, _utilisation(group, device)))
    if group.pairs("set_vs_cublas") or group.pairs("single_vs_cublas"):
        caption = f"Speed-up over cuBLAS against arithmetic intensity and size. {group.title}"
        found.append(_drawn(f"speedup-{name}", caption, _speedup(group)))
    return found


def of_curves(curves: Sequence[Curve], origin: str) -> Picture:
    """Performance against kernels and bytes. ``origin``: the record's name."""
    with picture.style():
        figure = _figure(11.0, 4.4)
        sized = any(size is not None for curve in curves for _, size, _ in curve.points)
        panels = _panels(figure, 2 if sized else 1)
        styles = (("#0077BB", "o", "-", 7.0), ("#EE7733", "x", "--", 5.0), ("#EE3377", "s", "-", 5.0), ("#009988", "^", ":", 5.0))
        for number, curve in enumerate(curves):
            color, marker, line, size = styles[number % len(styles)]
            look: dict[str, Any] = {"color": color, "marker": marker, "linestyle": line, "markersize": size, "alpha": 0.8}
            label = _plain(f"{curve.name}: {curve.meaning} ({curve.problems:,} problems)")
            panels[0].plot([count for count, _, _ in curve.points], [mean for *_, mean in curve.points], label=label, **look)
            if sized:
                known = [(bytes_ / 1e6, mean) for _, bytes_, mean in curve.points if bytes_ is not None]
                panels[1].plot([x for x, _ in known], [y for _, y in known], **look)
        for axes, label in zip(panels, ("kernels", "GPU code (MB)"), strict=False):
            axes.axhline(1.0, color=LINE, linewidth=0.8)
            axes.set(xlabel=label, ylabel="speed-up over cuBLAS (geometric mean)" if axes is panels[0] else "")
            _finish(axes)
        if all(count < 16 for curve in curves for count, *_ in curve.points):
            panels[0].set_xticks(range(1, 1 + max((count for curve in curves for count, *_ in curve.points), default=1)))
        figure.legend(loc="outside lower center", ncols=1, frameon=False)
        figure.suptitle(_plain(f"Performance against number of kernels and bytes ({origin})"), weight="bold")
    return _drawn("kernels", f"Speed-up over cuBLAS against number of kernels and bytes of GPU code. {origin}", figure)


def _utilisation(group: Group, device: Device) -> Figure:
    """A panel a contender, as in the Stream-K paper's Figures 5 and 6, on axes that they share."""
    peak = device.tflops(group.dtype)
    shown = [contender for contender in group.contenders if group.times(contender)]
    with picture.style():
        columns = min(PANELS, len(shown))
        lines = -(-len(shown) // columns)
        figure = _figure(max(5.5, 3.1 * columns), 3.1 * lines + 0.9)
        panels = _panels(figure, len(shown), columns, sharex=True)
        points = {contender: group.utilisation(contender, device) for contender in shown}
        every = [x for own in points.values() for x, _ in own]
        least, most = min(every) / 1.15, max(every) * 1.15
        top = max(105.0, 1.05 * max(y for own in points.values() for _, y in own))
        knee = peak * 1e3 / device.bandwidth_gbs
        # Memory's part of the roof is bent, for intensity alone has a logarithmic axis.
        roof = sorted({*(least * (most / least) ** (step / 100) for step in range(101)), min(max(knee, least), most)})
        for number, (contender, axes) in enumerate(zip(shown, panels, strict=True)):
            label = "data-sheet memory bandwidth and peak" if number == 0 else None
            axes.plot(roof, [100 * min(1.0, x / knee) for x in roof], color=LINE, linewidth=1.0, linestyle="--", label=label)
            _points(axes, points[contender], contender, len(every) / len(shown))
            axes.set(xlim=(least, most), ylim=(0, top), xscale="log", title=_title(contender))
            _log_ticks(axes)
            if number >= len(shown) - columns:
                axes.set_xlabel("arithmetic intensity (FLOP/B)")
            if number % columns == 0:
                axes.set_ylabel(f"utilisation (% of {peak:g} TFLOP/s)")
            _finish(axes)
        figure.legend(
            loc="outside lower center",
            ncols=len(shown) + 1,
            frameon=False,
            markerscale=LEGEND_MARK / _size(len(every) / len(shown)),
        )
        figure.suptitle(_plain(f"{group.title}, against the data sheet of {device.name}"), weight="bold")
    return figure


def _speedup(group: Group) -> Figure:
    """Both ratios over cuBLAS, and their geometric means by half-decade of size."""
    names = [name for name in ("single_vs_cublas", "set_vs_cublas") if group.pairs(name)]
    with picture.style():
        figure = _figure(11.0, 4.4)
        panels = _panels(figure, 2)
        every: list[float] = []
        for name in names:
            found, own = group.pairs(name), RATIOS[name][1]
            every += [ratio for _, ratio in found]
            _points(panels[0], [(group.intensity(problem), ratio) for problem, ratio in found], own, len(found))
            _points(panels[1], [(problem.flop, ratio) for problem, ratio in found], own, len(found), label=False)
        for name in names:
            sizes = by_half_decade([(problem.flop, ratio) for problem, ratio in group.pairs(name)])
            middle = [(10 ** (start + 0.25), ratios.geomean) for start, ratios in sizes.items()]
            label = f"{_title(RATIOS[name][1])}: geometric mean of a half-decade of size"
            color = COLORS[RATIOS[name][1]]
            look: dict[str, Any] = {"linewidth": 2.0, "marker": "D", "markersize": 4.5, "markeredgecolor": "white", "zorder": 4}
            panels[1].plot([x for x, _ in middle], [y or 1.0 for _, y in middle], color=color, label=label, **look)
        panels[0].axvline(
            COMPUTE_BOUND, color=LINE, linewidth=1.0, linestyle="--", label=f"compute-bound above {COMPUTE_BOUND} FLOP/B"
        )
        for axes, label in zip(panels, ("arithmetic intensity (FLOP/B)", "size (FLOP)"), strict=True):
            axes.axhline(1.0, color=LINE, linewidth=0.8)
            axes.set(xscale="log", yscale="log", xlabel=label, ylim=(min(every) / 1.05, max(every) * 1.05))
            _log_ticks(axes, both=True, x=axes is panels[0])
            _finish(axes)
        panels[0].set_ylabel("cuBLAS's time over ours (above 1: ours is faster)")
        figure.legend(
            loc="outside lower center",
            ncols=3 if len(names) == 1 else 2,
            frameon=False,
            markerscale=LEGEND_MARK / _size(len(every) / len(names)),
        )
        figure.suptitle(_plain(f"Speed-up over cuBLAS, {group.title}"), weight="bold")
    return figure


def _points(axes: Axes, points: Sequence[tuple[float, float]], contender: str, count: float, label: bool = True) -> None:
    """Points that let each other be seen: the more there are, the smaller and the more transparent."""
    size = _size(count)
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        linestyle="none",
        marker=MARKERS.get(contender, "o"),
        markersize=size,
        markeredgewidth=0,
        alpha=size / 6,
        color=COLORS.get(contender, OTHER),
        label=_title(contender) if label else None,
        gid=f"points-{contender}-{'left' if label else 'right'}",
        rasterized=len(points) > 800,  # a vector a point would make an SVG of megabytes
    )


def _size(count: float) -> float:
    """Of a mark, in points, where there are ``count``."""
    return 2.2 if count > 800 else 3.2 if count > 200 else 4.5


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor=picture.PAPER, layout="constrained", dpi=DPI)


def _panels(figure: Figure, count: int, columns: int | None = None, sharex: bool = False) -> list[Axes]:
    columns = columns or count
    panels: list[Axes] = []
    for number in range(count):
        first = panels[0] if panels else None
        panels.append(figure.add_subplot(-(-count // columns), columns, number + 1, sharey=first, sharex=first if sharex else None))
        if number % columns:
            panels[-1].tick_params(labelleft=False)
    return panels


def _log_ticks(axes: Axes, both: bool = False, x: bool = True) -> None:
    """Plain numbers at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for axis in [*([axes.xaxis] if x else []), *([axes.yaxis] if both else [])]:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if axis is axes.xaxis else (1, 1.25, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def _finish(axes: Axes) -> None:
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _title(contender: str) -> str:
    return _plain(CONTENDERS.get(contender, contender))


def _plain(text: str) -> str:
    """A text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")


def _drawn(name: str, caption: str, figure: Figure) -> Picture:
    return Picture(name, caption, _fewer_colors(picture.rendered(figure, ".png", DPI)), picture.rendered(figure, ".svg", SVG_DPI))


def _fewer_colors(png: bytes) -> bytes:
    """The PNG with a palette, a quarter of its size: a page holds dozens. Pillow is what matplotlib writes PNG with."""
    from PIL import Image

    data = BytesIO()
    with Image.open(BytesIO(png)) as image:
        image.convert("RGB").quantize(COLORS_OF_PNG, dither=Image.Dither.NONE).save(data, "png", optimize=True)
    return data.getvalue()
