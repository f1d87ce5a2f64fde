"""Pictures of library size: performance against kernels and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cutlass_sk.cli import picture
from cutlass_sk.ensemble.planner_report import DTYPES

from .curves import Curve
from .drawing import LINE, OTHER, Picture, drawn, finish, log_ticks, new_figure, panels_of, plain
from .sizes import MEGABYTE, Size, Sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {"set": "#0077BB", "single": "#EE7733", "data_parallel": "#EE3377", "cublas": "#009988", "cublaslt": "#009988"}
LABELS = {
    "set": (0, 11, "center"),
    "single": (-9, 3, "right"),
    "data_parallel": (-9, -3, "right"),
    "oracle_of_set": (9, -9, "left"),
    "cublas": (0, 11, "center"),
    "cublaslt": (0, -11, "center"),
    "ensemble": (2, -11, "left"),
}
"""Where the labels of points lie that would else cover others: points across and up, and which of its sides is there."""
ENSEMBLE = "a data-parallel ensemble, grown kernel by kernel"


def of_curves(curves: Sequence[Curve], origin: str) -> Picture:
    """Performance against kernels and bytes. ``origin``: the record's name."""
    with picture.style():
        figure = new_figure(11.0, 4.4)
        sized = any(size is not None for curve in curves for _, size, _ in curve.points)
        panels = panels_of(figure, 2 if sized else 1)
        styles = (("#0077BB", "o", "-", 7.0), ("#EE7733", "x", "--", 5.0), ("#EE3377", "s", "-", 5.0), ("#009988", "^", ":", 5.0))
        for number, curve in enumerate(curves):
            color, marker, line, size = styles[number % len(styles)]
            look: dict[str, Any] = {"color": color, "marker": marker, "linestyle": line, "markersize": size, "alpha": 0.8}
            label = plain(f"{curve.name}: {curve.meaning} ({curve.problems:,} problems)")
            panels[0].plot([count for count, _, _ in curve.points], [mean for *_, mean in curve.points], label=label, **look)
            if sized:
                known = [(bytes_ / 1e6, mean) for _, bytes_, mean in curve.points if bytes_ is not None]
                panels[1].plot([x for x, _ in known], [y for _, y in known], **look)
        for axes, label in zip(panels, ("kernels", "GPU code (MB)"), strict=False):
            axes.axhline(1.0, color=LINE, linewidth=0.8)
            axes.set(xlabel=label, ylabel="speed-up over cuBLAS (geometric mean)" if axes is panels[0] else "")
            finish(axes)
        if all(count < 16 for curve in curves for count, *_ in curve.points):
            panels[0].set_xticks(range(1, 1 + max((count for curve in curves for count, *_ in curve.points), default=1)))
        figure.legend(loc="outside lower center", ncols=1, frameon=False)
        figure.suptitle(plain(f"Performance against number of kernels and bytes ({origin})"), weight="bold")
    return drawn("kernels", f"Speed-up over cuBLAS against number of kernels and bytes of GPU code. {origin}", figure)


def of_sizes(sizes: Sizes) -> Picture | None:
    """Performance against bytes of GPU code, a panel a pair of dtypes; None where no library has both."""
    known = {
        dtypes: {name: size for name, size in libraries.items() if size.vs_cublas and size.cubin_bytes}
        for dtypes, libraries in sizes.libraries.items()
    }
    shown = [dtypes for dtypes, libraries in known.items() if libraries.keys() - {"cublas", "cublaslt"}]
    if not shown:
        return None
    with picture.style():
        figure = new_figure(max(6.5, 4.4 * len(shown)), 6.6)
        grid = figure.subplots(2, len(shown), squeeze=False, sharey="row", height_ratios=(3, 2))
        for dtypes, above, below in zip(shown, *grid, strict=True):
            steps = [(size / MEGABYTE, ratio) for _, size, ratio in sizes.curves.get(dtypes, ()) if ratio is not None]
            if steps:
                above.plot(*zip(*steps, strict=True), color=OTHER, linewidth=1.2, marker=".", label=ENSEMBLE)
            for name, size in known[dtypes].items():
                at = (size.cubin_bytes or 0) / MEGABYTE, size.vs_cublas or 1.0
                large = name not in COLORS  # a set and its oracle may lie in one place: the oracle's is a ring then
                look: dict[str, Any] = {"markersize": 9 if large else 7, "zorder": 2.5 if large else 3, "linestyle": "none"}
                above.plot(*at, color=COLORS.get(name, OTHER), marker="o", **look)
                across, up, side = LABELS.get(name, (9, 0, "left"))
                above.annotate(name, at, (across, up), textcoords="offset points", va="center", ha=side)
            above.axhline(1.0, color=LINE, linewidth=0.8)
            above.set(xscale="log", xlabel="GPU code for one architecture (MB)", title=" -> ".join(dict.fromkeys(DTYPES[dtypes])))
            above.margins(y=0.12)
            least, most = above.dataLim.intervalx
            above.set_xlim(least / (most / least) ** 0.45, most * (most / least) ** 0.15)  # the first ones' labels lie to the left
            log_ticks(above)
            _bars(below, known[dtypes], max(len(known[one]) for one in shown))
            finish(above)
        grid[0][0].set_ylabel("speed-up over cuBLAS (geometric mean)")
        if any(sizes.curves.get(dtypes) for dtypes in shown):
            figure.legend(loc="outside lower center", frameon=False)
        figure.suptitle(plain(f"Performance for bytes of GPU code ({sizes.origin})"), weight="bold")
    return drawn("size", f"Speed-up over cuBLAS against bytes of GPU code, and the speed-up for each MB. {sizes.origin}", figure)


def _bars(axes: Axes, libraries: Mapping[str, Size], places: int) -> None:
    """The speed-up for each MB of GPU code: the most first, with room for ``places`` of them."""
    ranked = sorted(((size.vs_cublas_per_mb or 0.0, name) for name, size in libraries.items()), reverse=True)
    axes.barh(range(len(ranked)), [value for value, _ in ranked], color=[COLORS.get(name, OTHER) for _, name in ranked], height=0.7)
    for place, (value, name) in enumerate(ranked):
        axes.annotate(f"{name}: {value:,.3g}", (value, place), (4, 0), textcoords="offset points", va="center")
    most, least = ranked[0][0], ranked[-1][0]
    limits = (least / 3, most * (most / least) ** 0.6 * 3)  # beyond the longest bar there is its label
    axes.set(xscale="log", xlabel="speed-up over cuBLAS for each MB of GPU code", xlim=limits, ylim=(places - 0.4, -0.6))
    axes.set_yticks([])
    log_ticks(axes)
    finish(axes)
