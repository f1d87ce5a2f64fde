"""Streams, threads, graphs, and launches that overlap their neighbours: the same bits as one launch after the other."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from problems import CHOSEN, KERNELS, gemm_of, operands, poisoned

from cutlass_sk import Gemm, KernelSpec

SHAPES = [(520, 392, 4104), (136, 72, 9000), (1096, 584, 1240), (2600, 2600, 64), (64, 4096, 512)]
MODES = ({}, {"decomposition": "stream_k"}, {"splits": 6}, {"decomposition": "stream_k", "sms": 40})


def jobs(spec: KernelSpec) -> list[tuple[Gemm, torch.Tensor, torch.Tensor, object, torch.Tensor]]:
    gemm = gemm_of(spec)
    listed = []
    for m, n, k in SHAPES:
        a, b = operands(spec, m, n, k)
        for mode in MODES:
            plan = gemm.plan(m, n, k, **mode)
            listed.append((gemm, a, b, plan, gemm.run(a, b, poisoned(spec, m, n), plan=plan)))
    torch.cuda.synchronize()
    return listed


@pytest.mark.parametrize("spec", CHOSEN, ids=str)
def test_two_streams_in_flight(spec: KernelSpec) -> None:
    work, streams = jobs(spec), [torch.cuda.Stream() for _ in range(2)]
    results = []
    for turn in range(40):
        for index, (gemm, a, b, plan, expected) in enumerate(work):
            stream = streams[(turn + index) % 2]
            with torch.cuda.stream(stream):
                c = torch.full_like(expected, float("nan"))
            results.append((gemm.run(a, b, c, plan=plan, stream=stream), expected))
    torch.cuda.synchronize()
    assert all(torch.equal(c, expected) for c, expected in results)


@pytest.mark.parametrize("spec", CHOSEN, ids=str)
def test_four_threads_each_on_a_stream_of_its_own(spec: KernelSpec) -> None:
    work = jobs(spec)

    def worker(number: int) -> int:
        wrong = torch.zeros((), device="cuda", dtype=torch.int64)
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(20):
                for gemm, a, b, plan, expected in work[number % 2 :: 1 + turn % 2]:
                    wrong += (gemm.run(a, b, torch.full_like(expected, float("nan")), plan=plan) != expected).sum()
            torch.cuda.current_stream().synchronize()
        return int(wrong)

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(worker, range(4))) == [0, 0, 0, 0]


@pytest.mark.parametrize("spec", CHOSEN, ids=str)
def test_a_captured_graph_replays_100_times(spec: KernelSpec) -> None:
    work = jobs(spec)
    outputs = [torch.empty_like(expected) for *_, expected in work]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for (gemm, a, b, plan, _), c in zip(work, outputs, strict=True):
            gemm.run(a, b, c, plan=plan)
    for _ in range(100):
        for c in outputs:
            c.fill_(float("nan"))
        graph.replay()
        wrong = sum((c != expected).sum() for c, (*_, expected) in zip(outputs, work, strict=True))
        assert int(wrong) == 0


def test_the_first_call_of_a_process_may_be_captured() -> None:
    """Nothing is loaded yet: the kernel, its shared memory limit and the flags all come within the capture."""
    program = """
import torch
from cutlass_sk import Gemm
a, b = torch.randn(256, 4096, device="cuda").half(), torch.randn(4096, 256, device="cuda").half()
gemm, c = Gemm("float16", kernels=1), torch.zeros(256, 256, device="cuda").half()
plan = gemm.plan(256, 256, 4096, splits=8)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    gemm.run(a, b, c, plan=plan)
for _ in range(3):
    c.fill_(float("nan"))
    graph.replay()
    assert torch.equal(c, gemm.run(a, b, plan=plan))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]


def test_two_graphs_and_eager_launches_at_once() -> None:
    work = jobs(KERNELS[0])[:8]
    graphs = []
    for _ in range(2):
        outputs = [torch.empty_like(expected) for *_, expected in work]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for (gemm, a, b, plan, _), c in zip(work, outputs, strict=True):
                gemm.run(a, b, c, plan=plan)
        graphs.append((graph, outputs, torch.cuda.Stream()))
    for _ in range(50):
        for graph, outputs, stream in graphs:
            with torch.cuda.stream(stream):
                for c in outputs:
                    c.fill_(float("nan"))
                graph.replay()
        eager = [gemm.run(a, b, torch.full_like(expected, float("nan")), plan=plan) for gemm, a, b, plan, expected in work]
        torch.cuda.synchronize()
        for results in (eager, *(outputs for _, outputs, _ in graphs)):
            assert all(torch.equal(c, expected) for c, (*_, expected) in zip(results, work, strict=True))


@pytest.mark.parametrize("spec", CHOSEN, ids=str)
@pytest.mark.parametrize("programmatic", ["1", "0"])
def test_neighbours_that_read_and_overwrite_operands(spec: KernelSpec, programmatic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches may start before the kernel in front of them ends: inputs written just before, overwritten just after."""
    monkeypatch.setenv("CUTLASS_SK_PDL", programmatic)
    gemm, (m, n, k) = gemm_of(spec), (392, 264, 2056)
    sources = [operands(spec, m, n, k, exact=True) for _ in range(8)]
    expected = [(a.double() @ b.double()).to(gemm.out_dtype) for a, b in sources]
    plans = [gemm.plan(m, n, k, **mode) for mode in MODES]
    a, b = (torch.empty_like(x) for x in sources[0])
    c = poisoned(spec, m, n)
    wrong = torch.zeros((), device="cuda", dtype=torch.int64)
    for turn in range(400):
        (next_a, next_b), plan = sources[turn % 8], plans[turn % len(plans)]
        a.copy_(next_a)
        b.copy_(next_b)
        c.fill_(float("nan"))
        gemm.run(a, b, c, plan=plan)
        a.fill_(float("nan"))
        wrong += (c != expected[turn % 8]).sum()
        b.fill_(float("nan"))
    assert int(wrong) == 0


@pytest.mark.parametrize("spec", CHOSEN, ids=str)
def test_a_chain_of_dependent_products(spec: KernelSpec) -> None:
    """Each product reads what the one before it wrote, with nothing between them on the stream."""
    if spec.dtype != spec.out_dtype:
        pytest.skip("a chain needs one dtype")
    size = 264
    gemm = gemm_of(spec)
    identity = torch.eye(size, device="cuda", dtype=gemm.dtype)
    # A permutation matrix: products stay exact, and every launch moves every row.
    shift = identity.roll(1, 0).contiguous()
    x = torch.randint(-1, 2, (size, size), device="cuda").to(gemm.dtype)
    plans = [gemm.plan(size, size, size, **mode) for mode in MODES]
    buffers = [x.clone(), torch.empty_like(x), torch.empty_like(x)]
    for turn in range(600):
        gemm.run(shift, buffers[turn % 3], buffers[(turn + 1) % 3], plan=plans[turn % len(plans)])
    assert torch.equal(buffers[600 % 3], x.roll(600 % size, 0))


@pytest.mark.timeout(240, method="thread", func_only=True)
def test_100000_launches_of_changing_shapes_on_two_streams() -> None:
    """The planner's own plans, of all kernels of the set and both kinds of fix-up; each tenth output is looked at."""
    gemm, streams = Gemm("float16"), [torch.cuda.Stream() for _ in range(2)]
    shapes = [*SHAPES, (128, 128, 8192), (136, 448, 6576), (256, 256, 256), (1024, 1032, 520), (2304, 264, 1288), (200, 3000, 768)]
    inputs = [operands(KERNELS[0].with_layouts("t", "n"), *shape, exact=True) for shape in shapes]
    expected = [(a.double() @ b.double()).half() for a, b in inputs]
    assert {gemm.plan(*shape).fixup for shape in shapes} >= {"none", "tree"}
    outputs = [[torch.empty_like(x) for x in expected] for _ in streams]
    wrong = [torch.zeros((), device="cuda", dtype=torch.int64) for _ in streams]
    torch.cuda.synchronize()
    for turn in range(50_000):
        index = (turn * 7) % len(shapes)
        a, b = inputs[index]
        for stream, buffers, count in zip(streams, outputs, wrong, strict=True):
            with torch.cuda.stream(stream):
                gemm.run(a, b, buffers[index])
                if turn % 10 == 0:
                    count += (buffers[index] != expected[index]).sum()
                    buffers[index].fill_(float("nan"))
    torch.cuda.synchronize()
    assert [int(count) for count in wrong] == [0, 0]
