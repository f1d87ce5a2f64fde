"""How long kernels take to build, beside a plain nvcc of the same text and of CUTLASS's own kernel, and how large a wheel is.

    python -m cutlass_sk.ensemble.build_time --wheel dist/cutlass_sk-*.whl -o results/build.json
    python -m cutlass_sk.ensemble.build_time --fault-tests tests/test_cache{,_faults,_trust}.py -o results/build.json

Each build starts from an empty cache. Seconds are of the clock, ``_cpu_s`` of all processors together: only these compare on a
machine that has other work. The second command runs the tests of the cache's faults; each keeps in the file what the other found.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from cutlass_sk import env, prebuilt
from cutlass_sk.generator import families
from cutlass_sk.generator.emit import emit_data_parallel
from cutlass_sk.generator.spec import KernelSpec
from cutlass_sk.jit.build import Source, command_line, compile_sources, sources
from cutlass_sk.jit.toolchain import find_toolchain
from cutlass_sk.provenance import output_argument, provenance, save

FAULT_TESTS = "fault_tests"
FAULT_TESTS_LIMIT_SECONDS = 1800


def measured(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds that ``action`` takes by the clock, and of the processors in processes that it starts."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    action()
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(seconds, 2), round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2)


def cold(built: Sequence[Source]) -> tuple[float, float]:
    """``compile_sources`` into an empty cache."""
    with TemporaryDirectory(prefix="cutlass_sk-") as root, patch.dict(os.environ, {env.CACHE_DIR.name: root}):
        return measured(lambda: compile_sources(built, progress=False))


def plain_nvcc(source: Source) -> tuple[float, float]:
    """The same command line, in a folder that holds the source alone: CUTLASS's headers are read whole."""
    with TemporaryDirectory(prefix="cutlass_sk-") as folder:
        (Path(folder) / "kernel.cu").write_text(source.text, encoding="utf-8")
        command = command_line(find_toolchain(), source)
        return measured(lambda: subprocess.run(command, cwd=folder, check=True, capture_output=True))


def record(spec: KernelSpec, specs: Sequence[KernelSpec], wheel: Path | None) -> dict[str, Any]:
    """The times of ``spec`` alone and of ``specs`` together, and what a wheel holds."""
    (source,) = sources([spec])
    machine = {"cpus": os.cpu_count(), "load_average": round(os.getloadavg()[0], 2)}
    times = {"cold_build": cold([source]), "plain_nvcc": plain_nvcc(source)}
    if spec.ctas_per_sm == 1 and spec.dtype != "float64":
        own = Source(spec.name, emit_data_parallel(spec), source.architecture)
        times["cutlass_kernel_plain_nvcc"] = plain_nvcc(own)
    if specs:
        times["default_set_build"] = cold(sources(specs))
    made: dict[str, Any] = {"provenance": {**provenance("ensemble.build_time"), **machine}, "kernel": spec.name}
    made["default_set"] = [one.name for one in specs]
    for name, (seconds, cpu) in times.items():
        made |= {f"{name}_s": seconds, f"{name}_cpu_s": cpu}
    libraries = prebuilt.libraries()
    made["wheel_bytes"] = None if wheel is None else wheel.stat().st_size
    made["prebuilt_kernels"] = sum(len(library.kernels) for library in libraries)
    made["prebuilt_bytes"] = {library.file: library.bytes for library in libraries}
    return made


def fault_tests(files: Sequence[Path]) -> dict[str, Any]:
    """What came of the tests in ``files``, in a process of their own; a run that ends before its last test is one more failure."""
    start = time.monotonic()
    with TemporaryDirectory(prefix="cutlass_sk-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *map(str, files)]
        try:
            status = subprocess.run(command, stdout=sys.stderr, timeout=FAULT_TESTS_LIMIT_SECONDS).returncode
        except subprocess.TimeoutExpired:
            status = -1
        cases = list(ElementTree.parse(report).iter("testcase")) if report.is_file() else []
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {
        "passed": len(cases) - failed - skipped,
        "failed": failed + (status not in (0, 1)),
        "skipped": skipped,
        "seconds": round(time.monotonic() - start, 1),
        "files": [file.name for file in files],
        "provenance": provenance("ensemble.build_time --fault-tests"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m cutlass_sk.ensemble.build_time", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--dtype", default="float16", help="whose first kernel, and whose set; row-major a, column-major b")
    parser.add_argument("--no-set", action="store_true", help="measure one kernel alone")
    parser.add_argument("--wheel", type=Path, help="a wheel to weigh")
    parser.add_argument("--fault-tests", type=Path, nargs="+", metavar="FILE", help="run these tests, and measure no build")
    parser.add_argument("-o", "--output", type=output_argument, help="write the JSON to this file")
    options = parser.parse_args()
    known = json.loads(options.output.read_text()) if options.output is not None and options.output.is_file() else {}
    if options.fault_tests:
        made = {**known, FAULT_TESTS: fault_tests(options.fault_tests)}
    else:
        specs = [spec.with_layouts("t", "n") for spec in families(options.dtype, options.dtype, "sm90a")]
        made = record(specs[0], [] if options.no_set else specs, options.wheel)
        made |= {name: known[name] for name in (FAULT_TESTS,) if name in known}
    text = json.dumps(made, indent=1) + "\n"
    print(text, end="")
    if options.output is not None:
        save(options.output, text)


if __name__ == "__main__":
    main()
