"""compute-sanitizer over one kernel of each kind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import torch
from cutlass_sk import Gemm
for dtype, generation in (("float16", "sm90a"), ("float64", "sm90a"), ("float16", "sm80"), ("float64", "sm80")):
    gemm = Gemm(dtype, generation=generation)
    first = gemm.spec
    gemm = Gemm(dtype, generation=generation, tile=first.tile, cluster=first.cluster)
    m, n, k = 328, 200, 1096
    a = torch.randint(-1, 2, (m, k), device="cuda").to(gemm.dtype)
    b = torch.randint(-1, 2, (k, n), device="cuda").to(gemm.dtype)
    exact = (a.double() @ b.double()).to(gemm.dtype)
    for options in ({"decomposition": "data_parallel"}, {"decomposition": "stream_k", "sms": 20}, {"splits": 9}):
        for beta in (0.0, 1.0):
            c = torch.zeros(m, n, device="cuda", dtype=gemm.dtype)
            gemm.run(a, b, c, beta=beta, plan=gemm.plan(m, n, k, **options))
            assert torch.equal(c, exact), (dtype, generation, options)
torch.cuda.synchronize()
print("all equal")
"""


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
@pytest.mark.timeout(420, method="thread", func_only=True)
def test_clean(tool: str, tmp_path: Path) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not on PATH")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", "--kernel-name-exclude", "kernel_substring=at::"]
    result = subprocess.run([*command, sys.executable, str(program)], capture_output=True, text=True, timeout=400, cwd=tmp_path)
    assert "all equal" in result.stdout, result.stdout[-3000:] + result.stderr[-3000:]
    assert result.returncode == 0, result.stdout[-3000:]
    assert "ERROR SUMMARY: 0 errors" in result.stdout or "RACECHECK SUMMARY: 0 hazards" in result.stdout, result.stdout[-3000:]
