"""Our numbers beside the Stream-K paper's: its Tables 1 and 2, with the same columns."""

from __future__ import annotations

from dataclasses import dataclass

from .grid import Grid
from .groups import Group

COLUMNS = {
    "single_vs_data_parallel": "same tile, data-parallel",
    "single_vs_cublas": "cuBLAS",
    "single_vs_cublas_compute_bound": "cuBLAS, compute-bound",
    "single_vs_oracle": "oracle",
}
LINES = {"mean": "average", "std": "standard deviation", "min": "minimum", "max": "maximum"}


@dataclass(frozen=True)
class Published:
    """One table of the paper. ``numbers``: by ratio and statistic; only those that are quoted here."""

    name: str
    kernel: str
    numbers: dict[str, dict[str, float]]


PAPER: dict[str, Published] = {
    "float64": Published("Table 1", "64x64x16", {"single_vs_data_parallel": {"mean": 1.23}}),
    "float16_float32": Published("Table 2", "128x128x32", {"single_vs_data_parallel": {"mean": 1.63}}),
}
"""arXiv 2301.03598, section 6: one Stream-K kernel on an A100 with its clock locked, 32,824 problems of its own sample."""


def table(group: Group) -> Grid | None:
    """The paper's table of these dtypes, ours first in each cell; None where the paper has none, or nothing of it was measured."""
    published = PAPER.get(group.dtypes)
    if published is None or not COLUMNS.keys() & group.ratios.keys():
        return None
    rows = []
    for statistic, title in LINES.items():
        ours = [f"{getattr(group.ratios[name], statistic):.2f}" if name in group.ratios else "-" for name in COLUMNS]
        theirs = [published.numbers.get(name, {}).get(statistic) for name in COLUMNS]
        rows.append(
            (title, *(f"{own} ({'-' if their is None else f'{their:.2f}'})" for own, their in zip(ours, theirs, strict=True)))
        )
    title = f"The Stream-K paper's {published.name}, {group.title}: ours (the paper's {published.kernel} kernel on an A100)"
    return Grid(title, ("single Stream-K kernel against", *COLUMNS.values()), tuple(rows))
