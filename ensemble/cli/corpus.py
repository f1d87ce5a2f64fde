"""``cutlass-sk corpus``: collections of problems, summed up, listed or written."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cutlass_sk.cli.options import DTYPE_NAMES, JsonOption, dtype_option, extents, written_path
from cutlass_sk.ensemble.corpus import NAMES, by_name, summarize, to_csv
from cutlass_sk.generator.spec import ELEMENT_BYTES
from cutlass_sk.provenance import save


def corpus(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A corpus, or the path of a CSV file.  \\[default: list the names]")
    ] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Say what it spans; the default.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Print its problems as CSV, or with --json as JSON.")] = False,
    csv: Annotated[Path | None, typer.Option("--csv", callback=written_path, help="Write its problems to this file.")] = None,
    dtype: Annotated[str, dtype_option("--dtype", "Element type, for FLOP a byte.", DTYPE_NAMES)] = "float16",
    tile: Annotated[str, typer.Option("--tile", help="Output tile of the summary and of the sweeps.")] = "128x128",
    sms: Annotated[int, typer.Option("--sms", min=1, help="SMs of the summary and of the sweeps.")] = 132,
    as_json: JsonOption = False,
) -> None:
    """Problems to compare with: the paper's, real ones, sweeps around a GPU's SMs, or a CSV of your own."""
    if listed and summary:
        raise typer.BadParameter("--list prints problems alone, for other programs to read; give --summary in a call of its own")
    if name is None:
        given = {"--summary": summary, "--list": listed, "--csv": csv is not None}
        if used := [option for option, value in given.items() if value]:
            raise typer.BadParameter(
                f"NAME is needed: {', '.join(used)} is of one corpus; there are {', '.join(NAMES)}, or FILE.csv"
            )
        print(json.dumps(NAMES, indent=1)) if as_json else Console().print(_names())
        return
    tile_m, tile_n = extents(tile, 2)
    found = by_name(name, (tile_m, tile_n), sms)
    if csv is not None:
        save(csv, to_csv(found))
        Console(stderr=True, highlight=False).print(f"{len(found):,} problems written to {csv}", soft_wrap=True)
    if listed:
        sys.stdout.write(json.dumps([asdict(problem) for problem in found], indent=1) + "\n" if as_json else to_csv(found))
    if summary or not (listed or (csv and not as_json)):
        made = summarize(found, element_bytes=ELEMENT_BYTES[dtype], tile=(tile_m, tile_n), sms=sms)
        if as_json:
            print(json.dumps(made.to_json(), indent=1))
            return
        table = Table("corpus", found.name, caption="least / quartile / median / quartile / most")
        for what, number in made.rows():
            table.add_row(what, number)
        console = Console(highlight=False)
        console.print(table)
        console.print(f"sha256 of the lines m,n,k: {made.sha256}", soft_wrap=True)  # whole, however narrow the terminal is


def _names() -> Table:
    table = Table("corpus", "")
    for name, meaning in NAMES.items():
        table.add_row(name, meaning)
    table.add_row("FILE.csv", "your own: columns m, n, k, and name, layout, dtype, source, count where they matter")
    return table
