"""Many builders at once, killed, stopped, cleared away, with locks or without: the right kernel all the same."""
# ruff: noqa: F811  tests take the imported fixtures by name

from __future__ import annotations

import fcntl
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from cache_builders import answer, built, left_in_tmp, nvcc, root, run, start  # noqa: F401  nvcc and root are fixtures
from fake_nvcc import FakeNvcc

from cutlass_sk.jit import lock, tidy
from cutlass_sk.jit.cache import Cache
from cutlass_sk.jit.key import SCHEMA

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
