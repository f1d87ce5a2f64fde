"""Nsight Compute's command line, and its CSV: which counters are asked for, how they are read, and how launches are added up."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import isfinite
from pathlib import Path

TIME = "gpu__time_duration.sum"
ELAPSED = "sm__cycles_elapsed.max"
ACTIVE, ACTIVE_LEAST, ACTIVE_MOST = "sm__cycles_active.avg", "sm__cycles_active.min", "sm__cycles_active.max"
FROM_L2 = "l1tex__m_xbar2l1tex_read_bytes.sum"
L2 = "lts__t_bytes.sum"
DRAM = ("dram__bytes_read.sum", "dram__bytes_write.sum")
WAVES = "launch__waves_per_multiprocessor"
GRID = "launch__grid_size"
TENSOR = tuple(f"sm__pipe_tensor{kind}_cycles_active.avg.pct_of_peak_sustained_elapsed" for kind in ("", "_op_hmma", "_op_dmma"))
"""The busy part of the tensor pipes, in percent: all, 16-bit (hmma; wgmma too), float64. The largest known one counts."""

METRICS = (
    TIME,
    ELAPSED,
    ACTIVE,
    ACTIVE_LEAST,
    ACTIVE_MOST,
    "smsp__cycles_active.avg",
    *TENSOR,
    FROM_L2,
    L2,
    "lts__t_sectors.sum",
    "lts__t_sector_hit_rate.pct",
    *DRAM,
    GRID,
    "launch__cluster_size",
    "launch__registers_per_thread",
    WAVES,
)
"""Units in a record: ns, bytes, cycles, percent, counts."""

UNITS = {
    **{f"{prefix}byte": factor for prefix, factor in (("", 1.0), ("k", 1e3), ("m", 1e6), ("g", 1e9), ("t", 1e12))},
    **{"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9},
}
"""Unit of a column in small letters -> what it is in bytes or ns; others are left as they are."""

KNOWN_FAILURES = {
    "ERR_NVGPUCTRPERM": "this user may not read the GPU's counters; run as root, or let the driver permit it "
    "(NVreg_RestrictProfilingToAdminUsers=0)",
    "LibraryNotLoaded": "ncu finds no driver that serves profilers on this machine; sandboxed machines have none, use another",
    "driver resource was unavailable": "another profiler holds the GPU's counters (DCGM, another ncu); stop it first",
}
GRACE_SECONDS = 10.0

_LABEL = re.compile(r"cutlass_sk/(\d+)/(ours|cublas)")
_CONTROL = re.compile(r"==\w+==")

Metrics = dict[str, float | None]
Place = tuple[int, str]
"""Number of a problem, and contender: ours or cublas."""


class NcuError(RuntimeError):
    """Nsight Compute cannot be used or gave nothing; the message says why, and the way out."""


@dataclass
class Launch:
    """One profiled kernel. ``label``: (number of the problem, contender), as the NVTX range around it says; None without one."""

    kernel: str
    label: tuple[int, str] | None
    metrics: Metrics = field(default_factory=dict)


def label(problem: int, contender: str) -> str:
    """The name of the NVTX range around a profiled launch."""
    return f"cutlass_sk/{problem}/{contender}"


def command(ncu: str, log: Path, child: Sequence[str], metrics: Sequence[str] = METRICS) -> list[str]:
    """Profiles what ``child`` launches between cudaProfilerStart and -Stop; CSV and messages go to ``log``."""
    return [
        *(ncu, "--profile-from-start", "off", "--target-processes", "all", "--nvtx", "--replay-mode", "kernel"),
        *("--cache-control", "none", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base"),
        *("--metrics", ",".join(metrics), "--log-file", str(log), *child),
    ]


def run(arguments: Sequence[str], output: Path, environment: Mapping[str, str], timeout: float) -> int | None:
    """Exit status of a command whose output goes to ``output``; None where it, and all it started, was stopped at the timeout."""
    with output.open("wb") as sink:
        process = subprocess.Popen(arguments, stdout=sink, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        try:
            return process.wait(max(0.0, timeout))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def refused(log: str, metrics: Sequence[str]) -> list[str]:
    """Those of ``metrics`` that an error message of ncu's names, with or without what follows the first dot."""
    errors = [line for line in log.splitlines() if line.startswith("==ERROR==")]
    words = {word for line in errors for word in re.findall(r"\w+__[\w.]*\w", line)}
    return [name for name in metrics if name in words or name.partition(".")[0] in words]


def failure(log: str) -> str:
    """Why ncu gave nothing, in a sentence: a known remedy, or else what it said."""
    for sign, remedy in KNOWN_FAILURES.items():
        if sign in log:
            return remedy
    errors = [line for line in log.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    return "; ".join(line.split("==")[-1].strip() for line in errors[-3:]) or "it wrote neither launches nor an error"


def parse(text: str) -> list[Launch]:
    """The launches in ncu's CSV, in order, in ns and bytes. A last line that was cut off, and ncu's messages, are left out.

    Takes the raw page (a column a metric, units in the second row) and the details page (a row a metric) alike.
    """
    header: list[str] = []
    units: list[str] = []
    found: dict[str, Launch] = {}
    lines = text.splitlines()
    for line in lines if text.endswith("\n") else lines[:-1]:
        if not line.strip() or _CONTROL.match(line):
            continue
        cells = next(csv.reader([line]), [])
        if cells and cells[0] == "ID":
            header, units = cells, [""] * len(cells)
        elif not header or len(cells) != len(header):
            continue
        elif not cells[0]:
            units = cells
        else:
            row = dict(zip(header, cells, strict=True))
            launch = found.setdefault(cells[0], Launch(row.get("Kernel Name", ""), _label_of(cells)))
            if "Metric Name" in row:
                launch.metrics[row["Metric Name"]] = number(row.get("Metric Value", ""), row.get("Metric Unit", ""))
            else:
                columns = zip(header, cells, units, strict=True)
                # The raw page also has all that is known of the GPU.
                launch.metrics.update({name: number(cell, unit) for name, cell, unit in columns if name in METRICS})
    return list(found.values())


def number(text: str, unit: str = "") -> float | None:
    """A cell's value in ns, bytes, or its own unit; None for n/a and the like. ``1,234.5`` has a thousands separator."""
    try:
        value = float(text.partition(" (")[0].replace(",", "")) * UNITS.get(unit.lower(), 1.0)
    except ValueError:
        return None
    return value if isfinite(value) else None


def by_contender(
    launches: Sequence[Launch], problems: int = 0, launched: Sequence[Place] | None = None
) -> dict[Place, list[Launch]]:
    """Launches of each (problem, contender), as their NVTX labels say.

    Without any label the order tells, as far as it is known. NcuError where it is not.

    problems   how many there were to launch
    launched   what was launched with success, in order; None where nobody noted it
    """
    groups: dict[Place, list[Launch]] = {}
    if any(launch.label for launch in launches):
        for launch in launches:
            if launch.label is not None:
                groups.setdefault(launch.label, []).append(launch)
        return groups
    stretches = [(name, list(group)) for name, group in groupby(launches, _contender)]
    places = _every(stretches, problems) if launched is None else list(launched)
    names = [name for _, name in places]
    if names[: len(stretches)] != [name for name, _ in stretches] or any(a == b for a, b in pairwise(names)):
        raise NcuError(
            f"the launches in ncu's CSV have no NVTX labels, and their order does not tell whose they are, as where some failed "
            f"or were cut off ({len(stretches)} groups for {problems} problems); profile again with an ncu that records --nvtx"
        )
    return {place: group for place, (_, group) in zip(places, stretches, strict=False)}


def _contender(launch: Launch) -> str:
    """Our kernels say whose they are."""
    return "ours" if "cutlass_sk" in launch.kernel else "cublas"


def _every(stretches: Sequence[tuple[str, list[Launch]]], problems: int) -> list[Place]:
    """Ours, then cuBLAS, problem after problem, if there is a stretch of ours for each problem: then none is missing between them.
    Empty otherwise."""
    if sum(name == "ours" for name, _ in stretches) != problems:
        return []
    return [(problem, name) for problem in range(problems) for name in ("ours", "cublas")]


def together(launches: Sequence[Launch]) -> Metrics:
    """The counters of one product that took several launches, one after the other.

    Sums, and cycles, are added; percentages are averages over elapsed cycles; what describes the launch is the longest one's.
    """
    longest = max(launches, key=lambda launch: launch.metrics.get(TIME) or 0.0)
    names = dict.fromkeys(name for launch in launches for name in launch.metrics)
    combined: Metrics = {}
    for name in names:
        known = [(value, launch) for launch in launches if (value := launch.metrics.get(name)) is not None]
        if not known:
            combined[name] = None
        elif name.startswith("launch__"):
            combined[name] = longest.metrics.get(name)
        elif ".pct" in name:
            combined[name] = _mean(known)
        else:
            combined[name] = sum(value for value, _ in known)
    return combined


def _mean(known: Sequence[tuple[float, Launch]]) -> float:
    weights = [launch.metrics.get(ELAPSED) or launch.metrics.get(TIME) or 1.0 for _, launch in known]
    return sum(value * weight for (value, _), weight in zip(known, weights, strict=True)) / sum(weights)


def _label_of(cells: Sequence[str]) -> tuple[int, str] | None:
    for cell in cells:
        if found := _LABEL.search(cell):
            return int(found[1]), found[2]
    return None
