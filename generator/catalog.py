"""The kernels that exist: which tiles, for which dtypes, in which generation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from .spec import Generation, KernelSpec, Layout, Schedule

GENERATIONS: tuple[Generation, ...] = ("sm90a", "sm80")
"""Whose kernels are planned for and run, the newest first."""
COMPILED_ONLY: tuple[Generation, ...] = ("sm100a",)
"""Whose kernels are compiled, listed and weighed; nobody has run them, and no plan uses them."""
EVERY_GENERATION = (*GENERATIONS, *COMPILED_ONLY)
LAYOUTS: tuple[tuple[Layout, Layout], ...] = (("t", "t"), ("t", "n"), ("n", "t"), ("n", "n"))
DTYPES: tuple[tuple[str, str], ...] = (
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
    ("float64", "float64"),
)
"""(element type of a and b, element type of c) of every kernel."""

SM90_KERNELS: tuple[tuple[tuple[int, int, int], tuple[int, int], Schedule, bool], ...] = (
    ((64, 32, 256), (4, 1), "pingpong", False),
    ((128, 64, 192), (2, 1), "pingpong", True),
    ((64, 32, 192), (1, 1), "pingpong", False),
    ((128, 128, 256), (2, 1), "cooperative", False),
    ((64, 32, 256), (4, 1), "pingpong", True),
    ((64, 32, 256), (2, 1), "pingpong", False),
    ((128, 128, 256), (2, 1), "cooperative", True),
    ((256, 64, 128), (1, 2), "cooperative", True),
)
"""(tile_m, narrowest, widest), cluster, schedule and whether swapped, of the 16-bit kernels on Hopper, tile_k 64: each takes every
tile_n from narrowest to widest in steps of 32. The first is the best single kernel, and each further one adds most to those before
it (results/h200/kernel_set_widths.json)."""

FP64_KERNELS: tuple[tuple[tuple[int, int, int], tuple[int, int], Schedule, int], ...] = (
    ((64, 64, 16), (1, 1), "pingpong", 12),
    ((128, 128, 16), (2, 1), "cooperative", 6),
    ((32, 32, 16), (1, 1), "pingpong", 16),
    ((128, 64, 16), (1, 1), "pingpong", 8),
    ((32, 64, 16), (1, 1), "pingpong", 12),
    ((64, 128, 16), (1, 1), "pingpong", 8),
)
"""Tile, cluster, schedule and stages of the fp64 kernels on Hopper that load by TMA."""

SM100_KERNELS: tuple[tuple[tuple[int, int, int], tuple[int, int]], ...] = (((256, 128, 64), (2, 1)),)
"""Tile and cluster of the float16 kernels for compute capability 10.0."""


def families(dtype: str, out_dtype: str, generation: Generation) -> tuple[KernelSpec, ...]:
    """The binaries of one dtype and generation, given for row-major operands; the first is the default. Empty if there is none."""
    if (dtype, out_dtype) not in DTYPES:
        return ()
    if generation == "sm100a":
        known = SM100_KERNELS if dtype == out_dtype == "float16" else ()
        return tuple(
            KernelSpec("sm100a", "3x", dtype, out_dtype, tile, cluster, instruction=(*tile[:2], 16)) for tile, cluster in known
        )
    if dtype == "float64":
        return _fp64(generation)
    if generation == "sm90a":
        return tuple(
            KernelSpec(
                "sm90a",
                "3x",
                dtype,
                out_dtype,
                (tile_m, widest, 64),
                cluster,
                schedule=schedule,
                swapped=swapped,
                promotable=out_dtype == "float32",
                narrowest=narrowest,
                widest=widest,
            )
            for (tile_m, narrowest, widest), cluster, schedule, swapped in SM90_KERNELS
        )
    # The kernel of the Stream-K paper: 128x128x32, four warps of 64x64.
    return (KernelSpec("sm80", "2x", dtype, out_dtype, (128, 128, 32), instruction=(16, 8, 16), warps=(2, 2), stages=4),)


def _fp64(generation: Generation) -> tuple[KernelSpec, ...]:
    if generation == "sm80":  # the paper's: 64x64x16, four warps of 32x32
        return (KernelSpec("sm80", "2x", "float64", "float64", (64, 64, 16), instruction=(8, 8, 4), warps=(2, 2), stages=4),)
    # 16x8x4 of the three Hopper instructions: see results/NOTES.md. The last kernel is for operands that TMA cannot load.
    by_tma = tuple(
        KernelSpec(
            "sm90a",
            "3x",
            "float64",
            "float64",
            tile,
            cluster,
            instruction=(16, 8, 4),
            stages=stages,
            schedule=schedule,
        )
        for tile, cluster, schedule, stages in FP64_KERNELS
    )
    by_vector = KernelSpec("sm90a", "2x", "float64", "float64", (64, 64, 16), instruction=(16, 8, 4), warps=(2, 2), stages=4)
    return (*by_tma, by_vector)


def kernels(generations: Iterable[Generation] = GENERATIONS) -> Iterator[KernelSpec]:
    """Every binary of these generations, in every layout, in a fixed order."""
    for generation, (dtype, out_dtype) in product(generations, DTYPES):
        for family in families(dtype, out_dtype, generation):
            for layout_a, layout_b in LAYOUTS:
                yield family.with_layouts(layout_a, layout_b)


def find(name: str) -> KernelSpec:
    """The kernel called ``name``, a binary or one of its widths; KeyError, with the nearest names, if there is none."""
    from difflib import get_close_matches

    by_name = {spec.name: spec for binary in kernels(EVERY_GENERATION) for spec in binary.variants}
    if name not in by_name:
        near = get_close_matches(name, by_name, n=3)
        rest = f"near it: {', '.join(near)}" if near else "python -m cutlass_sk.generator list prints the names"
        raise KeyError(f"no kernel is called {name!r}; {rest}")
    return by_name[name]
