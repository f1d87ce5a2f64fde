"""The record of any operands: its numbers, from a committed table and from times that are made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cutlass_sk.device import PRESETS
from cutlass_sk.ensemble import operands_record
from cutlass_sk.ensemble.bench import setup_of
from cutlass_sk.ensemble.bench_measure import MadeUp
from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.ensemble.operand_cases import Run
from cutlass_sk.ensemble.operands_record import Pair, fuzz_json, measure, raw_vs_aligned, raw_vs_cublas, rounded_up, sample
from cutlass_sk.ensemble.table import Measurement, Table, TableError
from cutlass_sk.errors import Error


def row(k: int, contender: str, us: float, dtype: str = "float16", **other: str) -> Measurement:
    kept = {"corpus": "paper/raw", "timing": "back_to_back", "status": "ok", **other}
    return Measurement(kept["corpus"], dtype, dtype, 129, 131, k, kept["timing"], contender, us, kept["status"])


def test_the_set_is_compared_with_cublas_on_raw_problems_alone() -> None:
    counted = {("set", 7): 2.0, ("cublas", 7): 8.0, ("set", 9): 3.0, ("cublas", 9): 3.0}
    rows = [row(k, contender, us) for (contender, k), us in counted.items()]
    rows += [row(7, "set", 9.0, timing="isolated"), row(7, "cublas", 1.0, timing="isolated")]
    rows += [row(11, "set", 9.0, corpus="paper/aligned"), row(11, "cublas", 1.0, corpus="paper/aligned")]
    rows += [row(13, "set", 9.0, status="wrong"), row(13, "cublas", 1.0)]
    rows += [row(7, "set", 1.0, "float64"), row(7, "cublas", 3.0, "float64")]
    assert raw_vs_cublas(Table(tuple(rows), ())) == {
        "float16": {"geomean": 2.0, "min": 1.0, "n": 2},
        "float64": {"geomean": 3.0, "min": 3.0, "n": 1},
    }
    with pytest.raises(TableError, match="no times of set and cublas on paper/raw"):
        raw_vs_cublas(Table(tuple(row for row in rows if row.corpus != "paper/raw"), ()))


def test_the_sample_is_of_problems_that_are_not_aligned() -> None:
    pairs = sample(300)
    assert len(pairs) == 300 and pairs[:20] == sample(20)
    for raw, aligned in pairs:
        sizes = list(zip((raw.m, raw.n, raw.k), (aligned.m, aligned.n, aligned.k), strict=True))
        assert any(size % 8 for size, _ in sizes) and all(up % 8 == 0 and 0 <= up - size < 8 for size, up in sizes)


def test_both_of_a_pair_are_timed_in_turn() -> None:
    setup = setup_of("float16", PRESETS["h200"])
    fed: list[int] = []
    pairs = [(raw, rounded_up(raw)) for raw in (Problem(129, 200, 300), Problem(1001, 1003, 1005))]
    measured = measure(setup, pairs, MadeUp(setup), 1e-2, lambda: fed.append(0))
    assert [(pair.raw, pair.aligned) for pair in measured] == pairs and len(fed) == 2 * 2 * operands_record.ROUNDS
    assert all(0.1 < pair.ratio < 10 for pair in measured)
    with pytest.raises(Error, match=r"is wrong: the largest error"):
        measure(setup, pairs, MadeUp(setup), -1.0, lambda: None)


def test_the_worst_pair_is_named() -> None:
    pairs = [Pair(Problem(m, 7, 9), Problem(8, 8, 16), raw_us, 2.0) for m, raw_us in ((3, 2.0), (5, 8.0))]
    expected = {"geomean": 2.0, "max": 4.0, "n": 2, "worst": (5, 7, 9), "worst_us": [8.0, 2.0]}
    assert raw_vs_aligned(pairs) == expected


def test_failures_say_how_to_run_them_again() -> None:
    assert fuzz_json(Run(7, [("python -m this", "no")]), 3) == {
        "cases": 7,
        "failures": 1,
        "seed": 3,
        "failed": [{"wrong": "no", "again": "python -m this"}],
    }


def test_dry_run_needs_no_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = Path(__file__).parents[1] / "results/h200/paper_raw_float16_float32.parquet"
    assert operands_record.main([str(table), "--dry-run", "--sample", "9"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed[: printed.index("}\n}") + 3])["float16_float32"]["n"] > 1000
    assert "9 pairs, 5000 cases of seed 2301 on 120 kernels" in printed
    with pytest.raises(SystemExit):
        operands_record.main([str(tmp_path / "none.parquet"), "--dry-run"])
    assert "none.parquet cannot be read" in capsys.readouterr().err
