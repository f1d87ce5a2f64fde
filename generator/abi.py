"""The C ABI of a compiled kernel as ctypes structures: field for field what ``include/cutlass_sk/abi.h`` declares."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_double, c_int32, c_int64, c_void_p
from enum import IntEnum

ABI_VERSION = 3

DESCRIBE, QUERY, PREPARE, ENQUEUE = "cutlass_sk_describe", "cutlass_sk_query", "cutlass_sk_prepare", "cutlass_sk_enqueue"
PACK = "cutlass_sk_pack"


class Status(IntEnum):
    """What each of a kernel's functions answers; the names are CutlassSkStatus's without its prefix."""

    OK = 0
    BAD_ABI = 1
    BAD_PROBLEM = 2
    BAD_PLAN = 3
    MISALIGNED = 4
    CUDA_ERROR = 5
    CUTLASS_ERROR = 6
    OTHER_DEVICE = 7
    CAPTURING = 8


class DescriptionStruct(ctypes.Structure):
    """CutlassSkDescription: what the kernel is. ``struct_bytes`` is set by the caller; alignments are in elements."""

    _fields_ = (
        ("abi_version", c_int32),
        ("struct_bytes", c_int32),
        ("tile_m", c_int32),
        ("tile_n", c_int32),
        ("tile_k", c_int32),
        ("narrowest", c_int32),
        ("cluster_m", c_int32),
        ("cluster_n", c_int32),
        ("threads", c_int32),
        ("stages", c_int32),
        ("shared_memory_bytes", c_int32),
        ("alignment_a", c_int32),
        ("alignment_b", c_int32),
        ("alignment_c", c_int32),
        ("accumulator_fragments", c_int32),
        ("cluster_fixup", c_int32),
        ("partial_bytes", c_int64),
        ("prepared_bytes", c_int64),
        ("prepared_alignment", c_int64),
        ("name", c_char * 160),
    )


class ProblemStruct(ctypes.Structure):
    """CutlassSkProblem: c[m, n] = a[m, k] @ b[k, n]; leading dimensions in elements."""

    _fields_ = (("m", c_int64), ("n", c_int64), ("k", c_int64), ("lda", c_int64), ("ldb", c_int64), ("ldc", c_int64))


class PlanStruct(ctypes.Structure):
    """CutlassSkPlan: the part of a plan that the kernel executes."""

    _fields_ = (
        ("struct_bytes", c_int32),
        ("grid", c_int32),
        ("tiles_m", c_int32),
        ("tiles_n", c_int32),
        ("iters_per_tile", c_int32),
        ("dp_tiles", c_int32),
        ("sk_tiles", c_int32),
        ("sk_units", c_int32),
        ("splits", c_int32),
        ("reduction_ctas", c_int32),
        ("nondeterministic", c_int32),
        ("raster_along_n", c_int32),
        ("raster_swizzle", c_int32),
        ("promotion_iters", c_int32),
        ("in_clusters", c_int32),
        ("tile_n", c_int32),
    )


class QueryStruct(ctypes.Structure):
    """CutlassSkQuery: what a plan launches and the workspace it needs, in bytes."""

    _fields_ = (
        ("struct_bytes", c_int32),
        ("grid", c_int32),
        ("sk_tiles", c_int32),
        ("sk_units", c_int32),
        ("partials_bytes", c_int64),
        ("barrier_bytes", c_int64),
    )


class AddressesStruct(ctypes.Structure):
    """CutlassSkAddresses: what may change from call to call. Pointers are device addresses; ``stream`` is a cudaStream_t."""

    _fields_ = (
        ("a", c_void_p),
        ("b", c_void_p),
        ("c", c_void_p),
        ("alpha", c_double),
        ("beta", c_double),
        ("partials", c_void_p),
        ("barriers", c_void_p),
        ("stream", c_void_p),
        ("programmatic", c_int32),
        ("eager", c_int32),
    )


class LaunchStruct(ctypes.Structure):
    """CutlassSkLaunch: one call in full."""

    _fields_ = (
        ("struct_bytes", c_int32),
        ("device", c_int32),
        ("problem", ProblemStruct),
        ("plan", PlanStruct),
        ("addresses", AddressesStruct),
    )


class PackMatrixStruct(ctypes.Structure):
    """CutlassSkPackMatrix: lines of contiguous bytes, and where they are copied."""

    _fields_ = (
        ("from_", c_void_p),
        ("to", c_void_p),
        ("lines", c_int64),
        ("line_bytes", c_int64),
        ("from_leading", c_int64),
        ("to_leading", c_int64),
    )


class PackStruct(ctypes.Structure):
    """CutlassSkPack: up to two matrices to copy. ``struct_bytes`` is set by the caller."""

    _fields_ = (
        ("struct_bytes", c_int32),
        ("programmatic", c_int32),
        ("matrices", PackMatrixStruct * 2),
        ("stream", c_void_p),
    )


class ResultStruct(ctypes.Structure):
    """CutlassSkResult: our status, CUTLASS's, the CUDA error, and a message."""

    _fields_ = (("status", c_int32), ("cutlass_status", c_int32), ("cuda_error", c_int32), ("message", c_char * 256))
