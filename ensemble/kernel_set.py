"""Which kernels make a set: ``python -m cutlass_sk.ensemble.kernel_set TIMES.jsonl -o results/h200/kernel_set.json``

TIMES has a row for each problem, kernel and plan, {m, n, k, kernel, dec, sk_tiles, sk_units, splits, grid, us}, and one for each
problem with kernel = "cublas", {us, us2}: cuBLAS timed twice. Records of ``cutlass-sk calibrate`` are rows, too: ``--only`` takes
those of one pair of dtypes. A kernel counts with its best plan, at whichever width if its binary
takes several, a set with its best kernel.
Kernels are taken one after the other, each time the one that lifts the geometric mean against cuBLAS most.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cutlass_sk.ensemble.records import RecordError, Row, read
from cutlass_sk.errors import WriteError
from cutlass_sk.generator.spec import binary_name
from cutlass_sk.provenance import output_argument, provenance, save

MISSING_FACTOR = 2.0
"""A problem for which no kernel of a set was timed counts as so many times its best time of any kernel: times are left out where
the prediction is far from the best."""

KINDS = {
    "stream_k": "kernels with a Stream-K or split plan alone",
    "any": "data-parallel-only kernels allowed",
    "data_parallel": "all kernels, data-parallel plans alone",
}
"""Which candidates and plans a curve is made of."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Times:
    """us[kernel, problem]: the best plan's time, infinite where none was timed. By problem ``cublas``, the least of its times, and
    ``best``, the best time of any kernel and plan, of whatever kind."""

    problems: tuple[tuple[int, int, int], ...]
    kernels: tuple[str, ...]
    us: Array
    cublas: Array
    best: Array

    def ratios(self, factor: float = MISSING_FACTOR) -> Array:
        """cuBLAS's time over each kernel's, by problem; above 1 the kernel is faster."""
        return np.asarray(self.cublas / np.minimum(self.us, self.best * factor))


@dataclass(frozen=True)
class Step:
    """A set after its ``kernel`` was added. ``untimed``: problems of which none of its kernels was timed. Bytes are GPU code."""

    count: int
    kernel: str
    geomean: float
    min: float
    bytes: int | None
    untimed: int


def gathered(rows: Sequence[Row], kind: str = "any", only: Sequence[str] | None = None) -> Times:
    """The times of one kind of set. RecordError where nothing fits it."""
    if kind not in KINDS:
        raise RecordError(f"kind {kind!r} is not known; there are {', '.join(KINDS)}")
    rows = [{**row, "kernel": binary_name(row["kernel"])} for row in rows]
    theirs: dict[tuple[int, int, int], list[float]] = {}
    best: dict[tuple[str, tuple[int, int, int]], float] = {}
    least: dict[tuple[int, int, int], float] = {}
    sharing = {row["kernel"] for row in rows if row.get("dec", "data_parallel") != "data_parallel"}
    for row in rows:
        shape = row["m"], row["n"], row["k"]
        if row["kernel"] == "cublas":
            theirs.setdefault(shape, []).extend(row[name] for name in ("us", "us2") if row.get(name))
            continue
        least[shape] = min(least.get(shape, np.inf), row["us"])
        if (kind == "data_parallel" and row["dec"] != "data_parallel") or (kind == "stream_k" and row["kernel"] not in sharing):
            continue
        if only is None or row["kernel"] in only:
            best[row["kernel"], shape] = min(best.get((row["kernel"], shape), np.inf), row["us"])
    problems = tuple(shape for shape in theirs if shape in least)
    if not problems or not best:
        raise RecordError(f"no problem has times of cuBLAS and of {KINDS[kind]}")
    kernels = tuple(sorted({kernel for kernel, _ in best}))
    us = np.array([[best.get((kernel, shape), np.inf) for shape in problems] for kernel in kernels])
    cublas = [min(theirs[shape]) for shape in problems]
    return Times(problems, kernels, us, np.array(cublas), np.array([least[shape] for shape in problems]))


def greedy(
    times: Times,
    most: int | None = None,
    sizes: Mapping[str, int] | None = None,
    factor: float = MISSING_FACTOR,
    first: Sequence[str] = (),
) -> list[Step]:
    """Kernels in the order in which they lift the geometric mean most, ``first`` ahead of all; equals go by size, then by name."""
    logs = np.log(times.ratios(factor))
    steps: list[Step] = []
    left = list(range(len(times.kernels)))
    best = np.full(len(times.problems), -np.inf)
    covered = np.zeros(len(times.problems), dtype=bool)
    sizes = sizes or {}
    total, known = 0, True
    for count in range(1, min(most or len(left), len(left)) + 1):
        if count <= len(first):
            if first[count - 1] not in times.kernels:
                raise RecordError(f"no kernel is called {first[count - 1]!r}; there are {', '.join(times.kernels)}")
            chosen = times.kernels.index(first[count - 1])
        else:
            chosen = min(
                left,
                key=lambda index: (
                    -round(float(np.maximum(best, logs[index]).mean()), 9),
                    sizes.get(times.kernels[index], 0),
                    times.kernels[index],
                ),
            )
        left.remove(chosen)
        best = np.maximum(best, logs[chosen])
        covered |= np.isfinite(times.us[chosen])
        name = times.kernels[chosen]
        total, known = total + sizes.get(name, 0), known and name in sizes
        steps.append(
            Step(
                count,
                name,
                round(float(np.exp(best.mean())), 4),
                round(float(np.exp(best.min())), 4),
                total if known else None,
                int((~covered).sum()),
            )
        )
    return steps


def study(
    rows: Sequence[Row],
    most: int | None = None,
    sizes: Mapping[str, int] | None = None,
    factor: float = MISSING_FACTOR,
    first: Sequence[str] = (),
) -> dict[str, Any]:
    """The curves of every kind that has times, and what all kernels together reach."""
    curves: dict[str, Any] = {}
    for kind, meaning in KINDS.items():
        try:
            times = gathered(rows, kind)
        except RecordError:
            continue
        ahead = [name for name in first if name in times.kernels]
        everything = np.log(times.ratios(factor)).max(axis=0).mean()
        curves[kind] = {
            "meaning": meaning,
            "kernels": len(times.kernels),
            "problems": len(times.problems),
            "all_geomean": round(float(np.exp(everything)), 4),
            "curve": [vars(step) for step in greedy(times, most, sizes, factor, ahead)],
        }
    if "any" in curves:
        chosen = [step["kernel"] for step in curves["any"]["curve"]]
        curves["any"]["if_data_parallel_only"] = only_whole_tiles(rows, chosen, factor)
    if not curves:
        raise RecordError("the records hold no problem with times of cuBLAS and of a kernel")
    return curves


def only_whole_tiles(rows: Sequence[Row], kernels: Sequence[str], factor: float = MISSING_FACTOR) -> dict[str, float]:
    """What a set of ``kernels`` would reach if one of them ran data-parallel plans alone, by kernel."""
    times, whole = gathered(rows, "any", kernels), gathered(rows, "data_parallel")
    full = np.log(times.ratios(factor))
    reached = {}
    for index, name in enumerate(times.kernels):
        limited = full.copy()
        worst = np.log(times.cublas / (times.best * factor))
        limited[index] = np.log(whole.ratios(factor))[whole.kernels.index(name)] if name in whole.kernels else worst
        reached[name] = round(float(np.exp(limited.max(axis=0).mean())), 4)
    return reached


def noise(rows: Sequence[Row]) -> float | None:
    """Geometric mean of how far cuBLAS's two times of a problem are apart, as a ratio above 1; None without two."""
    apart = [abs(np.log(row["us"] / row["us2"])) for row in rows if row["kernel"] == "cublas" and row.get("us2")]
    return round(float(np.exp(np.mean(apart))), 4) if apart else None


def markdown(curves: Mapping[str, Any]) -> str:
    """Geometric mean against cuBLAS by number of kernels; bytes of GPU code where they are known."""
    lines = []
    for kind, entry in curves.items():
        lines += [
            f"### {kind}: {entry['meaning']}",
            "",
            f"{entry['kernels']} candidates, {entry['problems']} problems; all together {entry['all_geomean']:.3f}",
            "",
            "| kernels | added | geometric mean | min | bytes |",
            "|---|---|---|---|---|",
        ]
        for step in entry["curve"]:
            size = "-" if step["bytes"] is None else f"{step['bytes']:,}"
            lines.append(f"| {step['count']} | {step['kernel']} | {step['geomean']:.3f} | {step['min']:.2f} | {size} |")
        if "if_data_parallel_only" in entry:
            lines += [
                "",
                "The largest set, if one of its kernels had data-parallel plans alone:",
                "",
                "| kernel | geometric mean |",
                "|---|---|",
            ]
            lines += [f"| {name} | {reached:.3f} |" for name, reached in entry["if_data_parallel_only"].items()]
        lines.append("")
    return "\n".join(lines).rstrip()


def picture(curves: Mapping[str, Any]) -> str:
    """The curves as an SVG: number of kernels to the right, geometric mean against cuBLAS upwards."""
    width, height, left, bottom = 640, 400, 60, 50
    steps = [step for entry in curves.values() for step in entry["curve"]]
    most = max(2, max(step["count"] for step in steps))
    low = min(step["geomean"] for step in steps)
    high = max(max(step["geomean"] for step in steps), low + 0.01)
    low, high = low - 0.05 * (high - low), high + 0.05 * (high - low)

    def x(count: float) -> float:
        return float(left + (count - 1) / (most - 1) * (width - left - 20))

    def y(geomean: float) -> float:
        return float(height - bottom - (geomean - low) / (high - low) * (height - bottom - 20))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2:.0f}" y="{height - 10}" text-anchor="middle">kernels</text>',
        f'<text x="16" y="{height / 2:.0f}" text-anchor="middle" transform="rotate(-90 16 {height / 2:.0f})">'
        "geometric mean, cuBLAS time / ours</text>",
    ]
    for tick in range(5):
        value = low + (high - low) * tick / 4
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3f}</text>')
    for count in sorted({1, most, *range(5, most, 5)}):
        parts.append(f'<text x="{x(count):.1f}" y="{height - bottom + 16}" text-anchor="middle">{count}</text>')
    for number, (entry, colour) in enumerate(zip(curves.values(), ("#0072b2", "#d55e00", "#009e73"), strict=False)):
        points = " ".join(f"{x(step['count']):.1f},{y(step['geomean']):.1f}" for step in entry["curve"])
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        above = height - bottom - 14 - 18 * number
        parts.append(f'<text x="{width - 28}" y="{above}" text-anchor="end" fill="{colour}">{entry["meaning"]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def sizes_in(folder: Path) -> dict[str, int]:
    """Bytes of GPU code of every shared object in ``folder``, by its name without ``.so``."""
    from cutlass_sk.cli.size import device_code_bytes

    return {path.stem: device_code_bytes(path) for path in sorted(folder.glob("*.so"))}


def as_times(rows: Iterable[Row], prefix: str = "") -> list[Row]:
    """The rows of TIMES, records of a calibration among them, whose kernel's name begins with ``prefix``, and cuBLAS's."""
    found = []
    for row in rows:
        if "kernel" not in row or "m" not in row or not row["kernel"].startswith((prefix, "cublas")):
            continue
        if "time_us" in row:
            decomposition = "data_parallel" if row["sk_units"] == 0 else "split_k" if row["splits"] > 1 else "stream_k"
            row = {**row, "kernel": f"{row['kernel']}_{row['layouts']}", "dec": decomposition, "us": row["time_us"]}
        found.append(row)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("times", type=Path, nargs="*", help="records, .jsonl or .jsonl.gz")
    parser.add_argument("-o", "--output", type=output_argument, help="the JSON to write; an .svg of its curves goes beside it")
    parser.add_argument("--table", type=Path, metavar="JSON", help="print the tables of a JSON")
    parser.add_argument("--libraries", type=Path, metavar="FOLDER", help="the kernels' shared objects, NAME.so, for their bytes")
    parser.add_argument("--bytes", type=Path, metavar="JSON", help='the same from a file: {"NAME": bytes}')
    parser.add_argument("--only", default="", metavar="PREFIX", help="only kernels so named, such as sm90a_f16_f16_, and cuBLAS")
    parser.add_argument("--most", type=int, help="kernels of the largest set")
    parser.add_argument("--first", nargs="+", default=[], metavar="KERNEL", help="kernels that every set begins with")
    parser.add_argument("--missing-factor", type=float, default=MISSING_FACTOR, help=f"(default {MISSING_FACTOR:g})")
    parser.add_argument("--commit", help="commit that the times were measured at; default what git says")
    parser.add_argument("--gpu", help="GPU that they were measured on")
    options = parser.parse_args(arguments)
    if options.table:
        print(markdown(json.loads(options.table.read_text())["curves"]))
        return 0
    if not options.times:
        parser.error("give the records of a family's times, or --table JSON")
    try:
        rows = as_times((row for path in options.times for row in read(path)), options.only)
        sizes = sizes_in(options.libraries) if options.libraries else json.loads(options.bytes.read_text()) if options.bytes else {}
        curves = study(rows, options.most, sizes, options.missing_factor, options.first)
    except (RecordError, WriteError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.output:
        source = provenance("ensemble/kernel_set.py", options.commit)
        source |= {"gpu": options.gpu} if options.gpu else {}
        source |= {"missing_factor": options.missing_factor, "cublas_noise": noise(rows)}
        save(options.output, json.dumps({"provenance": source, "bytes": sizes or None, "curves": curves}, indent=1) + "\n")
        save(options.output.with_suffix(".svg"), picture(curves))
    print(markdown(curves))
    return 0


if __name__ == "__main__":
    sys.exit(main())
