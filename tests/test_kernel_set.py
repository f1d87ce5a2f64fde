"""A kernel set grows by what lifts the geometric mean most: on a table small enough to do by hand."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from cutlass_sk.ensemble import kernel_set
from cutlass_sk.ensemble.records import RecordError, read
from cutlass_sk.generator.catalog import families

SMALL, LARGE = (128, 128, 128), (8192, 8192, 8192)


def row(shape: tuple[int, int, int], kernel: str, us: float, dec: str = "data_parallel", **more: float) -> dict[str, Any]:
    return {"m": shape[0], "n": shape[1], "k": shape[2], "kernel": kernel, "dec": dec, "us": us, **more}


ROWS = [
    row(SMALL, "cublas", 12.0, us2=10.0),  # 10 at its best
    row(LARGE, "cublas", 100.0, us2=100.0),
    row(SMALL, "even", 10.0, "stream_k"),
    row(SMALL, "even", 12.0),
    row(LARGE, "even", 100.0, "split_k"),
    row(LARGE, "even", 400.0),
    row(SMALL, "small", 5.0),
    row(LARGE, "small", 200.0),
    row(LARGE, "large", 50.0),
]
"""``even`` is as fast as cuBLAS; ``small`` and ``large`` share no tiles; ``large`` was not timed on the small problem."""


def test_a_kernel_counts_with_its_best_plan_and_cublas_with_its_best_time() -> None:
    times = kernel_set.gathered(ROWS)
    assert times.problems == (SMALL, LARGE) and times.kernels == ("even", "large", "small")
    assert times.cublas.tolist() == [10.0, 100.0] and times.best.tolist() == [5.0, 50.0]
    assert times.us.tolist() == [[10.0, 100.0], [float("inf"), 50.0], [5.0, 200.0]]
    # What was not timed counts as twice the best: 10 us on the small problem. So does what is slower than that.
    assert times.ratios().tolist() == [[1.0, 1.0], [1.0, 2.0], [2.0, 1.0]]
    assert times.ratios(4.0).tolist() == [[1.0, 1.0], [0.5, 2.0], [2.0, 0.5]]


def test_a_binary_counts_with_its_best_width() -> None:
    wide, narrow = (f"sm90a_f16_f16_64x{width}x64_n32to256_2x1_pingpong_swapped" for width in (256, 96))
    other = "sm90a_f16_f16_64x96x64_2x1_pingpong_swapped"
    rows = [
        *ROWS[:2],
        row(SMALL, narrow, 5.0, "split_k"),
        row(SMALL, wide, 20.0),
        row(LARGE, narrow, 200.0),
        row(LARGE, wide, 50.0),
        row(SMALL, other, 6.0),
        row(LARGE, other, 100.0),
    ]
    times = kernel_set.gathered(rows)
    assert times.kernels == (wide, other) and times.us.tolist() == [[5.0, 50.0], [6.0, 100.0]]
    assert kernel_set.gathered(rows, "stream_k").kernels == (wide,)
    steps = kernel_set.greedy(times, sizes={wide: 70, other: 10})
    assert [(step.kernel, step.geomean, step.bytes) for step in steps] == [(wide, 2.0, 70), (other, 2.0, 80)]
    assert kernel_set.only_whole_tiles(rows, [wide, other])[wide] == round(sqrt(10 / 6 * 2), 4)


def test_kernels_are_added_greedily() -> None:
    sizes = {"even": 100, "large": 20, "small": 10}
    steps = kernel_set.greedy(kernel_set.gathered(ROWS), sizes=sizes)
    assert [step.kernel for step in steps] == ["small", "large", "even"]  # of equals the smaller one
    assert [step.geomean for step in steps] == [round(sqrt(2), 4), 2.0, 2.0]
    assert [step.min for step in steps] == [1.0, 2.0, 2.0]
    assert [step.bytes for step in steps] == [10, 30, 130]
    assert [step.untimed for step in steps] == [0, 0, 0]
    assert [step.kernel for step in kernel_set.greedy(kernel_set.gathered(ROWS), 2)] == ["large", "small"]  # by name without sizes
    assert kernel_set.greedy(kernel_set.gathered(ROWS), 1)[0].untimed == 1
    assert kernel_set.greedy(kernel_set.gathered(ROWS), factor=4.0)[0].kernel == "even"
    forced = kernel_set.greedy(kernel_set.gathered(ROWS), 2, first=["even"])
    assert [step.kernel for step in forced] == ["even", "large"] and forced[0].bytes is None
    with pytest.raises(RecordError, match="no kernel is called 'odd'"):
        kernel_set.greedy(kernel_set.gathered(ROWS), first=["odd"])


def test_curves_tell_stream_k_kernels_from_others() -> None:
    curves = kernel_set.study(ROWS)
    assert curves["stream_k"]["kernels"] == 1 and curves["stream_k"]["all_geomean"] == 1.0
    assert curves["any"]["kernels"] == 3 and curves["any"]["all_geomean"] == 2.0
    assert curves["data_parallel"]["kernels"] == 3
    assert {entry["problems"] for entry in curves.values()} == {2}
    assert curves["any"]["if_data_parallel_only"] == {"large": 2.0, "small": 2.0, "even": 2.0}
    assert kernel_set.only_whole_tiles(ROWS, ["even"]) == {"even": round(sqrt(10 / 10 * 1.0), 4)}
    assert kernel_set.only_whole_tiles(ROWS, ["even"], 4.0) == {"even": round(sqrt(10 / 12 * 0.5), 4)}
    even = kernel_set.gathered(ROWS, "data_parallel", ["even"])
    assert even.us.tolist() == [[12.0, 400.0]]
    with pytest.raises(RecordError, match="no problem"):
        kernel_set.study(ROWS[:2])


def test_the_noise_is_how_far_cublas_is_from_itself() -> None:
    assert kernel_set.noise(ROWS) == round(sqrt(12 / 10), 4)
    assert kernel_set.noise(ROWS[2:]) is None


def test_the_command_writes_a_record_its_table_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times, sizes, output = tmp_path / "times.jsonl", tmp_path / "sizes.json", tmp_path / "out" / "kernel_set.json"
    output.parent.mkdir()
    times.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    sizes.write_text(json.dumps({"even": 1000, "large": 20, "small": 10}))
    arguments = [str(times), "-o", str(output), "--bytes", str(sizes), "--commit", "abc", "--gpu", "a GPU"]
    assert kernel_set.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "| 3 | even | 2.000 | 2.00 | 1,030 |" in printed
    record = json.loads(output.read_text())
    assert record["provenance"]["commit"] == "abc" and record["provenance"]["gpu"] == "a GPU"
    assert output.with_suffix(".svg").read_text().count("<polyline") == 3
    assert kernel_set.main(["--table", str(output)]) == 0
    assert capsys.readouterr().out == printed
    times.write_text("")
    assert kernel_set.main([str(times)]) == 2


def test_the_recorded_choice_of_the_set_comes_out_of_the_recorded_times_again() -> None:
    results = Path(__file__).parent.parent / "results/h200"
    recorded = json.loads((results / "kernel_set_widths.json").read_text())
    times = [line for name in ("calibration", "calibration_cublas") for line in read(results / f"{name}.jsonl.gz")]
    rows = kernel_set.as_times(times, "sm90a_f16_f16_")
    curves = kernel_set.study(rows, None, recorded["bytes"], kernel_set.MISSING_FACTOR, [])
    assert json.loads(json.dumps(curves)) == recorded["curves"]
    order = [step["kernel"] for step in recorded["curves"]["any"]["curve"]]
    assert order == [spec.with_layouts("t", "n").name for spec in families("float16", "float16", "sm90a")]


def test_records_of_a_calibration_are_rows() -> None:
    record = {"kernel": "f", "layouts": "tn", "m": 1, "n": 2, "k": 3, "sk_tiles": 4, "sk_units": 0, "splits": 1, "time_us": 5.0}
    made = kernel_set.as_times([record, {**record, "sk_units": 2}, {**record, "sk_units": 2, "splits": 2}, {"part": "host"}])
    assert [(row["kernel"], row["dec"], row["us"]) for row in made] == [
        ("f_tn", "data_parallel", 5.0),
        ("f_tn", "stream_k", 5.0),
        ("f_tn", "split_k", 5.0),
    ]
    assert kernel_set.as_times([record, ROWS[0]], "g") == [ROWS[0]]
