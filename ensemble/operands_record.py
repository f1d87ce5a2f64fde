"""What any operands cost, and whether they are right: ``python -m cutlass_sk.ensemble.operands_record TABLES... -o FILE``

raw_vs_cublas          of tables that ``cutlass-sk bench --corpus paper/raw`` wrote: the set over cuBLAS, back to back
raw_vs_aligned_worst   times of raw problems over those of the same ones with m, n and k rounded up to 8: the largest. Both are
                       measured here, in turns, as ``bench`` does it; copies of operands count
fuzz                   random cases (``operand_cases``) that ran, and those that failed
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from cutlass_sk.device import real, resolve
from cutlass_sk.ensemble import operand_cases, random_operands
from cutlass_sk.ensemble.attempt import Entrants
from cutlass_sk.ensemble.bench import PAIRS, opened, ordered, setup_of
from cutlass_sk.ensemble.bench_measure import Bench
from cutlass_sk.ensemble.contenders import Set, Setup
from cutlass_sk.ensemble.corpus import Problem, paper
from cutlass_sk.ensemble.operand_cases import Run
from cutlass_sk.ensemble.planner_sweep import METHOD
from cutlass_sk.ensemble.ratios import Ratios
from cutlass_sk.ensemble.report.groups import grouped
from cutlass_sk.ensemble.table import Table, TableError, Timing, merged, read
from cutlass_sk.ensemble.watchdog import Watchdog
from cutlass_sk.errors import Error
from cutlass_sk.plan import Plan
from cutlass_sk.provenance import output_argument, provenance, save

ALIGNED_TO = 8
SAMPLE, ROUNDS = 200, 3
CASES, SEED = 5000, 2301
CORPUS, RATIO = "paper/raw", "set_vs_cublas"
TIMING: Timing = "back_to_back"
HANG_SECONDS, EXIT_HUNG = 120.0, 4


@dataclass(frozen=True)
class Pair:
    """A problem, its twin with sizes rounded up, and their times in microseconds."""

    raw: Problem
    aligned: Problem
    raw_us: float
    aligned_us: float

    @property
    def ratio(self) -> float:
        return self.raw_us / self.aligned_us


def raw_vs_cublas(table: Table) -> dict[str, dict[str, Any]]:
    """geomean, min and n of the set over cuBLAS, by the name of the pair of dtypes. TableError where there are no such times."""
    found = {}
    for group in grouped(table):
        if group.corpus == CORPUS and group.timing == TIMING and RATIO in group.ratios:
            numbers = group.ratios[RATIO].to_json()
            found[group.dtypes] = {name: numbers[name] for name in ("geomean", "min", "n")}
    if not found:
        raise TableError(f"the tables have no times of set and cublas on {CORPUS}, {TIMING}; measure them with cutlass-sk bench")
    return found


def rounded_up(problem: Problem) -> Problem:
    m, n, k = (-(-size // ALIGNED_TO) * ALIGNED_TO for size in (problem.m, problem.n, problem.k))
    return Problem(m, n, k)


def sample(count: int) -> list[tuple[Problem, Problem]]:
    """Raw problems that are not aligned, and their twins; the first ones in the order of ``bench``."""
    pairs = ((problem, rounded_up(problem)) for _, problem in ordered(paper("raw")))
    return [pair for pair in pairs if pair[0] != pair[1]][:count]


def measure(
    setup: Setup, pairs: Sequence[tuple[Problem, Problem]], bench: Bench, tolerance: float, began: Callable[[], object]
) -> list[Pair]:
    """Medians of ``ROUNDS`` rounds, raw and aligned in turn. A wrong result is an error: there is nothing to compare then.

    began   is called before each problem is timed
    """

    def time_us(problem: Problem, plan: Plan) -> float:
        began()
        attempt = bench.begin(problem, Entrants({"set": plan}), (TIMING,))
        attempt.prepare()
        attempt.launch()
        timed = attempt.finish().times[TIMING]["set"]
        if timed.us is None or timed.error is None or not timed.error <= tolerance:
            raise Error(f"{problem} of {setup.dtype} is wrong: the largest error over sqrt(k) is {timed.error}")
        return timed.us

    measured = []
    for pair in pairs:
        plans = [setup.plan(problem, setup.variants) for problem in pair]
        rounds = [[time_us(problem, plan) for problem, plan in zip(pair, plans, strict=True)] for _ in range(ROUNDS)]
        raw_us, aligned_us = (median(times) for times in zip(*rounds, strict=True))
        measured.append(Pair(*pair, raw_us, aligned_us))
    return measured


def raw_vs_aligned(pairs: Iterable[Pair]) -> dict[str, Any]:
    """Ratios of times, 1 and more, and the problem with the largest one."""
    pairs = list(pairs)
    worst = max(pairs, key=lambda pair: pair.ratio)
    shape = worst.raw.m, worst.raw.n, worst.raw.k
    numbers = Ratios.of([pair.ratio for pair in pairs]).to_json()
    chosen = {name: numbers[name] for name in ("geomean", "max", "n")}
    return {**chosen, "worst": shape, "worst_us": [round(worst.raw_us, 3), round(worst.aligned_us, 3)]}


def fuzz_json(made: Run, seed: int) -> dict[str, Any]:
    failed = [{"wrong": wrong, "again": again} for again, wrong in made.failures]
    return {"cases": made.cases, "failures": len(failed), "seed": seed, "failed": failed}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("tables", nargs="+", type=Path, help="tables of cutlass-sk bench on paper/raw, in parquet")
    parser.add_argument("-o", "--output", type=output_argument, help="the JSON record to write")
    parser.add_argument("--dtype", default="float16", help=f"what raw and aligned problems are timed in: {', '.join(PAIRS)}")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="how many raw problems are timed")
    parser.add_argument("--cases", type=int, default=CASES, help="random cases")
    parser.add_argument("--seed", type=int, default=SEED, help="of the random cases")
    parser.add_argument("--commit", help="commit to record; default what git says")
    parser.add_argument("--dry-run", action="store_true", help="say what would be measured, and measure nothing; needs no GPU")
    options = parser.parse_args(arguments)
    if options.dtype not in PAIRS:
        parser.error(f"--dtype {options.dtype} is not known; use one of {', '.join(PAIRS)}")
    if options.output is None and not options.dry_run:
        parser.error("-o FILE says where the record goes")
    pairs = sample(options.sample)
    try:
        ratios = raw_vs_cublas(merged((str(path), read(path)) for path in options.tables))
    except TableError as error:
        parser.error(str(error))
    if options.dry_run:
        setup = setup_of(options.dtype, resolve("h200"))
        print(json.dumps(ratios, indent=1))
        for raw, aligned in pairs[:5]:
            print(raw, setup.plan(raw, setup.variants).kernel, aligned, setup.plan(aligned, setup.variants).kernel)
        print(f"{len(pairs)} pairs, {options.cases} cases of seed {options.seed} on {len(operand_cases.kernels())} kernels")
        return 0
    if not torch.cuda.is_available():
        print("measuring needs a CUDA GPU; --dry-run says what would be measured", file=sys.stderr)
        return 2
    protocol = {"dtype": options.dtype, "aligned_to": ALIGNED_TO, "sample": len(pairs), "rounds": ROUNDS, "corpus": CORPUS}
    origin = {**provenance("ensemble/operands_record.py", options.commit), "method": METHOD, "protocol": protocol}
    record: dict[str, Any] = {"provenance": origin, "raw_vs_cublas": ratios}

    def write(made: Run) -> None:
        record["fuzz"] = fuzz_json(made, options.seed)
        save(options.output, json.dumps(record, indent=1) + "\n")
        print(json.dumps(record, indent=1), flush=True)

    def hung_while_timed() -> None:
        print(f"a launch takes longer than {HANG_SECONDS:.0f} s; nothing was written", file=sys.stderr, flush=True)
        os._exit(EXIT_HUNG)

    def hung_in_a_case(made: Run) -> None:
        write(made)
        os._exit(EXIT_HUNG)

    operand_cases.build_kernels()
    setup = setup_of(options.dtype, real(0))
    bench, tolerance = opened(setup, [problem for pair in pairs for problem in pair], [Set()])
    with Watchdog(HANG_SECONDS, hung_while_timed) as watchdog:
        compared = raw_vs_aligned(measure(setup, pairs, bench, tolerance, watchdog.feed))
    bench.close()
    record |= {"raw_vs_aligned_worst": compared["max"], "raw_vs_aligned": compared}
    made = operand_cases.run(random_operands.cases(options.cases, options.seed), "cuda", hung=hung_in_a_case)
    write(made)
    return 1 if made.failures or made.cases < options.cases else 0


if __name__ == "__main__":
    sys.exit(main())
