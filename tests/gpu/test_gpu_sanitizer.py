"""compute-sanitizer over one kernel of each kind, and over random operands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutlass_sk.ensemble import operand_cases

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
CASES = ("--cases", "100", "--seed", "5", "--judge", "cpu", "--hang-seconds", "300")
"""Compared on the CPU: cuBLAS is not what is checked."""
OF_CASES = ("memcheck", "initcheck")
"""initcheck must see who writes what, torch's kernels included."""
OWN_ALLOCATIONS = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Each tensor has memory of its own, so that what is read or written beyond it shows."""

Started = dict[str, tuple["subprocess.Popen[bytes]", Path]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """One process a tool and program, all at once: most of their time goes into starting."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not on PATH")
    operand_cases.build_kernels()
    folder = tmp_path_factory.mktemp("sanitizer")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    commands = {tool: ["--tool", tool, "--kernel-name-exclude", "kernel_substring=at::", sys.executable, program] for tool in TOOLS}
    for tool in OF_CASES:
        commands[f"{tool} of cases"] = ["--tool", tool, sys.executable, "-m", operand_cases.__name__, *CASES]
    started = {}
    for name, command in commands.items():
        output = folder / f"{name.replace(' ', '_')}.txt"
        environment = os.environ | (OWN_ALLOCATIONS if "cases" in name else {})
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sanitizer, "--error-exitcode", "9", *command], stdout=file, stderr=subprocess.STDOUT, cwd=folder, env=environment
            )
        started[name] = process, output
    yield started
    for process, _ in started.values():
        process.kill()


def clean(name: str, done: str, runs: Started, seconds: float) -> None:
    process, output = runs[name]
    status = process.wait(timeout=seconds)
    text = output.read_text(errors="replace")
    assert done in text, text[-6000:]
    assert status == 0, text[-3000:]
    assert "ERROR SUMMARY: 0 errors" in text or "RACECHECK SUMMARY: 0 hazards" in text, text[-3000:]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.timeout(420, method="thread", func_only=True)
def test_clean(tool: str, runs: Started) -> None:
    clean(tool, "all equal", runs, 400)


@pytest.mark.parametrize("tool", OF_CASES)
@pytest.mark.timeout(520, method="thread", func_only=True)
def test_random_operands_are_clean(tool: str, runs: Started) -> None:
    clean(f"{tool} of cases", "100 cases of seed 5 on cuda, 0 failures", runs, 500)
