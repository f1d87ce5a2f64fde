"""Products by cuBLASLt, an algorithm each: what its heuristic proposes for a problem, for the fastest to be measured.

cuBLASLt is column-major, and what is row-major is to it the transpose: a row-major c is asked for as c^T = b^T a^T.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch

from cutlass_sk.ensemble.attempt import Call
from cutlass_sk.errors import Error, LaunchError, OperandError

PROPOSALS = 8
"""How many algorithms are asked for."""
WORKSPACE_BYTES = 64 << 20
MOST_ALIGNMENT_BYTES = 256
"""The largest alignment of a pointer that cuBLASLt knows."""

# Numbers of CUDA's headers, which nvmath-python takes as they are: cudaDataType_t, cublasComputeType_t, cublasOperation_t.
DATA_TYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 14}
COMPUTE_32F, COMPUTE_64F = 68, 70
PLAIN, TRANSPOSED = 0, 1


class AlgorithmError(Error, RuntimeError):
    """cuBLASLt proposes no algorithm for a problem."""


class Operand(NamedTuple):
    """A column-major matrix: (rows, columns), columns ``leading`` elements apart, and the operation that it is multiplied after."""

    operation: int
    rows: int
    columns: int
    leading: int


class Resources(NamedTuple):
    """What all products on a GPU share. workspace: uint8 (WORKSPACE_BYTES,), which launches on one stream use in turn."""

    handle: int
    workspace: torch.Tensor


def unavailable() -> str | None:
    """Why cuBLASLt cannot be called here, in a sentence; None if it can."""
    if find_spec("nvmath") is None:
        return "cuBLASLt is called through nvmath-python, which is not installed; pip install 'cutlass-sk[bench]'."
    try:
        _library().get_version()
    except (ImportError, RuntimeError) as error:  # nvmath-python loads cuBLASLt at the first call
        return f"nvmath-python finds no cuBLASLt: {error}."
    return None


def algorithms(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, count: int = PROPOSALS) -> list[Call]:
    """A call for each of at most ``count`` algorithms that cuBLASLt's heuristic proposes for c <- a @ b, its first choice first.

    a (m, k), b (k, n)   row- or column-major, on the current GPU: float16, bfloat16 or float64
    c (m, n)             row-major: of the same dtype, or float32 for 16-bit operands

    Sums are float32, and float64 for float64; as torch's cuBLAS by default, an algorithm may add partial sums in the dtype of c. A
    call takes tensors of these shapes, dtypes and strides that start on as many bytes as these (up to 256). It allocates nothing,
    waits for nothing, and shares one workspace with all others: calls belong on one stream. AlgorithmError where there is no
    algorithm, OperandError for other layouts; a call raises LaunchError.
    """
    library = _library()
    try:
        product = Product(library, _resources(a.device), a, b, c)
        found = product.proposals(count)
    except library.cuBLASLtError as error:
        raise AlgorithmError(f"cuBLASLt proposes no algorithm for {_described(a, b, c)}: {error}") from error
    if not found:
        raise AlgorithmError(f"cuBLASLt proposes no algorithm for {_described(a, b, c)}")
    return list(found)


def operand(matrix: torch.Tensor) -> Operand:
    """``matrix``^T as an operand. OperandError where no dimension of ``matrix`` has unit stride."""
    rows, columns = matrix.shape
    if matrix.stride(1) == 1:
        return Operand(PLAIN, columns, rows, matrix.stride(0) if rows > 1 else columns)
    if matrix.stride(0) == 1:
        return Operand(TRANSPOSED, rows, columns, matrix.stride(1) if columns > 1 else rows)
    raise OperandError(f"cuBLASLt takes row- and column-major matrices; this one has strides {matrix.stride()}: make it contiguous")


def alignment_bytes(matrix: torch.Tensor) -> int:
    """The largest power of two, up to ``MOST_ALIGNMENT_BYTES``, that divides the address of ``matrix``."""
    address = matrix.data_ptr()
    return min(address & -address, MOST_ALIGNMENT_BYTES)


class Product:
    """cuBLASLt's descriptors of one problem. They are destroyed with the last call that uses them."""

    def __init__(self, library: Any, shared: Resources, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        self._made: list[tuple[Callable[[int], object], int]] = []
        weakref.finalize(self, _destroy, self._made).atexit = False
        self._library, self._shared = library, shared
        first, second, result = operand(b), operand(a), operand(c)
        if result.operation != PLAIN:
            raise OperandError(f"c must be row-major; it has strides {c.stride()}: give its transpose, and a's and b's in turn")
        double = a.dtype == torch.float64
        compute, scale = (COMPUTE_64F, torch.float64) if double else (COMPUTE_32F, torch.float32)
        self._description = self._kept(library.matmul_desc_create(compute, DATA_TYPES[scale]), library.matmul_desc_destroy)
        for name, operation in (("TRANSA", first.operation), ("TRANSB", second.operation)):
            attribute = library.MatmulDescAttribute[name]
            _set(library.matmul_desc_set_attribute, self._description, attribute, ctypes.c_int32(operation))
        self._first, self._second, self._result = (
            self._kept(library.matrix_layout_create(DATA_TYPES[matrix.dtype], *seen[1:]), library.matrix_layout_destroy)
            for matrix, seen in ((b, first), (a, second), (c, result))
        )
        self._preference = self._kept(library.matmul_preference_create(), library.matmul_preference_destroy)
        self._prefer("MAX_WORKSPACE_BYTES", ctypes.c_uint64(WORKSPACE_BYTES))
        for letter, matrix in (("A", b), ("B", a), ("C", c), ("D", c)):
            self._prefer(f"MIN_ALIGNMENT_{letter}_BYTES", ctypes.c_uint32(alignment_bytes(matrix)))
        # Read on the host at each call.
        self._scalars = (ctypes.c_double if double else ctypes.c_float)(1), (ctypes.c_double if double else ctypes.c_float)(0)
        self._alpha, self._beta = (ctypes.addressof(scalar) for scalar in self._scalars)
        self._workspace = shared.workspace.data_ptr()

    def proposals(self, count: int) -> list[Algorithm]:
        """What the heuristic proposes, asked once."""
        results = np.zeros(count, dtype=self._library.matmul_heuristic_result_dtype)
        returned = ctypes.c_int(0)
        self._library.matmul_algo_get_heuristic(
            self._shared.handle,
            self._description,
            *(self._first, self._second, self._result, self._result),
            self._preference,
            count,
            results.ctypes.data,
            ctypes.addressof(returned),
        )
        # An algorithm is the first field of a result.
        return [
            Algorithm(self, results, results.ctypes.data + number * results.itemsize)
            for number in range(returned.value)
            if results["state"][number] == 0
        ]

    def launch(self, algorithm: int, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        """Enqueues c <- a @ b on the current stream. algorithm: the address of a ``cublasLtMatmulAlgo_t``."""
        result = c.data_ptr()
        try:
            self._library.matmul(
                self._shared.handle,
                self._description,
                self._alpha,
                b.data_ptr(),
                self._first,
                a.data_ptr(),
                self._second,
                self._beta,
                result,
                self._result,
                result,
                self._result,
                algorithm,
                self._workspace,
                WORKSPACE_BYTES,
                torch.cuda.current_stream().cuda_stream,
            )
        except self._library.cuBLASLtError as error:
            raise LaunchError(f"cuBLASLt refused {_described(a, b, c)} by an algorithm that it proposed: {error}") from error

    def _kept(self, made: int, destroy: Callable[[int], object]) -> int:
        self._made.append((destroy, made))
        return made

    def _prefer(self, name: str, value: ctypes.c_uint32 | ctypes.c_uint64) -> None:
        attribute = self._library.MatmulPreferenceAttribute[name]
        _set(self._library.matmul_preference_set_attribute, self._preference, attribute, value)


@dataclass(frozen=True, eq=False)
class Algorithm:
    """One algorithm of a product: a ``Call``. results: the heuristic's, in which it lies at ``address``."""

    product: Product
    results: np.ndarray[Any, np.dtype[Any]]
    address: int

    def __call__(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        self.product.launch(self.address, a, b, c)


@cache
def _library() -> Any:
    """nvmath-python's binding, which has one function for each of cuBLASLt's. ImportError where it is not installed."""
    from nvmath.bindings import cublasLt

    return cublasLt


@cache
def _resources(device: torch.device) -> Resources:
    """Made at the first use on the current GPU, ``device``, and kept: graphs that were captured use the workspace."""
    return Resources(_library().create(), torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device))


def _set(setter: Callable[[int, int, int, int], object], owner: int, attribute: int, value: Any) -> None:
    setter(owner, attribute, ctypes.addressof(value), ctypes.sizeof(value))


def _destroy(made: list[tuple[Callable[[int], object], int]]) -> None:
    while made:
        destroy, descriptor = made.pop()
        destroy(descriptor)


def _described(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> str:
    (m, k), n = a.shape, b.shape[1]
    return f"m={m}, n={n}, k={k} from {a.dtype} to {c.dtype}, strides {a.stride()} and {b.stride()}"
