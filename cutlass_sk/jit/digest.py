"""SHA-256 of what decides a kernel's bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path


def fields_digest(fields: Iterable[tuple[str, bytes]]) -> str:
    """Digest, in hexadecimal, of labelled fields in their order."""
    digest = hashlib.sha256()
    for label, data in fields:
        digest.update(
            f"{label} {len(data)}\n".encode(errors="surrogateescape")
        )  # the length: no field's end reads as the next's start
        digest.update(data)
    return digest.hexdigest()


def headers_digest(*includes: Path) -> str:
    """Digest of the names and contents of all files below ``includes``, wherever these are."""
    return fields_digest((name, _read(path)) for include in includes for name, path in _files(str(include)))


def _files(include: str) -> list[tuple[str, str]]:
    """Names, relative and sorted, and paths. Strings: there are 900 files, and Path takes as long as reading them."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(include) for name in names]
    return sorted((path[len(include) + 1 :], path) for path in paths)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()
