"""Arguments and options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import Error
from ..generator.catalog import DTYPES
from ..generator.spec import ELEMENT_BYTES, Generation, dtype_named
from ..plan import Decomposition
from ..provenance import output_file

Layouts = Literal["tt", "tn", "nt", "nn"]

M = Annotated[int, typer.Argument(metavar="M", help="Rows of a and c.")]
N = Annotated[int, typer.Argument(metavar="N", help="Columns of b and c.")]
K = Annotated[int, typer.Argument(metavar="K", help="Columns of a, rows of b.")]
OptionalM = Annotated[int | None, typer.Argument(metavar="M", help="Rows of a and c.")]
OptionalN = Annotated[int | None, typer.Argument(metavar="N", help="Columns of b and c.")]
OptionalK = Annotated[int | None, typer.Argument(metavar="K", help="Columns of a, rows of b.")]

DTYPE_NAMES = tuple(dict.fromkeys(dtype for dtype, _ in DTYPES))
OUT_DTYPE_NAMES = tuple(name for name in ELEMENT_BYTES if name in {out for _, out in DTYPES})


def dtype_option(name: str, text: str, dtypes: tuple[str, ...]) -> Any:
    """An option that takes one of ``dtypes``, by any of its names."""

    def parsed(given: str) -> str:
        if (found := dtype_named(given)) not in dtypes:
            raise typer.BadParameter(f"{given!r} is not one of {', '.join(dtypes)}")
        return found

    return typer.Option(name, help=text, parser=parsed, metavar=f"[{'|'.join(dtypes)}]")


DtypeOption = Annotated[str, dtype_option("--dtype", "Element type of a and b.", DTYPE_NAMES)]
OutDtypeOption = Annotated[
    str | None, dtype_option("--out-dtype", "Element type of c.  \\[default: that of a and b]", OUT_DTYPE_NAMES)
]
GenerationOption = Annotated[
    Generation | None, typer.Option("--generation", help="Kernel generation.  \\[default: the newest that the GPU runs]")
]
LayoutOption = Annotated[Layouts, typer.Option("--layout", help="Layouts of a and b; t is row-major, n column-major.")]
DecompositionOption = Annotated[
    Decomposition | None, typer.Option("--decomposition", help="Force a decomposition.  \\[default: the fastest expected]")
]
SplitsOption = Annotated[
    int | None, typer.Option("--splits", help="Parts each tile is cut in, at most one a k-tile; implies split_k.")
]
SmsOption = Annotated[int | None, typer.Option("--sms", help="Use so many SMs.  \\[default: all]")]
TileNOption = Annotated[
    int | None, typer.Option("--tile-n", help="Columns of a tile: one of the kernels' widths.  \\[default: the fastest expected]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

PICTURES = (".svg", ".png")


def picture_path(path: Path | None) -> Path | None:
    """A file name whose suffix says what kind of picture it is."""
    if path is not None and path.suffix not in PICTURES:
        raise typer.BadParameter(f"{str(path)!r} must end in {' or '.join(PICTURES)}, the pictures there are")
    return written_path(path)


def written_path(path: Path | None) -> Path | None:
    """A file in a folder that exists; asked before work is done for it."""
    return None if path is None else output_file(path)


OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", callback=picture_path, help="Draw a picture, .svg or .png; needs matplotlib.  \\[default: print text]"
    ),
]


def extents(text: str, count: int) -> tuple[int, ...]:
    """``128x256x64`` as numbers, of which there must be ``count``."""
    parts = text.split("x")
    if len(parts) != count or not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise typer.BadParameter(f"{text!r} must be {count} whole numbers with x between them, such as {'x'.join(['128'] * count)}")
    return tuple(map(int, parts))


def sizes(m: int | None, n: int | None, k: int | None) -> tuple[int, int, int]:
    """M, N and K where a command can do without them; all three here."""
    if m is None or n is None or k is None:
        raise typer.BadParameter("M, N and K are needed, all three")
    return m, n, k


KEYWORDS = "device|generation|decomposition|splits|sms|hybrid|sk_tiles|sk_units"


@contextmanager
def option_names() -> Iterator[None]:
    """Errors about keywords of the library, within: in the words of the command line, ``sk_units=2`` as ``--sk-units 2``."""
    try:
        yield
    except Error as error:
        error.args = (as_options(str(error)),)
        raise


def as_options(text: str) -> str:
    """Keywords with a value as options; those with None as options that are left out."""
    text = re.sub(rf"\b({KEYWORDS})=None\b", lambda found: f"without {_option(found[1])}", text)
    return re.sub(
        rf"\b({KEYWORDS})=(?:'([^']*)'|(-?\w+))", lambda found: f"{_option(found[1])} {found[2] or found[3] or repr('')}", text
    )


def _option(keyword: str) -> str:
    return f"--{keyword.replace('_', '-')}"
