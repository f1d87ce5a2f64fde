"""Building: once per kernel over threads and processes, nothing left behind, errors that say what happened."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cutlass_sk.errors import CacheError, CompileError, DeviceError
from cutlass_sk.generator.spec import KernelSpec
from cutlass_sk.jit.build import Source, build, compile_source, compile_sources
from cutlass_sk.jit.cache import Cache
from cutlass_sk.jit.key import SCHEMA
from cutlass_sk.jit.toolchain import find_toolchain

TEXT = '#include <cuda/std/utility>\n__global__ void nothing() {}\nextern "C" int answer() { return 42; }\n'

BUILDER = """
import signal
import sys
from cutlass_sk.jit.build import Source, compile_sources
from cutlass_sk.jit.key import SCHEMA
from cutlass_sk.jit.toolchain import find_toolchain
find_toolchain()
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a test run in a shell's background has ignored
print("ready", flush=True)
sys.stdin.readline()
entries = compile_sources([Source(text, text, "90a") for text in sys.argv[1:]])
print(entries[0].library, flush=True)
"""

RACE = """
import multiprocessing, os, sys
from cutlass_sk.jit.build import compile_source
from cutlass_sk.jit.key import SCHEMA
from cutlass_sk.jit.toolchain import find_toolchain
find_toolchain()
context = multiprocessing.get_context("fork")  # so that only one process pays for the imports
everyone = context.Barrier(16)
def race():
    everyone.wait(60)
    os.write(1, f"{compile_source('tiny', sys.argv[1], '90a').library}\\n".encode())
processes = [context.Process(target=race) for _ in range(16)]
for process in processes: process.start()
for process in processes: process.join()
"""


class CountingNvcc:
    """A wrapper around nvcc, chosen through CUTLASS_SK_NVCC: logs each compilation's process id and TMPDIR, and may then hang.

    It does not say what it would run, so that it is what runs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log, self.hang = folder / "compilations", folder / "hang"
        path = folder / "nvcc"
        path.write_text(
            f'#!/bin/sh\ncase "$*" in *-shared*--dryrun*) exit 1;; *-shared*) echo $$ $(cd "$TMPDIR" && pwd) >> "{self.log}"\n'
            f'test -e "{self.hang}" && sleep 60;; esac\n'
            f'exec "{find_toolchain().nvcc}" "$@"\n'
        )
        path.chmod(0o755)
        monkeypatch.setenv("CUTLASS_SK_NVCC", str(path))

    def process_ids(self) -> list[int]:
        return [int(line.split()[0]) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def wait_for(self, count: int) -> list[int]:
        deadline = time.monotonic() + 30
        while len(ids := self.process_ids()) < count:
            assert time.monotonic() < deadline, f"{ids} after 30 s"
            time.sleep(0.02)
        return ids


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUTLASS_SK_JOBS", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountingNvcc:
    return CountingNvcc(tmp_path, monkeypatch)


def start_builder(*texts: str) -> subprocess.Popen[str]:
    builder = subprocess.Popen(
        [sys.executable, "-c", BUILDER, *texts],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert builder.stdout is not None and builder.stdout.readline() == "ready\n"
    return builder


def go(builder: subprocess.Popen[str]) -> None:
    assert builder.stdin is not None
    builder.stdin.write("go\n")
    builder.stdin.flush()


def scratch_left(root: Path) -> list[Path]:
    return list((root / str(SCHEMA) / "tmp").iterdir())


def group_members(group: int) -> list[int]:
    """Living processes of a process group (a session of nvcc's own), zombies aside."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, process_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(process_group) == group and state != "Z":
            members.append(int(stat.parent.name))
    return members


def test_build_then_hit(nvcc: CountingNvcc, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled once, found again, and the working directory and the system's temporary directory stay as they were."""
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("TMPDIR", str(temporary))
    entry = compile_source("tiny", TEXT, "90a")
    assert compile_source("tiny", TEXT, "90a") == entry == Cache().lookup(entry.key)
    assert len(nvcc.process_ids()) == 1
    assert Path(nvcc.log.read_text().split()[1]).is_relative_to(root), "nvcc's own temporary files go where the build's go"
    assert entry.source.read_text() == TEXT
    assert entry.seconds > 0.1 and "code=sm_90a" in entry.command
    assert set(entry.versions) == {"nvcc", "host_compiler", "cutlass", "abi"}
    assert list(work.iterdir()) == list(temporary.iterdir()) == scratch_left(root) == []
    needed = subprocess.run(["readelf", "-d", str(entry.library)], capture_output=True, text=True, check=True).stdout
    assert "libcuda.so" not in needed and "libcudart.so" not in needed


@pytest.mark.parametrize("name", ["a b", "it's", 'say "so"', "$HOME", "`id`", "$(touch injected)", "\u00e9t\u00e9"])
def test_a_cache_under_any_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvcc hands its TMPDIR to a shell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(tmp_path / name))
    assert compile_source("tiny", TEXT, "90a").library.is_file()
    assert not (tmp_path / "injected").exists()


def test_something_in_the_place_of_the_cache_is_one_clear_error(root: Path) -> None:
    entry = compile_source("tiny", TEXT, "90a")
    shutil.rmtree(entry.path.parent)
    entry.path.parent.write_text("not a directory")
    with pytest.raises(CacheError, match="tiny cannot be built in the kernel cache"):
        compile_source("tiny", TEXT, "90a")


def test_damaged_library_is_built_again(nvcc: CountingNvcc) -> None:
    entry = compile_source("tiny", TEXT, "90a")
    os.truncate(entry.library, 1000)
    with pytest.warns(UserWarning, match=r"is damaged \(kernel.so is not as it was written\).*tiny has to be compiled again"):
        again = compile_source("tiny", TEXT, "90a")
    assert again.library_bytes == entry.library.stat().st_size > 1000
    assert len(nvcc.process_ids()) == 2


def test_equal_sources_compile_once_and_order_is_kept(nvcc: CountingNvcc) -> None:
    one, two = Source("one", TEXT, "90a"), Source("two", TEXT + "// two", "90a")
    entries = compile_sources([one, two, one], progress=False)
    assert [entry.name for entry in entries] == ["one", "two", "one"]
    assert len(nvcc.process_ids()) == 2


def test_environment_flags_do_not_reach_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key does not see them, so they must not decide what is built."""
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-DSTRANGE")
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DSTRANGE")
    compile_source("tiny", TEXT + "#ifdef STRANGE\n#error strange\n#endif\n", "90a")


def test_compile_error(root: Path) -> None:
    text = "\n".join(f"undeclared_{number} x{number};" for number in range(100))
    with pytest.raises(CompileError) as caught:
        compile_source("broken", text, "90a")
    error, message = caught.value, str(caught.value)
    assert message.startswith("broken did not compile")
    assert "undeclared_99" in message and "undeclared_1 " not in message, "the message holds the end of the log"
    assert "undeclared_1 " in error.log and error.command in message and str(error.source) in message
    assert error.source.read_text() == text and error.source.is_relative_to(root / "failed")
    assert (error.source.parent / "log.txt").read_text() == error.log
    assert scratch_left(root) == []
    with pytest.raises(CompileError):  # a failure is not cached as anything
        compile_source("broken", text, "90a")


def test_failure_stops_the_others(nvcc: CountingNvcc, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLASS_SK_JOBS", "1")
    with pytest.raises(CompileError, match="broken"):
        compile_sources([Source("broken", "broken", "90a"), Source("tiny", TEXT, "90a"), Source("other", TEXT + "//", "90a")])
    assert len(nvcc.process_ids()) <= 2, "what waited behind the failure is not started"
    assert scratch_left(root) == []


def test_sixteen_processes_compile_a_cold_entry_once(nvcc: CountingNvcc) -> None:
    done = subprocess.run([sys.executable, "-c", RACE, TEXT], capture_output=True, text=True, timeout=100, check=True)
    libraries = done.stdout.split()
    assert len(libraries) == 16 and len(set(libraries)) == 1, done.stderr
    assert len(nvcc.process_ids()) == 1


def test_killed_builder_leaves_no_lock_and_no_half_entry(nvcc: CountingNvcc, root: Path) -> None:
    nvcc.hang.touch()
    builder = start_builder(TEXT)
    go(builder)
    (compiler,) = nvcc.wait_for(1)
    builder.kill()
    builder.communicate()
    try:
        assert group_members(compiler), "the compiler was at work"
        assert len(scratch_left(root)) == 1
        nvcc.hang.unlink()
        entry = compile_source("tiny", TEXT, "90a")
        assert Cache().lookup(entry.key) == entry
        assert scratch_left(root) == []
    finally:
        os.killpg(compiler, signal.SIGKILL)


@pytest.mark.parametrize("count", [1, 2])
def test_interrupt_kills_the_compilers(count: int, nvcc: CountingNvcc, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLASS_SK_JOBS", "2")
    nvcc.hang.touch()
    builder = start_builder(*(f"{TEXT}// {number}" for number in range(count)))
    go(builder)
    compilers = nvcc.wait_for(count)
    assert all(group_members(compiler) for compiler in compilers)
    builder.send_signal(signal.SIGINT)
    _, errors = builder.communicate(timeout=20)
    assert builder.returncode != 0 and "KeyboardInterrupt" in errors
    assert [group_members(compiler) for compiler in compilers] == [[]] * count
    assert scratch_left(root) == []


def test_progress_is_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    compile_source("a_name_to_show", TEXT, "90a", progress=True)
    shown = capfd.readouterr()
    assert "a_name_to_show" in shown.err and "1/1" in shown.err and shown.out == ""
    compile_source("a_name_to_show", TEXT, "90a", progress=True)
    compile_source("quiet", TEXT + "// other", "90a")
    shown = capfd.readouterr()
    assert shown.err == shown.out == "", "a hit, and an error stream that is no terminal, show nothing"


def test_target_must_fit_the_generation(nvcc: CountingNvcc) -> None:
    spec = KernelSpec("sm90a", "3x", "float16", "float16", (128, 128, 64))
    with pytest.raises(DeviceError, match=r"cannot be built for sm_80: sm90a kernels are built for 90a"):
        build([spec], "80")
    assert nvcc.process_ids() == []
