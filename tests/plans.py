"""Plans for tests, built without the planner: every count follows from the few that a test names."""

from __future__ import annotations

from hypothesis import strategies as st

from cutlass_sk.generator.spec import KernelSpec
from cutlass_sk.plan import RASTER_ORDERS, Decomposition, Fixup, Plan, RasterOrder
from cutlass_sk.schedule import count_peers

HOPPER = KernelSpec("sm90a", "3x", "float16", "float32", (4, 4, 2))
CLUSTERED = KernelSpec("sm90a", "3x", "float16", "float32", (64, 8, 2), schedule="pingpong")
"""The least tile that may be split in a cluster."""
SWAPPED = KernelSpec("sm90a", "3x", "float16", "float32", (4, 8, 2), (2, 1), swapped=True)
AMPERE = KernelSpec("sm80", "2x", "float16", "float32", (32, 4, 2), warps=(2, 1))
"""Two fragments of 8 rows in each of two warps."""


def cluster_spec(cluster_m: int, cluster_n: int) -> KernelSpec:
    return KernelSpec("sm90a", "3x", "float16", "float32", (4, 4, 2), cluster=(cluster_m, cluster_n))


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def make(
    m: int,
    n: int,
    k: int,
    spec: KernelSpec = HOPPER,
    *,
    decomposition: Decomposition = "data_parallel",
    workers: int = 4,
    sk_tiles: int | None = None,
    sk_units: int | None = None,
    splits: int = 1,
    separate_reduction: bool = False,
    in_clusters: bool = False,
    raster_order: RasterOrder = "along_m",
    raster_swizzle: int = 1,
) -> Plan:
    """``sk_tiles`` counts tiles (all, unless said otherwise); ``workers`` counts clusters and matters to 3.x kernels only."""
    tile_m, tile_n, tile_k = spec.tile
    rows, columns = (n, m) if spec.swapped else (m, n)
    work_tiles_m = ceil_div(rows, tile_m * spec.cluster[0])
    work_tiles_n = ceil_div(columns, tile_n * spec.cluster[1])
    tiles = work_tiles_m * work_tiles_n * spec.cluster_size
    if decomposition == "data_parallel":
        sk_tiles, sk_units = 0, 0
    elif sk_tiles is None:
        sk_tiles = tiles
    if decomposition == "split_k":
        sk_units = sk_tiles // spec.cluster_size * splits
    elif sk_units is None:
        sk_units = workers
    dp_tiles = tiles - sk_tiles
    reduction_ctas = sk_tiles * spec.accumulator_fragments if separate_reduction else 0
    grid = workers * spec.cluster_size if spec.persistent else sk_units + dp_tiles + reduction_ctas
    iters_per_tile = ceil_div(k, tile_k)
    fixup: Fixup = "cluster" if in_clusters else "tree" if spec.persistent else "separate" if separate_reduction else "serial"
    slots = 0 if in_clusters else sk_units * spec.cluster_size
    return Plan(
        m=m,
        n=n,
        k=k,
        kernel=spec,
        device="test",
        decomposition=decomposition,
        requested_grid=grid,
        grid=grid,
        tiles_m=work_tiles_m * spec.cluster[0],
        tiles_n=work_tiles_n * spec.cluster[1],
        iters_per_tile=iters_per_tile,
        dp_tiles=dp_tiles,
        sk_tiles=sk_tiles,
        sk_units=sk_units,
        splits=splits,
        peers=count_peers(sk_tiles // spec.cluster_size, iters_per_tile, sk_units, splits),
        fixup=fixup if sk_units else "none",
        waves=tiles / grid,
        efficiency=1.0,
        data_parallel_efficiency=tiles / (ceil_div(tiles, grid) * grid),
        partials_bytes=slots * spec.partial_bytes * (2 if separate_reduction else 1),
        barrier_bytes=4 * slots,
        reduction_mode="deterministic",
        reduction_ctas=reduction_ctas,
        raster_order=raster_order,
        raster_swizzle=raster_swizzle,
        promotion=0,
        predicted_time_us=0.0,
    )


@st.composite
def any_plan(draw: st.DrawFn, max_tiles: int = 7, max_iters: int = 9) -> Plan:
    """Any decomposition, cluster, raster and grid that the planner could choose, and the unwise ones that it would not.

    Separate reductions come with at least one unit a tile, as in CUTLASS: a unit has only two slots then.
    """
    spec = draw(st.sampled_from([HOPPER, SWAPPED, cluster_spec(2, 1), cluster_spec(1, 2), cluster_spec(2, 2), AMPERE]))
    size_m, size_n = spec.tile[0] * spec.cluster[0], spec.tile[1] * spec.cluster[1]
    if spec.swapped:
        size_m, size_n = size_n, size_m
    m, n = draw(st.integers(1, max_tiles * size_m)), draw(st.integers(1, max_tiles * size_n))
    k = draw(st.integers(1, max_iters * spec.tile[2]))
    work_tiles, iters = ceil_div(m, size_m) * ceil_div(n, size_n), ceil_div(k, spec.tile[2])
    decomposition: Decomposition = draw(st.sampled_from(["data_parallel", "split_k", "stream_k"]))
    shared = draw(st.one_of(st.just(work_tiles), st.integers(1, work_tiles)))
    splits = draw(st.integers(2, iters + 2)) if decomposition == "split_k" else 1
    units = draw(st.one_of(st.integers(1, 2 * shared + 1), st.integers(1, shared * iters + 2)))
    enough_units = decomposition == "split_k" or (decomposition == "stream_k" and units >= shared)
    return make(
        m,
        n,
        k,
        spec,
        decomposition=decomposition,
        workers=draw(st.one_of(st.integers(1, 8), st.just(units), st.integers(1, units + work_tiles + 2))),
        sk_tiles=shared * spec.cluster_size,
        sk_units=units,
        splits=splits,
        separate_reduction=not spec.persistent and enough_units and draw(st.booleans()),
        in_clusters=spec is HOPPER and decomposition == "split_k" and draw(st.booleans()),
        raster_order=draw(st.sampled_from(RASTER_ORDERS)),
        raster_swizzle=draw(st.integers(1, max_tiles + 1)),
    )
