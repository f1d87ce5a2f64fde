"""Plans and cuBLAS on one GPU, timed side by side: what a sweep over thousands of problems needs to cost milliseconds a problem.

Operands are views of one pool of random data, outputs of another, so that nothing is allocated for a problem and no output is ever
an input. Every contender is launched once, checked against cuBLAS's result on the same operands, and captured; nothing is timed to
find out how long it takes: the plan's prediction says how many launches make a graph.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt
from statistics import median
from typing import NamedTuple

import torch

from cutlass_sk import env, operands
from cutlass_sk.device import Device
from cutlass_sk.dtypes import torch_dtype
from cutlass_sk.ensemble.candidates import identity
from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.errors import LaunchError
from cutlass_sk.generator import abi
from cutlass_sk.generator.spec import KernelSpec, Layout
from cutlass_sk.kernel import Prepared, load_kernel, plan_struct, problem_struct
from cutlass_sk.plan import Plan

CUBLAS, CUBLAS_AGAIN = "cublas", "cublas_again"

POOL_BYTES = 1 << 30
"""Of operands, and as much of outputs: the largest problem, 8192^3 in float64, fits once."""
COLD_BYTES = 192 << 20
"""More than three times the L2 of an H200 (60 MB). Graphs that touch less are replayed with other memory read in between."""
GRAPH_US, SEARCH_US = 300.0, 100.0
"""How long the launches of a graph should take together, as predicted; in the search's first round."""
LEAST_LAUNCHES, MOST_LAUNCHES, MOST_SEARCH_LAUNCHES = 3, 200, 40
REPLAYS, LONG_REPLAYS, SEARCH_REPLAYS, ISOLATED_REPEATS = 5, 3, 2, 9
LONG_US = 1e4
"""A graph predicted to take longer than this is replayed ``LONG_REPLAYS`` times."""
SLOW_FACTOR, SLOW_US = 2.0, 10.0
"""A candidate that at first takes longer than ``SLOW_FACTOR`` times the fastest one and ``SLOW_US`` is not looked at again."""
FINALISTS = 3

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

Launch = Callable[[int, int, int], object]
"""Enqueues one launch on the arena's stream; a, b and c are device addresses."""
Identity = tuple[object, ...]
"""What ``candidates.identity`` gives of a plan."""
Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]
"""Enqueues c <- a @ b on the current stream: a (m, k), b (k, n), c (m, n)."""
Other = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Call]
"""Given a, b and c of a problem, allocates what their product needs beside them, and gives its ``Call`` for all buffer sets."""


class OnViews(NamedTuple):
    """A launch that takes tensors and not addresses."""

    call: Call


class TooLarge(ValueError):
    """A problem that does not fit into the arena's pools."""


@dataclass(frozen=True)
class Timed:
    """Microseconds a launch (None: not timed) and largest difference from cuBLAS over sqrt(k) (None for cuBLAS)."""

    us: float | None
    error: float | None = None


@dataclass(frozen=True)
class Search:
    """What a search found: how many plans were tried, which were wrong, and the best ones, timed beside the chosen one."""

    tried: int
    wrong: tuple[Plan, ...]
    best: tuple[tuple[Plan, Timed], ...]
    chosen: Timed
    cublas_us: float


@dataclass(frozen=True)
class Buffers:
    """Addresses of the buffer sets of one problem, and the views on them that torch needs."""

    addresses: tuple[tuple[int, int, int], ...]
    views: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], ...]
    set_bytes: int


def launches_for(predicted_us: float, total_us: float = GRAPH_US, least: int = LEAST_LAUNCHES, most: int = MOST_LAUNCHES) -> int:
    """How many launches of a contender make a graph."""
    return max(least, min(most, ceil(total_us / max(predicted_us, 1.0))))


def replays_for(predicted_us: float, launches: int) -> int:
    return REPLAYS if predicted_us * launches <= LONG_US else LONG_REPLAYS


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
    """One dtype on the current GPU. ``layouts``: of a and b, row-major ``t`` or column-major ``n``; c is row-major."""

    where = "cuda"

    def __init__(self, dtype: str, out_dtype: str, layouts: tuple[Layout, Layout], device: Device) -> None:
        self.dtype, self.out_dtype, self.layouts, self.device = dtype, out_dtype, layouts, device
        inputs, out = torch_dtype(dtype), torch_dtype(out_dtype)
        self._mixed = inputs != out
        self._tolerance = TOLERANCE[dtype, out_dtype]
        generator = torch.Generator(device=self.where).manual_seed(1)
        self._inputs = torch.randn(POOL_BYTES // inputs.itemsize, dtype=inputs, device=self.where, generator=generator)
        self._outputs = torch.empty(POOL_BYTES // out.itemsize, dtype=out, device=self.where)
        self._other = torch.zeros(COLD_BYTES // 4, dtype=torch.float32, device=self.where)
        self._sink = torch.zeros((), dtype=torch.float32, device=self.where)
        self._partials = torch.empty(64 << 20, dtype=torch.uint8, device=self.where)
        self._barriers = torch.zeros(1 << 20, dtype=torch.uint8, device=self.where)
        self._stream = torch.cuda.Stream()
        self._events: list[torch.cuda.Event] = []
        self._bound: dict[Identity, Launch | OnViews] = {}
        torch.cuda.synchronize()

    def time(
        self,
        problem: Problem,
        plans: Mapping[str, Plan],
        *,
        again: bool = False,
        others: Mapping[str, Other] | None = None,
        expected_us: float = inf,
    ) -> dict[str, Timed]:
        """Every plan and cuBLAS, back to back in graphs. Plans that launch the same are timed once. ``again``: cuBLAS twice.

        others        contenders that are no plans, by name: checked and timed as plans are
        expected_us   what a launch is expected to take, where there are no plans to say it
        """
        with torch.cuda.stream(self._stream):
            apart = {identity(plan): plan for plan in plans.values()}
            predicted_us = min([expected_us, *(plan.predicted_time_us for plan in apart.values())])
            buffers = self._buffers(problem, launches_for(predicted_us))
            errors, launches = self._ready(problem, buffers, apart, others or {}, again)
            contenders: dict[object, tuple[Launch | OnViews | None, float]] = {
                name: (launch, apart[name].predicted_time_us if isinstance(name, tuple) else predicted_us)
                for name, launch in launches.items()
            }
            times = self._replay(buffers, contenders)
        return self._timed(plans, others or {}, times, errors)

    def time_isolated(
        self,
        problem: Problem,
        plans: Mapping[str, Plan],
        *,
        again: bool = False,
        others: Mapping[str, Other] | None = None,
    ) -> dict[str, Timed]:
        """Every plan and cuBLAS, one launch at a time with other memory read before it, so that no operand is in the L2.

        again, others   as of ``time``
        """
        with torch.cuda.stream(self._stream):
            apart = {identity(plan): plan for plan in plans.values()}
            buffers = self._buffers(problem, ISOLATED_REPEATS + 1)
            errors, launches = self._ready(problem, buffers, apart, others or {}, again)
            pairs: dict[object, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in launches}
            events = self._take_events(2 * len(launches) * (ISOLATED_REPEATS + 1))
            for turn in range(ISOLATED_REPEATS + 1):
                for name, launch in launches.items():
                    begin, end = next(events), next(events)
                    self._evict()
                    begin.record()
                    self._launch(launch, buffers, turn)
                    end.record()
                    if turn:
                        pairs[name].append((begin, end))
            self._stream.synchronize()
        times = {name: median(begin.elapsed_time(end) * 1e3 for begin, end in found) for name, found in pairs.items()}
        return self._timed(plans, others or {}, times, errors)

    def shortlist(self, problem: Problem, plans: Sequence[Plan]) -> tuple[list[Plan], tuple[Plan, ...]]:
        """The ``FINALISTS`` fastest of ``plans``, fastest first, and those that were wrong or refused.

        First launches are checked and timed, the slow ones left; the rest is timed in short graphs.
        """
        with torch.cuda.stream(self._stream):
            least_us = min(plan.predicted_time_us for plan in plans)
            buffers = self._buffers(problem, launches_for(least_us))
            first_us: list[float] = []
            errors = self._check(problem, buffers, plans, first_us)
            wrong = tuple(plan for plan, error in zip(plans, errors, strict=True) if error is None or not error <= self._tolerance)
            right = [(us, plan) for us, plan in zip(first_us, plans, strict=True) if plan not in wrong]
            limit = min((us for us, _ in right), default=0.0) * SLOW_FACTOR + SLOW_US
            near = {number: (us, plan) for number, (us, plan) in enumerate(right) if us <= limit}
            short: dict[object, tuple[Launch | OnViews | None, float]] = {
                number: (self._bind(plan, problem), us) for number, (us, plan) in near.items()
            }
            times = self._replay(buffers, short, search=True) if short else {}
        return [near[number][1] for number in sorted(near, key=lambda number: times[number])[:FINALISTS]], wrong

    def search(self, problem: Problem, plans: Sequence[Plan], chosen: Plan) -> Search:
        """The best of ``plans``: the ``shortlist`` runs once more, beside ``chosen`` and cuBLAS, in the graphs of ``time``."""
        finalists, wrong = self.shortlist(problem, plans)
        names = {f"finalist_{number}": plan for number, plan in enumerate(finalists)}
        final = self.time(problem, {"chosen": chosen, **names})
        best = [(us, number) for number, name in enumerate(names) if (us := final[name].us) is not None]
        ranked = tuple((finalists[number], final[f"finalist_{number}"]) for _, number in sorted(best))
        cublas_us = final[CUBLAS].us
        assert cublas_us is not None
        return Search(len(plans), wrong, ranked, final["chosen"], cublas_us)

    def lost(self) -> bool:
        """Whether the GPU takes no more work from this process, as after a kernel that read where there is no memory."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def close(self) -> None:
        """Gives the memory back."""
        self._bound.clear()
        del self._inputs, self._outputs, self._other, self._partials, self._barriers
        torch.cuda.empty_cache()

    def _buffers(self, problem: Problem, most: int) -> Buffers:
        """As many sets as there are launches, or as fit into the pools."""
        self._bound.clear()
        m, n, k = problem.m, problem.n, problem.k
        item, item_c = self._inputs.element_size(), self._outputs.element_size()
        a_bytes, b_bytes, c_bytes = (-(-size // 256) * 256 for size in (m * k * item, k * n * item, m * n * item_c))
        sets = min(most, POOL_BYTES // (a_bytes + b_bytes), POOL_BYTES // c_bytes)
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
        return Buffers(tuple(addresses), tuple(views), a_bytes + b_bytes + c_bytes)

    def _ready(
        self, problem: Problem, buffers: Buffers, apart: Mapping[Identity, Plan], others: Mapping[str, Other], again: bool
    ) -> tuple[dict[object, float | None], dict[object, Launch | OnViews | None]]:
        """Errors of all plans and others, and launches of those that run: plans by their identity, others and cuBLAS by name."""
        made = {name: OnViews(other(*buffers.views[0])) for name, other in others.items()}
        checked = self._check(problem, buffers, list(apart.values()), others=list(made.values()))
        errors: dict[object, float | None] = dict(zip([*apart, *made], checked, strict=True))
        launches: dict[object, Launch | OnViews | None] = {
            name: self._bind(plan, problem) for name, plan in apart.items() if errors[name] is not None
        }
        launches |= {name: launch for name, launch in made.items() if errors[name] is not None}
        return errors, {**launches, CUBLAS: None, **({CUBLAS_AGAIN: None} if again else {})}

    def _bind(self, plan: Plan, problem: Problem) -> Launch | OnViews:
        """A launch of ``plan`` on operands whose addresses are given later. It stays the same one until ``_buffers`` begins a
        problem, so that what a kernel does at its first launch is not captured."""
        if (known := self._bound.get(identity(plan))) is None:
            known = self._bound[identity(plan)] = self._made(plan, problem)
        return known

    def _made(self, plan: Plan, problem: Problem) -> Launch | OnViews:
        m, n, k = problem.m, problem.n, problem.k
        layout_a, layout_b = self.layouts
        if plan.partials_bytes > self._partials.numel():
            self._partials = torch.empty(plan.partials_bytes, dtype=torch.uint8, device=self.where)
        if plan.barrier_bytes > self._barriers.numel():
            self._barriers = torch.zeros(plan.barrier_bytes, dtype=torch.uint8, device=self.where)
        workspace = self._partials, self._barriers
        # As a call prepares them: operands that start on other than 16 bytes are packed, and the copies count.
        views = (
            _matrix(self._inputs, m, k, layout_a, 0),
            _matrix(self._inputs, k, n, layout_b, 0),
            _matrix(self._outputs, m, n, "t", 0),
        )
        ready = operands.prepare(*views, plan.kernel, read_c=False)
        spec = plan.kernel.with_layouts(ready.a.layout, ready.b.layout)
        leading_c = operands.leading_dimension(ready.c, spec.alignment_c)
        struct = problem_struct(ready.m, ready.n, ready.k, ready.a.leading, ready.b.leading, leading_c)
        launch = prepared(spec, plan, struct, self.device, self._stream, *workspace)
        if ready.a.tensor is views[0] and ready.b.tensor is views[1] and ready.result is None:
            return launch

        def packed(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
            if ready.a.tensor is not views[0]:
                ready.a.tensor[:m, :k].copy_(a)
                a = ready.a.tensor
            if ready.b.tensor is not views[1]:
                ready.b.tensor[:k, :n].copy_(b)
                b = ready.b.tensor
            launch(a.data_ptr(), b.data_ptr(), (c if ready.result is None else ready.c).data_ptr())
            if ready.result is not None:
                c.copy_(ready.c[:, :n])

        return OnViews(packed)

    def _launch(self, launch: Launch | OnViews | None, buffers: Buffers, number: int) -> None:
        """Enqueues a launch on a buffer set; None: cuBLAS's."""
        number %= len(buffers.addresses)
        a, b, c = buffers.views[number]
        if isinstance(launch, OnViews):
            launch.call(a, b, c)
            return
        if launch is not None:
            launch(*buffers.addresses[number])
            return
        if self._mixed:
            torch.mm(a, b, out_dtype=c.dtype, out=c)
        else:
            torch.mm(a, b, out=c)

    def _check(
        self,
        problem: Problem,
        buffers: Buffers,
        plans: Sequence[Plan],
        first_us: list[float] | None = None,
        others: Sequence[OnViews] = (),
    ) -> list[float | None]:
        """Launches everything once, on the first set. Largest differences from cuBLAS over sqrt(k), NaN where an element was not
        written; None where a plan was refused or barriers were left set, after which a launch may not end. One wait for all.

        first_us   gets the time of each plan's second launch
        """
        a, b, expected = buffers.views[0]
        m, n = expected.shape
        offset = POOL_BYTES // 2 // self._outputs.element_size()
        result = _matrix(self._outputs, m, n, "t", offset)
        target = Buffers(((a.data_ptr(), b.data_ptr(), result.data_ptr()),), ((a, b, result),), buffers.set_bytes)
        self._launch(None, buffers, 0)
        found: list[torch.Tensor] = []
        pairs: list[tuple[torch.cuda.Event, torch.cuda.Event] | None] = []
        events = self._take_events(2 * (len(plans) + len(others)))
        everything: list[Plan | OnViews] = [*plans, *others]
        for plan in everything:
            launch = plan if isinstance(plan, OnViews) else self._bind(plan, problem)
            result.fill_(float("nan"))
            try:
                self._launch(launch, target, 0)
            except LaunchError as error:
                kernel = "a contender" if isinstance(plan, OnViews) else plan.kernel
                print(f"{problem.m}x{problem.n}x{problem.k}: {kernel} refused its plan: {error}", file=sys.stderr)
                refused = torch.ones((), dtype=torch.float64, device=self.where)
                found += [refused, refused]
                pairs.append(None)
                continue
            if first_us is not None:
                begin, end = next(events), next(events)
                begin.record()
                self._launch(launch, target, 0)
                end.record()
                pairs.append((begin, end))
            difference = torch.sub(result, expected).abs_().amax().double()
            found += [difference, self._barriers.amax().double()]
        values = torch.stack(found).tolist() if found else []  # waits
        if first_us is not None:
            first_us += [pair[0].elapsed_time(pair[1]) * 1e3 if pair else inf for pair in pairs]
        if any(values[1::2]):
            self._barriers.zero_()
        scale = sqrt(problem.k)
        return [None if left else error / scale for error, left in zip(values[::2], values[1::2], strict=True)]

    def _replay(
        self,
        buffers: Buffers,
        contenders: Mapping[object, tuple[Launch | OnViews | None, float]],
        search: bool = False,
    ) -> dict[object, float]:
        """Median microseconds a launch, by contender: (launch or None for cuBLAS, predicted time). ``search``: short graphs."""
        graphs = {}
        for name, (launch, predicted_us) in contenders.items():
            count = launches_for(predicted_us, SEARCH_US, 1, MOST_SEARCH_LAUNCHES) if search else launches_for(predicted_us)
            graph = torch.cuda.CUDAGraph()
            # Not the context manager: it collects garbage and empties the allocator's cache, which takes longer than all else here.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for number in range(count):
                    self._launch(launch, buffers, number)
            finally:
                graph.capture_end()
            graphs[name] = graph, count, SEARCH_REPLAYS if search else replays_for(predicted_us, count)
        touched = min(min(count, len(buffers.addresses)) for _, count, _ in graphs.values()) * buffers.set_bytes
        pairs: dict[object, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in graphs}
        turns = max(wanted for _, _, wanted in graphs.values())
        events = self._take_events(2 * len(graphs) * (turns + 1))
        order = list(graphs.items())
        for turn in range(turns + 1):
            order.append(order.pop(0))  # nobody always follows the same one
            for name, (graph, _, wanted) in order:
                if turn > wanted:
                    continue
                if touched < COLD_BYTES:
                    self._evict()
                begin, end = next(events), next(events)
                begin.record()
                graph.replay()
                end.record()
                if turn:  # the first replay uploads the graph
                    pairs[name].append((begin, end))
        self._stream.synchronize()
        return {
            name: median(begin.elapsed_time(end) for begin, end in found) * 1e3 / graphs[name][1] for name, found in pairs.items()
        }

    def _timed(
        self,
        plans: Mapping[str, Plan],
        others: Iterable[str],
        times: Mapping[object, float],
        errors: Mapping[object, float | None],
    ) -> dict[str, Timed]:
        timed = {name: Timed(times.get(identity(plan)), errors[identity(plan)]) for name, plan in plans.items()}
        timed |= {name: Timed(times.get(name), errors[name]) for name in others}
        return {**timed, **{name: Timed(times[name]) for name in (CUBLAS, CUBLAS_AGAIN) if name in times}}

    def _evict(self) -> None:
        """Reads other memory, so that the L2 holds nothing else; reading leaves nothing to be written back later."""
        torch.sum(self._other, dim=0, out=self._sink)

    def _take_events(self, count: int) -> _Events:
        while len(self._events) < count:
            self._events.append(torch.cuda.Event(enable_timing=True))
        return _Events(self._events)


class _Events:
    """Hands out events, one after the other."""

    def __init__(self, events: list[torch.cuda.Event]) -> None:
        self._events, self._next = events, 0

    def __next__(self) -> torch.cuda.Event:
        self._next += 1
        return self._events[self._next - 1]


def _matrix(pool: torch.Tensor, rows: int, columns: int, layout: Layout, offset: int) -> torch.Tensor:
    """A (rows, columns) view of ``pool`` from ``offset`` elements on."""
    return pool.as_strided((rows, columns), (columns, 1) if layout == "t" else (1, rows), offset)
