"""The schedule covers the work exactly once, in the order and with the waits that the kernels count on."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import AMPERE, CLUSTERED, any_plan, ceil_div, cluster_spec, make

from cutlass_sk.plan import Plan, RasterOrder
from cutlass_sk.schedule import (
    Reduction,
    Segment,
    count_peers,
    reductions,
    schedule,
    share,
    work_tile_coordinates,
    work_tile_counts,
    worker_count,
    worker_segments,
)

everything = settings(max_examples=300, deadline=None)


def all_segments(plan: Plan) -> list[Segment]:
    return [segment for segments in schedule(plan) for segment in segments]


def shared_work_tiles(plan: Plan) -> int:
    return plan.sk_tiles // plan.kernel.cluster_size


def units_of_tiles(plan: Plan) -> dict[int, list[int]]:
    """Units that touch each shared work tile, counted iteration by iteration from the shares alone."""
    units: dict[int, list[int]] = defaultdict(list)
    for unit in range(plan.sk_units):
        for iteration in range(*share(plan, unit)):
            tile = iteration // plan.iters_per_tile
            if unit not in units[tile]:
                units[tile].append(unit)
    return units


def launch_order(plan: Plan) -> list[int]:
    """Units by position: in order for stream_k; for split_k the first parts of all tiles, then the second parts, ...; but the parts
    of a tile side by side where they are one cluster."""
    if plan.decomposition != "split_k" or plan.fixup == "cluster":
        return list(range(plan.sk_units))
    return [tile * plan.splits + part for part in range(plan.splits) for tile in range(shared_work_tiles(plan))]


def completes(plan: Plan, resident: int) -> bool:
    """Whether the schedule ends when at most ``resident`` workers run at a time, each dispatched in order once one has ended."""
    waiting, running = schedule(plan), list[list[Segment]]()
    stored: set[tuple[int | None, int]] = set()
    while waiting or running:
        places = resident - len(running)
        running, waiting = running + waiting[:places], waiting[places:]
        before = sum(map(len, running))
        for segments in running:
            while segments and all((peer, segments[0].work_tile) in stored for peer in segments[0].peers):
                segment = segments.pop(0)
                stored.add((segment.unit, segment.work_tile))
        if before and before == sum(map(len, running)):
            return False
        running = [segments for segments in running if segments]
    return True


@everything
@given(any_plan())
def test_every_iteration_of_every_tile_is_run_exactly_once(plan: Plan) -> None:
    runs = Counter((s.work_tile, k) for s in all_segments(plan) for k in range(s.k_begin, s.k_end))
    work_tiles = plan.tiles // plan.kernel.cluster_size
    assert runs == Counter({(tile, k): 1 for tile in range(work_tiles) for k in range(plan.iters_per_tile)})
    assert all(s.k_begin < s.k_end for s in all_segments(plan))


@everything
@given(any_plan())
def test_a_tile_is_stored_once_and_the_sums_of_every_other_unit_reach_its_finisher_once(plan: Plan) -> None:
    by_tile: dict[int, list[Segment]] = defaultdict(list)
    for segment in all_segments(plan):
        by_tile[segment.work_tile].append(segment)
    touching = units_of_tiles(plan)
    for tile, segments in by_tile.items():
        segments.sort(key=lambda s: s.k_begin)
        *partials, last = segments
        assert all(s.role == "partial" for s in partials)
        if tile >= shared_work_tiles(plan):
            assert last == Segment(None, tile, 0, plan.iters_per_tile, "whole", ())
            assert not partials
            continue
        assert [s.unit for s in segments] == touching[tile]
        if plan.reduction_ctas:
            assert last.role == "partial"
        elif partials:
            assert (last.role, last.k_end) == ("finish", plan.iters_per_tile)
            assert sorted(peer for s in segments for peer in s.peers) == [s.unit for s in partials]
            assert all(peer < s.unit for s in segments for peer in s.peers if s.unit is not None)
            assert plan.kernel.api == "3x" or last.peers == tuple(s.unit for s in partials)
        else:
            assert (last.role, last.peers) == ("whole", ())


@everything
@given(any_plan())
def test_a_unit_leaves_at_most_one_tile_unfinished_and_runs_backwards(plan: Plan) -> None:
    by_unit: dict[int, list[Segment]] = defaultdict(list)
    for segment in all_segments(plan):
        if segment.unit is not None:
            by_unit[segment.unit].append(segment)
    for unit, segments in by_unit.items():
        begin, end = share(plan, unit)
        line = [s.work_tile * plan.iters_per_tile + k for s in segments for k in (s.k_end, s.k_begin)]
        assert line[0] == end
        assert line[-1] == begin
        assert line[1:-1:2] == line[2:-1:2]
        unfinished = [s.k_end < plan.iters_per_tile for s in segments]
        assert not any(unfinished[1:])
        if plan.reduction_ctas == 0:
            assert [s.role == "partial" for s in segments] == unfinished
            assert not any(s.role == "finish" for s in segments[:-1])
        else:
            starts = [s.k_begin == 0 for s in segments]
            assert starts in ([True], [False], [True, False])


@everything
@given(any_plan())
def test_positions_are_dealt_round_robin_and_waits_point_to_lower_ones(plan: Plan) -> None:
    order = launch_order(plan)
    assert sorted(order) == list(range(plan.sk_units))
    position = {unit: p for p, unit in enumerate(order)}
    for worker, segments in enumerate(schedule(plan)):
        first_dp = plan.sk_units - shared_work_tiles(plan)
        positions = [first_dp + s.work_tile if s.unit is None else position[s.unit] for s in segments]
        assert positions == sorted(positions)
        assert all(p % worker_count(plan) == worker for p in positions)
        for segment in segments:
            assert all(position[peer] < position[segment.unit] for peer in segment.peers if segment.unit is not None)


@everything
@given(any_plan())
def test_shares_are_as_equal_as_whole_iterations_allow(plan: Plan) -> None:
    shares = [share(plan, unit) for unit in range(plan.sk_units)]
    lengths = [end - begin for begin, end in shares]
    if plan.sk_units:
        assert shares[0][0] == 0
        assert shares[-1][1] == shared_work_tiles(plan) * plan.iters_per_tile
        assert all(before[1] == after[0] for before, after in pairwise(shares))
        assert max(lengths) - min(lengths) <= 1
    if plan.decomposition == "stream_k":
        assert lengths == sorted(lengths, reverse=True)
    if plan.decomposition == "split_k":
        for tile in range(shared_work_tiles(plan)):
            parts = lengths[tile * plan.splits : (tile + 1) * plan.splits]
            assert sum(parts) == plan.iters_per_tile
            assert parts == sorted(parts, reverse=True)


@everything
@given(any_plan())
def test_count_peers_is_the_most_units_that_touch_one_tile(plan: Plan) -> None:
    most = max((len(units) for units in units_of_tiles(plan).values()), default=1)
    assert count_peers(shared_work_tiles(plan), plan.iters_per_tile, plan.sk_units, plan.splits) == most


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 300), st.integers(1, 200), st.integers(1, 700))
def test_count_peers_in_larger_problems(tiles: int, iters: int, units: int) -> None:
    quotient, remainder = divmod(tiles * iters, units)
    begins = [unit * quotient + min(unit, remainder) for unit in range(units)] + [tiles * iters]
    touched = Counter(
        tile for begin, end in pairwise(begins) if begin < end for tile in range(begin // iters, ceil_div(end, iters))
    )
    assert count_peers(tiles, iters, units, 1) == max(touched.values())


@everything
@given(any_plan(max_tiles=9))
def test_the_raster_visits_every_work_tile_once(plan: Plan) -> None:
    count_m, count_n = work_tile_counts(plan)
    visited = [work_tile_coordinates(plan, index) for index in range(count_m * count_n)]
    assert sorted(visited) == [(m, n) for m in range(count_m) for n in range(count_n)]


@pytest.mark.parametrize(
    ("tiles_m", "tiles_n", "order", "swizzle", "visited"),
    [
        (3, 3, "along_m", 1, "00 10 20 01 11 21 02 12 22"),
        (3, 3, "along_n", 1, "00 01 02 10 11 12 20 21 22"),
        (3, 3, "along_m", 2, "00 01 10 11 20 21 02 12 22"),
        (3, 3, "along_n", 2, "00 10 01 11 02 12 20 21 22"),
        (3, 3, "along_m", 7, "00 01 02 10 11 12 20 21 22"),
        (2, 5, "along_m", 2, "00 01 10 11 02 03 12 13 04 14"),
        (2, 5, "along_n", 3, "00 10 01 11 02 12 03 13 04 14"),
    ],
)
def test_the_raster_steps_in_its_order_strip_by_strip(
    tiles_m: int, tiles_n: int, order: RasterOrder, swizzle: int, visited: str
) -> None:
    plan = make(4 * tiles_m, 4 * tiles_n, 2, raster_order=order, raster_swizzle=swizzle)
    assert visited.split() == ["{}{}".format(*work_tile_coordinates(plan, index)) for index in range(tiles_m * tiles_n)]


def test_basic_stream_k_of_nine_tiles_on_four_workers() -> None:
    """The example of the Stream-K paper: nine tiles of 32 iterations, four CTAs, 72 iterations each."""
    plan = make(12, 12, 64, decomposition="stream_k", workers=4, sk_units=4)
    assert schedule(plan) == [
        [Segment(0, 2, 0, 8, "partial"), Segment(0, 1, 0, 32, "whole"), Segment(0, 0, 0, 32, "whole")],
        [Segment(1, 4, 0, 16, "partial"), Segment(1, 3, 0, 32, "whole"), Segment(1, 2, 8, 32, "finish", (0,))],
        [Segment(2, 6, 0, 24, "partial"), Segment(2, 5, 0, 32, "whole"), Segment(2, 4, 16, 32, "finish", (1,))],
        [Segment(3, 8, 0, 32, "whole"), Segment(3, 7, 0, 32, "whole"), Segment(3, 6, 24, 32, "finish", (2,))],
    ]
    assert plan.peers == 2


def test_two_tile_stream_k_runs_the_uneven_part_first() -> None:
    plan = make(4, 28, 8, decomposition="stream_k", workers=2, sk_tiles=3, sk_units=2)
    assert schedule(plan) == [
        [
            Segment(0, 1, 0, 2, "partial"),
            Segment(0, 0, 0, 4, "whole"),
            Segment(None, 3, 0, 4, "whole"),
            Segment(None, 5, 0, 4, "whole"),
        ],
        [
            Segment(1, 2, 0, 4, "whole"),
            Segment(1, 1, 2, 4, "finish", (0,)),
            Segment(None, 4, 0, 4, "whole"),
            Segment(None, 6, 0, 4, "whole"),
        ],
    ]


def test_parts_of_a_split_tile_are_interleaved_with_other_tiles() -> None:
    """Two work tiles of 1x2 tiles, seven iterations each in three parts, on two workers."""
    plan = make(4, 16, 14, cluster_spec(1, 2), decomposition="split_k", workers=2, splits=3)
    assert schedule(plan) == [
        [Segment(0, 0, 0, 3, "partial"), Segment(1, 0, 3, 5, "partial"), Segment(2, 0, 5, 7, "finish", (1, 0))],
        [Segment(3, 1, 0, 3, "partial"), Segment(4, 1, 3, 5, "partial"), Segment(5, 1, 5, 7, "finish", (4, 3))],
    ]


def test_parts_of_a_tile_that_are_a_cluster_lie_side_by_side() -> None:
    plan = make(64, 16, 14, CLUSTERED, decomposition="split_k", workers=6, splits=3, in_clusters=True)
    plan.check()
    assert schedule(plan) == [
        [Segment(0, 0, 0, 3, "partial")],
        [Segment(1, 0, 3, 5, "partial")],
        [Segment(2, 0, 5, 7, "finish", (1, 0))],
        [Segment(3, 1, 0, 3, "partial")],
        [Segment(4, 1, 3, 5, "partial")],
        [Segment(5, 1, 5, 7, "finish", (4, 3))],
    ]


def test_many_peers_add_up_as_a_tree_of_arity_four() -> None:
    plan = make(4, 4, 36, decomposition="split_k", workers=18, splits=18)
    peers = {segment.unit: segment.peers for segments in schedule(plan) for segment in segments}
    assert peers[17] == (16, 15, 14, 13, 9, 5, 1)
    assert peers[13] == (12, 11, 10)
    assert peers[1] == (0,)
    assert [unit for unit in range(18) if peers[unit]] == [1, 5, 9, 13, 17]


def test_more_splits_than_iterations_leave_units_without_work() -> None:
    plan = make(4, 4, 4, decomposition="split_k", workers=4, splits=4)
    assert schedule(plan) == [[Segment(0, 0, 0, 1, "partial")], [Segment(1, 0, 1, 2, "finish", (0,))], [], []]


def test_under_a_separate_reduction_no_unit_finishes_a_tile() -> None:
    """Two tiles of three iterations, five units of at most two, and two reduction CTAs a tile at the end of the grid."""
    plan = make(64, 4, 6, AMPERE, decomposition="stream_k", sk_units=5, separate_reduction=True)
    assert schedule(plan) == [
        [Segment(0, 0, 0, 2, "partial")],
        [Segment(1, 0, 2, 3, "partial")],
        [Segment(2, 1, 0, 1, "partial")],
        [Segment(3, 1, 1, 2, "partial")],
        [Segment(4, 1, 2, 3, "partial")],
        *[[]] * 4,
    ]
    assert reductions(plan) == [
        Reduction(0, 0, (0, 1)),
        Reduction(0, 1, (0, 1)),
        Reduction(1, 0, (2, 3, 4)),
        Reduction(1, 1, (2, 3, 4)),
    ]


@everything
@given(any_plan())
def test_reductions_add_every_unit_of_their_tile(plan: Plan) -> None:
    touching = units_of_tiles(plan)
    fragments = plan.kernel.accumulator_fragments if plan.reduction_ctas else 0
    expected = [Reduction(tile, f, tuple(touching[tile])) for tile in range(plan.sk_tiles) for f in range(fragments)]
    assert reductions(plan) == expected


@everything
@given(any_plan(), st.integers(1, 5))
def test_few_resident_workers_complete_when_no_worker_runs_two_units(plan: Plan, resident: int) -> None:
    assert completes(plan, resident if plan.sk_units <= worker_count(plan) else worker_count(plan))


def test_more_units_than_workers_can_deadlock_unless_all_workers_are_resident() -> None:
    """Sixteen units on twelve workers: workers 0 to 3 wait for units of workers 4 to 7 while they hold every place."""
    plan = make(4, 32, 4, decomposition="split_k", workers=12, splits=2)
    assert not completes(plan, 4)
    assert completes(plan, 5)


def test_a_worker_above_the_work_has_none() -> None:
    plan = make(4, 8, 2, workers=5)
    assert [len(segments) for segments in schedule(plan)] == [1, 1, 0, 0, 0]
    assert worker_segments(plan, 1) == [Segment(None, 1, 0, 1, "whole")]
