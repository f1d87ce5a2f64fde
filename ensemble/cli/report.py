"""``cutlass-sk report``: tables, pictures and a page of measured times."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.status import Status
from rich.table import Table as Listing

from cutlass_sk.cli.options import written_path
from cutlass_sk.ensemble import report as made
from cutlass_sk.ensemble.bench_store import LOG
from cutlass_sk.ensemble.report import curves, groups
from cutlass_sk.ensemble.report import sizes as library
from cutlass_sk.ensemble.report.drawing import Picture
from cutlass_sk.ensemble.report.groups import TIMINGS
from cutlass_sk.ensemble.table import MADE_UP, SUFFIX, merged, no_search_for_cycles, write
from cutlass_sk.ensemble.table_records import read_any
from cutlass_sk.errors import WriteError
from cutlass_sk.provenance import save

PICTURES = "pictures"
"""The folder of pictures in the folder of a report."""
HEADLINE = {
    "set_vs_cublas": "set/\ncuBLAS",
    "set_vs_oracle": "set/\noracle",
    "set_vs_exhaustive": "set/\nbest",
    "single_vs_cublas": "one/\ncuBLAS",
    "single_vs_data_parallel": "one/\nits dp",
}
"""Ratios that are printed, and what heads their columns."""
READING = """Speed-up, geometric means; above 1 the first is faster. set: the Stream-K set, as
planned; one: its first kernel; its dp: that kernel data-parallel; best: the
fastest plan of a search"""


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
    markdown: Annotated[
        Path | None, typer.Option("--markdown", callback=written_path, help="Also write all tables as Markdown to this file.")
    ] = None,
) -> None:
    """The report of measured times: ratios, tables, pictures, and one page; prints the chief ratios. Needs no GPU."""
    console = Console(stderr=True, highlight=False)
    with no_search_for_cycles(), console.status("reading") as status:
        text = _report(records, output, curve, size, table, markdown, status)
    console.print(text, soft_wrap=True, markup=False)


def _report(
    records: list[Path],
    output: Path,
    curve: Path | None,
    size: Path | None,
    table: Path | None,
    markdown: Path | None,
    status: Status,
) -> str:
    """Writes all and prints the headline; gives what is said in the end. ``status`` is shown on a terminal alone."""
    read = [(path.name, read_any(path)) for path in records]
    whole = merged(read)
    grown = None if curve is None else (curve.name, curves.read_curves(curve))
    weighed = None if size is None else library.read_sizes(size)
    _folder(output / PICTURES)
    if table is not None:
        write(table, whole)
    files = [_file(path, f"{len(found.rows):,} times") for path, (_, found) in zip(records, read, strict=True)]
    found, device = made.grouped(whole), groups.gpu(whole)
    pictures: dict[str, list[Picture]] = {}
    for number, group in enumerate(found, 1):
        status.update(f"drawing {number} of {len(found)}: {group.subject}")
        if len(group.problems) > 1:
            pictures[group.title] = made.of_group(group, device)
    status.update("writing")
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
    for picture in _named_apart(picture for several in pictures.values() for picture in several):
        save(output / PICTURES / f"{picture.name}.png", picture.png)
        save(output / PICTURES / f"{picture.name}.svg", picture.svg)
    save(output / "summary.json", json.dumps(summary, indent=1) + "\n")
    save(output / "index.html", made.page(whole, sections, pictures, summary, device, grids))
    if markdown is not None:
        save(markdown, made.markdown(sections, grids))
    status.stop()
    if whole.made_up:
        print(f"{MADE_UP}.")
    print(READING)
    Console(highlight=False).print(headline(found))
    mark = f"{MADE_UP}. " if whole.made_up else ""
    return f"{mark}{output / 'index.html'}: {len(whole.rows):,} times"


def headline(found: Sequence[made.Group]) -> Listing:
    """The chief ratios, a group a row; those that no group has are left out."""
    names = [name for name in HEADLINE if any(name in group.ratios for group in found)]
    table = Listing(box=SIMPLE, show_edge=False, collapse_padding=True, pad_edge=False)
    table.add_column("times", overflow="fold")
    for heading in ("n", *(HEADLINE[name] for name in names)):
        table.add_column(heading, justify="right", no_wrap=True)
    dtypes = ""
    for group in found:
        means = [group.ratios[name].geomean if name in group.ratios else None for name in names]
        if not any(means):
            continue
        if group.dtypes != dtypes:
            dtypes = group.dtypes
            table.add_row(dtypes, style="bold")
        cells = ("-" if mean is None else f"{mean:.3f}" for mean in means)
        table.add_row(f" {group.corpus}, {TIMINGS[group.timing]}", f"{len(group.problems):,}", *cells)
    return table


def _folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"{path} cannot be made: {error.strerror}; name a folder that can be written to") from None


def _file(path: Path, holds: str) -> dict[str, str]:
    data = (path / LOG if path.is_dir() else path).read_bytes()
    return {"file": path.name, "sha256": sha256(data).hexdigest(), "holds": holds}


def _named_apart(pictures: Iterable[Picture]) -> Iterator[Picture]:
    """Pictures whose names, which keep what a file may be called of a corpus, are numbered where they would be the same."""
    names: Counter[str] = Counter()
    for picture in pictures:
        names[picture.name] += 1
        yield picture if names[picture.name] == 1 else replace(picture, name=f"{picture.name}-{names[picture.name]}")
