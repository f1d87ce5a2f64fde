"""Kernels come from the library's own cache (CUTLASS_SK_CACHE_DIR, or the user's), so that repeated runs compile nothing.

Tests marked ``gpu`` are skipped, with the reason, where no GPU runs every kernel of the catalogue.
"""

from __future__ import annotations

import pytest
import torch
from command_line import CommandLine

torch.set_num_threads(1)  # tests multiply small matrices: threads cost more in barriers than they save


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and (reason := missing_gpu()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def missing_gpu() -> str | None:
    """Why tests marked ``gpu`` cannot run here; None if they can."""
    if not torch.cuda.is_available():
        return "a GPU of compute capability 9.0 is needed and torch finds no CUDA GPU."
    capability = torch.cuda.get_device_capability()
    if capability != (9, 0):
        return f"a GPU of compute capability 9.0 is needed and {torch.cuda.get_device_name()} has {capability[0]}.{capability[1]}."
    return None


@pytest.fixture
def cutlass_sk(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)
