"""Whatever is asked for, a plan covers the problem, fits its kernel and is truthful, or a PlanError says why there is none."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import ceil_div

from cutlass_sk import Gemm, calibration, model, planner, schedule
from cutlass_sk.device import PRESETS, Device, preset
from cutlass_sk.errors import PlanError
from cutlass_sk.generator.catalog import DTYPES, GENERATIONS, families
from cutlass_sk.generator.spec import KernelSpec, at_all_widths
from cutlass_sk.options import INT_MAX, Options
from cutlass_sk.plan import CLUSTER_SPLITS, DECOMPOSITIONS, RASTER_ORDERS, REDUCTION_MODES, Plan
from cutlass_sk.planner import decide, kernel_set, make_plan, scored
from cutlass_sk.work import Choice, cut_up, fixup_of, score

H200, A100 = PRESETS["h200"], PRESETS["a100"]
HOPPER = KernelSpec("sm90a", "3x", "float16", "float16", (128, 128, 64), (2, 1))
HOPPER_SINGLE = dataclasses.replace(HOPPER, cluster=(1, 1))
(AMPERE,) = families("float16", "float16", "sm80")
ELEMENT_BYTES = {"float32": 4, "float64": 8}

devices = st.one_of(st.sampled_from([H200, A100]), st.integers(1, 200).map(lambda sms: preset(f"toy:{sms}")))


@st.composite
def kernel_sets(draw: st.DrawFn) -> tuple[KernelSpec, ...]:
    """What Gemm hands to the planner: a family at all widths, one kernel of it, or one kernel at one width."""
    family = families(*draw(st.sampled_from(DTYPES)), draw(st.sampled_from(GENERATIONS)))
    chosen = at_all_widths(family if draw(st.booleans()) else (draw(st.sampled_from(family)),))
    return chosen if draw(st.booleans()) else (draw(st.sampled_from(chosen)),)


@st.composite
def options(draw: st.DrawFn, device: Device, kernels: tuple[KernelSpec, ...]) -> Options:
    given: dict[str, Any] = {"decomposition": draw(st.sampled_from([None, *DECOMPOSITIONS]))}
    if given["decomposition"] in (None, "split_k") and draw(st.booleans()):
        given["splits"] = draw(st.integers(2, 20))
    if given["decomposition"] == "stream_k":
        given["sk_tiles"] = draw(st.one_of(st.none(), st.integers(1, 300)))
        given["sk_units"] = draw(st.one_of(st.none(), st.integers(1, 500)))
    given["sms"] = draw(st.one_of(st.none(), st.integers(1, device.sms)))
    given["tile_n"] = draw(st.sampled_from([None, None, *{spec.tile[1] for spec in kernels}]))
    given["reduction_mode"] = draw(st.sampled_from(REDUCTION_MODES))
    if kernels[0].persistent:
        given["raster_order"] = draw(st.sampled_from([None, *RASTER_ORDERS]))
        given["raster_swizzle"] = draw(st.sampled_from([None, 1, 2, 5, INT_MAX]))
    return Options(**given)


@st.composite
def requests(draw: st.DrawFn, largest: int) -> tuple[int, int, int, tuple[KernelSpec, ...], Device, Options]:
    sizes = st.one_of(st.integers(1, 300), st.integers(1, largest))
    m, n, k = draw(sizes), draw(sizes), draw(st.one_of(st.integers(1, 300), st.integers(1, 4 * largest)))
    kernels, device = draw(kernel_sets()), draw(devices)
    return m, n, k, kernels, device, draw(options(device, kernels))


def slots(plan: Plan) -> int:
    return max(1, model.clusters(plan.requested_grid, plan.kernel.cluster_size))


@settings(max_examples=400, deadline=None)
@given(requests(largest=20000))
def test_a_plan_covers_the_problem_and_fits_its_kernel(request: tuple[Any, ...]) -> None:
    m, n, k, kernels, device, forced = request
    plan = make_plan(m, n, k, kernels, device, forced)
    kernel = plan.kernel
    cluster = kernel.cluster_size

    assert (plan.m, plan.n, plan.k, plan.device) == (m, n, k, device.name)
    assert kernel in kernels
    rows, columns = (n, m) if kernel.swapped else (m, n)
    assert plan.tiles_m == ceil_div(rows, kernel.tile[0] * kernel.cluster[0]) * kernel.cluster[0]
    assert plan.tiles_n == ceil_div(columns, kernel.tile[1] * kernel.cluster[1]) * kernel.cluster[1]
    assert plan.iters_per_tile == ceil_div(k, kernel.tile[2])
    assert plan.dp_tiles >= 0 and plan.sk_tiles >= 0 and plan.dp_tiles + plan.sk_tiles == plan.tiles
    assert plan.dp_tiles % cluster == plan.sk_tiles % cluster == plan.grid % cluster == 0
    assert (plan.sk_units == 0) == (plan.sk_tiles == 0)
    assert plan.sk_units <= plan.sk_tiles // cluster * plan.iters_per_tile
    assert 1 <= plan.splits <= plan.iters_per_tile
    assert plan.splits == 1 or plan.sk_units == plan.tiles // cluster * plan.splits
    assert plan.requested_grid == (forced.sms or device.sms)

    if kernel.persistent:
        assert plan.reduction_ctas == 0
        assert plan.sk_units <= plan.grid // cluster <= max(slots(plan), plan.sk_units)
        assert plan.grid // cluster <= plan.sk_units + plan.dp_tiles // cluster
        flags = plan.sk_units * cluster * kernel.tile_warpgroups
    else:
        assert plan.grid == plan.sk_units + plan.dp_tiles + plan.reduction_ctas
        assert plan.reduction_ctas in (0, plan.sk_tiles * kernel.accumulator_fragments)
        assert plan.reduction_ctas == 0 or plan.sk_units >= plan.sk_tiles  # a unit has slots for two tiles
        flags = max(plan.sk_units, plan.reduction_ctas)
    tile_bytes = kernel.tile[0] * kernel.binary.tile[1] * ELEMENT_BYTES[kernel.accumulator]
    if plan.fixup == "cluster":
        assert kernel.cluster_fixup and plan.splits in CLUSTER_SPLITS and plan.grid == plan.sk_units == plan.tiles * plan.splits
        assert plan.workspace_bytes == 0
    else:
        assert plan.partials_bytes == plan.sk_units * cluster * tile_bytes * (2 if plan.reduction_ctas else 1)
        assert plan.barrier_bytes == 4 * flags
    plan.check()
    assert plan.workspace_bytes == plan.partials_bytes + plan.barrier_bytes

    assert plan.predicted_time_us > 0
    assert plan.waves == plan.tiles // cluster / slots(plan)
    assert 0 < plan.efficiency <= 1 and 0 < plan.data_parallel_efficiency <= 1


@settings(max_examples=400, deadline=None)
@given(requests(largest=20000))
def test_what_is_forced_appears_in_the_plan(request: tuple[Any, ...]) -> None:
    m, n, k, kernels, device, forced = request
    plan = make_plan(m, n, k, kernels, device, forced)
    cluster, persistent = plan.kernel.cluster_size, plan.kernel.persistent
    asked = forced.decomposition or ("split_k" if forced.splits else None)
    if asked == "split_k" and plan.iters_per_tile == 1:
        assert (plan.splits, plan.peers) == (1, 1)  # a single k-tile cannot be split
    elif asked:
        assert plan.decomposition == asked
    if forced.tile_n:
        assert plan.kernel.tile[1] == forced.tile_n
    if forced.splits:
        assert plan.splits == min(forced.splits, plan.iters_per_tile)
    if forced.sk_tiles:
        assert plan.sk_tiles == min(ceil_div(forced.sk_tiles, cluster) * cluster, plan.tiles)
    if forced.sk_units:
        assert plan.sk_units == min(forced.sk_units, plan.sk_tiles // cluster * plan.iters_per_tile)
    if asked == "data_parallel":
        assert (plan.sk_tiles, plan.sk_units, plan.splits, plan.peers, plan.workspace_bytes) == (0, 0, 1, 1, 0)
        assert plan.efficiency == pytest.approx(plan.data_parallel_efficiency)
    assert plan.reduction_mode == (forced.reduction_mode if persistent else "deterministic")
    shorter = "along_m" if plan.tiles_m // plan.kernel.cluster[0] < plan.tiles_n // plan.kernel.cluster[1] else "along_n"
    if persistent:
        assert plan.raster_order == (forced.raster_order or shorter)
        assert plan.raster_swizzle == (forced.raster_swizzle or 1)
    else:
        assert (plan.raster_order, plan.raster_swizzle) == ("along_n" if plan.tiles_m >= plan.tiles_n else "along_m", 1)


@settings(max_examples=300, deadline=None)
@given(requests(largest=1500))
def test_peers_and_efficiency_are_those_of_the_schedule(request: tuple[Any, ...]) -> None:
    """Counted segment by segment. A slot runs every so many-th position; it is idle where there is none."""
    plan = make_plan(*request)
    size = plan.kernel.cluster_size
    one_position_a_worker = dataclasses.replace(plan, grid=(plan.sk_units + plan.dp_tiles // size) * size)
    positions = schedule.schedule(one_position_a_worker)
    units_of: dict[int, set[int | None]] = {}
    for segments in positions:
        for segment in segments:
            units_of.setdefault(segment.work_tile, set()).add(segment.unit)
    assert plan.peers == max(len(units) for units in units_of.values())

    lengths = [sum(segment.k_end - segment.k_begin for segment in segments) for segments in positions]
    busiest = max(sum(lengths[slot :: slots(plan)]) for slot in range(slots(plan)))
    counted = sum(lengths) / (busiest * slots(plan))
    if plan.sk_units <= slots(plan):
        assert plan.efficiency == pytest.approx(counted)
    else:  # shares differ by an iteration, and a slot's units all count as the longer ones
        assert counted / 2 - 1e-9 <= plan.efficiency <= counted + 1e-9
    waves = ceil_div(plan.tiles // size, slots(plan))
    assert plan.data_parallel_efficiency == pytest.approx(plan.tiles / size / (waves * slots(plan)))


@settings(max_examples=100, deadline=None)
@given(requests(largest=20000))
def test_the_same_question_has_the_same_answer(request: tuple[Any, ...]) -> None:
    m, n, k, kernels, device, forced = request
    plan = make_plan(m, n, k, kernels, device, forced)
    again = make_plan(m, n, k, kernels, device, forced)
    assert (plan, plan.predicted_time_us, hash(plan), repr(plan)) == (again, again.predicted_time_us, hash(again), repr(again))


@settings(max_examples=100, deadline=None)
@given(requests(largest=20000))
def test_the_chosen_plan_is_the_best_of_all_candidates(request: tuple[Any, ...]) -> None:
    """Also where the planner stops looking, because what is left cannot be faster."""
    m, n, k, kernels, device, _ = request
    best = decide(m, n, k, kernel_set(tuple(kernels), device))
    assert best.time_us == min(candidate.time_us for candidate in scored(m, n, k, kernels, device, Options()))
    assert make_plan(m, n, k, kernels, device).predicted_time_us == best.time_us
    data_parallel = make_plan(m, n, k, kernels, device, Options(decomposition="data_parallel"))
    assert best.time_us <= data_parallel.predicted_time_us


@pytest.mark.skipif(planner._decide is None, reason="the native extension was not built")
@settings(max_examples=300, deadline=None)
@given(requests(largest=20000), st.sampled_from(["tt", "tn", "nt", "nn"]))
def test_the_extension_decides_as_python_does(request: tuple[Any, ...], layouts: Any) -> None:
    """To the last bit of the predicted time."""
    m, n, k, kernels, device, _ = request
    chosen = kernel_set(tuple(spec.with_layouts(*layouts) for spec in kernels), device)
    native = chosen.decided_natively(m, n, k)
    assert native == planner.decide_in_python(m, n, k, chosen)


def test_large_problems_and_large_sets_are_not_decided_natively() -> None:
    family = families("float16", "float16", "sm90a")
    for size in ((2**20 + 8, 8, 8), (8, 2**20 + 8, 8), (8, 8, 2**20 + 8)):
        assert kernel_set(family, H200).decided_natively(*size) is None
    many = tuple(dataclasses.replace(HOPPER_SINGLE, stages=stages) for stages in range(2, 3 + planner.MOST_KERNELS))
    assert kernel_set(many, H200).decided_natively(64, 64, 64) is None
    assert decide(64, 64, 64, kernel_set(many, H200)).work.spec in many


def test_a_plan_is_the_same_in_every_process() -> None:
    code = (
        "from cutlass_sk import Gemm; "
        "print([Gemm('float16', device=d).plan(*s) for d in ('h200', 'a100', 'toy:7') for s in ((512, 512, 8192), (1000, 3, 77))])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PATH": ""}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1 and "Plan(m=512" in outputs.pop()


def test_a_plan_is_frozen_hashable_printable_and_picklable() -> None:
    plan = make_plan(1024, 1024, 1024, [HOPPER], H200)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert {plan: "found"}[make_plan(1024, 1024, 1024, [HOPPER], H200)] == "found"
    assert plan != make_plan(1024, 1024, 1025, [HOPPER], H200)
    for field in dataclasses.fields(plan):
        assert f"{field.name}={getattr(plan, field.name)!r}" in repr(plan)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.grid = 1  # type: ignore[misc]


ILLEGAL: list[tuple[dict[str, Any], str]] = [
    *[
        ({**extra, name: value}, f"{name}={value!r} ")
        for name, extra in {
            "splits": {},
            "sms": {},
            "sk_tiles": {"decomposition": "stream_k"},
            "sk_units": {"decomposition": "stream_k"},
            "raster_swizzle": {},
        }.items()
        for value in (0, -1, True, False, 2.5, 2.0, "2", INT_MAX + 1, float("nan"))
    ],
    ({"sms": 133}, r"sms=133 must be a whole number from 1 to 132 \(the SMs of h200\)"),
    ({"decomposition": "magic"}, "decomposition='magic' is not known; use one of 'data_parallel', 'split_k', 'stream_k'"),
    ({"decomposition": 3}, "decomposition=3"),
    ({"reduction_mode": "random"}, "reduction_mode='random' is not known; use one of 'deterministic', 'nondeterministic'"),
    ({"reduction_mode": None}, "reduction_mode=None"),
    ({"raster_order": "diagonal"}, "raster_order='diagonal' is not known; use one of 'along_m', 'along_n'"),
    ({"splits": 2, "decomposition": "stream_k"}, "splits=2 belongs to decomposition='split_k', not 'stream_k'"),
    ({"splits": 2, "decomposition": "data_parallel"}, "splits=2 belongs to decomposition='split_k', not 'data_parallel'"),
    ({"sk_tiles": 3}, "sk_tiles=3 belongs to decomposition='stream_k'"),
    ({"sk_tiles": 3, "decomposition": "split_k"}, "sk_tiles=3 belongs to decomposition='stream_k', not 'split_k'"),
    ({"sk_units": 4, "decomposition": "data_parallel"}, "sk_units=4 belongs to decomposition='stream_k', not 'data_parallel'"),
]


@pytest.mark.parametrize(("forced", "message"), ILLEGAL, ids=str)
def test_an_illegal_option_is_named_with_its_value(forced: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(512, 512, 512, [HOPPER], H200, Options(**forced))


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "8", None, 2**31, float("inf")])
@pytest.mark.parametrize("position", range(3))
def test_an_illegal_size_is_named_with_its_value(position: int, value: Any) -> None:
    sizes: list[Any] = [64, 64, 64]
    sizes[position] = value
    with pytest.raises(PlanError, match=f"{'mnk'[position]}={value!r} must be a whole number from 1 to {INT_MAX}"):
        make_plan(*sizes, [HOPPER], H200)


def test_a_kernel_with_one_raster_order_refuses_another() -> None:
    for forced in ({"raster_order": "along_m"}, {"raster_swizzle": 2}):
        with pytest.raises(PlanError, match="raster_order and raster_swizzle cannot be forced"):
            make_plan(1024, 512, 512, [AMPERE], A100, Options(**forced))  # type: ignore[arg-type]
    plan = make_plan(1024, 512, 512, [AMPERE], A100, Options(raster_order="along_n", raster_swizzle=1))
    assert plan.raster_order == "along_n"


HUGE = [1, 2**20 + 1, 2**27 + 1, INT_MAX]


@pytest.mark.parametrize("kernel", [HOPPER, HOPPER_SINGLE, AMPERE], ids=str)
@pytest.mark.parametrize("decomposition", [None, *DECOMPOSITIONS])
def test_huge_sizes_give_a_plan_or_a_plan_error_at_once(kernel: KernelSpec, decomposition: Any) -> None:
    device = A100 if kernel is AMPERE else H200
    planned = 0
    for m, n, k in [(m, n, k) for m in HUGE for n in HUGE for k in HUGE]:
        start = time.perf_counter()
        try:
            plan = make_plan(m, n, k, [kernel], device, Options(decomposition=decomposition))
        except PlanError as error:
            assert any(word in str(error) for word in ("too many", "beyond 32-bit", "too long"))
        else:
            planned += 1
            counts = (plan.grid, plan.tiles, plan.sk_units, plan.sk_tiles // kernel.cluster_size * plan.iters_per_tile)
            assert all(0 <= count <= INT_MAX for count in counts)
        assert time.perf_counter() - start < 1, (m, n, k)
    assert planned >= 8


@pytest.mark.parametrize(
    ("size", "kernel", "device", "forced"),
    [
        ((2**20 + 1, 2**20 + 1, 64), HOPPER_SINGLE, H200, {"sk_tiles": INT_MAX}),
        ((1000, INT_MAX, 128), HOPPER, "toy:3", {"sk_tiles": 10**8 + 1}),
        ((2, 2**30, 127), HOPPER_SINGLE, "toy:1024", {"sk_tiles": INT_MAX, "sk_units": 3}),
        ((4096, 2**27 + 1, 128), AMPERE, "toy:1024", {"sk_tiles": 10**8 + 1, "sk_units": INT_MAX}),
        ((128, 128, INT_MAX), HOPPER, H200, {"sk_units": INT_MAX}),
    ],
    ids=str,
)
def test_huge_shared_parts_are_planned_at_once(size: tuple[int, int, int], kernel: KernelSpec, device: Any, forced: Any) -> None:
    device = device if isinstance(device, Device) else preset(device)
    start = time.perf_counter()
    try:
        plan = make_plan(*size, [kernel], device, Options(decomposition="stream_k", **forced))
        assert 1 <= plan.peers <= plan.sk_units
    except PlanError:
        pass
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(("m", "n", "k", "grid"), [(256, 3584, 8192, 108), (1024, 1024, 1024, 64), (128, 128, 16384, 8)])
def test_the_model_chooses_the_grids_of_the_paper(m: int, n: int, k: int, grid: int) -> None:
    """Figure 8 of the Stream-K paper: an A100 and the fp16 kernel of 128x128x32."""
    constants = calibration.constants(AMPERE, A100)
    assert AMPERE.tile == (128, 128, 32)
    assert model.best_grid(constants, ceil_div(m, 128) * ceil_div(n, 128), ceil_div(k, 32), A100.sms) == grid


def test_grid_time_is_the_equation_of_the_paper() -> None:
    constants = model.Constants(a=1000.0, b=100.0, c=1.0, d=10.0, d_parallel=0.0)
    assert model.grid_time_us(constants, tiles=3, iters_per_tile=8, g=3) == 1000 + 8
    assert model.grid_time_us(constants, tiles=3, iters_per_tile=8, g=6) == 1000 + 100 + 4 + 10
    assert model.grid_time_us(constants, tiles=3, iters_per_tile=8, g=24) == 1000 + 100 + 1 + 70
    assert model.grid_time_us(constants, tiles=3, iters_per_tile=8, g=1) == 1000 + 24


def test_few_tiles_and_a_long_k_are_shared_and_full_waves_are_not() -> None:
    few = make_plan(128, 128, 16384, families("float16", "float16", "sm90a"), H200)
    assert few.decomposition != "data_parallel" and few.peers > 4 and few.efficiency >= 8 * few.data_parallel_efficiency
    full = make_plan(128 * 12, 128 * 11, 4096, [HOPPER_SINGLE], H200)
    assert (full.decomposition, full.efficiency, full.grid) == ("data_parallel", 1.0, 132)


@pytest.mark.parametrize(("size", "clusters"), [(1, 132), (2, 66), (3, 39), (4, 30), (8, 15)])
def test_clusters_of_a_whole_h200(size: int, clusters: int) -> None:
    """As counted on one: a cluster lies within a GPC, and those have 16 or 18 SMs."""
    assert model.clusters(H200.sms, size) == clusters
    assert all(model.clusters(sms, size) * size <= sms for sms in range(1, 300))
    counts = [model.clusters(sms, size) for sms in range(300)]
    assert counts == sorted(counts) and counts[0] == 0


FP64 = families("float64", "float64", "sm90a")
LEADING = {"tt": "kn", "tn": "kk", "nt": "mn", "nn": "mk"}
"""The sizes that are leading dimensions of dense a and b, by layouts."""


@pytest.mark.parametrize("layouts", LEADING)
@pytest.mark.parametrize("odd", ["", "m", "n", "k", "mn", "mk", "nk", "mnk"])
def test_odd_rows_of_float64_are_packed_for_tma_where_that_pays(layouts: Any, odd: str) -> None:
    """Only the dimension that rows of a and b are apart by counts, in each layout; c's never does."""
    assert {spec.api for spec in FP64} == {"2x", "3x"} and FP64[-1].api == "2x"
    kernels = kernel_set(tuple(spec.with_layouts(*layouts) for spec in FP64), H200)
    for sizes, pays in (((128, 128, 128), True), ((400, 400, 1600), False), ((4000, 4000, 4000), True)):
        m, n, k = (size + (letter in odd) for size, letter in zip(sizes, "mnk", strict=True))
        ragged = bool(set(LEADING[layouts]) & set(odd))
        assert tuple(profile.spec for profile in kernels.profiles(m, n, k)) == FP64
        assert decide(m, n, k, kernels).work.spec.api == ("2x" if ragged and not pays else "3x")
        lead = LEADING[layouts]
        nbytes = 8 * ((m * k if lead[0] in odd else 0) + (k * n if lead[1] in odd else 0))
        assert kernels.packing_us(m, n, k, 2) == model.packing_us(nbytes) and kernels.packing_us(m, n, k, 1) == 0


@pytest.mark.parametrize(
    ("shared", "units", "fixup"),
    [
        (33, 132, "separate"),
        (34, 132, "serial"),
        (40, 104, "separate"),
        (40, 105, "serial"),
        (66, 132, "serial"),
        (9, 132, "separate"),
    ],
)
def test_partial_sums_get_ctas_of_their_own_where_an_sm_has_two_at_most(shared: int, units: int, fixup: str) -> None:
    """Of a 2.x kernel: a CTA a unit, and one a fragment of each shared tile. Few peers are added up serially anyhow."""
    work = cut_up(260, 719, 8179, FP64[-1], H200)
    assert (work.slots, work.spec.accumulator_fragments) == (132, 4)
    assert fixup_of(work, Choice(shared, units)) == fixup


def test_packing_is_part_of_what_a_call_is_expected_to_take() -> None:
    kernels = kernel_set(families("float16", "float16", "sm90a"), H200)
    assert kernels.packing_us(1, 8, 9, 8) == 0 < kernels.packing_us(1, 9, 9, 8) < kernels.packing_us(2, 9, 9, 8)
    aligned, packed = (decide(1000, 1000, k, kernels) for k in (1000, 999))
    assert packed.time_us - score(packed.work, packed.choice) == pytest.approx(model.packing_us(2 * 999 * 1000))
    assert aligned.time_us == score(aligned.work, aligned.choice) and model.packing_us(0) == 0
    forced = list(planner.scored(1000, 1000, 999, families("float16", "float16", "sm90a"), H200, Options(decomposition="stream_k")))
    assert all(one.time_us - score(one.work, one.choice) > model.PACKING_US for one in forced)


def test_tma_takes_odd_rows_of_float64_where_it_is_alone() -> None:
    """Operands are packed then."""
    tma = FP64[:-1]
    assert tuple(profile.spec for profile in kernel_set(tma, H200).profiles(1001, 1001, 1001)) == tma


@pytest.mark.parametrize("size", [(64, 64, 64), (640, 640, 632), (640, 644, 640), (640, 640, 639), (639, 640, 640)])
def test_ragged_float32_outputs_are_for_kernels_that_can_end_chains(size: tuple[int, int, int]) -> None:
    family = at_all_widths(families("float16", "float32", "sm90a"))
    promotable = tuple(spec for spec in family if spec.takes_promotion)
    assert 0 < len(promotable) < len(family)
    kernels = kernel_set(family, H200)
    ragged = size[1] % 8 != 0 or size[2] % 8 != 0
    assert tuple(profile.spec for profile in kernels.profiles(*size)) == (promotable if ragged else family)
    assert tuple(profile.spec for profile in kernels.profiles(*size, promoted=True)) == promotable
    halves = families("float16", "float16", "sm90a")
    assert tuple(profile.spec for profile in kernel_set(halves, H200).profiles(*size)) == halves


def test_kernels_whose_clusters_do_not_fit_are_left_out() -> None:
    family = families("float16", "float16", "sm90a")
    for sms in (1, 2, 3, 4):
        found = tuple(profile.spec for profile in kernel_set(family, H200, sms).profiles(512, 512, 512))
        assert found == tuple(spec for spec in family if spec.cluster_size <= sms)
    pair = tuple(spec for spec in family if spec.cluster_size == 2)
    assert tuple(profile.spec for profile in kernel_set(pair, H200, 1).profiles(512, 512, 512)) == pair


@pytest.mark.parametrize("size", [(1024, 1024, 1024), (1001, 999, 77)])
@pytest.mark.parametrize("forced", [{"raster_order": "along_m"}, {"raster_order": "along_n"}, {"raster_swizzle": 3}], ids=str)
def test_a_raster_is_forced_on_kernels_that_have_one(size: tuple[int, int, int], forced: Any) -> None:
    """float64 has both kinds on Hopper."""
    plan = make_plan(*size, FP64, H200, Options(**forced))
    assert plan.kernel.persistent and {name: getattr(plan, name) for name in forced} == forced


def test_splits_in_clusters_are_as_the_kernel_takes_them() -> None:
    spec = next(spec for spec in families("float16", "float16", "sm90a") if spec.cluster_fixup).at(64)
    plan = make_plan(128, 128, 16384, [spec], H200)
    assert (plan.fixup, plan.decomposition, plan.sk_tiles, plan.dp_tiles) == ("cluster", "split_k", 4, 0)
    assert plan.splits in CLUSTER_SPLITS and plan.grid == plan.sk_units == 4 * plan.splits and plan.workspace_bytes == 0
    kinds = {
        (candidate.choice.splits, candidate.choice.in_cluster) for candidate in scored(128, 128, 16384, [spec], H200, Options())
    }
    assert {(splits, True) for splits in CLUSTER_SPLITS} <= kinds and (8, False) in kinds
    other = dataclasses.replace(spec, schedule="single", tile=(32, 64, 64), narrowest=0, widest=0)
    for wrong in (
        {"splits": 5, "sk_units": 20, "grid": 20},
        {"grid": 2 * plan.grid},
        {"kernel": other, "tiles_m": 4, "tiles_n": 2},
    ):
        with pytest.raises(PlanError, match="does not hold together"):
            dataclasses.replace(plan, **wrong).check()


@pytest.mark.parametrize("sms", [1, 2, 3, 131, 132])
def test_the_grid_is_no_wider_than_asked(sms: int) -> None:
    for size in ((4096, 4096, 4096), (128, 128, 16384), (64, 64, 64)):
        for decomposition in (None, "data_parallel", "stream_k"):
            forced: Any = {"decomposition": decomposition, "sms": sms}
            plan = make_plan(*size, families("float16", "float16", "sm90a"), H200, Options(**forced))
            assert plan.grid <= plan.requested_grid == sms


@pytest.mark.parametrize("size", [(2**20, 2**20, 16), (2**21, 2**21, 64), (2**31 - 1, 2048, 64)])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_kernels_with_too_many_tiles_leave_a_problem_to_others(size: tuple[int, int, int], dtype: str) -> None:
    gemm = Gemm(dtype, device="h200")
    plan = gemm.plan(*size)
    plan.check()
    assert gemm.explain(*size).plan == plan
    with pytest.raises(PlanError, match="split the problem"):
        Gemm(dtype, device="h200").plan(2**31 - 1, 2**31 - 1, 64)


@pytest.mark.parametrize(
    ("forced", "most"),
    [
        ({"splits": 100}, {"splits": 2}),
        ({"decomposition": "stream_k", "sk_units": 100}, {"sk_units": 2}),
        ({"decomposition": "stream_k", "sk_tiles": 100}, {"sk_tiles": 2}),
    ],
)
def test_more_than_there_is_counts_as_all(forced: dict[str, Any], most: dict[str, int]) -> None:
    """Of one cluster of two tiles, of two k-tiles, as Options and the README say."""
    plan = Gemm("float16", device="h200", tile=(128, 128, 64), cluster=(2, 1)).plan(128, 128, 128, **forced)
    assert {name: getattr(plan, name) for name in most} == most


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint64, torch.tensor])
@pytest.mark.parametrize(
    "forced",
    [{"splits": 4}, {"sms": 100}, {"decomposition": "stream_k", "sk_tiles": 8, "sk_units": 9}, {"raster_swizzle": 2}],
    ids=str,
)
def test_whole_numbers_of_any_type_are_as_good_as_ints(kind: Any, forced: dict[str, Any]) -> None:
    same = {name: kind(value) if isinstance(value, int) else value for name, value in forced.items()}
    plan = Gemm("float16", device="h200").plan(512, 512, 8192, **same)
    assert plan == Gemm("float16", device="h200").plan(512, 512, 8192, **forced)
    plan.check()


@pytest.mark.parametrize("kernels", [[3], [None], [[]], 1.5, [], 0, True, iter([])], ids=repr)
def test_what_names_no_kernels_is_refused(kernels: Any) -> None:
    with pytest.raises(PlanError, match="kernels="):
        Gemm("float16", kernels=kernels)


@pytest.mark.parametrize("size", [[1], {}, 64.0, None, "1"], ids=repr)
def test_sizes_that_are_no_numbers_are_refused(size: Any) -> None:
    with pytest.raises(PlanError, match="whole number"):
        Gemm("float16", device="h200").plan(size, 2, 3)


def test_layouts_are_t_or_n() -> None:
    for layout in ("x", "T", None, []):
        with pytest.raises(PlanError, match="layout_b"):
            Gemm("float16", device="h200").explain(64, 64, 64, layout_b=layout)  # type: ignore[arg-type]


def test_a_set_is_decided_natively_at_all_of_its_widths() -> None:
    for dtypes in DTYPES:
        variants = at_all_widths(families(*dtypes, "sm90a"))
        assert len(variants) <= planner.MOST_KERNELS
        chosen = kernel_set(variants, H200)
        for size in ((256, 3584, 8192), (1024, 1024, 1024), (8, 8192, 64), (4000, 72, 1920), (1001, 999, 777), (4001, 4001, 9)):
            assert chosen.decided_natively(*size) == planner.decide_in_python(*size, chosen)


def test_a_width_is_forced() -> None:
    gemm = Gemm("float16", device="h200")
    for width in gemm.spec.widths:
        plan = gemm.plan(1000, 1000, 1000, tile_n=width)
        assert plan.kernel.tile[1] == width and plan.kernel.binary in gemm.kernels
        plan.check()
    assert gemm.plan(640, 640, 640, tile_n=np.int64(96)).kernel.tile[1] == 96
    with pytest.raises(PlanError, match="tile_n=100 is no width of these kernels' tiles; use one of 32, 64, 96, "):
        gemm.plan(64, 64, 64, tile_n=100)
    for wrong in (0, -32, 1.5, True, "64"):
        with pytest.raises(PlanError, match=r"tile_n=.* must be a whole number from 1"):
            gemm.plan(64, 64, 64, tile_n=wrong)  # type: ignore[arg-type]
    narrow = Gemm("float64", device="h200").plan(500, 500, 500, tile_n=32)
    assert narrow.kernel.tile[1] == 32
    with pytest.raises(PlanError, match="use one of 128"):
        Gemm("float16", device="a100").plan(64, 64, 64, tile_n=64)


def test_widths_share_what_their_binary_decides() -> None:
    """Slots of partial sums are those of the widest tile; tiles are those of the width."""
    spec = families("float16", "float16", "sm90a")[0]
    plans = [make_plan(2048, 2048, 2048, [used], H200, Options(splits=2)) for used in spec.variants]
    assert [plan.tiles_n for plan in plans] == [ceil_div(2048, width) for width in spec.widths]
    for plan in plans:
        assert plan.partials_bytes == plan.sk_units * spec.cluster_size * 64 * spec.widest * 4
        wrong = dataclasses.replace(plan, kernel=spec.at(64 if plan.kernel.tile[1] != 64 else 96))
        with pytest.raises(PlanError, match="does not hold together in tiles_n"):
            wrong.check()


def test_promotion_is_for_widths_that_have_registers_for_it() -> None:
    gemm = Gemm("float16", out_dtype="float32", device="h200")
    for size in ((1001, 1003, 1005), (8192, 8192, 8191)):
        plan = gemm.plan(*size)
        assert plan.kernel.takes_promotion and plan.promotion in (64, 128)
    assert gemm.plan(4096, 4096, 4096, promotion=128).kernel.takes_promotion
    with pytest.raises(PlanError, match="promotion=128 does not fit"):
        gemm.plan(4096, 4096, 4096, promotion=128, tile_n=256)
    plan = Gemm("float16", out_dtype="float32", device="h200", kernels=1).plan(4096, 4096, 4096, promotion=64, tile_n=64)
    with pytest.raises(PlanError, match=r"does not hold together in .*promotion"):
        dataclasses.replace(plan, kernel=plan.kernel.binary).check()
