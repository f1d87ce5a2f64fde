"""GPU times, by one protocol for all contenders.

A contender's launches are captured in a CUDA graph, over buffer sets that rotate through more memory than the L2 holds, and the
graphs are replayed in turn, so that clocks and power are shared fairly. A contender's time is the median over replays of
(replay time / launches). ``isolated_us`` times launches one by one, each from a flushed L2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

import torch

Launch = Callable[[int], object]
"""Enqueues one launch on the current stream, on the buffer set with this number."""

ROTATING_BYTES = 256 << 20
"""Memory that the buffer sets cover together; the L2 cache of an H200 is 60 MB."""

FLUSH_BYTES = 256 << 20


def buffer_sets(bytes_per_set: int, *, most: int = 64) -> int:
    """How many buffer sets it takes to outgrow the L2 cache."""
    return max(1, min(most, -(-ROTATING_BYTES // max(1, bytes_per_set))))


def time_us(
    contenders: Mapping[str, Launch],
    sets: int,
    *,
    repeats: int = 15,
    budget_us: float = 2e5,
    fill_us: float = 2000.0,
    expected_us: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Median microseconds a launch of each contender, launches back to back.

    sets         number of buffer sets, passed to the contenders in turn
    repeats      replays of each graph, one contender after the other; fewer if a contender would take longer than ``budget_us``
    fill_us      how long a graph's launches take together: as many as that takes, but 3 at least, and every set once
    expected_us  about how long a launch takes; without it one is timed first
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graphs: dict[str, tuple[torch.cuda.CUDAGraph, int, int]] = {}
    for name, launch in contenders.items():
        with torch.cuda.stream(stream):
            launch(0)
            if expected_us is None:
                launch(sets - 1)
                single_us = max(1.0, _elapsed_us(lambda launch=launch: launch(0), stream))  # type: ignore[misc]
            else:
                single_us = max(1.0, expected_us[name])
        launches = max(sets, 3, min(100, int(fill_us / single_us)))
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
    torch.cuda.current_stream().wait_stream(stream)
    return {name: median(values) for name, values in times.items()}


def isolated_us(contenders: Mapping[str, Launch], sets: int, *, repeats: int = 15) -> dict[str, float]:
    """Median microseconds of a launch by itself, its operands in memory and not in L2: before each, the L2 is written full."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    times: dict[str, list[float]] = {name: [] for name in contenders}
    with torch.cuda.stream(stream):
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        for turn in range(-1, repeats):  # the first turn warms up
            for name, launch in contenders.items():
                flush.fill_(turn & 1)
                elapsed = _elapsed_us(lambda: launch(turn % sets), stream)  # noqa: B023
                if turn >= 0:
                    times[name].append(elapsed)
    torch.cuda.current_stream().wait_stream(stream)
    return {name: median(values) for name, values in times.items()}


class Pool:
    """One allocation of which tensors are views: thousands of problems are timed without allocating.

    Operands and outputs need a pool each: outputs read as operands overflow after a few problems, and infinities draw less power.

    random   whether it holds normal random numbers of ``dtype``, as operands must; else it is left as it is
    """

    ALIGNMENT = 256

    def __init__(self, dtype: torch.dtype, size_bytes: int = 1 << 30, *, random: bool = True, device: str = "cuda") -> None:
        self.data = torch.empty(-(-size_bytes // self.ALIGNMENT) * self.ALIGNMENT // dtype.itemsize, dtype=dtype, device=device)
        if random:
            self.data.normal_()
        self.bytes = self.data.view(torch.uint8)

    def fits(self, *sizes: tuple[int, torch.dtype]) -> int:
        """How many sets of tensors of so many elements there is room for."""
        return self.bytes.numel() // self.set_bytes(*sizes)

    def take(self, number: int, *sizes: tuple[int, torch.dtype]) -> list[torch.Tensor]:
        """Set ``number``: flat tensors of so many elements, 256-byte aligned, at an offset of its own."""
        begin, tensors = number * self.set_bytes(*sizes), []
        for elements, dtype in sizes:
            end = begin + elements * dtype.itemsize
            tensors.append(self.bytes[begin:end].view(dtype))
            begin = -(-end // self.ALIGNMENT) * self.ALIGNMENT
        return tensors

    @classmethod
    def set_bytes(cls, *sizes: tuple[int, torch.dtype]) -> int:
        """Bytes that tensors of so many elements take, each 256-byte aligned."""
        return sum(-(-elements * dtype.itemsize // cls.ALIGNMENT) * cls.ALIGNMENT for elements, dtype in sizes)


def _elapsed_us(work: Callable[[], object], stream: torch.cuda.Stream) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return float(begin.elapsed_time(end) * 1e3)
