"""Where a record comes from: commit, date, machine, versions."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch


def commit(given: str | None = None) -> str:
    """The commit that runs: ``given``, or what git says of the working directory; ``unknown`` without git."""
    if given:
        return given
    return _output(["git", "rev-parse", "HEAD"]) or "unknown"


def provenance(script: str, given_commit: str | None = None) -> dict[str, Any]:
    """What every record carries. Clocks are those that nvidia-smi reports at this moment, in MHz."""
    record: dict[str, Any] = {
        "commit": commit(given_commit),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "script": script,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "driver": _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        "clocks": _output(["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,clocks.max.sm,power.limit", "--format=csv,noheader"]),
    }
    return record


def save(path: Path, text: str) -> None:
    """Writes a record whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


def _output(command: list[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
