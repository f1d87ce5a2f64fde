"""The pictures of a group: utilisation, and speed-up over cuBLAS."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cutlass_sk.cli import picture
from cutlass_sk.device import Device
from cutlass_sk.ensemble.planner_report import COMPUTE_BOUND
from cutlass_sk.ensemble.ratios import by_half_decade, half_decade
from cutlass_sk.ensemble.table import MADE_UP

from .drawing import LINE, OTHER, Picture, drawn, finish, log_ticks, new_figure, panels_of, plain
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
MARKERS = {"set": "o", "single": "^"}
LEGEND_MARK = 5.0
"""Size of a mark in a legend, in points."""
PANELS = 4
"""Most panels side by side."""
CROWD, HEXAGONS = 6000, 55
"""Points of which so many are drawn as the number in each of so many hexagons across."""
INTENSITY = "arithmetic intensity (FLOP/B)"
BOUND = f"compute-bound above {COMPUTE_BOUND} FLOP/B"
DARKER = "(darker: more problems)"
BAND = "the middle 90% of the problems"


def of_group(group: Group, device: Device) -> list[Picture]:
    """Utilisation, and speed-up over cuBLAS where there is one. ``device``: whose data-sheet peaks utilisation is a part of."""
    found = []
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{group.dtypes}-{group.corpus}-{group.timing}").strip("-")
    if any(group.times(contender) for contender in group.contenders):
        caption = f"Utilisation against arithmetic intensity. {group.title}"
        found.append(drawn(f"utilisation-{name}", caption, _utilisation(group, device)))
    if group.pairs("set_vs_cublas") or group.pairs("single_vs_cublas"):
        caption = f"Speed-up over cuBLAS against arithmetic intensity and size. {group.title}"
        found.append(drawn(f"speedup-{name}", caption, _speedup(group)))
    return found


def _utilisation(group: Group, device: Device) -> Figure:
    """A panel a contender, as in the Stream-K paper's Figures 5 and 6, on axes that they share."""
    peak = device.tflops(group.dtype)
    shown = [contender for contender in group.contenders if group.times(contender)]
    with picture.style():
        columns = min(PANELS, len(shown))
        lines = -(-len(shown) // columns)
        figure = new_figure(max(5.5, 3.1 * columns), 3.1 * lines + 0.9)
        panels = panels_of(figure, len(shown), columns, sharex=True)
        points = {contender: group.utilisation(contender, device) for contender in shown}
        every = [x for own in points.values() for x, _ in own]
        least, most = min(every) / 1.15, max(every) * 1.15
        top = max(105.0, 1.05 * max(y for own in points.values() for _, y in own))
        knee = peak * 1e3 / device.bandwidth_gbs
        # Memory's part of the roof is bent, for intensity alone has a logarithmic axis.
        roof = sorted({*(least * (most / least) ** (step / 100) for step in range(101)), min(max(knee, least), most)})
        for number, (contender, axes) in enumerate(zip(shown, panels, strict=True)):
            darker = f" {DARKER}" if len(points[contender]) > CROWD else ""
            label = f"data-sheet memory bandwidth and peak{darker}" if number == 0 else None
            axes.plot(roof, [100 * min(1.0, x / knee) for x in roof], color=LINE, linewidth=1.0, linestyle="--", label=label)
            _points(axes, points[contender], contender, len(every) / len(shown), label=False)
            axes.set(xlim=(least, most), ylim=(0, top), xscale="log", title=_title(contender))
            log_ticks(axes)
            if number >= len(shown) - columns:
                axes.set_xlabel(INTENSITY)
            if number % columns == 0:
                axes.set_ylabel(f"utilisation (% of {peak:g} TFLOP/s)")
            finish(axes)
        figure.legend(loc="outside lower center", frameon=False)
        _head(figure, group, f"{group.subject}, against the data sheet of {device.name}")
    return figure


def _speedup(group: Group) -> Figure:
    """Each ratio over cuBLAS by intensity, and both by size: the geometric mean and the middle 90% of each half-decade."""
    names = [name for name in ("single_vs_cublas", "set_vs_cublas") if group.pairs(name)]
    with picture.style():
        figure = new_figure(1.0 + 4.4 * (1 + len(names)), 4.4)
        panels = panels_of(figure, 1 + len(names))
        every = [ratio for name in names for _, ratio in group.pairs(name)]
        for name, axes in zip(names, panels, strict=False):
            found, own = group.pairs(name), RATIOS[name][1]
            _points(axes, [(group.intensity(problem), ratio) for problem, ratio in found], own, len(found), yscale="log")
            axes.axvline(COMPUTE_BOUND, color=LINE, linewidth=1.0, linestyle="--", label=BOUND)
            axes.set(xlabel=INTENSITY, title=_title(own))
            by_size = by_half_decade([(problem.flop, ratio) for problem, ratio in found])
            look: dict[str, Any] = {"linewidth": 2.0, "marker": "D", "markersize": 4.5, "markeredgecolor": "white", "zorder": 4}
            middle = [(10 ** (start + 0.25), ratios) for start, ratios in by_size.items()]
            label, color = f"{_title(own)}: geometric mean of a half-decade of size", COLORS[own]
            sizes, means = [x for x, _ in middle], [ratios.geomean or 1.0 for _, ratios in middle]
            panels[-1].plot(sizes, means, color=color, label=label, gid=f"means-{own}", **look)
            bands = [_middle([ratio for problem, ratio in found if half_decade(problem.flop) == start]) for start in by_size]
            low, high = [least for least, _ in bands], [most for _, most in bands]
            panels[-1].fill_between(sizes, low, high, color=color, alpha=0.16, linewidth=0, label=BAND)
        panels[-1].set(xlabel="size (FLOP)", title="by size")
        for axes in panels:
            axes.axhline(1.0, color=LINE, linewidth=0.8)
            axes.set(xscale="log", yscale="log", ylim=(min(every) / 1.05, max(every) * 1.05))
            log_ticks(axes, max(every) / min(every), x=axes is not panels[-1])
            finish(axes)
        panels[0].set_ylabel("cuBLAS's time over ours (above 1: ours is faster)")
        _legend(figure, panels, len(every) / len(names), ncols=2)
        _head(figure, group, f"Speed-up over cuBLAS, {group.subject}")
    return figure


def _head(figure: Figure, group: Group, text: str) -> None:
    """The title, under a line that says so where times are made up."""
    figure.suptitle(plain(f"{MADE_UP}\n{text}" if group.made_up else text), weight="bold")


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """Between which nine tenths of the values lie."""
    ranked, cut = sorted(values), len(values) // 20
    return ranked[cut], ranked[-1 - cut]


def _points(
    axes: Axes, points: Sequence[tuple[float, float]], contender: str, count: float, yscale: str = "linear", label: bool = True
) -> None:
    """Points that let each other be seen: the more there are, the smaller and the more transparent; where there are too many for
    that, how many lie in each hexagon."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    size, color = _size(count), COLORS.get(contender, OTHER)
    across, up = [x for x, _ in points], [y for _, y in points]
    look: dict[str, Any] = {"linestyle": "none", "marker": MARKERS.get(contender, "o"), "markeredgewidth": 0, "color": color}
    if len(points) > CROWD:
        shades = LinearSegmentedColormap.from_list(contender, [_mixed(color, 0.75), color, _mixed(color, -0.65)])
        bins: dict[str, Any] = {"xscale": "log", "yscale": yscale, "gridsize": HEXAGONS, "mincnt": 1, "edgecolors": "none"}
        axes.hexbin(across, up, norm=LogNorm(), cmap=shades, rasterized=True, antialiased=False, gid=f"density-{contender}", **bins)
        if label:
            axes.plot([], [], markersize=size, label=f"{_title(contender)} {DARKER}", **look)
        return
    # A vector a point would make an SVG of megabytes.
    axes.plot(
        *(across, up),
        **look,
        markersize=size,
        alpha=size / 6,
        label=_title(contender) if label else None,
        gid=f"points-{contender}",
        rasterized=len(points) > 800,
    )


def _mixed(color: str, white: float) -> str:
    """A colour with so much white in it, or, below 0, black."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = (part + (1 - part) * white if white > 0 else part * (1 + white) for part in to_rgb(color))
    return to_hex((red, green, blue))


def _legend(figure: Figure, panels: Sequence[Axes], count: float, ncols: int) -> None:
    """One legend below all panels, each label once."""
    found = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    place: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "markerscale": LEGEND_MARK / _size(count)}
    figure.legend(found.values(), found.keys(), ncols=ncols, **place)


def _size(count: float) -> float:
    """Of a mark, in points, where there are ``count``."""
    return 2.2 if count > 800 else 3.2 if count > 200 else 4.5


def _title(contender: str) -> str:
    return plain(CONTENDERS.get(contender, contender))
