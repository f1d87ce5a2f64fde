"""An explanation begins with the plan, and its terms are those of the model."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlass_sk import Gemm, cli
from cutlass_sk.cli.explain import label
from cutlass_sk.errors import PlanError
from cutlass_sk.explain import BOUNDS
from cutlass_sk.generator.spec import KernelSpec

sizes = st.integers(1, 9000)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, sizes, st.sampled_from(["h200", "a100", "toy:7"]), st.sampled_from(["float16", "float64"]))
def test_the_first_candidate_is_the_plan(m: int, n: int, k: int, device: str, dtype: str) -> None:
    gemm = Gemm(dtype, device=device)
    explanation = gemm.explain(m, n, k)
    assert explanation.plan == explanation.candidates[0].plan == gemm.plan(m, n, k)
    times = [one.time_us for one in explanation.candidates]
    assert times == sorted(times)
    for one in explanation.candidates:
        assert one.terms.total == one.time_us and min(one.terms) >= 0
        assert getattr(one.terms, one.bound) == max(getattr(one.terms, name) for name in BOUNDS)
    assert explanation.data_parallel.plan.decomposition == "data_parallel"
    assert explanation.data_parallel.plan.kernel == explanation.plan.kernel
    assert str(explanation.candidates[0]) in explanation.why() and explanation.why() in str(explanation)


def test_terms_that_differ_by_more_than_times_are_said_to_overlap() -> None:
    explanation = Gemm("float16", device="h200").explain(768, 512, 16384)
    first, plain = explanation.candidates[0], explanation.data_parallel
    assert plain.terms.mma - first.terms.mma > plain.time_us - first.time_us > 0
    assert "Terms overlap" in explanation.why()


def test_an_explanation_is_frozen_and_refuses_what_plan_refuses() -> None:
    gemm = Gemm("float16", device="h200")
    explanation = gemm.explain(512, 512, 8192)
    with pytest.raises(dataclasses.FrozenInstanceError):
        explanation.m = 1  # type: ignore[misc]
    with pytest.raises(PlanError, match="m=0 must be"):
        gemm.explain(0, 1, 1)
    assert "measured on NVIDIA H200" in str(explanation)


@pytest.mark.parametrize("shape", [(128, 128, 16384), (1536, 1536, 4096), (300, 200, 5000)], ids=str)
def test_no_two_candidates_are_called_the_same(shape: tuple[int, int, int]) -> None:
    candidates = Gemm("float16", device="h200").explain(*shape).candidates
    assert {one.plan.fixup for one in candidates} >= ({"none", "tree", "cluster"} if shape[2] > 4096 else {"none"})
    for name in (str, label):
        assert len({name(one) for one in candidates}) == len(candidates)


def test_rows_that_start_badly_cost_loads() -> None:
    gemm = Gemm("float16", device="h200", kernels=[KernelSpec("sm90a", "3x", "float16", "float16", (128, 128, 64))])
    plain = gemm.explain(4096, 4096, 4096).candidates[0]
    ragged = gemm.explain(4096, 4096, 4104, layout_b="n").candidates[0]
    assert ragged.terms.load > 1.2 * plain.terms.load


def test_explain_on_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cutlass-sk", "explain", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(str(ended.value.code)), *capsys.readouterr()

    status, text, _ = run("1536", "1536", "4096", "--device", "h200", "--top", "3")
    explanation = Gemm("float16", device="h200").explain(1536, 1536, 4096)
    assert status == 0 and f"{len(explanation.candidates)} candidates" in text and "bound by" in text
    rows = text.split("\nconstants ")[0]
    assert all(label(candidate) in rows for candidate in explanation.candidates[:3])
    assert label(explanation.candidates[3]) not in rows
    assert explanation.candidates[0].plan.kernel.family in text
    status, text, _ = run("1536", "1536", "4096", "--device", "h200", "--top", "3", "--json")
    record = json.loads(text)
    assert status == 0 and (record["m"], record["n"], record["k"], record["device"]) == (1536, 1536, 4096, "h200")
    assert record["why"] == explanation.why() and record["candidate_count"] == len(explanation.candidates)
    for found, candidate in zip(record["candidates"], explanation.candidates[:3], strict=True):
        assert found["terms_us"] == candidate.terms._asdict() and found["bound"] == candidate.bound
        assert (
            found["plan"]["predicted_time_us"] == candidate.time_us
            and found["plan"]["kernel"]["name"] == candidate.plan.kernel.name
        )
    status, _, errors = run("8", "8", "8", "--measure", "--device", "h200")
    assert status == 2 and ("no GPU" in errors or "there is none" in errors or torch.cuda.is_available())
