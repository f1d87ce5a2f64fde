"""What the pictures of a report have in common. Needs matplotlib; the same input gives the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from cutlass_sk.cli import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OTHER, LINE, GRID = "#777777", "#222222", "#E4E4E4"
DPI, SVG_DPI = 100, 150
"""Of a PNG, and of the points in an SVG that are too many to be vectors."""
COLORS_OF_PNG = 64


@dataclass(frozen=True)
class Picture:
    """A picture under a name that a file may have, with what it shows in words."""

    name: str
    caption: str
    png: bytes
    svg: bytes


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor=picture.PAPER, layout="constrained", dpi=DPI)


def panels_of(figure: Figure, count: int, columns: int | None = None, sharex: bool = False) -> list[Axes]:
    columns = columns or count
    panels: list[Axes] = []
    for number in range(count):
        first = panels[0] if panels else None
        panels.append(figure.add_subplot(-(-count // columns), columns, number + 1, sharey=first, sharex=first if sharex else None))
        if number % columns:
            panels[-1].tick_params(labelleft=False)
    return panels


def log_ticks(axes: Axes, spread: float = 0.0, x: bool = True) -> None:
    """Plain numbers at 1, 2 and 5 of each decade, where there are not too many decades.

    ``spread``: most over least of the other axis, where that is logarithmic, too.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    fine = (1, 2, 5) if spread > 8 else (1, 1.5, 2, 3, 5, 7) if spread > 4 else (1, 1.25, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    least, most = axes.get_xlim()
    across = (1,) if x and most / least > 1000 else (1, 2, 5)
    for axis in [*([axes.xaxis] if x else []), *([axes.yaxis] if spread else [])]:
        axis.set_major_locator(LogLocator(subs=across if axis is axes.xaxis else fine))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def finish(axes: Axes) -> None:
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def plain(text: str) -> str:
    """A text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")


def drawn(name: str, caption: str, figure: Figure) -> Picture:
    """The figure in both forms, laid out once."""
    png = picture.rendered(figure, ".png", DPI)
    figure.set_layout_engine("none")
    return Picture(name, caption, _fewer_colors(png), picture.rendered(figure, ".svg", SVG_DPI))


def _fewer_colors(png: bytes) -> bytes:
    """The PNG with a palette, a quarter of its size: a page holds dozens. Pillow is what matplotlib writes PNG with."""
    from PIL import Image

    data = BytesIO()
    with Image.open(BytesIO(png)) as image:
        how: dict[str, Any] = {"method": Image.Quantize.MAXCOVERAGE, "dither": Image.Dither.NONE}  # rare colours, too, are kept
        image.convert("RGB").quantize(COLORS_OF_PNG, **how).save(data, "png", optimize=True)
    return data.getvalue()
