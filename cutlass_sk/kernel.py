"""Compiled kernels, loaded: what they are, what they would launch, and the launch in two steps."""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from . import prebuilt
from .errors import KernelError, LaunchError
from .generator import abi
from .generator.spec import KernelSpec
from .jit.build import build_one
from .plan import Plan


@dataclass(frozen=True)
class KernelDescription:
    """What a compiled kernel says it is. Plans may ask for any tile_n from ``narrowest`` to that of ``tile``. Alignments are in
    elements, ``partial_bytes`` is one CTA's partial sums."""

    name: str
    tile: tuple[int, int, int]
    narrowest: int
    cluster: tuple[int, int]
    threads: int
    stages: int
    shared_memory_bytes: int
    alignment_a: int
    alignment_b: int
    alignment_c: int
    accumulator_fragments: int
    cluster_fixup: bool
    partial_bytes: int
    prepared_bytes: int
    prepared_alignment: int


@dataclass(frozen=True)
class QueryResult:
    """What a plan launches: CTAs, tiles and units of the Stream-K part, and the workspace it needs."""

    grid: int
    sk_tiles: int
    sk_units: int
    partials_bytes: int
    barrier_bytes: int


@dataclass(frozen=True)
class Prepared:
    """All of a launch that stays the same from call to call, as its kernel wrote it at ``address``; ``memory`` keeps it there."""

    memory: ctypes.Array[ctypes.c_char]
    address: int


class Kernel:
    """A loaded shared object with the C ABI of ``generator/include/cutlass_sk/abi.h``. It may be used from several threads."""

    def __init__(self, library: Path, suffix: str = "") -> None:
        """Loads ``library``; needs no GPU. ``suffix``: what the names of its functions end in, where it holds several kernels.

        Raises KernelError if it cannot be loaded or speaks another ABI.
        """
        self.library = library
        try:
            # Local symbols: kernels do not see each other. Now: a missing symbol shows here and not in a launch.
            shared_object = ctypes.CDLL(os.fspath(library), mode=os.RTLD_LOCAL | os.RTLD_NOW)
            self._describe = shared_object[abi.DESCRIBE + suffix]
            self._query = shared_object[abi.QUERY + suffix]
            self._prepare = shared_object[abi.PREPARE + suffix]
            self._enqueue = shared_object[abi.ENQUEUE + suffix]
        except (OSError, AttributeError) as error:
            raise KernelError(f"{library} cannot be loaded as a kernel: {error}{'' if suffix else _remedy(library)}") from error
        self._describe.argtypes = [ctypes.POINTER(abi.DescriptionStruct)]
        pointers = (abi.ProblemStruct, abi.PlanStruct, abi.QueryStruct, abi.ResultStruct)
        self._query.argtypes = [ctypes.POINTER(struct) for struct in pointers]
        result = ctypes.POINTER(abi.ResultStruct)
        self._prepare.argtypes = [ctypes.POINTER(abi.LaunchStruct), ctypes.c_void_p, ctypes.c_int64, result]
        self._enqueue.argtypes = [ctypes.c_void_p, ctypes.POINTER(abi.AddressesStruct), result]
        self.description = self._read_description()

    def __repr__(self) -> str:
        return f"Kernel({self.description.name!r}, {os.fspath(self.library)!r})"

    def query(self, problem: abi.ProblemStruct, plan: abi.PlanStruct) -> QueryResult:
        """What a launch of ``plan`` would be; runs on the host only. Raises LaunchError if the kernel refuses it."""
        query, result = abi.QueryStruct(struct_bytes=ctypes.sizeof(abi.QueryStruct)), abi.ResultStruct()
        self._check(self._query(problem, plan, query, result), result, "query")
        return QueryResult(query.grid, query.sk_tiles, query.sk_units, query.partials_bytes, query.barrier_bytes)

    @property
    def enqueue_address(self) -> int:
        """Where ``cutlass_sk_enqueue`` lies, for callers in C."""
        return ctypes.cast(self._enqueue, ctypes.c_void_p).value or 0

    def prepare(self, launch: abi.LaunchStruct) -> Prepared:
        """Checks a call and makes its device current. Raises LaunchError if the kernel refuses it or CUDA reports an error."""
        nbytes, alignment = self.description.prepared_bytes, self.description.prepared_alignment
        memory, result = ctypes.create_string_buffer(nbytes + alignment), abi.ResultStruct()
        address = -(-ctypes.addressof(memory) // alignment) * alignment
        self._check(self._prepare(launch, address, nbytes, result), result, "launch")
        return Prepared(memory, address)

    def enqueue(self, prepared: Prepared, addresses: abi.AddressesStruct) -> None:
        """Enqueues one call on its stream; the device it was prepared for must be the current one. Raises LaunchError."""
        result = abi.ResultStruct()
        self._check(self._enqueue(prepared.address, addresses, result), result, "launch")

    def _check(self, status: int, result: abi.ResultStruct, action: str) -> None:
        if status != abi.Status.OK:
            raise LaunchError(
                f"{action} of {self.description.name} failed with {_status_name(status)}: {_text(result.message)} "
                f"(CUTLASS status {result.cutlass_status}, CUDA error {result.cuda_error})"
            )

    def _read_description(self) -> KernelDescription:
        struct = abi.DescriptionStruct(struct_bytes=ctypes.sizeof(abi.DescriptionStruct))
        status = self._describe(struct)
        if status != abi.Status.OK or struct.abi_version != abi.ABI_VERSION:
            raise KernelError(
                f"{self.library} cannot be used: it speaks version {struct.abi_version} of the kernel ABI and answers "
                f"{_status_name(status)}; this cutlass_sk speaks version {abi.ABI_VERSION}. Build the kernel again"
            )
        return KernelDescription(
            name=_text(struct.name),
            tile=(struct.tile_m, struct.tile_n, struct.tile_k),
            narrowest=struct.narrowest,
            cluster=(struct.cluster_m, struct.cluster_n),
            threads=struct.threads,
            stages=struct.stages,
            shared_memory_bytes=struct.shared_memory_bytes,
            alignment_a=struct.alignment_a,
            alignment_b=struct.alignment_b,
            alignment_c=struct.alignment_c,
            accumulator_fragments=struct.accumulator_fragments,
            cluster_fixup=bool(struct.cluster_fixup),
            partial_bytes=struct.partial_bytes,
            prepared_bytes=struct.prepared_bytes,
            prepared_alignment=struct.prepared_alignment,
        )


def plan_struct(plan: Plan) -> abi.PlanStruct:
    """The part of ``plan`` that the kernel executes."""
    return abi.PlanStruct(
        struct_bytes=ctypes.sizeof(abi.PlanStruct),
        grid=plan.grid,
        tiles_m=plan.tiles_m,
        tiles_n=plan.tiles_n,
        iters_per_tile=plan.iters_per_tile,
        dp_tiles=plan.dp_tiles,
        sk_tiles=plan.sk_tiles,
        sk_units=plan.sk_units,
        splits=plan.splits,
        reduction_ctas=plan.reduction_ctas,
        nondeterministic=plan.reduction_mode == "nondeterministic",
        raster_along_n=plan.raster_order == "along_n",
        raster_swizzle=plan.raster_swizzle,
        in_clusters=plan.fixup == "cluster",
        promotion_iters=plan.promotion // plan.kernel.tile[2],
        tile_n=plan.kernel.tile[1],
    )


def problem_struct(m: int, n: int, k: int, lda: int, ldb: int, ldc: int) -> abi.ProblemStruct:
    """c[m, n] = a[m, k] @ b[k, n]; leading dimensions in elements."""
    return abi.ProblemStruct(m=m, n=n, k=k, lda=lda, ldb=ldb, ldc=ldc)


_kernels: dict[tuple[KernelSpec, str], Kernel] = {}
_locks: dict[tuple[KernelSpec, str], threading.Lock] = {}
_locks_guard = threading.Lock()


def _forget_locks() -> None:
    """In a forked child: whoever held a lock is not there to drop it."""
    global _locks_guard
    _locks_guard = threading.Lock()
    _locks.clear()


os.register_at_fork(after_in_child=_forget_locks)


def load_kernel(spec: KernelSpec, architecture: str) -> Kernel:
    """The binary of ``spec`` for ``sm_<architecture>``: loaded once per process; it came compiled, is in the cache, or is built.

    Threads that ask for one kernel wait for each other; different kernels build side by side. Raises DeviceError, ToolchainError
    and CompileError as ``build`` does, CacheError, and KernelError.
    """
    spec = spec.binary
    key = (spec, architecture)
    if (kernel := _kernels.get(key)) is not None:
        return kernel
    with _locks_guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        if key not in _kernels:
            _kernels[key] = _load(spec, architecture)
        return _kernels[key]


def _load(spec: KernelSpec, architecture: str) -> Kernel:
    if found := prebuilt.find(spec, architecture):
        return Kernel(found.library, found.suffix)
    with prebuilt.naming_the_missing([spec], architecture):
        library = build_one(spec, architecture).library
    try:
        return Kernel(library)
    except KernelError:
        if library.exists():
            raise
    return Kernel(build_one(spec, architecture).library)  # `cutlass-sk cache clear` was faster


def _remedy(library: Path) -> str:
    """For one that was built here, or is taken to be."""
    try:
        noexec = os.statvfs(library).f_flag & os.ST_NOEXEC
    except OSError:
        return ""
    if noexec:
        return "; its filesystem is mounted noexec: set CUTLASS_SK_CACHE_DIR to a directory on another"
    return "; if another machine built it, set CUTLASS_SK_CACHE_DIR to a directory of this one's own"


def _status_name(status: int) -> str:
    return f"CUTLASS_SK_{abi.Status(status).name}" if status in set(abi.Status) else f"unknown status {status}"


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
