"""PyTorch's face on a GPU: the functions, their gradients, torch.compile, CUDA graphs, arrays, override and processes."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median
from typing import Any

import pytest
import torch
from torch.library import opcheck

import cutlass_sk
from cutlass_sk import Gemm, addmm, linear, matmul, override, trace

OPS = torch.ops.cutlass_sk
DTYPES = (torch.float16, torch.bfloat16, torch.float64)


def trits(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Elements in {-1, 0, 1}: every sum is exact, in any order."""
    return torch.randint(-1, 2, shape, device="cuda", dtype=torch.int8).to(dtype)


def normal(*shape: int, dtype: torch.dtype = torch.float16, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype).requires_grad_(grad)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_are_exact_first_and_repeated(dtype: torch.dtype) -> None:
    a, b, bias = trits(3, 40, 136, dtype=dtype), trits(136, 72, dtype=dtype), trits(72, dtype=dtype)
    batch, expected = trits(3, 136, 72, dtype=dtype), a.double() @ b.double()
    for _ in range(3):
        assert torch.equal(matmul(a, b).double(), expected)
        assert torch.equal(matmul(a[0], b).double(), expected[0])
        assert torch.equal(matmul(a[0, 0], b[:, 0]).double(), expected[0, 0, 0])
        assert torch.equal(matmul(a, batch).double(), a.double() @ batch.double())
        assert torch.equal(matmul(a, b, bias=bias).double(), expected + bias.double())
        out = torch.full_like(expected, float("nan"), dtype=dtype)
        assert matmul(a, b, out=out) is out and torch.equal(out.double(), expected)
        assert torch.equal(addmm(bias, a[0], b, beta=2, alpha=-1).double(), 2 * bias.double() - expected[0])
        for weight in (b.t().contiguous(), torch.nn.Parameter(b.t().contiguous())):
            with torch.no_grad():
                assert torch.equal(linear(a, weight).double(), expected)
                assert torch.equal(linear(a, weight, bias).double(), expected + bias.double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_opcheck(dtype: torch.dtype) -> None:
    a, b, c = normal(32, 64, dtype=dtype, grad=True), normal(64, 16, dtype=dtype, grad=True), normal(16, dtype=dtype, grad=True)
    plain = a.detach(), b.detach()
    for operator, arguments in (
        (OPS.mm.default, (a, b)),
        (OPS.addmm.default, (c, a, b, 0.5, 2.0)),
        (OPS.bmm.default, (normal(2, 32, 64, dtype=dtype, grad=True), normal(2, 64, 16, dtype=dtype, grad=True))),
        (OPS.mm_out.default, (*plain, torch.empty(32, 16, device="cuda", dtype=dtype))),
        (OPS.addmm_out.default, (c.detach(), *plain, torch.zeros(32, 16, device="cuda", dtype=dtype))),
    ):
        assert set(opcheck(operator, arguments).values()) == {"SUCCESS"}


def test_gradcheck_and_double_backward() -> None:
    a, b, c = (normal(*shape, dtype=torch.float64, grad=True) for shape in ((5, 7), (7, 3), (3,)))
    for function, inputs in ((matmul, (a, b)), (lambda x, y: matmul(x, y.t()), (a, normal(3, 7, dtype=torch.float64, grad=True)))):
        assert torch.autograd.gradcheck(function, inputs) and torch.autograd.gradgradcheck(function, inputs)
    assert torch.autograd.gradcheck(addmm, (c, a, b)) and torch.autograd.gradgradcheck(addmm, (c, a, b))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_linear_learns_as_torch_s_under_autocast(dtype: torch.dtype) -> None:
    theirs = torch.nn.Linear(256, 128, device="cuda")
    ours = cutlass_sk.nn.Linear(256, 128, device="cuda")
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 32, 256, device="cuda")
    for model in (theirs, ours):
        with torch.autocast("cuda", dtype=dtype):
            made = model(x)
        assert made.dtype == dtype
        made.float().square().mean().backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None
        assert (mine.grad - other.grad).abs().max() <= 0.02 * other.grad.abs().max()


SHARED = (136, 72, 9000)
"""Few tiles and a long k: the plan shares tiles, and a launch needs a workspace."""


def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(matmul(x, weight.t(), bias=bias)) + linear(x, weight)


@pytest.mark.timeout(300, method="thread", func_only=True)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("grad", [False, True])
def test_compiled_same_bits_for_any_m(mode: str, grad: bool) -> None:
    torch._dynamo.reset()
    _, n, k = SHARED
    weight, bias = normal(n, k, grad=grad), normal(n, grad=grad)
    compiled = torch.compile(function, fullgraph=True, mode=mode, dynamic=mode == "default")
    assert Gemm("float16").plan(*SHARED).workspace_bytes > 0
    for m in (136, 136, 136, 136, 64, 64, 64, 64):
        x = normal(m, k)
        torch.compiler.cudagraph_mark_step_begin()
        made = compiled(x, weight, bias)
        assert torch.equal(made, function(x, weight, bias))
        if grad:
            made.sum().backward()
            mine, weight.grad, bias.grad = weight.grad, None, None
            function(x, weight, bias).sum().backward()
            assert mine is not None and torch.equal(mine, weight.grad)
            weight.grad = bias.grad = None
    torch._dynamo.reset()


def test_functions_are_captured() -> None:
    m, n, k = SHARED
    a, b, bias = trits(m, k), trits(n, k), trits(n)
    with torch.no_grad():
        expected = linear(a, b, bias)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = linear(a, b, bias)
        for _ in range(3):
            made.fill_(float("nan"))
            graph.replay()
            assert torch.equal(made, expected)


class Interface:
    """As Numba's arrays: nothing but ``__cuda_array_interface__``."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "stream": 1}


class Packed:
    """As CuPy's and JAX's arrays: DLPack."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._tensor.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


@pytest.mark.parametrize("kind", [Interface, Packed])
def test_arrays_are_taken_without_a_copy(kind: Any) -> None:
    a, b, out = trits(40, 136), trits(136, 72), torch.zeros(40, 72, device="cuda", dtype=torch.float16)
    before = torch.cuda.memory_allocated()
    written = matmul(kind(a), kind(b), out=kind(out))
    assert written.data_ptr() == out.data_ptr() and torch.equal(out, a @ b) and torch.cuda.memory_allocated() <= before + a.nbytes
    assert torch.equal(matmul(kind(a), b), a @ b)


class Block(torch.nn.Module):
    """One transformer block, by hand."""

    def __init__(self, width: int, heads: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = heads
        make = {"device": "cuda", "dtype": dtype}
        self.qkv, self.out = torch.nn.Linear(width, 3 * width, **make), torch.nn.Linear(width, width, **make)
        self.norm = torch.nn.LayerNorm(width, **make)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width, **make), torch.nn.GELU(), torch.nn.Linear(4 * width, width, **make)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(made.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


@pytest.mark.timeout(300, method="thread", func_only=True)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_block_is_routed_forward_and_backward(dtype: torch.dtype, compiled: bool) -> None:
    torch._dynamo.reset()
    model: Any = Block(256, 4, dtype)
    exact = Block(256, 4, torch.float64)
    exact.load_state_dict(model.state_dict())
    x = normal(2, 64, 256, dtype=dtype)
    expected = exact(x.double())
    expected.square().mean().backward()
    gradients = [parameter.grad for parameter in exact.parameters()]
    called = torch.compile(model) if compiled else model
    theirs = called(x)
    with override() as report:
        made = called(x)
        assert report.routed >= 4, report
        made.square().mean().backward()
        torch.cuda.synchronize()
    assert report.not_routed == 0 and report.routed >= 11, report
    assert (made - expected).abs().max() <= 2 * (theirs - expected).abs().max() + 1e-3
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is not None and gradient is not None
        assert (parameter.grad - gradient).abs().max() <= 0.05 * gradient.abs().max() + 1e-3
    assert torch.equal(torch.mm(x[0], x[0].t()), x[0] @ x[0].t())


def test_generated_tokens_are_the_same_under_override() -> None:
    transformers = pytest.importorskip("transformers")
    configuration = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=128, n_positions=64, vocab_size=200)
    configuration.bos_token_id = configuration.eos_token_id = 0
    for dtype in (torch.float16, torch.bfloat16):
        model = transformers.GPT2LMHeadModel(configuration).to("cuda", dtype).eval()
        tokens = torch.randint(1, 200, (2, 16), device="cuda")
        options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
        with torch.no_grad():
            expected, logits = model.generate(tokens, **options), model(tokens).logits
            with override() as report:
                made, ours = model.generate(tokens, **options), model(tokens).logits
        assert report.routed > 0 and (ours - logits).abs().max() < 0.05
        assert torch.equal(made, expected)


def test_a_program_on_the_gpu_is_traced() -> None:
    model = Block(256, 4, torch.float16)
    made = trace(lambda: model(normal(2, 64, 256)).sum().backward(), device=None)
    assert made.calls == 4 + 8 - 1 or made.calls == 4 + 8
    assert all(row.plan is not None and row.product.device == "cuda" for row in made.rows) and made.device != "h200"
    timed = trace(lambda: (normal(512, 256) @ normal(256, 128), normal(2, 64, 64) @ normal(2, 64, 64)), measure=True)
    assert all((row.measured_us or 0) > 0 and (row.cublas_us or 0) > 0 for row in timed.rows), timed


def test_writes_are_seen_by_autograd_first_and_repeated() -> None:
    a, b, c = trits(64, 64), trits(64, 64), trits(64, 64)
    for _ in range(3):
        leaf = torch.ones(64, 64, device="cuda", dtype=torch.float16, requires_grad=True)
        saved = (leaf * c).sum()
        matmul(a, b, out=c)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.backward()


FORK = """
import os, sys, torch, cutlass_sk
gemm = cutlass_sk.Gemm("float16")
def right():
    a = torch.eye(64, device="cuda", dtype=torch.float16)
    return torch.equal(cutlass_sk.matmul(a, a), a) and torch.equal(gemm.run(a, a), a)
def forked(test):
    child = os.fork()
    if child == 0:
        try:
            os._exit(test())
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert not torch.cuda.is_initialized()
assert forked(lambda: 0 if right() else 1) == 0
assert right()
a = torch.eye(64, device="cuda", dtype=torch.float16); c = torch.empty_like(a); gemm.run(a, a, c)
def refused():
    try:
        gemm.run(a, a, c)
    except RuntimeError as error:
        return 0 if "fork" in str(error) else 2
    return 1
assert forked(refused) == 0
assert right()
"""


def test_fork_before_use_works_and_after_use_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_call_costs_no_more_than_torch_s() -> None:
    """CPU time of a loop, in turns; the figures are in ensemble/call_cost.py's record."""
    a, b = normal(256, 256), normal(256, 256)
    gemm = Gemm("float16")
    calls = {"torch": lambda: torch.matmul(a, b), "matmul": lambda: matmul(a, b), "run": lambda: gemm.run(a, b)}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(60):
        for name, call in calls.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(200):
                call()
            times[name].append((time.perf_counter() - begin) / 200e-6)
    medians = {name: median(values[5:]) for name, values in times.items()}
    assert medians["run"] < medians["torch"] and medians["matmul"] <= medians["torch"], medians
