"""Every example on a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from problems import build_planned

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.fixture(scope="module", autouse=True)
def kernels_of_this_file(kernels: None) -> None:
    shapes = [(100, 200, 512), (64, 32, 64), (64, 64, 64), (32, 64, 64), (64, 192, 64), (64, 128, 64), (64, 64, 128), (192, 64, 64)]
    build_planned([torch.float16], [*shapes, (128, 64, 64), (40, 64, 128), (256, 256, 4096)])


@pytest.mark.timeout(300, method="thread", func_only=True)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() and not list(tmp_path.iterdir())
