"""The kernel cache: one directory per compiled kernel, published by rename, read without locks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import CacheError, reason
from .key import SCHEMA
from .lock import file_lock
from .root import REMEDY, cache_root
from .trust import require_private

LIBRARY, SOURCE, METADATA = "kernel.so", "kernel.cu", "entry.json"
DAY_SECONDS = 86400.0
PUBLISH_ATTEMPTS = 10


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

    ``root`` is created, private to the user, by the first build, and refused where others can write to it. Lookups write nothing
    but the day of an entry's last use. Default: CUTLASS_SK_CACHE_DIR, or the user's cache directory.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = cache_root() if root is None else Path(os.path.realpath(root))

    @property
    def _entries(self) -> Path:
        return self.root / str(SCHEMA)

    def entry_path(self, key: str) -> Path:
        return self._entries / key[:2] / key

    def lookup(self, key: str) -> Entry | None:
        """The entry, if it is there and whole. Raises CacheError if others can write to it."""
        found = self.inspect(key)
        if not isinstance(found, Entry):
            return None
        _note_use(found)
        return found

    def inspect(self, key: str) -> Entry | str | None:
        """The entry if its files have the recorded digests, else what is wrong with it; None if there is none.

        Raises CacheError if others can write to it.
        """
        path = self.entry_path(key)
        if not os.path.lexists(path):
            return None
        files = [path / name for name in (METADATA, LIBRARY, SOURCE)]
        try:
            require_private(self.root, self._entries, path.parent, path, *files)
            if odd := next((file.name for file in files if not stat.S_ISREG(file.stat().st_mode)), None):
                return f"{odd} is no file"
            record = json.loads((path / METADATA).read_bytes())
            if record.pop("sha256") != _record_digest(record):
                return f"{METADATA} is not as it was written"
            if record.pop("key") != key:
                return f"{METADATA} is another entry's"
            recorded = record.pop("files")
            for name in (LIBRARY, SOURCE):
                if recorded[name] != fingerprint(path / name):
                    return f"{name} is not as it was written"
            return Entry(key=key, path=path, library_bytes=recorded[LIBRARY]["bytes"], **record)
        except FileNotFoundError as error:
            return f"{Path(error.filename or path).name} is missing" if os.path.lexists(path) else None
        except OSError as error:
            return f"it cannot be read: {reason(error)}"
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return f"{METADATA} cannot be read"

    @contextmanager
    def lock(self, key: str, cancelled: threading.Event) -> Iterator[bool]:
        """The right to build ``key`` over all processes, as ``file_lock`` gives it; yields whether it is held.

        Raises CacheError if the cache cannot be written, Cancelled if ``cancelled`` is set while waiting.
        """
        with file_lock(self._writable("locks") / key, cancelled) as alone:
            yield alone

    @contextmanager
    def scratch(self, key: str, alone: bool = True) -> Iterator[Path]:
        """A directory to build in, deleted afterwards. ``alone``: whether the key's lock is held.

        What killed builders left goes now.
        """
        parent = self._writable("tmp")
        directory = Path(tempfile.mkdtemp(prefix=f"{key}-{_boot()}-", dir=parent))
        now = directory.stat().st_mtime  # by the filesystem's own clock
        for other in parent.glob(f"{key}-*"):
            if other != directory and is_left_over(other, alone, now):
                shutil.rmtree(other, ignore_errors=True)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def publish(self, key: str, directory: Path, metadata: Metadata) -> Entry:
        """Makes ``kernel.so`` and ``kernel.cu`` of ``directory`` (in a ``scratch``) the entry of ``key``, all at once.

        An entry that is there already stays if it is whole: without a lock, another builder may have been faster. A library that
        some process has loaded is never written to.
        """
        new = directory / "new"
        new.mkdir(mode=0o700)
        for name in (LIBRARY, SOURCE):
            (directory / name).rename(new / name)
        write_record(new, key, metadata)
        library_bytes = (new / LIBRARY).stat().st_size
        path = self.entry_path(key)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        shutil.rmtree(self._failed(key), ignore_errors=True)
        for attempt in range(PUBLISH_ATTEMPTS):
            if (entry := self.lookup(key)) is not None:
                return entry
            with suppress(FileNotFoundError):
                path.rename(directory / f"old-{attempt}")
            try:
                new.rename(path)
                return Entry(key=key, path=path, library_bytes=library_bytes, **asdict(metadata))
            except OSError as error:  # there is one again
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
        raise CacheError(f"{path} cannot be replaced: {self.inspect(key)}; {REMEDY}")

    def keep_failure(self, key: str, directory: Path, log: str) -> Path:
        """Keeps the source and the log of a build that failed; returns the path of the kept source."""
        failed = self._failed(key)
        for place in (failed.parent, failed):
            place.mkdir(mode=0o700, exist_ok=True)
        (failed / "log.txt").write_text(log, encoding="utf-8", errors="replace")
        return (directory / SOURCE).replace(failed / SOURCE)

    def _failed(self, key: str) -> Path:
        return self.root / "failed" / key

    def _writable(self, name: str) -> Path:
        """A directory for builds, created if need be, as private as all above it."""
        directory = self._entries / name
        try:
            missing = [place for place in (self.root, *self.root.parents) if not place.exists()]
            for place in (*reversed(missing), self._entries, directory):
                place.mkdir(mode=0o700, exist_ok=True)
            require_private(self.root, self._entries, directory)
            writable = os.access(directory, os.W_OK)
        except OSError as error:
            raise CacheError(f"the kernel cache {self.root} cannot be written: {reason(error)}; {REMEDY}") from error
        if not writable:
            raise CacheError(f"the kernel cache {self.root} cannot be written: {directory} is read-only; {REMEDY}")
        return directory


def is_left_over(scratch: Path, alone: bool, now: float) -> bool:
    """Whether nobody builds in a ``scratch`` any more. ``alone``: its key's lock is held; ``now``: the time, for the others.

    A lock says so of builds on this host; those on others may not see it, and get a day.
    """
    try:
        return (alone and scratch.name.split("-")[1] == _boot()) or now - scratch.stat().st_mtime > DAY_SECONDS
    except OSError:  # it has just gone
        return False


def write_record(directory: Path, key: str, metadata: Metadata) -> None:
    """Completes an entry in ``directory``, which holds its library and source: private, on the disk, with the digests."""
    paths = [directory / LIBRARY, directory / SOURCE, directory / METADATA]
    record = {"key": key, **asdict(metadata), "files": {path.name: fingerprint(path) for path in paths[:2]}}
    paths[2].write_text(json.dumps({**record, "sha256": _record_digest(record)}, indent=1) + "\n", encoding="utf-8")
    for path in paths:
        with suppress(PermissionError):  # a filesystem without modes
            path.chmod(0o600)
        with path.open("rb") as file:
            os.fsync(file.fileno())  # shows what could not be written, too


def fingerprint(path: Path) -> dict[str, Any]:
    """Size and digest of a file, as they are recorded."""
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _record_digest(record: dict[str, Any]) -> str:
    """Digest of all of an entry's record but the digest itself."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _note_use(entry: Entry) -> None:
    """The time of the record's file is the day of the entry's last use, which ``prune`` goes by and nothing else."""
    with suppress(OSError):
        path = entry.path / METADATA
        if abs(time.time() - path.stat().st_mtime) > DAY_SECONDS:
            os.utime(path)


@lru_cache(maxsize=1)
def _boot() -> str:
    """Names this run of the system, in which locks hold on every filesystem that has them."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return "unknown0"
