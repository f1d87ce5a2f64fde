"""Wheel and sdist: what an index would take, and what works where only the wheel is installed, away from the sources."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built of it: what the sdist lacks, the wheel cannot have."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def python(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel and what it depends on, CUTLASS aside."""
    root = tmp_path_factory.mktemp("environment")
    found: Path = wheel_script().install(built[1], root)
    return found


def wheel_script() -> ModuleType:
    """``tests/gpu/wheel.py``, which is no module of the tests."""
    described = importlib.util.spec_from_file_location("wheel_script", ROOT / "tests/gpu/wheel.py")
    assert described is not None and described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


def test_an_index_would_take_them(built: tuple[Path, Path], tmp_path: Path) -> None:
    said = run(sys.executable, "-m", "twine", "check", "--strict", *built, cwd=tmp_path)
    assert said.count("PASSED") == 2


def test_the_wheel_serves_every_python_and_has_all_parts(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    assert wheel.name.split("-")[2:] == ["cp310", "abi3", "linux_x86_64.whl"]
    names = set(ZipFile(wheel).namelist())
    headers = {f"cutlass_sk/generator/include/cutlass_sk/{path.name}" for path in ROOT.glob("generator/include/cutlass_sk/*")}
    modules = {
        *(path.relative_to(ROOT).as_posix() for path in (ROOT / "cutlass_sk").rglob("*.py")),
        *(
            f"cutlass_sk/{path.relative_to(ROOT).as_posix()}"
            for name in ("generator", "ensemble")
            for path in (ROOT / name).rglob("*.py")
        ),
    }
    assert {"cutlass_sk/py.typed", "cutlass_sk/_native.abi3.so", "cutlass_sk/calibration/h200.json"} | headers | modules <= names
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if name.endswith(".so") or ("prebuilt" in name and name.endswith(".json"))]


def test_a_wheel_without_kernels_is_no_success_on_a_machine_without_a_compiler(built: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "wheel.json"
    command = [sys.executable, ROOT / "tests/gpu/wheel.py", built[1], "--dry-run", "-o", output]
    assert subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, timeout=300).returncode == 1
    record = json.loads(output.read_text())
    assert (record["kernels"], record["cases"], record["compiler_found"]) == (0, 0, False)
    assert record["native_extension"] and record["wheel_bytes"] == built[1].stat().st_size


RUN = """
import cutlass_sk, sys, torch, warnings
warnings.simplefilter("ignore")
assert cutlass_sk.__file__.startswith(sys.prefix), cutlass_sk.__file__
a, b = torch.ones(30, 40, dtype=torch.float64), torch.ones(40, 50, dtype=torch.float64)
assert bool((cutlass_sk.Gemm("float64").run(a, b) == 40).all()) and bool((cutlass_sk.matmul(a, b) == 40).all())
print(cutlass_sk.Gemm("float16", device="h200").plan(768, 512, 16384).kernel, cutlass_sk.extension.native is not None)
"""


def test_it_works_from_another_directory(python: Path, tmp_path: Path) -> None:
    kernel, native = run(python, "-I", "-c", RUN, cwd=tmp_path).split()
    assert kernel.startswith("sm90a_f16_f16_") and native == "True"
    assert run(python.with_name("cutlass-sk"), "--version", cwd=tmp_path).strip()
    assert "decomposition" in run(python.with_name("cutlass-sk"), "plan", "128", "128", "16384", "--device", "h200", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
