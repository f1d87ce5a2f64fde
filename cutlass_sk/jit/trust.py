"""Whether others can write to a path: what is loaded runs with the rights of its user."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from ..errors import CacheError


def require_private(root: Path, *inner: Path) -> None:
    """Raises CacheError if another user, root aside, owns ``root`` or a path of ``inner``, or can write to it or replace ``root``.

    Paths that do not exist are passed over; FileNotFoundError for one of ``inner``. ``root`` holds no symbolic links.
    """
    for place in root.parents:  # with the sticky bit, as /tmp has it, only owners rename
        status = _status(place)
        if status is not None and status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise _refused(root, place, status, "everyone", "o-w")
    for place in (root, *inner):
        status = _status(place) if place is root else os.stat(place)
        if status is None:
            return
        if status.st_uid not in (0, os.geteuid()):
            raise CacheError(
                f"the kernel cache {root} is not used: {place} belongs to user {status.st_uid}, who is neither you "
                f"(user {os.geteuid()}) nor root; {PRIVATE}"
            )
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _refused(root, place, status, "others", "go-w")


PRIVATE = "set CUTLASS_SK_CACHE_DIR to a directory that only you can write to"


def _refused(root: Path, place: Path, status: os.stat_result, who: str, change: str) -> CacheError:
    own = status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX  # /tmp is to stay as it is
    command = f"`chmod {change} {shlex.quote(os.fspath(place))}` if nobody has put any there, else " if own else ""
    return CacheError(
        f"the kernel cache {root} is not used: {who} can write to {place} (mode {stat.S_IMODE(status.st_mode):04o}), so that its "
        f"kernels may be anybody's; {command}{PRIVATE}"
    )


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
