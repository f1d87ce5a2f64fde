"""The kernels' schedule (C++, compiled here for the host) and its twin in Python say the same, segment by segment."""

from __future__ import annotations

import ctypes
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import ceil_div, cluster_spec, make

from cutlass_sk import schedule
from cutlass_sk.jit.toolchain import find_toolchain
from cutlass_sk.plan import RASTER_ORDERS, Plan

INT_MAX = 2**31 - 1
MAX_ITERS = 2**27
"""k lies below 2**31, and no kernel's k-tile is less than 16."""

DRIVER = """
#include <cutlass_sk/stream_k_schedule.h>
struct Divmod {
  int divisor;
  Divmod(int divisor) : divisor(divisor) {}
  void operator()(int& quotient, int& remainder, int dividend) const {
    quotient = dividend / divisor;
    remainder = dividend % divisor;
  }
};
using Schedule = cutlass_sk::StreamKSchedule<Divmod>;

extern "C" int valid(int64_t const* v) { return Schedule::valid(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]); }

// Writes up to `capacity` segments of `worker`, 44 numbers each; returns how many there are, capacity + 1 if more.
extern "C" int walk(int32_t const* c, int along_n, int32_t worker, int32_t* out, int capacity) {
  Schedule const schedule(c[0], c[1], c[2], c[3], c[4], c[5], c[6], along_n != 0, c[7], c[8] != 0);
  int count = 0;
  for (cutlass_sk::Segment s = schedule.begin(worker); s.is_valid(); s = schedule.next(s)) {
    if (count++ == capacity) break;
    int32_t m, n;
    schedule.coordinates(s.work_tile, m, n);
    bool const shared = s.unit >= 0;
    int32_t const row[] = {s.position, s.unit, s.work_tile, s.k_begin, s.k_end, s.remaining, schedule.is_finisher(s),
                           schedule.needs_fixup(s), m, n, shared ? schedule.first_unit(s.work_tile) : -1,
                           shared ? schedule.last_unit(s.work_tile) : -1};
    for (int32_t value : row) *out++ = value;
    for (int lane = 0; lane < 32; ++lane) *out++ = schedule.needs_fixup(s) ? schedule.child(s, lane) : -1;
  }
  return count;
}
"""


class Counts(NamedTuple):
    """What both schedules are made of; all in work tiles."""

    workers: int
    work_tiles_m: int
    work_tiles_n: int
    iters_per_tile: int
    sk_work_tiles: int
    sk_units: int
    splits: int
    raster_swizzle: int
    in_clusters: bool = False


class DeviceSegment(NamedTuple):
    position: int
    unit: int
    work_tile: int
    k_begin: int
    k_end: int
    remaining: int
    is_finisher: int
    needs_fixup: int
    work_m: int
    work_n: int
    first_unit: int
    last_unit: int
    children: tuple[int, ...]


class DeviceSchedule:
    """The C++ class, behind ctypes."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def valid(self, counts: Sequence[int]) -> bool:
        return bool(self._library.valid((ctypes.c_int64 * 8)(*counts[:8])))

    def walk(self, counts: Counts, along_n: bool, worker: int, capacity: int) -> list[DeviceSegment]:
        """Up to ``capacity`` segments of one worker."""
        assert self.valid(counts)
        numbers = 12 + 32
        out = (ctypes.c_int32 * (numbers * capacity))()
        count = min(self._library.walk((ctypes.c_int32 * 9)(*counts), along_n, worker, out, capacity), capacity)
        rows = [out[numbers * i : numbers * (i + 1)] for i in range(count)]
        return [DeviceSegment(*row[:12], children=tuple(child for child in row[12:] if child >= 0)) for row in rows]


@pytest.fixture(scope="session")
def device_schedule(tmp_path_factory: pytest.TempPathFactory) -> DeviceSchedule:
    folder, toolchain = tmp_path_factory.mktemp("schedule"), find_toolchain()
    (folder / "driver.cpp").write_text(DRIVER)
    # -ftrapv: an overflow of 32 bits ends the process and cannot pass as a number.
    flags = ["-std=c++17", "-O1", "-ftrapv", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{toolchain.own_include}"]
    command = [str(toolchain.host_compiler), *flags, "-o", str(folder / "driver.so"), str(folder / "driver.cpp")]
    subprocess.run(command, check=True)
    return DeviceSchedule(folder / "driver.so")


def counts_of(plan: Plan) -> Counts:
    size = plan.kernel.cluster_size
    work_m, work_n = schedule.work_tile_counts(plan)
    return Counts(
        schedule.worker_count(plan),
        work_m,
        work_n,
        plan.iters_per_tile,
        plan.sk_tiles // size,
        plan.sk_units,
        plan.splits,
        plan.raster_swizzle,
        plan.fixup == "cluster",
    )


@st.composite
def legal_plans(draw: st.DrawFn) -> Plan:
    """Every decomposition, cluster and raster of a 3.x kernel, with a worker for every unit as the C++ demands."""
    spec = cluster_spec(*draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)])))
    size_m, size_n = spec.tile[0] * spec.cluster[0], spec.tile[1] * spec.cluster[1]
    work_m, work_n = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    iters = draw(st.one_of(st.integers(1, 12), st.integers(1, 80)))
    shared = draw(st.one_of(st.just(work_m * work_n), st.integers(1, work_m * work_n)))
    kind = draw(st.sampled_from(schedule_kinds))
    splits = draw(st.integers(1, iters)) if kind == "split_k" else 1
    units = draw(st.one_of(st.integers(1, min(2 * shared, shared * iters)), st.integers(1, shared * iters)))
    units = {"data_parallel": 0, "split_k": shared * splits, "stream_k": units}[kind]
    return make(
        work_m * size_m,
        work_n * size_n,
        iters * spec.tile[2],
        spec,
        decomposition=kind,
        workers=draw(st.integers(max(units, 1), units + 2 * work_m * work_n)),
        sk_tiles=shared * spec.cluster_size,
        sk_units=units,
        splits=splits,
        in_clusters=splits > 1 and spec.cluster_size == 1 and draw(st.booleans()),
        raster_order=draw(st.sampled_from(RASTER_ORDERS)),
        raster_swizzle=draw(st.integers(1, 12)),
    )


schedule_kinds = ("data_parallel", "split_k", "stream_k")


def as_python(segment: DeviceSegment) -> schedule.Segment:
    """What a C++ segment means, as the fix-up reads it: each lane of a warp looks after one child, in the order of lanes."""
    if not segment.needs_fixup:
        role: schedule.Role = "whole"
    else:
        role = "finish" if segment.is_finisher else "partial"
    return schedule.Segment(
        None if segment.unit < 0 else segment.unit,
        segment.work_tile,
        segment.k_begin,
        segment.k_end,
        role,
        segment.children,
    )


@settings(max_examples=500, deadline=None)
@given(plan=legal_plans())
def test_every_worker_does_the_same_in_the_same_order(device_schedule: DeviceSchedule, plan: Plan) -> None:
    counts, along_n = counts_of(plan), plan.raster_order == "along_n"
    for worker in range(counts.workers):
        expected = schedule.worker_segments(plan, worker)
        found = device_schedule.walk(counts, along_n, worker, len(expected) + 1)
        assert [as_python(segment) for segment in found] == expected
        assert [(s.work_m, s.work_n) for s in found] == [schedule.work_tile_coordinates(plan, s.work_tile) for s in expected]
        assert all(segment.position % counts.workers == worker for segment in found)
        for segment in found:
            if segment.unit >= 0:
                assert segment.first_unit <= segment.unit <= segment.last_unit
                begin = schedule.share(plan, segment.unit)[0]
                assert segment.remaining == segment.work_tile * counts.iters_per_tile + segment.k_begin - begin


@st.composite
def large_plans(draw: st.DrawFn) -> Plan:
    """Counts up to what 32 bits hold: few tiles of very many iterations, or very many tiles of few."""
    spec = cluster_spec(1, 1)
    shared = draw(st.integers(1, 300))
    most = min(INT_MAX // shared, MAX_ITERS)
    iters = draw(st.sampled_from([most, most - 1, 2**20 // shared + 1, 3]))
    work_n = draw(st.sampled_from([1, 7, 2**16]))
    work_m = draw(st.sampled_from([ceil_div(shared, work_n), 2**14, 2**13 + 1]))
    split = draw(st.booleans())
    splits = draw(st.integers(2, min(16, iters))) if split else 1
    units = shared * splits if split else draw(st.integers(1, min(4096, shared * iters)))
    plan = make(
        4,
        4,
        2,
        spec,
        decomposition="split_k" if split else "stream_k",
        workers=draw(st.integers(units, units + 5000)),
        sk_tiles=1,
        sk_units=units,
        splits=splits,
        raster_order=draw(st.sampled_from(RASTER_ORDERS)),
        raster_swizzle=draw(st.sampled_from([1, 3, INT_MAX])),
    )
    sizes = {"tiles_m": work_m, "tiles_n": work_n, "dp_tiles": work_m * work_n - shared, "iters_per_tile": iters}
    return replace(plan, **sizes, sk_tiles=shared, sk_units=units)  # type: ignore[arg-type]


@settings(max_examples=300, deadline=None)
@given(plan=large_plans(), data=st.data())
def test_large_counts_agree_and_do_not_overflow(device_schedule: DeviceSchedule, plan: Plan, data: st.DataObject) -> None:
    counts, along_n = counts_of(plan), plan.raster_order == "along_n"
    if not device_schedule.valid(counts):
        assert counts.workers + counts.sk_units + plan.tiles > INT_MAX
        return
    worker = data.draw(st.one_of(st.integers(0, counts.workers - 1), st.just(plan.sk_units - 1)))
    found = device_schedule.walk(counts, along_n, worker, 400)
    # The Python twin lists a worker's positions at once; one position of its own is enough here.
    positions = min(counts.workers, plan.sk_units + plan.dp_tiles)
    alone = replace(plan, dp_tiles=max(0, positions - plan.sk_units), tiles_m=plan.tiles_m)
    expected = schedule.worker_segments(alone, worker)
    assert [as_python(segment) for segment in found[: len(expected)]] == expected[:400]
    assert [(s.work_m, s.work_n) for s in found] == [schedule.work_tile_coordinates(plan, s.work_tile) for s in found]


LEGAL = Counts(workers=8, work_tiles_m=3, work_tiles_n=4, iters_per_tile=5, sk_work_tiles=6, sk_units=7, splits=1, raster_swizzle=2)
ILLEGAL = [
    {"workers": 0},
    {"workers": -1},
    {"workers": 6},
    {"workers": INT_MAX},
    {"work_tiles_m": 0},
    {"work_tiles_m": -3},
    {"work_tiles_m": -3, "work_tiles_n": -4},
    {"work_tiles_m": 1},
    {"work_tiles_n": 0},
    {"work_tiles_n": -4},
    {"work_tiles_m": 2**16, "work_tiles_n": 2**15},
    {"work_tiles_m": 2**31, "work_tiles_n": 2**33},
    {"iters_per_tile": 0},
    {"iters_per_tile": -5},
    {"iters_per_tile": 1},
    {"iters_per_tile": 2**31},
    {"iters_per_tile": ceil_div(INT_MAX, 6)},
    {"sk_work_tiles": 0},
    {"sk_work_tiles": -1},
    {"sk_work_tiles": 13},
    {"sk_units": 0},
    {"sk_units": -1},
    {"sk_units": 9},
    {"sk_units": 31, "workers": 40},
    {"splits": 0},
    {"splits": -1},
    {"splits": 2},
    {"splits": 6, "sk_units": 36, "workers": 36},
    {"splits": 2, "sk_units": 11, "workers": 12},
    {"splits": INT_MAX},
    {"splits": 2**20 + 1, "iters_per_tile": 2**21, "sk_work_tiles": 1, "sk_units": 2**20 + 1, "workers": 2**21},
    {"iters_per_tile": 2**21, "sk_work_tiles": 1, "sk_units": 2**20 + 1, "workers": 2**21},
    {"raster_swizzle": 0},
    {"raster_swizzle": -1},
]


def test_legal_counts_are_accepted(device_schedule: DeviceSchedule) -> None:
    assert device_schedule.valid(LEGAL)
    assert device_schedule.valid(LEGAL._replace(splits=2, sk_units=12, workers=12))
    assert device_schedule.valid(LEGAL._replace(sk_work_tiles=0, sk_units=0, workers=1))
    assert device_schedule.valid(LEGAL._replace(iters_per_tile=INT_MAX // 6, raster_swizzle=INT_MAX))


@pytest.mark.parametrize("changes", ILLEGAL, ids=str)
def test_illegal_counts_are_refused(device_schedule: DeviceSchedule, changes: dict[str, int]) -> None:
    assert not device_schedule.valid(LEGAL._replace(**changes))


@settings(max_examples=500, deadline=None)
@given(plan=legal_plans())
def test_every_legal_plan_is_accepted(device_schedule: DeviceSchedule, plan: Plan) -> None:
    assert device_schedule.valid(counts_of(plan))


small = st.integers(0, 6)


@settings(max_examples=2000, deadline=None)
@given(counts=st.builds(Counts, st.integers(0, 30), small, small, small, small, st.integers(0, 30), st.integers(0, 3), small))
def test_whatever_is_accepted_covers_every_iteration_once(device_schedule: DeviceSchedule, counts: Counts) -> None:
    """No counts that ``valid`` lets through can lose or repeat an iteration or a partial sum, or wait for a higher unit."""
    if not device_schedule.valid(counts):
        return
    runs: Counter[tuple[int, int]] = Counter()
    shared, added = set[tuple[int, int]](), list[tuple[int, int]]()
    for worker in range(counts.workers):
        for segment in device_schedule.walk(counts, False, worker, 1000):
            runs.update((segment.work_tile, k) for k in range(segment.k_begin, segment.k_end))
            added += [(segment.work_tile, child) for child in segment.children]
            assert all(child < segment.unit for child in segment.children)
            if segment.needs_fixup and not segment.is_finisher:
                shared.add((segment.work_tile, segment.unit))
    work_tiles = counts.work_tiles_m * counts.work_tiles_n
    assert runs == Counter({(tile, k): 1 for tile in range(work_tiles) for k in range(counts.iters_per_tile)})
    assert sorted(added) == sorted(shared)
