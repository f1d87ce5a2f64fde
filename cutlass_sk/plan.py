"""What is decided for one problem: one frozen, printable plan."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from .errors import PlanError
from .generator.spec import KernelSpec

Decomposition = Literal["data_parallel", "split_k", "stream_k"]
ReductionMode = Literal["deterministic", "nondeterministic"]
RasterOrder = Literal["along_m", "along_n"]
Fixup = Literal["none", "tree", "cluster", "serial", "separate"]

DECOMPOSITIONS: tuple[Decomposition, ...] = ("data_parallel", "split_k", "stream_k")
CLUSTER_SPLITS = (2, 3, 4, 8)
"""In how many parts a cluster may split a tile."""
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
    fixup                 how their sums meet. ``tree``: in fours, up to the unit that finishes the tile (3.x). ``cluster``: the
                          parts of a tile are one cluster, and each adds up and stores some of its columns (3.x). ``serial``: the
                          finisher adds the others one by one; ``separate``: CTAs of their own do (2.x)
    waves                 tiles / grid slots
    efficiency            useful MAC iterations / (iterations of the busiest slot x slots), of this plan
    data_parallel_efficiency   the same, were the plan plain data-parallel
    partials_bytes, barrier_bytes   device memory for partial sums and flags; their sum is ``workspace_bytes``
    reduction_ctas        CTAs of a separate reduction (2.x kernels with many peers; else 0)
    promotion             elements of k that are added up in the tensor core before float32 additions take over; 0: all of a share
    kernel                the binary, at the tile width of this plan
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
    fixup: Fixup
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

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Plan:
        """A plan of all its fields, at once: a frozen dataclass would assign them one by one, in ten microseconds."""
        plan = object.__new__(cls)
        object.__setattr__(plan, "__dict__", fields)
        return plan

    def __str__(self) -> str:
        """Three lines for people; ``repr`` has every field."""
        shared = (
            f"{self.sk_tiles} shared in {self.sk_units} parts, up to {self.peers} a tile ({self.fixup}); " if self.sk_units else ""
        )
        return (
            f"{self.m} x {self.n} x {self.k} on {self.device}: {self.kernel}, {self.decomposition}, "
            f"{self.predicted_time_us:.1f} us expected\n"
            f"  {self.tiles_m} x {self.tiles_n} tiles{' of c^T' if self.swapped else ''} of {self.iters_per_tile} k-tiles: "
            f"{shared}{self.dp_tiles} whole\n"
            f"  grid {self.grid} CTAs, {self.waves:.2f} waves, SMs {self.efficiency:.1%} busy ({self.data_parallel_efficiency:.1%} "
            f"data-parallel), workspace {self.workspace_bytes:,} bytes"
        )

    def check(self) -> None:
        """Raises PlanError unless the counts make a schedule that covers the problem once. Kernels check the same."""
        counts = {field.name: getattr(self, field.name) for field in fields(self) if field.type == "int"}
        for name, value in counts.items():
            if type(value) is not int or not 0 <= value < 2**63:
                raise PlanError(f"the plan's {name}={value!r} is no count; take plans from Gemm.plan")
        spec, cluster = self.kernel, self.kernel.cluster_size
        span_m, span_n = spec.tile[0] * spec.cluster[0], spec.tile[1] * spec.cluster[1]
        rows, columns = (self.n, self.m) if self.swapped else (self.m, self.n)
        shared = self.sk_tiles // cluster
        line = self.iters_per_tile if self.splits > 1 else shared * self.iters_per_tile
        conditions = {
            "tiles_m": self.tiles_m == -(-rows // span_m) * spec.cluster[0],
            "tiles_n": self.tiles_n == -(-columns // span_n) * spec.cluster[1],
            "iters_per_tile": self.iters_per_tile == -(-self.k // spec.tile[2]),
            "dp_tiles and sk_tiles": self.dp_tiles + self.sk_tiles == self.tiles and self.sk_tiles % cluster == 0,
            "splits": self.splits == 1 or (1 < self.splits <= self.iters_per_tile and self.sk_units == shared * self.splits),
            "sk_units": (self.sk_units == 0) == (shared == 0) and (self.splits > 1 or self.sk_units <= line),
            "fixup": self.fixup in self._fixups(),
            "raster_order": self.raster_order in RASTER_ORDERS,
            "raster_swizzle": self.raster_swizzle >= 1,
            "reduction_mode": self.reduction_mode in REDUCTION_MODES,
            "promotion": self.promotion % spec.tile[2] == 0 and (spec.takes_promotion or self.promotion == 0),
            "reduction_ctas": self.reduction_ctas in (0, self.sk_tiles * spec.accumulator_fragments)
            and (self.reduction_ctas == 0 or self.sk_units > 2 * self.sk_tiles),
            "grid": self.grid % cluster == 0 and self.grid >= max(self.sk_units, 1) * cluster
            if spec.persistent
            else self.grid == self.sk_units + self.dp_tiles + self.reduction_ctas,
        }
        wrong = [name for name, holds in conditions.items() if not holds]
        if wrong:
            raise PlanError(f"the plan does not hold together in {', '.join(wrong)}: {self!r}; take plans from Gemm.plan")

    def _fixups(self) -> tuple[Fixup, ...]:
        if self.sk_units == 0:
            return ("none",)
        if self.kernel.api == "2x":
            return ("separate",) if self.reduction_ctas else ("serial",)
        whole = self.dp_tiles == 0 and self.grid == self.sk_units and self.splits in CLUSTER_SPLITS and self.kernel.cluster_fixup
        return ("tree", "cluster") if whole else ("tree",)

    @property
    def swapped(self) -> bool:
        """Whether the kernel computes c^T = b^T a^T; tiles, rasters and schedule are in its frame, n x m."""
        return self.kernel.swapped

    @property
    def tiles(self) -> int:
        return self.tiles_m * self.tiles_n

    @property
    def workspace_bytes(self) -> int:
        return self.partials_bytes + self.barrier_bytes
