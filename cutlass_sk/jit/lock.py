"""A lock over processes that ends with its holder, and does without where the filesystem has none."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_SECONDS = 0.05
PATIENCE_SECONDS = 600.0
"""How long a holder is waited for: several times as long as a kernel compiles. It may be stopped, or on a host that is gone."""


class Cancelled(Exception):
    """Another thread asked a build to stop; never leaves the package."""


@contextmanager
def file_lock(path: Path, cancelled: threading.Event, patience_seconds: float | None = None) -> Iterator[bool]:
    """Locks ``path``, which is made if need be and stays; the system frees the lock when its holder dies.

    Yields whether the lock is held. It is not on a filesystem without locks, nor where its holder takes longer than
    ``patience_seconds`` (None: PATIENCE_SECONDS): what it guards must come right without it, too. Raises Cancelled if ``cancelled``
    is set while waiting.
    """
    patience_seconds = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _open.add(descriptor)
    try:
        yield _wait(descriptor, cancelled, time.monotonic() + patience_seconds)
    finally:
        if descriptor in _open:  # else this is a child, forked within, that has closed it
            with suppress(OSError):  # not by closing alone, for a process that was forked without Python may hold it, too
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            _open.discard(descriptor)
            os.close(descriptor)


def _wait(descriptor: int, cancelled: threading.Event, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES) or time.monotonic() >= deadline:
                return False
        if cancelled.wait(POLL_SECONDS):
            raise Cancelled


_open: set[int] = set()


def _close_in_child() -> None:
    """A forked child would hold its parent's locks beyond the parent's death."""
    for descriptor in _open:
        with suppress(OSError):
            os.close(descriptor)
    _open.clear()


os.register_at_fork(after_in_child=_close_in_child)
