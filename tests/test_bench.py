"""A bench without a GPU: its order, its budget, its command line, and the report of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from benches import DRY, H200, SETUP, SOURCE, measured, row, tasks
from command_line import CommandLine
from rich.console import Console
from test_arena import StandIn, stand_ins  # noqa: F401  kernels that are stand-ins on the CPU

import cutlass_sk.ensemble.cli  # noqa: F401  the command joins the command line
from cutlass_sk.ensemble import bench, bench_measure, cublaslt
from cutlass_sk.ensemble.arena import Arena
from cutlass_sk.ensemble.attempt import QUICK, Entrants, Outcome, Timed
from cutlass_sk.ensemble.bench_measure import MadeUp, Pending, Task
from cutlass_sk.ensemble.bench_store import LOG, TABLE, Folder, read_folder
from cutlass_sk.ensemble.cli.bench import show
from cutlass_sk.ensemble.contenders import CONTENDERS, Contender, Setup, chosen, each_of_oracle
from cutlass_sk.ensemble.corpus import Corpus, Problem, paper
from cutlass_sk.ensemble.planner_sweep import Budget
from cutlass_sk.ensemble.table import Table, Timing, read, write

NAMES = [name for name in CONTENDERS if name != "torch_compile"]
"""Those that can be tried without a GPU: torch.compile tunes for seconds."""


def test_a_dry_sweep_has_a_row_for_every_contender(tmp_path: Path, cutlass_sk: CommandLine) -> None:
    names = ",".join(NAMES)
    options = ("--contenders", names, "--dtype", "float16,float64", "--timing", "both", "--limit", "16", "--corpus", "paper/raw")
    status, out, err = cutlass_sk("bench", "-o", str(tmp_path / "made"), "--dry-run", *options)
    assert (
        (status, out) == (0, "")
        and err.startswith("MADE UP: a dry run. 16 of 16 problems, 16 of them now, ")
        and "problems/s" in err
    )
    table = read(tmp_path / "made" / TABLE)
    assert len(table.rows) == (16 * 8 + 2 + 2 + 4) * 2 * 2 and table == read_folder(tmp_path / "made")
    (source,) = table.sources
    assert source["made_up"] is True and "made up" in source["gpu"] and source["corpus"] == "paper/raw"
    assert source["corpus_sha256"] == paper("raw").sha256
    statuses = {(r.contender, r.dtype): r.status for r in table.rows if r.n % 8}
    assert statuses.pop(("cublas_fp32_reduce", "float64")) == "not_timed" and set(statuses.values()) == {"ok"}
    for r in table.rows:
        assert (r.kernel is None) == r.contender.startswith("cublas") and (r.us is None) == (r.status == "not_timed")
    oracle = {r.key[:7]: r.us for r in table.rows if r.contender == "oracle_of_set"}
    same = [r for r in table.rows if r.contender == "data_parallel" and r.key[:7] in oracle]
    assert len(same) == 4 and all((oracle[r.key[:7]] or 0) <= (r.us or 0) for r in same)  # the same plan is one of the oracle's
    status, _, err = cutlass_sk("bench", "-o", str(tmp_path / "made"), "--dry-run", "--no-table", *options)
    assert status == 0 and err.endswith(f"{LOG}\n") and "16 of 16 problems, 0 of them now; " in err
    assert read(tmp_path / "made" / TABLE) == table
    again = [json.loads(line) for line in (tmp_path / "made" / LOG).read_text().splitlines()]
    assert sum("run" in line for line in again) == 1 and all(line["tried"]["oracle"][1] == 0 for line in again[1:])


def test_the_order_is_fixed_and_shuffled_and_shards_are_parts_of_it() -> None:
    corpus = Corpus("x", tuple(Problem(size, 64, 64) for size in range(8, 8008, 8)) * 2)
    order = bench.ordered(corpus)
    assert order == bench.ordered(corpus) and [place for place, _ in order] == list(range(1000))
    assert {problem.m for _, problem in order} == set(range(8, 8008, 8)), "each once"
    first = [problem.m for _, problem in bench.ordered(corpus, 100)]
    assert first == [problem.m for _, problem in order[:100]] and first != sorted(first)
    assert 3400 < sum(first) / 100 < 4600  # of all: 4004, with a standard deviation of 230 for 100
    shards = [order[index::3] for index in range(3)]
    assert sorted(place for part in shards for place, _ in part) == list(range(1000))
    done = [task.problem for task in bench.tasks(order[:3], [SETUP, SETUP], ["back_to_back", "isolated"])]
    assert done == [problem for _, problem in order[:3] for _ in range(2)]
    both = [task.timings for task in bench.tasks(order[:5], [SETUP], ["back_to_back", "isolated"], 2)]
    assert both == [("back_to_back", "isolated"), ("back_to_back",)] * 2 + [("back_to_back", "isolated")]
    assert [task.place for task in bench.tasks(order[:5], [SETUP], ["isolated"], 4)] == [0, 4]


def test_a_budget_is_respected_and_what_is_left_is_measured_later(tmp_path: Path) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    def run(budget: Budget) -> bench.Ran:
        with Folder(tmp_path / "f", SOURCE) as folder:
            return bench.sweep(tasks(), "x", chosen(["set"]), {("float16", "float16"): (MadeUp(SETUP), 1.0)}, folder, budget)

    assert run(Budget(8.0, clock)) == bench.Ran(7, False)
    assert {(r.m, r.n, r.k) for r in read_folder(tmp_path / "f").rows} == {task.keys["back_to_back"][2:5] for task in tasks()[:7]}
    assert run(Budget(1e9)) == bench.Ran(13, True)
    assert run(Budget(0.0)) == bench.Ran(0, True)
    assert len(read_folder(tmp_path / "f").rows) == 20


def test_problems_are_counted_whole(tmp_path: Path, cutlass_sk: CommandLine) -> None:
    options = ("bench", "-o", str(tmp_path / "made"), "--limit", "5", "--dtype", "float16,float64", *DRY)
    assert "5 of 5 problems, 5 of them now" in cutlass_sk(*options)[2]
    log = tmp_path / "made" / LOG
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:4]))  # the run, and one problem and a half
    with Folder(tmp_path / "made", json.loads(lines[0])["run"]) as folder:
        assert len(folder.done) == 3
    assert (
        "MADE UP: a dry run. 1 of 5 problems, 0 of them now; the budget is spent"
        in cutlass_sk(*options, "--budget-seconds", "0")[2]
    )
    assert "5 of 5 problems, 4 of them now" in cutlass_sk(*options)[2]


@pytest.mark.parametrize("problem", [Problem(136, 72, 200), Problem(135, 71, 199)], ids=str)
def test_every_contender_runs_in_the_arena(
    stand_ins: dict[str, StandIn],  # noqa: F811
    problem: Problem,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = [lambda a, b, c: c.zero_(), lambda a, b, c: torch.mm(a, b, out=c)]
    monkeypatch.setattr(cublaslt, "algorithms", lambda a, b, c: calls)
    arena = Arena("float16", "float16", SETUP.layouts, H200)
    setup = replace(SETUP, kernels=SETUP.kernels[:2])
    timings: tuple[Timing, ...] = ("back_to_back", "isolated")
    task = Task(0, problem, setup, timings)
    tried = {"oracle": [14, 0], "oracle_paper": [4, 0], "oracle_of_set": [len(setup.variants), 0], "cublaslt_best": [2, 1]}
    found, counts = bench_measure.measure(task, "x", chosen(NAMES), arena, 0.01, pytest.fail)
    assert counts == tried and list(found) == list(timings)
    for rows in found.values():
        statuses = {one.contender: one.status for one in rows}
        assert list(statuses) == NAMES
        assert statuses.pop("cublas_padded") == ("not_timed" if problem.n % 8 == 0 else "ok")
        assert set(statuses.values()) == {"ok"}
    for kernel in stand_ins.values():
        kernel.wrong = kernel.spec.with_layouts("t", "t").binary == SETUP.kernels[0]
    found, counts = bench_measure.measure(task, "x", chosen(["single", "oracle_of_set", "cublas"]), arena, 0.01, pytest.fail)
    assert [[one.status for one in rows] for rows in found.values()] == [["wrong", "ok", "ok"]] * 2
    assert counts == {"oracle_of_set": [len(setup.variants), len(setup.single)]}
    large = Task(0, Problem(1024, 1024, 1024), setup, timings)
    found, _ = bench_measure.measure(large, "x", chosen(["set", "oracle", "cublas"]), arena, 0.01, pytest.fail)
    assert {one.status for rows in found.values() for one in rows} == {"not_timed"}
    assert arena.lost() is False
    arena.close()


def test_with_a_gpu_times_are_measured_and_never_mixed_with_made_up_ones(
    tmp_path: Path, cutlass_sk: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def opened(setup: Setup, problems: Sequence[Problem], *more: object) -> tuple[MadeUp, float]:
        one = MadeUp(setup)
        monkeypatch.setattr(one, "close", lambda: closed.append(setup.dtype))
        assert len(problems) == 3
        return one, 0.01

    monkeypatch.setattr(bench, "opened", opened)
    monkeypatch.setattr("torch.cuda.Stream", object)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    monkeypatch.setattr(sys.modules["cutlass_sk.ensemble.cli.bench"], "real", lambda index: H200)
    gpu, dry = ("bench", "-o", str(tmp_path / "gpu"), "--limit", "3"), ("bench", "-o", str(tmp_path / "dry"), "--limit", "3")
    assert cutlass_sk(*gpu, "--dtype", "float16,float64")[0] == 0 and cutlass_sk(*dry, "--dry-run")[0] == 0
    assert closed == ["float16", "float64"]
    _, _, err = cutlass_sk("bench", "merge", str(tmp_path / "gpu"), "-o", str(tmp_path / "m.parquet"))
    assert err.startswith(str(tmp_path / "m.parquet"))
    (source,) = read(tmp_path / "gpu" / TABLE).sources
    assert (source["gpu"], source["made_up"]) == ("a GPU", False) and "graphs" in source["method"]
    for command in ((*gpu, "--dry-run"), dry):
        status, _, err = cutlass_sk(*command)
        assert status == 2 and "are made up, those of" in err and "name a new folder" in err
    monkeypatch.setattr(type(CONTENDERS["cublas"]), "unavailable", lambda self: "It needs a library.")
    assert "contender 'cublas' cannot be timed here: It needs a library." in cutlass_sk(*gpu)[2]


def test_kernels_are_built_and_loaded_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr("cutlass_sk.jit.build.build", lambda specs, architecture: calls.append((specs, architecture)))
    monkeypatch.setattr("cutlass_sk.kernel.load_kernel", lambda spec, architecture: calls.append((spec, architecture)))
    monkeypatch.setattr("cutlass_sk.ensemble.arena.Arena", lambda *arguments: arguments)
    double = bench.setup_of("float64", H200)
    made, tolerance = bench.opened(double, [Problem(8, 8, 8)], chosen(["set"]))
    assert made == ("float64", "float64", ("t", "t"), H200, QUICK, None) and tolerance == 1e-12  # type: ignore[comparison-overlap]
    specs = list(double.kernels)
    assert [spec for several, _ in calls[: -len(specs)] for spec in several] == specs  # 2.x and 3.x kernels, each for this GPU
    assert calls[-len(specs) :] == [(spec, H200.architecture(spec)) for spec in specs]


def test_one_problem_is_begun_before_another_one_is_launched_and_read(tmp_path: Path) -> None:
    said: list[str] = []
    todo = tasks(4)
    number = {task.problem: str(place) for place, task in enumerate(todo)}

    class Telling(MadeUp):
        def begin(self, problem: Problem, entrants: Entrants, timings: Iterable[Timing]) -> Pending:
            made, name = super().begin(problem, entrants, timings), number[problem]
            said.append(f"begin {name}")

            class Told:
                prepare = staticmethod(lambda: said.append(f"prepare {name}"))
                launch = staticmethod(lambda: said.append(f"launch {name}"))
                finish = staticmethod(lambda: (said.append(f"finish {name}"), made.finish())[1])

            return Told()

    with Folder(tmp_path, SOURCE) as folder:
        benches = {("float16", "float16"): (Telling(SETUP), 1.0)}
        assert bench.sweep(todo, "x", chosen(["set"]), benches, folder, Budget(1e9)) == bench.Ran(4, True)
    order = "begin 0, begin 1, prepare 0, launch 0, begin 2, prepare 1, launch 1, finish 0, begin 3, prepare 2, launch 2, finish 1"
    assert ", ".join(said) == f"{order}, prepare 3, launch 3, finish 2, finish 3"


def test_timings_are_told_apart_and_measured_together(tmp_path: Path) -> None:
    class Apart(MadeUp):
        def outcome(self, problem: Problem, entrants: Entrants, timings: Iterable[Timing]) -> Outcome:
            made = super().outcome(problem, entrants, timings)
            return Outcome({**made.times, "isolated": {name: Timed(7.0, 0.0) for name in entrants.plans}}, made.found)

    assert measured(Apart(SETUP), ["set"], tasks(1, "isolated")[0])["set"][6:10] == ("isolated", "set", 7.0, "ok")
    assert measured(MadeUp(SETUP), ["set"])["set"].us != 7.0
    (task,) = tasks(1, "back_to_back", "isolated")
    assert task.without({task.keys["isolated"]}).timings == ("back_to_back",) and not task.without(set(task.keys.values())).timings


def test_kernels_are_built_in_every_layout_that_is_launched() -> None:
    aligned = bench.needed(SETUP, [Problem(8, 8, 8)], chosen(["set", "single"]))
    assert aligned == [spec.with_layouts("t", "n") for spec in SETUP.kernels]
    assert bench.needed(SETUP, [Problem(8, 8, 8)], chosen(["data_parallel", "cublas"])) == aligned[:1]
    assert bench.needed(SETUP, [Problem(8, 8, 8), Problem(8, 8, 9)], chosen(["set"])) == aligned, "packed as they lie"
    packed = {spec.layout_b for spec in bench.needed(SETUP, [Problem(8, 8, 9)], chosen(["oracle_paper"]))}
    assert packed == {"t"}, "2.x kernels take whole vectors alone, and get row-major ones"
    (thin,) = {spec.layout_a + spec.layout_b for spec in bench.needed(SETUP, [Problem(2048, 32, 1)], chosen(["set"]))}
    assert thin == "nt", "a column of 2048 has an aligned leading dimension as a column-major matrix alone"
    double = bench.setup_of("float64", H200)
    odd = bench.needed(double, [Problem(8, 8, 9)], chosen(["oracle_paper", "set"]))
    assert {spec.api for spec in odd} == {"2x", "3x"}


def test_what_is_launched_is_what_was_built(stand_ins: dict[str, StandIn]) -> None:  # noqa: F811
    problems = [Problem(m, n, k) for m in (1, 8, 136) for n in (1, 9, 72) for k in (1, 8, 200, 201)]
    for pair, layout in (("float16", "tn"), ("float16", "nt"), ("float64", "tt"), ("float64", "nn")):
        setup = bench.setup_of(pair, H200, layout)
        arena = Arena(setup.dtype, setup.out_dtype, setup.layouts, H200, QUICK)
        stand_ins.clear()
        for problem in problems:
            rows, _ = bench_measure.measure(
                Task(0, problem, setup, ("isolated",)), "x", chosen(["set", "single", "oracle"]), arena, 0.01, pytest.fail
            )
            assert {row.status for row in rows["isolated"]} == {"ok"}, problem
        built = {spec.binary for spec in bench.needed(setup, problems, chosen(["set", "single", "oracle"]))}
        assert {kernel.spec.binary for kernel in stand_ins.values()} <= built


def test_errors_of_the_command_line(tmp_path: Path, cutlass_sk: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("m,n,k\n8,8,8\n8,x,8\n")
    folder = ("bench", "-o", str(tmp_path / "f"))
    for options, message in (
        (("--dry-run", "--corpus", str(bad)), "line 3: n='x' is no whole number"),
        (("--dry-run", "--corpus", "papers"), "corpus 'papers' is not known"),
        (("--dry-run", "--contenders", "set,cutlass"), "contender 'cutlass' is not known; there are set, single"),
        (("--dry-run", "--dtype", "int8"), "'int8' is no dtype; there are float16"),
        (("--dry-run", "--shard", "3/3"), "'3/3' is no shard"),
        (("--dry-run", "--limit", "2", "--shard", "2/3"), "--shard 2/3 of 2 problems is none"),
    ):
        status, _, err = cutlass_sk(*folder, *options)
        assert status == 2 and message in " ".join(err.replace("│", " ").split())
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    status, _, err = cutlass_sk(*folder)
    assert (status, err) == (2, "error: bench measures on a CUDA GPU and there is none; --dry-run makes the times up without one\n")
    assert not (tmp_path / "f").exists()
    assert "-o FOLDER" in cutlass_sk("bench")[2]
    cutlass_sk.monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = cutlass_sk("bench", "--list")
    assert status == 0 and all(name in out for name in (*CONTENDERS, *each_of_oracle())) and "…" not in out
    assert out.count("there is none") == 1 and out.endswith("\nall: It is timed on a CUDA GPU, and there is none.\n")
    monkeypatch.setattr(Contender, "unavailable", lambda self: None)
    for name in ("cublaslt_best", "torch_compile"):
        monkeypatch.setattr(type(CONTENDERS[name]), "unavailable", lambda self: "It needs a library.")
    assert cutlass_sk("bench", "--list")[1].endswith("\ncublaslt_best, torch_compile: It needs a library.\n")
    write(tmp_path / "t.parquet", Table((row(8),), ({**SOURCE, "made_up": False},)))
    assert cutlass_sk(*folder, *DRY, "--limit", "1")[0] == 0
    status, _, err = cutlass_sk("bench", "merge", *folder[2:], str(tmp_path / "t.parquet"), "-o", str(tmp_path / "m.parquet"))
    assert status == 2 and "are made up" in err and not (tmp_path / "m.parquet").exists()


def test_the_report_reads_what_a_bench_writes(tmp_path: Path, cutlass_sk: CommandLine) -> None:
    folder = tmp_path / "f"
    assert cutlass_sk("bench", "-o", str(folder), "--limit", "12", *DRY)[0] == 0
    summaries = []
    for name, given in (("log", folder), ("table", folder / TABLE)):
        status, out, _ = cutlass_sk("report", str(given), "-o", str(tmp_path / name))
        assert status == 0 and out.startswith("MADE UP: a dry run.\n") and "paper/aligned, back to back" in out
        summaries.append(json.loads((tmp_path / name / "summary.json").read_text()))
    assert summaries[0]["float16"] == summaries[1]["float16"]
    rows = {(r.m, r.n, r.k, r.contender): r.us or 0 for r in read_folder(folder).rows}
    ratios = [rows[m, n, k, "cublas"] / us for (m, n, k, name), us in rows.items() if name == "set"]
    assert summaries[0]["float16"]["paper_aligned"]["back_to_back"]["set_vs_cublas"]["mean"] == round(sum(ratios) / 12, 4)
    assert "made up" in json.dumps(summaries[0]["provenance"]["sources"])


def test_progress_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    todo = tasks(4) + tasks(4, "isolated")
    for terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        text = StringIO()
        with show(Console(file=text, force_terminal=True, width=120), todo, todo[2:]) as advance:
            for task in todo[2:]:
                sleep(0.01)
                advance(task)
        assert ("4/4" in text.getvalue() and "problems/s" in text.getvalue()) == terminal == bool(text.getvalue())
