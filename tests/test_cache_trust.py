"""Nothing is loaded from where others can write; what the cache makes, only its user can write to."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cutlass_sk.errors import CacheError
from cutlass_sk.jit.cache import Cache, Entry, Metadata
from cutlass_sk.jit.key import SCHEMA

KEY = "ab" * 32
METADATA = Metadata("name", "90a", "nvcc ...", 1.5, {"nvcc": "13.0"})
STRANGER = 54321


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    (tmp_path / "above").mkdir()
    return Cache(tmp_path / "above/cache")


@pytest.fixture(params=[0o022, 0o000, 0o002], ids=["umask 022", "umask 000", "umask 002"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    old = os.umask(request.param)
    yield
    os.umask(old)


def publish(cache: Cache) -> Entry:
    with cache.lock(KEY, threading.Event()), cache.scratch(KEY) as directory:
        (directory / "kernel.so").write_bytes(b"library")
        (directory / "kernel.so").chmod(0o777)
        (directory / "kernel.cu").write_text("source")
        return cache.publish(KEY, directory, METADATA)


@pytest.mark.usefixtures("umask")
def test_everything_made_is_private(tmp_path: Path) -> None:
    """Directories above the cache that it has to make, too: others could put another cache in its place."""
    tmp_path.chmod(0o700)
    cache = Cache(tmp_path / "made/too/cache")
    entry = publish(cache)
    for path in (cache.root, *cache.root.rglob("*"), tmp_path / "made", tmp_path / "made/too"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert cache.lookup(KEY) == entry


PLACES: dict[str, Callable[[Entry, Path], Path]] = {
    "root": lambda entry, root: root,
    "layout": lambda entry, root: root / str(SCHEMA),
    "digits": lambda entry, root: entry.path.parent,
    "entry": lambda entry, root: entry.path,
    "library": lambda entry, root: entry.library,
    "source": lambda entry, root: entry.source,
    "record": lambda entry, root: entry.path / "entry.json",
}


@pytest.mark.parametrize("bits", [0o020, 0o002], ids=["group", "world"])
@pytest.mark.parametrize("place", PLACES)
def test_what_others_can_write_is_refused(place: str, bits: int, cache: Cache) -> None:
    entry = publish(cache)
    path = PLACES[place](entry, cache.root)
    path.chmod(path.stat().st_mode | bits)
    with pytest.raises(CacheError, match=r"is not used: others can write to .*`chmod go-w .*set CUTLASS_SK_CACHE_DIR") as caught:
        cache.lookup(KEY)
    assert f"others can write to {path} (mode 0" in str(caught.value) and "\n" not in str(caught.value)
    path.chmod(path.stat().st_mode & ~0o022)  # the remedy
    assert cache.lookup(KEY) == entry


@pytest.mark.parametrize("place", PLACES)
def test_what_belongs_to_others_is_refused(place: str, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = publish(cache)
    if os.geteuid() == 0:
        os.chown(PLACES[place](entry, cache.root), STRANGER, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    with pytest.raises(
        CacheError, match=r"belongs to user \d+, who is neither you \(user \d+\) nor root; set CUTLASS_SK_CACHE_DIR"
    ):
        cache.lookup(KEY)


def test_what_belongs_to_root_is_loaded(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = publish(cache)
    if os.geteuid() != 0:
        pytest.skip("root makes what belongs to root")
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert cache.lookup(KEY) == entry


def test_a_directory_above_that_everyone_can_write_to(cache: Cache) -> None:
    """With the sticky bit only owners rename what lies in it; without it, the whole cache may be another's."""
    entry, above = publish(cache), cache.root.parent
    above.chmod(0o1777)
    assert cache.lookup(KEY) == entry
    above.chmod(0o777)
    with pytest.raises(CacheError, match=r"everyone can write to .*above \(mode 0777\).*`chmod o-w "):
        cache.lookup(KEY)
    above.chmod(0o700)


@pytest.mark.parametrize("bits", [0o770, 0o707, 0o1777])
def test_nothing_is_built_where_others_can_write(bits: int, cache: Cache) -> None:
    cache.root.mkdir()
    cache.root.chmod(bits)
    with pytest.raises(CacheError, match="is not used: others can write to") as caught, cache.lock(KEY, threading.Event()):
        pass
    assert ("chmod" in str(caught.value)) == (bits != 0o1777), "a directory such as /tmp is to stay as it is"


def test_a_link_is_followed_once(cache: Cache, tmp_path: Path) -> None:
    """Who can turn the link round afterwards does not decide what is loaded."""
    entry, link = publish(cache), tmp_path / "link"
    link.symlink_to(cache.root)
    linked = Cache(link)
    link.unlink()
    assert linked.lookup(KEY) == entry


def test_a_link_that_leads_to_itself_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    cache = Cache(tmp_path / "loop")
    assert cache.lookup(KEY) is None
    with pytest.raises(CacheError, match="cannot be written"), cache.lock(KEY, threading.Event()):
        pass
