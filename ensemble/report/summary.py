"""``summary.json``: every ratio of every group, library sizes, and what was not measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cutlass_sk.ensemble.planner_report import COMPUTE_BOUND, DTYPES
from cutlass_sk.ensemble.table import Table, TableError
from cutlass_sk.provenance import commit

from .groups import RATIOS, Group
from .sizes import Sizes


def summarize(
    table: Table, groups: Sequence[Group], files: Sequence[Mapping[str, Any]], sizes: Sizes | None = None
) -> dict[str, Any]:
    """The summary: by dtype, corpus, timing mode and ratio {mean, geomean, std, min, max, n}; ``library_size``. It has no date.

    files   what the report is made from: name, digest and content of each

    TableError for two corpora whose names would be one here.
    """
    result: dict[str, Any] = {
        "provenance": {
            "script": "cutlass-sk report",
            "commit": commit(),
            "files": [dict(file) for file in files],
            "sources": [dict(source) for source in table.sources],
            "sizes": None if sizes is None else dict(sizes.provenance),
        },
        "compute_bound_flop_per_byte": COMPUTE_BOUND,
        "library_size": {} if sizes is None else sizes.to_json(),
        "not_measured": {dtypes: "no records" for dtypes in DTYPES},
        "left_out": {},
    }
    for group in groups:
        place = result.setdefault(group.dtypes, {}).setdefault(group.corpus_key, {})
        if group.timing in place:
            raise TableError(f"two corpora have the name {group.corpus_key!r} in a summary; measure {group.corpus!r} under another")
        place[group.timing] = {name: found.to_json() for name, found in group.ratios.items()}
        if result["not_measured"].get(group.dtypes) == "no records":
            del result["not_measured"][group.dtypes]
        missing = [name for name in RATIOS if name not in group.ratios]
        for what, found in (("not_measured", missing), ("left_out", group.left_out())):
            if found:
                result[what].setdefault(group.dtypes, {}).setdefault(group.corpus_key, {})[group.timing] = found
    return result
