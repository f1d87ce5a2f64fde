"""Compiles kernels that the cache lacks: several side by side, each one once, over all threads and processes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from .. import env
from ..errors import CompileError, DeviceError, ToolchainError
from ..generator import abi
from ..generator.spec import ARCHITECTURES, KernelSpec
from . import lean
from .cache import LIBRARY, REMEDY, SOURCE, Cache, Cancelled, Entry, Metadata
from .key import kernel_key
from .progress import show_progress
from .toolchain import Toolchain, find_toolchain

FLAGS = (
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-DCUTLASS_ENABLE_GDC_FOR_SM90=1",  # programmatic dependent launch
    "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED",  # without it a tile_n of 160 is five instructions of 32
    "-w",
    "-shared",
    # Each kernel keeps its symbols to itself: two of them may share templates, and statics of unique linkage would be merged.
    "-Xcompiler=-fPIC,-fvisibility=hidden,-fno-gnu-unique",
    "-Xlinker=--strip-all",  # 0.3 of 1 MB for a small kernel
)
LOG_TAIL_LINES = 30
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Source:
    """CUDA C++ to compile: a name for people, the text, and the target, ``sm_<architecture>``."""

    name: str
    text: str
    architecture: str


def build(specs: Sequence[KernelSpec], architecture: str | None = None, *, progress: bool | None = None) -> list[Entry]:
    """Cache entries of the binaries of ``specs``, in their order, compiled where the cache lacks them.

    architecture   the target (``90a``, ``80``, ...); None means the first target of each spec's generation
    progress       whether standard error shows what compiles; None means only if it is a terminal

    Raises DeviceError for a target that a spec cannot be built for, ToolchainError, and CompileError for the first kernel that
    fails (compilations under way are then stopped; what is finished stays in the cache).
    """
    from ..generator.emit import emit  # here, because it imports cutlass_library

    specs = [spec.binary for spec in specs]
    targets = [_target(spec, architecture) for spec in specs]
    sources = [Source(spec.name, emit(spec), target) for spec, target in zip(specs, targets, strict=True)]
    return compile_sources(sources, progress=progress)


def build_one(spec: KernelSpec, architecture: str | None = None, *, progress: bool | None = None) -> Entry:
    """``build`` for one spec."""
    return build([spec], architecture, progress=progress)[0]


def compile_source(name: str, text: str, architecture: str, *, progress: bool | None = None) -> Entry:
    """``compile_sources`` for one text."""
    return compile_sources([Source(name, text, architecture)], progress=progress)[0]


def compile_sources(sources: Sequence[Source], *, progress: bool | None = None) -> list[Entry]:
    """Cache entries of ``sources``, in their order; equal sources are compiled once. Errors as for ``build``."""
    cache, toolchain = Cache(), find_toolchain()
    keys = _keys(sources, toolchain)
    entries = {key: cache.lookup(key) for key in keys}
    missing = {key: source for key, source in zip(keys, sources, strict=True) if entries[key] is None}
    if missing:
        with show_progress(progress, len(missing)) as watch:
            entries |= _compile_all(missing, cache, toolchain, watch)
    return [entry for key in keys if (entry := entries[key]) is not None]


def lookup_sources(sources: Sequence[Source]) -> list[Entry | None]:
    """What the cache holds of ``sources``, in their order; compiles nothing. ToolchainError without a toolchain: keys name it."""
    cache = Cache()
    return [cache.lookup(key) for key in _keys(sources, find_toolchain())]


def _keys(sources: Sequence[Source], toolchain: Toolchain) -> list[str]:
    return [kernel_key(source.text, FLAGS, toolchain, source.architecture) for source in sources]


def _target(spec: KernelSpec, architecture: str | None) -> str:
    targets = ARCHITECTURES[spec.generation]
    if architecture is None:
        return targets[0]
    if architecture not in targets:
        raise DeviceError(
            f"{spec.name} cannot be built for sm_{architecture}: {spec.generation} kernels are built for {', '.join(targets)}"
        )
    return architecture


Watch = Callable[[str], AbstractContextManager[None]]


def _compile_all(missing: dict[str, Source], cache: Cache, toolchain: Toolchain, watch: Watch) -> dict[str, Entry]:
    cancelled = threading.Event()

    def compile_one(key: str, source: Source) -> Entry:
        with watch(source.name):
            return _compile(key, source, cache, toolchain, cancelled)

    jobs = env.JOBS.get() or os.cpu_count() or 1
    with ThreadPoolExecutor(min(jobs, len(missing)), thread_name_prefix="cutlass_sk_build") as pool:
        futures = {key: pool.submit(compile_one, key, source) for key, source in missing.items()}
        try:
            wait(futures.values(), return_when=FIRST_EXCEPTION)
        finally:  # a failure or a KeyboardInterrupt here stops the others; after success there is nothing to stop
            cancelled.set()
            pool.shutdown(cancel_futures=True)
    failures = [error for f in futures.values() if not f.cancelled() and (error := f.exception()) is not None]
    for error in failures:
        if not isinstance(error, Cancelled):
            raise error
    return {key: future.result() for key, future in futures.items()}


def _compile(key: str, source: Source, cache: Cache, toolchain: Toolchain, cancelled: threading.Event) -> Entry:
    try:
        return _compile_locked(key, source, cache, toolchain, cancelled)
    except OSError as error:  # a full disk, or something else than the cache's own files in its place
        raise ToolchainError(f"{source.name} cannot be built in the kernel cache {cache.root}: {error}; {REMEDY}") from error


def _compile_locked(key: str, source: Source, cache: Cache, toolchain: Toolchain, cancelled: threading.Event) -> Entry:
    with cache.lock(key, cancelled):
        if (entry := cache.lookup(key)) is not None:  # another process was faster
            return entry
        with cache.scratch(key) as directory:
            (directory / SOURCE).write_text(source.text, encoding="utf-8")
            if lean.suits(source.text):
                lean.write(toolchain.cutlass_include[0], directory)
            command = _command(toolchain, source.architecture)
            start = time.monotonic()
            status, log = _run(command, directory, cancelled)
            seconds = time.monotonic() - start
            if status != 0 or not (directory / LIBRARY).is_file():
                kept = cache.keep_failure(key, directory, log)
                tail = "\n".join(log.splitlines()[-LOG_TAIL_LINES:])
                raise CompileError(
                    f"{source.name} did not compile (nvcc's exit status {status}); its source and log are kept as {kept}\n"
                    f"command: {shlex.join(command)}\n{tail}",
                    command=shlex.join(command),
                    log=log,
                    source=kept,
                )
            versions = {
                "nvcc": toolchain.nvcc_version,
                "host_compiler": toolchain.host_version,
                "cutlass": toolchain.cutlass_version,
                "abi": str(abi.ABI_VERSION),
            }
            metadata = Metadata(source.name, source.architecture, shlex.join(command), round(seconds, 3), versions)
            return cache.publish(key, directory, metadata)


def _command(toolchain: Toolchain, architecture: str) -> list[str]:
    """nvcc's command line, for a working directory that holds the source, and the headers of ``lean`` where it takes them."""
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    includes = (f"-I{directory}" for directory in (lean.DIRECTORY, toolchain.own_include, *toolchain.cutlass_include))
    tools = (f"-ccbin={toolchain.host_compiler}", f"-L{toolchain.cuda_libraries}")
    return [str(toolchain.nvcc), *FLAGS, target, *includes, *tools, "-o", LIBRARY, SOURCE]


def _run(command: list[str], directory: Path, cancelled: threading.Event) -> tuple[int, str]:
    """Exit status and output of ``command``, run in ``directory``; it and its children are killed if anything interrupts."""
    # The key does not see nvcc's own environment variables, so nvcc must not either.
    environment = {name: value for name, value in os.environ.items() if name not in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")}
    environment["TMPDIR"] = "."  # nvcc hands it to a shell: a path of quotes and dollar signs must not get there
    log = directory / "log.txt"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            while process.poll() is None:
                if cancelled.wait(POLL_SECONDS):
                    raise Cancelled
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")
