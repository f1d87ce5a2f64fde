"""The kernel set, its first kernel, the same data-parallel and cuBLAS on thousands of problems:
``python -m cutlass_sk.ensemble.planner_sweep --records RECORDS.jsonl -o results/h200/planner.json``

Problems are log-uniform in [128, 8192], rounded to 8, from a seed of their own, none of them used in calibration, and are worked
through in a shuffled order: where the time budget cuts a part off, what was measured is a fair sample. Records are appended as they
come; the same command goes on where it stopped. 16-bit operands are a row- and b column-major, float64 ones both row-major.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Protocol

from cutlass_sk import Gemm, planner
from cutlass_sk.calibration import calibration_of
from cutlass_sk.device import Device, resolve
from cutlass_sk.ensemble import planner_report
from cutlass_sk.ensemble.arena import Search
from cutlass_sk.ensemble.attempt import CUBLAS, CUBLAS_AGAIN, THOROUGH, Timed, launches_for, replays_for
from cutlass_sk.ensemble.candidates import candidates, identity
from cutlass_sk.ensemble.corpus import Problem, paper
from cutlass_sk.ensemble.planner_report import DTYPES
from cutlass_sk.ensemble.records import Log, RecordError, Row, compact, key, read
from cutlass_sk.errors import WriteError
from cutlass_sk.generator.spec import KernelSpec, Layout, at_all_widths
from cutlass_sk.options import Options
from cutlass_sk.plan import Plan
from cutlass_sk.provenance import output_argument, provenance, save

COUNT, SEED, ORDER_SEED = 2000, 81, 82
AGAIN_EVERY, ISOLATED_EVERY, EXHAUSTIVE_EVERY = 8, 5, 10
"""Every so many problems, in shuffled order, cuBLAS is timed twice; is timed isolated; is searched exhaustively."""

PART_SHARE = {"main": 6.0, "isolated": 1.0, "exhaustive": 3.0}
DTYPE_SHARE = {"float16": 1.0, "float16_float32": 1.0, "bfloat16": 1.0, "float64": 2.0}
"""How a time budget is divided; what one leaves goes to those after it."""

METHOD = (
    "launches back to back in CUDA graphs over rotating buffers beyond the L2, contenders interleaved in turning order, medians; "
    "ours with programmatic dependent launch, data-parallel ones included, cuBLAS as torch calls it; isolated: one launch, L2 "
    "evicted before it (ensemble/arena.py)"
)
SQUARE = Problem(8192, 8192, 8192)


class Bench(Protocol):
    """Times plans on a GPU (``arena.Arena``), or makes times up (``Pretended``)."""

    def time(self, problem: Problem, plans: Mapping[str, Plan], *, again: bool = False) -> dict[str, Timed]: ...
    def time_isolated(self, problem: Problem, plans: Mapping[str, Plan]) -> dict[str, Timed]: ...
    def search(self, problem: Problem, plans: Sequence[Plan], chosen: Plan) -> Search: ...
    def close(self) -> None: ...


class Pretended:
    """Times without a GPU: the prediction, times a number near 1 that depends on plan and problem only."""

    def time(self, problem: Problem, plans: Mapping[str, Plan], *, again: bool = False) -> dict[str, Timed]:
        times = {name: Timed(self._us(problem, plan), 0.0) for name, plan in plans.items()}
        times[CUBLAS] = Timed(min(plan.predicted_time_us for plan in plans.values()) * self._near_1(problem, CUBLAS))
        return {**times, CUBLAS_AGAIN: times[CUBLAS]} if again else times

    def time_isolated(self, problem: Problem, plans: Mapping[str, Plan]) -> dict[str, Timed]:
        return self.time(problem, plans)

    def search(self, problem: Problem, plans: Sequence[Plan], chosen: Plan) -> Search:
        fastest = sorted(plans, key=lambda plan: self._us(problem, plan))[:3]
        own = self.time(problem, {"set": chosen})
        cublas_us = own[CUBLAS].us
        assert cublas_us is not None
        return Search(len(plans), (), tuple((plan, Timed(self._us(problem, plan), 0.0)) for plan in fastest), own["set"], cublas_us)

    def close(self) -> None:
        pass

    def _us(self, problem: Problem, plan: Plan) -> float:
        return plan.predicted_time_us * self._near_1(problem, *identity(plan))

    @staticmethod
    def _near_1(problem: Problem, *what: object) -> float:
        digest = sha256(" ".join(map(str, (problem.m, problem.n, problem.k, *what))).encode()).digest()
        return 0.9 + 0.2 * digest[0] / 255


@dataclass(frozen=True)
class Contest:
    """One dtype: its kernels, of which the first is the single kernel, and the GPU that is planned for. Each kernel is used at
    whichever of its widths suits a problem, data-parallel, too."""

    dtype: str
    kernels: tuple[KernelSpec, ...]
    device: Device

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        return ("t", "t") if self.dtype == "float64" else ("t", "n")

    @cached_property
    def variants(self) -> tuple[KernelSpec, ...]:
        """The kernels at all of their widths, for operands that lie as those that are timed."""
        return at_all_widths([spec.with_layouts(*self.layouts) for spec in self.kernels])

    def plans(self, problem: Problem) -> dict[str, Plan]:
        shape, single = (problem.m, problem.n, problem.k), self.variants[: len(self.kernels[0].widths)]
        return {
            "set": planner.make_plan(*shape, self.variants, self.device),
            "single": planner.make_plan(*shape, single, self.device),
            "data_parallel": planner.make_plan(*shape, single, self.device, Options(decomposition="data_parallel")),
        }

    def measure(self, part: str, problem: Problem, bench: Bench, tolerance: float, again: bool = False) -> Row:
        """One row of ``part``."""
        row: Row = {"part": part, "dtype": self.dtype, "m": problem.m, "n": problem.n, "k": problem.k, "tolerance": tolerance}
        if part == "exhaustive":
            chosen = planner.make_plan(problem.m, problem.n, problem.k, self.variants, self.device)
            tried = candidates(problem.m, problem.n, problem.k, self.variants, self.device)
            found = bench.search(problem, tried, chosen)
            row["set"] = described(chosen, found.chosen)
            if found.best:
                row["best"] = described(*found.best[0])
            row["cublas"] = {"us": round(found.cublas_us, 3)}
            return {
                **row,
                "tried": found.tried,
                "wrong_tried": len(found.wrong),
                "wrong_plans": [_plan(plan) for plan in found.wrong],
            }
        plans = self.plans(problem)
        times = bench.time_isolated(problem, plans) if part == "isolated" else bench.time(problem, plans, again=again)
        for name, timed in times.items():
            row[name] = described(plans[name], timed) if name in plans else {"us": _rounded(timed.us)}
        return row


def described(plan: Plan, timed: Timed) -> dict[str, Any]:
    """A contender of a row: its time, its largest difference from cuBLAS over sqrt(k), its plan."""
    error = timed.error
    if error is not None:
        error = float(f"{error:.3g}") if error == error else None
    return {"us": _rounded(timed.us), "error": error, **_plan(plan), "predicted_us": round(plan.predicted_time_us, 3)}


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "kernel": plan.kernel.family,
        "decomposition": plan.decomposition,
        "grid": plan.grid,
        "sk_tiles": plan.sk_tiles,
        "sk_units": plan.sk_units,
        "splits": plan.splits,
        "raster": f"{plan.raster_order} {plan.raster_swizzle}",
    }


def _rounded(us: float | None) -> float | None:
    return None if us is None else round(us, 3)


def drawn(count: int, seed: int = SEED, excluded: Collection[tuple[int, int, int]] = ()) -> list[Problem]:
    """``count`` different problems, none of them in ``excluded``, in shuffled order. Fewer are a part of more."""
    found: dict[tuple[int, int, int], Problem] = {}
    taken = set(excluded)
    for problem in paper(count=2 * count + len(taken) + 64, seed=seed):
        shape = problem.m, problem.n, problem.k
        if shape not in taken and len(found) < count:
            found.setdefault(shape, problem)
    order = list(found.values())
    Random(ORDER_SEED).shuffle(order)
    return order


def shapes_of(values: Iterable[Any]) -> set[tuple[int, int, int]]:
    """(m, n, k) of rows or of lists."""
    found = set()
    for value in values:
        m, n, k = (value["m"], value["n"], value["k"]) if isinstance(value, dict) else value
        found.add((int(m), int(n), int(k)))
    return found


def calibrated(device: Device) -> set[tuple[int, int, int]]:
    """Shapes that the device's calibration lists as its own."""
    return shapes_of(calibration_of(device).provenance.get("shapes", ()))


def sample(problems: Sequence[Problem], part: str, shard: tuple[int, int] = (0, 1)) -> Iterator[tuple[int, Problem]]:
    """(place in the order, problem) of one part and shard."""
    every = {"isolated": ISOLATED_EVERY, "exhaustive": EXHAUSTIVE_EVERY}.get(part, 1)
    chosen = [(place, problem) for place, problem in enumerate(problems) if place % every == 0]
    yield from chosen[shard[0] :: shard[1]]


class Budget:
    """Seconds, divided among what is still to come in proportion to its share."""

    def __init__(self, seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self.end = clock, clock() + seconds

    def part(self, share: float, shares_left: float) -> Budget:
        """The budget of one part, ``shares_left`` counting it in."""
        return Budget(max(0.0, self.end - self._clock()) * share / shares_left, self._clock)

    @property
    def spent(self) -> bool:
        return self._clock() >= self.end


def sweep(
    contest: Contest,
    bench: Bench,
    problems: Sequence[Problem],
    log: Log,
    budget: Budget,
    parts: Sequence[str],
    shard: tuple[int, int] = (0, 1),
    tolerance: float = 0.0,
) -> dict[str, int]:
    """Measures what ``log`` does not hold yet, until the budget is spent; how many rows each part got now."""
    done = {key(row) for row in log.rows}
    counts = {}
    if shard[0] == 0 and (contest.dtype, "square", SQUARE.m, SQUARE.n, SQUARE.k) not in done:
        log.append(contest.measure("square", SQUARE, bench, tolerance, again=True))
    for number, part in enumerate(parts):
        limit = budget.part(PART_SHARE[part], sum(PART_SHARE[name] for name in parts[number:]))
        counts[part] = 0
        for place, problem in sample(problems, part, shard):
            if (contest.dtype, part, problem.m, problem.n, problem.k) in done:
                continue
            if limit.spent:
                break
            log.append(contest.measure(part, problem, bench, tolerance, again=place % AGAIN_EVERY == 0))
            counts[part] += 1
    return counts


def measure_all(options: argparse.Namespace, log: Log) -> None:
    """Every dtype that was asked for, on the GPU or pretended."""
    dry = options.dry_run
    device = resolve("h200") if dry else resolve(None)
    excluded = calibrated(device).union(*(shapes_of(row for row in read(path) if "m" in row) for path in options.exclude))
    problems = drawn(options.n, excluded=excluded)
    log.append(source_row(options, device, problems, log))
    budget = Budget(options.budget_seconds)
    for number, dtype in enumerate(options.dtype):
        started = monotonic()
        own = budget.part(DTYPE_SHARE[dtype], sum(DTYPE_SHARE[name] for name in options.dtype[number:]))
        gemm = Gemm(DTYPES[dtype][0], out_dtype=DTYPES[dtype][1], device=device)
        contest = Contest(dtype, gemm.kernels, device)
        log.append({"part": "clocks", "dtype": dtype, "when": "start", "state": None if dry else state()})
        bench, tolerance = (Pretended(), 1.0) if dry else opened(contest)
        try:
            if (dtype, "host", 0, 0, 0) not in {key(row) for row in log.rows}:
                log.append({"part": "host", "dtype": dtype, **host(contest, gemm, problems, dry)})
            counts = sweep(contest, bench, problems, log, own, options.parts, options.shard, tolerance)
        finally:
            bench.close()
        log.append({"part": "clocks", "dtype": dtype, "when": "end", "state": None if dry else state()})
        print(
            f"{dtype}: {', '.join(f'{count} {part}' for part, count in counts.items())}; {monotonic() - started:.0f} s", flush=True
        )


def opened(contest: Contest) -> tuple[Bench, float]:
    """A bench on the current GPU, with every kernel of the contest built and loaded; the tolerance of its check."""
    from cutlass_sk.ensemble.arena import TOLERANCE, Arena
    from cutlass_sk.kernel import load_kernel

    dtype, out_dtype = DTYPES[contest.dtype]
    for spec in in_layouts(contest):
        load_kernel(spec, contest.device.architecture(spec))
    return Arena(dtype, out_dtype, contest.layouts, contest.device), TOLERANCE[dtype, out_dtype]


def in_layouts(contest: Contest) -> list[KernelSpec]:
    """The kernels as the contest's operands need them."""
    return [spec.with_layouts(*contest.layouts) for spec in contest.kernels]


def host(contest: Contest, gemm: Gemm, problems: Sequence[Problem], dry: bool) -> Row:
    """Host costs and sizes; without a GPU, deciding alone."""
    from cutlass_sk.ensemble.host_cost import call_us, decide_us, sizes

    costs: Row = dict(decide_us(gemm, problems[:3000]))
    specs = in_layouts(contest)
    if dry:
        return {**costs, "kernels": [spec.name for spec in specs]}
    return {**costs, **call_us(gemm, contest.layouts), **sizes(specs, contest.device)}


def source_row(options: argparse.Namespace, device: Device, problems: Sequence[Problem], log: Log) -> Row:
    """Provenance; RecordError if the log comes from another commit, GPU or corpus."""
    import torch

    digest = sha256(" ".join(f"{p.m},{p.n},{p.k}" for p in problems).encode()).hexdigest()[:12]
    matmul = torch.backends.cuda.matmul
    row = {
        "part": "provenance",
        "dtype": "",
        **provenance("ensemble/planner_sweep.py", options.commit),
        "n": len(problems),
        "corpus": f"{len(problems)} problems log-uniform in [128, 8192], rounded to 8, seed {SEED}, sha256 {digest}",
        "method": METHOD,
        "calibration": calibration_of(device).source,
        "shard": "{}/{}".format(*options.shard),
        "fp16_reduced_precision_reduction": str(matmul.allow_fp16_reduced_precision_reduction),
        "bf16_reduced_precision_reduction": str(matmul.allow_bf16_reduced_precision_reduction),
    }
    if options.dry_run:
        row |= {"made_up": True, "gpu": "none: the times are made up", "method": "dry run: the times are made up from predictions"}
    for earlier in log.rows:
        for name in ("commit", "gpu", "corpus"):
            if earlier["part"] == "provenance" and earlier[name] != row[name]:
                raise RecordError(f"the records have {name} {earlier[name]}, this run has {row[name]}; name a new file")
    return row


def state() -> str | None:
    """Clocks, power and temperature at this moment, as nvidia-smi gives them."""
    query = "clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu,clocks_event_reasons.active"
    try:
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def expected_seconds(contest: Contest, problems: Sequence[Problem]) -> dict[str, float]:
    """A guess at what the parts take on a GPU: predicted times of the launches, and what was allowed for the host."""

    def graph_us(us: float) -> float:
        count = launches_for(us)
        return us * count * (replays_for(us, count, THOROUGH) + 1) + 12 * count + 60

    seconds = dict.fromkeys(PART_SHARE, 0.0)
    for place, problem in enumerate(problems):
        plans = contest.plans(problem)
        apart = {identity(plan): plan.predicted_time_us for plan in plans.values()}
        least = min(apart.values())
        seconds["main"] += 500 + sum(map(graph_us, apart.values())) + graph_us(least) * (1 + (place % AGAIN_EVERY == 0))
        if place % ISOLATED_EVERY == 0:
            seconds["isolated"] += 500 + sum(us + 55 for us in (*apart.values(), least)) * (THOROUGH.isolated + 1)
        if place % EXHAUSTIVE_EVERY == 0:
            tried = candidates(problem.m, problem.n, problem.k, contest.variants, contest.device)
            for plan in tried:
                us = plan.predicted_time_us
                seconds["exhaustive"] += 120 + 2 * us + (700 + 3 * max(100.0, us) if us < 2 * least + 10 else 0)
            seconds["exhaustive"] += 5 * graph_us(max(least, THOROUGH.graph_us / 200 / THOROUGH.replays))
    return {part: us * 1e-6 for part, us in seconds.items()}


def shard(text: str) -> tuple[int, int]:
    """``i/n``, i from 0."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard; give i/n with i from 0 to n - 1")
    return int(index), int(count)


def goal(text: str) -> tuple[str, float]:
    """``RATIO=VALUE`` or ``DTYPE.RATIO=VALUE``."""
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no goal; give for example float16.set_vs_cublas=1.0") from None


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    made.add_argument(
        "-o", "--output", type=output_argument, help="the JSON to write; a compact copy of the records goes beside it"
    )
    made.add_argument(
        "--records", type=output_argument, help="the .jsonl file that rows are appended to; rows it holds are not measured again"
    )
    made.add_argument(
        "--report", type=Path, nargs="+", metavar="RECORDS", help="compute from records, .jsonl or .gz; measure nothing"
    )
    made.add_argument("--table", type=Path, metavar="JSON", help="print the targets of a JSON in Markdown; measure nothing")
    made.add_argument("--details", action="store_true", help="with --report: print distributions by size and the worst problems")
    made.add_argument("--goal", type=goal, action="append", default=[], help="with --table: what a mean should reach, RATIO=VALUE")
    made.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    made.add_argument("--parts", nargs="+", choices=PART_SHARE, default=list(PART_SHARE))
    made.add_argument("-n", type=int, default=COUNT, help=f"problems of the corpus (default {COUNT})")
    made.add_argument("--shard", type=shard, default=(0, 1), metavar="i/n", help="every n-th problem from the i-th on, i from 0")
    made.add_argument("--budget-seconds", type=float, default=400.0, help="for all of it (default 400)")
    made.add_argument("--exclude", type=Path, nargs="+", default=[], metavar="RECORDS", help="records whose shapes are left out")
    made.add_argument("--commit", help="commit to record; default what git says")
    made.add_argument("--dry-run", action="store_true", help="plan everything and make the times up; needs no GPU")
    made.add_argument("--estimate", action="store_true", help="print how long the parts should take, and measure nothing")
    return made


def finish(rows: Sequence[Row], output: Path | None, show_details: bool) -> None:
    """Writes the JSON and the compact records beside it; prints the tables."""
    result = planner_report.report(rows)
    if output is not None:
        save(output, json.dumps(result, indent=1) + "\n")
        output.with_suffix(".records.jsonl.gz").write_bytes(compact(rows))
    print(planner_report.table(result))
    if show_details:
        print("\n" + planner_report.details(rows))


def main(arguments: list[str] | None = None) -> int:
    made = parser()
    options = made.parse_args(arguments)
    if options.table:
        print(planner_report.table(json.loads(options.table.read_text()), dict(options.goal)))
        return 0
    try:
        if options.report:
            finish([row for path in options.report for row in read(path)], options.output, options.details)
            return 0
        if options.estimate:
            for dtype in options.dtype:
                gemm = Gemm(DTYPES[dtype][0], out_dtype=DTYPES[dtype][1], device="h200")
                guess = expected_seconds(Contest(dtype, gemm.kernels, resolve("h200")), drawn(options.n))
                print(dtype, ", ".join(f"{part} {seconds:.0f} s" for part, seconds in guess.items()), flush=True)
            return 0
        if options.records is None:
            made.error("--records FILE.jsonl says where the rows go")
        if not options.dry_run and resolve(None).index is None:
            print("measuring needs a CUDA GPU; --dry-run makes the times up without one", file=sys.stderr)
            return 2
        with Log(options.records) as log:
            measure_all(options, log)
        finish(read(options.records), options.output, options.details)
    except (RecordError, WriteError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
