"""Operands that a call must refuse, by name: what is changed of a good call, the error, and what its message says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cutlass_sk.errors import DtypeError, Error, OperandError

HALF = torch.float16
M, N, K = 4, 5, 6


def numbers(rows: int, columns: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.arange(rows * columns, dtype=torch.float64).remainder(97).add(1).to(dtype).reshape(rows, columns)


def good() -> dict[str, Any]:
    return {"a": numbers(M, K), "b": numbers(K, N), "c": numbers(M, N)}


def fake(rows: int, columns: int) -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(rows, columns, dtype=HALF)


def quantised() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.zeros(M, K), 1.0, 0, torch.qint8)


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3)], dtype=HALF)


WRONG: dict[str, tuple[Callable[[], dict[str, Any]], type[Error], str]] = {
    "numpy a": (
        lambda: {"a": np.zeros((M, K), np.float16)},
        OperandError,
        "a is a ndarray, not a torch.Tensor; torch.from_dlpack(a)",
    ),
    "numpy a, upside down": (
        lambda: {"a": np.zeros((M, K), np.float16)[::-1]},
        OperandError,
        "a is a ndarray, not a torch.Tensor; torch.from_dlpack(a.copy()) makes one, of a copy, since its strides (-12, 2)",
    ),
    "list b": (lambda: {"b": [[1.0]]}, OperandError, "b is a list, not a torch.Tensor; pass a tensor of 2 dimensions for b"),
    "no a": (lambda: {"a": None}, OperandError, "a is a NoneType, not a torch.Tensor; pass a tensor"),
    "numpy c": (lambda: {"c": np.zeros((M, N), np.float16)}, OperandError, "c is a ndarray, not a torch.Tensor"),
    "coo a": (
        lambda: {"a": numbers(M, K).to_sparse()},
        OperandError,
        "a is a sparse_coo tensor; convert it to a plain one (to_dense()",
    ),
    "csr b": (lambda: {"b": numbers(K, N).to_sparse_csr()}, OperandError, "b is a sparse_csr tensor"),
    "quantised a": (lambda: {"a": quantised()}, OperandError, "a is a quantised tensor; convert it to a plain one (dequantize())"),
    "nested a": (lambda: {"a": nested()}, OperandError, "a is a nested tensor; multiply what unbind() gives"),
    "meta a": (lambda: {"a": torch.empty(M, K, dtype=HALF, device="meta")}, OperandError, "a has no data (a meta tensor)"),
    "meta c": (lambda: {"c": torch.empty(M, N, dtype=HALF, device="meta")}, OperandError, "c has no data (a meta tensor)"),
    "fake b": (lambda: {"b": fake(K, N)}, OperandError, "b has no data (a fake tensor); pass a materialised one"),
    "float32 a": (
        lambda: {"a": numbers(M, K, torch.float32)},
        DtypeError,
        "a is torch.float32, expected torch.float16; convert it",
    ),
    "bfloat16 b": (
        lambda: {"b": numbers(K, N, torch.bfloat16)},
        DtypeError,
        "b is torch.bfloat16, expected torch.float16; convert it, or construct the Gemm for its dtype",
    ),
    "float32 c": (
        lambda: {"c": numbers(M, N, torch.float32)},
        DtypeError,
        "c is torch.float32, expected torch.float16; convert it, or construct the Gemm for its dtype",
    ),
    "bool a": (lambda: {"a": numbers(M, K) > 1}, DtypeError, "a is torch.bool, expected torch.float16"),
    "int64 b": (lambda: {"b": torch.ones(K, N, dtype=torch.int64)}, DtypeError, "b is torch.int64, expected torch.float16"),
    "complex a": (lambda: {"a": torch.zeros(M, K, dtype=torch.complex64)}, DtypeError, "a is torch.complex64"),
    "vector a": (
        lambda: {"a": numbers(1, K)[0]},
        OperandError,
        "a must have 2 dimensions; its shape is (6,); unsqueeze(0) makes it a row",
    ),
    "batch b": (
        lambda: {"b": numbers(K, N)[None]},
        OperandError,
        "b must have 2 dimensions; its shape is (1, 6, 5); pass one matrix at a time",
    ),
    "number a": (lambda: {"a": torch.tensor(1.0, dtype=HALF)}, OperandError, "a must have 2 dimensions; its shape is ()"),
    "vector c": (lambda: {"c": numbers(M, N).flatten()}, OperandError, "c must have 2 dimensions; its shape is (20,)"),
    "k": (
        lambda: {"b": numbers(7, N)},
        OperandError,
        "a's k (6) must equal b's k (7): a is (m=4, k=6), b is (k=7, n=5); pass a b of 6 rows",
    ),
    "k of transposed": (
        lambda: {"a": numbers(K, M)},
        OperandError,
        "a's k (4) must equal b's k (6): a is (m=6, k=4), b is (k=6, n=5)",
    ),
    "c's shape": (
        lambda: {"c": numbers(N, M)},
        OperandError,
        "c must be (m=4, n=5); it is (5, 4); pass one of that shape, or none",
    ),
    "c of a row": (lambda: {"c": numbers(1, N)}, OperandError, "c must be (m=4, n=5); it is (1, 5)"),
    "grad a": (lambda: {"a": numbers(M, K).requires_grad_()}, OperandError, "a requires grad, which run() does not record"),
    "grad b": (lambda: {"b": numbers(K, N).requires_grad_()}, OperandError, "torch.no_grad() or detach b"),
    "grad c": (lambda: {"c": numbers(M, N).requires_grad_()}, OperandError, "c requires grad"),
    "expanded c": (
        lambda: {"c": numbers(1, N).expand(M, N)},
        OperandError,
        "c has elements that share memory (shape (4, 5), strides (0, 1)); pass a c of its own memory",
    ),
    "c of running windows": (
        lambda: {"c": torch.zeros(40, dtype=HALF).as_strided((M, N), (3, 1))},
        OperandError,
        "c has elements that share memory (shape (4, 5), strides (3, 1))",
    ),
}
