"""``cutlass-sk size``: bytes against kernels, and performance for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

from cutlass_sk.cli.options import DtypeOption, JsonOption, Layouts, OutDtypeOption, written_path
from cutlass_sk.ensemble import library_size, size_records
from cutlass_sk.ensemble.library_size import Library, Name, Point, Request
from cutlass_sk.provenance import provenance, save

CAPTION = (
    "GPU code, in bytes: for compute capability 9.0, cuBLAS's unpacked. vs cuBLAS: geometric mean of its time over this library's "
    "(--performance); a MB: the same for each 10^6 bytes of GPU code"
)


def size(
    dtype: DtypeOption = "float16",
    out_dtype: OutDtypeOption = None,
    layout: Annotated[
        Layouts | None, typer.Option("--layout", help="Layouts of a and b.  \\[default: tn, and tt for float64]")
    ] = None,
    libraries: Annotated[
        list[str] | None, typer.Option("--library", help=f"Only this library; may be repeated: {', '.join(library_size.MEANINGS)}.")
    ] = None,
    kernels: Annotated[str, typer.Option("--kernels", help="Filter of CUTLASS's manifest, as its generator takes it.")] = "all",
    curve: Annotated[
        Path | None, typer.Option("--curve", help="Record of measured candidates, such as results/h200/kernel_set_all.json.")
    ] = None,
    performance: Annotated[
        Path | None, typer.Option("--performance", help="Record of times, such as results/h200/planner.json.")
    ] = None,
    build: Annotated[bool, typer.Option("--build", help="Compile the kernels that the cache lacks.")] = False,
    details: Annotated[bool, typer.Option("--details", help="Show each kernel, and each step of the curve.")] = False,
    as_json: JsonOption = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", callback=written_path, help="Write the JSON to this file.")
    ] = None,
) -> None:
    """Library size against kernel count: Stream-K kernels, data-parallel ensembles, CUTLASS's own, cuBLAS. Needs no GPU."""
    request = Request(dtype, out_dtype or dtype, layout or ("tt" if dtype == "float64" else "tn"), kernels)
    names = list(dict.fromkeys(map(_known, libraries or library_size.MEANINGS)))
    times = None if performance is None else size_records.read_times(performance, request.record_key)
    candidates = {} if curve is None else size_records.read_candidates(curve)
    points = library_size.curve(candidates, request)
    ensemble = library_size.grown(points, curve, library_size.recorded_layouts(candidates, request))
    found = [ensemble if name == "ensemble" else _library(name, request, build) for name in names]
    found = [library_size.with_recorded_bytes(library, candidates, request) for library in found]
    if times is not None:
        found = [library_size.with_performance(library, times, request) for library in found]
    record = _record(request, found, points, performance)
    if output is not None:
        save(output, json.dumps(record, indent=1) + "\n")
    if as_json:
        print(json.dumps(record, indent=1))
        return
    console = Console(highlight=False)
    console.print(table(request, found))
    for library in found:
        code = f"; {library.code} kernels" if library.code else ""
        console.print(f"{library.name}: {library.meaning}{code}{'; ' if library.note else ''}{library.note}", soft_wrap=True)
    if missing := sum(library.missing for library in found):
        console.print(
            f"{missing} kernels are not built: a library without all of its own has no total, or one that was recorded.",
            soft_wrap=True,
        )
    if details:
        if any(library.weights for library in found):
            console.print(kernel_table(found))
        if points:
            console.print(curve_table(points))


def table(request: Request, libraries: Sequence[Library]) -> Table:
    """One library a row."""
    made = Table(
        Column("library", no_wrap=True),
        title=f"{request.dtype} -> {request.out_dtype}, {request.layout}",
        caption=CAPTION,
        box=SIMPLE,  # fits into 80 columns
    )
    for heading in ("kernels", "GPU code", "a kernel", "shared\nobjects", "vs\ncuBLAS", "a MB"):
        made.add_column(heading, justify="right", no_wrap=True)
    for one in libraries:
        unknown = "not built" if one.missing else "-"
        made.add_row(
            one.name,
            _number(one.kernels),
            _number(one.code_bytes, unknown),
            _number(one.bytes_per_kernel),
            _number(one.library_bytes),
            "-" if one.vs_cublas is None else f"{one.vs_cublas:.3f}",
            "-" if one.vs_cublas_per_mb is None else f"{one.vs_cublas_per_mb:.3f}",
        )
    return made


def kernel_table(libraries: Sequence[Library]) -> Table:
    """One compiled kernel a row."""
    made = Table("library", Column("kernel", overflow="fold"), "target")
    for heading in ("GPU code bytes", "shared object", "registers", "stack bytes (spills)", "shared memory"):
        made.add_column(heading, justify="right")
    for library in libraries:
        for one in library.weights:
            taken = (one.usage.registers, one.usage.stack_bytes) if one.usage else (None, None)
            made.add_row(
                library.name,
                one.name,
                one.target,
                *map(_number, (one.code_bytes, one.library_bytes, *taken, one.shared_bytes)),
            )
    return made


def curve_table(points: Sequence[Point]) -> Table:
    """The data-parallel ensemble, a kernel more a row."""
    made = Table(Column("kernels", justify="right"), Column("added", overflow="fold"))
    for heading in ("GPU code bytes", "vs cuBLAS", "vs cuBLAS a MB"):
        made.add_column(heading, justify="right")
    for point in points:
        ratio = point.vs_cublas
        each = "-" if ratio is None else f"{ratio / point.code_bytes * library_size.MEGABYTE:.3f}"
        made.add_row(str(point.kernels), point.kernel, f"{point.code_bytes:,}", "-" if ratio is None else f"{ratio:.3f}", each)
    return made


def _library(name: Name, request: Request, build: bool) -> Library:
    if name == "manifest":
        return library_size.counted(request)
    if name in ("cublas", "cublaslt"):
        return library_size.bought(name, lambda text: Console(stderr=True, highlight=False).print(text, soft_wrap=True))
    return library_size.weigh(name, request, build=build)


def _known(text: str) -> Name:
    for name in library_size.MEANINGS:
        if name == text:
            return name
    raise typer.BadParameter(f"library {text!r} is not known; there are {', '.join(library_size.MEANINGS)}")


def _record(request: Request, found: Sequence[Library], points: Sequence[Point], performance: Path | None) -> dict[str, Any]:
    return {
        "provenance": {**provenance("cutlass-sk size"), "performance": None if performance is None else str(performance)},
        "request": vars(request),
        "missing": sum(library.missing for library in found),
        "libraries": {library.name: library.to_json() for library in found},
        "curve": [vars(point) for point in points],
    }


def _number(value: float | None, unknown: str = "-") -> str:
    return unknown if value is None else f"{value:,.0f}"
