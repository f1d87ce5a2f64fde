"""Every wrong operand is refused by name, with its values, before anything is written; right ones reach the kernel uncopied."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wrong_operands import HALF, WRONG, K, M, N, good, numbers

from cutlass_sk import Gemm, KernelSpec
from cutlass_sk.errors import OperandError
from cutlass_sk.generator.catalog import families
from cutlass_sk.operands import as_matrix, check, is_column_major, is_row_major, leading_dimension, prepare, scalar
from cutlass_sk.work import packed_row_bytes, row_bytes

pytestmark = pytest.mark.filterwarnings(
    "ignore:cutlass_sk. CPU tensors",
    "ignore:Sparse CSR",
    "ignore:.*torch.nested",
    "ignore:.*nested tensors",
    "ignore:torch.quantize",
)
HOPPER = families("float16", "float16", "sm90a")[0]
HOPPER_TO_FLOAT = families("float16", "float32", "sm90a")[0]
AMPERE = families("float16", "float16", "sm80")[0]
DOUBLE, *_, DOUBLE_OF_ANY_SIZE = families("float64", "float64", "sm90a")


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_operand_is_named_with_its_values_and_c_is_untouched(case: str) -> None:
    changes, error, message = WRONG[case]
    operands = good() | changes()
    kept = good()["c"]
    target = operands["c"]
    watched = isinstance(target, torch.Tensor) and target.device.type == "cpu"
    before = target.detach().clone() if watched else kept
    with pytest.raises(error, match=re.escape(message)):
        Gemm("float16").run(operands["a"], operands["b"], target, beta=1.0)
    if watched:
        assert torch.equal(target.detach(), before)


def test_grad_is_no_error_where_it_is_not_recorded() -> None:
    a, b, c = numbers(M, K).requires_grad_(), numbers(K, N), numbers(M, N)
    with torch.no_grad():
        assert check(a, b, c, "float16", "float16") == (M, N, K)
    with torch.inference_mode():
        assert check(a, b, c, "float16", "float16") == (M, N, K)


def test_right_operands_pass_whatever_c_is() -> None:
    a, b, c = good().values()
    assert check(a, b, c, "float16", "float16") == (M, N, K)
    assert check(a, b, None, "float16", "float16") == (M, N, K)
    assert check(a, b, numbers(M, N, torch.float32), "float16", "float32") == (M, N, K)
    assert check(a, b, numbers(N, M).t(), "float16", "float16") == (M, N, K)
    assert check(a, a.t(), None, "float16", "float16") == (M, M, K)  # a and b may share memory
    assert check(torch.nn.Parameter(a, requires_grad=False), b, None, "float16", "float16") == (M, N, K)


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize(
    "value",
    [
        "one",
        "2",
        b"2",
        "",
        None,
        1j,
        [1.0],
        object,
        torch.ones(1),
        torch.ones(1, 1),
        torch.tensor(1j),
        torch.ones(2),
        10**400,
        np.ones(2),
    ],
    ids=str,
)
def test_a_scalar_that_is_none_is_named(name: str, value: Any) -> None:
    a, b, c = good().values()
    with pytest.raises(OperandError, match=rf"^{name}\b.* must be a real number"):
        Gemm("float16").run(a, b, c, **{name: value})
    assert torch.equal(c, numbers(M, N))


def test_a_scalar_is_a_python_float() -> None:
    for value in (2, 2.0, True + 1, np.float32(2), torch.tensor(2), torch.tensor(2.0, dtype=HALF)):
        assert (type(scalar("alpha", value)), scalar("alpha", value)) == (float, 2.0)
    with pytest.raises(OperandError, match=r"alpha lies on meta; pass a Python number \(alpha\.item\(\)"):
        scalar("alpha", torch.tensor(1.0, device="meta"))


def buffer(size: int = 4096) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float32).remainder(5).to(HALF)


Window = tuple[tuple[int, int], tuple[int, int], int]


def window(memory: torch.Tensor, shape: tuple[int, int], strides: tuple[int, int], offset: int) -> torch.Tensor:
    return memory.as_strided(shape, strides, offset)


OVERLAPPING: dict[str, tuple[Window, Window]] = {
    "the same": (((8, 8), (8, 1), 0), ((8, 8), (8, 1), 0)),
    "one element": (((8, 8), (8, 1), 0), ((8, 8), (8, 1), 63)),
    "shifted columns": (((8, 8), (16, 1), 0), ((8, 8), (16, 1), 7)),
    "a window that wraps": (((8, 8), (16, 1), 4), ((8, 8), (16, 1), 16 - 3)),
    "transposed": (((8, 8), (8, 1), 0), ((8, 8), (1, 8), 0)),
    "transposed windows": (((8, 8), (1, 16), 0), ((8, 8), (1, 16), 23)),
    "inside": (((8, 8), (100, 1), 0), ((8, 8), (8, 1), 300)),
    "every second column and every third": (((8, 8), (32, 2), 0), ((8, 8), (32, 3), 1)),
}
APART: dict[str, tuple[Window, Window]] = {
    "every second column": (((8, 8), (16, 2), 0), ((8, 8), (16, 2), 1)),
    "every third row": (((8, 8), (24, 1), 8), ((8, 8), (24, 1), 16)),
    "every second element, transposed": (((8, 8), (2, 16), 1), ((8, 8), (16, 2), 0)),
    "one after the other": (((8, 8), (8, 1), 0), ((8, 8), (8, 1), 64)),
    "the other way round": (((8, 8), (8, 1), 64), ((8, 8), (8, 1), 0)),
    "columns side by side": (((8, 8), (16, 1), 0), ((8, 8), (16, 1), 8)),
    "columns side by side, c right": (((8, 8), (16, 1), 8), ((8, 8), (16, 1), 0)),
    "columns side by side, rows apart": (((8, 8), (16, 1), 16), ((8, 8), (16, 1), 8)),
    "rows side by side of a column-major buffer": (((8, 8), (1, 16), 0), ((8, 8), (1, 16), 8)),
    "columns with a gap": (((8, 8), (24, 1), 0), ((8, 8), (24, 1), 12)),
    "every second column of rows in between": (((8, 8), (32, 1), 16), ((8, 8), (32, 2), 0)),
    "columns side by side, c transposed": (((8, 8), (1, 16), 8), ((8, 8), (16, 1), 0)),
    "rows of two pitches": (((8, 8), (16, 1), 8), ((8, 8), (32, 1), 0)),
}


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("case", OVERLAPPING)
def test_a_c_that_overlaps_an_operand_is_refused(case: str, name: str) -> None:
    memory = buffer()
    c, shared = (window(memory, *place) for place in OVERLAPPING[case])
    before, other = memory.clone(), numbers(8, 8)
    a, b = (shared, other) if name == "a" else (other, shared)
    found = re.escape(f"[{c.data_ptr():#x}, ")
    with pytest.raises(OperandError, match=rf"^c overlaps {name}: c is bytes {found}.*; write to a c of its own"):
        Gemm("float16").run(a, b, c)
    assert torch.equal(memory, before)


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("case", APART)
def test_a_c_beside_an_operand_is_fine(case: str, name: str) -> None:
    memory = buffer()
    c, neighbour = (window(memory, *place) for place in APART[case])
    other = numbers(8, 8)
    a, b = (neighbour.clone(), other) if name == "a" else (other, neighbour.clone())
    expected = memory.clone()
    window(expected, *APART[case][0]).copy_(a.double() @ b.double())
    Gemm("float16").run(*((neighbour, other) if name == "a" else (other, neighbour)), c)
    assert torch.equal(memory, expected)


@settings(max_examples=400, deadline=None)
@given(
    shapes=st.tuples(*[st.integers(1, 5)] * 3),
    strides=st.tuples(*[st.integers(1, 9)] * 4),
    offsets=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_no_overlap_is_missed(shapes: tuple[int, ...], strides: tuple[int, ...], offsets: tuple[int, int]) -> None:
    """Against the sets of addresses themselves: a shared element is always refused, and c is never taken with one of its own."""
    m, n, k = shapes
    memory = buffer(256)
    c = window(memory, (m, n), (strides[0], strides[1]), offsets[0])
    a = window(memory, (m, k), (strides[2], strides[3]), offsets[1])

    def elements(x: torch.Tensor) -> list[int]:
        return [x.storage_offset() + i * x.stride(0) + j * x.stride(1) for i in range(x.shape[0]) for j in range(x.shape[1])]

    shares = bool(set(elements(c)) & set(elements(a))) or len(set(elements(c))) < m * n
    try:
        check(a, numbers(k, n), c, "float16", "float16")
    except OperandError:
        return
    assert not shares


@settings(max_examples=400, deadline=None)
@given(shape=st.tuples(*[st.integers(1, 6)] * 2), strides=st.tuples(*[st.integers(0, 9)] * 2))
def test_a_c_is_refused_if_its_elements_share_memory_and_only_then(shape: tuple[int, int], strides: tuple[int, int]) -> None:
    (m, n), (down, across) = shape, strides
    distinct = len({i * down + j * across for i in range(m) for j in range(n)})
    c = window(buffer(256), shape, strides, 3)
    if distinct == m * n:
        assert check(numbers(m, K), numbers(K, n), c, "float16", "float16") == (m, n, K)
    else:
        with pytest.raises(OperandError, match="c has elements that share memory"):
            check(numbers(m, K), numbers(K, n), c, "float16", "float16")


def test_a_c_of_interleaved_rows_is_written() -> None:
    c = window(buffer(64), (2, 3), (3, 2), 5)
    expected = numbers(2, K).double() @ numbers(K, 3).double()
    assert torch.equal(Gemm("float16").run(numbers(2, K), numbers(K, 3), c), expected.half())


def test_a_factor_is_0_where_it_is_in_the_type_of_sums() -> None:
    a, b, c = good().values()
    endless, unknown = torch.full_like(a, float("inf")), torch.full_like(c, float("nan"))
    assert torch.equal(Gemm("float16").run(endless, b, c.clone(), alpha=1e-46), torch.zeros_like(c))
    assert torch.equal(Gemm("float16").run(a, b, unknown, beta=-1e-46), Gemm("float16").run(a, b))
    assert (Gemm("float64").run(a.double(), b.double(), alpha=1e-46) > 0).all()  # a number like others in float64


def test_memory_between_elements_is_refused() -> None:
    odd = torch.frombuffer(bytearray(2 * M * K + 1), dtype=HALF, offset=1).view(M, K)
    assert odd.data_ptr() % 2 == 1
    with pytest.raises(OperandError, match=r"a lies at 0x\w+, no multiple of its 2-byte elements; pass a copy of it"):
        Gemm("float16").run(odd, good()["b"])


def test_a_c_of_inference_mode_is_written_there_alone() -> None:
    with torch.inference_mode():
        c = torch.zeros(M, N, dtype=HALF)
        Gemm("float16").run(good()["a"], good()["b"], c)
    before = c.clone()
    with pytest.raises(OperandError, match="c was made in inference mode and is written outside of it; clone it"):
        Gemm("float16").run(good()["a"], good()["b"], c, beta=1.0)
    assert torch.equal(c, before)


def test_a_wrapper_without_memory_of_its_own_is_refused() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    with pytest.raises(OperandError, match=r"a has no memory behind it .*TwoTensor keeps its data elsewhere"):
        Gemm("float16").run(TwoTensor(numbers(M, K), numbers(M, K)), numbers(K, N))


@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
def test_a_c_with_a_pending_negation_gets_the_value(out_dtype: str) -> None:
    memory = numbers(M, N, getattr(torch, out_dtype))
    c, before = torch._neg_view(memory), -memory.double()
    a, b = numbers(M, K), numbers(K, N)
    assert Gemm("float16", out_dtype=out_dtype).run(a, b, c, beta=0.5) is c
    expected = (a.double() @ b.double() + 0.5 * before).to(c.dtype)
    assert torch.equal(c, expected) and torch.equal(memory, -expected)


def test_no_global_flag_of_torch_changes_a_result() -> None:
    a, b = (torch.randn(shape, dtype=torch.float64).half() for shape in ((70, 300), (300, 90)))
    gemm = Gemm("float16", out_dtype="float32")
    expected = gemm.run(a, b)
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert torch.equal(gemm.run(a, b), expected)
    finally:
        torch.set_float32_matmul_precision(precision)
    with torch.autocast("cpu"):
        assert torch.equal(gemm.run(a, b), expected)
    with torch.device("meta"):
        assert torch.equal(gemm.run(a, b), expected)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(gemm.run(a, b), expected)
    finally:
        torch.use_deterministic_algorithms(False)


# What kernels are given.


def test_aligned_operands_are_not_copied() -> None:
    row = numbers(64, 128)
    for tensor, layout, leading in [
        (row, "t", 128),
        (row.t(), "n", 128),
        (row[8:40, 16:56], "t", 128),
        (row[:, :50], "t", 128),  # only the leading dimension and the address must be aligned
        (row.t()[16:56, 8:40], "n", 128),
        (row[::2], "t", 256),
        (row[3:4, 8:21], "t", 16),
        (row[8:9].expand(1, 128), "t", 128),
        (row.as_strided((32, 1), (128, 17)), "t", 128),
        (row.as_strided((1, 32), (3, 1)), "t", 32),
        (row.as_strided((1, 1), (5, 7)), "t", 8),
    ]:
        matrix = as_matrix(tensor, 8)
        assert matrix is not None
        assert (matrix.layout, matrix.leading, matrix.tensor.data_ptr()) == (layout, leading, tensor.data_ptr())


def test_what_a_kernel_cannot_read_is_no_matrix() -> None:
    row = numbers(64, 128)
    for tensor in (
        row[:, 1:],  # address
        row[:, 4:],
        numbers(64, 100),  # leading dimension
        numbers(64, 100).t(),
        row[:, ::2],  # no unit stride
        row[:1].expand(4, 128),  # rows that share memory
        row[:, :1].expand(64, 4),
        row.as_strided((8, 16), (8, 1)),  # rows that overlap
        torch._neg_view(row),
    ):
        assert as_matrix(tensor, 8) is None
    assert as_matrix(numbers(3, 5, torch.float64)[:, 1:], 1) is not None  # fp64 kernels take any element


@settings(max_examples=500, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 9)] * 2),
    strides=st.tuples(*[st.integers(0, 24)] * 2),
    offset=st.integers(0, 16),
    align=st.booleans(),
)
def test_a_matrix_addresses_the_elements_of_its_tensor(
    shape: tuple[int, int], strides: tuple[int, int], offset: int, align: bool
) -> None:
    alignment = 8 if align else 1
    tensor = window(torch.arange(1024).to(HALF), shape, strides, offset)
    matrix = as_matrix(tensor, alignment)
    if matrix is None:
        return
    assert tensor.data_ptr() % (2 * alignment) == 0 and matrix.leading % alignment == 0
    by_layout = (matrix.leading, 1) if matrix.layout == "t" else (1, matrix.leading)
    assert torch.equal(tensor, window(torch.arange(1024).to(HALF), shape, by_layout, offset))
    assert matrix.leading >= (shape[1] if matrix.layout == "t" else shape[0])
    assert is_row_major(tensor, alignment) == (matrix.layout == "t")


def test_column_major_is_told_from_row_major() -> None:
    assert is_column_major(numbers(5, 4).t())
    assert not is_column_major(numbers(5, 4))
    assert not is_column_major(numbers(5, 1)) and not is_column_major(numbers(1, 5).t()) and not is_column_major(numbers(1, 5))


@pytest.mark.parametrize("spec", [HOPPER, HOPPER_TO_FLOAT, AMPERE, DOUBLE, DOUBLE_OF_ANY_SIZE], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_prepare_leaves_aligned_operands_where_they_are(spec: Any, transposed: bool) -> None:
    dtype, out = getattr(torch, spec.dtype), getattr(torch, spec.out_dtype)
    a, b, c = numbers(32, 48, dtype), numbers(48, 64, dtype), numbers(32, 64, out)
    if transposed:
        a, b = a.t().contiguous().t(), b.t().contiguous().t()
    ready = prepare(a, b, c, spec, read_c=True)
    assert (ready.m, ready.n, ready.k) == (32, 64, 48)
    assert (ready.a.layout, ready.b.layout) == (("n", "n") if transposed else ("t", "t"))
    assert (ready.a.leading, ready.b.leading) == ((32, 48) if transposed else (48, 64))
    assert ready.a.tensor.data_ptr() == a.data_ptr() and ready.b.tensor.data_ptr() == b.data_ptr()
    assert ready.c.data_ptr() == c.data_ptr() and ready.result is None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (lambda: numbers(33, 50)[:, 1:48], lambda: numbers(47, 70)),
        (lambda: numbers(33, 47), lambda: numbers(48, 64)[1:, :60]),
        (lambda: numbers(33, 94)[:, ::2], lambda: numbers(70, 47).t()),
        (lambda: torch._neg_view(numbers(33, 48))[:, :47], lambda: numbers(1, 66).expand(47, 66)),
        (lambda: numbers(47, 33).t(), lambda: numbers(47, 1).expand(47, 66)),
        (lambda: torch._neg_view(numbers(48, 33)).t()[:, 1:], lambda: numbers(67, 48).t()[1:, :66]),
    ],
)
def test_unaligned_operands_are_packed(a: Callable[[], torch.Tensor], b: Callable[[], torch.Tensor]) -> None:
    x, y = a(), b()
    c = numbers(33, y.shape[1] + 1)[:, 1:]
    before = c.clone()
    ready = prepare(x, y, c, HOPPER, read_c=True)
    assert (ready.m, ready.n, ready.k) == (33, y.shape[1], 47)  # TMA clips: no padded extents
    for operand, matrix in ((x, ready.a), (y, ready.b)):
        assert torch.equal(operand, matrix.tensor)
        assert as_matrix(matrix.tensor, 8) is not None and matrix.leading % 8 == 0
        if as_matrix(operand, 8) is None:
            assert matrix.layout == ("n" if is_column_major(operand) else "t")
            assert matrix.tensor.untyped_storage().data_ptr() != operand.untyped_storage().data_ptr()
    assert ready.result is None and ready.c is c and torch.equal(c, before)  # stores go to any address


@pytest.mark.parametrize(
    ("nbytes", "apart"),
    [(2, 16), (30, 32), (254, 256), (256, 256), (258, 288), (510, 512), (514, 576), (1022, 1024), (1026, 1152), (9000, 9088)],
)
def test_packed_rows_start_where_loads_are_fast_if_that_adds_an_eighth_at_most(nbytes: int, apart: int) -> None:
    assert packed_row_bytes(nbytes, 16) == apart and apart - nbytes < max(16, nbytes / 8)
    assert packed_row_bytes(nbytes, 8) <= apart and packed_row_bytes(nbytes, 2048) == -(-nbytes // 2048) * 2048


@pytest.mark.parametrize("layouts", ["tt", "tn", "nt", "nn"])
@pytest.mark.parametrize("shape", [(33, 47, 65), (40, 48, 64), (257, 1001, 519), (600, 130, 8), (7, 8, 9)], ids=str)
@pytest.mark.parametrize(("spec", "dtype"), [(HOPPER, torch.float16), (DOUBLE, torch.float64)], ids=["half", "double"])
def test_the_planner_knows_how_far_packed_rows_are_apart(
    spec: KernelSpec, dtype: torch.dtype, shape: tuple[int, int, int], layouts: Any
) -> None:
    m, n, k = shape
    a, b, c = numbers(m, k).to(dtype), numbers(k, n).to(dtype), numbers(m, n).to(dtype)
    x, y = (tensor.t().contiguous().t() if layout == "n" else tensor for tensor, layout in zip((a, b), layouts, strict=True))
    ready = prepare(x, y, c, spec, read_c=False)
    apart = ready.a.leading * dtype.itemsize, ready.b.leading * dtype.itemsize
    assert apart == row_bytes(m, n, k, spec, (layouts[0], layouts[1]))


def poison_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.empty gives NaN, so that whatever is not written shows."""
    import cutlass_sk.operands as module

    empty = torch.empty
    monkeypatch.setattr(module.torch, "empty", lambda *size, **kind: empty(*size, **kind).fill_(float("nan")))


@pytest.mark.parametrize("layouts", ["tt", "tn", "nt", "nn"])
def test_2x_kernels_get_extents_padded_with_zeros(layouts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison_new_memory(monkeypatch)
    a, b = numbers(33, 47), numbers(47, 70)
    x, y = (tensor.t().contiguous().t() if layout == "n" else tensor for tensor, layout in zip((a, b), layouts, strict=True))
    c = numbers(33, 70)
    ready = prepare(x, y, c, AMPERE, read_c=True)
    assert (ready.m, ready.n, ready.k) == (33, 72, 48)
    assert ready.a.layout == ready.b.layout == "t" and ready.a.leading % 8 == ready.b.leading % 8 == 0
    assert (tuple(ready.a.tensor.shape), tuple(ready.b.tensor.shape), tuple(ready.c.shape)) == ((33, 48), (48, 72), (33, 72))
    assert torch.equal(ready.a.tensor[:, :47], a) and (ready.a.tensor[:, 47:] == 0).all()
    assert torch.equal(ready.b.tensor[:47, :70], b)
    assert (ready.b.tensor[47:] == 0).all() and (ready.b.tensor[:, 70:] == 0).all()
    assert ready.result is c and torch.equal(ready.c[:, :70], c) and (ready.c[:, 70:] == 0).all()


def test_2x_kernels_do_not_write_beside_a_window_of_c() -> None:
    """Its address and leading dimension are aligned, but whole vectors would reach beyond its last column."""
    c = numbers(33, 72)[:, :70]
    assert is_row_major(c, 8)
    ready = prepare(numbers(33, 48), numbers(48, 72)[:, :70], c, AMPERE, read_c=False)
    assert ready.result is c and ready.n == 72 and ready.c.untyped_storage().data_ptr() != c.untyped_storage().data_ptr()
    assert prepare(numbers(33, 48), numbers(48, 72)[:, :70], c, HOPPER, read_c=False).result is None


def test_2x_kernels_get_a_column_major_a_only_with_aligned_rows() -> None:
    a, b = numbers(48, 40).t()[:33], numbers(48, 72)  # m = 33 is the contiguous extent of a
    ready = prepare(a, b, numbers(33, 72), AMPERE, read_c=False)
    assert (ready.m, ready.a.layout) == (33, "t") and torch.equal(ready.a.tensor, a)
    ready = prepare(numbers(48, 40).t(), b, numbers(40, 72), AMPERE, read_c=False)
    assert (ready.m, ready.a.layout, ready.a.leading) == (40, "n", 40)


def test_fp64_kernels_that_load_by_vectors_need_no_padding() -> None:
    a, b, c = numbers(7, 5, torch.float64), numbers(5, 3, torch.float64), numbers(7, 3, torch.float64)
    ready = prepare(a, b, c, DOUBLE_OF_ANY_SIZE, read_c=False)
    assert (ready.m, ready.n, ready.k) == (7, 3, 5)
    assert [x.data_ptr() for x in (ready.a.tensor, ready.b.tensor, ready.c)] == [x.data_ptr() for x in (a, b, c)]


def test_fp64_kernels_that_load_by_tma_have_odd_rows_padded_but_not_those_of_c() -> None:
    a, b, c = numbers(7, 5, torch.float64), numbers(5, 3, torch.float64), numbers(7, 3, torch.float64)
    ready = prepare(a, b, c, DOUBLE, read_c=False)
    assert (ready.a.leading, ready.b.leading) == (6, 4)
    assert torch.equal(ready.a.tensor[:, :5], a) and torch.equal(ready.b.tensor[:, :3], b)
    assert ready.c.data_ptr() == c.data_ptr() and ready.result is None


def test_an_unread_c_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_new_memory(monkeypatch)
    c = numbers(16, 32)[:, ::2]
    ready = prepare(numbers(16, 16), numbers(16, 16), c, HOPPER, read_c=False)
    assert ready.result is c and ready.c.isnan().all()
    read = prepare(numbers(16, 16), numbers(16, 16), c, HOPPER, read_c=True)
    assert read.result is c and torch.equal(read.c, c)


def test_the_leading_dimension_of_a_single_row_is_aligned() -> None:
    assert leading_dimension(numbers(1, 13), 8) == 16
    assert leading_dimension(numbers(4, 16), 8) == 16
    assert leading_dimension(window(buffer(), (4, 1), (8, 3), 0), 8) == 8


def test_a_tensor_whose_memory_was_given_back_is_refused() -> None:
    a, b = torch.ones(4, 5, dtype=torch.float16), torch.ones(5, 3, dtype=torch.float16)
    a.untyped_storage().resize_(0)
    with pytest.raises(OperandError, match="a has no memory behind it"):
        Gemm("float16").run(a, b)


def test_wrappers_of_torch_func_are_refused() -> None:
    a, b = torch.ones(2, 4, 5, dtype=torch.float16), torch.ones(5, 3, dtype=torch.float16)
    with pytest.raises(OperandError, match=r"a is wrapped by torch.func"):
        torch.func.vmap(lambda x: Gemm("float16").run(x, b))(a)
