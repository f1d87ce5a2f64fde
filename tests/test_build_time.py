"""The record of build times: which times and sizes are in it, and what it keeps. No kernel is compiled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_sk.ensemble import build_time
from cutlass_sk.jit.build import Source


def test_processor_time_is_that_of_the_processes_started() -> None:
    work = "import time\nwhile time.process_time() < 0.3: pass"
    seconds, cpu = build_time.measured(lambda: subprocess.run([sys.executable, "-c", work], check=True))
    assert 0.3 <= cpu <= 1 and seconds >= 0.3


def test_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    built: list[list[Source]] = []

    def cold(sources: list[Source]) -> tuple[float, float]:
        built.append(sources)
        return 1.0, 2.0

    (libraries := tmp_path / "libraries").mkdir()
    monkeypatch.setenv("CUTLASS_SK_PREBUILT_DIR", str(libraries))
    monkeypatch.setattr(build_time, "cold", cold)
    monkeypatch.setattr(build_time, "plain_nvcc", lambda source: (3.0, 4.0))
    wheel, output = tmp_path / "one.whl", tmp_path / "build.json"
    wheel.write_bytes(b"12345")
    output.write_text('{"fault_tests": {"passed": 3, "failed": 0}, "cold_build_s": 99}')
    monkeypatch.setattr(sys, "argv", ["build_time", "--wheel", str(wheel), "-o", str(output)])
    build_time.main()
    record = json.loads(output.read_text())
    assert json.loads(capsys.readouterr().out) == record
    assert [len(sources) for sources in built] == [1, 8] and built[0][0].name == record["kernel"] == record["default_set"][0]
    times = {
        "cold_build_s": 1,
        "cold_build_cpu_s": 2,
        "plain_nvcc_s": 3,
        "cutlass_kernel_plain_nvcc_cpu_s": 4,
        "default_set_build_s": 1,
    }
    assert times.items() <= record.items()
    assert (record["wheel_bytes"], record["prebuilt_kernels"], record["prebuilt_bytes"]) == (5, 0, {})
    assert record["fault_tests"] == {"passed": 3, "failed": 0}, "another program's"


def test_fault_tests_are_counted_and_the_times_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests, output = tmp_path / "test_some.py", tmp_path / "build.json"
    tests.write_text(
        "import os, pytest\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert False\n"
        "@pytest.mark.skip\ndef test_is_skipped(): pass\n"
        "@pytest.fixture\ndef broken(): raise OSError\n"
        "def test_never_starts(broken): pass\n"
    )
    output.write_text('{"cold_build_s": 99, "fault_tests": {"passed": 100}}')
    monkeypatch.setattr(sys, "argv", ["build_time", "--fault-tests", str(tests), "-o", str(output)])
    build_time.main()
    record = json.loads(output.read_text())
    assert record["cold_build_s"] == 99
    counts = {"passed": 1, "failed": 2, "skipped": 1, "files": ["test_some.py"]}
    assert counts.items() <= record["fault_tests"].items()


def test_a_run_of_fault_tests_that_dies_is_a_failure(tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text("import os\ndef test_passes(): pass\ndef test_dies(): os._exit(9)\n")
    assert build_time.fault_tests([tests])["failed"] == 1
