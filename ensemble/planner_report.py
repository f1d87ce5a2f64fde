"""From the records of ``planner_sweep`` to its JSON and its tables. Plain arithmetic; no GPU.

A row has ``part``, ``dtype``, m, n, k, and an object for each contender with ``us`` (null: it was not timed); for ours also the
plan, and ``error``, the largest difference from cuBLAS over sqrt(k) (null: NaN, refused, or barriers were left set). Wrong results
are counted; their times stay in. Parts:

    main        back to back in graphs: set, single, data_parallel, cublas, on a sample cublas_again
    isolated    one launch at a time, L2 cold: the same contenders
    exhaustive  set, cublas, and ``best``, the best of ``tried`` plans; back to back
    square      8192^3, as main
    host        what deciding and calling cost, and the kernels
    clocks      what nvidia-smi said before and after a dtype
    provenance  commit, date, machine, versions, corpus
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.ensemble.ratios import Ratios, by_half_decade
from cutlass_sk.ensemble.records import RecordError, Row, key
from cutlass_sk.generator.spec import ELEMENT_BYTES

DTYPES: dict[str, tuple[str, str]] = {
    "float16": ("float16", "float16"),
    "float16_float32": ("float16", "float32"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "float64": ("float64", "float64"),
}
"""Name in the record -> element types of a and b, and of c."""

COMPUTE_BOUND = 400
"""FLOP a byte, above which a problem counts as compute-bound."""
WORST = 20

RATIOS: dict[str, tuple[str, str, str]] = {
    "single_vs_data_parallel": ("main", "data_parallel", "single"),
    "single_vs_cublas": ("main", "cublas", "single"),
    "set_vs_cublas": ("main", "cublas", "set"),
    "set_vs_cublas_isolated": ("isolated", "cublas", "set"),
    "set_vs_cublas_compute_bound": ("main", "cublas", "set"),
    "set_vs_exhaustive": ("exhaustive", "best", "set"),
    "single_vs_cublas_isolated": ("isolated", "cublas", "single"),
    "single_vs_data_parallel_isolated": ("isolated", "data_parallel", "single"),
    "cublas_vs_itself": ("main", "cublas_again", "cublas"),
}
"""Name -> part, and whose time is divided by whose. The last is the noise of all others."""
TITLES = {
    "single_vs_data_parallel": "single kernel / same kernel data-parallel",
    "single_vs_cublas": "single kernel / cuBLAS",
    "set_vs_cublas": "set / cuBLAS",
    "set_vs_cublas_isolated": "set / cuBLAS, isolated, cold L2",
    "set_vs_cublas_compute_bound": f"set / cuBLAS above {COMPUTE_BOUND} FLOP/B",
    "set_vs_exhaustive": "set / best of its exhaustive search",
    "single_vs_cublas_isolated": "single kernel / cuBLAS, isolated, cold L2",
    "single_vs_data_parallel_isolated": "single kernel / data-parallel, isolated, cold L2",
    "cublas_vs_itself": "cuBLAS / itself (noise)",
}
HOST = (
    "kernels",
    "bytes",
    "shared_object_bytes",
    "decide_us_new",
    "decide_us_known",
    "run_cpu_us",
    "torch_mm_cpu_us",
    "torch_mm_alloc_cpu_us",
)


def pairs(rows: Iterable[Row], name: str, dtype: str) -> list[tuple[Row, float]]:
    """(row, speed-up) of every row of ``dtype`` that has both times of the ratio ``name``; above 1 the set or kernel is faster."""
    part, other, own = RATIOS[name]
    found = []
    for row in rows:
        if row["part"] != part or row["dtype"] != dtype or other not in row or own not in row:
            continue
        if name == "set_vs_cublas_compute_bound" and not compute_bound(row):
            continue
        theirs, ours = row[other]["us"], row[own]["us"]
        if theirs is None or ours is None:
            continue
        if name == "set_vs_exhaustive":  # the set's own plan is one of those that were tried
            theirs = min(theirs, ours)
        found.append((row, theirs / ours))
    return found


def compute_bound(row: Row) -> bool:
    dtype, out_dtype = DTYPES[row["dtype"]]
    return problem(row).intensity(ELEMENT_BYTES[dtype], ELEMENT_BYTES[out_dtype]) > COMPUTE_BOUND


def problem(row: Row) -> Problem:
    return Problem(row["m"], row["n"], row["k"])


def wrong(row: Row) -> list[str]:
    """Contenders of a row whose result was beyond the tolerance, or that left barriers behind."""
    ours = [name for name in ("set", "single", "data_parallel", "best") if name in row]
    return [name for name in ours if not right(row[name].get("error"), row["tolerance"])]


def report(rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON: provenance, and for each dtype what was measured of it. RecordError where rows of several commits or GPUs meet."""
    rows = latest(rows)
    result: dict[str, Any] = {"provenance": source(rows)}
    for dtype in DTYPES:
        own = [row for row in rows if row["dtype"] == dtype]
        if own:
            result[dtype] = _of_dtype(own, dtype)
    return result


def latest(rows: Sequence[Row]) -> list[Row]:
    """The rows without those that a later one of the same measurement replaces."""
    return list({_identity(row, number): row for number, row in enumerate(rows)}.values())


def source(rows: Sequence[Row]) -> dict[str, Any]:
    """Provenance and clocks of the rows. RecordError where rows of several commits or GPUs meet, or none has a provenance."""
    sources = [row for row in rows if row["part"] == "provenance"]
    if not sources:
        raise RecordError("the records hold no provenance; they are not planner_sweep's")
    for name in ("commit", "gpu", "torch", "corpus"):
        values = sorted({str(source.get(name)) for source in sources})
        if len(values) > 1:
            raise RecordError(f"records of different {name} do not go into one report: {', '.join(values)}")
    provenance = {name: value for name, value in sources[0].items() if name not in ("part", "dtype")}
    provenance["runs"] = len(sources)
    provenance["clocks"] = [
        {name: value for name, value in row.items() if name != "part"} for row in rows if row["part"] == "clocks"
    ]
    return provenance


def _of_dtype(rows: Sequence[Row], dtype: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        name: Ratios.of([ratio for _, ratio in pairs(rows, name, dtype)]).to_json()
        for name in RATIOS
        if not name.startswith("cublas")
    }
    squares = [row for row in rows if row["part"] == "square" and row["set"]["us"]]
    entry["square_8192_vs_cublas"] = round(squares[-1]["cublas"]["us"] / squares[-1]["set"]["us"], 4) if squares else None
    host = next((row for row in reversed(rows) if row["part"] == "host"), {})
    entry.update({name: host.get(name) for name in HOST})
    entry["cublas_vs_itself"] = Ratios.of([ratio for _, ratio in pairs(rows, "cublas_vs_itself", dtype)]).to_json()
    measured = [row for row in rows if "tolerance" in row]
    entry["wrong"] = sum(1 for row in measured if wrong(row)) + sum(row.get("wrong_tried", 0) for row in measured)
    entry["not_timed"] = sum(1 for row in measured for value in row.values() if isinstance(value, dict) and value["us"] is None)
    return entry


def table(result: Mapping[str, Any], goals: Mapping[str, float] | None = None) -> str:
    """The targets in Markdown. ``goals``: what a mean should reach, by ratio (``set_vs_cublas``) or dtype and ratio
    (``float16.set_vs_cublas``)."""
    dtypes = [dtype for dtype in DTYPES if dtype in result]
    lines = ["| arithmetic mean (geometric; min to max; standard deviation; shapes) | " + " | ".join(dtypes) + " |"]
    lines.append("|---" * (len(dtypes) + 1) + "|")
    for name in RATIOS:
        cells = [_cell(result[dtype].get(name), _goal(goals, dtype, name)) for dtype in dtypes]
        lines.append(f"| {TITLES[name]} | " + " | ".join(cells) + " |")

    def row(title: str, name: str, show: Callable[[Any], str]) -> None:
        cells = []
        for dtype in dtypes:
            value = result[dtype].get(name)
            goal = _goal(goals, dtype, name)
            least = name.startswith("square")
            cells.append("-" if value is None else show(value) + (_outcome(value, goal, least) if goal is not None else ""))
        lines.append(f"| {title} | " + " | ".join(cells) + " |")

    row("8192^3, set / cuBLAS", "square_8192_vs_cublas", "{:.3f}".format)
    row("kernels", "kernels", lambda value: str(len(value)))
    row("bytes of GPU code", "bytes", "{:,}".format)
    row("bytes of shared objects", "shared_object_bytes", "{:,}".format)
    row("deciding a new problem, us", "decide_us_new", "{:.2f}".format)
    row("deciding a known one, us", "decide_us_known", "{:.2f}".format)
    row("`run(a, b, c)` on the CPU, us", "run_cpu_us", "{:.2f}".format)
    row("`torch.mm(out=)`, us", "torch_mm_cpu_us", "{:.2f}".format)
    row("`torch.mm`, us", "torch_mm_alloc_cpu_us", "{:.2f}".format)
    row("wrong results", "wrong", str)
    return "\n".join(lines)


SUMMARY = {
    "set_vs_cublas": "the set over cuBLAS",
    "single_vs_cublas": "its first kernel over cuBLAS",
    "single_vs_data_parallel": "its first kernel over the same kernel data-parallel",
    "set_vs_exhaustive": "the planned over the best of all kernels and plans",
    "set_vs_cublas_isolated": "the set over cuBLAS, one launch at a time, cold L2",
}


def summary(result: Mapping[str, Any]) -> str:
    """The README's table, in Markdown: geometric mean (min to max; shapes) of the main ratios, what a call costs, and sizes."""
    entries = [result[dtype] for dtype in DTYPES]

    def row(title: str, cells: Iterable[str]) -> str:
        return f"| {title} | " + " | ".join(cells) + " |"

    lines = [row("", (" -> ".join(dict.fromkeys(DTYPES[dtype])) for dtype in DTYPES)), "|---" * (len(entries) + 1) + "|"]
    for name, title in SUMMARY.items():
        lines.append(row(title, ("{geomean:.2f} ({min:.2f} to {max:.2f}; {n})".format(**entry[name]) for entry in entries)))
    lines.append(row("8192^3 over cuBLAS", (f"{entry['square_8192_vs_cublas']:.2f}" for entry in entries)))
    calls = (f"{entry['run_cpu_us']:.1f}, {entry['torch_mm_cpu_us']:.1f} us" for entry in entries)
    lines.append(row("CPU time of `run(a, b, c)`, of `torch.mm(out=)`", calls))
    lines.append(row("kernels, bytes of GPU code", (f"{len(entry['kernels'])}, {entry['bytes']:,}" for entry in entries)))
    return "\n".join(lines)


def details(rows: Sequence[Row], names: Sequence[str] = ("set_vs_cublas", "single_vs_cublas", "single_vs_data_parallel")) -> str:
    """By dtype and ratio: the distribution by size, and the worst problems with kernel and plan."""
    lines: list[str] = []
    for dtype in DTYPES:
        for name in names:
            found = pairs(rows, name, dtype)
            if not found:
                continue
            lines += [
                "",
                f"### {dtype}: {TITLES[name]}",
                "",
                "| FLOP from | mean | geometric | min | max | shapes |",
                "|---|---|---|---|---|---|",
            ]
            for start, ratios in by_half_decade([(problem(row).flop, ratio) for row, ratio in found]).items():
                lines.append(
                    f"| 1e{start:g} | {ratios.mean:.3f} | {ratios.geomean:.3f} | {ratios.min:.3f} | {ratios.max:.3f} | {ratios.n} |"
                )
            _, other, own = RATIOS[name]
            lines += [
                "",
                f"| m x n x k | ratio | us | {other.replace('_', ' ')} us | predicted us | kernel | plan |",
                "|---" * 7 + "|",
            ]
            for row, ratio in sorted(found, key=lambda pair: pair[1])[:WORST]:
                ours = row[own]
                lines.append(
                    f"| {row['m']} x {row['n']} x {row['k']} | {ratio:.3f} | {ours['us']:.2f} | {row[other]['us']:.2f} "
                    f"| {ours['predicted_us']:.2f} | {ours['kernel']} | {_plan(ours)} |"
                )
        bad = [(row, wrong(row)) for row in rows if row["dtype"] == dtype and "tolerance" in row and wrong(row)]
        if bad:
            lines += ["", f"### {dtype}: wrong results", ""]
            lines += [f"- {row['m']} x {row['n']} x {row['k']} ({row['part']}): {', '.join(names)}" for row, names in bad]
    return "\n".join(lines).strip()


def _plan(ours: Mapping[str, Any]) -> str:
    if ours["decomposition"] == "data_parallel":
        return f"data_parallel on {ours['grid']} CTAs"
    if ours["decomposition"] == "split_k":
        return f"{ours['splits']} splits"
    return f"{ours['sk_tiles']} tiles in {ours['sk_units']} units"


def _cell(ratios: Mapping[str, Any] | None, goal: float | None) -> str:
    if not ratios or not ratios["n"]:
        return "-"
    text = "{mean:.3f} ({geomean:.3f}; {min:.2f} to {max:.2f}; {std:.2f}; {n})".format(**ratios)
    return text + ("" if goal is None else _outcome(ratios["mean"], goal, True))


def _outcome(value: float, goal: float, least: bool) -> str:
    met = value >= goal if least else value <= goal
    return f"; {'at least' if least else 'at most'} {goal:g}: {'met' if met else 'missed'}"


def _goal(goals: Mapping[str, float] | None, dtype: str, name: str) -> float | None:
    goals = goals or {}
    return goals.get(f"{dtype}.{name}", goals.get(name))


def right(error: float | None, tolerance: float) -> bool:
    """Whether a largest difference is a number within the tolerance; both over sqrt(k)."""
    return error is not None and isfinite(error) and error <= tolerance


def _identity(row: Row, number: int) -> tuple[object, ...]:
    """A later row of the same measurement replaces an earlier one; provenance and clocks are all kept."""
    return (number,) if row["part"] in ("provenance", "clocks") else key(row)
