"""``python tests/gpu/wheel.py dist/*.whl -o results/h200/wheel.json``: installs a wheel where nothing can compile, and multiplies.

The wheel goes into a new virtual environment that sees the packages of this Python, but for CUTLASS, this project and nvcc's wheel.
PATH has nvidia-smi alone, CUDA_HOME and its like are gone, the kernel cache cannot be written, and the working directory is empty.
There every kernel that came with the wheel multiplies matrices of {-1, 0, 1}, whose products are exact. No network is used.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import traceback
import venv
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HIDDEN = ("cutlass*", "pycute*", "nvidia_cutlass*", "__editable__*", "*.pth", "nvidia_cuda_nvcc*", "nvidia_nvvm*")
HIDDEN_OF_NVIDIA = ("cuda_nvcc", "bin", "nvvm")
NAMESPACES = ("nvidia", "cuda", "cu12", "cu13")
"""Folders that several packages share: what is in them is linked, not they."""
UNSET = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CONDA_PREFIX", "NVCC_CCBIN", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
SHAPES = ((1096, 584, 1240), (128, 128, 4096), (8, 2048, 40))
UNALIGNED = (333, 127, 1001)
FORCED: tuple[dict[str, Any], ...] = ({}, {"decomposition": "data_parallel"}, {"decomposition": "stream_k"}, {"splits": 7})
LIMIT_SECONDS = 540
REPORTED = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--commit", help="commit to record; default what git says of this clone")
    parser.add_argument("--dry-run", action="store_true", help="load and ask each kernel, and run none: needs no GPU")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="cutlass_sk-wheel-") as folder:
        root = Path(folder)
        python = install(options.wheel.resolve(), root)
        (root / "work").mkdir()
        command = [str(python), "-I", str(Path(__file__).resolve()), "--inside", *(["--dry-run"] if options.dry_run else [])]
        done = subprocess.run(
            command, cwd=root / "work", env=environment(root), stdout=subprocess.PIPE, text=True, timeout=LIMIT_SECONDS, check=True
        )
        written = sorted(path.name for path in (root / "work").iterdir())
    found = json.loads(done.stdout.splitlines()[-1])
    found["provenance"]["commit"] = options.commit or commit()
    if written:
        found["failed"] += 1
        found["failures"].append(f"written into the working directory: {', '.join(written)}")
    record = {**found, "wheel": options.wheel.name, "wheel_bytes": options.wheel.stat().st_size}
    text = json.dumps(record, indent=1) + "\n"
    print(text, end="")
    options.output.write_text(text)
    return 1 if record["failed"] or record["compiler_found"] or not record["passed"] else 0


def install(wheel: Path, root: Path) -> Path:
    """The Python of a new environment with the wheel in it, whose tags pip has checked, and links to what it depends on."""
    venv.create(root / "venv", with_pip=False)
    python = root / "venv/bin/python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(command, check=True)
    (packages,) = (root / "venv/lib").glob("python3*/site-packages")
    dependencies = root / "dependencies"
    own = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    own |= {path / "lib-dynload" for path in own} | {Path(__file__).resolve().parent}
    for entry in map(Path, filter(None, sys.path)):
        if entry.is_dir() and entry.resolve() not in own and any(entry.glob("*.dist-info")):
            link(entry, dependencies, HIDDEN)
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    return python


def link(source: Path, target: Path, hidden: tuple[str, ...]) -> None:
    """Links in ``target`` to what ``source`` has and ``target`` lacks."""
    target.mkdir(exist_ok=True)
    for path in source.iterdir():
        if any(fnmatch(path.name, pattern) for pattern in hidden):
            continue
        if path.name in NAMESPACES and path.is_dir():
            link(path, target / path.name, HIDDEN_OF_NVIDIA)
        elif not (target / path.name).exists():
            (target / path.name).symlink_to(path.resolve())


def environment(root: Path) -> dict[str, str]:
    """This process's, without what leads to a compiler or to a kernel cache."""
    (root / "tools").mkdir()
    if found := shutil.which("nvidia-smi"):
        (root / "tools/nvidia-smi").symlink_to(found)
    kept = {name: value for name, value in os.environ.items() if name not in UNSET and not name.startswith("CUTLASS_SK_")}
    return {**kept, "PATH": str(root / "tools"), "HOME": str(root), "CUTLASS_SK_CACHE_DIR": "/proc/nothing"}


def commit() -> str:
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def inside(dry_run: bool) -> dict[str, Any]:
    """In the new environment: what came with the wheel, and how many of its products are exact."""
    import cutlass_sk
    from cutlass_sk import prebuilt
    from cutlass_sk.errors import ToolchainError
    from cutlass_sk.generator import find
    from cutlass_sk.jit.toolchain import find_toolchain
    from cutlass_sk.provenance import provenance

    assert Path(cutlass_sk.__file__).is_relative_to(sys.prefix), f"{cutlass_sk.__file__} is not the wheel's"
    try:
        compiler = str(find_toolchain().nvcc)
    except ToolchainError as error:
        compiler = f"none: {error}"
    specs = [find(name) for library in prebuilt.libraries() if library.usable for name in library.kernels]
    passed, failures = 0, []
    for what, check in asked(specs) if dry_run else products(specs):
        try:
            wrong = check()
        except Exception:
            wrong = traceback.format_exc(limit=-2)
        if wrong:
            failures.append(f"{what}: {wrong}")
        else:
            passed += 1
    return {
        "provenance": provenance("tests/gpu/wheel.py" + (" --dry-run" if dry_run else "")),
        "kernels": len(specs),
        "libraries": {one.file: len(one.kernels) for one in prebuilt.libraries() if one.usable},
        "cases": passed + len(failures),
        "passed": passed,
        "failed": len(failures),
        "failures": failures[:REPORTED],
        "compiler_found": not compiler.startswith("none: "),
        "compiler": compiler,
        "native_extension": cutlass_sk.extension.native is not None,
    }


def asked(specs: list[Any]) -> Iterator[tuple[str, Any]]:
    """What each kernel answers on the host about a plan."""
    from cutlass_sk import Gemm
    from cutlass_sk.kernel import load_kernel, plan_struct, problem_struct

    for spec in specs:
        for m, n, k in SHAPES:

            def check(spec: Any = spec, m: int = m, n: int = n, k: int = k) -> str:
                plan = Gemm(spec.dtype, out_dtype=spec.out_dtype, device="h200", kernels=[spec]).plan(m, n, k)
                answer = load_kernel(spec, "90a").query(problem_struct(m, n, k, k, n, n), plan_struct(plan))
                return "" if (answer.grid, answer.sk_units) == (plan.grid, plan.sk_units) else f"{answer} for {plan}"

            yield f"{spec} {m} x {n} x {k}", check


def products(specs: list[Any]) -> Iterator[tuple[str, Any]]:
    """Products of each kernel as planned and forced; and of the set of each pair of dtypes, one with operands that are packed."""
    from cutlass_sk import Gemm

    for spec in specs:
        gemm = Gemm(spec.dtype, out_dtype=spec.out_dtype, kernels=[spec])
        for shape in SHAPES:
            for forced in FORCED:
                yield f"{spec} {shape} {forced}", lambda g=gemm, s=spec, at=shape, f=forced: product(g, s, at, f)
    for spec in {(one.dtype, one.out_dtype, one.layout_a, one.layout_b): one for one in specs}.values():
        whole_set = Gemm(spec.dtype, out_dtype=spec.out_dtype)
        for shape in (*SHAPES, UNALIGNED):
            yield f"{whole_set} {spec.layout_a}{spec.layout_b} {shape}", lambda g=whole_set, s=spec, at=shape: product(g, s, at, {})


def product(gemm: Any, spec: Any, shape: tuple[int, int, int], forced: dict[str, Any]) -> str:
    """What is wrong with a product, twice its old output added; nothing if it is bit-equal to the exact one."""
    import torch

    m, n, k = shape

    def matrix(rows: int, columns: int, layout: str) -> torch.Tensor:
        size = (rows, columns) if layout == "t" else (columns, rows)
        made = torch.randint(-1, 2, size, device="cuda", dtype=torch.int8).to(gemm.dtype)
        return made if layout == "t" else made.t()

    a, b = matrix(m, k, spec.layout_a), matrix(k, n, spec.layout_b)
    old = torch.randint(-2, 3, (m, n), device="cuda", dtype=torch.int8).to(gemm.out_dtype)
    exact = a.double() @ b.double()
    plan = gemm.plan(m, n, k, **forced) if forced else None
    for c, beta, expected in ((torch.full_like(old, float("nan")), 0.0, exact), (old.clone(), 2.0, exact + 2 * old.double())):
        gemm.run(a, b, c, beta=beta, plan=plan)
        if wrong := int((c != expected.to(gemm.out_dtype)).sum()):
            return f"{wrong} of {m * n} elements wrong with beta={beta}; {plan}"
    return ""


if __name__ == "__main__":
    if "--inside" in sys.argv:
        print(json.dumps(inside("--dry-run" in sys.argv)))
    else:
        sys.exit(main())
