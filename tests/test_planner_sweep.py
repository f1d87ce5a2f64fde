"""The sweep's arithmetic, its order and its records, without a GPU."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cutlass_sk import Gemm, planner
from cutlass_sk.device import PRESETS
from cutlass_sk.ensemble import arena, attempt, planner_report, planner_sweep, ratios, records
from cutlass_sk.ensemble.attempt import THOROUGH
from cutlass_sk.ensemble.candidates import candidates, identity, thinned
from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.ensemble.planner_sweep import Budget, Contest, Pretended, drawn, sample, shapes_of, sweep
from cutlass_sk.ensemble.records import Log, RecordError
from cutlass_sk.ensemble.table_records import read_any
from cutlass_sk.generator.catalog import families

H200 = PRESETS["h200"]
KERNELS = families("float16", "float16", "sm90a")
CONTEST = Contest("float16", KERNELS, H200)
VARIANTS = CONTEST.variants


def test_plans_are_those_of_a_call_with_such_operands() -> None:
    """How far rows of b are apart decides what loading them costs, and so the plan."""
    gemm = Gemm("float16", device="h200")
    problems = drawn(60)
    planned = [CONTEST.plans(problem)["set"] for problem in problems]
    assert planned == [gemm._plan(p.m, p.n, p.k, H200, ("t", "n")) for p in problems]
    assert planned != [gemm.plan(p.m, p.n, p.k) for p in problems]
    assert {spec.layout_a + spec.layout_b for spec in VARIANTS} == {"tn"}


def test_statistics() -> None:
    found = ratios.Ratios.of([1.0, 4.0])
    assert (found.mean, found.geomean, found.min, found.max, found.n) == (2.5, 2.0, 1.0, 4.0, 2)
    assert found.std == pytest.approx(4.5**0.5)
    assert ratios.Ratios.of([2.0]).std == 0.0
    assert ratios.Ratios.of([]).to_json() == {"mean": None, "geomean": None, "min": None, "max": None, "std": None, "n": 0}
    assert [ratios.half_decade(flop) for flop in (1e9, 3.1e9, 3.2e9, 9.9e9, 1e10)] == [9.0, 9.0, 9.5, 9.5, 10.0]
    groups = ratios.by_half_decade([(2e9, 1.0), (1e8, 3.0), (2.5e9, 2.0)])
    assert list(groups) == [8.0, 9.0] and groups[9.0].mean == 1.5


def test_problems_are_fixed_shuffled_different_and_apart_from_calibration() -> None:
    problems = drawn(2000)
    shapes = [(p.m, p.n, p.k) for p in problems]
    assert len(set(shapes)) == 2000 and problems == drawn(2000)
    assert all(128 <= size <= 8192 and size % 8 == 0 for shape in shapes for size in shape)
    assert set(drawn(100)) <= set(problems)
    left_out = set(shapes[:50])
    again = {(p.m, p.n, p.k) for p in drawn(2000, excluded=left_out)}
    assert len(again) == 2000 and not again & left_out
    assert not set(shapes) & planner_sweep.calibrated(H200)
    assert shapes_of([{"m": 1, "n": 2, "k": 3}, [4, 5, 6]]) == {(1, 2, 3), (4, 5, 6)}


def test_samples_and_shards_are_parts_of_one_order() -> None:
    problems = drawn(100)
    assert [place for place, _ in sample(problems, "exhaustive")] == list(range(0, 100, 10))
    shards = [list(sample(problems, "isolated", (index, 3))) for index in range(3)]
    assert sorted(place for shard in shards for place, _ in shard) == list(range(0, 100, 5))
    assert planner_sweep.shard("2/3") == (2, 3)
    with pytest.raises(Exception, match="no shard"):
        planner_sweep.shard("3/3")


def test_candidates_hold_together_are_different_and_hold_the_planner_s_choice() -> None:
    for m, n, k in ((128, 128, 8192), (1024, 1024, 1024), (4096, 4096, 512), (8192, 256, 128)):
        found = candidates(m, n, k, VARIANTS, H200)
        for plan in found:
            plan.check()
        assert len({identity(plan) for plan in found}) == len(found)
        assert identity(planner.make_plan(m, n, k, VARIANTS, H200)) in {identity(plan) for plan in found}
        assert {plan.kernel for plan in found} == {spec.with_layouts("t", "t") for spec in VARIANTS}
    large = candidates(4096, 4096, 512, KERNELS, H200)
    assert {plan.raster_swizzle for plan in large} == {1, 2, 4, 8}
    few = candidates(128, 128, 8192, KERNELS, H200)
    assert {"data_parallel", "split_k"} <= {plan.decomposition for plan in few}
    assert thinned(range(2, 200), 12)[0] == 2 and thinned(range(2, 200), 12)[-1] == 199 and len(thinned(range(99), 12)) <= 12
    assert thinned([2, 3], 12) == [2, 3]


def test_contenders_use_the_widths_of_their_kernels() -> None:
    problems = drawn(30)
    plans = [CONTEST.plans(problem) for problem in problems]
    for name, kernels in (("set", KERNELS), ("single", KERNELS[:1]), ("data_parallel", KERNELS[:1])):
        used = {plan[name].kernel for plan in plans}
        assert {spec.binary for spec in used} <= set(kernels) and len({spec.tile[1] for spec in used}) > 2
    assert all(plan["set"].predicted_time_us <= plan["single"].predicted_time_us for plan in plans)
    assert {spec.binary for spec in planner_sweep.in_layouts(CONTEST)} == {spec.with_layouts("t", "n") for spec in KERNELS}
    # Plans of two widths may be alike in every count, and are different launches.
    wide, narrow = (planner.make_plan(8, 64, 64, [KERNELS[0].at(width)], H200) for width in (64, 96))
    assert wide.grid == narrow.grid and identity(wide) != identity(narrow)


def test_float64_has_candidates_too() -> None:
    for plan in candidates(512, 512, 8192, families("float64", "float64", "sm90a"), H200):
        plan.check()


def test_launches_fill_a_graph() -> None:
    assert attempt.launches_for(0.1) == attempt.MOST_LAUNCHES and attempt.launches_for(1e4) == attempt.LEAST_LAUNCHES
    assert attempt.launches_for(10.0) == 30
    assert attempt.replays_for(10.0, 30, THOROUGH) == THOROUGH.replays and attempt.replays_for(2e4, 3, THOROUGH) == 3


def test_a_log_goes_on_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Log(path) as log:
        log.append({"x": 1})
    path.write_text(path.read_text() + '{"x": 2, "y')
    assert records.read(path) == [{"x": 1}]
    with Log(path) as log:
        assert log.rows == [{"x": 1}]
        log.append({"x": 3})
    assert records.read(path) == [{"x": 1}, {"x": 3}]
    path.write_text('{"x": 1}')  # whole but for its newline
    with Log(path) as log:
        log.append({"x": 2})
    assert records.read(path) == [{"x": 1}, {"x": 2}]
    path.write_text('nonsense\n{"x": 1}\n')
    with pytest.raises(RecordError, match="line 1"):
        records.read(path)
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(records.compact([{"x": 1}]))
    assert records.read(packed) == [{"x": 1}] and records.compact([{"x": 1}]) == packed.read_bytes()
    with pytest.raises(RecordError, match="compressed"):
        Log(packed)


def test_a_sweep_goes_on_where_it_stopped_and_stops_when_its_budget_is_spent(tmp_path: Path) -> None:
    problems, path = drawn(20), tmp_path / "log.jsonl"
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    with Log(path) as log:
        counts = sweep(CONTEST, Pretended(), problems, log, Budget(20.0, clock), ("main", "isolated"))
    assert 0 < counts["main"] < 20
    with Log(path) as log:
        more = sweep(CONTEST, Pretended(), problems, log, Budget(1e9), ("main", "isolated"))
    assert counts["main"] + more["main"] == 20 and counts["isolated"] + more["isolated"] == 4
    rows = records.read(path)
    assert len({records.key(row) for row in rows}) == len(rows) == 1 + 20 + 4
    with Log(path) as log:
        assert sweep(CONTEST, Pretended(), problems, log, Budget(1e9), ("main", "isolated")) == {"main": 0, "isolated": 0}


def test_a_budget_that_one_part_leaves_goes_to_the_next() -> None:
    now = 0.0
    whole = Budget(100.0, lambda: now)
    assert whole.part(6.0, 10.0).end == 60.0
    now = 20.0
    assert whole.part(1.0, 4.0).end == 40.0
    now = 101.0
    assert whole.spent and whole.part(3.0, 3.0).spent


def source(**more: Any) -> dict[str, Any]:
    return {"part": "provenance", "dtype": "", "commit": "abc", "gpu": "a GPU", "torch": "2", "corpus": "two", **more}


def ours(us: float | None, error: float | None = 0.001) -> dict[str, Any]:
    plan = {"kernel": "k", "decomposition": "split_k", "grid": 8, "sk_tiles": 4, "sk_units": 8, "splits": 2, "raster": "along_m 1"}
    return {"us": us, "error": error, **plan, "predicted_us": 1.0}


def measured(part: str, shape: tuple[int, int, int], **contenders: dict[str, Any]) -> dict[str, Any]:
    m, n, k = shape
    return {"part": part, "dtype": "float16", "m": m, "n": n, "k": k, "tolerance": 0.01, **contenders}


SMALL, LARGE = (128, 128, 128), (8192, 8192, 4096)
ROWS = [
    source(),
    measured("main", SMALL, set=ours(9.0), single=ours(4.0), data_parallel=ours(8.0), cublas={"us": 9.0}),
    measured("main", SMALL, set=ours(2.0), single=ours(4.0), data_parallel=ours(8.0), cublas={"us": 4.0}, cublas_again={"us": 4.4}),
    measured("main", LARGE, set=ours(100.0, None), single=ours(None), data_parallel=ours(100.0, 0.02), cublas={"us": 50.0}),
    measured("isolated", SMALL, set=ours(5.0), single=ours(5.0), data_parallel=ours(6.0), cublas={"us": 6.0}),
    measured("exhaustive", SMALL, set=ours(2.0), best=ours(1.8), cublas={"us": 4.0}) | {"tried": 9, "wrong_tried": 1},
    measured("exhaustive", LARGE, set=ours(100.0), best=ours(101.0), cublas={"us": 4.0}) | {"tried": 9, "wrong_tried": 0},
    measured("square", (8192, 8192, 8192), set=ours(200.0), single=ours(220.0), data_parallel=ours(230.0), cublas={"us": 190.0}),
    {"part": "host", "dtype": "float16", "kernels": ["k", "l"], "bytes": 123456, "decide_us_new": 12.0, "decide_us_known": 0.5},
    {"part": "clocks", "dtype": "float16", "when": "start", "state": "1980 MHz"},
]


def test_a_report_is_what_the_rows_say() -> None:
    result = planner_report.report(ROWS)
    entry = result["float16"]
    assert list(result) == ["provenance", "float16"]
    assert result["provenance"]["clocks"] == [{"dtype": "float16", "when": "start", "state": "1980 MHz"}]
    # The later row of the small problem replaces the earlier one.
    assert entry["set_vs_cublas"] == {"mean": 1.25, "geomean": 1.0, "min": 0.5, "max": 2.0, "std": 1.0607, "n": 2}
    assert entry["single_vs_data_parallel"]["mean"] == 2.0 and entry["single_vs_cublas"]["n"] == 1  # the other was not timed
    assert entry["set_vs_cublas_isolated"]["mean"] == 1.2
    assert (entry["set_vs_cublas_compute_bound"]["mean"], entry["set_vs_cublas_compute_bound"]["n"]) == (0.5, 1)
    assert entry["set_vs_exhaustive"]["mean"] == 0.95  # 0.9 and 1: the set's own plan is among the best
    assert entry["square_8192_vs_cublas"] == 0.95
    assert entry["cublas_vs_itself"]["mean"] == 1.1
    assert entry["wrong"] == 2 and entry["not_timed"] == 1
    assert (entry["kernels"], entry["bytes"], entry["run_cpu_us"]) == (["k", "l"], 123456, None)
    assert planner_report.wrong(ROWS[3]) == ["set", "data_parallel"]


def test_records_of_different_commits_make_no_report() -> None:
    with pytest.raises(RecordError, match="different commit"):
        planner_report.report([*ROWS, source(commit="def")])
    with pytest.raises(RecordError, match="no provenance"):
        planner_report.report(ROWS[1:])


def test_tables_show_targets_distributions_and_the_worst() -> None:
    table = planner_report.table(planner_report.report(ROWS), {"set_vs_cublas": 1.3, "float16.decide_us_new": 20.0})
    assert "| 1.250 (1.000; 0.50 to 2.00; 1.06; 2); at least 1.3: missed |" in table
    assert "| 12.00; at most 20: met |" in table and "| 123,456 |" in table
    details = planner_report.details(ROWS[2:])
    assert "| 1e6.5 | 2.000 | 2.000 | 2.000 | 2.000 | 1 |" in details
    assert "| 8192 x 8192 x 4096 | 0.500 | 100.00 | 50.00 | 1.00 | k | 2 splits |" in details
    assert "- 8192 x 8192 x 4096 (main): set, data_parallel" in details


def test_a_dry_run_plans_everything_and_its_report_is_recomputed_from_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, output, again = tmp_path / "rows.jsonl", tmp_path / "planner.json", tmp_path / "again.json"
    arguments = [
        "--dry-run",
        "--records",
        str(log),
        "-o",
        str(output),
        "-n",
        "20",
        "--commit",
        "abc",
        "--dtype",
        "float16",
        "float64",
    ]
    assert planner_sweep.main(arguments) == 0
    result = json.loads(output.read_text())
    assert set(result) == {"provenance", "float16", "float64"}
    wanted = {"commit", "date", "gpu", "torch", "cuda", "script", "n", "corpus"}
    assert wanted <= set(result["provenance"]) and "made up" in result["provenance"]["gpu"]
    for dtype in ("float16", "float64"):
        entry = result[dtype]
        assert entry["set_vs_cublas"]["n"] == 20 and entry["set_vs_cublas_isolated"]["n"] == 4
        assert entry["set_vs_exhaustive"]["n"] == 2 and entry["set_vs_exhaustive"]["max"] <= 1.0
        assert 0.8 < entry["set_vs_cublas"]["mean"] < 1.25 and entry["wrong"] == 0
    packed = output.with_suffix(".records.jsonl.gz")
    assert gzip.decompress(packed.read_bytes()).count(b"\n") == log.read_text().count("\n")
    assert planner_sweep.main(["--report", str(packed), "-o", str(again), "--details"]) == 0
    assert again.read_text() == output.read_text()
    assert read_any(packed).made_up
    capsys.readouterr()
    assert planner_sweep.main(["--table", str(output), "--goal", "set_vs_cublas=9"]) == 0
    assert "at least 9: missed" in capsys.readouterr().out
    other = [*arguments[:-4], "def", "--dtype", "float16"]
    assert planner_sweep.main(other) == 2
    assert "name a new file" in capsys.readouterr().err


def test_a_problem_beyond_the_pools_is_no_problem_of_the_corpus() -> None:
    largest = Problem(8192, 8192, 8192)
    for dtype, out_dtype in planner_report.DTYPES.values():
        from cutlass_sk.generator.spec import ELEMENT_BYTES

        inputs = (largest.m + largest.n) * largest.k * ELEMENT_BYTES[dtype]
        assert inputs <= arena.POOL_BYTES and 2 * largest.m * largest.n * ELEMENT_BYTES[out_dtype] <= arena.POOL_BYTES
        assert (dtype, out_dtype) in arena.TOLERANCE
