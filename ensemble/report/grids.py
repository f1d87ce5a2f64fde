"""The tables of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.ensemble.ratios import by_half_decade
from cutlass_sk.ensemble.table import MADE_UP

from . import beside
from .grid import Grid, marked
from .groups import RATIOS, Group, plan_text

EXTREMES = 20
"""Problems in the tables of the worst and the best."""


BY_SIZE = tuple(name for name in RATIOS if name.split("_vs_")[0] in ("single", "set") and not name.endswith("_compute_bound"))
"""Ratios that are told apart by size."""


@dataclass(frozen=True)
class Section:
    """The tables of one group: all ratios, beside the paper's, by size, the worst and the best; and a line on what is missing."""

    group: Group
    title: str
    ratios: Grid
    beside: Grid | None
    others: tuple[Grid, ...]
    missing: str

    @property
    def grids(self) -> list[Grid]:
        return [grid for grid in (self.ratios, self.beside, *self.others) if grid is not None]

    def markdown(self) -> str:
        return "\n\n".join([f"## {marked(self.title)}", *(grid.markdown() for grid in self.grids), marked(self.missing)])


def sections(groups: Sequence[Group]) -> list[Section]:
    """A section a group. Sizes and extremes are told apart only where there are more problems than one."""
    found = []
    for group in groups:
        title = f"{group.title} ({len(group.problems):,} {'problem' if len(group.problems) == 1 else 'problems'})"
        others = [] if len(group.problems) == 1 else [grid for grid in (_by_size(group), *_extremes(group)) if grid.rows]
        found.append(Section(group, title, _ratios(group), beside.table(group), tuple(others), missing(group)))
    return found


def markdown(sections: Sequence[Section], grids: Sequence[Grid] = ()) -> str:
    """All sections, and tables of no group after them, as one text; a first line says so where times are made up."""
    mark = [f"{MADE_UP}: nothing below was measured."] if any(section.group.made_up for section in sections) else []
    return "\n\n".join([*mark, *(section.markdown() for section in sections), *(grid.markdown() for grid in grids)]) + "\n"


def missing(group: Group) -> str:
    """What a group has no numbers of, in a sentence or two; of times that are made up, that nothing was measured."""
    measured = group.ratios
    absent = [title for name, (_, _, title) in RATIOS.items() if name not in measured]
    text = f"Not measured: {'; '.join(absent)}." if absent else "Every ratio was measured."
    text = "Nothing was measured." if group.made_up else text
    counts = []
    for contender, statuses in group.left_out().items():
        told = ", ".join(f"{count:,} {status.replace('_', ' ')}" for status, count in statuses.items())
        counts.append(f"{contender}: {told}")
    if counts:
        return f"{text} Not counted: {'; '.join(counts)}."
    return text if group.made_up else f"{text} All measurements count."


def _ratios(group: Group) -> Grid:
    """Every ratio, with the statistics of the Stream-K paper's Tables 1 and 2."""
    headings = ("ratio", "mean", "standard deviation", "minimum", "maximum", "geometric mean", "n")
    rows = []
    for name, found in group.ratios.items():
        numbers = (found.mean, found.std, found.min, found.max, found.geomean)
        rows.append((RATIOS[name][2], *(f"{number:.3f}" for number in numbers if number is not None), f"{found.n:,}"))
    return Grid(f"Speed-up, {group.title}: their time over ours", headings, tuple(rows))


def _by_size(group: Group) -> Grid:
    names = [name for name in group.ratios if name in BY_SIZE]
    sizes = {name: by_half_decade([(problem.flop, ratio) for problem, ratio in group.pairs(name)]) for name in names}
    rows = []
    for start in sorted({start for found in sizes.values() for start in found}):
        cells = [
            f"{found[start].geomean:.3f} ({found[start].min:.2f} to {found[start].max:.2f}; {found[start].n})"
            if start in found
            else "-"
            for found in sizes.values()
        ]
        rows.append((f"10^{start:g} to 10^{start + 0.5:g}", *cells))
    headings = ("FLOP", *(RATIOS[name][2] for name in names))
    return Grid(f"By size, {group.title}: geometric mean (minimum to maximum; n)", headings, tuple(rows))


def _extremes(group: Group) -> list[Grid]:
    """The worst and the best problems by the chief ratio, none of them in both."""
    if group.chief is None:
        return []
    other, own, title = RATIOS[group.chief]
    ranked = sorted(group.pairs(group.chief), key=lambda pair: pair[1])
    worst, rest = ranked[:EXTREMES], ranked[EXTREMES:]
    headings = ("m x n x k", "speed-up", "us", f"{other} us", "predicted us", "kernel", "plan")

    def line(problem: Problem, ratio: float) -> tuple[str, ...]:
        ours, theirs = group.problems[problem][own], group.problems[problem][other]
        return (
            f"{problem.m} x {problem.n} x {problem.k}",
            f"{ratio:.3f}",
            *(("-" if us is None else f"{us:.2f}") for us in (ours.us, theirs.us, ours.predicted_us)),
            ours.kernel or "-",
            plan_text(ours) or "-",
        )

    made = (("Worst", worst), ("Best", rest[::-1][:EXTREMES]))
    return [
        Grid(f"{name} {len(pairs)} problems, {group.title}: {title}", headings, tuple(line(*pair) for pair in pairs))
        for name, pairs in made
    ]
