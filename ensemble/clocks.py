"""Clocks, power and temperature of a GPU while something is measured, sampled by nvidia-smi once a second."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from statistics import median
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any

FIELDS = {"sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "power_w": "power.draw", "temperature_c": "temperature.gpu"}


class Sampler:
    """Samples within a ``with`` block; ``summary`` afterwards. Where there is no nvidia-smi, nothing."""

    def __init__(self) -> None:
        self.summary: dict[str, Any] = {}

    def __enter__(self) -> Sampler:
        self._file = TemporaryFile()
        command = ["nvidia-smi", f"--query-gpu={','.join(FIELDS.values())}", "--format=csv,noheader,nounits", "--loop=1"]
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):
            self._process = subprocess.Popen(command, stdout=self._file, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
        self._file.seek(0)
        self.summary = summarize(self._file.read().decode(errors="replace"))
        self._file.close()


def summarize(text: str) -> dict[str, Any]:
    """{samples, and for each of ``FIELDS`` [least, median, most]} of lines of comma-separated numbers; others are left out."""
    rows = []
    for line in text.splitlines():
        try:
            row = [float(cell) for cell in line.split(",")]
        except ValueError:
            continue
        if len(row) == len(FIELDS):
            rows.append(row)
    if not rows:
        return {}
    columns = zip(FIELDS, zip(*rows, strict=True), strict=True)
    return {"samples": len(rows), **{name: [min(column), median(column), max(column)] for name, column in columns}}
