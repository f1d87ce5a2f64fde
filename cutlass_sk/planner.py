"""From a problem to a plan: candidates, their predicted time, the best one. Pure: no torch, no GPU, no state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import SupportsIndex

from . import model
from .device import Device
from .errors import PlanError
from .generator.spec import KernelSpec
from .options import INT_MAX, Options
from .plan import Decomposition, Plan, RasterOrder
from .schedule import count_peers

MAX_PEERS = 1 << 20
"""The most units that may meet in a tile; far beyond what pays."""


@dataclass(frozen=True)
class Work:
    """A problem cut up for one kernel and grid. Work tiles are the tiles of one cluster; slots run one of them at a time."""

    m: int
    n: int
    k: int
    spec: KernelSpec
    device: Device
    slots: int
    requested_grid: int
    work_tiles_m: int
    work_tiles_n: int
    iters_per_tile: int

    @property
    def work_tiles(self) -> int:
        return self.work_tiles_m * self.work_tiles_n

    @property
    def max_shared(self) -> int:
        """The most work tiles whose iterations can be counted in 32 bits."""
        return min(self.work_tiles, INT_MAX // self.iters_per_tile)


@dataclass(frozen=True)
class Choice:
    """In work tiles: the first ``shared`` ones in ``units`` shares (``splits`` > 1: so many for each tile), the others whole."""

    shared: int = 0
    units: int = 0
    splits: int = 1


def cut_up(m: int, n: int, k: int, spec: KernelSpec, device: Device, sms: int | None) -> Work:
    """Cuts the problem into tiles; PlanError if it is beyond 32-bit tile arithmetic."""
    for name, size in (("m", m), ("n", n), ("k", k)):
        if not 1 <= size <= INT_MAX:
            raise PlanError(f"{name}={size!r} must be a whole number from 1 to {INT_MAX}")
    (tile_m, tile_n, tile_k), (cluster_m, cluster_n) = spec.tile, spec.cluster
    requested = sms or device.sms
    slots = max(1, requested // spec.cluster_size)
    work = Work(
        m, n, k, spec, device, slots, requested, -(-m // (tile_m * cluster_m)), -(-n // (tile_n * cluster_n)), -(-k // tile_k)
    )
    if (work.work_tiles * spec.cluster_size) + slots > INT_MAX // 2:
        raise PlanError(f"m={m}, n={n} make {work.work_tiles} tiles of {spec.name}, too many for one launch; split the problem")
    if not spec.persistent and k > INT_MAX - 2 * tile_k:  # 2.x kernels count k up to the end of the last k-tile, in 32 bits
        raise PlanError(f"k={k} is too long for {spec.name}; split the problem")
    return work


def candidates(work: Work, options: Options) -> Iterator[Choice]:
    """The decompositions worth scoring, within what is forced. Data-parallel comes first, so that it wins ties."""
    tiles, slots, iters = work.work_tiles, work.slots, work.iters_per_tile
    decomposition = options.decomposition or ("split_k" if options.splits else None)
    if decomposition in (None, "data_parallel"):
        yield Choice()
    if decomposition == "split_k" and work.max_shared < tiles:
        raise PlanError(f"split_k of {tiles} tiles x {iters} iterations is beyond 32-bit arithmetic; use data_parallel")
    if decomposition in (None, "split_k") and work.max_shared == tiles:
        for splits in [options.splits] if options.splits else split_range(tiles, iters, slots, forced=decomposition is not None):
            splits = min(splits, iters, MAX_PEERS)
            if tiles * splits > INT_MAX // 4:
                raise PlanError(f"splits={splits} of {tiles} tiles make too many parts for one launch")
            yield Choice(tiles, tiles * splits, splits) if splits > 1 else Choice()
    if decomposition in (None, "stream_k"):
        yield from stream_k(work, options)


def split_range(tiles: int, iters: int, slots: int, *, forced: bool) -> Sequence[int]:
    """Splitting factors that fill up to one wave; at least 2 where split_k was asked for."""
    most = min(iters, max(slots // tiles, 2 if forced else 1))
    return range(2, most + 1) if most >= 2 else ([1] if forced else [])


def stream_k(work: Work, options: Options) -> Iterator[Choice]:
    """Shared parts: everything, if there is less than a wave; else the last, partial wave with or without the one before it."""
    tiles, slots, iters = work.work_tiles, work.slots, work.iters_per_tile
    cluster = work.spec.cluster_size
    if options.sk_tiles is not None:
        shares = [min(-(-options.sk_tiles // cluster), tiles)]
    elif tiles <= slots:
        shares = [tiles]
    elif options.decomposition is None:
        rest = tiles % slots
        shares = [rest + slots, rest] if rest else []
    else:
        shares = [tiles % slots + slots]
    for shared in shares:
        if shared > work.max_shared:
            if options.decomposition == "stream_k":
                raise PlanError(f"sharing {shared} tiles x {iters} iterations is beyond 32-bit arithmetic; use fewer sk_tiles")
            continue
        if options.sk_units is not None:
            units = [options.sk_units]
        elif options.decomposition is None and shared < slots:
            # time(g) has its minima where the busiest unit loses an iteration: try those near even shares, and the full grid.
            units = sorted({slots, *(min(slots, shared * s) for s in range(1, slots // shared + 1))})
        else:
            units = [slots]
        for count in units:
            yield Choice(shared, min(count, shared * iters, MAX_PEERS))


def build(work: Work, choice: Choice, options: Options) -> Plan:
    """The full plan of one decomposition."""
    spec, cluster = work.spec, work.spec.cluster_size
    shared, units, splits = choice.shared, choice.units, choice.splits
    whole = work.work_tiles - shared
    peers = count_peers(shared, work.iters_per_tile, units, splits) if units else 1
    if splits > 1:
        decomposition: Decomposition = "split_k"
    else:
        decomposition = "stream_k" if units else options.decomposition or "data_parallel"

    parallel = reduces_in_parallel(work, choice)
    reduction_ctas = shared * spec.accumulator_fragments if parallel else 0
    # A unit waits for lower ones only, and CTAs start in order: with a worker for every unit, no residency can deadlock.
    workers = max(min(work.slots, units + whole), units)
    grid = workers * cluster if spec.persistent else units + whole + reduction_ctas
    slots_of_partials = units * cluster * (2 if parallel else 1)
    flags = max(units, reduction_ctas) if not spec.persistent else units * cluster * spec.tile_warpgroups
    order, swizzle = raster(work, options)
    busiest_slot = busiest_iters(work, choice) * work.slots
    return Plan(
        m=work.m,
        n=work.n,
        k=work.k,
        kernel=spec,
        device=work.device.name,
        decomposition=decomposition,
        requested_grid=work.requested_grid,
        grid=grid,
        tiles_m=work.work_tiles_m * spec.cluster[0],
        tiles_n=work.work_tiles_n * spec.cluster[1],
        iters_per_tile=work.iters_per_tile,
        dp_tiles=whole * cluster,
        sk_tiles=shared * cluster,
        sk_units=units,
        splits=splits,
        peers=peers,
        waves=work.work_tiles / work.slots,
        efficiency=work.work_tiles * work.iters_per_tile / busiest_slot,
        data_parallel_efficiency=work.work_tiles / (-(-work.work_tiles // work.slots) * work.slots),
        partials_bytes=slots_of_partials * spec.partial_bytes,
        barrier_bytes=flags * 4,
        reduction_mode=options.reduction_mode if spec.persistent else "deterministic",
        reduction_ctas=reduction_ctas,
        raster_order=order,
        raster_swizzle=swizzle,
        promotion=promotion(work, options),
        predicted_time_us=predict_us(work, choice, peers, options),
    )


def busiest_iters(work: Work, choice: Choice) -> int:
    """Iterations of the slot with most work. Slots take positions (units, then whole tiles) round robin."""
    slots, iters = work.slots, work.iters_per_tile
    whole = work.work_tiles - choice.shared
    if choice.units == 0:
        return -(-whole // slots) * iters
    share = -(-iters // choice.splits) if choice.splits > 1 else -(-choice.shared * iters // choice.units)
    unit_waves, rest = divmod(choice.units, slots)

    def load(slot: int) -> int:
        own_units = unit_waves + (slot < rest)
        positions = -(-(choice.units + whole - slot) // slots)
        return own_units * share + (positions - own_units) * iters

    return max(load(0), load(rest)) if choice.units + whole > rest else load(0)


def reduces_in_parallel(work: Work, choice: Choice) -> bool:
    """Whether CTAs of their own add the partials (2.x, many peers): a tile's fragments side by side, not one finisher after all."""
    return not work.spec.persistent and choice.units > 2 * choice.shared


def predict_us(work: Work, choice: Choice, peers: int, options: Options) -> float:
    """The model's time for a decomposition, in microseconds."""
    constants, iters = model.constants(work.spec, work.device), busiest_iters(work, choice)
    if chain := promotion(work, options):
        constants = replace(constants, c=constants.c * (1 + model.PROMOTION_COST.get(chain, min(model.PROMOTION_COST.values()))))
    if work.spec.persistent:
        return constants.tree_time_us(iters, peers)
    return constants.parallel_time_us(iters, peers) if reduces_in_parallel(work, choice) else constants.time_us(iters, peers)


def eligible(kernels: Sequence[KernelSpec], n: int, k: int, device: Device, options: Options) -> Sequence[KernelSpec]:
    """Kernels whose cluster fits the grid and that can end chains where that is wanted; all of them, if none does."""
    kernels = [spec for spec in kernels if spec.cluster_size <= (options.sms or device.sms)] or kernels
    if options.promotion or (options.promotion is None and ragged(n, k)):
        kernels = [spec for spec in kernels if spec.promotable] or kernels
    return kernels


def promotion(work: Work, options: Options) -> int:
    """Elements of k in a chain of tensor-core sums, for float32 outputs; 0: no limit.

    A chain costs accuracy by its length, and ending it costs time: 12 to 16% with 128 elements, 25 to 38% with 64 (float16 squares
    on an H200). cuBLAS lets chains run where its Hopper kernels take the problem, and sums more accurately elsewhere, where sizes
    are no multiples of 8. So do we: no limit on the former, 128 on the latter, 64 there if all tiles run at once and time hardly
    matters.
    """
    tile_k = work.spec.tile[2]
    if options.promotion is not None:
        if options.promotion % tile_k or (options.promotion and not work.spec.promotable):
            kernels = "kernels with float32 outputs and small tiles" if not work.spec.promotable else f"multiples of {tile_k}"
            raise PlanError(f"promotion={options.promotion} does not fit {work.spec.name}; it is for {kernels}")
        return options.promotion
    if not work.spec.promotable or not ragged(work.n, work.k):
        return 0
    return tile_k * (1 if work.work_tiles <= work.slots else 2)


def ragged(n: int, k: int) -> bool:
    """Whether rows of a, b or c cannot all start on 16 bytes."""
    return n % 8 != 0 or k % 8 != 0


def raster(work: Work, options: Options) -> tuple[RasterOrder, int]:
    """The order in which tiles are visited: along the shorter side."""
    if not work.spec.persistent:
        # ThreadblockSwizzleStreamK has one order, by shape.
        order: RasterOrder = "along_n" if work.work_tiles_m >= work.work_tiles_n else "along_m"
        if options.raster_order not in (None, order) or options.raster_swizzle not in (None, 1):
            raise PlanError(
                f"{work.spec.name} visits these tiles {order} with swizzle 1; raster_order and raster_swizzle cannot be forced"
            )
        return order, 1
    shorter: RasterOrder = "along_m" if work.work_tiles_m <= work.work_tiles_n else "along_n"
    return options.raster_order or shorter, options.raster_swizzle or 1


def make_plan(m: int, n: int, k: int, kernels: Sequence[KernelSpec], device: Device, options: Options | None = None) -> Plan:
    """The plan with the least predicted time for c[m, n] = a[m, k] @ b[k, n] over ``kernels``, within ``options``.

    Raises PlanError where an option is out of range or nothing fits it.
    """
    options = options or Options()
    options.check(device)
    m, n, k = (_whole(name, size) for name, size in (("m", m), ("n", n), ("k", k)))
    best: tuple[float, Work, Choice] | None = None
    for spec in eligible(kernels, n, k, device, options):
        work = cut_up(m, n, k, spec, device, options.sms)
        for choice in candidates(work, options):
            peers = count_peers(choice.shared, work.iters_per_tile, choice.units, choice.splits) if choice.units else 1
            time_us = predict_us(work, choice, peers, options)
            if best is None or time_us < best[0]:
                best = (time_us, work, choice)
    if best is None:
        raise PlanError(f"no decomposition of m={m}, n={n}, k={k} fits {options}")
    return build(best[1], best[2], options)


def _whole(name: str, size: SupportsIndex) -> int:
    """A size as an int: numpy's integers are as good as Python's, bool and float are not."""
    try:
        if not isinstance(size, bool):
            return index(size)
    except TypeError:
        pass
    raise PlanError(f"{name}={size!r} must be a whole number from 1 to {INT_MAX}")
