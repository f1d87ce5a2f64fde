"""PyTorch's face on a GPU: the functions, their gradients, torch.compile, arrays, processes, and what calls cost."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from foreign_arrays import OfDLPack
from problems import build_planned
from torch.library import opcheck

import cutlass_sk
from cutlass_sk import Gemm, addmm, linear, matmul
from cutlass_sk.device import real
from cutlass_sk.ensemble.torch_load import Scale, calls, load

OPS = torch.ops.cutlass_sk
DTYPES = (torch.float16, torch.bfloat16, torch.float64)
SHARED = (520, 392, 4104)
"""Few tiles and a long k: the plan shares tiles through a workspace."""


@pytest.fixture(scope="module", autouse=True)
def kernels_of_this_file(kernels: None) -> None:
    build_planned(DTYPES, [(120, 72, 136), (40, 72, 136), (1, 1, 136), (32, 16, 64), (64, 64, 64), (5, 3, 7), (7, 3, 5), (5, 7, 3)])
    m, n, k = SHARED
    build_planned([torch.float16], [SHARED, (264, n, k), (m, k, n), (n, k, m), (256, 256, 256), (128, 128, 256), *Scale().shapes])


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
    assert Gemm("float16")._plan(*SHARED, real(0), ("t", "n")).workspace_bytes > 0
    torch._dynamo.utils.counters.clear()
    for m in (520, 520, 520, 520, 264, 264, 264, 264):
        x, seed = normal(m, k), normal(m, n)
        torch.compiler.cudagraph_mark_step_begin()
        made = compiled(x, weight, bias)
        assert torch.equal(made, function(x, weight, bias))
        if grad:
            made.backward(seed)
            mine, weight.grad = weight.grad, None
            function(x, weight, bias).backward(seed)
            assert mine is not None and torch.equal(mine, weight.grad)
            weight.grad = bias.grad = None
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"] and counters["inductor"]["cudagraph_skips"] == 0, counters
    torch._dynamo.reset()


class Interface:
    """As Numba's arrays: nothing but ``__cuda_array_interface__``."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "stream": 1}


@pytest.mark.parametrize("kind", [Interface, OfDLPack])
def test_arrays_are_taken_without_a_copy(kind: Any) -> None:
    a, b, out = trits(40, 136), trits(136, 72), torch.zeros(40, 72, device="cuda", dtype=torch.float16)
    expected = matmul(a, b)
    assert torch.equal(expected.double(), a.double() @ b.double())
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    written = matmul(kind(a), kind(b), out=kind(out))
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before  # not one allocation
    assert written.data_ptr() == out.data_ptr() and torch.equal(out, expected)
    assert torch.equal(matmul(kind(a), b), expected)


def test_an_array_s_stream_is_waited_for() -> None:
    """The array is written on the default stream, and read on another."""
    a, b = trits(40, 136), trits(136, 72)
    expected, late, other = matmul(a, b), torch.zeros_like(a), torch.cuda.Stream()
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)
    late.copy_(a)
    with torch.cuda.stream(other):
        made = matmul(Interface(late), b)
    torch.cuda.synchronize()
    assert torch.equal(made, expected)


def test_numpy_runs_on_the_cpu_and_is_told_how_to_move() -> None:
    from cutlass_sk import gemm

    a = trits(8, 16).cpu().numpy()
    gemm._said.clear()
    with pytest.warns(UserWarning, match=r"from_dlpack\(x\)\.cuda\(\)"):
        made = matmul(a, a.T)
    moved = torch.from_dlpack(a).cuda()
    assert made.device.type == "cpu" and torch.equal(made, matmul(moved, moved.t()).cpu())


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


def test_what_was_used_is_pickled_and_copied() -> None:
    gemm, module, x = Gemm("float16"), cutlass_sk.nn.Linear(136, 72, device="cuda", dtype=torch.float16), normal(40, 136)
    b = normal(136, 72)
    with torch.no_grad():
        for _ in range(2):
            product, layer = gemm.run(x, b), module(x)
        for other in (pickle.loads(pickle.dumps((gemm, module))), copy.deepcopy((gemm, module))):
            for _ in range(2):
                assert torch.equal(other[0].run(x, b), product) and torch.equal(other[1](x), layer)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")
def test_functions_on_a_gpu_that_is_not_current() -> None:
    x, weight, bias = (x.to("cuda:1") for x in (trits(520, 4104), trits(392, 4104), trits(392)))
    expected = (x.double() @ weight.double().t() + bias.double()).half()
    for _ in range(3):
        made = linear(x, weight, bias)
        assert torch.equal(made, expected) and made.device.index == 1 and torch.cuda.current_device() == 0
        assert torch.equal(matmul(x, weight.t()), (x.double() @ weight.double().t()).half())
    leaf = weight.clone().requires_grad_()
    matmul(x, leaf.t()).sum().backward()
    assert leaf.grad is not None and leaf.grad.device.index == 1


def test_a_call_costs_no_more_than_torch_s() -> None:
    """CPU time of loops, in turns; the figures are in results/h200/torch.json."""
    times = calls(Scale(batches=60))
    assert times["run_cpu_us"] < times["torch_matmul_cpu_us"] and times["matmul_cpu_us"] <= times["torch_matmul_cpu_us"], times


def test_threads_on_streams_disturb_nothing_and_leave_nothing() -> None:
    """A tenth of what results/h200/torch.json records."""
    found = load(Scale(launches=100, calls=10_000))
    assert found["launches"] == 3200 and found["mismatches"] == 0
    assert found["allocated_growth_bytes"] == 0 and found["resident_growth_bytes"] < 16 << 20, found
