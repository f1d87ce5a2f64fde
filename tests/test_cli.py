"""The command line says what is true, in text and in JSON, and ends with the status it promises."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from command_line import CommandLine

from cutlass_sk import Gemm, __version__
from cutlass_sk.cli.drawing import gantt
from cutlass_sk.cli.size import device_code_bytes
from cutlass_sk.generator.catalog import families
from cutlass_sk.generator.spec import KernelSpec
from cutlass_sk.plan import Plan
from cutlass_sk.timeline import timeline

SQUARE = KernelSpec("sm90a", "3x", "float16", "float16", (128, 128, 64))
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU says")


def test_version_and_help(cutlass_sk: CommandLine) -> None:
    assert cutlass_sk("--version") == (0, f"{__version__}\n", "")
    status, text, _ = cutlass_sk("--help")
    assert status == 0
    for command in ("doctor", "cache", "plan", "schedule", "model", "run", "build", "demo"):
        assert command in text


def test_plan_shows_every_field_and_says_why(cutlass_sk: CommandLine) -> None:
    status, text, _ = cutlass_sk("plan", "128", "128", "16384", "--device", "h200")
    plan = Gemm("float16", device="h200").plan(128, 128, 16384)
    assert status == 0
    assert "128 x 128 x 16384" in text and str(plan.kernel) in text
    for field in fields(Plan):
        assert field.name in ("m", "n", "k") or field.name in text
    assert f"would keep its SMs {plan.data_parallel_efficiency:.1%} busy" in text
    assert f"expected to be faster: {plan.predicted_time_us:.1f} us against" in text


def test_a_width_is_forced(cutlass_sk: CommandLine) -> None:
    status, text, _ = cutlass_sk("plan", "1000", "1000", "1000", "--device", "h200", "--tile-n", "96", "--json")
    record = json.loads(text)
    assert status == 0 and record["kernel"]["tile"][1] == 96
    # What it is compared with has the same tiles.
    alone = Gemm("float16", device="h200", kernels=[record["kernel"]["name"]])
    expected = alone.plan(1000, 1000, 1000, decomposition="data_parallel").predicted_time_us
    assert record["data_parallel_predicted_time_us"] == expected
    status, _, message = cutlass_sk("plan", "64", "64", "64", "--device", "h200", "--tile-n", "100")
    assert status == 2 and "tile_n=100 is no width of these kernels' tiles; use one of 32, 64" in message


def test_plan_as_json_is_the_plan(cutlass_sk: CommandLine) -> None:
    options = (
        "--dtype",
        "bfloat16",
        "--out-dtype",
        "float32",
        "--layout",
        "tn",
        "--device",
        "a100",
        "--splits",
        "3",
        "--sms",
        "60",
    )
    status, text, _ = cutlass_sk("plan", "300", "200", "5000", *options, "--json")
    record = json.loads(text)
    plan = Gemm("bfloat16", out_dtype="float32", device="a100").plan(300, 200, 5000, splits=3, sms=60)
    assert status == 0
    assert record["kernel"]["name"] == str(plan.kernel.with_layouts("t", "n"))
    for name in ("m", "n", "k", "device", "decomposition", "grid", "splits", "peers", "workspace_bytes", "efficiency"):
        assert record[name] == getattr(plan, name)


def test_forced_data_parallel_is_compared_with_stream_k(cutlass_sk: CommandLine) -> None:
    status, text, _ = cutlass_sk("plan", "128", "128", "4096", "--decomposition", "data_parallel", "--device", "toy:4")
    stream_k = Gemm("float16", device="toy:4").plan(128, 128, 4096, decomposition="stream_k")
    assert status == 0
    assert f"Stream-K would reach {stream_k.efficiency:.1%}" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "0", "1", "1"), "m=0 must be a whole number"),
        (("plan", "8", "8", "8", "--device", "a1000"), "--device a1000 is no preset"),
        (
            ("plan", "8", "8", "8", "--splits", "2", "--decomposition", "data_parallel"),
            "--splits 2 belongs to --decomposition split_k",
        ),
        (
            ("plan", "8", "8", "8", "--dtype", "float64", "--out-dtype", "float32"),
            "no kernel is Gemm('float64', out_dtype='float32'); there are",
        ),
        (("build", "--tile", "1x2x3"), "no kernel fits these options"),
        (("build", "--arch", "90a", "--generation", "sm80", "--layout", "tt"), "cannot be built for sm_90a"),
    ],
)
def test_own_errors_are_one_line(cutlass_sk: CommandLine, arguments: tuple[str, ...], message: str) -> None:
    status, text, errors = cutlass_sk(*arguments)
    assert (status, text) == (2, "")
    *_, last = errors.splitlines()
    assert last.startswith("error: ") and message in last and "Traceback" not in errors


@pytest.mark.parametrize("arguments", [("plan", "8", "8"), ("plan", "8", "8", "8", "--dtype", "int8"), ("build", "--cluster", "2")])
def test_wrong_usage_is_status_2(cutlass_sk: CommandLine, arguments: tuple[str, ...]) -> None:
    status, _, errors = cutlass_sk(*arguments)
    assert status == 2 and "Usage: cutlass-sk" in errors


@without_gpu
def test_run_without_gpu_says_what_it_needs(cutlass_sk: CommandLine) -> None:
    status, _, errors = cutlass_sk("run", "8", "16", "32")
    assert status == 2
    assert "needs a CUDA GPU" in errors and "`cutlass-sk plan 8 16 32`" in errors and errors.count("\n") == 1


def test_gantt_draws_each_k_tile_once() -> None:
    gemm = Gemm("float16", device="toy:4", kernels=[SQUARE])
    plan = gemm.plan(384, 384, 512, decomposition="stream_k", sk_tiles=9)
    drawn = timeline(plan, fixup_iters=1)
    rows = [line[len("SM 0 ") :].split()[0] for line in gantt(drawn).plain.splitlines()]
    assert [len(row) for row in rows] == [18, 19, 19, 19] and drawn.length == 19
    assert {tile: "".join(rows).count(tile) for tile in "012345678"} == dict.fromkeys("012345678", plan.iters_per_tile)
    assert "".join(rows).count("+") == 3


@pytest.mark.parametrize(
    ("sms", "k", "drawn"),
    [
        (2, 320, "SM 0 000  3\nSM 1 00.+ 4"),  # the finisher's share is the shorter one
        # SM 5 adds those of 4, 3, 2 and 1, which has added those of 0.
        (6, 384, "SM 0 0     1\nSM 1 0+    2\nSM 2 0     1\nSM 3 0     1\nSM 4 0     1\nSM 5 0++++ 5"),
    ],
)
def test_gantt_waits_for_partials(sms: int, k: int, drawn: str) -> None:
    gemm = Gemm("float16", device=f"toy:{sms}", kernels=[SQUARE])
    plan = gemm.plan(128, 128, k, decomposition="stream_k")
    assert gantt(timeline(plan, fixup_iters=1)).plain == drawn


@pytest.mark.compiles
def test_build_reports_what_it_built(cutlass_sk: CommandLine) -> None:
    first = families("float16", "float16", "sm90a")[0]
    tile, cluster = "x".join(map(str, first.tile)), "x".join(map(str, first.cluster))
    status, text, _ = cutlass_sk("build", "--tile", tile, "--cluster", cluster, "--layout", "tt")
    row = next(line for line in text.splitlines() if first.name in line)
    size, code_size = (int(number.replace(",", "")) for number in re.findall(r"\d{1,3}(?:,\d{3})+", row))
    assert status == 0 and "sm_90a" in row
    assert 10_000 < code_size < size


@pytest.mark.compiles
@without_gpu
def test_demo_without_gpu(cutlass_sk: CommandLine) -> None:
    status, text, errors = cutlass_sk("demo")
    assert (status, errors) == (0, "")
    for shape in ("128 x 128 x 16384", "1536 x 1536 x 4096", "256 x 3584 x 8192", "8192 x 8192 x 8192"):
        assert shape in text
    assert "SM 3 " in text
    assert "of them GPU code" in text
    assert "0 of 36,864 elements differ from the exact product" in text


def test_device_code_of_a_library_without_any_is_zero() -> None:
    import _ctypes

    assert device_code_bytes(Path(_ctypes.__file__)) == 0


def test_a_dtype_by_another_name(cutlass_sk: CommandLine) -> None:
    for command in (("plan", "64", "64", "640"), ("size", "--library", "single"), ("bench", "--list")):
        named, other = (cutlass_sk(*command, "--dtype", dtype) for dtype in ("float64", "double"))
        assert named == other and named[0] == 0, command
    plan = ("plan", "64", "64", "640", "--dtype", "half", "--out-dtype", "float")
    assert cutlass_sk(*plan) == cutlass_sk("plan", "64", "64", "640", "--dtype", "float16", "--out-dtype", "float32")
    status, _, errors = cutlass_sk("plan", "64", "64", "640", "--dtype", "float")
    assert status == 2 and "'float' is not one of float16, bfloat16, float64" in " ".join(errors.split())
