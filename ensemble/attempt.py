"""One problem's contenders on a GPU, in steps: checked, prepared, launched, read.

The host waits in ``prepare`` and ``finish`` alone, so that what it does for one problem hides behind what the GPU does for another:
``begin`` of the next problem comes before ``launch`` of this one, and ``finish`` of the one before after it (``bench.sweep``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, sqrt
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import torch

from cutlass_sk.ensemble.candidates import identity
from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.ensemble.table import Timing
from cutlass_sk.errors import LaunchError
from cutlass_sk.plan import Plan

if TYPE_CHECKING:
    from cutlass_sk.ensemble.arena import Arena

CUBLAS, CUBLAS_AGAIN = "cublas", "cublas_again"

COLD_BYTES = 192 << 20
"""More than three times the L2 of an H200 (60 MB). Graphs that touch less are replayed with other memory read in between."""
LEAST_LAUNCHES, MOST_LAUNCHES = 3, 200
"""Of a graph."""
BURST_US, MOST_BURST = 60.0, 8
"""How long the launches together take, as predicted, by which the candidates of a search are compared first; at most so many."""
SLOW_FACTOR, SLOW_US = 2.0, 10.0
"""A candidate that at first takes longer than ``SLOW_FACTOR`` times the fastest one and ``SLOW_US`` is not looked at again."""
MANY = 24
"""Where more candidates than this are left, a second round of short graphs comes before the last."""
SEARCH_US, MOST_SEARCH_LAUNCHES, SEARCH_REPLAYS = 100.0, 40, 2
"""Of that second round: how long the launches of a graph take together, as predicted; at most so many; replays that count."""

Launch = Callable[[int, int, int], object]
"""Enqueues one launch on the arena's stream; a, b and c are device addresses."""
Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]
"""Enqueues c <- a @ b on the current stream: a (m, k), b (k, n), c (m, n)."""
Other = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Call]
"""Given a, b and c of a problem, allocates what their product needs beside them, and gives its ``Call`` for all buffer sets."""
Others = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Sequence[Call]]
"""Given a, b and c of a problem, several ways to make their product."""
Name = object
"""Of one launch: what ``candidates.identity`` gives of a plan, so that plans that launch the same are timed once; a text; or
(name of a search, number)."""


class OnViews(NamedTuple):
    """A launch that takes tensors and not addresses."""

    call: Call


class TooLarge(ValueError):
    """A problem that does not fit into the arena's pools."""


@dataclass(frozen=True)
class Effort:
    """How long contenders are timed.

    graph_us    what the launches of a graph should take together, as predicted
    replays     of a graph, beside a first one that does not count
    isolated    launches one at a time, beside a first one that does not count
    direct_us   a launch that is predicted to take longer is timed by itself ``direct`` times, in no graph, whatever the timing
    finalists   of a search, timed as all others are
    """

    graph_us: float
    replays: int
    isolated: int
    direct_us: float = inf
    direct: int = 3
    finalists: int = 3


THOROUGH = Effort(300.0, 5, 9)
QUICK = Effort(250.0, 2, 3, direct_us=500.0, finalists=2)
"""For tens of thousands of problems. Shorter graphs would show less of what launches back to back save."""
LONG_US, LONG_REPLAYS = 1e4, 3
"""A graph predicted to take longer than this is replayed so often at most."""


@dataclass(frozen=True)
class Timed:
    """Microseconds a launch (None: not timed) and largest difference from cuBLAS over sqrt(k) (None for cuBLAS)."""

    us: float | None
    error: float | None = None


@dataclass(frozen=True)
class Entrants:
    """Who takes part, by name; cuBLAS as torch calls it always does.

    others        contenders that are no plans
    searches      of which the fastest counts: plans, or what gives several calls
    again         cuBLAS twice
    expected_us   what a launch is expected to take, where there are no plans to say it
    """

    plans: Mapping[str, Plan] = field(default_factory=dict)
    others: Mapping[str, Other] = field(default_factory=dict)
    searches: Mapping[str, Sequence[Plan] | Others] = field(default_factory=dict)
    again: bool = False
    expected_us: float = inf

    @property
    def least_us(self) -> float:
        """The shortest predicted time."""
        searched = [plan for several in self.searches.values() if not callable(several) for plan in several]
        return min([self.expected_us, *(plan.predicted_time_us for plan in [*self.plans.values(), *searched])])


@dataclass(frozen=True)
class Found:
    """What a search found: how many candidates were tried, the numbers of those that were wrong or refused, and the finalists."""

    tried: int
    wrong: tuple[int, ...]
    finalists: tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """Times by timing and name, ``cublas`` and ``cublas_again`` among them; the finalist ``number`` of search ``name`` is there as
    ``name number``."""

    times: Mapping[Timing, Mapping[str, Timed]]
    found: Mapping[str, Found]


@dataclass(frozen=True)
class Buffers:
    """Addresses of the buffer sets of one problem, and the views on them that torch needs."""

    addresses: tuple[tuple[int, int, int], ...]
    views: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], ...]
    set_bytes: int


@dataclass
class Runner:
    """One way to launch. ``predicted_us``: a launch; ``error``: as of ``Timed``; ``right``: it may be timed; ``first_us``: a launch
    of its burst, in a search."""

    launch: Launch | OnViews | None
    predicted_us: float
    barrier_bytes: int = 0
    error: float | None = None
    runs: bool = True
    first_us: float = inf


Pairs = list[tuple[torch.cuda.Event, torch.cuda.Event]]


def launches_for(
    predicted_us: float, total_us: float = THOROUGH.graph_us, least: int = LEAST_LAUNCHES, most: int = MOST_LAUNCHES
) -> int:
    """How many launches of a contender make a graph."""
    return max(least, min(most, ceil(total_us / max(predicted_us, 1.0))))


def replays_for(predicted_us: float, count: int, effort: Effort) -> int:
    """How often a graph of ``count`` launches is replayed, beside the first time."""
    return min(effort.replays, LONG_REPLAYS) if predicted_us * count > LONG_US else effort.replays


class Attempt:
    """One problem in flight. ``timings``: those that are wanted. TooLarge where it does not fit; as it begins, everything is
    launched once and compared with cuBLAS's result, which nothing waits for yet."""

    def __init__(self, arena: Arena, problem: Problem, entrants: Entrants, timings: Iterable[Timing]) -> None:
        self._arena, self._problem, self._entrants, self._timings = arena, problem, entrants, tuple(timings)
        self._effort = arena.effort
        least_us = entrants.least_us
        self._buffers = arena.buffers(problem, launches_for(least_us, self._effort.graph_us))
        self._runners: dict[Name, Runner] = {}
        self._events: list[torch.cuda.Event] = []
        self._pairs: dict[Timing, dict[Name, Pairs]] = {}
        self._counts: dict[Name, int] = {}
        self._graphs: dict[Name, torch.cuda.CUDAGraph] = {}
        self._found: dict[str, Found] = {}
        bound: dict[Name, Launch | OnViews] = {}

        def runner(plan: Plan) -> Name:
            name = identity(plan)
            if name not in self._runners:
                bound[name] = arena.bind(plan, problem)
                self._runners[name] = Runner(bound[name], plan.predicted_time_us, plan.barrier_bytes)
            return name

        with torch.cuda.stream(arena.stream):
            self._plans: dict[str, Name] = {name: runner(plan) for name, plan in entrants.plans.items()}
            for name, other in entrants.others.items():
                self._runners[name] = Runner(OnViews(other(*self._buffers.views[0])), least_us)
            self._searched: dict[str, list[Name]] = {}
            for name, several in entrants.searches.items():
                if not callable(several):
                    self._searched[name] = [runner(plan) for plan in several]
                    continue
                made = {(name, number): call for number, call in enumerate(several(*self._buffers.views[0]))}
                self._searched[name] = list(made)
                self._runners |= {key: Runner(OnViews(call), least_us) for key, call in made.items()}
            self._check()

    def _check(self) -> None:
        """Launches everything once, on the first set; short candidates of searches some times more, to compare them.

        Enqueued: the largest differences from cuBLAS, NaN where an element was not written, and whether barriers were left set.
        """
        arena, buffers = self._arena, self._buffers
        expected = buffers.views[0][2]
        target, result = arena.target(buffers)
        arena.launch(None, buffers, 0)
        candidates = {name for names in self._searched.values() for name in names}
        differences = torch.ones(len(self._runners), dtype=expected.dtype, device=arena.where)
        left = torch.zeros(len(self._runners), dtype=torch.uint8, device=arena.where)
        self._bursts: dict[Name, tuple[torch.cuda.Event, torch.cuda.Event, int]] = {}
        for number, (name, runner) in enumerate(self._runners.items()):
            result.fill_(float("nan"))
            burst = launches_for(runner.predicted_us, BURST_US, 1, MOST_BURST) if name in candidates else 0
            try:
                if burst == 1:
                    self._burst(name, target, 1)
                else:
                    arena.launch(runner.launch, target, 0)
            except LaunchError as error:
                print(f"{self._problem}: {name} refused its plan: {error}", file=sys.stderr)
                runner.runs = False
                continue
            torch.amax(torch.sub(result, expected).abs_(), (0, 1), out=differences[number])
            if runner.barrier_bytes:
                torch.amax(arena.barriers[: runner.barrier_bytes], 0, out=left[number])
            if burst > 1:
                self._burst(name, target, burst)
        arena.barriers.zero_()  # what was left there would hang others
        self._values = torch.empty(2 * len(self._runners), dtype=torch.float64, pin_memory=arena.where == "cuda")
        self._values.copy_(torch.cat([differences.double(), left.double()]), non_blocking=True)
        self._checked = self._event()
        self._checked.record(self._arena.stream)

    def _burst(self, name: Name, target: Buffers, count: int) -> None:
        begin, end = self._event(), self._event()
        begin.record(self._arena.stream)
        for turn in range(count):
            self._arena.launch(self._runners[name].launch, target, turn)
        end.record(self._arena.stream)
        self._bursts[name] = begin, end, count

    def prepare(self) -> None:
        """Waits for the checks, chooses the finalists of searches, and captures what will be launched."""
        with torch.cuda.stream(self._arena.stream):
            self._checked.synchronize()
            values, scale = self._values.tolist(), sqrt(self._problem.k)
            for number, (name, runner) in enumerate(self._runners.items()):
                if values[len(self._runners) + number]:
                    runner.runs = False
                runner.error = values[number] / scale if runner.runs else None
                if name in self._bursts:
                    begin, end, count = self._bursts[name]
                    runner.first_us = begin.elapsed_time(end) * 1e3 / count
            timed = dict.fromkeys(name for name in self._plans.values() if self._runners[name].runs)
            timed |= dict.fromkeys(name for name in self._entrants.others if self._runners[name].runs)
            for search, names in self._searched.items():
                self._found[search] = found = self._ranked(names)
                timed |= dict.fromkeys(names[number] for number in found.finalists)
            self._runners[CUBLAS] = Runner(None, self._entrants.least_us)
            timed[CUBLAS] = None
            if self._entrants.again:
                self._runners[CUBLAS_AGAIN] = Runner(None, self._entrants.least_us)
                timed[CUBLAS_AGAIN] = None
            self._timed = list(timed)
            if "back_to_back" in self._timings:
                self._capture(self._timed)

    def _right(self, name: Name) -> bool:
        error = self._runners[name].error
        return error is not None and error <= self._arena.tolerance

    def _ranked(self, names: Sequence[Name]) -> Found:
        """The fastest of a search's candidates, by bursts; where those are many, by short graphs of the faster ones."""
        wrong = tuple(number for number, name in enumerate(names) if not self._right(name))
        first_us = {number: self._runners[name].first_us for number, name in enumerate(names) if number not in wrong}
        limit = min(first_us.values(), default=0.0) * SLOW_FACTOR + SLOW_US
        near = {number: us for number, us in first_us.items() if us <= limit}
        if len(near) > MANY:
            near = self._short(names, near)
        return Found(len(names), wrong, tuple(sorted(near, key=near.__getitem__)[: self._effort.finalists]))

    def _short(self, names: Sequence[Name], near: Mapping[int, float]) -> dict[int, float]:
        graphs, counts = {}, {}
        for number, us in near.items():
            counts[number] = launches_for(us, SEARCH_US, 1, MOST_SEARCH_LAUNCHES)
            graphs[number] = self._graph(names[number], counts[number])
        pairs: dict[int, Pairs] = {number: [] for number in near}
        for turn in range(SEARCH_REPLAYS + 1):
            for number, graph in graphs.items():
                pair = self._replayed(graph, counts[number])
                if turn:
                    pairs[number].append(pair)
        self._arena.stream.synchronize()
        return {number: _median_us(found) / counts[number] for number, found in pairs.items()}

    def _capture(self, names: Iterable[Name]) -> None:
        effort = self._effort
        for name in names:
            predicted_us = self._runners[name].predicted_us
            if predicted_us > effort.direct_us:
                continue
            self._counts[name] = launches_for(predicted_us, effort.graph_us)
            self._graphs[name] = self._graph(name, self._counts[name])

    def _graph(self, name: Name, count: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Not the context manager: it collects garbage and empties the allocator's cache, which takes longer than all else here.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for turn in range(count):
                self._arena.launch(self._runners[name].launch, self._buffers, turn)
        finally:
            graph.capture_end()
        return graph

    def launch(self) -> None:
        """Enqueues all that is timed, contenders in turn."""
        with torch.cuda.stream(self._arena.stream):
            for timing in self._timings:
                self._pairs[timing] = {name: [] for name in self._timed}
                self._back_to_back() if timing == "back_to_back" else self._isolated()
            self._done = self._event()
            self._done.record(self._arena.stream)

    def _back_to_back(self) -> None:
        effort, order = self._effort, list(self._timed)
        wanted = {name: self._wanted(name) for name in order}
        for turn in range(max(wanted.values()) + 1):
            order.append(order.pop(0))  # nobody always follows the same one
            for name in order:
                graph = self._graphs.get(name)
                if turn > wanted[name] or (turn == 0 and graph is None):
                    continue
                if graph is None:
                    pair = self._alone(name, turn, cold=self._buffers.set_bytes * effort.direct < COLD_BYTES)
                else:
                    pair = self._replayed(graph, self._counts[name])
                if turn:  # the first replay uploads the graph
                    self._pairs["back_to_back"][name].append(pair)

    def _wanted(self, name: Name) -> int:
        if name not in self._graphs:
            return self._effort.direct
        return replays_for(self._runners[name].predicted_us, self._counts[name], self._effort)

    def _isolated(self) -> None:
        effort, order = self._effort, list(self._timed)
        for turn in range(effort.isolated + 1):
            order.append(order.pop(0))
            for name in order:
                long = self._runners[name].predicted_us > effort.direct_us
                if turn > (effort.direct if long else effort.isolated):
                    continue
                pair = self._alone(name, turn, cold=True)
                if turn:
                    self._pairs["isolated"][name].append(pair)

    def _replayed(self, graph: torch.cuda.CUDAGraph, count: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        if min(count, len(self._buffers.addresses)) * self._buffers.set_bytes < COLD_BYTES:
            self._arena.evict()
        begin, end = self._event(), self._event()
        begin.record(self._arena.stream)
        graph.replay()
        end.record(self._arena.stream)
        return begin, end

    def _alone(self, name: Name, turn: int, cold: bool) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """One launch, in no graph. ``cold``: other memory is read before it, so that no operand is in the L2."""
        if cold:
            self._arena.evict()
        begin, end = self._event(), self._event()
        begin.record(self._arena.stream)
        self._arena.launch(self._runners[name].launch, self._buffers, turn)
        end.record(self._arena.stream)
        return begin, end

    def finish(self) -> Outcome:
        """Waits for all that was launched, and gives the medians."""
        self._done.synchronize()
        times: dict[Timing, Mapping[str, Timed]] = {}
        for timing in self._timings:
            us: dict[Name, float] = {}
            for name, found in self._pairs[timing].items():
                count = self._counts.get(name, 1) if timing == "back_to_back" else 1
                us[name] = _median_us(found) / count
            names: dict[str, Name] = {**self._plans, **{name: name for name in self._entrants.others}}
            for search, result in self._found.items():
                names |= {f"{search} {number}": self._searched[search][number] for number in result.finalists}
            times[timing] = {name: Timed(us.get(key), self._runners[key].error) for name, key in names.items()}
            times[timing] = {**times[timing], **{name: Timed(us[name]) for name in (CUBLAS, CUBLAS_AGAIN) if name in us}}
        self._arena.give_back(self._events)
        self._events = []
        return Outcome(times, self._found)

    def _event(self) -> torch.cuda.Event:
        event = self._arena.take_event()
        self._events.append(event)
        return event


def _median_us(pairs: Pairs) -> float:
    return float(median(begin.elapsed_time(end) for begin, end in pairs)) * 1e3
