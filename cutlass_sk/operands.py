"""What a caller brings, checked and made ready. Every error a user can cause is raised here, before anything is launched."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import TYPE_CHECKING, Any

import torch

from . import packing
from .arrays import negative_strides
from .dtypes import torch_dtype
from .errors import DtypeError, OperandError
from .generator import abi
from .generator.catalog import DTYPES
from .generator.spec import KernelSpec, Layout
from .work import packed_row_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Matrix:
    """A 2-D tensor as a kernel takes it: ``t`` row-major or ``n`` column-major, with its leading dimension in elements."""

    tensor: torch.Tensor
    layout: Layout
    leading: int


@dataclass(frozen=True)
class Operands:
    """A problem ready to launch: c[m, n] <- a[m, k] @ b[k, n], row-major c.

    ``result`` is None if ``c`` is the caller's own memory; else c's first columns are to be copied there afterwards. m, n and k may
    be padded with zeros where a kernel needs aligned extents. ``packed`` says, for a and for b, what one kernel has packed, None
    for an operand that is used as it lies; it is None as a whole where anything was copied otherwise.
    """

    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    c: torch.Tensor
    result: torch.Tensor | None
    packed: tuple[abi.PackMatrixStruct | None, abi.PackMatrixStruct | None] | None


def scalar(name: str, value: Any) -> float:
    """alpha or beta as a Python float. Takes numbers and 0-d CPU tensors."""
    if isinstance(value, torch.Tensor):
        if value.dim() != 0 or value.is_complex():
            raise OperandError(f"{name} must be a real number; it is a tensor of shape {tuple(value.shape)}, {value.dtype}")
        if value.device.type != "cpu":
            raise OperandError(f"{name} lies on {value.device}; pass a Python number ({name}.item() waits for the GPU to know it)")
        if torch._C._functorch.is_functorch_wrapped_tensor(value):
            raise OperandError(
                f"{name} is wrapped by torch.func (vmap, grad or jvp), where it is no single number; call it outside"
            )
        value = value.detach()
    try:
        if not isinstance(value, (str, bytes, bytearray)):
            return float(value)
    except OverflowError:
        raise OperandError(f"{name} must be a real number that a float holds; pass a smaller one") from None
    except (TypeError, ValueError):
        pass
    raise OperandError(f"{name}={value!r} must be a real number; pass a float or an int")


def check(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, dtype: str, out_dtype: str) -> tuple[int, int, int]:
    """(m, n, k) of the call, or the error that says what is wrong with which operand."""
    for name, tensor in _named(a, b, c):
        _check_tensor(name, tensor, torch_dtype(out_dtype if name == "c" else dtype))
    check_k(a, b)
    (m, k), n = a.shape, b.shape[1]
    for name, tensor in _named(a, b, c):
        if tensor.device != a.device:
            raise OperandError(f"{name} lies on {tensor.device}, a on {a.device}; move them to one device")
    if a.device.type not in ("cuda", "cpu"):
        raise OperandError(f"a lies on {a.device}; operands must be CUDA tensors, or CPU tensors for the reference")
    if torch.is_grad_enabled():
        for name, tensor in _named(a, b, c):
            if tensor.requires_grad:
                raise OperandError(
                    f"{name} requires grad, which run() does not record; use cutlass_sk.matmul, or torch.no_grad() or detach {name}"
                )
    if c is not None:
        if tuple(c.shape) != (m, n):
            raise OperandError(f"c must be (m={m}, n={n}); it is {tuple(c.shape)}; pass one of that shape, or none for a new one")
        if of_another_mode(c):
            raise OperandError(
                "c was made in inference mode and is written outside of it; clone it, or call run() in inference mode"
            )
        if _overlaps_itself(c):
            raise OperandError(
                f"c has elements that share memory (shape {tuple(c.shape)}, strides {c.stride()}); pass a c of its own memory"
            )
        for name, tensor in (("a", a), ("b", b)):
            if _overlap(c, tensor):
                raise OperandError(f"c overlaps {name}: c is {_bytes(c)}, {name} is {_bytes(tensor)}; write to a c of its own")
    return m, n, k


def prepare(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, spec: KernelSpec, *, read_c: bool) -> Operands:
    """Operands as kernels of ``spec``'s family take them.

    Aligned row- and column-major operands, views included, are used as they are. Any other a or b (unaligned pointer or leading
    dimension, no unit stride, pending negation) is copied into an aligned buffer, column-major ones into a column-major one where
    the kernel takes any extents; such a c is computed in a row-major one and copied back. ``read_c`` says that c's values matter
    (beta != 0). c must not be column-major: see ``is_column_major``.
    """
    m, k = a.shape
    n = b.shape[1]
    # 2.x kernels predicate whole vectors: what they read contiguously must be a multiple of the alignment, zeros included.
    step = max(spec.alignment, spec.alignment_c) if spec.api == "2x" else 1
    pad_k, pad_n = -k % step, -n % step
    matrix_a = None if pad_k else as_matrix(a, spec.alignment)
    matrix_b = None if pad_k or pad_n else as_matrix(b, spec.alignment)
    if matrix_a is not None and matrix_a.layout == "n" and m % step:
        matrix_a = None
    copies: list[packing.Pair] = []
    matrix_a = matrix_a or _packed(a, 0, pad_k, spec.alignment, copies, any_layout=step == 1)
    matrix_b = matrix_b or _packed(b, pad_k, pad_n, spec.alignment, copies, any_layout=step == 1)
    told, packed = packing.copy(copies), None
    if told is not None and not (pad_k or pad_n):
        rest = iter(told)
        packed = (None if matrix_a.tensor is a else next(rest)), (None if matrix_b.tensor is b else next(rest))
    result = None
    if pad_n or not is_row_major(c, spec.alignment_c):
        columns = n + pad_n
        result, buffer = c, _buffer(m, columns, columns + -columns % spec.alignment_c, c)
        if read_c:
            buffer[:, :n].copy_(result)
            buffer[:, n:].zero_()  # read with the rest of a vector
        c = buffer
    return Operands(m, n + pad_n, k + pad_k, matrix_a, matrix_b, c, result, packed)


def as_matrix(tensor: torch.Tensor, alignment: int) -> Matrix | None:
    """``tensor`` as an aligned row- or column-major matrix, without a copy; None if it is neither.

    ``alignment`` is what its address and leading dimension must be multiples of, in elements. Strides of dimensions of size 1 do
    not matter.
    """
    if tensor.is_neg() or tensor.data_ptr() % (alignment * tensor.element_size()):
        return None
    (rows, columns), (row_stride, column_stride) = tensor.shape, tensor.stride()
    leading = _leading(rows, columns, row_stride, column_stride, alignment)
    if leading:
        return Matrix(tensor, "t", leading)
    leading = _leading(columns, rows, column_stride, row_stride, alignment)
    return Matrix(tensor, "n", leading) if leading else None


def is_row_major(tensor: torch.Tensor, alignment: int) -> bool:
    """Whether a kernel can store to ``tensor`` directly."""
    matrix = as_matrix(tensor, alignment)
    return matrix is not None and matrix.layout == "t"


def is_column_major(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is column-major and not row-major: then its transpose is what a kernel can store."""
    return bool(tensor.stride(0) == 1 and tensor.shape[0] > 1 and tensor.shape[1] > 1 and tensor.stride(1) != 1)


def leading_dimension(tensor: torch.Tensor, alignment: int) -> int:
    """The leading dimension of an aligned row-major tensor, in elements."""
    (rows, columns), (row_stride, column_stride) = tensor.shape, tensor.stride()
    return _leading(rows, columns, row_stride, column_stride, alignment)


def _leading(rows: int, columns: int, row_stride: int, column_stride: int, alignment: int) -> int:
    """Leading dimension of a row-major matrix in elements; 0 if the strides are not of an aligned row-major matrix."""
    if columns > 1 and column_stride != 1:
        return 0
    if rows == 1:
        return -(-columns // alignment) * alignment
    return row_stride if row_stride >= columns and row_stride % alignment == 0 else 0


def _packed(
    tensor: torch.Tensor, pad_rows: int, pad_columns: int, alignment: int, copies: list[packing.Pair], *, any_layout: bool
) -> Matrix:
    """Memory with an aligned leading dimension, and zeros in the padding that the kernel computes with: row-major, or as ``tensor``
    lies if it may be of ``any_layout``, since to transpose costs several times the copy. The copy itself is added to ``copies``."""
    if any_layout and is_column_major(tensor):
        turned = _packed(tensor.t(), pad_columns, pad_rows, alignment, copies, any_layout=False)
        return Matrix(turned.tensor.t(), "n", turned.leading)
    rows, columns = tensor.shape
    nbytes = tensor.element_size()
    leading = packed_row_bytes((columns + pad_columns) * nbytes, alignment * nbytes) // nbytes
    buffer = _buffer(rows + pad_rows, columns + pad_columns, leading, tensor)
    if pad_columns:
        buffer[:, columns:].zero_()
    if pad_rows:
        buffer[rows:].zero_()
    copies.append((tensor, buffer[:rows, :columns]))
    return Matrix(buffer, "t", leading)


def _buffer(rows: int, columns: int, leading: int, like: torch.Tensor) -> torch.Tensor:
    return torch.empty(rows, leading, dtype=like.dtype, device=like.device)[:, :columns]


def _named(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None) -> Iterator[tuple[str, torch.Tensor]]:
    yield "a", a
    yield "b", b
    if c is not None:
        yield "c", c


def _check_tensor(name: str, tensor: Any, dtype: torch.dtype) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise OperandError(f"{name} is a {type(tensor).__name__}, not a torch.Tensor; {_as_a_tensor(name, tensor)}")
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else "quantised" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        remedies = {"nested": "multiply what unbind() gives", "quantised": "convert it to a plain one (dequantize())"}
        remedy = remedies.get(kind, "convert it to a plain one (to_dense())")
        raise OperandError(f"{name} is a {kind.lstrip('_')} tensor; {remedy}")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise OperandError(f"{name} is wrapped by torch.func (vmap, grad or jvp), which run() cannot see into; call it outside")
    if tensor.device.type == "meta" or type(tensor).__name__ == "FakeTensor":
        raise OperandError(
            f"{name} has no data (a {'fake' if tensor.device.type != 'meta' else 'meta'} tensor); pass a materialised one"
        )
    if tensor.dtype != dtype:
        taken = {torch_dtype(outputs if name == "c" else inputs) for inputs, outputs in DTYPES}
        remedy = "convert it, or construct the Gemm for its dtype" if tensor.dtype in taken else "convert it"
        raise DtypeError(f"{name} is {tensor.dtype}, expected {dtype}; {remedy}")
    if tensor.dim() != 2:
        remedy = "unsqueeze(0) makes it a row, unsqueeze(1) a column" if tensor.dim() == 1 else "pass one matrix at a time"
        raise OperandError(f"{name} must have 2 dimensions; its shape is {tuple(tensor.shape)}; {remedy}")
    if tensor.data_ptr() % tensor.element_size():
        raise OperandError(
            f"{name} lies at {tensor.data_ptr():#x}, no multiple of its {tensor.element_size()}-byte elements; pass a copy of it"
        )
    if tensor.numel() and tensor.data_ptr() == 0:
        raise OperandError(
            f"{name} has no memory behind it (its storage was resized to 0, or {type(tensor).__name__} keeps its data elsewhere); "
            "pass a tensor with data"
        )


def _as_a_tensor(name: str, value: Any) -> str:
    """What makes a tensor of it."""
    if not hasattr(value, "__dlpack__"):
        return f"pass a tensor of 2 dimensions for {name}"
    if strides := negative_strides(value):
        return f"torch.from_dlpack({name}.copy()) makes one, of a copy, since its strides {strides} are negative"
    return f"torch.from_dlpack({name}) wraps it without a copy"


def of_another_mode(c: torch.Tensor) -> bool:
    """Whether it was made in inference mode and is to be written outside of it, which torch refuses."""
    return c.is_inference() and not torch.is_inference_mode_enabled()


def check_k(a: torch.Tensor, b: torch.Tensor, first: str = "a", second: str = "b") -> None:
    """Refuses matrices, or batches of them, that have no inner size in common, by the caller's names for them."""
    (m, k), (k_b, n) = a.shape[-2:], b.shape[-2:]
    if k != k_b:
        batches = f", of {tuple(a.shape)} and {tuple(b.shape)}" if a.dim() + b.dim() > 4 else ""
        shapes = f"{first} is (m={m}, k={k}), {second} is (k={k_b}, n={n}){batches}"
        raise OperandError(f"{first}'s k ({k}) must equal {second}'s k ({k_b}): {shapes}; pass a {second} of {k} rows")


def reach_bytes(tensor: torch.Tensor) -> int:
    """How many bytes the tensor's elements reach from its address."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(last + 1) * tensor.element_size()


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """[first, last) byte address that the tensor's elements lie in."""
    return tensor.data_ptr(), tensor.data_ptr() + reach_bytes(tensor)


def _bytes(tensor: torch.Tensor) -> str:
    first, last = _span(tensor)
    return f"bytes [{first:#x}, {last:#x})"


def _overlap(c: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two matrices may share a byte. Side-by-side windows of one buffer, and columns or rows in between, do not."""
    (first, last), (other_first, other_last) = _span(c), _span(other)
    if c.device != other.device or first >= other_last or other_first >= last:
        return False
    # Modulo what lines of both are apart all of a matrix's lines lie in one window, as its first does: do the windows meet?
    for x, y in product((c, c.t()), (other, other.t())):
        apart = gcd(*(z.stride(0) * z.element_size() for z in (x, y) if z.shape[0] > 1))
        if apart:
            x_bytes, y_bytes = ((z.shape[1] - 1) * z.stride(1) * z.element_size() + z.element_size() for z in (x, y))
            if x_bytes <= (y.data_ptr() - x.data_ptr()) % apart <= apart - y_bytes:
                return False
    strides = [stride * x.element_size() for x in (c, other) for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
    apart = gcd(*strides)  # one may have the even columns, say, the other the odd ones
    return not (apart and c.element_size() <= (other_first - first) % apart <= apart - other.element_size())


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    (rows, columns), (down, across) = tensor.shape, tensor.stride()
    if 0 in (down, across):
        return tensor.numel() > 0 and ((rows > 1 and down == 0) or (columns > 1 and across == 0))
    # As many rows down as columns across lead to the same element, and none fewer do.
    common = gcd(down, across)
    return rows > across // common and columns > down // common
