"""``summary.json``: every ratio of every group, and what was not measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass_sk.ensemble.planner_report import COMPUTE_BOUND, DTYPES
from cutlass_sk.ensemble.table import Table
from cutlass_sk.provenance import commit

from .groups import RATIOS, Group


def summarize(table: Table, groups: Sequence[Group], files: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The summary: by dtype, corpus, timing mode and ratio {mean, geomean, min, max, std, n}. It holds no date of its own.

    files   what the report is made from: name, digest and content of each
    """
    result: dict[str, Any] = {
        "provenance": {
            "script": "cutlass-sk report",
            "commit": commit(),
            "files": list(files),
            "sources": [dict(source) for source in table.sources],
        },
        "compute_bound_flop_per_byte": COMPUTE_BOUND,
        "not_measured": {dtypes: "no records" for dtypes in DTYPES},
        "left_out": {},
    }
    for group in groups:
        ratios = group.ratios()
        place = result.setdefault(group.dtypes, {}).setdefault(group.corpus, {})
        place[group.timing] = {name: found.to_json() for name, found in ratios.items()}
        if result["not_measured"].get(group.dtypes) == "no records":
            del result["not_measured"][group.dtypes]
        missing = [name for name in RATIOS if name not in ratios]
        for what, found in (("not_measured", missing), ("left_out", group.left_out())):
            if found:
                result[what].setdefault(group.dtypes, {}).setdefault(group.corpus, {})[group.timing] = found
    return result
