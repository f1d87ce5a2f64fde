"""Who computes what, and in which order: the schedule that a plan stands for, in plain Python.

The kernels' own schedulers do the same arithmetic on the GPU; this is the twin to read, to draw and to test against.

Shared work tiles form one line of MAC-loop iterations, cut into shares, one for each unit. A unit runs its share backwards: the
tile that its share leaves unfinished comes first, so its partial sums are ready early, and the tile that others began comes last,
so it waits late. A unit waits only for lower-numbered units of its tile, which hold lower positions in the launch order.

Positions are dealt to the workers round robin. There are at least as many workers as units, so a worker waits only for lower
workers, and CTAs dispatched in order cannot deadlock, however few are resident.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import gcd
from typing import Literal

from .plan import Plan

Role = Literal["whole", "partial", "finish"]

FIXUP_ARITY = 4
"""Partial sums that meet at one step of a fix-up: a unit's own and up to three others."""


@dataclass(frozen=True)
class Segment:
    """What one worker does in one work tile: the k-tiles from k_begin up to k_end.

    unit    the unit whose share it is; None in a data-parallel tile
    role    ``whole``: computes all of the tile and stores it. ``partial``: puts its sums in the unit's slot. ``finish``: computes
            the last k-tile and stores the tile.
    peers   units whose partial sums are added to this segment's own, in this order, before it stores or shares them
    """

    unit: int | None
    work_tile: int
    k_begin: int
    k_end: int
    role: Role
    peers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reduction:
    """What one reduction CTA does (2.x): adds a fragment of the partial sums of ``peers`` in their order and stores it."""

    work_tile: int
    fragment: int
    peers: tuple[int, ...]


def work_tile_counts(plan: Plan) -> tuple[int, int]:
    """Work tiles in m and in n."""
    cluster_m, cluster_n = plan.kernel.cluster
    return plan.tiles_m // cluster_m, plan.tiles_n // cluster_n


def worker_count(plan: Plan) -> int:
    """Launched clusters; a cluster runs as one worker."""
    return _clusters(plan, plan.grid)


def work_tile_coordinates(plan: Plan, index: int) -> tuple[int, int]:
    """(m, n) of a work tile, in work tiles.

    Tiles are visited in strips ``raster_swizzle`` wide, one row of the strip after the other; the last strip may be narrower.
    """
    count_m, count_n = work_tile_counts(plan)
    along_m = plan.raster_order == "along_m"
    length, across = (count_m, count_n) if along_m else (count_n, count_m)
    strip, rest = divmod(index, plan.raster_swizzle * length)
    first = strip * plan.raster_swizzle
    step, offset = divmod(rest, min(plan.raster_swizzle, across - first))
    return (step, first + offset) if along_m else (first + offset, step)


def share(plan: Plan, unit: int) -> tuple[int, int]:
    """[begin, end) of a unit on the line of shared iterations; empty where there are more units than iterations."""
    iters, units = _region(plan)
    region, position = divmod(unit, units)
    quotient, remainder = divmod(iters, units)
    begin = region * iters + position * quotient + min(position, remainder)
    return begin, begin + quotient + (position < remainder)


def worker_segments(plan: Plan, worker: int) -> list[Segment]:
    """All that one worker does, in the order in which it does it."""
    shared_tiles = _clusters(plan, plan.sk_tiles)
    dp_tiles = _clusters(plan, plan.dp_tiles)
    segments: list[Segment] = []
    for position in range(worker, plan.sk_units + dp_tiles, worker_count(plan)):
        if position < plan.sk_units:
            segments.extend(_unit_segments(plan, _unit_at(plan, position)))
        else:
            segments.append(Segment(None, shared_tiles + position - plan.sk_units, 0, plan.iters_per_tile, "whole"))
    return segments


def schedule(plan: Plan) -> list[list[Segment]]:
    """The segments of every worker. Workers above the last position (2.x: the reduction CTAs) have none."""
    return [worker_segments(plan, worker) for worker in range(worker_count(plan))]


def reductions(plan: Plan) -> list[Reduction]:
    """What the reduction CTAs do, in launch order; they come after all other CTAs. Empty where units finish their own tiles."""
    if plan.reduction_ctas == 0:
        return []
    fragments = plan.reduction_ctas // plan.sk_tiles
    peers = [tuple(range(_first_unit(plan, tile), _last_unit(plan, tile) + 1)) for tile in range(plan.sk_tiles)]
    return [Reduction(tile, fragment, peers[tile]) for tile in range(plan.sk_tiles) for fragment in range(fragments)]


def count_peers(sk_work_tiles: int, iters_per_tile: int, sk_units: int, splits: int) -> int:
    """The most units that meet in one work tile; 1 where nothing is shared."""
    if splits > 1:
        return min(splits, iters_per_tile)
    line = sk_work_tiles * iters_per_tile
    if line == 0 or sk_units == 0:
        return 1
    units = min(sk_units, line)
    quotient, remainder = divmod(line, units)
    if remainder == 0:
        # Tiles begin at every multiple of the gcd within some share; the one that begins nearest to a share's end meets the most.
        return (quotient - gcd(quotient, iters_per_tile) + iters_per_tile - 1) // quotient + 1
    if quotient >= iters_per_tile:
        # Two units at most, and two wherever a share begins inside a tile: the first of the long or of the short shares tells.
        second, second_short = quotient + 1, remainder * (quotient + 1) + quotient
        inside = second % iters_per_tile != 0 or (second_short < line and second_short % iters_per_tile != 0)
        return 2 if units > 1 and inside else 1
    # At best a tile has one iteration of its first unit, one of its last, and whole shares between them.
    bound = 2 + (iters_per_tile - 2) // quotient
    # Where tiles begin within a share repeats after as many tiles as the share has iterations: long shares first, then short ones.
    short_tiles = remainder * (quotient + 1) // iters_per_tile
    starts = (range(min(short_tiles, quotient + 2)), range(short_tiles, min(sk_work_tiles, short_tiles + quotient + 2)))
    most = 1
    for tile in chain(*starts):
        first = tile * iters_per_tile
        most = max(most, _owner(first + iters_per_tile - 1, line, units) - _owner(first, line, units) + 1)
        if most == bound:
            break
    return most


def _clusters(plan: Plan, ctas: int) -> int:
    """Tiles as work tiles, or CTAs as workers."""
    size: int = plan.kernel.cluster_size
    return ctas // size


def _region(plan: Plan) -> tuple[int, int]:
    """(iterations, units) of a stretch of the line that is cut evenly: all of it, or one tile when tiles are split."""
    if plan.splits > 1:
        return plan.iters_per_tile, plan.splits
    return _clusters(plan, plan.sk_tiles) * plan.iters_per_tile, plan.sk_units


def _owner(iteration: int, iters: int, units: int) -> int:
    """The unit that holds an iteration, when ``iters`` are cut into ``units`` shares and the longer shares come first."""
    quotient, remainder = divmod(iters, units)
    in_long_shares = remainder * (quotient + 1)
    if iteration < in_long_shares:
        return iteration // (quotient + 1)
    return remainder + (iteration - in_long_shares) // quotient


def _first_unit(plan: Plan, work_tile: int) -> int:
    return _unit_of(plan, work_tile * plan.iters_per_tile)


def _last_unit(plan: Plan, work_tile: int) -> int:
    return _unit_of(plan, (work_tile + 1) * plan.iters_per_tile - 1)


def _unit_of(plan: Plan, iteration: int) -> int:
    iters, units = _region(plan)
    region, rest = divmod(iteration, iters)
    return region * units + _owner(rest, iters, units)


def _unit_at(plan: Plan, position: int) -> int:
    """Parts of split tiles are interleaved, so that neighbours in the launch order do not wait for each other."""
    if plan.splits == 1 or plan.fixup == "cluster":
        return position
    part, work_tile = divmod(position, _clusters(plan, plan.sk_tiles))
    return work_tile * plan.splits + part


def _unit_segments(plan: Plan, unit: int) -> Iterator[Segment]:
    iters_per_tile = plan.iters_per_tile
    begin, end = share(plan, unit)
    while end > begin:
        work_tile = (end - 1) // iters_per_tile
        first = work_tile * iters_per_tile
        k_begin, k_end = max(begin - first, 0), end - first
        shares = k_end < iters_per_tile or plan.reduction_ctas > 0
        role: Role = "partial" if shares else "whole" if k_begin == 0 else "finish"
        yield Segment(unit, work_tile, k_begin, k_end, role, _peers(plan, unit, work_tile, role))
        end = first + k_begin


def _peers(plan: Plan, unit: int, work_tile: int, role: Role) -> tuple[int, ...]:
    """Whose sums a unit adds. 3.x: the units of a tile are a tree of arity four with the finisher at its root, so that the time
    grows with the logarithm of their number. 2.x: the finisher has all the others added up."""
    first, last = _first_unit(plan, work_tile), _last_unit(plan, work_tile)
    if plan.kernel.api == "2x":
        return tuple(range(first, unit)) if role == "finish" else ()
    children: list[int] = []
    stride = 1
    while stride <= unit - first and (last - unit) % (FIXUP_ARITY * stride) == 0:
        children.extend(unit - step * stride for step in range(1, FIXUP_ARITY) if step * stride <= unit - first)
        stride *= FIXUP_ARITY
    return tuple(children)
