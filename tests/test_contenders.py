"""Contenders launch what their descriptions say; the arena checks and times those that are no plans."""

from __future__ import annotations

import pytest
import torch

# Fixtures of the arena's tests: kernels, streams and graphs that are stand-ins on the CPU.
from test_arena import StandIn, kernels_of, stand_ins  # noqa: F401

from cutlass_sk import Gemm, planner
from cutlass_sk.device import PRESETS
from cutlass_sk.ensemble import baselines, cublaslt
from cutlass_sk.ensemble.arena import TOLERANCE, Arena
from cutlass_sk.ensemble.attempt import Entrants, Found, Outcome
from cutlass_sk.ensemble.bench import setup_of
from cutlass_sk.ensemble.contenders import (
    CONTENDERS,
    DEFAULT,
    Called,
    ContenderError,
    Entry,
    NotTimed,
    Planned,
    Searched,
    chosen,
)
from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.ensemble.oracle import oracle_hopper, oracle_paper
from cutlass_sk.generator.spec import at_all_widths
from cutlass_sk.options import Options
from cutlass_sk.plan import Plan

H200 = PRESETS["h200"]
SETUP = setup_of("float16", H200)
SHAPES = [Problem(128, 128, 16384), Problem(1536, 1536, 4096), Problem(8192, 4096, 512), Problem(1000, 1001, 333)]


def entry(name: str, problem: Problem, pair: str = "float16") -> Entry:
    return CONTENDERS[name].entry(setup_of(pair, H200), problem)


def plan_of(name: str, problem: Problem) -> Plan:
    found = entry(name, problem)
    assert isinstance(found, Planned)
    return found.plan


def test_an_unknown_name_is_one_error_that_lists_the_names() -> None:
    with pytest.raises(ContenderError, match=r"'cutlass' is not known; there are set, single, .*, torch_compile, oracle:each$"):
        chosen(["set", "cutlass", "other"])
    with pytest.raises(ContenderError, match="no contender"):
        chosen([])
    assert [contender.name for contender in chosen(["cublas", "set", "set"])] == ["set", "cublas"]


def test_each_of_the_oracles_kernels_may_be_a_contender_of_its_own() -> None:
    names = [contender.name for contender in chosen(["oracle:each", "cublas"])]
    ensembles = [oracle_hopper(*pair) for pair in (("float16", "float16"), ("float64", "float64"))]
    assert len(names) == len(set(names)) == 1 + sum(map(len, ensembles)) and names[0] == "cublas"
    (one,) = chosen(["oracle:128x256x64_2x1"])
    found, other = one.entry(SETUP, SHAPES[1]), one.entry(setup_of("float64", H200), SHAPES[1])
    assert (
        isinstance(found, Planned)
        and found.plan.decomposition == "data_parallel"
        and one.kernels(SETUP) == (found.plan.kernel.with_layouts("t", "t"),)
    )
    assert isinstance(other, NotTimed) and "128x256x64_2x1 from float64" in other.why
    with pytest.raises(ContenderError, match="'oracle:9x9' is not known"):
        chosen(["oracle:9x9"])


def test_each_says_who_it_is_and_why_it_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, contender in CONTENDERS.items():
        assert contender.name == name and contender.description
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert {contender.unavailable() for contender in CONTENDERS.values()} == {"It is timed on a CUDA GPU, and there is none."}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for module in (baselines, cublaslt):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    missing = {name: why for name, contender in CONTENDERS.items() if (why := contender.unavailable())}
    assert list(missing) == ["cublaslt_best", "torch_compile"] and not missing.keys() & set(DEFAULT)
    assert "nvmath-python, which is not installed" in missing["cublaslt_best"] and "pip install triton" in missing["torch_compile"]


def run(bench: Arena, problem: Problem, entrants: Entrants) -> Outcome:
    attempt = bench.begin(problem, entrants, ("back_to_back", "isolated"))
    attempt.prepare()
    attempt.launch()
    return attempt.finish()


@pytest.mark.parametrize("p", SHAPES, ids=str)
def test_plans_are_those_of_calls_with_such_operands(p: Problem) -> None:
    shape = p.m, p.n, p.k
    whole, one = Gemm("float16", device="h200"), Gemm("float16", device="h200", kernels=1)
    assert plan_of("set", p) == whole._plan(*shape, H200, ("t", "n"))
    assert plan_of("single", p) == one._plan(*shape, H200, ("t", "n"))
    data_parallel = plan_of("data_parallel", p)
    assert data_parallel.decomposition == "data_parallel" and data_parallel.kernel.binary == SETUP.kernels[0]


@pytest.mark.parametrize("p", SHAPES, ids=str)
def test_a_fixed_split_is_the_best_number_of_equal_parts(p: Problem) -> None:
    found = plan_of("fixed_split", p)
    assert found.decomposition in ("data_parallel", "split_k") and found.kernel.binary == SETUP.kernels[0]
    assert found.predicted_time_us <= plan_of("data_parallel", p).predicted_time_us
    for splits in (2, 3, 5, 8, 13, 16):
        forced = planner.make_plan(p.m, p.n, p.k, SETUP.single, H200, Options(splits=splits))
        waves = forced.sk_units / forced.grid
        assert waves > 1 or found.predicted_time_us <= forced.predicted_time_us  # splits fill a wave at most


def test_a_fixed_split_is_split_where_that_pays_and_not_elsewhere() -> None:
    assert plan_of("fixed_split", SHAPES[0]).splits > 1
    assert plan_of("fixed_split", SHAPES[2]).splits == 1


def test_oracles_try_their_kernels_data_parallel() -> None:
    ensembles = {"oracle": oracle_hopper, "oracle_paper": oracle_paper}
    for name, of in ensembles.items():
        for pair, dtypes in (("float16", ("float16", "float16")), ("float64", ("float64", "float64"))):
            found = entry(name, SHAPES[1], pair)
            assert isinstance(found, Searched) and not callable(found.candidates)
            assert [plan.kernel for plan in found.candidates] == list(of(*dtypes))
            assert {plan.decomposition for plan in found.candidates} == {"data_parallel"}
    found = entry("oracle_of_set", SHAPES[1])
    assert isinstance(found, Searched) and not callable(found.candidates)
    assert [plan.kernel for plan in found.candidates] == list(at_all_widths(SETUP.kernels))
    odd = entry("oracle_of_set", Problem(301, 301, 301), "float64")  # kernels that take packed copies alone are tried, too
    assert isinstance(odd, Searched) and not callable(odd.candidates)
    assert {plan.kernel.api for plan in odd.candidates} == {"2x", "3x"}


def test_what_makes_no_difference_is_not_timed() -> None:
    assert isinstance(entry("cublas_padded", Problem(128, 64, 8)), NotTimed)
    for ragged in (Problem(129, 64, 8), Problem(128, 65, 8), Problem(128, 64, 9)):
        assert not isinstance(entry("cublas_padded", ragged), NotTimed)
    assert not isinstance(entry("cublas_fp32_reduce", SHAPES[0]), NotTimed)
    assert entry("torch_compile", SHAPES[0]) == Called(baselines.compiled)
    for pair in ("float64", "float16_float32"):
        assert isinstance(entry("cublas_fp32_reduce", SHAPES[0], pair), NotTimed)
        assert isinstance(entry("torch_compile", SHAPES[0], pair), NotTimed)


def test_the_best_of_cublaslt_is_searched_on_every_fourth_problem() -> None:
    for pair in ("float16", "float64", "float16_float32"):
        assert entry("cublaslt_best", SHAPES[3], pair) == Searched(cublaslt.algorithms)
    assert CONTENDERS["cublaslt_best"].every == 4


def test_float32_sums_are_asked_for_within_a_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = torch.backends.cuda.matmul
    seen = []

    def mm(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        seen.append((matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction))

    before = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
    assert before == (True, True)
    monkeypatch.setattr(baselines, "mm", mm)
    x = torch.zeros(8, 8)
    baselines.fp32_reduce(x, x, x)(x, x, x)
    assert seen == [(False, False)]
    assert (matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction) == before


@pytest.mark.parametrize("layout", ["t", "n"])
@pytest.mark.parametrize("shape", [(13, 7, 21), (16, 7, 24), (13, 8, 24), (16, 8, 21)])
def test_padded_products_are_right_and_of_padded_sizes(
    shape: tuple[int, int, int], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, n, k = shape
    sizes = []

    def mm(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        sizes.append((*a.shape, *b.shape, *c.shape))
        torch.mm(a, b, out=c)

    monkeypatch.setattr(baselines, "mm", mm)
    first = [torch.randn(m, k), torch.randn(k, n) if layout == "t" else torch.randn(n, k).t(), torch.zeros(m, n)]
    call = baselines.padded(*first)
    for seed in (1, 2):  # other operands than those that it was made with, too
        torch.manual_seed(seed)
        a, b, c = torch.randn_like(first[0]), torch.randn_like(first[1]), torch.full((m, n), float("nan"))
        call(a, b, c)
        torch.testing.assert_close(c, a @ b)
    assert all(size % 8 == 0 for size in sizes[0])


def test_a_compiled_product_is_written_where_it_belongs_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "COMPILED_MODE", "default")  # on the CPU, tuning compiles C++
    for m, n, k in ((24, 16, 40), (1, 16, 40), (24, 16, 40)):
        sets = [(torch.randn(m, k), torch.randn(n, k).t(), torch.empty(m, n)) for _ in range(2)]
        call = baselines.compiled(*sets[0])
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "copy_", lambda self, other: pytest.fail("copied"))
            for a, b, c in sets:
                call(a, b, c.fill_(float("nan")))
                torch.testing.assert_close(c, a @ b)
    call(a, b, wide := torch.full((n, m), float("nan")).t())  # memory that the code does not ask for
    torch.testing.assert_close(wide, a @ b)


@pytest.mark.parametrize(("dtype", "problem"), [("float16", Problem(137, 75, 203)), ("float64", Problem(64, 48, 33))])
def test_the_arena_packs_operands_that_a_kernel_does_not_take_and_times_others(
    stand_ins: dict[str, StandIn],  # noqa: F811
    dtype: str,
    problem: Problem,
) -> None:
    bench = Arena(dtype, dtype, ("t", "n"), H200)
    setup = setup_of(dtype, H200, "tn")
    plan = setup.plan(problem, setup.variants[:1])
    others = {"right": baselines.padded, "wrong": lambda a, b, c: lambda a, b, c: c.zero_()}
    outcome = run(bench, problem, Entrants({"set": plan}, others, again=True))
    assert set(outcome.times) == {"back_to_back", "isolated"}
    for times in outcome.times.values():
        assert set(times) == {"set", "right", "wrong", "cublas", "cublas_again"}
        for name in ("set", "right"):
            error = times[name].error
            assert error is not None and error <= TOLERANCE[dtype, dtype] and times[name].us is not None
        assert (times["wrong"].error or 0) > TOLERANCE[dtype, dtype]
        assert times["cublas"].error is None and times["cublas"].us is not None
    assert set(run(bench, problem, Entrants(expected_us=5.0)).times["isolated"]) == {"cublas"}
    assert {kernel.spec.layout_b for kernel in stand_ins.values()} == {"n"}, "packed as it lies"


def test_searches_leave_out_what_is_wrong(stand_ins: dict[str, StandIn]) -> None:  # noqa: F811
    problem = Problem(136, 72, 200)
    bench = Arena("float16", "float16", ("t", "n"), H200)
    right, wrong = (spec.with_layouts("t", "n") for spec in kernels_of("float16"))
    stand_ins[wrong.name] = StandIn(wrong, wrong=True)
    plans = [SETUP.plan(problem, (spec,)) for spec in (wrong, right)]
    calls = [lambda a, b, c: c.zero_(), lambda a, b, c: torch.mm(a, b, out=c), lambda a, b, c: torch.mm(a, b, out=c)]
    outcome = run(bench, problem, Entrants(searches={"plans": plans, "calls": lambda a, b, c: calls}))
    assert outcome.found == {"plans": Found(2, (0,), (1,)), "calls": Found(3, (0,), (1, 2))}
    for times in outcome.times.values():
        assert set(times) == {"plans 1", "calls 1", "calls 2", "cublas"} and times["plans 1"].us is not None


def test_packed_operands_are_those_of_each_buffer_set(stand_ins: dict[str, StandIn]) -> None:  # noqa: F811
    problem = Problem(137, 75, 203)
    bench = Arena("float16", "float16", ("t", "n"), H200)
    buffers = bench.buffers(problem, 3)
    launch = bench.bind(SETUP.plan(problem, SETUP.single), problem)
    for number, (a, b, c) in enumerate(buffers.views):
        bench.launch(launch, buffers, number)
        torch.testing.assert_close(c, a @ b, atol=0.2, rtol=0.0)
    assert number == 2
