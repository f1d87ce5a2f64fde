"""GPU times of contenders, taken side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

import torch

WARM_UP = 3
LAUNCHES = 20
ROUNDS = 15


def time_us(contenders: Mapping[str, Callable[[], object]], *, launches: int = LAUNCHES, rounds: int = ROUNDS) -> dict[str, float]:
    """Microseconds of one call of each contender on the current GPU: median over ``rounds``.

    A contender's ``launches`` calls are captured back to back in a graph, so that no time of the host counts. The graphs are
    replayed in turns, so that a drifting clock meets all of them. Operands stay where they are: small ones are warm in L2.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graphs = {}
    for name, call in contenders.items():
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                call()
        stream.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name], stream=stream):
            for _ in range(launches):
                call()
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in graphs}
    with torch.cuda.stream(stream):
        for graph in graphs.values():
            graph.replay()
        for _ in range(rounds):  # nothing waits in here: the host runs ahead and the GPU never idles
            for name, graph in graphs.items():
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                graph.replay()
                end.record()
                events[name].append((start, end))
    stream.synchronize()
    torch.cuda.current_stream().wait_stream(stream)
    return {name: median(start.elapsed_time(end) for start, end in pairs) * 1e3 / launches for name, pairs in events.items()}
