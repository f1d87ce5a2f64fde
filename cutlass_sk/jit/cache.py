"""The kernel cache: one directory per compiled kernel, published by rename, read without locks."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import env
from ..errors import ToolchainError, reason
from .key import SCHEMA

LIBRARY, SOURCE, METADATA = "kernel.so", "kernel.cu", "entry.json"
LOCK_POLL_SECONDS = 0.05


class Cancelled(Exception):
    """Another thread asked a build to stop; never leaves the package."""


@dataclass(frozen=True)
class Entry:
    """One compiled kernel on disk.

    path             the entry's directory
    command          the nvcc command line it was compiled with
    seconds          how long that took
    library_bytes    size of ``library``
    versions         of nvcc, the host compiler, CUTLASS and the ABI
    """

    key: str
    path: Path
    name: str
    architecture: str
    command: str
    seconds: float
    library_bytes: int
    versions: dict[str, str]

    @property
    def library(self) -> Path:
        return self.path / LIBRARY

    @property
    def source(self) -> Path:
        return self.path / SOURCE


@dataclass(frozen=True)
class Metadata:
    """What a build says about a kernel, beyond what its files show."""

    name: str
    architecture: str
    command: str
    seconds: float
    versions: dict[str, str]


class Cache:
    """Entries are ``root/<schema>/<two digits>/<key>/``; ``locks`` and ``tmp`` beside them serve builds, ``root/failed`` keeps
    sources that did not compile. An entry that is damaged in any way is a miss, and the next build replaces it.

    ``root`` is created, private to the user, by the first build; lookups write nothing. Default: CUTLASS_SK_CACHE_DIR, or the
    user's cache directory.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or env.CACHE_DIR.get() or _default_root()

    @property
    def _entries(self) -> Path:
        return self.root / str(SCHEMA)

    def entry_path(self, key: str) -> Path:
        return self._entries / key[:2] / key

    def lookup(self, key: str) -> Entry | None:
        """The entry, if it is there and its files have the recorded sizes and digests."""
        path = self.entry_path(key)
        try:
            if not all((path / name).is_file() for name in (METADATA, LIBRARY, SOURCE)):
                return None
            record = json.loads((path / METADATA).read_bytes())
            files = {name: _fingerprint(path / name) for name in (LIBRARY, SOURCE)}
            if record.pop("files") != files or record.pop("key") != key:
                return None
            return Entry(key=key, path=path, library_bytes=files[LIBRARY]["bytes"], **record)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    @contextmanager
    def lock(self, key: str, cancelled: threading.Event) -> Iterator[None]:
        """Holds the only right to build ``key``, over all processes. The kernel drops an flock when its holder dies.

        Raises ToolchainError if the cache cannot be written, Cancelled if ``cancelled`` is set while waiting.
        """
        descriptor = os.open(self._writable("locks") / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.EACCES):
                        raise ToolchainError(f"the kernel cache {self.root} cannot be locked: {reason(error)}; {REMEDY}") from error
                if cancelled.wait(LOCK_POLL_SECONDS):
                    raise Cancelled
            yield
        finally:
            # Not by closing alone: a process forked meanwhile would keep the lock as long as it lives.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    @contextmanager
    def scratch(self, key: str) -> Iterator[Path]:
        """A directory for the holder of ``key``'s lock to build in, deleted afterwards; what a killed builder left goes now."""
        parent = self._writable("tmp")
        for stale in parent.glob(f"{key}-*"):
            shutil.rmtree(stale, ignore_errors=True)
        directory = Path(tempfile.mkdtemp(prefix=f"{key}-", dir=parent))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def publish(self, key: str, directory: Path, metadata: Metadata) -> Entry:
        """Makes ``kernel.so`` and ``kernel.cu`` of ``directory`` (in a ``scratch``) the entry of ``key``, all at once.

        For the holder of the key's lock. A library that some process has loaded is never written to.
        """
        new, old = directory / "new", directory / "old"
        new.mkdir(mode=0o700)
        for name in (LIBRARY, SOURCE):
            (directory / name).rename(new / name)
        files = {name: _fingerprint(new / name) for name in (LIBRARY, SOURCE)}
        (new / METADATA).write_text(json.dumps({"key": key, **asdict(metadata), "files": files}, indent=1) + "\n")
        path = self.entry_path(key)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if os.path.lexists(path):
            path.rename(old)
        new.rename(path)
        shutil.rmtree(self._failed(key), ignore_errors=True)
        return Entry(key=key, path=path, library_bytes=files[LIBRARY]["bytes"], **asdict(metadata))

    def keep_failure(self, key: str, directory: Path, log: str) -> Path:
        """Keeps the source and the log of a build that failed; returns the path of the kept source."""
        failed = self._failed(key)
        failed.mkdir(mode=0o700, parents=True, exist_ok=True)
        (failed / "log.txt").write_text(log, encoding="utf-8", errors="replace")
        return (directory / SOURCE).replace(failed / SOURCE)

    def _failed(self, key: str) -> Path:
        return self.root / "failed" / key

    def _writable(self, name: str) -> Path:
        """A directory for builds, created if need be."""
        directory = self._entries / name
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._entries.mkdir(mode=0o700, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            writable = os.access(directory, os.W_OK)
        except OSError as error:
            raise ToolchainError(f"the kernel cache {self.root} cannot be written: {reason(error)}; {REMEDY}") from error
        if not writable:
            raise ToolchainError(f"the kernel cache {self.root} cannot be written: {directory} is read-only; {REMEDY}")
        return directory


REMEDY = "set CUTLASS_SK_CACHE_DIR to a directory that can be written"


def _default_root() -> Path:
    from platformdirs import user_cache_path

    root = user_cache_path("cutlass_sk")
    if not root.is_absolute():  # without HOME and without a user entry, "~" stays as it is
        raise ToolchainError(f"the user has no cache directory ({root} is not absolute): {REMEDY}")
    return root


def _fingerprint(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
