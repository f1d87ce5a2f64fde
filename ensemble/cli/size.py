"""``cutlass-sk size``: bytes against kernels, and performance for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

from cutlass_sk.cli.options import JsonOption, Layouts, written_path
from cutlass_sk.ensemble import library_size, size_records
from cutlass_sk.ensemble.bench import PAIRS
from cutlass_sk.ensemble.cli.bench import pairs
from cutlass_sk.ensemble.library_size import Library, Name, Point, Request
from cutlass_sk.provenance import provenance, save

CAPTION = (
    "*: as recorded, not weighed here. GPU code, in bytes: for compute capability 9.0, blackwell's for 10.0, cuBLAS's unpacked. "
    "vs cuBLAS: geometric mean of its time over this library's (--performance); a MB: the same for each 10^6 bytes of GPU code"
)


def size(
    dtype: Annotated[str, typer.Option("--dtype", help=f"Commas between several: {', '.join(PAIRS)}.")] = "float16",
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
    requests = [Request(*PAIRS[name], layout or ("tt" if name == "float64" else "tn"), kernels) for name in pairs(dtype)]
    names = list(dict.fromkeys(map(_known, libraries or library_size.MEANINGS)))
    times = {} if performance is None else {one: size_records.read_times(performance, one.record_key) for one in requests}
    candidates = {} if curve is None else size_records.read_candidates(curve)
    points = {request: library_size.curve(candidates, request) for request in requests}
    found: dict[Request, list[Library]] = {}
    for request in requests:
        ensemble = library_size.grown(points[request], curve, library_size.recorded_layouts(candidates, request))
        weighed = [ensemble if name == "ensemble" else _library(name, request, build) for name in names]
        weighed = [library_size.with_recorded_bytes(library, candidates, request) for library in weighed]
        if request in times:
            weighed = [library_size.with_performance(library, times[request], request) for library in weighed]
        found[request] = weighed
    record = _record(found, points, performance, curve)
    if output is not None:
        save(output, json.dumps(record, indent=1) + "\n")
    if as_json:
        print(json.dumps(record, indent=1))
        return
    for request in requests:
        _show(Console(highlight=False), request, found[request], points[request], details)


def _show(console: Console, request: Request, found: Sequence[Library], points: Sequence[Point], details: bool) -> None:
    console.print(table(request, found))
    for library in found:
        code = f"; {library.code} kernels" if library.code else ""
        console.print(f"{library.name}: {library.meaning}{code}{'; ' if library.note else ''}{library.note}", soft_wrap=True)
    if missing := sum(library.missing for library in found):
        console.print(
            f"{missing} kernels are not built here: a library without all of its own has no total, or one that was recorded (*).",
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
        recorded = one.code_bytes is not None and (one.missing or one.name == "ensemble")
        made.add_row(
            f"{one.name}{'*' if recorded else ''}",
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
    if name == "prebuilt":
        return library_size.shipped(request)
    if name in ("cublas", "cublaslt"):
        return library_size.bought(name, lambda text: Console(stderr=True, highlight=False).print(text, soft_wrap=True))
    return library_size.weigh(name, request, build=build)


def _known(text: str) -> Name:
    for name in library_size.MEANINGS:
        if name == text:
            return name
    raise typer.BadParameter(f"library {text!r} is not known; there are {', '.join(library_size.MEANINGS)}")


def _record(
    found: Mapping[Request, Sequence[Library]],
    points: Mapping[Request, Sequence[Point]],
    performance: Path | None,
    curve: Path | None,
) -> dict[str, Any]:
    """By pair of dtypes: the request, kernels that are not built, libraries by name, and the curve; with the provenance."""
    used = {name: None if path is None else str(path) for name, path in (("performance", performance), ("curve", curve))}
    record: dict[str, Any] = {"provenance": {**provenance("cutlass-sk size"), **used}}
    for request, libraries in found.items():
        record[request.record_key] = {
            "request": vars(request),
            "missing": sum(library.missing for library in libraries),
            "libraries": {library.name: library.to_json() for library in libraries},
            "curve": [vars(point) for point in points[request]],
        }
    return record


def _number(value: float | None, unknown: str = "-") -> str:
    return unknown if value is None else f"{value:,.0f}"
