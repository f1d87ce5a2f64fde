"""How large NVIDIA's own libraries are, as they are installed here."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cutlass_sk.cli.size import cubin_bytes, cuobjdump, device_code_bytes
from cutlass_sk.errors import WriteError
from cutlass_sk.jit.cache import Cache
from cutlass_sk.provenance import save

LIBRARIES = {"cublas": "cublas", "cublaslt": "cublasLt"}
"""Our name for a library, and that by which cuda.pathfinder knows it."""
KNOWN = "library_bytes.json"
"""In the kernel cache: sizes of large libraries, which take long to find out, under path, size and time of change."""


@dataclass(frozen=True)
class Installed:
    """A shared object: its size, its GPU code for all architectures (packed), and its cubins for one (unpacked; None without
    cuobjdump)."""

    path: Path
    file_bytes: int
    code_bytes: int
    target_bytes: int | None


def find(name: str) -> Path | None:
    """The shared object that a process would load for ``cublas`` or ``cublasLt``: of a wheel, conda, CUDA_HOME or the system.
    None if there is none."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    with suppress(RuntimeError, OSError):
        found = load_nvidia_dynamic_lib(name).abs_path
        return Path(found) if found else None
    return None


def wheel(path: Path) -> str:
    """The wheel that a library of NVIDIA's was installed from, such as ``nvidia-cublas 13.1.0.3``; empty where it was none."""
    for folder in path.parents:
        for found in sorted(folder.glob("nvidia_cublas*-*.dist-info")):
            name, _, version = found.stem.partition("-")
            return f"{name.replace('_', '-')} {version}"
    return ""


def measured(path: Path, target: str, say: Callable[[str], None]) -> Installed:
    """The sizes of a library; ``target``: the architecture, such as sm_90. ``say`` is told before what takes long."""
    tool = cuobjdump()
    part = None if tool is None else _known(path, target, lambda: _weighed(path, target, tool, say))
    return Installed(path, path.stat().st_size, device_code_bytes(path), part)


def _weighed(path: Path, target: str, tool: Path, say: Callable[[str], None]) -> int:
    say(f"cuobjdump unpacks the {target} code of {path} ({path.stat().st_size:,} bytes); this may take minutes, once")
    return cubin_bytes(path, tool, target)


def _known(path: Path, target: str, weigh: Callable[[], int]) -> int:
    """What ``weigh`` said of the same file before, or says now."""
    store = Cache().root / KNOWN
    key = f"{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns} {target}"
    try:
        known = json.loads(store.read_text())
        if isinstance(known.get(key), int):
            return int(known[key])
    except (OSError, ValueError, AttributeError):
        known = {}
    known[key] = weigh()
    with suppress(OSError, WriteError):  # a cache that cannot be written costs time, nothing else
        store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        save(store, json.dumps(known, indent=1) + "\n")
    return int(known[key])
