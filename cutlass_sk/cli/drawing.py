"""Timelines drawn as text: SMs down, time across."""

from __future__ import annotations

from string import digits

from rich.text import Text

from ..timeline import Step, Timeline

DATA_PARALLEL, STREAM_K, FIXUP, WAIT = "white on blue", "black on green", "white on red", "dim"
TILE_NAMES = digits + "abcdefghijklmnopqrstuvwxyz"


def legend(iters: int = 1, colored: bool = True) -> Text:
    """``iters``: iterations that a column stands for. ``colored``: colours are seen, which alone tell shares from whole tiles."""
    span = "one k-tile" if iters == 1 else f"{iters} k-tiles"
    shared = (", data-parallel  ", ("0", STREAM_K), " the same in a Stream-K share  ") if colored else ("  ",)
    return Text.assemble(("0", DATA_PARALLEL), f" {span} of tile 0", *shared, ("+", FIXUP), " adding one partial sum  . waiting")


def column_iters(timeline: Timeline, width: int) -> int:
    """The fewest iterations that a column must stand for, so that lines of ``gantt`` fit ``width`` characters."""
    columns = width - len(_label(timeline, 0)) - len(f" {timeline.length}")
    return -(-timeline.length // max(1, columns))


def gantt(timeline: Timeline, iters: int = 1) -> Text:
    """A line an SM, with the time when it ends; a column stands for ``iters`` iterations."""
    rows: list[list[tuple[str, str]]] = [[] for _ in range(timeline.sms)]
    for step in timeline.steps:
        columns = _columns(step.end, iters) - _columns(step.begin, iters)
        rows[step.sm] += [_cell(step)] * columns
    width = max(map(len, rows))
    return Text("\n").join(
        Text.assemble(_label(timeline, sm), *row, " " * (width - len(row)), f" {end}")
        for sm, (row, end) in enumerate(zip(rows, timeline.ends(), strict=True))
    )


def _label(timeline: Timeline, sm: int) -> str:
    return f"SM {sm:<{len(str(timeline.sms - 1))}} "


def _columns(time: int, iters: int) -> int:
    """Columns up to ``time``, rounded."""
    return (time + iters // 2) // iters


def _cell(step: Step) -> tuple[str, str]:
    if step.action == "fixup":
        return "+", FIXUP
    if step.action == "wait":
        return ".", WAIT
    style = DATA_PARALLEL if step.segment.unit is None else STREAM_K
    return TILE_NAMES[step.segment.work_tile % len(TILE_NAMES)], style
