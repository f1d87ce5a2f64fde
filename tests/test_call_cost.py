"""The measurement of calls: without a GPU its plans, and its protocol on calls that cost a known time."""

from __future__ import annotations

import time

import pytest

from cutlass_sk import Gemm
from cutlass_sk.ensemble import call_cost


def test_dry_run_prints_the_plans(capsys: pytest.CaptureFixture[str]) -> None:
    assert call_cost.main(["--dry-run"]) == 0
    assert capsys.readouterr().out.count("256 x 256 x 256") == len(call_cost.DTYPES)


def test_the_shared_problem_needs_a_workspace() -> None:
    for dtype in call_cost.DTYPES:
        assert Gemm(dtype, device="h200", kernels=call_cost.KERNELS).plan(*call_cost.SHARED_SHAPE).workspace_bytes > 0


def test_a_call_s_time_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy() -> None:
        end = time.perf_counter_ns() + 20_000
        while time.perf_counter_ns() < end:
            pass

    monkeypatch.setattr(call_cost, "CALLS", 20)
    waits: list[int] = []
    times = call_cost.measure({"nothing": lambda: None, "busy": busy}, 5, lambda: waits.append(0))
    assert len(waits) == 12 and times["nothing"] < 10 < 20 <= times["busy"]
