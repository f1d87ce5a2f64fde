"""Executing a plan gives the product: exactly, where sums are exact, whatever the decomposition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import AMPERE, CLUSTERED, HOPPER, SWAPPED, any_plan, cluster_spec, make

from cutlass_sk import reference
from cutlass_sk.device import PRESETS
from cutlass_sk.errors import PlanError
from cutlass_sk.generator.catalog import families
from cutlass_sk.generator.spec import KernelSpec
from cutlass_sk.options import Options
from cutlass_sk.plan import CLUSTER_SPLITS, Plan
from cutlass_sk.planner import Scored, build, make_plan
from cutlass_sk.reference import execute
from cutlass_sk.schedule import Reduction, Segment
from cutlass_sk.work import Choice, cut_up

DOUBLE = replace(HOPPER, dtype="float64", out_dtype="float64")
TWO_UNITS = make(4, 12, 8, decomposition="stream_k", sk_units=2)
"""Three tiles of four iterations: unit 0 leaves the second tile to unit 1."""


def integers(plan: Plan, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """a and b with elements in {-1, 0, 1}, so that every sum is exact."""
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, plan.kernel.dtype)
    a = torch.randint(-1, 2, (plan.m, plan.k), generator=generator)
    b = torch.randint(-1, 2, (plan.k, plan.n), generator=generator)
    return a.to(dtype), b.to(dtype)


def poisoned(plan: Plan) -> torch.Tensor:
    return torch.full((plan.m, plan.n), torch.nan, dtype=getattr(torch, plan.kernel.out_dtype))


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.to(torch.int64) @ b.to(torch.int64)


def check_exact(plan: Plan, seed: int = 0) -> None:
    a, b = integers(plan, seed)
    c = poisoned(plan)
    execute(plan, a, b, c)
    assert torch.equal(c, product(a, b).to(c.dtype))


@settings(max_examples=150, deadline=None)
@given(any_plan(max_tiles=4, max_iters=6), st.integers(0, 2**31))
def test_any_plan_gives_the_exact_product(plan: Plan, seed: int) -> None:
    check_exact(plan, seed)


@pytest.mark.parametrize(
    "plan",
    [
        make(13, 10, 7),
        make(13, 10, 7, decomposition="split_k", splits=2),
        make(13, 10, 7, decomposition="split_k", splits=9),
        make(13, 10, 7, decomposition="split_k", splits=3, sk_tiles=5),
        make(13, 10, 7, decomposition="stream_k", workers=5),
        make(13, 10, 7, decomposition="stream_k", workers=5, sk_tiles=7),
        make(13, 10, 7, decomposition="stream_k", workers=5, sk_units=17),
        make(13, 10, 7, cluster_spec(2, 2), decomposition="stream_k", workers=3, raster_order="along_n", raster_swizzle=2),
        make(75, 10, 7, AMPERE, decomposition="stream_k", sk_units=7),
        make(75, 10, 9, AMPERE, decomposition="stream_k", sk_units=19, separate_reduction=True),
        make(75, 10, 7, AMPERE, decomposition="split_k", splits=3, sk_tiles=4, separate_reduction=True),
        make(1, 9, 5, decomposition="stream_k", workers=4),
        make(9, 1, 5, decomposition="stream_k", workers=4),
        make(1, 1, 1),
        make(6, 6, 1, decomposition="stream_k", workers=3),
        make(1, 1, 40, decomposition="stream_k", workers=7),
    ],
    ids=lambda plan: f"{plan.m}x{plan.n}x{plan.k} {plan.decomposition} {plan.sk_tiles}/{plan.sk_units} {plan.kernel.api}",
)
def test_each_decomposition_gives_the_exact_product(plan: Plan) -> None:
    check_exact(plan)


@pytest.mark.parametrize("splits", CLUSTER_SPLITS)
@pytest.mark.parametrize("size", [(64, 8, 16), (100, 20, 17), (1, 1, 40), (130, 9, 33)], ids=str)
@pytest.mark.parametrize("swapped", [False, True])
def test_splits_in_clusters_give_the_exact_product(splits: int, size: tuple[int, int, int], swapped: bool) -> None:
    spec = replace(CLUSTERED, swapped=swapped)
    work = cut_up(*size, spec, PRESETS["h200"])
    choice = Choice(work.work_tiles, work.work_tiles * splits, splits, in_cluster=True)
    plan = build(Scored(1.0, work, choice), Options())
    plan.check()
    assert (plan.fixup, plan.peers, plan.workspace_bytes) == ("cluster", splits, 0)
    check_exact(plan)


@pytest.mark.parametrize(
    "plan",
    [
        make(5, 40, 7, SWAPPED),
        make(40, 5, 7, SWAPPED, decomposition="split_k", splits=3),
        make(33, 17, 9, SWAPPED, decomposition="stream_k", workers=5),
        make(17, 33, 9, SWAPPED, decomposition="stream_k", workers=5, sk_units=7, raster_order="along_n", raster_swizzle=2),
        make(1, 29, 5, SWAPPED, decomposition="stream_k", workers=4),
        make(29, 1, 5, SWAPPED, decomposition="stream_k", workers=4, sk_tiles=2),
    ],
    ids=lambda plan: f"{plan.m}x{plan.n}x{plan.k} {plan.decomposition}",
)
def test_swapped_plans_give_the_exact_product(plan: Plan) -> None:
    """Rectangular and ragged: the kernel's rows are columns of c."""
    assert plan.swapped and (plan.tiles_m, plan.tiles_n) == (2 * -(-plan.n // 8), -(-plan.m // 8))
    check_exact(plan)


@pytest.mark.parametrize("size", [(70, 300, 200), (300, 70, 200), (129, 257, 65), (1, 200, 1000)], ids=str)
@pytest.mark.parametrize("spec", families("float16", "float32", "sm90a"), ids=str)
def test_each_kernel_of_the_set_gives_the_exact_product(spec: KernelSpec, size: tuple[int, int, int]) -> None:
    for decomposition in (None, "data_parallel", "stream_k"):
        check_exact(make_plan(*size, [spec], PRESETS["h200"], Options(decomposition=decomposition)))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("wide", [False, True])
def test_every_dtype_gives_the_exact_product(dtype: str, wide: bool) -> None:
    out_dtype = "float64" if dtype == "float64" else "float32" if wide else dtype
    spec = replace(HOPPER, dtype=dtype, out_dtype=out_dtype)
    check_exact(make(9, 14, 11, spec, decomposition="stream_k", workers=5))


@pytest.mark.parametrize("spec", [HOPPER, AMPERE], ids=str)
def test_alpha_and_beta(spec: KernelSpec) -> None:
    plan = make(41, 7, 9, spec, decomposition="stream_k", sk_units=60, workers=8, separate_reduction=not spec.persistent)
    a, b = integers(plan)
    before = torch.randint(-8, 8, (41, 7), generator=torch.Generator().manual_seed(1)).float()
    c = before.clone()
    execute(plan, a, b, c, alpha=0.5, beta=-2.0)
    assert torch.equal(c, 0.5 * product(a, b) - 2.0 * before)


def test_operands_may_have_any_strides_and_nothing_outside_c_is_written() -> None:
    plan = make(9, 6, 7, decomposition="split_k", splits=2)
    a, b = integers(plan)
    frame = torch.full((20, 30), -7.0)
    c = frame.T[3:21:2, 2:8]
    execute(plan, a.T.contiguous().T, b.repeat_interleave(3, dim=1)[:, ::3], c)
    assert torch.equal(c, product(a, b).float())
    c.fill_(-7.0)
    assert torch.equal(frame, torch.full((20, 30), -7.0))


def test_the_result_is_rounded_to_the_output_dtype_once() -> None:
    """2049 is no float16: rounded before c is added, the sum would be 2047."""
    spec = replace(HOPPER, out_dtype="float16", tile=(4, 4, 64))
    plan = make(1, 1, 2049, spec, decomposition="stream_k", workers=3)
    a, b = torch.ones(1, 2049, dtype=torch.float16), torch.ones(2049, 1, dtype=torch.float16)
    c = torch.full((1, 1), -1.0, dtype=torch.float16)
    execute(plan, a, b, c, beta=1.0)
    assert c.item() == 2048


@pytest.mark.parametrize(("spec", "kept"), [(replace(HOPPER, dtype="bfloat16"), 0), (DOUBLE, 1)], ids=str)
def test_sums_are_float32_but_float64_for_float64(spec: KernelSpec, kept: int) -> None:
    """2**27 + 1 - 2**27, one k-tile each: float32 loses the 1."""
    dtype = getattr(torch, spec.dtype)
    plan = make(1, 1, 6, spec)
    c = poisoned(plan)
    execute(plan, torch.tensor([[2.0**27, 0, 1, 0, -(2.0**27), 0]], dtype=dtype), torch.ones(6, 1, dtype=dtype), c)
    assert c.item() == kept


def test_partial_sums_are_kept_in_float32() -> None:
    """The first unit's 2049 would be 2048 in float16."""
    spec = replace(HOPPER, out_dtype="float16", tile=(4, 4, 64))
    plan = make(1, 1, 4224, spec, decomposition="split_k", splits=2)
    a, b = torch.ones(1, 4224, dtype=torch.float16), torch.ones(4224, 1, dtype=torch.float16)
    a[:, 2049:2112] = 0
    a[:, 2112:] = -1
    c = poisoned(plan)
    execute(plan, a, b, c)
    assert c.item() == 2049 - 2112


def test_a_finisher_adds_its_peers_to_its_own_sums_in_order() -> None:
    """Only (2**27 - 2**27) + 1 is 1: any other order loses the 1. The nearest unit comes first."""
    plan = make(1, 1, 6, replace(HOPPER, dtype="bfloat16"), decomposition="split_k", splits=3)
    a = torch.tensor([[1, 0, -(2.0**27), 0, 2.0**27, 0]], dtype=torch.bfloat16)
    c = poisoned(plan)
    execute(plan, a, torch.ones(6, 1, dtype=torch.bfloat16), c)
    assert c.item() == 1


def test_a_separate_reduction_adds_peers_in_order() -> None:
    """Only (2**27 - 2**27) + 1 is 1: any other order loses the 1."""
    spec = replace(AMPERE, dtype="bfloat16")
    plan = make(1, 1, 6, spec, decomposition="split_k", splits=3, separate_reduction=True)
    a = torch.tensor([[2.0**27, 0, -(2.0**27), 0, 1, 0]], dtype=torch.bfloat16)
    c = poisoned(plan)
    execute(plan, a, torch.ones(6, 1, dtype=torch.bfloat16), c)
    assert c.item() == 1


def test_a_tensor_that_does_not_fit_the_plan_is_refused_and_c_is_left_alone() -> None:
    a, b = integers(TWO_UNITS)
    c = poisoned(TWO_UNITS)
    with pytest.raises(PlanError, match=r"a must be \(4, 8\) torch.float16 on cpu for this plan, not \(4, 8\) torch.float32"):
        execute(TWO_UNITS, a.float(), b, c)
    with pytest.raises(PlanError, match=r"b must be \(8, 12\)"):
        execute(TWO_UNITS, a, b.T, c)
    with pytest.raises(PlanError, match=r"c must be \(4, 12\) torch.float32"):
        execute(TWO_UNITS, a, b, c.half())
    assert c.isnan().all()


PARTIAL, FINISH = Segment(0, 1, 0, 2, "partial"), Segment(1, 1, 2, 4, "finish", (0,))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ([[FINISH, PARTIAL]], "deadlock: all 1 unfinished workers wait"),
        ([[FINISH], []], "deadlock"),
        ([[PARTIAL], []], "read 0 times, not 1"),
        ([[PARTIAL], [FINISH, FINISH]], "read 2 times, not 1"),
        ([[PARTIAL, PARTIAL], [FINISH]], "would overwrite"),
        ([[replace(PARTIAL, work_tile=0)], [FINISH]], "holds sums for work tile 0, not 1"),
        ([[replace(PARTIAL, unit=None)], []], "no slot"),
    ],
)
def test_a_broken_schedule_is_caught(broken: list[list[Segment]], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "schedule", lambda plan: broken)
    a, b = integers(TWO_UNITS)
    with pytest.raises(PlanError, match=message):
        execute(TWO_UNITS, a, b, poisoned(TWO_UNITS))


def test_a_separate_reduction_of_shares_longer_than_a_tile_is_caught() -> None:
    """Three units in seven tiles: a unit would need a slot for each tile that it starts."""
    plan = make(7 * 32, 4, 4, AMPERE, decomposition="stream_k", sk_units=3, separate_reduction=True)
    a, b = integers(plan)
    with pytest.raises(PlanError, match="unit 0 holds sums for work tile 2, not 0"):
        execute(plan, a, b, poisoned(plan))


def test_a_fragment_is_eight_rows_of_each_warps_part(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make(32, 4, 4, AMPERE, decomposition="split_k", splits=2, separate_reduction=True)
    monkeypatch.setattr(reference, "reductions", lambda plan: [Reduction(0, 1, (0, 1))])
    c = poisoned(plan)
    execute(plan, *integers(plan), c)
    assert [row for row in range(32) if not c[row].isnan().any()] == [*range(8, 16), *range(24, 32)]
    assert c.isnan().sum() == 16 * 4


def test_a_worker_that_waits_lets_the_others_run() -> None:
    """Unit 2 finishes on worker 0 what unit 1 began on worker 1, which is served later."""
    plan = make(4, 4, 6, decomposition="split_k", workers=2, splits=3)
    check_exact(plan)
