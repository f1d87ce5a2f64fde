"""Whatever becomes of disks, compilers, clocks and headers: the right kernel or one clear sentence."""
# ruff: noqa: F811  tests take the imported fixtures by name

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cache_builders import answer, built, left_in_tmp, nvcc, root, run, start  # noqa: F401  nvcc and root are fixtures
from fake_nvcc import FakeNvcc, answering

from cutlass_sk.errors import CacheError, CompileError, ToolchainError
from cutlass_sk.jit import toolchain
from cutlass_sk.jit.build import compile_source
from cutlass_sk.jit.cache import Entry
from cutlass_sk.jit.key import SCHEMA

FULL = {
    "nvcc's file": "head -c 10 /dev/zero > /dev/full || exit 1",
    "nvcc says so": "echo 'nvcc error: x.o: No space left on device' >&2; exit 1",
    "nvcc is killed for it": "ulimit -f 1; head -c 100000 /dev/zero > a; echo File size limit exceeded; exit 1",
}


@pytest.mark.parametrize("full", FULL)
def test_a_full_disk_while_nvcc_writes(full: str, root: Path, nvcc: FakeNvcc) -> None:
    nvcc.prepare(FULL[full])
    with pytest.raises(
        CacheError, match=r"tiny cannot be built in .*; free some space, as `cutlass-sk cache prune` does"
    ) as caught:
        built(1)
    assert "\n" not in str(caught.value) and left_in_tmp(root) == []
    nvcc.prepare("")
    assert answer(built(1)) == 1


def test_a_full_disk_while_the_cache_writes(root: Path) -> None:
    code = """
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
compile_source("tiny", answering(1) + "//" + "x" * 5000, "90a")
"""
    with pytest.raises(AssertionError, match=r"CacheError: tiny cannot be built.*File too large; free some space"):
        run(code)
    assert answer(built(1)) == 1 and left_in_tmp(root) == []


def test_a_full_filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", small], capture_output=True).returncode:
        pytest.skip("mounting a small filesystem takes root")
    try:
        monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(small / "cache"))
        with pytest.raises(CacheError, match=r"tiny cannot be built in .*No space left on device; free some space"):
            compile_source("tiny", answering(1) + 'extern "C" { char data[1000000] = {1}; }', "90a")
        assert left_in_tmp(small / "cache") == []
        filler = small / "filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(b"x" * 1_000_000)
        with pytest.raises(CacheError, match=r"No space left on device; (free some space|set CUTLASS_SK_CACHE_DIR)"):
            built(1)
        filler.unlink()
        assert answer(built(1)) == 1
    finally:
        subprocess.run(["umount", "-l", small], check=True)


WRONG = {
    "half a library": "head -c 3000 /proc/self/exe > kernel.so; exit 0",
    "all but a byte": "g++ -shared -fPIC -x c++ kernel.cu -o kernel.so; truncate -s -1 kernel.so; exit 0",
    "something else": "echo library > kernel.so; exit 0",
    "nothing": "exit 0",
    "a link": "ln -s /proc/self/exe kernel.so; exit 0",
    "a directory": "mkdir kernel.so; exit 0",
    "killed": "head -c 3000 /proc/self/exe > kernel.so; kill -9 $$",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_nvcc_leaves_is_looked_at(wrong: str, nvcc: FakeNvcc, root: Path) -> None:
    nvcc.prepare(WRONG[wrong])
    with pytest.raises(CompileError, match=r"tiny did not compile \(nvcc's exit status (0, but no whole library|-9)\)"):
        built(1)
    nvcc.prepare("")
    assert answer(built(1)) == 1 and left_in_tmp(root) == []


@pytest.mark.parametrize("clock", [0, 4_000_000_000], ids=["1970", "2096"])
def test_clocks_decide_nothing(clock: int, root: Path, nvcc: FakeNvcc) -> None:
    entry = built(1)
    for path in (root, *root.rglob("*")):
        os.utime(path, (clock, clock))
    assert built(1) == entry and nvcc.compilations == 1
    shutil.rmtree(entry.path)
    os.utime(root / str(SCHEMA) / "locks" / entry.key, (clock, clock))
    assert answer(built(1)) == 1


def test_an_edited_header_is_seen_whatever_its_time_says(nvcc: FakeNvcc) -> None:
    header = nvcc.packages / "cutlass_library/source/include/cutlass/cutlass.h"

    def built_anew(text: str) -> Entry:
        header.write_text(text)
        os.utime(header, (1000, 1000))
        toolchain._find_toolchain.cache_clear()  # as in a new process
        return built(1)

    first, second = built_anew("1"), built_anew("2")
    assert first.key != second.key and nvcc.compilations == 2
    assert built_anew("1") == first and nvcc.compilations == 2, "both are kept"


def test_headers_edited_during_a_compilation(nvcc: FakeNvcc) -> None:
    """The key says what the headers were, not what nvcc read."""
    header = nvcc.packages / "cutlass_library/source/include/cutlass/cutlass.h"
    nvcc.prepare(f"echo 2 > {header}")
    with pytest.raises(ToolchainError, match="headers changed while tiny was compiled"):
        built(1)
    assert answer(built(1)) == 1, "the next one reads them anew"


def test_versions_side_by_side(root: Path, nvcc: FakeNvcc, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = built(1)
    with monkeypatch.context() as patch:
        patch.setattr("cutlass_sk.jit.cache.SCHEMA", SCHEMA + 1)
        patch.setattr("cutlass_sk.jit.key.SCHEMA", SCHEMA + 1)
        theirs = built(1)
        assert built(1) == theirs
    assert built(1) == ours and theirs.path != ours.path and nvcc.compilations == 2


def test_nothing_but_the_environment_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No HOME and no user entry: an error. HOME that cannot be written: an error. With the variable: none."""
    for name in ("CUTLASS_SK_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    code = "import pwd\ndef getpwuid(uid): raise KeyError(uid)\npwd.getpwuid = getpwuid\n"
    missing = subprocess.run(
        [sys.executable, "-c", code + "from cutlass_sk.jit.build import compile_source; compile_source('tiny', '', '90a')"],
        capture_output=True,
        text=True,
    )
    assert missing.stderr.splitlines()[-1].startswith("cutlass_sk.errors.CacheError: the user has no cache directory (")
    assert missing.stderr.splitlines()[-1].endswith("set CUTLASS_SK_CACHE_DIR to a directory that can be written")
    monkeypatch.setenv("HOME", "/proc/1")  # not even root makes a directory there
    with pytest.raises(CacheError, match=r"cannot be written: .*set CUTLASS_SK_CACHE_DIR"):
        built(1)
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(tmp_path / "cache"))
    assert answer(built(1)) == 1


@pytest.mark.parametrize("name", ["a b", "it's", 'say "so"', "$(touch injected)", "été", "line\nbreak", "\udcff", "[red]", "%s{}"])
def test_any_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(tmp_path / name))
    assert answer(built(1)) == 1 and built(1).path.is_relative_to(tmp_path / name)


def test_read_only(root: Path, nvcc: FakeNvcc, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is loaded; what is not, or is damaged, is one error."""
    entry = built(1)
    real_mkdir = Path.mkdir

    def mkdir(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if not self.exists():
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        real_mkdir(self, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert built(1) == entry and nvcc.compilations == 1
    with pytest.raises(CacheError, match=r"cannot be written: .*read-only; set CUTLASS_SK_CACHE_DIR"):
        built(2)
    os.truncate(entry.library, 100)
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(CacheError, match="read-only"):
        built(1)


def test_damage_without_a_compiler(nvcc: FakeNvcc) -> None:
    os.truncate(built(1).library, 100)
    nvcc.path.unlink()
    toolchain._find_toolchain.cache_clear()
    with pytest.raises(ToolchainError, match=r"does not run: .*pip install"):
        built(1)
