"""``cutlass-sk corpus``: collections of problems, summed up, listed or written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cutlass_sk.cli.options import Dtype, JsonOption, extents
from cutlass_sk.ensemble.corpus import NAMES, Corpus, by_name, summarize, to_csv
from cutlass_sk.errors import Error
from cutlass_sk.generator.spec import ELEMENT_BYTES
from cutlass_sk.provenance import save


def corpus(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A corpus, or the path of a CSV file.  \\[default: list the names]")
    ] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Say what it spans; the default.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Print its problems as CSV.")] = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write its problems to this file.")] = None,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Element type, for FLOP a byte.")] = "float16",
    tile: Annotated[str, typer.Option("--tile", help="Output tile of the summary and of the sweeps.")] = "128x128",
    sms: Annotated[int, typer.Option("--sms", min=1, help="SMs of the summary and of the sweeps.")] = 132,
    as_json: JsonOption = False,
) -> None:
    """Problems to compare with: the paper's, real ones, sweeps around a GPU's SMs, or a CSV of your own."""
    if name is None:
        print(json.dumps(NAMES, indent=1)) if as_json else Console().print(_names())
        return
    tile_m, tile_n = extents(tile, 2)
    found = by_name(name, (tile_m, tile_n), sms)
    if csv is not None:
        _write(found, csv)
    if listed:
        sys.stdout.write(to_csv(found))
    if summary or not (listed or csv):
        made = summarize(found, element_bytes=ELEMENT_BYTES[dtype], tile=(tile_m, tile_n), sms=sms)
        if as_json:
            print(json.dumps(made.to_json(), indent=1))
            return
        table = Table("corpus", found.name, caption="least / quartile / median / quartile / most")
        for what, number in made.rows():
            table.add_row(what, number)
        Console(highlight=False).print(table)


def _write(found: Corpus, path: Path) -> None:
    try:
        save(path, to_csv(found))
    except OSError as error:
        raise Error(f"--csv {path} cannot be written: {error}; name a file in a folder of yours") from None
    Console(stderr=True, highlight=False).print(f"{len(found):,} problems written to {path}", soft_wrap=True)


def _names() -> Table:
    table = Table("corpus", "")
    for name, meaning in NAMES.items():
        table.add_row(name, meaning)
    table.add_row("FILE.csv", "your own: columns m, n, k, and name, layout, dtype, source, count where they matter")
    return table
