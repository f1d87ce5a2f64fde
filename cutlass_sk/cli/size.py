"""How large a compiled kernel is."""

from __future__ import annotations

import struct
from pathlib import Path

FATBIN = b".nv_fatbin"


def device_code_bytes(library: Path) -> int:
    """Bytes of GPU code in a 64-bit ELF shared object: its .nv_fatbin section; 0 without one. The rest is host code."""
    data = library.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    # Elf64_Shdr: name (offset into the names section), type, flags, address, offset, size
    sections = [struct.unpack_from("<IIQQQQ", data, table + index * entry_bytes) for index in range(count)]
    names = sections[names_index][4]
    for name, _, _, _, _, size in sections:
        if data[names + name :].startswith(FATBIN + b"\0"):
            return int(size)
    return 0
