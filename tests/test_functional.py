"""matmul, addmm, linear: torch's results, shapes and refusals, on CPU tensors."""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from foreign_arrays import OfDLPack

import cutlass_sk
from cutlass_sk import Gemm, addmm, linear, matmul
from cutlass_sk.errors import DtypeError, OperandError
from cutlass_sk.products import gemm_of

pytestmark = pytest.mark.filterwarnings("ignore:cutlass_sk. CPU tensors", "ignore::DeprecationWarning")
DTYPES = (torch.float16, torch.bfloat16, torch.float64)


def trits(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    """Elements in {-1, 0, 1}: every sum is exact, in any order."""
    return torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


SHAPES = [
    *(((7,), (7,)), ((5, 7), (7,)), ((7,), (7, 3)), ((5, 7), (7, 3))),
    *(((2, 5, 7), (7, 3)), ((4, 2, 5, 7), (7, 3)), ((2, 5, 7), (7,)), ((1, 1, 7), (7, 1))),
    *(((2, 5, 7), (2, 7, 3)), ((5, 7), (2, 7, 3)), ((7,), (2, 7, 3)), ((2, 1, 5, 7), (3, 7, 4)), ((1, 5, 7), (4, 7, 3))),
    *(((2, 5, 7), (1, 7, 3)), ((5, 7), (1, 1, 7, 3)), ((2, 5, 7), (1, 1, 7, 3)), ((7,), (1, 7, 3))),
    *(
        ((0, 7), (7, 3)),
        ((5, 0), (0, 3)),
        ((2, 0, 7), (7, 3)),
        ((2, 5, 0), (0, 3)),
        ((0, 5, 7), (0, 7, 3)),
        ((0,), (0,)),
        ((5, 7), (7, 0)),
    ),
]


@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matmul_is_torch_s(a: tuple[int, ...], b: tuple[int, ...], dtype: torch.dtype) -> None:
    x, y = trits(*a, dtype=dtype), trits(*b, dtype=dtype, seed=1)
    expected = torch.matmul(x.double(), y.double())
    made = matmul(x, y)
    assert made.dtype == dtype and made.shape == expected.shape and torch.equal(made.double(), expected)
    out = torch.full_like(made, float("nan"))
    assert matmul(x, y, out=out) is out and torch.equal(out, made)
    empty = torch.empty(0, dtype=dtype)
    assert matmul(x, y, out=empty) is empty and torch.equal(empty, made)
    bias = trits(*made.shape[-1:], dtype=dtype, seed=2)
    assert torch.equal(matmul(x, y, bias=bias).double(), expected + bias.double())
    full = trits(*made.shape, dtype=dtype, seed=3)
    assert torch.equal(matmul(x, y, bias=full, out=out).double(), expected + full.double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_float32_results(dtype: torch.dtype) -> None:
    x, y = torch.randn(40, 300, dtype=dtype), torch.randn(300, 30, dtype=dtype)
    exact = x.double() @ y.double()
    for made in (
        matmul(x, y, out_dtype=torch.float32),
        matmul(x, y, out=torch.empty(40, 30)),
        matmul(x, y, out_dtype=torch.float32, bias=torch.zeros(30)),
    ):
        assert made.dtype == torch.float32 and (made.double() - exact).abs().max() < 1e-4


def views(x: torch.Tensor) -> list[torch.Tensor]:
    """The same values, stored in other ways."""
    spread = torch.empty(*x.shape, 2, dtype=x.dtype)[..., 0].copy_(x)
    return [x, spread, x.transpose(0, -1).contiguous().transpose(0, -1), torch.nn.Parameter(x, requires_grad=False)]


@pytest.mark.parametrize("index", range(4))
def test_views_and_non_contiguous_targets(index: int) -> None:
    x, y = trits(3, 5, 7), trits(7, 4, seed=1)
    expected = x @ y
    assert torch.equal(matmul(views(x)[index], y), expected)
    assert torch.equal(matmul(x, views(y)[index]), expected)
    out = torch.empty(3, 4, 5, dtype=torch.float64).transpose(1, 2)
    assert matmul(views(x)[index], y, out=out) is out and torch.equal(out, expected)
    assert torch.equal(linear(views(x)[index], y.t().contiguous()), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (6,), (5, 1), (1, 6), (5, 6)], ids=str)
def test_addmm_is_torch_s(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    c, a, b = trits(*shape, dtype=dtype), trits(5, 9, dtype=dtype, seed=1), trits(9, 6, dtype=dtype, seed=2)
    for beta, alpha in ((1, 1), (0.5, 2), (0, 1), (2, 0), (-1, torch.tensor(0.5))):
        expected = torch.addmm(c.double(), a.double(), b.double(), beta=beta, alpha=float(alpha))
        assert torch.equal(addmm(c, a, b, beta=beta, alpha=alpha).double(), expected)  # type: ignore[arg-type]
    out = torch.full((5, 6), float("nan"), dtype=dtype)
    assert addmm(c, a, b, out=out) is out and torch.equal(out.double(), torch.addmm(c.double(), a.double(), b.double()))
    assert torch.equal(addmm(torch.full_like(c, float("nan")), a, b, beta=0).double(), a.double() @ b.double())
    own = trits(5, 6, dtype=dtype, seed=4)
    expected = torch.addmm(own.double(), a.double(), b.double())
    assert addmm(own, a, b, out=own) is own and torch.equal(own.double(), expected)


@pytest.mark.parametrize("operator", [cutlass_sk.addmm, torch.ops.cutlass_sk.addmm_out])
def test_a_refused_addmm_writes_nothing(operator: Callable[..., Any]) -> None:
    """Not even the input that the product is added to."""
    memory = torch.arange(64.0).half()
    a, out, b, input = memory[:16].view(4, 4), memory[8:24].view(4, 4), torch.ones(4, 4).half(), torch.full((4, 4), 9.0).half()
    before = memory.clone()
    with pytest.raises(OperandError, match="c overlaps a"):
        if operator is cutlass_sk.addmm:
            operator(input, a, b, out=out)
        else:
            operator(input, a, b, out)
    assert torch.equal(memory, before)


@pytest.mark.parametrize(("input", "weight"), [((7,), (3, 7)), ((5, 7), (3, 7)), ((2, 5, 7), (3, 7)), ((2, 5, 7), (7,))], ids=str)
def test_linear_is_torch_s(input: tuple[int, ...], weight: tuple[int, ...]) -> None:
    x, w = trits(*input), trits(*weight, seed=1)
    assert torch.equal(linear(x, w), torch.nn.functional.linear(x, w))
    bias = trits(*weight[:-1], seed=2)
    assert torch.equal(linear(x, w, bias), torch.nn.functional.linear(x, w) + bias)


def test_the_module_is_torch_s_with_another_forward() -> None:
    theirs = torch.nn.Sequential(torch.nn.Linear(7, 5, dtype=torch.float64), torch.nn.Linear(5, 3, bias=False, dtype=torch.float64))
    ours = torch.nn.Sequential(
        cutlass_sk.nn.Linear(7, 5, dtype=torch.float64), cutlass_sk.nn.Linear(5, 3, bias=False, dtype=torch.float64)
    )
    assert ours.load_state_dict(theirs.state_dict()).missing_keys == []
    x = torch.randn(2, 4, 7, dtype=torch.float64)
    for model in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(model(x), theirs(x))
    ours(x).square().sum().backward()
    theirs(x).square().sum().backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
        assert mine.grad is not None and mine.grad.stride() == mine.stride()


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: matmul(trits(2, 3), trits(4, 5)),
        OperandError,
        r"a's k \(3\) must equal b's k \(4\): a is \(m=2, k=3\), b is \(k=4, n=5\)",
    ),
    (lambda: matmul(trits(3), trits(4)), OperandError, r"a's k \(3\) must equal b's k \(4\)"),
    (lambda: matmul(trits(2, 5, 3), trits(3, 3, 4)), OperandError, r"batches \(2,\) of a and \(3,\) of b cannot be broadcast"),
    (lambda: matmul(torch.tensor(1.0), trits(4)), OperandError, "need 1 or more dimensions; they have 0 and 1"),
    (lambda: matmul(trits(2, 3), trits(3, 4).half()), DtypeError, "a and b must have one dtype; they are torch.float64 and"),
    (
        lambda: matmul(trits(2, 3).float(), trits(3, 4).float()),
        DtypeError,
        r"no kernel multiplies torch\.float32 operands into torch\.float32; cast them, .* there are float16 -> float16, ",
    ),
    (lambda: matmul(trits(2, 3).int(), trits(3, 4).int()), DtypeError, r"no kernel multiplies torch\.int32 operands"),
    (
        lambda: matmul(trits(2, 3), trits(3, 4), out_dtype=torch.float16),
        DtypeError,
        r"no kernel multiplies torch\.float64 operands into torch\.float16",
    ),
    (
        lambda: matmul(trits(2, 3), trits(3, 4), bias=trits(5)),
        OperandError,
        r"bias of shape \(5,\) cannot be broadcast to the result",
    ),
    (lambda: matmul(trits(2, 3), trits(3, 4), bias=trits(1, 2, 4)), OperandError, r"bias of shape \(1, 2, 4\) cannot be broadcast"),
    (
        lambda: matmul(trits(2, 3), trits(3, 4), bias=trits(4).half()),
        DtypeError,
        "bias is torch.float16, the operands torch.float64",
    ),
    (lambda: matmul(trits(2, 3), trits(3, 4), out=trits(2, 5)), OperandError, r"out must be \(2, 4\) or have no elements; it is"),
    (
        lambda: matmul(trits(2, 3).half(), trits(3, 4).half(), out=trits(2, 4), out_dtype=torch.float16),
        DtypeError,
        "out is torch.float64, and out_dtype is torch.float16",
    ),
    (lambda: matmul(trits(2, 3), trits(3, 4), out=torch.empty(1, 4).double().expand(2, 4)), OperandError, "share memory"),
    (lambda: matmul([[1.0]], trits(1, 4)), OperandError, "a is a list; pass a torch.Tensor, or an array with __dlpack__"),
    (lambda: matmul(trits(2, 3), 3.0), OperandError, "b is a float; pass"),
    (lambda: matmul(trits(2, 3), trits(3, 4).to("meta")), OperandError, "b"),
    (lambda: addmm(trits(4), trits(2, 3), trits(3)), OperandError, r"mat2 must have 2 dimensions; its shape is \(3,\)"),
    (lambda: addmm(trits(5), trits(2, 3), trits(3, 4)), OperandError, "input of shape"),
    (lambda: addmm(trits(4), trits(2, 3), trits(3, 4), beta="1"), OperandError, "beta='1' must be a real number"),  # type: ignore[arg-type]
    (lambda: addmm(trits(4).half(), trits(2, 3), trits(3, 4)), DtypeError, "input is torch.float16"),
    (lambda: linear(trits(2, 3), trits(4, 5)), OperandError, r"input's k \(3\) must equal weight\.T's k \(5\)"),
    (lambda: linear(trits(2, 3), trits(1, 4, 3)), OperandError, r"weight must be \(n, k\) or \(k\)"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_refusals_are_runtime_errors_as_torch_s_are(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as refused:
        call()
    assert isinstance(refused.value, RuntimeError)


def test_out_that_requires_grad_is_refused_and_kept() -> None:
    a, b, out = trits(2, 3), trits(3, 4), torch.full((2, 4), 7.0, dtype=torch.float64)
    for x, y, z in ((a.clone().requires_grad_(), b, out), (a, b, out.clone().requires_grad_())):
        with pytest.raises(OperandError, match="out= records no gradient"):
            matmul(x, y, out=z)
        with pytest.raises(OperandError, match="out= records no gradient"):
            addmm(torch.zeros(4, dtype=torch.float64), x, y, out=z)
        with pytest.raises(OperandError, match="records no gradient"):
            torch.ops.cutlass_sk.mm_out(x, y, z)
        assert bool((z == 7).all())
        with torch.no_grad():
            assert torch.equal(matmul(x, y, out=z), a @ b)
            z.fill_(7)


WRITES: list[Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = [
    lambda a, b, c: matmul(a, b, out=c),
    lambda a, b, c: addmm(c, a, b, out=c),
    lambda a, b, c: Gemm("float64").run(a, b, c),
    lambda a, b, c: torch.ops.cutlass_sk.mm_out(a, b, c),
    lambda a, b, c: torch.ops.cutlass_sk.addmm_out(c, a, b, c),
]


@pytest.mark.parametrize("write", WRITES)
def test_writes_are_seen_by_autograd(write: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]) -> None:
    a, b, c = trits(4, 4), trits(4, 4, seed=1), trits(4, 4, seed=2)
    leaf = torch.ones(4, 4, dtype=torch.float64, requires_grad=True)
    saved = (leaf * c).sum()
    before = c._version
    write(a, b, c)
    assert c._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()


def test_inference_tensors_are_made_written_and_read() -> None:
    a, b = trits(4, 4), trits(4, 4, seed=1)
    with torch.inference_mode():
        c = torch.zeros(4, 4, dtype=torch.float64)
        assert torch.equal(matmul(a, b, out=c), a @ b) and torch.equal(linear(a, b), a @ b.t())
    assert torch.equal(matmul(c, b), c @ b)


def test_arrays_are_taken_without_a_copy() -> None:
    a, b = trits(6, 5), trits(5, 4, seed=1)
    x, y = a.numpy(), b.numpy()
    made = matmul(x, y)
    assert isinstance(made, torch.Tensor) and torch.equal(made, a @ b)
    out = np.full((6, 4), np.nan)
    written = matmul(x, b, out=out)
    assert np.array_equal(out, (a @ b).numpy()) and written.data_ptr() == out.ctypes.data
    assert torch.equal(linear(x, y.T, np.ones(4)), a @ b + 1)
    assert torch.equal(addmm(np.ones(4), x, y), a @ b + 1)
    with pytest.raises(OperandError, match=r"a is a numpy\.ndarray that torch cannot share"):
        matmul(np.array(["x"]), b)
    with pytest.raises(
        OperandError, match=r"a is a numpy\.ndarray with negative strides \(-40, 8\), which torch lacks; pass a copy"
    ):
        matmul(x[::-1], b)
    with pytest.raises(OperandError, match=r"torch\.from_dlpack\(a\)"):
        Gemm("float64").run(x, b)  # type: ignore[arg-type]
    for wrong in (None, [[1.0]]):
        with pytest.raises(OperandError, match=r"a is a \w+, not a torch\.Tensor; pass a tensor"):
            Gemm("float64").run(wrong, b)  # type: ignore[arg-type]


def test_read_only_arrays_are_read_and_not_written() -> None:
    fixed = np.frombuffer(bytes(8 * 9), np.float64).reshape(3, 3)
    assert torch.equal(matmul(fixed, np.eye(3)), torch.zeros(3, 3).double())
    for out in (fixed, OfDLPack(fixed)):
        with pytest.raises(OperandError, match=r"out is a read-only .*; pass a writable one"):
            matmul(np.eye(3), np.eye(3), out=out)
        with pytest.raises(OperandError, match="out is a read-only"):
            addmm(np.ones(3), np.eye(3), np.eye(3), out=out)
    assert not fixed.any()
    written = np.zeros((3, 3))
    matmul(np.eye(3), np.eye(3), out=OfDLPack(written))
    assert np.array_equal(written, np.eye(3))


def test_numpy_is_told_how_to_move() -> None:
    from cutlass_sk import gemm

    gemm._said.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        matmul(np.eye(3), np.eye(3))
        matmul(np.eye(3), np.eye(3))
    assert len(caught) == 1 and "from_dlpack(x).cuda()" in str(caught[0].message)


class Interface:
    """As Numba's arrays: nothing but ``__cuda_array_interface__``."""

    __cuda_array_interface__ = {"shape": (2, 2), "typestr": "<f8", "data": (0, False), "version": 3}  # noqa: RUF012


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU is needed.")
def test_a_cuda_array_without_a_gpu_is_refused() -> None:
    with pytest.raises(OperandError, match="Interface that torch cannot share"):
        matmul(Interface(), torch.eye(2))


@pytest.mark.parametrize("stream", [None, 1, 2, 0x5500])
def test_a_cuda_array_s_stream_is_waited_for(stream: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    waited: list[object] = []
    shared = torch.ones(2, 2, dtype=torch.float64)
    array = Interface()
    array.__cuda_array_interface__ = {**Interface.__cuda_array_interface__, "data": (shared.data_ptr(), False), "stream": stream}
    monkeypatch.setattr(torch, "as_tensor", lambda array, device: shared)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(wait_stream=waited.append))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "default")
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: handle)
    assert torch.equal(matmul(array, torch.eye(2, dtype=torch.float64)), shared)
    assert waited == {None: [], 1: ["default"]}.get(stream, [stream])
    array.__cuda_array_interface__["data"] = (64, False)
    with pytest.raises(OperandError, match="lies on a GPU that is not current"):
        matmul(array, shared)


def test_a_fork_before_and_after_use_multiplies() -> None:
    code = """
import os, warnings; warnings.simplefilter("ignore")
import torch, cutlass_sk
torch.set_num_threads(1)
gemm = cutlass_sk.Gemm("float64")
def right():
    a = torch.eye(20, dtype=torch.float64)
    return torch.equal(cutlass_sk.matmul(a, a), a) and torch.equal(gemm.run(a, a), a)
for _ in range(2):
    child = os.fork()
    if child == 0:
        os._exit(0 if right() and not torch.cuda.is_initialized() else 1)
    assert os.waitpid(child, 0)[1] == 0 and right()
"""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_refused_call_leaves_an_empty_out_empty() -> None:
    for a, b, out, bias in (
        (trits(2, 3), trits(3, 4), torch.empty(0), None),
        (trits(2, 3).float(), trits(3, 4).float(), torch.empty(0), None),
        (trits(2, 3), trits(3, 4), torch.empty(0).double(), trits(5)),
        (trits(2, 3), trits(3, 4).half(), torch.empty(0).double(), None),
    ):
        with pytest.raises((DtypeError, OperandError)):
            matmul(a, b, out=out, bias=bias)
        assert out.shape == (0,)


class Known:
    """A table of calls that knows every one, and answers zeros."""

    def __init__(self) -> None:
        self.asked = 0

    def repeat(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float) -> torch.Tensor | None:
        self.asked += 1
        if type(a) is not torch.Tensor or a.requires_grad or b.requires_grad:
            return None
        return a.new_zeros(a.shape[0], b.shape[1]) if c is None else c.zero_()


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Known:
    known = Known()
    monkeypatch.setattr(gemm_of(torch.float64, None), "_calls", known)
    return known


def test_a_call_like_an_earlier_one_takes_no_way_round(table: Known) -> None:
    a, b, bias = trits(4, 5) + 2, trits(5, 3) + 2, trits(3)
    with torch.no_grad():
        made = [
            *(matmul(a, b), matmul(a, b, out=torch.ones(4, 3).double()), matmul(a, b, out_dtype=torch.float64)),
            *(linear(a, b.t()), linear(a.view(2, 2, 5), torch.nn.Parameter(b.t())), linear(a, b.t(), bias)),
        ]
    assert not any(bool(x.any()) for x in made) and table.asked == len(made) and made[4].shape == (2, 2, 3)


def test_whatever_is_in_force_is_never_passed_by(table: Known) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Dispatch(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Dispatch.seen += func is torch.ops.cutlass_sk.mm.default
            return func(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Function.seen += func is torch.ops.cutlass_sk.mm
            return func(*args, **(kwargs or {}))

    a, b = trits(4, 5) + 2, trits(5, 3) + 2
    with Dispatch():
        matmul(a, b)
    with Function():
        matmul(a, b)
        linear(a, b.t())
    assert (Dispatch.seen, Function.seen) == (1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        traced = torch.jit.trace(matmul, (a, b))
    assert "cutlass_sk::mm" in str(traced.graph)
    assert matmul(a.requires_grad_(), b).requires_grad and linear(a, b.t()).requires_grad
