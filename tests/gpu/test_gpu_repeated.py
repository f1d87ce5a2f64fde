"""Calls that were made before: the native path gives the slow path's bits, on every stream, in every thread, under a graph."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from problems import KERNELS, gemm_of, operands, poisoned

from cutlass_sk import Gemm, KernelSpec, extension, workspace
from cutlass_sk.call import NativeCalls, PythonCalls
from cutlass_sk.plan import Plan

pytestmark = pytest.mark.skipif(extension.native is None, reason=f"the native extension: {extension.missing}")

ONE_OF_EACH = [spec for spec in KERNELS if (spec.layout_a, spec.layout_b) == ("t", "n")]
SHARED = (136, 72, 9000)
"""Few tiles and a long k: every kernel's plan shares tiles."""
SHAPES = [SHARED, (520, 392, 4104), (1096, 584, 1240), (64, 4096, 512)]


class Counted:
    """A Gemm's table of calls that counts which were taken."""

    def __init__(self, calls: Any) -> None:
        self._calls = calls
        self.taken = self.refused = 0
        self.remember = calls.remember

    def repeat(self, *arguments: Any) -> Any:
        answer = self._calls.repeat(*arguments)
        self.taken += answer is not None
        self.refused += answer is None
        return answer


def counted(gemm: Gemm) -> Counted:
    assert isinstance(gemm._calls, NativeCalls)
    gemm._calls = Counted(gemm._calls)  # type: ignore[assignment]
    return gemm._calls  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    """Tests that measure memory start without the garbage of others."""
    gc.collect()
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize("spec", ONE_OF_EACH, ids=str)
def test_repeated_calls_give_the_bits_of_the_first(spec: KernelSpec) -> None:
    gemm, slow = gemm_of(spec), gemm_of(spec)
    slow._calls = PythonCalls(slow.out_dtype)
    calls = counted(gemm)
    for m, n, k in SHAPES:
        a, b = operands(spec, m, n, k)
        c0 = torch.randn(m, n, device="cuda").to(gemm.out_dtype)
        for alpha, beta in ((1.0, 0.0), (0.5, 0.0), (1.0, 1.0), (-2.0, 0.25)):
            expected = c0.clone() if beta else poisoned(spec, m, n)
            slow.run(a, b, expected, alpha=alpha, beta=beta)
            for _ in range(3):
                x, y, c = a.clone(), b.clone(), c0.clone() if beta else poisoned(spec, m, n)  # other addresses each time
                gemm.run(x, y, c, alpha=alpha, beta=beta)
                assert torch.equal(c, expected)
                if not beta:
                    assert torch.equal(gemm.run(x, y, alpha=alpha), expected)
    assert calls.taken >= 0.8 * (calls.taken + calls.refused)


@pytest.mark.parametrize("spec", [spec for spec in KERNELS if spec.dtype == "float16" and spec.generation == "sm90a"], ids=str)
def test_sums_into_one_output_follow_each_other(spec: KernelSpec) -> None:
    """Each launch reads what the one before it wrote, other SMs' parts of a sector among it: tiles, widths and rasters change, and
    rows of c start on 16 bytes."""
    gemm, (m, n, k) = gemm_of(spec), (520, 584, 72)
    a, b = operands(spec, m, n, k, exact=True)
    widths = spec.widths[:: max(1, len(spec.widths) - 1)]
    plans = [gemm.plan(m, n, k, tile_n=width, raster_order=order) for width in widths for order in ("along_m", "along_n")]
    once = (a.double() @ b.double()).to(gemm.out_dtype)
    c = torch.zeros(m, n, device="cuda", dtype=gemm.out_dtype)
    for turn in range(40):  # sums of 40 * 72 at most are exact where they are below 2048, and these are
        gemm.run(a, b, c, beta=1.0, plan=plans[turn % len(plans)])
    assert once.abs().max() * 40 < 2048 and torch.equal(c, 40 * once)


def test_shared_tiles_are_repeated_natively() -> None:
    gemm = Gemm("float16", kernels=1)
    calls = counted(gemm)
    assert gemm.plan(*SHARED).sk_units > 0
    a, b = torch.randn(136, 9000, device="cuda").half(), torch.randn(9000, 72, device="cuda").half()
    first = gemm.run(a, b)
    for _ in range(50):
        assert torch.equal(gemm.run(a, b), first)
    assert (calls.taken, calls.refused) == (50, 1)


def test_every_repeated_call_bumps_the_version_counter() -> None:
    gemm = Gemm("float16", kernels=1)
    calls = counted(gemm)
    a, b, c = (torch.randn(64, 64, device="cuda").half() for _ in range(3))
    for turn in range(4):
        version = c._version
        gemm.run(a, b, c)
        assert c._version > version and calls.taken == turn
    saved = torch.ones(64, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    product = saved * c
    gemm.run(a, b, c)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_the_switch_for_overlapping_launches_counts_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = Gemm("float16", kernels=1)
    calls = counted(gemm)
    a, b = torch.randn(256, 512, device="cuda").half(), torch.randn(512, 256, device="cuda").half()
    expected = gemm.run(a, b)
    for text in ("0", "1", "no", "true"):
        monkeypatch.setenv("CUTLASS_SK_PDL", text)
        assert torch.equal(gemm.run(a, b), expected)
    assert (calls.taken, calls.refused) == (2, 3)
    monkeypatch.setenv("CUTLASS_SK_PDL", "maybe")
    with pytest.raises(Exception, match="CUTLASS_SK_PDL='maybe'"):
        gemm.run(a, b)


def work(gemm: Gemm) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, Plan]]:
    listed = []
    for m, n, k in SHAPES:
        a, b = torch.randn(m, k, device="cuda").half(), torch.randn(k, n, device="cuda").half()
        listed.append((a, b, gemm.run(a, b), gemm.plan(m, n, k)))
    torch.cuda.synchronize()
    return listed


def test_eight_threads_on_four_streams() -> None:
    """Two threads share each stream: its launches, and its workspace, follow one after the other."""
    gemm = Gemm("float16", kernels=1)
    jobs, streams = work(gemm), [torch.cuda.Stream() for _ in range(4)]

    def worker(number: int) -> int:
        with torch.cuda.stream(streams[number % 4]):
            wrong = torch.zeros((), device="cuda", dtype=torch.int64)
            for turn in range(300):
                a, b, expected, _ = jobs[(turn + number) % len(jobs)]
                c = None if turn % 3 == 0 else torch.full_like(expected, float("nan"))
                wrong += (gemm.run(a, b, c) != expected).sum()
            torch.cuda.current_stream().synchronize()
            return int(wrong)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(worker, range(8))) == [0] * 8
    torch.cuda.synchronize()


def test_one_thread_changes_streams_between_calls() -> None:
    gemm = Gemm("float16", kernels=1)
    jobs, streams = work(gemm), [torch.cuda.Stream() for _ in range(4)]
    results = []
    for turn in range(400):
        a, b, expected, _ = jobs[turn % len(jobs)]
        with torch.cuda.stream(streams[turn % 3]):
            results.append((gemm.run(a, b), expected))
        if len(results) == 40:
            torch.cuda.synchronize()
            assert all(torch.equal(c, expected) for c, expected in results)
            results.clear()


def test_a_graph_captured_right_after_native_calls_owns_its_memory() -> None:
    gemm = Gemm("float16", kernels=1)
    jobs, stream = work(gemm), torch.cuda.Stream()
    outputs = [torch.empty_like(expected) for _, _, expected, _ in jobs]
    with torch.cuda.stream(stream):
        for _ in range(3):
            for (a, b, _, _), c in zip(jobs, outputs, strict=True):
                gemm.run(a, b, c)
    torch.cuda.synchronize()
    calls, graph = counted(gemm), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for (a, b, _, _), c in zip(jobs, outputs, strict=True):
            gemm.run(a, b, c)
    shared = sum(plan.sk_units > 0 for *_, plan in jobs)
    assert shared and (calls.taken, calls.refused) == (len(jobs) - shared, shared)
    other = torch.cuda.Stream()
    for _ in range(50):
        for c in outputs:
            c.fill_(float("nan"))
        torch.cuda.synchronize()
        with torch.cuda.stream(other):
            graph.replay()
        with torch.cuda.stream(stream):  # eager calls on the stream that was captured, beside the replay
            eager = [(gemm.run(a, b), expected) for a, b, expected, _ in jobs]
        torch.cuda.synchronize()
        assert all(torch.equal(c, expected) for c, (_, _, expected, _) in zip(outputs, jobs, strict=True))
        assert all(torch.equal(c, expected) for c, expected in eager)


def test_captured_flags_are_forgotten_once_the_capture_has_ended() -> None:
    gemm = Gemm("float16", kernels=1)
    a, b = torch.randn(136, 9000, device="cuda").half(), torch.randn(9000, 72, device="cuda").half()
    expected = gemm.run(a, b)
    graph, c = torch.cuda.CUDAGraph(), torch.empty_like(expected)
    with torch.cuda.graph(graph):
        gemm.run(a, b, c)
        gemm.run(a, b, c)
    assert len(workspace._captured) == 1
    assert torch.equal(gemm.run(a, b), expected)  # on another stream than the capture's
    assert not workspace._captured
    graph.replay()
    assert torch.equal(c, expected)


def test_a_capture_on_a_stream_of_the_user_s_that_is_then_destroyed() -> None:
    from cuda.bindings import runtime

    gemm = Gemm("float16", kernels=1)
    a, b = torch.randn(136, 9000, device="cuda").half(), torch.randn(9000, 72, device="cuda").half()
    expected = gemm.run(a, b)
    plan = gemm.plan(136, 72, 9000)
    for _ in range(3):
        _, handle = runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking)
        stream, graph, c = torch.cuda.ExternalStream(int(handle)), torch.cuda.CUDAGraph(), torch.empty_like(expected)
        with torch.cuda.graph(graph, stream=stream):
            gemm.run(a, b, c)
            gemm.run(a, b, c)
        torch.cuda.synchronize()
        runtime.cudaStreamDestroy(handle)
        assert not workspace._captured
        assert torch.equal(gemm.run(a, b, plan=plan), expected)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(c, expected)


def test_calls_after_the_allocator_s_cache_was_emptied() -> None:
    gemm = Gemm("float16", kernels=1)
    jobs = work(gemm)
    for _ in range(20):
        torch.cuda.empty_cache()
        filler = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(8)]  # takes what was given back
        for a, b, expected, _ in jobs:
            assert torch.equal(gemm.run(a, b), expected)
        del filler


def test_a_workspace_that_grows_between_launches_in_flight() -> None:
    """What is outgrown is reused behind the launches that use it."""
    gemm = Gemm("float16", kernels=1)
    jobs = sorted(work(gemm), key=lambda job: job[3].partials_bytes)
    for _ in range(20):
        with torch.cuda.stream(torch.cuda.Stream()):
            workspace._kept.clear()
            assert extension.native is not None
            extension.native.forget_workspaces()
            results = []
            for a, b, expected, _ in jobs:
                results += [(gemm.run(a, b), expected) for _ in range(5)]
                torch.full((1 << 20,), float("nan"), device="cuda")
            torch.cuda.current_stream().synchronize()
        assert all(torch.equal(c, expected) for c, expected in results)


@pytest.mark.parametrize("given", [True, False], ids=["into_c", "new_c"])
def test_memory_does_not_grow_over_20000_calls(given: bool) -> None:
    gemm = Gemm("float16", kernels=1)
    jobs = [(a, b, torch.empty_like(c) if given else None) for a, b, c, _ in work(gemm)]
    for a, b, c in jobs * 10:
        gemm.run(a, b, c)
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for turn in range(20_000):
        a, b, c = jobs[turn % len(jobs)]
        gemm.run(a, b, c)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == allocated and torch.cuda.memory_reserved() == reserved


def test_a_host_function_that_waits_for_the_gil_does_not_stop_a_full_queue() -> None:
    """A launch waits while its stream's queue is full; the interpreter must be free meanwhile."""
    import ctypes

    from cuda.bindings import driver

    gemm, a = Gemm("float16", kernels=1), torch.randn(64, 64, device="cuda").half()
    b, c = a.clone(), torch.empty_like(a)
    gemm.run(a, b, c)
    turns: list[int] = []

    def wait(_: int | None) -> None:
        total = 0
        for number in range(2_000_000):  # holds and drops the GIL for long enough that the queue fills
            total += number
        turns.append(total)

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(wait)
    address = ctypes.cast(function, ctypes.c_void_p).value
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        (error,) = driver.cuLaunchHostFunc(driver.CUstream(stream.cuda_stream), driver.CUhostFn(address), 0)
        assert int(error) == 0
        for _ in range(5000):
            gemm.run(a, b, c)
    torch.cuda.synchronize()
    assert len(turns) == 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")
def test_another_device_than_the_current_one() -> None:
    gemm = Gemm("float16", kernels=1)
    a, b = torch.randn(136, 9000, device="cuda:1").half(), torch.randn(9000, 72, device="cuda:1").half()
    expected = gemm.run(a, b)
    for _ in range(5):
        assert torch.equal(gemm.run(a, b), expected) and torch.cuda.current_device() == 0
    with torch.cuda.device(1):
        for _ in range(5):
            assert torch.equal(gemm.run(a, b), expected)
