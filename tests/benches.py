"""Made-up sweeps for the tests of the bench and of its folder."""

from __future__ import annotations

from collections.abc import Sequence

from cutlass_sk.device import PRESETS
from cutlass_sk.ensemble import bench, bench_measure
from cutlass_sk.ensemble.bench_measure import MadeUp, Task
from cutlass_sk.ensemble.contenders import chosen
from cutlass_sk.ensemble.corpus import paper
from cutlass_sk.ensemble.table import Measurement, Timing

H200 = PRESETS["h200"]
SETUP = bench.setup_of("float16", H200)
CORPUS = paper(count=20)
SOURCE = {"schema": 1, "made_up": True, "gpu": "none", "commit": "abc", "torch": "2", "contenders": ["set"], "corpus": "x"}
DRY = ("--dry-run", "--commit", "abc", "--contenders", "set,cublas,cublas_again")


def tasks(count: int = 20, *timings: Timing) -> list[Task]:
    return list(bench.tasks(bench.ordered(CORPUS, count), [SETUP], timings or ("back_to_back",)))


def row(m: int, contender: str = "set", us: float | None = 1.0, status: str = "ok") -> Measurement:
    return Measurement("x", "float16", "float16", m, 64, 64, "back_to_back", contender, us, status)


def measured(one: MadeUp, names: Sequence[str], task: Task | None = None) -> dict[str, Measurement]:
    task = task or tasks()[0]
    rows, _ = bench_measure.measure(task, "x", chosen(names), one, 0.01, lambda line: None)
    return {row.contender: row for row in rows[task.timings[0]]}
