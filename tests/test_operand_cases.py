"""Random operands on the CPU, where the reference executes the plans; and what is wrong with an answer is seen."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutlass_sk import Gemm
from cutlass_sk.ensemble import operand_cases
from cutlass_sk.ensemble.operand_cases import Run, kernels, run, wrong_with
from cutlass_sk.ensemble.random_operands import Case, View, cases, random_case

pytestmark = pytest.mark.filterwarnings("ignore:cutlass_sk. CPU tensors")
SMALL = 40, 40, 200
PLAIN = Case("float16", "float16", "sm90a", 9, 7, 5, View((6, 1), 3, 2), View((1, 8)), View((9, 1), 2, 20), beta=0.5, seed=3)


def never(made: Run) -> None:
    raise AssertionError(f"no case takes so long: {made}")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_any_operands_give_the_value(random: Random) -> None:
    case = random_case(random, SMALL)
    wrong = wrong_with(case, "cpu")
    assert wrong is None, f"{wrong}\n{case.reproduction}"


def test_seeded_cases_give_the_value() -> None:
    made = run(cases(100, seed=1), "cpu", hung=never)
    assert made.cases == 100 and not made.failures, made.failures


def test_a_case_is_read_back_from_its_reproduction() -> None:
    for case in cases(200, seed=2):
        assert repr(Case.of_json(case.to_json())) == repr(case)  # NaN equals nothing
    assert list(map(repr, cases(3, seed=2, first=5))) == list(map(repr, cases(8, seed=2)))[5:]


def test_cases_are_of_every_kind() -> None:
    drawn = list(cases(2000, seed=3))
    views = [view for case in drawn for view in (case.a, case.b)]
    assert {(case.dtype, case.out_dtype) for case in drawn} == set(operand_cases.DTYPES)
    assert {case.forced.get("decomposition") for case in drawn} == {None, "data_parallel", "split_k", "stream_k"}
    assert {0, 1} <= {case.m for case in drawn} and max(case.k for case in drawn) > 2000
    for kind in (
        any(0 in view.strides for view in views),
        any(min(view.strides) > 1 for view in views),
        any(view.negated for view in views),
        any(case.c is not None and case.c.strides[0] == 1 and case.n > 1 and case.m > 1 for case in drawn),
        any(1 < case.a.strides[0] < case.k and case.a.strides[1] == 1 for case in drawn),
        any(case.beta != case.beta for case in drawn) and any(case.alpha == 0 for case in drawn),
        {case.factors for case in drawn} == {"number", "cpu", "beside"},
    ):
        assert kind


def test_every_plan_of_a_case_has_a_kernel_that_is_listed() -> None:
    listed = {spec.family for spec in kernels()}
    assert len(kernels()) == len(set(kernels())) == 4 * len(listed)
    for case in cases(300, seed=4):
        if case.forced and case.m and case.n and case.k:
            gemm = Gemm(case.dtype, out_dtype=case.out_dtype, generation=case.generation, device="h200")
            if len({spec.family for spec in gemm.kernels} & listed) == len(gemm.kernels):
                assert gemm.plan(case.m, case.n, case.k, **case.forced).kernel.binary.family in listed  # type: ignore[arg-type]


def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    return c.copy_(alpha * (a.double() @ b.double()) + beta * c.double())


def one_element_off(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    product(a, b, c, alpha, beta)[4, 2] += 0.25
    return c


def beside_a_row(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    c.as_strided((1,), (1,), c.storage_offset() + 7).zero_()
    return product(a, b, c, alpha, beta)


def into_a(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    product(a, b, c, alpha, beta)
    a[0, 0] += 1
    return c


def beyond_a(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    wider = a.as_strided((a.shape[0], a.shape[1] + 1), a.stride(), a.storage_offset())
    taller = torch.cat([b, torch.zeros_like(b[:1])])
    return product(wider, taller, c, alpha, beta)


@pytest.mark.parametrize(
    ("multiply", "wrong"),
    [
        (product, None),
        (one_element_off, "1 of 63 elements are wrong: (4, 2) is "),
        (beside_a_row, "memory around c was written to"),
        (into_a, "memory of a was written to"),
        (beyond_a, "63 of 63 elements are wrong: (0, 0) is nan, not "),
    ],
)
@pytest.mark.parametrize("exact", [True, False])
def test_a_wrong_answer_is_seen(
    multiply: Callable[..., torch.Tensor], wrong: str | None, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gemm, "run", lambda self, a, b, c, **factors: multiply(a, b, c, **factors))
    found = wrong_with(replace(PLAIN, exact=exact), "cpu")
    assert found is None if wrong is None else str(found).startswith(wrong)


def test_results_that_change_from_call_to_call_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def of(self: Gemm, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, **kept: object) -> torch.Tensor:
        calls.append(0)
        return product(a, b, c, 1.0, 0.5).add_(1e-6 * len(calls))

    monkeypatch.setattr(Gemm, "run", of)
    assert wrong_with(replace(PLAIN, out_dtype="float32", exact=False), "cpu") == "the same call gave other bits"


def test_a_result_that_is_not_c_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gemm, "run", lambda self, a, b, c, **kept: product(a, b, c.clone(), 1.0, 0.5))
    assert run(iter([PLAIN]), "cpu", hung=never).failures == [(PLAIN.reproduction, "AssertionError: the result is not c")]


def test_an_error_is_a_failure_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(self: Gemm, *operands: torch.Tensor, **kept: object) -> torch.Tensor:
        raise ValueError("no such thing")

    monkeypatch.setattr(Gemm, "run", of)
    made = run(iter([PLAIN, PLAIN]), "cpu", hung=never)
    assert made.cases == 2 and made.failures == [(PLAIN.reproduction, "ValueError: no such thing")] * 2


def test_a_case_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gemm, "run", lambda self, *operands, **kept: time.sleep(1))
    hung: list[list[tuple[str, str]]] = []
    run(iter([PLAIN]), "cpu", hung=lambda made: hung.append(list(made.failures)), seconds=0.2)
    assert [failures[0] for failures in hung] == [(PLAIN.reproduction, "no answer in 0 seconds")]


def test_the_command_runs_and_says_what_it_ran() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "cutlass_sk.ensemble.operand_cases", "--device", "cpu"]
    done = subprocess.run([*command, "--cases", "3", "--seed", "9"], capture_output=True, text=True)
    assert done.returncode == 0 and "3 cases of seed 9 on cpu, 0 failures" in done.stdout
    done = subprocess.run(PLAIN.reproduction.replace("python", sys.executable, 1), shell=True, capture_output=True, text=True)
    assert done.returncode == 0 and "1 cases" in done.stdout
    done = subprocess.run([*command, "--list-kernels"], capture_output=True, text=True)
    assert len(done.stdout.splitlines()) == len(kernels())
