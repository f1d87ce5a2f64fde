"""``cutlass-sk build``: kernels compiled ahead of their first use. Needs nvcc, no GPU."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from ..errors import DtypeError
from ..generator.catalog import kernels
from ..generator.spec import ARCHITECTURES, Generation
from ..jit.build import build as build_kernels
from ..jit.cache import Entry
from .options import DtypeOption, GenerationOption, Layouts, OutDtypeOption, extents
from .size import device_code_bytes

SECONDS_A_KERNEL = 40


def build(
    dtype: DtypeOption = "float16",
    out_dtype: OutDtypeOption = None,
    generation: GenerationOption = None,
    arch: Annotated[
        str | None, typer.Option("--arch", help="Compile target: 90a, 80, 86, 89 or 90.  \\[default: first of the generation]")
    ] = None,
    tile: Annotated[
        str | None, typer.Option("--tile", help="Only kernels that take this tile, such as 128x128x64.  \\[default: all]")
    ] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="Only this cluster, such as 2x1.  \\[default: all]")] = None,
    layout: Annotated[
        Layouts | None, typer.Option("--layout", help="Only these layouts of a and b.  \\[default: all four]")
    ] = None,
) -> None:
    """Compile kernels into the cache. Needs nvcc, no GPU; about 40 s a kernel and core."""
    arch = None if arch is None else arch.removeprefix("sm_")
    chosen_tile = None if tile is None else extents(tile, 3)
    chosen_cluster = None if cluster is None else extents(cluster, 2)
    specs = [
        spec
        for spec in kernels()
        if spec.generation == (generation or _generation_for(arch))
        and (spec.dtype, spec.out_dtype) == (dtype, out_dtype or dtype)
        and (chosen_tile is None or chosen_tile in {used.tile for used in spec.variants})
        and chosen_cluster in (None, spec.cluster)
        and layout in (None, spec.layout_a + spec.layout_b)
    ]
    if not specs:
        tiles = {used.tile for s in kernels() if (s.dtype, s.out_dtype) == (dtype, out_dtype or dtype) for used in s.variants}
        near = ["x".join(map(str, tile)) for tile in sorted(tiles)]
        raise DtypeError(
            f"no kernel fits these options; tiles for {dtype} -> {out_dtype or dtype}: {', '.join(near) or 'none'}; "
            f"targets: {', '.join(sum(ARCHITECTURES.values(), ()))}. `python -m cutlass_sk.generator list` lists all"
        )
    count = f"{len(specs)} kernel{'' if len(specs) == 1 else 's'}"
    Console(stderr=True).print(f"{count}, about {SECONDS_A_KERNEL} s each on one core where the cache lacks them", highlight=False)
    Console().print(build_table(build_kernels(specs, arch)))


def build_table(entries: list[Entry]) -> Table:
    """One compiled kernel a row."""
    table = Table(Column("kernel", overflow="fold"), "target")
    for heading in ("compiled in s", "bytes", "GPU code bytes"):
        table.add_column(heading, justify="right")
    for entry in entries:
        size = f"{device_code_bytes(entry.library):,}"
        table.add_row(entry.name, f"sm_{entry.architecture}", f"{entry.seconds:.1f}", f"{entry.library_bytes:,}", size)
    return table


def _generation_for(arch: str | None) -> Generation:
    return "sm80" if arch in ARCHITECTURES["sm80"] else "sm90a"
