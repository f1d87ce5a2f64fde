"""A schedule laid out in time: every k-tile once, every wait long enough, every SM busy or idle."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from plans import CLUSTERED, HOPPER, any_plan, make

from cutlass_sk.cli.drawing import column_iters, gantt
from cutlass_sk.errors import PlanError
from cutlass_sk.plan import Plan
from cutlass_sk.timeline import MOST_SEGMENTS, Step, Timeline, timeline


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Of plans with any number of SMs, also fewer than CTAs."""
    plan: Plan = draw(any_plan())
    assume(plan.fixup not in ("cluster", "separate"))
    cluster = plan.kernel.cluster_size
    grid = max(plan.grid, plan.sk_units * cluster)  # a CTA for every unit, as planned
    return timeline(replace(plan, grid=grid, requested_grid=draw(st.integers(1, 9)) * cluster), draw(st.integers(0, 3)))


@given(timelines())
def test_each_k_tile_of_each_tile_is_run_once(line: Timeline) -> None:
    ranges = defaultdict(list)
    for step in line.steps:
        if step.action == "mac":
            segment = step.segment
            ranges[segment.work_tile].append((segment.k_begin, segment.k_end))
            assert step.end - step.begin == segment.k_end - segment.k_begin
    assert len(ranges) == line.plan.tiles // line.plan.kernel.cluster_size
    for parts in ranges.values():
        parts.sort()
        assert [end for _, end in parts] == [*(begin for begin, _ in parts[1:]), line.plan.iters_per_tile]
        assert parts[0][0] == 0


@given(timelines())
def test_an_sm_does_one_thing_at_a_time_and_idles_only_at_its_end(line: Timeline) -> None:
    rows: dict[int, list[Step]] = defaultdict(list)
    for step in line.steps:
        rows[step.sm].append(step)
    for sm, steps in rows.items():
        assert [step.begin for step in steps] == [0, *(step.end for step in steps[:-1])]
        assert line.ends()[sm] == steps[-1].end
    assert set(rows) <= set(range(line.sms))


@given(timelines())
def test_partial_sums_are_added_once_and_after_they_are_stored(line: Timeline) -> None:
    stored = {(s.segment.work_tile, s.segment.unit): s.end for s in line.steps if s.action == "store"}
    added = [(s.segment.work_tile, s.peer) for s in line.steps if s.action == "fixup"]
    assert Counter(added) == Counter(stored.keys())
    for step in line.steps:
        if step.action == "fixup":
            assert step.begin >= stored[step.segment.work_tile, step.peer]
        if step.action == "wait":
            assert step.end == stored[step.segment.work_tile, step.peer]


@given(timelines())
def test_ctas_start_in_order_each_on_the_sm_that_is_free_first(line: Timeline) -> None:
    starts: dict[int, tuple[int, int]] = {}
    for step in line.steps:
        starts.setdefault(step.worker, (step.begin, step.sm))
    begins = [begin for begin, _ in starts.values()]
    assert list(starts) == sorted(starts) and begins == sorted(begins)
    assert len({sm for begin, sm in starts.values() if begin == 0}) == min(line.sms, len(starts))


@given(timelines())
def test_nothing_is_more_than_all_busy_and_the_text_fits(line: Timeline) -> None:
    assert 0 < line.utilisation <= 1
    lines = gantt(line, column_iters(line, 40)).plain.splitlines()
    assert len(lines) == line.sms and max(map(len, lines)) <= 40


def test_waiting_for_a_longer_share_counts_against_utilisation() -> None:
    plan = make(4, 4, 10, HOPPER, decomposition="stream_k", workers=2)
    line = timeline(plan)
    assert [(s.sm, s.action, s.begin, s.end) for s in line.steps] == [
        *((0, "mac", 0, 3), (0, "store", 3, 3)),
        *((1, "mac", 0, 2), (1, "wait", 2, 3), (1, "fixup", 3, 3)),
    ]
    assert line.utilisation == 5 / 6
    assert timeline(plan, fixup_iters=2).utilisation == 5 / 10


def test_what_cannot_be_drawn_is_refused() -> None:
    clustered = make(64, 8, 8, CLUSTERED, decomposition="split_k", splits=2, in_clusters=True)
    with pytest.raises(PlanError, match="fixup='cluster' are not drawn"):
        timeline(clustered)
    with pytest.raises(PlanError, match=f"{MOST_SEGMENTS + 1} tiles and 0 shares are too many to draw"):
        timeline(make(4 * (MOST_SEGMENTS + 1), 4, 2))
