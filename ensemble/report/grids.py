"""The tables of a report, as Markdown and as HTML. Texts come from records, so that both forms escape them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.ensemble.ratios import by_half_decade

from .groups import RATIOS, Group, plan_text

EXTREMES = 20
"""Problems in the tables of the worst and the best."""


@dataclass(frozen=True)
class Grid:
    """A table under a title."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        lines = [self.headings, ("---",) * len(self.headings), *self.rows]
        return f"### {_mark(self.title)}\n\n" + "\n".join(f"| {' | '.join(map(_mark, line))} |" for line in lines)

    def html(self) -> str:
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in self.headings)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in self.rows)
        caption = f"<caption>{escape(self.title)}</caption>"
        return f'<div class="wide"><table>{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>'


@dataclass(frozen=True)
class Section:
    """The tables of one group: the paper's form, by size, the worst and the best; and a line on what is missing."""

    group: Group
    title: str
    paper: Grid
    others: tuple[Grid, ...]
    missing: str

    def markdown(self) -> str:
        return "\n\n".join(
            [f"## {_mark(self.title)}", *(grid.markdown() for grid in (self.paper, *self.others)), _mark(self.missing)]
        )


def sections(groups: Sequence[Group]) -> list[Section]:
    """A section a group. Sizes and extremes are told apart only where there are more problems than one."""
    found = []
    for group in groups:
        title = f"{group.title} ({len(group.problems):,} {'problem' if len(group.problems) == 1 else 'problems'})"
        others = [] if len(group.problems) == 1 else [grid for grid in (_by_size(group), *_extremes(group)) if grid.rows]
        found.append(Section(group, title, _paper(group), tuple(others), missing(group)))
    return found


def missing(group: Group) -> str:
    """What a group has no numbers of, in a sentence or two."""
    measured = group.ratios()
    absent = [title for name, (_, _, title) in RATIOS.items() if name not in measured]
    text = f"Not measured: {'; '.join(absent)}." if absent else "Every ratio was measured."
    counts = []
    for contender, statuses in group.left_out().items():
        told = ", ".join(f"{count:,} {status.replace('_', ' ')}" for status, count in statuses.items())
        counts.append(f"{contender}: {told}")
    return f"{text} Not counted: {'; '.join(counts)}." if counts else f"{text} All measurements count."


def _paper(group: Group) -> Grid:
    """The form of the Stream-K paper's Tables 1 and 2."""
    headings = ("Stream-K against", "mean", "standard deviation", "minimum", "maximum", "geometric mean", "n")
    rows = []
    for name, found in group.ratios().items():
        numbers = (found.mean, found.std, found.min, found.max, found.geomean)
        rows.append((RATIOS[name][2], *(f"{number:.3f}" for number in numbers if number is not None), f"{found.n:,}"))
    return Grid(f"Speed-up, {group.title}: their time over ours", headings, tuple(rows))


def _by_size(group: Group) -> Grid:
    names = [name for name in group.ratios() if not name.endswith("_compute_bound") and name != "cublas_vs_itself"]
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


def _mark(text: str) -> str:
    """A text in one cell or line of Markdown, its marks and HTML escaped."""
    text = " ".join(text.split())
    for mark in "\\|`*[]":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;")
