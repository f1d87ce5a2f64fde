"""compute-sanitizer over one kernel of each kind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = """
import torch
from cutlass_sk import Gemm
chosen = [Gemm("float16", kernels=[spec]) for spec in Gemm("float16").kernels[:4]]  # ping-pong, cooperative, cluster fix-up
chosen += [Gemm("float64", kernels=1), Gemm("float16", generation="sm80"), Gemm("float64", generation="sm80")]
for gemm in chosen:
    m, n, k = 328, 200, 1096
    a = torch.randint(-1, 2, (m, k), device="cuda").to(gemm.dtype)
    b = torch.randint(-1, 2, (k, n), device="cuda").to(gemm.dtype)
    if gemm.dtype == torch.float16 and gemm.spec.generation == "sm90a":
        b = b.t().contiguous().t()  # the layouts that all kernels are built for
    exact = (a.double() @ b.double()).to(gemm.dtype)
    kinds = [{"decomposition": "data_parallel"}, {"decomposition": "stream_k", "sms": 20}, {"splits": 9}, {"splits": 4}]
    if gemm.spec.widest:
        kinds += [{"tile_n": width, "splits": 4} for width in {*gemm.spec.widths[:: len(gemm.spec.widths) // 2], gemm.spec.widest}]
    for options in kinds:
        for beta in (0.0, 1.0):
            c = torch.zeros(m, n, device="cuda", dtype=gemm.dtype)
            gemm.run(a, b, c, beta=beta, plan=gemm.plan(m, n, k, **options))
            assert torch.equal(c, exact), (gemm, options)
torch.cuda.synchronize()
print("all equal")
"""


TOOLS = ("memcheck", "racecheck", "synccheck")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[subprocess.Popen[bytes], Path]]]:
    """One process a tool, all at once: most of their time goes into starting."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not on PATH")
    folder = tmp_path_factory.mktemp("sanitizer")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    started = {}
    for tool in TOOLS:
        command = [sanitizer, "--tool", tool, "--error-exitcode", "9", "--kernel-name-exclude", "kernel_substring=at::"]
        output = folder / f"{tool}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen([*command, sys.executable, str(program)], stdout=file, stderr=subprocess.STDOUT, cwd=folder)
        started[tool] = process, output
    yield started
    for process, _ in started.values():
        process.kill()


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.timeout(420, method="thread", func_only=True)
def test_clean(tool: str, runs: dict[str, tuple[subprocess.Popen[bytes], Path]]) -> None:
    process, output = runs[tool]
    status = process.wait(timeout=400)
    text = output.read_text(errors="replace")
    assert "all equal" in text, text[-6000:]
    assert status == 0, text[-3000:]
    assert "ERROR SUMMARY: 0 errors" in text or "RACECHECK SUMMARY: 0 hazards" in text, text[-3000:]
