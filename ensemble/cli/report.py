"""``cutlass-sk report``: tables, pictures and a page of measured times."""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cutlass_sk.cli.options import written_path
from cutlass_sk.ensemble import report as made
from cutlass_sk.ensemble.bench_store import LOG
from cutlass_sk.ensemble.report import curves, groups
from cutlass_sk.ensemble.report import sizes as library
from cutlass_sk.ensemble.report.drawing import Picture
from cutlass_sk.ensemble.table import SUFFIX, merged, no_search_for_cycles, write
from cutlass_sk.ensemble.table_records import read_any
from cutlass_sk.errors import WriteError
from cutlass_sk.provenance import save

PICTURES = "pictures"
"""The folder of pictures in the folder of a report."""


def table_path(path: Path | None) -> Path | None:
    if path is not None and path.suffix != SUFFIX:
        raise typer.BadParameter(f"{str(path)!r} must end in {SUFFIX}")
    return written_path(path)


def report(
    records: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORDS...", help="Tables (.parquet), folders of bench, or records of planner_sweep (.jsonl, .jsonl.gz)."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for summary.json, index.html and pictures/; made if needed."),
    ],
    curve: Annotated[
        Path | None, typer.Option("--curve", help="Record of kernel_set, such as results/h200/kernel_set_widths.json.")
    ] = None,
    size: Annotated[
        Path | None, typer.Option("--size", help="Record of `cutlass-sk size --json`, such as results/h200/size.json.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--table", callback=table_path, help="Also write all times as one table, .parquet.")
    ] = None,
) -> None:
    """The report of measured times: ratios, tables (printed as Markdown), pictures, and one page. Needs no GPU."""
    with no_search_for_cycles():
        _report(records, output, curve, size, table)


def _report(records: list[Path], output: Path, curve: Path | None, size: Path | None, table: Path | None) -> None:
    read = [(path.name, read_any(path)) for path in records]
    whole = merged(read)
    grown = None if curve is None else (curve.name, curves.read_curves(curve))
    weighed = None if size is None else library.read_sizes(size)
    _folder(output / PICTURES)
    if table is not None:
        write(table, whole)
    files = [_file(path, f"{len(found.rows):,} times") for path, (_, found) in zip(records, read, strict=True)]
    found, device = made.grouped(whole), groups.gpu(whole)
    pictures: dict[str, list[Picture]] = {group.title: made.of_group(group, device) for group in found if len(group.problems) > 1}
    grids = []
    if size is not None and weighed is not None:
        files.append(_file(size, f"sizes of {sum(map(len, weighed.libraries.values()))} libraries"))
        weighed = library.with_performance(weighed, found)
        grids.append(library.table(weighed, found))
        pictures[""] = [picture for picture in [made.of_sizes(weighed)] if picture is not None]
    if curve is not None and grown is not None:
        files.append(_file(curve, f"{len(grown[1])} curves"))
        pictures[""] = [*pictures.get("", ()), made.of_curves(grown[1], grown[0])]
    summary, sections = made.summarize(whole, found, files, weighed), made.sections(found)
    for picture in (picture for several in pictures.values() for picture in several):
        save(output / PICTURES / f"{picture.name}.png", picture.png)
        save(output / PICTURES / f"{picture.name}.svg", picture.svg)
    save(output / "summary.json", json.dumps(summary, indent=1) + "\n")
    save(output / "index.html", made.page(whole, sections, pictures, summary, device, grids))
    texts = [*(section.markdown() for section in sections), *(grid.markdown() for grid in grids)]
    sys.stdout.write("\n\n".join(texts) + "\n")
    Console(stderr=True, highlight=False).print(f"{output / 'index.html'}: {len(whole.rows):,} times", soft_wrap=True, markup=False)


def _folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"{path} cannot be made: {error.strerror}; name a folder that can be written to") from None


def _file(path: Path, holds: str) -> dict[str, str]:
    data = (path / LOG if path.is_dir() else path).read_bytes()
    return {"file": path.name, "sha256": sha256(data).hexdigest(), "holds": holds}
