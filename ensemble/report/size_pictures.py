"""Pictures of library size: performance against kernels and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass_sk.cli import picture
from cutlass_sk.ensemble.planner_report import DTYPES

from .curves import Curve
from .drawing import LINE, OTHER, Picture, drawn, finish, log_ticks, new_figure, panels_of, plain
from .sizes import MEGABYTE, Sizes

COLORS = {"set": "#0077BB", "single": "#EE7733", "data_parallel": "#EE3377", "cublas": "#009988", "cublaslt": "#009988"}
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
        figure = new_figure(max(6.5, 4.6 * len(shown)), 4.4)
        for dtypes, axes in zip(shown, panels_of(figure, len(shown)), strict=True):
            steps = [(size / MEGABYTE, ratio) for _, size, ratio in sizes.curves.get(dtypes, ()) if ratio is not None]
            if steps:
                axes.plot(*zip(*steps, strict=True), color=OTHER, linewidth=1.2, marker=".", label=ENSEMBLE)
            widest = max(size.cubin_bytes or 0 for size in known[dtypes].values()) / MEGABYTE
            for name, size in known[dtypes].items():
                at = (size.cubin_bytes or 0) / MEGABYTE, size.vs_cublas or 1.0
                look: dict[str, Any] = {"color": COLORS.get(name, OTHER), "marker": "o", "markersize": 7, "linestyle": "none"}
                axes.plot(*at, **look)
                left = at[0] > widest / 8 and len(known[dtypes]) > 1
                place: dict[str, Any] = {"xytext": (-9 if left else 9, 0), "textcoords": "offset points", "va": "center"}
                axes.annotate(f"{name}: {size.vs_cublas_per_mb:,.3g} a MB", at, ha="right" if left else "left", **place)
            axes.axhline(1.0, color=LINE, linewidth=0.8)
            axes.set(xscale="log", xlabel="GPU code for one architecture (MB)", title=" -> ".join(dict.fromkeys(DTYPES[dtypes])))
            axes.margins(x=0.12, y=0.15)
            log_ticks(axes)
            finish(axes)
        figure.axes[0].set_ylabel("speed-up over cuBLAS (geometric mean)")
        if any(sizes.curves.get(dtypes) for dtypes in shown):
            figure.legend(loc="outside lower center", frameon=False)
        figure.suptitle(plain(f"Performance for bytes of GPU code ({sizes.origin})"), weight="bold")
    return drawn("size", f"Speed-up over cuBLAS against bytes of GPU code, and the speed-up for each MB. {sizes.origin}", figure)
