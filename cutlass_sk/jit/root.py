"""Where the kernel cache is."""

from __future__ import annotations

import os
from pathlib import Path

from .. import env
from ..errors import CacheError

REMEDY = "set CUTLASS_SK_CACHE_DIR to a directory that can be written"


def cache_root() -> Path:
    """CUTLASS_SK_CACHE_DIR, or the user's cache directory, without symbolic links. CacheError for a user without one."""
    return Path(os.path.realpath(env.CACHE_DIR.get() or _default_root()))


def _default_root() -> Path:
    from platformdirs import user_cache_path

    try:
        root = user_cache_path("cutlass_sk")
    except RuntimeError as error:  # without HOME and without a user entry; some versions of platformdirs leave "~" as it is
        raise CacheError(f"the user has no cache directory ({error}): {REMEDY}") from None
    if not root.is_absolute():
        raise CacheError(f"the user has no cache directory ({root} is not absolute): {REMEDY}")
    return root
