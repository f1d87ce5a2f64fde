"""Calibration measures what it says on a GPU: a few shapes, quickly."""

from __future__ import annotations

import pytest
import torch
from problems import KERNELS

from cutlass_sk.calibration import measure
from cutlass_sk.device import real
from cutlass_sk.generator.catalog import families
from cutlass_sk.timing import isolated_us, time_us

SHAPES = [(256, 384, 1024), (1024, 512, 4096)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("dtype", "out_dtype"), [("float16", "float16"), ("float64", "float64")])
def test_records_of_two_shapes(dtype: str, out_dtype: str) -> None:
    device, first = real(0), families(dtype, out_dtype, "sm90a")[0]
    assert first.family in {spec.family for spec in KERNELS}
    specs = first.variants
    batches = list(measure.measure(specs, SHAPES, device, budget_seconds=300))
    assert [batch[0].shape for batch in batches] == SHAPES
    for batch in batches:
        assert all(1 < record.time_us < 1e4 and record.kernel in {spec.family for spec in specs} for record in batch)
    assert not list(measure.measure(specs, SHAPES, device, budget_seconds=300, done=frozenset(SHAPES)))


def test_cold_launches_take_longer_than_launches_back_to_back() -> None:
    a = torch.randn(1024, 1024, device="cuda", dtype=torch.float16)
    launch = {"mm": lambda number: a @ a}
    assert isolated_us(launch, 1)["mm"] > time_us(launch, 1)["mm"] > 1
