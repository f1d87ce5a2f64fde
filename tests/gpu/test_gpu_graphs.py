"""CUDA graphs and streams of PyTorch's face: what is captured stays right, and what is launched follows the current stream."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from problems import build_planned

import cutlass_sk
from cutlass_sk import Gemm, linear, matmul, override
from cutlass_sk.errors import OperandError, ToolchainError
from cutlass_sk.workspace import PER_THREAD_STREAM

M, N, K = 520, 392, 4104
"""Few tiles and a long k: the plan shares tiles through a workspace."""


@pytest.fixture(scope="module", autouse=True)
def kernels_of_this_file(kernels: None) -> None:
    build_planned([torch.float16], [(M, N, K), (N, K, M), (M, K, N), (200, 72, 333), (64, 64, 64)])


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x (m, k), weight (n, k), bias (n)."""
    x, weight, bias = (torch.randn(*shape, device="cuda").half() for shape in ((M, K), (N, K), (N,)))
    return x, weight, bias


class Captured:
    """``linear``, ``matmul``, and a ``run`` of a Gemm that is gone afterwards, in one graph; ``expected`` ran eagerly before."""

    def __init__(self, mode: str = "global") -> None:
        self.x, self.weight, self.bias = operands()
        self.c = torch.empty(M, N, device="cuda", dtype=torch.float16)
        self.expected = [made.clone() for made in self.calls(Gemm("float16"))]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode=mode):
            self.made = self.calls(Gemm("float16"))

    def calls(self, gemm: Gemm) -> list[torch.Tensor]:
        b = self.weight.t()
        with torch.no_grad():
            return [linear(self.x, self.weight, self.bias), matmul(self.x, b), gemm.run(self.x, b, self.c)]

    def replay(self) -> None:
        for made in self.made:
            made.fill_(float("nan"))
        self.graph.replay()

    def right(self) -> bool:
        return all(torch.equal(made, expected) for made, expected in zip(self.made, self.expected, strict=True))


def test_a_graph_survives_its_gemm_the_cache_other_graphs_and_threads() -> None:
    kept = Captured()
    gc.collect()
    others = [Captured() for _ in range(3)]
    for other in others:
        other.replay()
    others.clear()
    gc.collect()
    for _ in range(3):
        torch.cuda.empty_cache()
        filler = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(16)]  # takes what was given back
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: kept.calls(Gemm("float16")), range(8)))
        torch.cuda.synchronize()
        kept.replay()
        assert kept.right()
        del filler


def test_a_thread_captures_while_others_launch() -> None:
    """Also where torch.compile was used before, which knows its own threads alone."""
    torch.compile(lambda x: x + 1, mode="reduce-overhead")(torch.ones(4, device="cuda"))
    x, weight, bias = operands()
    with torch.no_grad(), ThreadPoolExecutor(1) as pool:
        expected = linear(x, weight, bias)
        torch.cuda.synchronize()
        capture = pool.submit(Captured, "thread_local")
        made = []
        while not capture.done():
            made = [*made[-20:], linear(x, weight, bias)]
        graph = capture.result()
    torch.cuda.synchronize()
    assert all(torch.equal(one, expected) for one in made)
    graph.replay()
    assert graph.right()
    torch._dynamo.reset()


def test_two_graphs_replay_at_once() -> None:
    graphs = [(Captured(), torch.cuda.Stream()) for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(50):
        for graph, stream in graphs:
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        assert all(graph.right() for graph, _ in graphs)


FIRST = """
import torch
from cutlass_sk import linear, matmul
torch.manual_seed(0)
x, weight, bias = (torch.randn(*shape, device="cuda").half() for shape in ((200, 333), (72, 333), (72,)))
graph = torch.cuda.CUDAGraph()
with torch.no_grad():
    with torch.cuda.graph(graph):
        made = linear(x, weight, bias), matmul(x, weight.t())
    for one in made:
        one.fill_(float("nan"))
    graph.replay()
    for one, expected in zip(made, (linear(x, weight, bias), matmul(x, weight.t()))):
        assert torch.equal(one, expected)
"""


def test_the_first_functions_of_a_process_may_be_captured() -> None:
    """Operands that are packed, too: kernels are loaded, or built, within the capture."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_capture_in_which_a_call_fails_is_left_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _ = operands()

    def missing(*_: object) -> None:
        raise ToolchainError("nvcc is not found; `cutlass-sk doctor` says what is missing")

    with monkeypatch.context() as patch:
        patch.setattr("cutlass_sk.gemm.load_kernel", missing)
        with pytest.raises(ToolchainError, match="cutlass-sk doctor"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            Gemm("float16").run(x, weight.t())
    with pytest.raises(OperandError, match="must equal b's k"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        matmul(x, weight)
    assert not torch.cuda.is_current_stream_capturing()
    again = Captured()
    again.replay()
    assert again.right()


def test_training_is_graphed_with_the_bits_of_eager() -> None:
    module = cutlass_sk.nn.Linear(K, N, device="cuda", dtype=torch.float16)
    eager, x, seed = copy.deepcopy(module), torch.randn(M, K, device="cuda").half(), torch.randn(M, N, device="cuda").half()
    graphed = torch.cuda.make_graphed_callables(module, (x.clone().requires_grad_(),))
    for _ in range(3):
        results = []
        for called, parameters in ((graphed, module.parameters()), (eager, eager.parameters())):
            leaf = x.clone().requires_grad_()
            made = called(leaf)
            made.backward(seed)
            results.append([made.detach().clone(), leaf.grad, *(parameter.grad.clone() for parameter in parameters)])
            called.zero_grad()
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))
        x, seed = torch.randn_like(x), torch.randn_like(seed)


def test_a_graph_captured_under_override_keeps_our_kernels() -> None:
    x, weight, bias = operands()
    with torch.no_grad():
        theirs = torch.nn.functional.linear(x, weight, bias)
        graph = torch.cuda.CUDAGraph()
        with override() as report:
            expected = torch.nn.functional.linear(x, weight, bias)
            with torch.cuda.graph(graph):
                made = torch.nn.functional.linear(x, weight, bias)
        routed = report.routed
        made.fill_(float("nan"))
        graph.replay()
    assert routed == 2 and torch.equal(made, expected) and torch.equal(made, linear(x, weight, bias))
    assert torch.equal(torch.nn.functional.linear(x, weight, bias), theirs) and report.routed == routed


@pytest.fixture(params=["torch", "external", "per thread"])
def stream(request: pytest.FixtureRequest) -> Iterator[torch.cuda.Stream]:
    from cuda.bindings import runtime

    if request.param == "torch":
        yield torch.cuda.Stream()
    elif request.param == "per thread":
        yield torch.cuda.ExternalStream(PER_THREAD_STREAM)
    else:
        error, handle = runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking)
        assert int(error) == 0
        yield torch.cuda.ExternalStream(int(handle))
        torch.cuda.synchronize()
        runtime.cudaStreamDestroy(handle)


def test_the_current_stream_is_followed(stream: torch.cuda.Stream) -> None:
    """Operands are there only once the stream has slept: a launch on another would not find them."""
    x, weight, bias = operands()
    gemm, late, c = Gemm("float16"), torch.zeros_like(x), torch.empty(M, N, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        expected = linear(x, weight, bias), matmul(x, weight.t())
        torch.cuda.synchronize()
        for _ in range(3):
            with torch.cuda.stream(stream):
                late.zero_()
                torch.cuda._sleep(10_000_000)
                late.copy_(x)
                made = linear(late, weight, bias), matmul(late, weight.t()), gemm.run(late, weight.t(), c)
            stream.synchronize()
            assert torch.equal(made[0], expected[0]) and torch.equal(made[1], expected[1]) and torch.equal(c, expected[1])


def test_a_stream_s_memory_is_not_reused_too_soon() -> None:
    """The result of one stream is dropped while its kernel waits; another stream must not get its memory."""
    x, weight, _ = operands()
    with torch.no_grad():
        expected, side = matmul(x, weight.t()), torch.cuda.Stream()
        torch.cuda.synchronize()
        for _ in range(10):
            with torch.cuda.stream(side):
                torch.cuda._sleep(2_000_000)
                matmul(x, weight.t()).fill_(float("nan"))
            kept = [matmul(x, weight.t()) for _ in range(4)]
            torch.cuda.synchronize()
            assert all(torch.equal(made, expected) for made in kept)
