"""From counters of ours and cuBLAS to what a reader needs: derived columns, floors, a cause for each problem. Plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from cutlass_sk.ensemble import ncu
from cutlass_sk.ensemble.counters_input import launched
from cutlass_sk.ensemble.ncu import Launch

Counters = Mapping[str, Any]

EVEN = 1.02
"""Ours within this of cuBLAS's time counts as not slower."""
IDLE_SHARE, IDLE_FACTOR = 0.95, 1.05
PADDING, WORK = 1.15, 1.1
TRAFFIC = 1.3
DRAM_GBS = 1000.0
"""A product that moves less than this is not waiting for memory on any GPU that kernels exist for."""
CLOCK, UTILISATION, LAUNCH = 1.05, 1.1, 1.05
SHORT_ITERATIONS = 16
"""k-tiles of a tile up to which filling the pipeline and the epilogue weigh as much as the main loop."""

CAUSES = {
    "not slower": f"under the profiler ours takes at most {EVEN} times cuBLAS's time",
    "idle SMs": f"SMs are active for less than {IDLE_SHARE:.0%} of the busiest one's cycles, cuBLAS's for {IDLE_FACTOR} times that",
    "padding": f"tiles cover more than {PADDING} times the output, and tensor pipes work longer than cuBLAS's (or unknown)",
    "slower tensor instructions": f"tensor pipes are busy for more than {WORK} times cuBLAS's cycles, without such padding",
    "more traffic from L2": f"SMs receive more than {TRAFFIC} times cuBLAS's bytes (unknown: L2 serves as many)",
    "more traffic from memory": f"more than {TRAFFIC} times cuBLAS's bytes, at more than {DRAM_GBS:.0f} GB/s",
    "long prologue and epilogue": f"as the next, where a tile has at most {SHORT_ITERATIONS} k-tiles",
    "lower tensor utilisation in the main loop": f"cuBLAS's are {UTILISATION} times as busy while SMs are active; no more traffic",
    "launch and drain": f"cycles in which no SM is active, beyond cuBLAS's, make ours {LAUNCH} times as long",
    "lower clock": f"cuBLAS runs at {CLOCK} times our SM clock",
    "not told by these counters": "none of these",
}
"""Name -> when it holds."""


def cause(ours: Counters, cublas: Counters, padding: float = 1.0, iters_per_tile: int | None = None) -> list[tuple[str, float]]:
    """Why ours is slower: (name in ``CAUSES``, factor by which ours is worse), the largest first.

    A factor is how much worse one quantity is, not the part of the time that it explains: several may stand for one. Counters
    that are missing leave the causes out that need them.

    padding          area of our tiles over m * n
    iters_per_tile   k-tiles of a tile, of our plan
    """
    slower = _over(ours.get(ncu.TIME), cublas.get(ncu.TIME))
    if slower is not None and slower <= EVEN:
        return [("not slower", slower)]
    found: dict[str, float] = {}
    busy, busy_cublas = active_share(ours), active_share(cublas)
    idle = _over(busy_cublas, busy)
    if idle is not None and busy is not None and busy < IDLE_SHARE and idle >= IDLE_FACTOR:
        found["idle SMs"] = idle
    work = _over(_tensor_cycles(ours), _tensor_cycles(cublas))
    if padding > PADDING and (work is None or work > IDLE_FACTOR):
        found["padding"] = padding
    elif work is not None and work > WORK:
        found["slower tensor instructions"] = work
    traffic = _traffic(ours, cublas)
    found |= traffic
    utilisation = _over(_while_active(cublas), _while_active(ours))
    if utilisation is not None and utilisation > UTILISATION and not traffic:
        short = iters_per_tile is not None and iters_per_tile <= SHORT_ITERATIONS
        found["long prologue and epilogue" if short else "lower tensor utilisation in the main loop"] = utilisation
    found |= _outside(ours, cublas)
    return sorted(found.items(), key=lambda item: -item[1]) or [("not told by these counters", slower or 1.0)]


def _traffic(ours: Counters, cublas: Counters) -> dict[str, float]:
    """What ours moves more than cuBLAS."""
    found = {}
    from_l2 = _over(ours.get(ncu.FROM_L2), cublas.get(ncu.FROM_L2)) or _over(ours.get(ncu.L2), cublas.get(ncu.L2))
    if from_l2 is not None and from_l2 > TRAFFIC:
        found["more traffic from L2"] = from_l2
    moved, time_ns = dram_bytes(ours), ours.get(ncu.TIME)
    memory = _over(moved, dram_bytes(cublas))
    if memory is not None and moved and time_ns and memory > TRAFFIC and moved / time_ns > DRAM_GBS:
        found["more traffic from memory"] = memory
    return found


def _outside(ours: Counters, cublas: Counters) -> dict[str, float]:
    """What is no SM's work: cycles before the first and after the last one is active, and the clock."""
    found = {}
    elapsed, idle, idle_cublas = ours.get(ncu.ELAPSED), _nobody(ours), _nobody(cublas)
    if elapsed and idle is not None and idle_cublas is not None:
        launch = _over(elapsed, elapsed - max(0.0, idle - idle_cublas))
        if launch is not None and launch > LAUNCH:
            found["launch and drain"] = launch
    clock = _over(_clock(cublas), _clock(ours))
    if clock is not None and clock > CLOCK:
        found["lower clock"] = clock
    return found


def active_share(counters: Counters) -> float | None:
    """The mean of the SMs' active cycles over the busiest one's; SMs without a CTA count as 0."""
    return _over(counters.get(ncu.ACTIVE), counters.get(ncu.ACTIVE_MOST))


def tensor_percent(counters: Counters) -> float | None:
    """How busy the tensor pipes are over the elapsed time."""
    return max((value for name in ncu.TENSOR if (value := counters.get(name)) is not None), default=None)


def dram_bytes(counters: Counters) -> float | None:
    known = [value for name in ncu.DRAM if (value := counters.get(name)) is not None]
    return sum(known) if known else None


def _tensor_cycles(counters: Counters) -> float | None:
    percent, elapsed = tensor_percent(counters), counters.get(ncu.ELAPSED)
    return None if percent is None or elapsed is None else percent / 100 * elapsed


def _while_active(counters: Counters) -> float | None:
    """The busy part of the tensor pipes while their SM is active."""
    return _over(_tensor_cycles(counters), counters.get(ncu.ACTIVE))


def _nobody(counters: Counters) -> float | None:
    elapsed, active = counters.get(ncu.ELAPSED), counters.get(ncu.ACTIVE_MOST)
    return None if elapsed is None or active is None else max(0.0, elapsed - active)


def _clock(counters: Counters) -> float | None:
    return _over(counters.get(ncu.ELAPSED), counters.get(ncu.TIME))


def _over(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def contender(launches: Sequence[Launch]) -> dict[str, Any] | None:
    """Kernel names, counters, and what follows from them; None where nothing was profiled."""
    if not launches:
        return None
    counters = ncu.together(launches)
    time_ns = counters.get(ncu.TIME)
    return {
        "kernels": [launch.kernel for launch in launches],
        "kernels_us": [_scaled(launch.metrics.get(ncu.TIME), 1e-3) for launch in launches],
        **counters,
        "time_us": _scaled(time_ns, 1e-3),
        "tensor_percent": tensor_percent(counters),
        "active_share": active_share(counters),
    }


def problems(manifest: Mapping[str, Any], launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """The record's problems: what the manifest says of each, counters of ours and cuBLAS, and a cause where both are there.

    Problems that nothing was profiled of are left out.
    """
    groups, found = ncu.by_contender(launches, len(manifest["problems"]), launched(manifest["problems"])), []
    for number, entry in enumerate(manifest["problems"]):
        ours, cublas = (contender(groups.get((number, name), [])) for name in ("ours", "cublas"))
        if ours is None and cublas is None:
            continue
        row = {**entry, "ours": ours, "cublas": cublas, "causes": [], "cause": None}
        if ours is not None and cublas is not None:
            causes = cause(ours, cublas, entry["padding"], entry["plan"]["iters_per_tile"])
            row["causes"] = [[name, round(factor, 3)] for name, factor in causes]
            row["cause"] = "; ".join(f"{name} ({factor:.2f}x)" for name, factor in causes)
        found.append(row)
    return found


COLUMNS: dict[str, Callable[[Counters], str]] = {
    "us": lambda counters: _text(counters["time_us"], ".1f"),
    "tensor %": lambda counters: _text(counters["tensor_percent"], ".0f"),
    "L2->SM MB": lambda counters: _text(_scaled(counters.get(ncu.FROM_L2), 1e-6), ".1f"),
    "L2 MB": lambda counters: _text(_scaled(counters.get(ncu.L2), 1e-6), ".1f"),
    "DRAM MB": lambda counters: _text(_scaled(dram_bytes(counters), 1e-6), ".1f"),
    "active": lambda counters: _text(counters["active_share"], ".2f"),
    "waves": lambda counters: _text(counters.get(ncu.WAVES), ".2f"),
}
"""Column of the table -> a contender's cell."""


def table(found: Sequence[Mapping[str, Any]], dtype: str) -> Table:
    """Each cell: ours over a line break cuBLAS's."""
    made = Table(title=f"{dtype}: ours, below it cuBLAS", show_lines=True)
    for name in ("m x n x k", "recorded", *COLUMNS, "plan", "cause"):
        made.add_column(name, overflow="fold")
    for row in found:
        cells = [
            "\n".join("-" if row[name] is None else cell(row[name]) for name in ("ours", "cublas")) for cell in COLUMNS.values()
        ]
        plan = row["plan"]
        shown = f"{plan['kernel']}\n{plan['decomposition']}, grid {plan['grid']}"
        shape = f"{row['m']} x {row['n']} x {row['k']}"
        made.add_row(shape, _text(row["ratio_recorded"], ".3f"), *cells, shown, row["cause"] or "-")
    return made


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
