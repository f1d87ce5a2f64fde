"""``cutlass-sk build``: kernels compiled ahead of their first use. Needs nvcc, no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from ..errors import DtypeError
from ..generator.catalog import EVERY_GENERATION, kernels
from ..generator.spec import ARCHITECTURES, Generation, KernelSpec, dtype_named
from ..jit.build import build as build_kernels
from ..jit.cache import Entry
from ..prebuilt import Library
from .options import DTYPE_NAMES, GenerationOption, Layouts, OutDtypeOption, extents
from .size import device_code_bytes

SECONDS_A_KERNEL = 11
"""On one core, see results/build.json."""


def build(
    dtype: Annotated[
        str, typer.Option("--dtype", help="Element types of a and b: float16, bfloat16, float64; commas between several.")
    ] = "float16",
    out_dtype: OutDtypeOption = None,
    generation: GenerationOption = None,
    arch: Annotated[
        str | None,
        typer.Option("--arch", help="Compile target: 90a, 80, 86, 89, 90 or 100a.  \\[default: first of the generation]"),
    ] = None,
    tile: Annotated[
        str | None, typer.Option("--tile", help="Only kernels that take this tile, such as 128x128x64.  \\[default: all]")
    ] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="Only this cluster, such as 2x1.  \\[default: all]")] = None,
    layout: Annotated[
        Layouts | None, typer.Option("--layout", help="Only these layouts of a and b.  \\[default: all four]")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Write libraries into this folder instead, for CUTLASS_SK_PREBUILT_DIR or a wheel.",
        ),
    ] = None,
) -> None:
    """Compile kernels into the cache, or into libraries. Needs nvcc, no GPU; about 11 s a kernel and core."""
    arch = None if arch is None else arch.removeprefix("sm_")
    chosen_tile = None if tile is None else extents(tile, 3)
    chosen_cluster = None if cluster is None else extents(cluster, 2)
    chosen = []
    for pair in _pairs(dtype, out_dtype):
        specs = [
            spec
            for spec in kernels(EVERY_GENERATION)
            if spec.generation == (generation or _generation_for(arch))
            and (spec.dtype, spec.out_dtype) == pair
            and (chosen_tile is None or chosen_tile in {used.tile for used in spec.variants})
            and chosen_cluster in (None, spec.cluster)
            and layout in (None, spec.layout_a + spec.layout_b)
        ]
        if not specs:
            tiles = {used.tile for spec in kernels() if (spec.dtype, spec.out_dtype) == pair for used in spec.variants}
            near = ["x".join(map(str, tile)) for tile in sorted(tiles)]
            raise DtypeError(
                f"no kernel fits these options; tiles for {pair[0]} -> {pair[1]}: {', '.join(near) or 'none'}; "
                f"targets: {', '.join(sum(ARCHITECTURES.values(), ()))}. `python -m cutlass_sk.generator list` lists all"
            )
        chosen.append(specs)
    total = sum(map(len, chosen))
    count = f"{total} kernel{'' if total == 1 else 's'}"
    Console(stderr=True).print(f"{count}, about {SECONDS_A_KERNEL} s each on one core where the cache lacks them", highlight=False)
    if output is None:
        Console().print(build_table(build_kernels([spec for specs in chosen for spec in specs], arch)))
    else:
        Console().print(library_table(_libraries(chosen, arch, output), output))


def build_table(entries: list[Entry]) -> Table:
    """One compiled kernel a row."""
    table = Table(Column("kernel", overflow="fold"), "target")
    for heading in ("compiled in s", "bytes", "GPU code bytes"):
        table.add_column(heading, justify="right")
    for entry in entries:
        size = f"{device_code_bytes(entry.library):,}"
        table.add_row(entry.name, f"sm_{entry.architecture}", f"{entry.seconds:.1f}", f"{entry.library_bytes:,}", size)
    return table


def library_table(libraries: list[Library], folder: Path) -> Table:
    """One library a row."""
    table = Table(Column("library", overflow="fold"), "target")
    for heading in ("kernels", "bytes", "GPU code bytes"):
        table.add_column(heading, justify="right")
    for one in libraries:
        size = f"{device_code_bytes(folder / one.file):,}"
        table.add_row(one.file, f"sm_{one.architecture}", str(len(one.kernels)), f"{one.bytes:,}", size)
    return table


def _libraries(chosen: list[list[KernelSpec]], arch: str | None, folder: Path) -> list[Library]:
    from ..prebuilt.build import build_library

    return [build_library(specs, arch or ARCHITECTURES[specs[0].generation][0], folder) for specs in chosen]


def _pairs(text: str, out_dtype: str | None) -> list[tuple[str, str]]:
    """Pairs of dtypes of a, b and of c."""
    names = list(dict.fromkeys(map(dtype_named, text.split(","))))
    if unknown := [name for name in names if name not in DTYPE_NAMES]:
        raise typer.BadParameter(f"{unknown[0]!r} is no dtype; there are {', '.join(DTYPE_NAMES)}, with commas between several")
    return [(name, out_dtype or name) for name in names]


def _generation_for(arch: str | None) -> Generation:
    return next((name for name in EVERY_GENERATION if arch in ARCHITECTURES[name]), "sm90a")
