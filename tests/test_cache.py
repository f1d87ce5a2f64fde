"""An entry is whole or absent; builds leave nothing behind; lookups write nothing."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cutlass_sk.errors import CacheError
from cutlass_sk.jit.cache import Cache, Entry, Metadata
from cutlass_sk.jit.key import SCHEMA
from cutlass_sk.jit.lock import Cancelled

KEY, OTHER = "ab" * 32, "cd" * 32
METADATA = Metadata("name", "90a", "nvcc ...", 1.5, {"nvcc": "13.0"})


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def publish(cache: Cache, key: str = KEY, library: bytes = b"library") -> Entry:
    with cache.lock(key, threading.Event()), cache.scratch(key) as directory:
        (directory / "kernel.so").write_bytes(library)
        (directory / "kernel.cu").write_text("source")
        return cache.publish(key, directory, METADATA)


def everything(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path.relative_to(root)): (path.stat().st_mtime_ns, path.stat().st_mode) for path in root.rglob("*")}


def test_published_entry_is_found(cache: Cache) -> None:
    assert cache.lookup(KEY) is None
    entry = publish(cache)
    assert cache.lookup(KEY) == entry
    assert entry.library.read_bytes() == b"library" and entry.library_bytes == 7
    assert entry.source.read_text() == "source"
    assert (entry.name, entry.architecture, entry.seconds, entry.versions) == ("name", "90a", 1.5, {"nvcc": "13.0"})
    assert cache.lookup(OTHER) is None


def test_root_is_private_and_scratch_is_gone(cache: Cache) -> None:
    entry = publish(cache)
    assert stat.S_IMODE(cache.root.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry.path.stat().st_mode) == 0o700
    assert list((cache.root / str(SCHEMA) / "tmp").iterdir()) == []


def edit_json(path: Path, field: str, value: object) -> None:
    record = json.loads(path.read_text())
    record[field] = value
    path.write_text(json.dumps(record))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no library": lambda path: (path / "kernel.so").unlink(),
    "no source": lambda path: (path / "kernel.cu").unlink(),
    "no record": lambda path: (path / "entry.json").unlink(),
    "truncated library": lambda path: os.truncate(path / "kernel.so", 3),
    "bit flip": lambda path: (path / "kernel.so").write_bytes(b"librarx"),
    "longer source": lambda path: (path / "kernel.cu").write_text("source;"),
    "empty record": lambda path: os.truncate(path / "entry.json", 0),
    "record is no object": lambda path: (path / "entry.json").write_text("[1]"),
    "record is not text": lambda path: (path / "entry.json").write_bytes(b"\xff\xfe\x00"),
    "record of another key": lambda path: edit_json(path / "entry.json", "key", OTHER),
    "record without digests": lambda path: edit_json(path / "entry.json", "files", {}),
    "record without its own digest": lambda path: edit_json(path / "entry.json", "sha256", None),
    "record with another name": lambda path: edit_json(path / "entry.json", "name", "other"),
    "library is a directory": lambda path: ((path / "kernel.so").unlink(), (path / "kernel.so").mkdir()),
    "record is a pipe": lambda path: ((path / "entry.json").unlink(), os.mkfifo(path / "entry.json", 0o600)),
    "entry is a file": lambda path: (shutil.rmtree(path), path.touch(0o600)),
    "entry is a dead link": lambda path: (shutil.rmtree(path), path.symlink_to("nowhere")),
    "entry is empty": lambda path: (shutil.rmtree(path), path.mkdir(0o700)),
    "record with an unknown field": lambda path: edit_json(path / "entry.json", "colour", "red"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entry_is_a_miss_and_is_replaced(damage: str, cache: Cache) -> None:
    entry = publish(cache)
    DAMAGES[damage](entry.path)
    assert cache.lookup(KEY) is None
    assert isinstance(cache.inspect(KEY), str), "it says why"
    assert publish(cache, library=b"again") == cache.lookup(KEY)
    assert entry.library.read_bytes() == b"again"


@pytest.mark.parametrize("name", ["kernel.so", "kernel.cu", "entry.json"])
def test_any_bit_and_any_length(name: str, cache: Cache) -> None:
    """A flip that changes nothing but white space of the record is none."""
    entry = publish(cache)
    path = entry.path / name
    whole = path.read_bytes()
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        assert cache.lookup(KEY) is None or (name == "entry.json" and json.loads(flipped) == json.loads(whole))
        path.write_bytes(whole[:position])
        assert cache.lookup(KEY) is None or (name == "entry.json" and whole[position:] == b"\n")
    path.write_bytes(whole)
    assert cache.lookup(KEY) == entry


def test_replacing_leaves_an_open_library_alone(cache: Cache) -> None:
    with publish(cache).library.open("rb") as old:
        publish(cache, library=b"again")
        assert cache.entry_path(KEY).joinpath("kernel.so").read_bytes() == b"library", "a whole entry stays"
        (cache.entry_path(KEY) / "kernel.cu").write_text("damaged")
        publish(cache, library=b"again")
        assert old.read() == b"library"


def test_lookup_writes_nothing_and_works_read_only(cache: Cache) -> None:
    entry = publish(cache)
    directories = [cache.root, *(path for path in cache.root.rglob("*") if path.is_dir())]
    for directory in directories:
        directory.chmod(0o500)
    try:
        before = everything(cache.root)
        assert cache.lookup(KEY) == entry
        assert cache.lookup(OTHER) is None
        assert everything(cache.root) == before
    finally:
        for directory in directories:
            directory.chmod(0o700)


def test_lookup_in_an_absent_cache_creates_nothing(tmp_path: Path) -> None:
    assert Cache(tmp_path / "absent").lookup(KEY) is None
    assert list(tmp_path.iterdir()) == []


def test_unwritable_cache_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("a file where a directory should be")
    monkeypatch.delenv("CUTLASS_SK_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    cache = Cache()
    assert cache.lookup(KEY) is None
    with pytest.raises(CacheError, match=r"cannot be written: .*set CUTLASS_SK_CACHE_DIR"), cache.lock(KEY, threading.Event()):
        pass


def test_read_only_cache_names_the_variable(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere, so the permission is simulated
    with pytest.raises(CacheError, match=r"is read-only; set CUTLASS_SK_CACHE_DIR"), cache.lock(KEY, threading.Event()):
        pass


def test_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    monkeypatch.delenv("CUTLASS_SK_CACHE_DIR", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: Path("~/.cache") / name)
    with pytest.raises(CacheError, match="set CUTLASS_SK_CACHE_DIR"):
        Cache()


def test_variable_chooses_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(tmp_path / "chosen"))
    assert Cache().root == tmp_path / "chosen"


def test_lock_excludes_and_waiting_can_be_cancelled(cache: Cache) -> None:
    held, cancelled = threading.Event(), threading.Event()
    outcome: list[str] = []

    def wait_for_it() -> None:
        held.wait()
        try:
            with cache.lock(KEY, cancelled):
                outcome.append("entered")
        except Cancelled:
            outcome.append("cancelled")

    thread = threading.Thread(target=wait_for_it)
    thread.start()
    with cache.lock(KEY, threading.Event()):
        held.set()
        with cache.lock(OTHER, threading.Event()):  # another key's lock is free
            thread.join(0.3)
        assert outcome == []
        cancelled.set()
        thread.join(10)
    assert outcome == ["cancelled"]
    with cache.lock(KEY, threading.Event()):
        outcome.append("free again")
    assert outcome == ["cancelled", "free again"]


def test_killed_builder_leaves_no_lock_and_no_scratch(cache: Cache) -> None:
    code = (
        "import sys, threading, time; from pathlib import Path; from cutlass_sk.jit.cache import Cache\n"
        "cache, key = Cache(Path(sys.argv[1])), sys.argv[2]\n"
        "with cache.lock(key, threading.Event()), cache.scratch(key) as directory:\n"
        "    (directory / 'kernel.so').write_bytes(b'half'); print('building', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(cache.root), KEY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as builder:
        assert builder.stdout is not None and builder.stdout.readline() == "building\n"
        builder.kill()
    assert cache.lookup(KEY) is None
    assert len(list((cache.root / str(SCHEMA) / "tmp").iterdir())) == 1
    assert publish(cache) == cache.lookup(KEY)
    assert list((cache.root / str(SCHEMA) / "tmp").iterdir()) == []


def test_failure_is_kept_until_the_key_builds(cache: Cache) -> None:
    with cache.lock(KEY, threading.Event()), cache.scratch(KEY) as directory:
        (directory / "kernel.cu").write_text("bad source")
        kept = cache.keep_failure(KEY, directory, "the log")
    assert kept == cache.root / "failed" / KEY / "kernel.cu"
    assert kept.read_text() == "bad source" and (kept.parent / "log.txt").read_text() == "the log"
    publish(cache)
    assert not kept.parent.exists()
