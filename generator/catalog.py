"""The kernels that exist: which tiles, for which dtypes, in which generation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from .spec import Generation, KernelSpec, Layout, Schedule

GENERATIONS: tuple[Generation, ...] = ("sm90a", "sm80")
LAYOUTS: tuple[tuple[Layout, Layout], ...] = (("t", "t"), ("t", "n"), ("n", "t"), ("n", "n"))
DTYPES: tuple[tuple[str, str], ...] = (
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
    ("float64", "float64"),
)
"""(element type of a and b, element type of c) of every kernel."""

SM90_TILES: tuple[tuple[tuple[int, int, int], tuple[int, int]], ...] = (
    ((128, 128, 64), (2, 1)),
    ((128, 256, 64), (2, 1)),
    ((128, 128, 64), (1, 1)),
    ((128, 256, 64), (1, 1)),
)


def fits_twice(tile: tuple[int, int, int]) -> bool:
    """Whether two consumer warpgroups have registers for the tile's sums and, beside them, for those still in the tensor core."""
    return tile[0] * tile[1] <= 128 * 128


def families(dtype: str, out_dtype: str, generation: Generation) -> tuple[KernelSpec, ...]:
    """The kernels of one dtype and generation, given for row-major operands; the first is the default. Empty if there is none."""
    if (dtype, out_dtype) not in DTYPES:
        return ()
    if dtype == "float64":
        return _fp64(generation)
    if generation == "sm90a":
        return tuple(
            KernelSpec("sm90a", "3x", dtype, out_dtype, tile, cluster, promotable=out_dtype == "float32" and fits_twice(tile))
            for tile, cluster in SM90_TILES
        )
    # The kernel of the Stream-K paper: 128x128x32, four warps of 64x64.
    return (KernelSpec("sm80", "2x", dtype, out_dtype, (128, 128, 32), instruction=(16, 8, 16), warps=(2, 2), stages=4),)


def _fp64(generation: Generation) -> tuple[KernelSpec, ...]:
    if generation == "sm80":  # the paper's: 64x64x16, four warps of 32x32
        return (KernelSpec("sm80", "2x", "float64", "float64", (64, 64, 16), instruction=(8, 8, 4), warps=(2, 2), stages=4),)
    # 16x8x4 of the three Hopper instructions: see results/NOTES.md. 16x8x8 and 16x8x16 give wrong products with these headers.
    return (KernelSpec("sm90a", "2x", "float64", "float64", (64, 64, 16), instruction=(16, 8, 4), warps=(2, 2), stages=4),)


FP64_TILES: tuple[tuple[tuple[int, int, int], tuple[int, int], Schedule, int, int], ...] = (
    ((64, 64, 16), (1, 1), "single", 6, 2),
    ((128, 128, 16), (1, 1), "cooperative", 6, 1),
    ((128, 64, 16), (1, 1), "single", 4, 2),
    ((64, 128, 16), (1, 1), "single", 4, 2),
    ((128, 128, 16), (2, 1), "cooperative", 6, 1),
    ((64, 64, 16), (2, 1), "single", 6, 2),
    ((64, 32, 16), (1, 1), "single", 8, 2),
    ((32, 64, 16), (1, 1), "single", 8, 2),
    ((32, 32, 16), (1, 1), "single", 12, 2),
    ((64, 64, 32), (1, 1), "single", 3, 2),
    ((64, 64, 16), (1, 1), "pingpong", 12, 1),
    ((128, 64, 16), (1, 1), "pingpong", 8, 1),
    ((128, 128, 32), (1, 1), "cooperative", 3, 1),
)
"""Tile, cluster, schedule, stages and CTAs an SM of what ``fp64_candidates`` gives."""


def fp64_candidates(instruction_k: int = 4) -> tuple[KernelSpec, ...]:
    """fp64 kernels of our own main loop, to choose from by measurement; they are in no family yet."""
    return tuple(
        KernelSpec(
            "sm90a",
            "3x",
            "float64",
            "float64",
            tile,
            cluster,
            instruction=(16, 8, instruction_k),
            stages=stages,
            schedule=schedule,
            ctas_per_sm=ctas_per_sm,
        )
        for tile, cluster, schedule, stages, ctas_per_sm in FP64_TILES
        if tile[2] % (2 * instruction_k) == 0
    )


def kernels() -> Iterator[KernelSpec]:
    """Every kernel, in every layout, in a fixed order."""
    for generation, (dtype, out_dtype) in product(GENERATIONS, DTYPES):
        for family in families(dtype, out_dtype, generation):
            for layout_a, layout_b in LAYOUTS:
                yield family.with_layouts(layout_a, layout_b)


def find(name: str) -> KernelSpec:
    """The kernel called ``name``; KeyError, with the nearest names, if there is none."""
    from difflib import get_close_matches

    by_name = {spec.name: spec for spec in kernels()}
    if name not in by_name:
        near = get_close_matches(name, by_name, n=3)
        raise KeyError(f"no kernel is called {name!r}" + (f"; near it: {', '.join(near)}" if near else ""))
    return by_name[name]
