"""``python tests/gpu/record.py -o results/h200/gpu-tests.json``: runs the GPU tests, file by file, and records what came of them.

Each file runs in a process of its own with a limit: a hang ends that file, counts as a failure, and the others still run.
What a file printed is kept beside the record.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from cutlass_sk.provenance import output_argument, provenance, save

HERE = Path(__file__).parent


def run(file: Path, folder: Path, log: Path, limit_seconds: float, extra: list[str]) -> tuple[dict[str, int], list[str]]:
    """Counts of one file's tests, and the names of those that failed with what they said."""
    report = folder / f"{file.stem}.xml"
    command = [sys.executable, "-m", "pytest", str(file), f"--junitxml={report}", "-v", "-rf", "--durations=10", *extra]
    try:
        with log.open("w") as output:
            status = subprocess.run(command, timeout=limit_seconds, stdout=output, stderr=subprocess.STDOUT).returncode
    except subprocess.TimeoutExpired:
        status = -1
    counts, failed = {"passed": 0, "failed": 0, "skipped": 0}, []
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            outcome = "failed" if case.find("failure") is not None or case.find("error") is not None else "passed"
            outcome = "skipped" if case.find("skipped") is not None else outcome
            counts[outcome] += 1
            if outcome == "failed":
                failed.append(f"{file.name}::{case.get('name')}: {said(case)}")
    if status not in (0, 1) or not report.exists():
        # Killed by a watchdog, or crashed: what ran is not known, that it failed is.
        counts["failed"] += 1
        failed.append(f"{file.name}: the run ended with status {status}; the end of {log.name} says where")
    return counts, failed


def said(case: ElementTree.Element) -> str:
    """The message of a test that failed, on one line."""
    problems = [problem for kind in ("failure", "error") for problem in case.iter(kind)]
    return " ".join((problems[0].get("message") or "").split())[:400]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=output_argument, required=True)
    parser.add_argument("--commit", help="commit to record; default what git says")
    parser.add_argument("--limit-seconds", type=float, default=900, help="for one file")
    parser.add_argument("--jobs", type=int, default=1, help="files that run at a time; they share the GPU")
    parser.add_argument("--files", nargs="*", default=sorted(path.name for path in HERE.glob("test_*.py")))
    options, extra = parser.parse_known_args()
    start = time.monotonic()
    total, failed = {"passed": 0, "failed": 0, "skipped": 0}, []
    logs = options.output.parent / f"{options.output.stem}-logs"
    logs.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:

        def outcome(name: str) -> tuple[dict[str, int], list[str]]:
            began = time.monotonic()
            counts, names = run(HERE / name, Path(folder), logs / f"{Path(name).stem}.log", options.limit_seconds, extra)
            print(f"{name}: {counts}, {time.monotonic() - began:.0f} s", *names, sep="\n  ", flush=True)
            return counts, names

        with ThreadPoolExecutor(max(1, options.jobs)) as pool:
            for counts, names in pool.map(outcome, options.files):
                total = {key: total[key] + counts[key] for key in total}
                failed += names
    record = {**provenance("tests/gpu/record.py", options.commit), **total, "seconds": round(time.monotonic() - start, 1)}
    save(options.output, json.dumps({**record, "failures": failed}, indent=1) + "\n")
    print(json.dumps({**record, "failures": failed}, indent=1))
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
