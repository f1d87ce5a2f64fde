"""What is decided for one problem: one frozen, printable plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .generator.spec import KernelSpec

Decomposition = Literal["data_parallel", "split_k", "stream_k"]
ReductionMode = Literal["deterministic", "nondeterministic"]
RasterOrder = Literal["along_m", "along_n"]

DECOMPOSITIONS: tuple[Decomposition, ...] = ("data_parallel", "split_k", "stream_k")
REDUCTION_MODES: tuple[ReductionMode, ...] = ("deterministic", "nondeterministic")
RASTER_ORDERS: tuple[RasterOrder, ...] = ("along_m", "along_n")


@dataclass(frozen=True)
class Plan:
    """How one kernel computes c[m, n] = a[m, k] @ b[k, n]. The launch executes exactly this; nothing is derived again.

    Tiles are numbered in raster order and grouped into *work tiles*, the tiles of one cluster (with 1x1 clusters a work tile is a
    tile). The first ``sk_tiles`` tiles are shared out as one line of MAC-loop iterations, n_tiles x iters_per_tile long, in
    ``sk_units`` contiguous shares as equal as whole iterations allow; the other ``dp_tiles`` tiles are computed whole. A unit
    is run by one cluster. With ``splits`` > 1 the shares are aligned to tiles: each tile is cut in ``splits`` parts.

    tiles_m, tiles_n      output tiles, padded up to whole clusters
    iters_per_tile        MAC-loop iterations (k-tiles) of a tile
    requested_grid        CTAs asked for, one an SM (``sms=``); ``grid`` is what is launched
    peers                 the most units that meet in one tile
    waves                 tiles / grid slots
    efficiency            useful MAC iterations / (iterations of the busiest slot x slots), of this plan
    data_parallel_efficiency   the same, were the plan plain data-parallel
    partials_bytes, barrier_bytes   device memory for partial sums and flags; their sum is ``workspace_bytes``
    reduction_ctas        CTAs of a separate reduction (2.x kernels with many peers; else 0)
    promotion             elements of k that are added up in the tensor core before float32 additions take over; 0: all of a share
    predicted_time_us     what the model expects, in microseconds
    """

    m: int
    n: int
    k: int
    kernel: KernelSpec
    device: str
    decomposition: Decomposition
    requested_grid: int
    grid: int
    tiles_m: int
    tiles_n: int
    iters_per_tile: int
    dp_tiles: int
    sk_tiles: int
    sk_units: int
    splits: int
    peers: int
    waves: float
    efficiency: float
    data_parallel_efficiency: float
    partials_bytes: int
    barrier_bytes: int
    reduction_mode: ReductionMode
    reduction_ctas: int
    raster_order: RasterOrder
    raster_swizzle: int
    promotion: int
    predicted_time_us: float = field(compare=False)

    @property
    def tiles(self) -> int:
        return self.tiles_m * self.tiles_n

    @property
    def workspace_bytes(self) -> int:
        return self.partials_bytes + self.barrier_bytes
