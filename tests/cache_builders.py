"""A cache of a test's own, the compiler that fills it, and processes that build and load."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_nvcc import FakeNvcc, answering

from cutlass_sk.jit import toolchain
from cutlass_sk.jit.build import compile_source
from cutlass_sk.jit.cache import Entry
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
