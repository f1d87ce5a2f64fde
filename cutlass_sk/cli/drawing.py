"""Schedules drawn as text: workers down, time across."""

from __future__ import annotations

from collections.abc import Iterator
from string import digits

from rich.text import Text

from ..plan import Plan
from ..schedule import Segment, schedule

DATA_PARALLEL, STREAM_K, FIXUP, WAIT = "white on blue", "black on green", "white on red", "dim"
TILE_NAMES = digits + "abcdefghijklmnopqrstuvwxyz"


def legend() -> Text:
    return Text.assemble(
        ("0", DATA_PARALLEL), " one k-tile of tile 0, data-parallel  ", ("0", STREAM_K), " the same in a Stream-K share  ",
        ("+", FIXUP), " adding one partial sum  . waiting",
    )  # fmt: skip


def gantt(plan: Plan) -> tuple[Text, int]:
    """The schedule of ``plan`` and its length; a k-tile takes one step of time, and so does adding one peer's partial sums.

    For plans without a separate reduction, whose SMs are its workers.
    """
    rows: list[list[tuple[str, str]]] = [[] for _ in schedule(plan)]
    ready: dict[tuple[int, int], int] = {}
    # A unit waits only for lower ones, and a worker's segments come in order: rounds over all workers end.
    waiting = [list(segments) for segments in schedule(plan)]
    while any(waiting):
        for row, segments in zip(rows, waiting, strict=True):
            while segments and all((peer, segments[0].work_tile) in ready for peer in segments[0].peers):
                _draw(segments.pop(0), row, ready)
    length = max(map(len, rows))
    lines = []
    for worker, row in enumerate(rows):
        lines.append(Text.assemble(f"SM {worker} ", *row, (" " * (length - len(row)), ""), f" {len(row)}"))
    return Text("\n").join(lines), length


def _draw(segment: Segment, row: list[tuple[str, str]], ready: dict[tuple[int, int], int]) -> None:
    row.extend(_mac_steps(segment))
    for peer in segment.peers:
        row.extend([(".", WAIT)] * (ready[peer, segment.work_tile] - len(row)))
        row.append(("+", FIXUP))
    if segment.role == "partial" and segment.unit is not None:
        ready[segment.unit, segment.work_tile] = len(row)


def _mac_steps(segment: Segment) -> Iterator[tuple[str, str]]:
    style = DATA_PARALLEL if segment.unit is None else STREAM_K
    for _ in range(segment.k_begin, segment.k_end):
        yield TILE_NAMES[segment.work_tile % len(TILE_NAMES)], style
