"""Whatever becomes of builders, disks, clocks and locks: the right kernel or one clear sentence."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from fake_nvcc import FakeNvcc, answering

from cutlass_sk.errors import CacheError, CompileError, ToolchainError
from cutlass_sk.jit import lock, tidy, toolchain
from cutlass_sk.jit.build import compile_source
from cutlass_sk.jit.cache import Cache, Entry
from cutlass_sk.jit.key import SCHEMA

COMMON = """
import ctypes, fcntl, os, random, resource, signal, sys, threading, time
from pathlib import Path
from cutlass_sk.jit.build import Source, _keys, compile_source, compile_sources
from cutlass_sk.jit.cache import Cache
from cutlass_sk.jit.toolchain import find_toolchain
from cutlass_sk.jit import tidy
from fake_nvcc import answering
find_toolchain()
cache = Cache()

def key(number):
    return _keys([Source("tiny", answering(number), "90a")], find_toolchain())[0]

def built(number):
    return compile_source("tiny", answering(number), "90a")

def load(entry):
    return ctypes.CDLL(str(entry.library)).answer()

def child(work):
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:
        print(type(error).__name__, error, file=sys.stderr, flush=True)
    os._exit(status)

def ended(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
"""

KILLS = """
random.seed(7)
start = time.monotonic()
built(-1)
typical = time.monotonic() - start
keys = [key(number) for number in range(KILLS)]

def read():  # a process that loads whatever it finds, all the time
    while True:
        for number, one in enumerate(keys):
            entry = cache.lookup(one)
            if entry is not None and load(entry) != number:
                os._exit(3)

reader = child(read)
killed = 0
for number in range(KILLS):
    builder = child(lambda: built(number))
    time.sleep(random.uniform(0, 1.1 * typical))
    os.kill(builder, signal.SIGKILL)
    killed += ended(builder) == -signal.SIGKILL
    assert load(built(number)) == number
assert os.waitpid(reader, os.WNOHANG) == (0, 0), "something else was loaded"
os.kill(reader, signal.SIGKILL)
ended(reader)
print(killed)
"""

CRASHES = """
def crashing(number, at):
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        if event in ("open", "os.rename", "os.mkdir", "os.chmod", "os.remove", "os.rmdir") and str(cache.root) in str(arguments[0]):
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
    def work():
        sys.addaudithook(hook)
        built(number)
    return ended(child(work))

at = 1
while crashing(at, at) == -signal.SIGKILL:
    found = cache.lookup(key(at))
    assert found is None or load(found) == at
    assert load(built(at)) == at
    at += 1
print(at - 1)
"""

COLD = """
def work():
    for entry, number in zip(compile_sources([Source("tiny", answering(n), "90a") for n in range(3)]), range(3)):
        assert load(entry) == number, number
processes = [child(work) for _ in range(16)]
assert [ended(process) for process in processes] == [0] * 16
"""

CLEARS = """
def tidy_up():
    while True:
        tidy.clear(cache)
        tidy.prune(cache, max_bytes=0)
def work(seed):
    random.seed(seed)
    for _ in range(8):
        number = random.randrange(4)
        while True:
            entry = built(number)
            try:
                assert load(entry) == number
                break
            except OSError:
                assert not entry.library.exists()
tidier = child(tidy_up)
processes = [child(lambda: work(seed)) for seed in range(3)]
assert [ended(process) for process in processes] == [0] * 3
assert os.waitpid(tidier, os.WNOHANG) == (0, 0)
os.kill(tidier, signal.SIGKILL)
ended(tidier)
"""

NO_LOCKS = """
def flock(descriptor, operation):
    raise OSError(37, "No locks available")
fcntl.flock = flock
"""

LOCKS_WITHOUT_EFFECT = "fcntl.flock = lambda descriptor, operation: None\n"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUTLASS_SK_JOBS", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    yield tmp_path / "cache"  # type: ignore[misc]
    assert list(work.iterdir()) == [], "something was written into the working directory"


@pytest.fixture(autouse=True)
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvcc:
    fake = FakeNvcc(tmp_path)
    monkeypatch.setenv("CUTLASS_SK_NVCC", str(fake.path))
    monkeypatch.setattr(toolchain, "_find_cutlass", lambda: ("4.2", (fake.packages / "cutlass_library/source/include",)))
    return fake


def start(code: str) -> subprocess.Popen[str]:
    packages = Path(os.environ["CUTLASS_SK_NVCC"]).parents[2] / "packages"
    environment = {**os.environ, "PYTHONPATH": f"{packages}:{Path(__file__).parent}"}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", COMMON + code], stdout=pipe, stderr=pipe, text=True, env=environment)


def run(code: str) -> str:
    with start(code) as process:
        output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    return output


def built(number: int) -> Entry:
    return compile_source("tiny", answering(number), "90a")


def answer(entry: Entry) -> int:
    return int(ctypes.CDLL(str(entry.library)).answer())


def left_in_tmp(root: Path) -> list[Path]:
    return list((root / str(SCHEMA) / "tmp").iterdir())


@pytest.mark.slow
def test_killed_at_random_moments(root: Path) -> None:
    killed = int(run(f"KILLS = 50\n{KILLS}"))
    assert killed >= 25, "most builders were at work"
    tidy.prune(Cache())
    assert left_in_tmp(root) == []


@pytest.mark.slow
def test_killed_at_each_step_in_the_cache(root: Path) -> None:
    assert int(run(CRASHES)) >= 20
    tidy.prune(Cache())
    assert left_in_tmp(root) == []


def test_cold_processes_compile_each_kernel_once(nvcc: FakeNvcc) -> None:
    run(COLD)
    assert nvcc.compilations == 3


@pytest.mark.slow
@pytest.mark.parametrize("locks", [NO_LOCKS, LOCKS_WITHOUT_EFFECT], ids=["none", "without effect"])
def test_cold_processes_where_locks_do_not_work(locks: str, root: Path, nvcc: FakeNvcc) -> None:
    """Some compile what others do, too; every one gets its kernels."""
    run(
        locks
        + ("import cutlass_sk.jit.cache as c; c._boot = lambda: str(os.getpid())\n" if locks == LOCKS_WITHOUT_EFFECT else "")
        + COLD
    )
    assert 3 <= nvcc.compilations <= 48
    assert left_in_tmp(root) == []


@pytest.mark.slow
def test_cleared_while_others_build() -> None:
    run(CLEARS)


def test_a_stopped_builder_is_not_waited_for_without_end(root: Path, nvcc: FakeNvcc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE_SECONDS", 0.2)
    nvcc.prepare("sleep 30")
    builder = start("built(1)")
    try:
        deadline = time.monotonic() + 60
        while nvcc.compilations < 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        nvcc.prepare("")
        assert answer(built(1)) == 1
        assert len(left_in_tmp(root)) == 1, "its scratch is left alone"
    finally:
        builder.kill()
        builder.communicate()
        for compiler in (nvcc.tree / "compilations").read_text().split():
            with suppress(ProcessLookupError):
                os.killpg(int(compiler), signal.SIGKILL)


def test_a_forked_child_does_not_hold_its_parents_lock(root: Path) -> None:
    """A worker process, forked while another thread compiles, may outlive the builder."""
    code = """
inside, leave = threading.Event(), threading.Event()
def hold():
    with cache.lock("ab" * 32, threading.Event()):
        inside.set(); leave.wait()
threading.Thread(target=hold, daemon=True).start()
inside.wait()
print(child(lambda: time.sleep(30)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with start(code) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.wait()
        try:
            with (root / str(SCHEMA) / "locks" / ("ab" * 32)).open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.kill(worker, signal.SIGKILL)


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
