"""Where a record comes from: commit, date, machine, versions."""

from __future__ import annotations

import argparse
import platform
import subprocess
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from .errors import WriteError


def commit(given: str | None = None) -> str:
    """The commit that runs: ``given``, or what git says of the clone that holds this package; ``unknown`` where none does."""
    if given:
        return given
    root = Path(__file__).resolve().parent.parent
    return ((root / ".git").exists() and _output(["git", "-C", str(root), "rev-parse", "HEAD"])) or "unknown"


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


def output_file(path: Path | str) -> Path:
    """A path that can be written to as far as its folder goes; WriteError without one. Asked before a long measurement is begun."""
    path = Path(path)
    if not path.parent.is_dir():
        raise WriteError(f"{path} cannot be written: {path.parent} is no folder; name a file in a folder that exists")
    if path.is_dir():
        raise WriteError(f"{path} cannot be written: it is a folder; name a file in a folder that exists")
    return path


def output_argument(text: str) -> Path:
    """``output_file`` for argparse."""
    try:
        return output_file(text)
    except WriteError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def save(path: Path, data: str | bytes) -> None:
    """Writes a file whole or not at all; WriteError where it cannot be written. A text is written in UTF-8."""
    special = output_file(path).exists() and not path.is_file()  # a pipe or a device is written to, not replaced
    partial = path.with_name(path.name + ".partial")
    try:
        (path if special else partial).write_bytes(data.encode() if isinstance(data, str) else data)
        if not special:
            partial.replace(path)
    except OSError as error:
        raise WriteError(f"{path} cannot be written: {error.strerror}; name a file in a folder that exists") from None
    finally:
        with suppress(OSError):
            partial.unlink()


def _output(command: list[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
