"""How large compiled code is, and what a kernel takes of an SM."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import ToolchainError

FATBIN = b".nv_fatbin"


def device_code_bytes(library: Path) -> int:
    """Bytes of GPU code in a 64-bit ELF shared object: its .nv_fatbin section; 0 without one. The rest is host code."""
    with library.open("rb") as file:
        header = file.read(0x40)
        (table,) = struct.unpack_from("<Q", header, 0x28)
        entry_bytes, count, names_index = struct.unpack_from("<HHH", header, 0x3A)
        file.seek(table)
        entries = file.read(entry_bytes * count)
        # Elf64_Shdr: name (offset into the names section), type, flags, address, offset, size
        sections = [struct.unpack_from("<IIQQQQ", entries, index * entry_bytes) for index in range(count)]
        file.seek(sections[names_index][4])
        names = file.read(sections[names_index][5])
    return next((int(size) for name, _, _, _, _, size in sections if names[name:].startswith(FATBIN + b"\0")), 0)


@dataclass(frozen=True)
class Usage:
    """What cuobjdump says of a library's kernels: the most that one of them takes.

    registers          a thread, as launched (Hopper's deal them out anew later)
    stack_bytes        a thread: local memory, where registers are spilled to, too
    static_shared      bytes of shared memory a CTA, beside the dynamic ones that a launch asks for
    """

    registers: int
    stack_bytes: int
    static_shared: int


def cuobjdump() -> Path | None:
    """NVIDIA's tool, of a wheel (nvidia-cuda-cuobjdump), a toolkit or PATH; None where there is none."""
    from cuda.pathfinder import find_nvidia_binary_utility

    found = find_nvidia_binary_utility("cuobjdump") or shutil.which("cuobjdump")
    return Path(found) if found else None


def usage(library: Path, tool: Path) -> Usage | None:
    """The usage of a small library's kernels; None if it has none. ``tool``: cuobjdump."""
    text = _output([str(tool), "-res-usage", str(library)])
    found = [tuple(map(int, numbers)) for numbers in re.findall(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", text)]
    return Usage(*map(max, zip(*found, strict=True))) if found else None


def cubin_bytes(library: Path, tool: Path, target: str) -> int:
    """Bytes of a library's cubins, unpacked, for ``target``, such as sm_90, and its variants. Takes as much temporary space."""
    with TemporaryDirectory() as folder:
        _output([str(tool), "-xelf", f".{target}", str(library.resolve())], Path(folder))
        # A name ends in .sm_90.cubin or .sm_90a.cubin; sm_900 would be another GPU.
        return sum(path.stat().st_size for path in Path(folder).iterdir() if re.search(rf"\.{target}[a-z]?\.cubin$", path.name))


def _output(command: list[str], folder: Path | None = None) -> str:
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip()[-300:]
        raise ToolchainError(
            f"{command[0]} cannot read {command[-1]}: {said}; `pip install nvidia-cuda-cuobjdump` brings one"
        ) from error
