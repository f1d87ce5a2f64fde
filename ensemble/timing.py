"""One timing protocol for all contenders.

A contender's launches are captured in a CUDA graph, over buffer sets that rotate through more memory than the L2 holds, and the
graphs are replayed in turn, so that clocks and power are shared fairly. A contender's time is the median over replays of
(replay time / launches).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

import torch

Launch = Callable[[int], object]
"""Enqueues one launch on the current stream, on the buffer set with this number."""

ROTATING_BYTES = 256 << 20
"""Memory that the buffer sets cover together; the L2 cache of an H200 is 60 MB."""


def buffer_sets(bytes_per_set: int, *, most: int = 64) -> int:
    """How many buffer sets it takes to outgrow the L2 cache."""
    return max(1, min(most, -(-ROTATING_BYTES // max(1, bytes_per_set))))


def time_us(contenders: Mapping[str, Launch], sets: int, *, repeats: int = 15, budget_us: float = 2e5) -> dict[str, float]:
    """Median microseconds a launch of each contender, launches back to back.

    sets        number of buffer sets, passed to the contenders in turn
    repeats     replays of each graph, one contender after the other; fewer if a contender would take longer than ``budget_us``
    """
    stream = torch.cuda.Stream()
    graphs: dict[str, tuple[torch.cuda.CUDAGraph, int, int]] = {}
    for name, launch in contenders.items():
        with torch.cuda.stream(stream):
            for number in range(min(sets, 2)):
                launch(number)
            single_us = max(1.0, _elapsed_us(lambda launch=launch: launch(0), stream))  # type: ignore[misc]
        launches = max(sets, min(100, int(2000 / single_us)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for number in range(launches):
                launch(number % sets)
        graphs[name] = graph, launches, max(3, min(repeats, int(budget_us / (single_us * launches))))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    with torch.cuda.stream(stream):
        for turn in range(max(count for _, _, count in graphs.values())):
            for name, (graph, launches, count) in graphs.items():
                if turn < count:
                    times[name].append(_elapsed_us(graph.replay, stream) / launches)
    return {name: median(values) for name, values in times.items()}


def _elapsed_us(work: Callable[[], object], stream: torch.cuda.Stream) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return float(begin.elapsed_time(end) * 1e3)
