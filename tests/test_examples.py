"""Every example runs, from any folder, and leaves nothing there; without a GPU, those that need one say so in a line."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
COMPILES = ("09_ship_kernels.py",)


def parameters() -> list[object]:
    return [pytest.param(path, id=path.stem, marks=[pytest.mark.compiles] if path.name in COMPILES else []) for path in EXAMPLES]


@pytest.mark.slow
@pytest.mark.parametrize("path", parameters())
def test_it_runs(path: Path, tmp_path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=280, cwd=tmp_path)
    if "Needs a GPU" in said and not torch.cuda.is_available():
        assert done.returncode == 1 and "GPU, and torch finds none" in done.stderr and len(done.stderr.splitlines()) == 1
        return
    assert done.returncode == 0, done.stderr[-2000:]
    if "times are made up" in said and not torch.cuda.is_available():
        assert all(line.startswith("made up: ") for line in done.stdout.splitlines() if "times as fast" in line)
    assert done.stdout.strip() and not list(tmp_path.iterdir())


def test_they_are_numbered_say_what_they_show_and_are_short() -> None:
    assert [path.name[:3] for path in EXAMPLES] == [f"{number:02}_" for number in range(1, 10)]
    for path in EXAMPLES:
        text = path.read_text()
        assert len(ast.get_docstring(ast.parse(text)) or "") > 40 and len(text.splitlines()) <= 40, path.name
