"""Data-parallel ensembles: what a library without Stream-K would ship, for an oracle that always picks the fastest of its kernels.

Their code is CUTLASS's own data-parallel kernels (``emit_data_parallel``) where CUTLASS has them; fp64 by TMA is this project's, so
that there the Stream-K kernels of the catalogue stand for both.
"""

from __future__ import annotations

from functools import cache

from cutlass_sk.errors import DtypeError
from cutlass_sk.generator import families
from cutlass_sk.generator.catalog import DTYPES
from cutlass_sk.generator.spec import KernelSpec, Schedule

PAPER_16: tuple[tuple[tuple[int, int, int], tuple[int, int], int], ...] = (
    ((64, 64, 64), (2, 2), 5),
    ((64, 128, 32), (2, 2), 6),
    ((128, 128, 32), (2, 2), 4),
    ((128, 256, 32), (2, 4), 3),
)
PAPER_64: tuple[tuple[tuple[int, int, int], tuple[int, int], int], ...] = (
    ((32, 32, 16), (2, 2), 5),
    ((32, 64, 16), (2, 2), 4),
    ((64, 64, 16), (2, 2), 4),
    ((64, 128, 16), (2, 2), 3),
    ((128, 128, 16), (4, 2), 3),
)
"""Tile, warps and stages. The tiles are the Stream-K paper's (arXiv 2301.03598, section 6). Warps and stages are those that
CUTLASS's own generator gives these tiles (GenerateSM80_TensorOp_16816 and _884; 128x128x32 comes with 3, 4 and 5 stages)."""

HOPPER_16: tuple[tuple[tuple[int, int], tuple[int, int], Schedule], ...] = (
    ((64, 32), (1, 1), "pingpong"),
    ((64, 64), (1, 1), "pingpong"),
    ((64, 64), (1, 2), "pingpong"),
    ((64, 96), (2, 1), "pingpong"),
    ((64, 128), (1, 1), "pingpong"),
    ((64, 128), (2, 1), "pingpong"),
    ((64, 192), (1, 1), "pingpong"),
    ((128, 128), (2, 1), "pingpong"),
    ((128, 160), (2, 1), "pingpong"),
    ((128, 128), (1, 1), "cooperative"),
    ((128, 192), (2, 1), "cooperative"),
    ((128, 256), (2, 1), "cooperative"),
    ((256, 128), (1, 2), "cooperative"),
    ((256, 128), (2, 1), "cooperative"),
)
"""(tile_m, tile_n), cluster and schedule, tile_k 64. Small tiles for problems of few of them, where a data-parallel kernel has no
other way to fill a GPU; middling ping-pong ones, which lead the greedy data-parallel curve of results/h200/kernel_set.json; large
cooperative ones for large problems; clusters both ways, since either operand may be the one to share."""


@cache
def oracle_paper(dtype: str, out_dtype: str) -> tuple[KernelSpec, ...]:
    """The paper's ensemble, in CUTLASS 2.x's kernels: four tiles for 16-bit types, five for float64."""
    _check(dtype, out_dtype)
    tiles, instruction = (PAPER_64, (8, 8, 4)) if dtype == "float64" else (PAPER_16, (16, 8, 16))
    return tuple(
        KernelSpec("sm80", "2x", dtype, out_dtype, tile, instruction=instruction, warps=warps, stages=stages)
        for tile, warps, stages in tiles
    )


@cache
def oracle_hopper(dtype: str, out_dtype: str) -> tuple[KernelSpec, ...]:
    """A strong ensemble for Hopper: ``HOPPER_16``; for float64 the kernels of the catalogue that load by TMA."""
    _check(dtype, out_dtype)
    if dtype == "float64":
        return tuple(spec for spec in families(dtype, out_dtype, "sm90a") if spec.api == "3x")
    return tuple(
        KernelSpec("sm90a", "3x", dtype, out_dtype, (*tile, 64), cluster, schedule=schedule)
        for tile, cluster, schedule in HOPPER_16
    )


def _check(dtype: str, out_dtype: str) -> None:
    if (dtype, out_dtype) not in DTYPES:
        raise DtypeError(f"no oracle is {dtype} -> {out_dtype}; there are {', '.join(' -> '.join(pair) for pair in DTYPES)}")
