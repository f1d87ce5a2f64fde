"""The key under which a compiled kernel is kept: everything that decides its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ..generator import abi
from .toolchain import Toolchain

SCHEMA = 1
"""Raised when the fields of the key or the layout of a cache entry change."""


def kernel_key(text: str, flags: Sequence[str], toolchain: Toolchain, architecture: str) -> str:
    """SHA-256, in hexadecimal, of labelled fields; equal keys mean interchangeable binaries.

    ``flags`` are nvcc's options without directories: a key is the same wherever the tools are installed. CUTLASS's headers count
    through the wheel's version, our own through their contents.
    """
    fields = {
        "schema": str(SCHEMA),
        "abi": str(abi.ABI_VERSION),
        "architecture": architecture,
        "nvcc": toolchain.nvcc_version,
        "host_compiler": toolchain.host_version,
        "cutlass": toolchain.cutlass_version,
        "headers": headers_digest(toolchain.own_include),
        "flags": "\n".join(flags),
        "text": text,
    }
    return _digest(fields)


def headers_digest(include: Path) -> str:
    """Digest of the names and contents of all files below ``include``."""
    files = sorted(path for path in include.rglob("*") if path.is_file())
    return _digest({path.relative_to(include).as_posix(): path.read_text(encoding="utf-8") for path in files})


def _digest(fields: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for label, value in fields.items():
        data = value.encode()
        digest.update(f"{label} {len(data)}\n".encode())  # the length keeps one field's end from reading as the next one's start
        digest.update(data)
    return digest.hexdigest()
