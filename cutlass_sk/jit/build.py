"""Compiles kernels that the cache lacks: several side by side, each one once, over all threads and processes."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import struct
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage

from .. import env
from ..errors import CacheError, CompileError, DeviceError, ToolchainError, reason
from ..generator import abi
from ..generator.spec import ARCHITECTURES, KernelSpec
from . import lean, passes
from .cache import LIBRARY, SOURCE, Cache, Entry, Metadata
from .key import kernel_key
from .lock import Cancelled
from .progress import show_progress
from .root import REMEDY
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
OF_A_LIBRARY = ("-shared", "-Xlinker=--strip-all")
"""Those of FLAGS that link."""

LOG_TAIL_LINES = 30
POLL_SECONDS = 0.02
HIDDEN = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
"""Environment variables that decide what is compiled. The key does not see them, so nvcc must not either."""
FULL_DISK = ("No space left on device", "Disk quota exceeded", "File too large", "File size limit exceeded")
LITTLE_BYTES = 2**20
"""With less free space than that, it is the disk's fault that nothing was compiled: ld dies of it without a word."""
FULL_REMEDY = "free some space, as `cutlass-sk cache prune` does, or set CUTLASS_SK_CACHE_DIR to a directory with more"


@dataclass(frozen=True)
class Source:
    """CUDA C++ to compile: a name for people, the text, and the target, ``sm_<architecture>``.

    suffix   what the names of the kernel's functions end in. With one, an object comes out instead of a shared object, to be linked
             with others: to the same bytes, wherever it was compiled.
    """

    name: str
    text: str
    architecture: str
    suffix: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """nvcc's options, without target and directories."""
        if not self.suffix:
            return FLAGS
        return (*(flag for flag in FLAGS if flag not in OF_A_LIBRARY), "-c", f"-DCUTLASS_SK_SUFFIX={self.suffix}")


def build(specs: Sequence[KernelSpec], architecture: str | None = None, *, progress: bool | None = None) -> list[Entry]:
    """Cache entries of the binaries of ``specs``, in their order, compiled where the cache lacks them.

    architecture   the target (``90a``, ``80``, ...); None means the first target of each spec's generation
    progress       whether standard error shows what compiles; None means only if it is a terminal

    Raises DeviceError for a target that a spec cannot be built for, ToolchainError, and CompileError for the first kernel that
    fails (compilations under way are then stopped; what is finished stays in the cache).
    """
    return compile_sources(sources(specs, architecture), progress=progress)


def sources(specs: Sequence[KernelSpec], architecture: str | None = None) -> list[Source]:
    """What ``build`` compiles. Raises DeviceError as it does."""
    from ..generator.text import text_of  # here, because it imports cutlass_library

    specs = [spec.binary for spec in specs]
    targets = [_target(spec, architecture) for spec in specs]
    return [Source(spec.name, text_of(spec), target) for spec, target in zip(specs, targets, strict=True)]


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
    for key, source in missing.items():
        if isinstance(wrong := cache.inspect(key), str):
            path = cache.entry_path(key)
            text = f"cutlass_sk: {path} is damaged ({wrong}) and is not loaded: {source.name} has to be compiled again"
            warnings.warn(text, stacklevel=2)
    if missing:
        with show_progress(progress, len(missing)) as watch:
            entries |= _compile_all(missing, cache, toolchain, watch)
    return [entry for key in keys if (entry := entries[key]) is not None]


def lookup_sources(sources: Sequence[Source]) -> list[Entry | None]:
    """What the cache holds of ``sources``, in their order; compiles nothing. ToolchainError without a toolchain: keys name it."""
    cache = Cache()
    return [cache.lookup(key) for key in _keys(sources, find_toolchain())]


def _keys(sources: Sequence[Source], toolchain: Toolchain) -> list[str]:
    return [kernel_key(source.text, source.flags, toolchain, source.architecture) for source in sources]


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
    jobs = env.JOBS.get() or os.cpu_count() or 1
    side_by_side = jobs >= 2 * len(missing)  # else other kernels keep the processors busy

    def compile_one(key: str, source: Source) -> Entry:
        with watch(source.name):
            return _compile(key, source, cache, toolchain, cancelled, side_by_side)

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


def _compile(key: str, source: Source, cache: Cache, toolchain: Toolchain, cancelled: threading.Event, side_by_side: bool) -> Entry:
    try:
        return _compile_locked(key, source, cache, toolchain, cancelled, side_by_side)
    except OSError as error:  # a full disk, or something else than the cache's own files in its place
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise CacheError(
            f"{source.name} cannot be built in the kernel cache {cache.root}: {reason(error)}; {FULL_REMEDY if full else REMEDY}"
        ) from error


def _compile_locked(
    key: str, source: Source, cache: Cache, toolchain: Toolchain, cancelled: threading.Event, side_by_side: bool
) -> Entry:
    with cache.lock(key, cancelled) as alone:
        if (entry := cache.lookup(key)) is not None:  # another process was faster
            return entry
        with cache.scratch(key, alone) as directory:
            (directory / SOURCE).write_text(source.text, encoding="utf-8")
            if lean.suits(source.text):
                lean.write(toolchain.cutlass_include[0], directory)
            command = command_line(toolchain, source)
            start = time.monotonic()
            status, log = _nvcc(command, directory, key, cancelled, side_by_side)
            seconds = time.monotonic() - start
            if status != 0 and (any(words in log for words in FULL_DISK) or disk_usage(directory).free < LITTLE_BYTES):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if status != 0 or not _is_whole(directory / LIBRARY):
                kept = cache.keep_failure(key, directory, log)
                tail = "\n".join(log.splitlines()[-LOG_TAIL_LINES:])
                raise CompileError(
                    f"{source.name} did not compile (nvcc's exit status {status}{'' if status else ', but no whole library'}); "
                    f"its source and log are kept as {kept}\n"
                    f"command: {shlex.join(command)}\n{tail}",
                    command=shlex.join(command),
                    log=log,
                    source=kept,
                )
            if _keys([source], toolchain.reread()) != [key]:
                raise ToolchainError(f"headers changed while {source.name} was compiled, which is not kept; build it again")
            if source.suffix:
                _settle_names(directory / LIBRARY, key)
            versions = {
                "nvcc": toolchain.nvcc_version,
                "host_compiler": toolchain.host_version,
                "cutlass": toolchain.cutlass_version,
                "abi": str(abi.ABI_VERSION),
            }
            metadata = Metadata(source.name, source.architecture, shlex.join(command), round(seconds, 3), versions)
            return cache.publish(key, directory, metadata)


def _is_whole(library: Path) -> bool:
    """Whether it is a file and a 64-bit ELF shared object up to the table of sections at its end."""
    if library.is_symlink() or not library.is_file():
        return False
    with library.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or not header.startswith(b"\x7fELF\x02"):
        return False
    (table,), (entry_bytes, count) = struct.unpack_from("<Q", header, 0x28), struct.unpack_from("<HH", header, 0x3A)
    return bool(0 < table <= library.stat().st_size - entry_bytes * count)


MODULE_NAME = re.compile(rb"(_INTERNAL_|_GLOBAL__N__)[0-9a-f]{8}(_\d+_kernel_cu_)[0-9a-f]{8}")


def _settle_names(compiled: Path, key: str) -> None:
    """Replaces what nvcc puts into names of internal symbols, a hash of the working directory's path, by some of ``key``."""
    name = rb"\g<1>" + key[:8].encode() + rb"\g<2>" + key[8:16].encode()
    compiled.write_bytes(MODULE_NAME.sub(name, compiled.read_bytes()))


def command_line(toolchain: Toolchain, source: Source) -> list[str]:
    """nvcc's command line, for a working directory that holds the source, and the headers of ``lean`` where it takes them."""
    target = f"-gencode=arch=compute_{source.architecture},code=sm_{source.architecture}"
    includes = (f"-I{directory}" for directory in (lean.DIRECTORY, toolchain.own_include, *toolchain.cutlass_include))
    tools = (f"-ccbin={toolchain.host_compiler}", f"-L{toolchain.cuda_libraries}")
    return [str(toolchain.nvcc), *source.flags, target, *includes, *tools, "-o", LIBRARY, SOURCE]


def _nvcc(command: list[str], directory: Path, key: str, cancelled: threading.Event, side_by_side: bool) -> tuple[int, str]:
    """Exit status and output of nvcc's ``command``, run in ``directory``."""
    environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    environment["LC_ALL"] = "C"  # FULL_DISK is English
    environment["TMPDIR"] = "."  # nvcc hands it to a shell: a path of quotes and dollar signs must not get there
    if side_by_side and (found := passes.script(command, directory, environment, key)) is not None:
        script, with_variables = found
        status, log = _run(["/bin/sh", "-c", script], directory, with_variables, cancelled)
        if status == 0 and (directory / LIBRARY).is_file():
            return status, log
        # Whatever the reason is: nvcc by itself says it as nvcc does, or does without.
    return _run(command, directory, environment, cancelled)


def _run(command: list[str], directory: Path, environment: dict[str, str], cancelled: threading.Event) -> tuple[int, str]:
    """Exit status and output of ``command``, run in ``directory``; it and its children are killed if anything interrupts."""
    with (
        os.fdopen(os.memfd_create("log"), "w+b") as output,  # in memory: the disk may be full
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
        output.seek(0)
        return process.returncode, output.read().decode(errors="replace")
