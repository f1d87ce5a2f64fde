"""Inputs in {-1, 0, 1}: float32 sums are exact, so every schedule must give the same bits, and the right ones."""

from __future__ import annotations

from random import Random

import pytest
import torch
from problems import KERNELS, cluster_plans, gemm_of, operands, plans, poisoned, random_plan

from cutlass_sk import KernelSpec, Plan
from cutlass_sk.device import real
from cutlass_sk.kernel import load_kernel, plan_struct, problem_struct

# Ragged in every dimension for most tiles; 45 tiles of 128x128, 20 k-tiles of 64.
SHAPE = (1096, 584, 1240)


def compare(c: torch.Tensor, exact: torch.Tensor, plan: Plan) -> None:
    """Bit-equal, or how many elements are not, where they lie and what the first of them are."""
    if torch.equal(c, exact):
        return
    where = (c != exact).nonzero()
    low, high = where.min(0).values.tolist(), where.max(0).values.tolist()
    first = [(row, column, float(c[row, column]), float(exact[row, column])) for row, column in where[:3].tolist()]
    raise AssertionError(f"{len(where)} elements wrong, from {low} to {high}; the first (is, should be): {first}; {plan}")


@pytest.mark.parametrize("spec", KERNELS, ids=str)
def test_every_schedule_gives_the_exact_product(spec: KernelSpec) -> None:
    m, n, k = SHAPE
    gemm = gemm_of(spec)
    a, b = operands(spec, m, n, k, exact=True)
    exact = (a.double() @ b.double()).to(gemm.out_dtype)
    for plan in plans(gemm, m, n, k):
        compare(gemm.run(a, b, poisoned(spec, m, n), plan=plan), exact, plan)


@pytest.mark.parametrize(
    "spec", [spec for spec in KERNELS if spec.dtype == "float64" or (spec.layout_a, spec.layout_b) == ("t", "n")], ids=str
)
@pytest.mark.parametrize(
    "shape",
    [(1, 8, 8), (8, 8, 16), (128, 128, 64), (136, 72, 9000), (8, 2048, 40), (2048, 8, 520), (1, 1024, 4096), (2600, 2600, 64)],
    ids=str,
)
def test_small_and_lopsided_problems(spec: KernelSpec, shape: tuple[int, int, int]) -> None:
    gemm = gemm_of(spec)
    a, b = operands(spec, *shape, exact=True)
    exact = (a.double() @ b.double()).to(gemm.out_dtype)
    for options in ({}, {"decomposition": "stream_k"}, {"splits": 7}, {"splits": 64}, {"decomposition": "data_parallel"}):
        plan = gemm.plan(*shape, **options)
        compare(gemm.run(a, b, poisoned(spec, shape[0], shape[1]), plan=plan), exact, plan)


@pytest.mark.parametrize("spec", [spec for spec in KERNELS if spec.dtype == "float64" and spec.api == "3x"], ids=str)
@pytest.mark.parametrize("shape", [(2600, 2600, 64), (1736, 4424, 128)], ids=str)
def test_many_short_tiles_100_times(spec: KernelSpec, shape: tuple[int, int, int]) -> None:
    """The producer waits for every stage that is given back: one that is given back too early is overwritten while it is read."""
    gemm = gemm_of(spec)
    a, b = operands(spec, *shape, exact=True)
    exact = a @ b
    c, wrong = torch.empty_like(exact), torch.zeros((), device="cuda", dtype=torch.int64)
    for options in ({"decomposition": "data_parallel"}, {"decomposition": "stream_k"}):
        plan = gemm.plan(*shape, **options)
        for _ in range(50):
            c.fill_(float("nan"))
            gemm.run(a, b, c, plan=plan)
            wrong += (c != exact).sum()
    assert int(wrong) == 0


@pytest.mark.parametrize("spec", [spec for spec in KERNELS if spec.cluster_fixup], ids=str)
@pytest.mark.parametrize("shape", [(128, 128, 8192), (64, 64, 4096), (200, 72, 1288), (1096, 584, 640)], ids=str)
def test_splits_in_clusters_add_to_the_old_values(spec: KernelSpec, shape: tuple[int, int, int]) -> None:
    """Also peers that have no part of the tile to load and store."""
    m, n, k = shape
    gemm = gemm_of(spec)
    a, b = operands(spec, m, n, k, exact=True)
    old = torch.randint(-2, 3, (m, n), device="cuda").to(gemm.out_dtype)
    exact = (a.double() @ b.double() + 2 * old.double()).to(gemm.out_dtype)
    plans = cluster_plans(spec, m, n, k)
    assert {plan.splits for plan in plans} == {2, 3, 4, 8}
    for plan in plans * 20:
        compare(gemm.run(a, b, old.clone(), beta=2.0, plan=plan), exact, plan)


ONE_OF_A_KIND = {(s.generation, s.dtype, s.schedule, s.cluster_size > 1, s.swapped): s for s in reversed(KERNELS)}


@pytest.mark.parametrize("spec", ONE_OF_A_KIND.values(), ids=str)
def test_random_plans(spec: KernelSpec) -> None:
    """Some 60 plans and shapes for each kind of kernel, more than 500 in all."""
    random, gemm = Random(spec.name), gemm_of(spec)
    for _ in range(60):
        m, n, k = (random.randint(1, 130) * 8 for _ in range(3))
        a, b = operands(spec, m, n, k, exact=True)
        exact = (a.double() @ b.double()).to(gemm.out_dtype)
        plan = random_plan(gemm, m, n, k, random)
        compare(gemm.run(a, b, poisoned(spec, m, n), plan=plan), exact, plan)


def test_there_are_500_random_plans() -> None:
    assert 60 * len(ONE_OF_A_KIND) >= 500


@pytest.mark.parametrize("spec", KERNELS[:1] + KERNELS[-1:], ids=str)
def test_what_a_plan_says_is_what_the_kernel_answers_and_launches(spec: KernelSpec) -> None:
    m, n, k = SHAPE
    gemm, device = gemm_of(spec), real(0)
    kernel = load_kernel(spec, device.architecture(spec))
    a, b = operands(spec, m, n, k)
    for plan in plans(gemm, m, n, k):
        query = kernel.query(problem_struct(m, n, k, k, n, n), plan_struct(plan))
        assert (query.grid, query.sk_tiles, query.sk_units) == (plan.grid, plan.sk_tiles, plan.sk_units)
        assert (query.partials_bytes, query.barrier_bytes) == (plan.partials_bytes, plan.barrier_bytes)
    plan = gemm.plan(m, n, k, decomposition="stream_k", sms=66)
    gemm.run(a, b, plan=plan)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        gemm.run(a, b, plan=plan)
        torch.cuda.synchronize()
    grids = [event.get("args", {}).get("grid") for event in _trace(profile) if event.get("cat") == "kernel"]
    assert [x * y * z for x, y, z in grids] == [plan.grid]


def _trace(profile: torch.profiler.profile) -> list[dict[str, object]]:
    import json
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return json.loads(path.read_text())["traceEvents"]
