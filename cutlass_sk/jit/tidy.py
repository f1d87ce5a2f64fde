"""What the kernel cache holds, and its removal; safe while other processes build and load.

Only what has a cache's names is looked at and removed: whatever else lies in the directory stays.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import CacheError, reason
from .cache import DAY_SECONDS, METADATA, Cache, is_left_over
from .digest import HEADERS
from .key import SCHEMA
from .lock import file_lock
from .root import REMEDY
from .trust import require_private

KEY = re.compile(r"[0-9a-f]{64}")
TRASH = "trash-"


@dataclass(frozen=True)
class Stored:
    """An entry of the cache, whole or not, of this version's layout or another's.

    schema       the number of the layout; other versions of cutlass_sk keep theirs beside ours
    name         the kernel's, or the key where that cannot be read
    used         when it was last used, to a day: seconds since the epoch
    """

    key: str
    path: Path
    schema: int
    name: str
    architecture: str
    nbytes: int
    used: float

    @property
    def unused_days(self) -> float:
        return max(0.0, (time.time() - self.used) / DAY_SECONDS)


def stored(cache: Cache) -> list[Stored]:
    """All entries, this version's first, by name; nothing is checked. Raises CacheError if the cache cannot be read."""
    found = []
    for layout in _layouts(cache):
        for path in layout.glob("[0-9a-f][0-9a-f]/*"):
            if KEY.fullmatch(path.name):
                with suppress(FileNotFoundError):  # removed meanwhile
                    found.append(_stored(path, int(layout.name)))
    return sorted(found, key=lambda one: (one.schema != SCHEMA, one.schema, one.name, one.key))


def _layouts(cache: Cache) -> list[Path]:
    try:
        return [path for path in cache.root.iterdir() if path.name.isdecimal() and path.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CacheError(f"the kernel cache {cache.root} cannot be read: {reason(error)}; {REMEDY}") from error


def _stored(path: Path, schema: int) -> Stored:
    record: dict[str, object] = {}
    with suppress(OSError, ValueError, RecursionError):
        read = json.loads((path / METADATA).read_bytes())
        record = read if isinstance(read, dict) else {}
    name, architecture = record.get("name"), record.get("architecture")
    clock = path / METADATA
    return Stored(
        key=path.name,
        path=path,
        schema=schema,
        name=name if isinstance(name, str) else path.name,
        architecture=architecture if isinstance(architecture, str) else "",
        nbytes=_nbytes(path),
        used=(clock if clock.exists() else path).stat().st_mtime,
    )


def _nbytes(path: Path) -> int:
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())


def damaged(cache: Cache) -> dict[str, str]:
    """Keys of this version's entries that would not be loaded, and why. Raises CacheError if that is so for the whole cache."""
    require_private(cache.root)
    found: dict[str, str] = {}
    for one in stored(cache):
        if one.schema == SCHEMA:
            try:
                inspected = cache.inspect(one.key)
            except CacheError as error:
                inspected = str(error)
            if isinstance(inspected, str):
                found[one.key] = inspected
    return found


@dataclass(frozen=True)
class Removed:
    """What was removed: entries, and all bytes, left-overs of builds included."""

    entries: int
    nbytes: int


def prune(cache: Cache, keep_days: float | None = None, max_bytes: int | None = None) -> Removed:
    """Removes entries unused for more than ``keep_days``, then the longest unused until the others have ``max_bytes`` or fewer.

    None keeps all. Damaged entries, and what killed builds left, go in any case. Raises CacheError if something cannot be removed.
    """
    broken = damaged(cache)
    doomed: list[Stored] = []
    kept: list[Stored] = []
    for one in sorted(stored(cache), key=lambda one: one.used):
        old = keep_days is not None and one.unused_days > keep_days
        (doomed if old or (one.schema == SCHEMA and one.key in broken) else kept).append(one)
    total = sum(one.nbytes for one in kept)
    while max_bytes is not None and total > max_bytes:
        doomed.append(kept.pop(0))
        total -= doomed[-1].nbytes
    return _remove(cache, doomed, keep_days)


def clear(cache: Cache) -> Removed:
    """Removes every entry, of all versions, and what failed builds left; what is being built stays. CacheError as for ``prune``."""
    return _remove(cache, stored(cache), -math.inf)


def _remove(cache: Cache, doomed: list[Stored], keep_rest_days: float | None) -> Removed:
    entries = nbytes = 0
    try:
        for one in doomed:
            if (freed := _delete(one.path, one.path.parents[1])) is not None:
                entries, nbytes = entries + 1, nbytes + freed
        for layout in _layouts(cache):
            nbytes += _sweep(layout)
        for path in (path for folder in ("failed", HEADERS) for path in (cache.root / folder).glob("*")):
            with suppress(FileNotFoundError):
                age_days = (time.time() - path.lstat().st_mtime) / DAY_SECONDS
                if KEY.fullmatch(path.name) and keep_rest_days is not None and age_days >= keep_rest_days:
                    nbytes += _delete(path, cache.root / str(SCHEMA)) or 0
    except OSError as error:
        raise CacheError(f"the kernel cache {cache.root} cannot be tidied: {error}") from error
    return Removed(entries, nbytes)


def _delete(path: Path, layout: Path) -> int | None:
    """Removes a directory at once, for whoever looks, by way of ``layout/tmp``; its bytes, None if it is gone already."""
    (layout / "tmp").mkdir(mode=0o700, parents=True, exist_ok=True)
    trash = Path(tempfile.mkdtemp(prefix=TRASH, dir=layout / "tmp"))
    try:
        path.rename(trash / "removed")
    except FileNotFoundError:
        trash.rmdir()
        return None
    return _delete_tree(trash)


def _delete_tree(path: Path) -> int:
    nbytes = _nbytes(path)
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():  # a compiler without its builder may still write there; else this is for the error
        shutil.rmtree(path)
    return nbytes


def _sweep(layout: Path) -> int:
    """Removes what killed builds and removals left in ``layout/tmp``; bytes."""
    nbytes = 0
    for path in (layout / "tmp").glob("*"):
        key = path.name.partition("-")[0]
        if path.name.startswith(TRASH):
            with suppress(FileNotFoundError):
                nbytes += _delete_tree(path)
        elif KEY.fullmatch(key):
            (layout / "locks").mkdir(mode=0o700, exist_ok=True)
            with file_lock(layout / "locks" / key, threading.Event(), patience_seconds=0) as alone:
                if is_left_over(path, alone, time.time()):
                    nbytes += _delete_tree(path)
    return nbytes
