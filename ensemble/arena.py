"""One GPU on which contenders are timed side by side: what a sweep over thousands of problems needs to cost milliseconds a problem.

Operands are views of one pool of random data, outputs of another, so that nothing is allocated for a problem and no output is ever
an input. Every contender is launched once, checked against cuBLAS's result on the same operands, and captured; nothing is timed to
find out how long it takes: the plan's prediction says how many launches make a graph. ``attempt`` holds the steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import torch

from cutlass_sk import env, operands, packing
from cutlass_sk.device import Device
from cutlass_sk.dtypes import torch_dtype
from cutlass_sk.ensemble.attempt import (
    COLD_BYTES,
    CUBLAS,
    THOROUGH,
    Attempt,
    Buffers,
    Effort,
    Entrants,
    Launch,
    OnViews,
    Timed,
    TooLarge,
)
from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.ensemble.table import Timing
from cutlass_sk.generator import abi
from cutlass_sk.generator.spec import KernelSpec, Layout
from cutlass_sk.kernel import Prepared, load_kernel, plan_struct, problem_struct
from cutlass_sk.plan import Plan

POOL_BYTES = 1 << 30
"""Of operands, and as much of outputs: the largest problem, 8192^3 in float64, fits once."""

TOLERANCE = {
    ("float16", "float16"): 1e-2,
    ("bfloat16", "bfloat16"): 8e-2,
    ("float16", "float32"): 4e-3,
    ("bfloat16", "float32"): 4e-3,
    ("float64", "float64"): 1e-12,
}
"""Largest difference of an element from cuBLAS's, over sqrt(k), the size of an element of a product of standard normal data. A tile
that misses one iteration is off by several sqrt(tile_k) somewhere. 16-bit: a few roundings of the output, since torch lets cuBLAS
add split-K partials in 16 bits."""


@dataclass(frozen=True)
class Search:
    """What a search found: how many plans were tried, which were wrong, and the best ones, timed beside the chosen one."""

    tried: int
    wrong: tuple[Plan, ...]
    best: tuple[tuple[Plan, Timed], ...]
    chosen: Timed
    cublas_us: float


def prepared(
    spec: KernelSpec,
    plan: Plan,
    problem: abi.ProblemStruct,
    device: Device,
    stream: torch.cuda.Stream,
    partials: torch.Tensor,
    barriers: torch.Tensor,
) -> Launch:
    """All that is needed of the library's way to launch: what a kernel prepares at the first launch. Later ones set addresses.

    Launches on one stream run in order and leave barriers at zero, so that all of them share one workspace.
    """
    kernel = load_kernel(spec, device.architecture(spec))
    addresses = abi.AddressesStruct(
        alpha=1.0,
        beta=0.0,
        partials=partials.data_ptr(),
        barriers=barriers.data_ptr(),
        stream=stream.cuda_stream,
        programmatic=device.capability >= (9, 0) and env.PDL.get(),
    )
    size, made = ctypes.sizeof(abi.LaunchStruct), list[Prepared]()

    def launch(a: int, b: int, c: int, kept: object = (partials, barriers)) -> None:
        addresses.a, addresses.b, addresses.c = a, b, c
        if not made:
            whole = abi.LaunchStruct(
                struct_bytes=size, device=device.index or 0, problem=problem, plan=plan_struct(plan), addresses=addresses
            )
            made.append(kernel.prepare(whole))
        kernel.enqueue(made[0], addresses)

    return launch


class Arena:
    """One dtype on the current GPU.

    layouts   of a and b, row-major ``t`` or column-major ``n``; c is row-major
    stream    what everything runs on; arenas that are used in turn must share it. Default: one of its own
    """

    where = "cuda"

    def __init__(
        self,
        dtype: str,
        out_dtype: str,
        layouts: tuple[Layout, Layout],
        device: Device,
        effort: Effort = THOROUGH,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self.dtype, self.out_dtype, self.layouts, self.device, self.effort = dtype, out_dtype, layouts, device, effort
        inputs, out = torch_dtype(dtype), torch_dtype(out_dtype)
        self._mixed = inputs != out
        self.tolerance = TOLERANCE[dtype, out_dtype]
        generator = torch.Generator(device=self.where).manual_seed(1)
        self._inputs = torch.randn(POOL_BYTES // inputs.itemsize, dtype=inputs, device=self.where, generator=generator)
        self._outputs = torch.empty(POOL_BYTES // out.itemsize, dtype=out, device=self.where)
        self._other = torch.zeros(COLD_BYTES // 4, dtype=torch.float32, device=self.where)
        self._sink = torch.zeros((), dtype=torch.float32, device=self.where)
        self._partials = torch.empty(64 << 20, dtype=torch.uint8, device=self.where)
        self.barriers = torch.zeros(1 << 20, dtype=torch.uint8, device=self.where)
        self.stream = stream or torch.cuda.Stream()
        self._events: list[torch.cuda.Event] = []
        torch.cuda.synchronize()

    def begin(self, problem: Problem, entrants: Entrants, timings: Iterable[Timing]) -> Attempt:
        """Everybody is launched and checked; the rest is up to the attempt's steps. TooLarge where the problem does not fit."""
        return Attempt(self, problem, entrants, timings)

    def time(self, problem: Problem, plans: Mapping[str, Plan], *, again: bool = False) -> dict[str, Timed]:
        """Every plan and cuBLAS, back to back in graphs. Plans that launch the same are timed once. ``again``: cuBLAS twice."""
        return self._now(problem, Entrants(plans, again=again), "back_to_back")

    def time_isolated(self, problem: Problem, plans: Mapping[str, Plan]) -> dict[str, Timed]:
        """Every plan and cuBLAS, one launch at a time with other memory read before it, so that no operand is in the L2."""
        return self._now(problem, Entrants(plans), "isolated")

    def search(self, problem: Problem, plans: Sequence[Plan], chosen: Plan) -> Search:
        """The best of ``plans``: all are launched and checked, the fastest timed beside ``chosen`` and cuBLAS, in the graphs of
        ``time``."""
        attempt = self.begin(problem, Entrants({"chosen": chosen}, searches={"best": plans}), ("back_to_back",))
        attempt.prepare()
        attempt.launch()
        outcome = attempt.finish()
        times, found = outcome.times["back_to_back"], outcome.found["best"]
        finalists = [(plans[number], times[f"best {number}"]) for number in found.finalists]
        best = tuple(sorted(finalists, key=lambda one: one[1].us or inf))
        cublas_us = times[CUBLAS].us
        assert cublas_us is not None
        return Search(found.tried, tuple(plans[number] for number in found.wrong), best, times["chosen"], cublas_us)

    def lost(self) -> bool:
        """Whether the GPU takes no more work from this process, as after a kernel that read where there is no memory."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def close(self) -> None:
        """Gives the memory back."""
        del self._inputs, self._outputs, self._other, self._partials, self.barriers
        torch.cuda.empty_cache()

    def _now(self, problem: Problem, entrants: Entrants, timing: Timing) -> dict[str, Timed]:
        attempt = self.begin(problem, entrants, (timing,))
        attempt.prepare()
        attempt.launch()
        return dict(attempt.finish().times[timing])

    # What an attempt needs.

    def buffers(self, problem: Problem, most: int) -> Buffers:
        """As many sets as there are launches, as it takes to be beyond the L2, or as fit into the pools."""
        m, n, k = problem.m, problem.n, problem.k
        item, item_c = self._inputs.element_size(), self._outputs.element_size()
        a_bytes, b_bytes, c_bytes = (-(-size // 256) * 256 for size in (m * k * item, k * n * item, m * n * item_c))
        set_bytes = a_bytes + b_bytes + c_bytes
        sets = min(most, -(-COLD_BYTES // set_bytes) + 1, POOL_BYTES // (a_bytes + b_bytes), POOL_BYTES // c_bytes)
        if sets < 1 or 2 * c_bytes > POOL_BYTES:
            raise TooLarge(f"{m}x{n}x{k} does not fit into pools of {POOL_BYTES} bytes")
        base, base_c = self._inputs.data_ptr(), self._outputs.data_ptr()
        addresses, views = [], []
        for number in range(sets):
            a = number * (a_bytes + b_bytes)
            b, c = a + a_bytes, number * c_bytes
            addresses.append((base + a, base + b, base_c + c))
            views.append(
                (
                    _matrix(self._inputs, m, k, self.layouts[0], a // item),
                    _matrix(self._inputs, k, n, self.layouts[1], b // item),
                    _matrix(self._outputs, m, n, "t", c // item_c),
                )
            )
        return Buffers(tuple(addresses), tuple(views), set_bytes)

    def target(self, buffers: Buffers) -> tuple[Buffers, torch.Tensor]:
        """The operands of all sets with one output, which is the second value and none of theirs."""
        m, n = buffers.views[0][2].shape
        result = _matrix(self._outputs, m, n, "t", POOL_BYTES // 2 // self._outputs.element_size())
        addresses = tuple((a, b, result.data_ptr()) for a, b, _ in buffers.addresses)
        return Buffers(addresses, tuple((a, b, result) for a, b, _ in buffers.views), buffers.set_bytes), result

    def bind(self, plan: Plan, problem: Problem) -> Launch | OnViews:
        """A launch of ``plan`` on operands whose addresses are given later. As a call prepares them: operands that start on other
        than 16 bytes are packed, and the copies count."""
        m, n, k = problem.m, problem.n, problem.k
        if plan.partials_bytes > self._partials.numel():
            self._partials = torch.empty(plan.partials_bytes, dtype=torch.uint8, device=self.where)
        if plan.barrier_bytes > self.barriers.numel():
            self.barriers = torch.zeros(plan.barrier_bytes, dtype=torch.uint8, device=self.where)
        views = _operands(problem, self.layouts, self._inputs, self._outputs)
        ready = operands.prepare(*views, plan.kernel, read_c=False)
        spec = plan.kernel.with_layouts(ready.a.layout, ready.b.layout)
        leading_c = operands.leading_dimension(ready.c, spec.alignment_c)
        struct = problem_struct(ready.m, ready.n, ready.k, ready.a.leading, ready.b.leading, leading_c)
        launch = prepared(spec, plan, struct, self.device, self.stream, self._partials, self.barriers)
        if ready.a.tensor is views[0] and ready.b.tensor is views[1] and ready.result is None:
            return launch

        def packed(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
            copies: list[packing.Pair] = []
            if ready.a.tensor is not views[0]:
                copies.append((a, ready.a.tensor[:m, :k]))
                a = ready.a.tensor
            if ready.b.tensor is not views[1]:
                copies.append((b, ready.b.tensor[:k, :n]))
                b = ready.b.tensor
            packing.copy(copies)
            launch(a.data_ptr(), b.data_ptr(), (c if ready.result is None else ready.c).data_ptr())
            if ready.result is not None:
                c.copy_(ready.c[:, :n])

        return OnViews(packed)

    def launch(self, launch: Launch | OnViews | None, buffers: Buffers, number: int) -> None:
        """Enqueues a launch on a buffer set; None: cuBLAS's."""
        number %= len(buffers.addresses)
        if isinstance(launch, OnViews):
            launch.call(*buffers.views[number])
            return
        if launch is not None:
            launch(*buffers.addresses[number])
            return
        a, b, c = buffers.views[number]
        if self._mixed:
            torch.mm(a, b, out_dtype=c.dtype, out=c)
        else:
            torch.mm(a, b, out=c)

    def evict(self) -> None:
        """Reads other memory, so that the L2 holds nothing else; reading leaves nothing to be written back later."""
        torch.sum(self._other, dim=0, out=self._sink)

    def take_event(self) -> torch.cuda.Event:
        return self._events.pop() if self._events else torch.cuda.Event(enable_timing=True)

    def give_back(self, events: Sequence[torch.cuda.Event]) -> None:
        self._events += events


def layouts_of(problem: Problem, spec: KernelSpec, layouts: tuple[Layout, Layout]) -> tuple[Layout, Layout]:
    """Those that a kernel is launched with for operands of ``layouts``: a side of 1 may be either, 2.x kernels pack row-major."""
    pools = (torch.empty(0, dtype=torch_dtype(dtype), device="meta") for dtype in (spec.dtype, spec.out_dtype))
    ready = operands.prepare(*_operands(problem, layouts, *pools), spec, read_c=False)
    return ready.a.layout, ready.b.layout


def _operands(
    problem: Problem, layouts: tuple[Layout, Layout], inputs: torch.Tensor, outputs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a, b and c at the beginning of their pools."""
    m, n, k = problem.m, problem.n, problem.k
    return _matrix(inputs, m, k, layouts[0], 0), _matrix(inputs, k, n, layouts[1], 0), _matrix(outputs, m, n, "t", 0)


def _matrix(pool: torch.Tensor, rows: int, columns: int, layout: Layout, offset: int) -> torch.Tensor:
    """A (rows, columns) view of ``pool`` from ``offset`` elements on."""
    return pool.as_strided((rows, columns), (columns, 1) if layout == "t" else (1, rows), offset)
