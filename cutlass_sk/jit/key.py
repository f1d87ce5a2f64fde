"""The key under which a compiled kernel is kept: everything that decides its bytes."""

from __future__ import annotations

from collections.abc import Sequence

from ..generator import abi
from .digest import fields_digest, headers_digest
from .toolchain import Toolchain

SCHEMA = 2
"""Raised when the fields of the key or the layout of a cache entry change."""


def kernel_key(text: str, flags: Sequence[str], toolchain: Toolchain, architecture: str) -> str:
    """SHA-256, in hexadecimal, of labelled fields; equal keys mean interchangeable binaries.

    ``flags`` are nvcc's options without directories: a key is the same wherever the tools are installed. CUTLASS's headers and our
    own count through their contents, CUDA's and the host compiler's through the versions of nvcc and the host compiler.
    """
    fields = {
        "schema": str(SCHEMA),
        "abi": str(abi.ABI_VERSION),
        "architecture": architecture,
        "nvcc": toolchain.nvcc_version,
        "host_compiler": toolchain.host_version,
        "cutlass": toolchain.cutlass_version,
        "cutlass_headers": toolchain.cutlass_digest,
        "headers": headers_digest(toolchain.own_include),
        "flags": "\n".join(flags),
        "text": text,
    }
    return fields_digest((label, value.encode()) for label, value in fields.items())
