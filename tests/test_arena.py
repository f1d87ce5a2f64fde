"""What the arena hands to kernels: addresses, leading dimensions, letters. Kernels, streams and graphs are stand-ins on the CPU."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from cutlass_sk import planner
from cutlass_sk.device import PRESETS
from cutlass_sk.ensemble import arena, attempt
from cutlass_sk.ensemble.arena import Arena
from cutlass_sk.ensemble.attempt import THOROUGH
from cutlass_sk.ensemble.candidates import candidates
from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.errors import LaunchError
from cutlass_sk.generator import abi
from cutlass_sk.generator.catalog import families
from cutlass_sk.generator.spec import KernelSpec, Layout
from cutlass_sk.options import Options

H200 = PRESETS["h200"]
POOL_BYTES = 1 << 20
PROBLEM = Problem(136, 72, 200)
ELEMENTS = {"float16": np.float16, "float64": np.float64}


class StandIn:
    """A kernel that reads and writes memory as its spec and the launch's struct say."""

    def __init__(self, spec: KernelSpec, wrong: bool = False, left: bool = False, refuses: bool = False) -> None:
        self.spec, self.wrong, self.left, self.refuses = spec, wrong, left, refuses

    def prepare(self, launch: abi.LaunchStruct) -> abi.ProblemStruct:
        return launch.problem  # type: ignore[no-any-return]

    def enqueue(self, p: abi.ProblemStruct, launch: abi.AddressesStruct) -> None:
        a = self.matrix(launch.a, p.m, p.k, self.spec.layout_a, p.lda)
        b = self.matrix(launch.b, p.k, p.n, self.spec.layout_b, p.ldb)
        c = self.matrix(launch.c, p.m, p.n, "t", p.ldc)
        c[:] = torch.from_numpy(a.copy()) @ torch.from_numpy(b.copy())
        if self.refuses:
            raise LaunchError("refused")
        if self.wrong:
            c[0, 0] += 100
        if self.left:
            ctypes.c_uint8.from_address(launch.barriers).value = 1

    def matrix(self, address: int, rows: int, columns: int, layout: Layout, leading: int) -> np.ndarray:  # type: ignore[type-arg]
        element = np.dtype(ELEMENTS[self.spec.dtype])
        lines = (rows if layout == "t" else columns) * leading
        memory = np.frombuffer((ctypes.c_char * (lines * element.itemsize)).from_address(address), element)
        return memory.reshape(-1, leading)[:, :columns] if layout == "t" else memory.reshape(-1, leading)[:, :rows].T


class Stream:
    cuda_stream = 0

    def synchronize(self) -> None: ...


class Event:
    def __init__(self, enable_timing: bool) -> None: ...
    def record(self, stream: Stream) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, other: Event) -> float:
        return 0.03


class Graph:
    def capture_begin(self, capture_error_mode: str) -> None: ...
    def capture_end(self) -> None: ...
    def replay(self) -> None: ...


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> dict[str, StandIn]:
    """Kernels by family; those that are not in it are made as they are loaded."""
    kernels: dict[str, StandIn] = {}

    def load(spec: KernelSpec, architecture: str) -> StandIn:
        return kernels.setdefault(spec.name, StandIn(spec))

    def stream(used: Stream) -> AbstractContextManager[None]:
        return nullcontext()

    monkeypatch.setattr(arena, "load_kernel", load)
    monkeypatch.setattr(arena, "POOL_BYTES", POOL_BYTES)
    monkeypatch.setattr(Arena, "where", "cpu")
    for name, value in {"Stream": Stream, "stream": stream, "Event": Event, "CUDAGraph": Graph}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    return kernels


def kernels_of(dtype: str) -> tuple[KernelSpec, ...]:
    first = families(dtype, dtype, "sm90a")[0]
    return (first, replace(first, swapped=not first.swapped)) if first.api == "3x" else (first,)


@pytest.mark.parametrize("layouts", [("t", "n"), ("t", "t"), ("n", "t"), ("n", "n")])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_every_layout_and_a_transposed_c_give_the_product(
    stand_ins: dict[str, StandIn], dtype: str, layouts: tuple[Layout, Layout]
) -> None:
    bench = Arena(dtype, dtype, layouts, H200)
    for spec in kernels_of(dtype):
        plan = planner.make_plan(PROBLEM.m, PROBLEM.n, PROBLEM.k, [spec], H200)
        same = replace(plan, waves=0.0)
        times = bench.time(PROBLEM, {"set": plan, "single": same}, again=True)
        assert set(times) == {"set", "single", "cublas", "cublas_again"}
        error = times["set"].error
        assert error is not None and error <= arena.TOLERANCE[dtype, dtype] and times["single"] == times["set"]
        assert times["set"].us == pytest.approx(30.0 / attempt.launches_for(plan.predicted_time_us))
        isolated = bench.time_isolated(PROBLEM, {"set": plan})
        assert isolated["set"].us == pytest.approx(30.0) and isolated["cublas"].error is None


def test_buffers_rotate_and_do_not_meet(stand_ins: dict[str, StandIn]) -> None:
    bench = Arena("float16", "float16", ("t", "n"), H200)
    buffers = bench.buffers(PROBLEM, 200)
    inputs = [address for a, b, _ in buffers.addresses for address in (a, b)]
    assert len(buffers.addresses) == POOL_BYTES // (-(-136 * 200 * 2 // 256) * 256 + -(-200 * 72 * 2 // 256) * 256) > 1
    assert inputs == sorted(set(inputs)) and all(address % 16 == inputs[0] % 16 for address in inputs)
    for (a, b, c), views in zip(buffers.addresses, buffers.views, strict=True):
        assert (a, b, c) == tuple(view.data_ptr() for view in views)
    with pytest.raises(ValueError, match="does not fit"):
        bench.buffers(Problem(1024, 1024, 1024), 1)


def test_wrong_results_are_reported_and_kernels_that_leave_barriers_are_not_timed(stand_ins: dict[str, StandIn]) -> None:
    bench = Arena("float16", "float16", ("t", "n"), H200)
    right, wrong = kernels_of("float16")
    shape = PROBLEM.m, PROBLEM.n, PROBLEM.k
    plans = {"a": planner.make_plan(*shape, [right], H200)}
    plans["b"] = planner.make_plan(*shape, [wrong], H200, Options(decomposition="stream_k"))
    assert plans["b"].barrier_bytes
    name = wrong.with_layouts("t", "n").name
    stand_ins[name] = StandIn(wrong.with_layouts("t", "n"), wrong=True)
    times = bench.time(PROBLEM, plans)
    assert times["b"].us is not None and times["b"].error is not None and times["b"].error > 1 > 0.01 > (times["a"].error or 0)
    stand_ins[name].left = True
    times = bench.time(PROBLEM, plans)
    assert times["b"].us is None and times["b"].error is None and times["a"].us is not None
    assert not bench.barriers.any()
    stand_ins[name] = StandIn(wrong.with_layouts("t", "n"), refuses=True)
    times = bench.time(PROBLEM, plans)
    assert times["b"].us is None and times["b"].error is None and times["a"].us is not None


def test_a_search_leaves_wrong_plans_out_and_times_the_best_beside_the_chosen_one(stand_ins: dict[str, StandIn]) -> None:
    bench = Arena("float16", "float16", ("t", "n"), H200)
    kernels = kernels_of("float16")
    shape = PROBLEM.m, PROBLEM.n, PROBLEM.k
    tried = candidates(*shape, kernels, H200)
    stand_ins[kernels[1].with_layouts("t", "n").name] = StandIn(kernels[1].with_layouts("t", "n"), wrong=True)
    chosen = planner.make_plan(*shape, kernels[:1], H200, Options(decomposition="data_parallel"))
    found = bench.search(PROBLEM, tried, chosen)
    assert found.tried == len(tried) and {plan.kernel for plan in found.wrong} == {kernels[1]}
    assert len(found.best) == THOROUGH.finalists and all(plan.kernel == kernels[0] for plan, _ in found.best)
    assert found.chosen.us is not None and found.cublas_us > 0
