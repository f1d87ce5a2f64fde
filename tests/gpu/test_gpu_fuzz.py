"""5,000 random calls: any views, factors and decompositions, against float64, with poison around a and b and canaries around c."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from cutlass_sk.ensemble import operand_cases
from cutlass_sk.ensemble.random_operands import random_case

SEED, CASES = 83, 5000


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    operand_cases.build_kernels()


@pytest.mark.timeout(400, method="thread", func_only=True)
def test_any_operands_give_the_value() -> None:
    ran = 0

    @seed(SEED)
    @settings(max_examples=CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def one(random: Random) -> None:
        nonlocal ran
        ran += 1
        case = random_case(random)
        wrong = operand_cases.failure(case, "cuda")
        text = f"{wrong}\nseed {SEED}, or this case alone: {case.reproduction}"
        if wrong and operand_cases.lost():
            pytest.exit(text, returncode=3)  # every further case would fail, and hide this one
        assert wrong is None, text

    one()
    assert ran >= CASES
