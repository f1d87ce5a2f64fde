"""What cuBLASLt is told: a stand-in for its binding reads memory as descriptors say, and multiplies as column-major BLAS does."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from enum import IntEnum
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cutlass_sk.ensemble import cublaslt
from cutlass_sk.errors import LaunchError, OperandError

ELEMENTS = {0: np.float32, 1: np.float64, 2: np.float16}
"""cudaDataType_t -> element. bfloat16 (14) is unknown to numpy: its tests end before anything is multiplied."""
NOT_SUPPORTED = 15


class MatmulDescAttribute(IntEnum):
    TRANSA, TRANSB = 3, 4


class MatmulPreferenceAttribute(IntEnum):
    MAX_WORKSPACE_BYTES = 1
    MIN_ALIGNMENT_A_BYTES, MIN_ALIGNMENT_B_BYTES, MIN_ALIGNMENT_C_BYTES, MIN_ALIGNMENT_D_BYTES = 5, 6, 7, 8


SIZES = {MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES: 8}
"""Bytes of an attribute, where it is not four."""


class Failure(Exception):
    """What nvmath-python raises: no RuntimeError."""


class Library:
    """A stand-in for ``nvmath.bindings.cublasLt`` on the CPU. ``states``: of the algorithms that its heuristic proposes."""

    MatmulDescAttribute, MatmulPreferenceAttribute, cuBLASLtError = MatmulDescAttribute, MatmulPreferenceAttribute, Failure
    matmul_heuristic_result_dtype = np.dtype(
        [
            ("algo", [("data_", "<u8", (8,))]),
            ("workspace_size", "<u8"),
            ("state", "<i4"),
            ("waves_count", "<f4"),
            ("reserved", "<i4", (4,)),
        ]
    )

    def __init__(self) -> None:
        self.numbers, self.states, self.refuses = count(1), [0, 0, 0], False
        self.alive: dict[int, dict[object, object]] = {}
        self.asked: list[dict[object, object]] = []
        self.multiplied: list[tuple[object, ...]] = []

    def make(self, **what: object) -> int:
        self.alive[number := next(self.numbers)] = dict(what)
        return number

    def create(self) -> int:
        return 77

    def get_version(self) -> int:
        raise RuntimeError("libcublasLt is not found")

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        return self.make(compute=compute, scale=scale, TRANSA=0, TRANSB=0)

    def matrix_layout_create(self, kind: int, rows: int, columns: int, leading: int) -> int:
        if leading < rows:
            raise Failure("INVALID_VALUE (7)")
        return self.make(kind=kind, rows=rows, columns=columns, leading=leading)

    def matmul_preference_create(self) -> int:
        return self.make()

    def destroy(self, number: int) -> None:
        del self.alive[number]

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = destroy

    def set_attribute(self, number: int, attribute: IntEnum, address: int, size: int) -> None:
        assert size == SIZES.get(attribute, 4)  # type: ignore[call-overload]
        self.alive[number][attribute.name] = int.from_bytes(ctypes.string_at(address, size), "little")

    matmul_desc_set_attribute = matmul_preference_set_attribute = set_attribute

    def matmul_algo_get_heuristic(
        self, handle: int, operation: int, a: int, b: int, c: int, d: int, preference: int, wanted: int, results: int, found: int
    ) -> None:
        assert handle == 77
        self.asked.append(self.alive[preference])
        if not self.states:
            raise Failure("NOT_SUPPORTED (15)")
        states = self.states[:wanted]
        memory = (ctypes.c_char * (wanted * self.matmul_heuristic_result_dtype.itemsize)).from_address(results)
        values = np.frombuffer(memory, self.matmul_heuristic_result_dtype)
        for number, state in enumerate(states):
            values["algo"]["data_"][number][0] = 100 + number
            values["state"][number] = state
        ctypes.c_int.from_address(found).value = len(states)

    def matmul(self, handle: int, operation: int, alpha: int, *rest: int) -> None:
        a, layout_a, b, layout_b, beta, c, layout_c, d, layout_d, algorithm, workspace, workspace_bytes, stream = rest
        described = self.alive[operation]
        assert (handle, stream, workspace_bytes) == (77, 5, 64 << 20) and workspace and (c, layout_c) == (d, layout_d)
        scalar = {0: ctypes.c_float, 1: ctypes.c_double}[described["scale"]]  # type: ignore[index]
        assert (scalar.from_address(alpha).value, scalar.from_address(beta).value) == (1.0, 0.0)
        if self.refuses:
            raise Failure("NOT_SUPPORTED (15)")
        left, right = self.matrix(a, layout_a), self.matrix(b, layout_b)
        left, right = left.T if described["TRANSA"] else left, right.T if described["TRANSB"] else right
        self.matrix(d, layout_d)[:] = left.astype(np.float64) @ right.astype(np.float64)
        self.multiplied.append((ctypes.c_uint64.from_address(algorithm).value, described["compute"], described["scale"]))

    def matrix(self, address: int, number: int) -> np.ndarray:  # type: ignore[type-arg]
        layout = SimpleNamespace(**self.alive[number])  # type: ignore[arg-type]
        element = np.dtype(ELEMENTS[layout.kind])
        memory = (ctypes.c_char * (((layout.columns - 1) * layout.leading + layout.rows) * element.itemsize)).from_address(address)
        strides = element.itemsize, layout.leading * element.itemsize
        return np.ndarray((layout.rows, layout.columns), element, memory, strides=strides)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    made = Library()
    monkeypatch.setattr(cublaslt, "_library", lambda: made)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=5))
    cublaslt._resources.cache_clear()
    yield made
    cublaslt._resources.cache_clear()


def matrix(rows: int, columns: int, layout: str, dtype: torch.dtype, padding: int = 0, offset: int = 0) -> torch.Tensor:
    """Random small whole numbers, in rows (``t``) or columns (``n``) that lie ``padding`` elements apart."""
    leading = (columns if layout == "t" else rows) + padding
    pool = torch.randint(-3, 4, (offset + (rows if layout == "t" else columns) * leading + 512,)).to(dtype)
    start = offset + -(pool.data_ptr() // pool.itemsize) % (256 // pool.itemsize)
    return pool.as_strided((rows, columns), (leading, 1) if layout == "t" else (1, leading), start)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("shape", [(13, 7, 5), (1, 7, 5), (13, 1, 5), (13, 7, 1), (1, 1, 5), (1, 7, 1), (13, 1, 1)])
@pytest.mark.parametrize("layouts", ["tt", "tn", "nt", "nn"])
def test_every_layout_gives_the_product_by_every_algorithm(
    library: Library, layouts: str, shape: tuple[int, int, int], padding: int
) -> None:
    m, n, k = shape
    for inputs, out, kinds in (
        (torch.float16, torch.float16, (68, 0)),
        (torch.float16, torch.float32, (68, 0)),
        (torch.float64, torch.float64, (70, 1)),
    ):
        library.multiplied.clear()
        sets = [
            (matrix(m, k, layouts[0], inputs, padding), matrix(k, n, layouts[1], inputs, padding), matrix(m, n, "t", out, padding))
            for _ in range(2)
        ]
        calls = cublaslt.algorithms(*sets[0])
        for call in calls:
            for a, b, c in sets:  # others than those that it was made with, too
                c.fill_(float("nan"))
                call(a, b, c)
                assert torch.equal(c, (a.double() @ b.double()).to(out))
        assert library.multiplied == [(100 + number, *kinds) for number in range(3) for _ in range(2)]


def test_the_heuristic_is_told_of_the_workspace_and_of_what_is_aligned(library: Library) -> None:
    a, b = matrix(8, 16, "t", torch.bfloat16), matrix(16, 24, "n", torch.bfloat16, offset=8)
    c = matrix(8, 24, "t", torch.bfloat16, offset=1)
    assert len(cublaslt.algorithms(a, b, c)) == 3 and len(cublaslt.algorithms(a, b, c, 2)) == 2
    assert library.asked[0] == {
        "MAX_WORKSPACE_BYTES": 64 << 20,
        "MIN_ALIGNMENT_A_BYTES": 16,  # b's: it is the first operand
        "MIN_ALIGNMENT_B_BYTES": 256,
        "MIN_ALIGNMENT_C_BYTES": 2,
        "MIN_ALIGNMENT_D_BYTES": 2,
    }
    library.states = [0, NOT_SUPPORTED, 0]
    assert len(cublaslt.algorithms(a, b, c)) == 2


def test_descriptors_live_as_long_as_a_call(library: Library) -> None:
    a, b, c = (matrix(8, 8, "t", torch.float64) for _ in range(3))
    calls = cublaslt.algorithms(a, b, c)
    del calls[0], calls[0]
    gc.collect()
    calls[0](a, b, c)
    assert torch.equal(c, a @ b) and len(library.alive) == 5
    calls.clear()
    gc.collect()
    assert not library.alive


def test_errors_say_what_is_not_multiplied_and_leave_nothing_behind(library: Library) -> None:
    a, b, c = matrix(8, 5, "t", torch.float16), matrix(5, 9, "n", torch.float16), matrix(8, 9, "t", torch.float32)
    call = cublaslt.algorithms(a, b, c)[0]
    library.refuses = True
    with pytest.raises(LaunchError, match=r"refused m=8, n=9, k=5 from torch.float16 to torch.float32, .*: NOT_SUPPORTED"):
        call(a, b, c)
    with pytest.raises(OperandError, match=r"strides \(16, 2\): make it contiguous"):
        cublaslt.algorithms(matrix(8, 16, "t", torch.float16)[:, ::2], matrix(8, 9, "t", torch.float16), c)
    with pytest.raises(OperandError, match="c must be row-major"):
        cublaslt.algorithms(a, b, matrix(8, 9, "n", torch.float32))
    with pytest.raises(cublaslt.AlgorithmError, match=r"proposes no algorithm for m=8, n=9, k=5 .*: INVALID_VALUE"):
        cublaslt.algorithms(a, b, matrix(1, 9, "t", torch.float32).expand(8, 9))
    for states in ([], [NOT_SUPPORTED]):
        library.states = states
        with pytest.raises(cublaslt.AlgorithmError, match="proposes no algorithm for m=8, n=9, k=5"):
            cublaslt.algorithms(a, b, c)
    del call
    gc.collect()
    assert not library.alive


def test_what_is_missing_is_one_sentence(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt, "find_spec", lambda name: None)
    assert "pip install 'cutlass-sk[bench]'" in (cublaslt.unavailable() or "")
    monkeypatch.setattr(cublaslt, "find_spec", lambda name: name)
    assert cublaslt.unavailable() == "nvmath-python finds no cuBLASLt: libcublasLt is not found."
    monkeypatch.setattr(library, "get_version", lambda: 130000)
    assert cublaslt.unavailable() is None


def test_the_binding_is_as_the_stand_in_says() -> None:
    binding = pytest.importorskip("nvmath.bindings.cublasLt")
    blas, nvmath = pytest.importorskip("nvmath.bindings.cublas"), pytest.importorskip("nvmath")
    for enumeration in (MatmulDescAttribute, MatmulPreferenceAttribute):
        theirs = getattr(binding, enumeration.__name__)
        assert {one.name: one.value for one in enumeration} == {one.name: theirs[one.name].value for one in enumeration}
    for attribute in MatmulDescAttribute:
        assert np.dtype(binding.get_matmul_desc_attribute_dtype(attribute)) == np.int32
    for preference in MatmulPreferenceAttribute:
        assert np.dtype(binding.get_matmul_preference_attribute_dtype(preference)).itemsize == SIZES.get(preference, 4)
    assert binding.matmul_heuristic_result_dtype == Library.matmul_heuristic_result_dtype
    names = {torch.float32: "CUDA_R_32F", torch.float64: "CUDA_R_64F", torch.float16: "CUDA_R_16F", torch.bfloat16: "CUDA_R_16BF"}
    assert {dtype: nvmath.CudaDataType[name].value for dtype, name in names.items()} == cublaslt.DATA_TYPES
    types = blas.ComputeType.COMPUTE_32F, blas.ComputeType.COMPUTE_64F, blas.Operation.N, blas.Operation.T
    assert types == (cublaslt.COMPUTE_32F, cublaslt.COMPUTE_64F, cublaslt.PLAIN, cublaslt.TRANSPOSED)
    assert issubclass(binding.cuBLASLtError, Exception)
    for name in vars(Library):
        if not name.startswith("_") and name not in ("make", "set_attribute", "matrix"):
            assert hasattr(binding, name), name
