"""Importing the package does nothing: no CUDA, no compiler, no disk, little time. And it shadows no file of its user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_sk.generator import kernels
from cutlass_sk.generator.catalog import EVERY_GENERATION

NAMES_OF_OURS = (
    *("generator", "ensemble", "plan", "planner", "model", "device", "errors", "env", "kernel", "schedule", "operands", "gemm"),
    *("dtypes", "reference", "workspace", "call", "extension", "jit", "cli", "spec", "catalog", "emit", "abi", "cache", "build"),
    *("functional", "products", "gradients", "torch_ops", "nn", "arrays", "aten", "routing", "tracing", "trace"),
)

AUDITED = """
import os, sys, torch
before, events = set(sys.modules), []
processes = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.startfile", "pty.spawn")

def watch(event, arguments):
    if event in processes or event.startswith(("ctypes.dlopen", "socket.", "os.mkdir", "os.remove", "os.rename", "tempfile.")):
        events.append((event, arguments))
    if event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        events.append((event, arguments))

sys.addaudithook(watch)
{imported}
print(events)
print(sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in
             ("cuda", "cutlass_library", "cutlass_cppgen", "matplotlib", "rich", "typer", "platformdirs", "subprocess",
              "multiprocessing")))
print(torch.cuda.is_initialized())
"""


def python(*arguments: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-B", *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_import_starts_nothing(tmp_path: Path) -> None:
    assert python("-c", AUDITED.format(imported="import cutlass_sk"), cwd=tmp_path).splitlines() == ["[]", "[]", "False"]
    assert list(tmp_path.iterdir()) == []


def test_what_import_must_not_do_would_be_seen(tmp_path: Path) -> None:
    imported = "import subprocess, rich; subprocess.run(['true']); open('left', 'w').close(); import ctypes; ctypes.CDLL(None)"
    events, modules, _ = python("-c", AUDITED.format(imported=imported), cwd=tmp_path).splitlines()
    assert all(event in events for event in ("subprocess.Popen", "'open'", "ctypes.dlopen")) and "'rich'" in modules


def test_import_takes_little_time_beyond_torch(tmp_path: Path) -> None:
    code = "import torch, time; start = time.perf_counter(); import cutlass_sk; print(time.perf_counter() - start)"
    python("-c", code, cwd=tmp_path)
    assert min(float(python("-c", code, cwd=tmp_path)) for _ in range(3)) < 0.150


@pytest.fixture
def folder_of_a_user(tmp_path: Path) -> Path:
    """A working directory whose files have the names of our folders and modules, and must not be imported by us."""
    for name in NAMES_OF_OURS:
        (tmp_path / f"{name}.py").write_text("import sys\nMINE = True\nprint(f'{__name__} of the user', file=sys.stderr)\n")
    return tmp_path


def test_files_of_the_user_with_our_names_break_nothing(folder_of_a_user: Path) -> None:
    (folder_of_a_user / "script.py").write_text(
        """
import sys, warnings, torch
warnings.simplefilter("ignore")
import cutlass_sk, cutlass_sk.generator, cutlass_sk.ensemble
from cutlass_sk.generator import kernels
from cutlass_sk.generator.emit import emit
a, b = torch.ones(30, 40, dtype=torch.float16), torch.ones(40, 50, dtype=torch.float16)
print(bool((cutlass_sk.Gemm(torch.float16).run(a, b) == 40).all()))
print("Plan(m=30" in repr(cutlass_sk.Gemm("float16").plan(30, 50, 40)))
print(len(emit(next(kernels()))) > 1000)
print([name for name in NAMES if name in sys.modules])
import generator, ensemble
print(generator.MINE, ensemble.MINE, cutlass_sk.generator.__name__, cutlass_sk.ensemble.__name__)
""".replace("NAMES", repr(NAMES_OF_OURS))
    )
    assert python("script.py", cwd=folder_of_a_user).splitlines() == [
        *["True"] * 3,
        "[]",
        "True True cutlass_sk.generator cutlass_sk.ensemble",
    ]


def test_the_generator_runs_beside_files_of_the_user(folder_of_a_user: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-m", "cutlass_sk.generator", "list"],
        cwd=folder_of_a_user,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [spec.name for spec in kernels(EVERY_GENERATION)] and done.stderr == ""


@pytest.mark.parametrize("name", ["generator", "ensemble", "tests"])
def test_nothing_is_installed_under_a_plain_name(name: str, tmp_path: Path) -> None:
    code = f"import importlib.util, cutlass_sk; print(importlib.util.find_spec({name!r}))"
    assert python("-c", code, cwd=tmp_path) == "None\n"


def test_the_public_names_are_there(tmp_path: Path) -> None:
    code = "import cutlass_sk; print(all(hasattr(cutlass_sk, name) for name in cutlass_sk.__all__), cutlass_sk.Gemm.__module__)"
    assert python("-c", code, cwd=tmp_path) == "True cutlass_sk.gemm\n"
