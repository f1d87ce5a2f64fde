"""GPU tests: skipped without a Hopper GPU; every one has a watchdog, and a hang kills the run instead of stalling it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from problems import BUILT

from cutlass_sk.device import real
from cutlass_sk.jit.build import build

HERE = Path(__file__).parent
WATCHDOG_SECONDS = 120


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            # A thread ends the process: a signal would wait for the kernel that hangs.
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(WATCHDOG_SECONDS, method="thread", func_only=True))


@pytest.fixture(scope="session", autouse=True)
def kernels() -> None:
    """Compiles what the tests use, side by side, before the first of them."""
    device = real(0)
    for architecture in sorted({device.architecture(spec) for spec in BUILT}):
        build(
            [spec for spec in BUILT if device.architecture(spec) == architecture],
            architecture,
            progress=bool(os.environ.get("CI")),
        )


@pytest.fixture(autouse=True)
def clean_context() -> Iterator[None]:
    """Every test starts from a seed and leaves a context without a pending error."""
    torch.manual_seed(0)
    yield
    torch.cuda.synchronize()
