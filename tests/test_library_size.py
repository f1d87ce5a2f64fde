"""Sizes are those of real binaries, counts those of CUTLASS's own generator, and what is missing is said."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine

from cutlass_sk import Gemm
from cutlass_sk.cli.size import cubin_bytes, cuobjdump, device_code_bytes, usage
from cutlass_sk.ensemble import installed, library_size, oracle
from cutlass_sk.ensemble.cli.size import table
from cutlass_sk.ensemble.installed import measured
from cutlass_sk.ensemble.library_size import BINARY_TARGET, Library, Point, Request
from cutlass_sk.ensemble.manifest import manifest
from cutlass_sk.ensemble.size_records import SizeError, read_candidates, read_times
from cutlass_sk.errors import DtypeError, ToolchainError
from cutlass_sk.generator import families
from cutlass_sk.generator.catalog import DTYPES
from cutlass_sk.generator.emit import emit
from cutlass_sk.jit.build import build_one

ROOT = Path(__file__).parent.parent
HALF, DOUBLE = Request("float16", "float16", "tn"), Request("float64", "float64", "tt")
KERNEL_SET = json.loads((ROOT / "results/h200/kernel_set.json").read_text())
PLANNER = json.loads((ROOT / "results/h200/planner.json").read_text())


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of ``cutlass-sk size``."""
    return CommandLine(capsys, monkeypatch)("size", *arguments)


@pytest.fixture
def tool() -> Path:
    found = cuobjdump()
    assert found is not None, "cuobjdump is needed: pip install nvidia-cuda-cuobjdump"
    return found


@pytest.mark.compiles
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_a_built_kernel_is_weighed(
    dtype: str, tool: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--dtype", dtype, "--layout", "tt", "--library", "single")
    status, text, _ = run(monkeypatch, capsys, *arguments, "--build", "--json")
    library = json.loads(text)[dtype]["libraries"]["single"]
    (weight,) = library["weights"]
    spec = families(dtype, dtype, "sm90a")[0]
    binary = build_one(spec, "90a").library
    assert (status, library["kernels"], library["missing"], library["code"]) == (0, 1, 0, "stream_k")
    assert (weight["name"], weight["target"]) == (spec.name, "sm_90a")
    assert library["code_bytes"] == weight["code_bytes"] == device_code_bytes(binary)
    assert library["library_bytes"] == binary.stat().st_size > library["code_bytes"] > 10_000
    assert 64 << 10 < weight["shared_bytes"] <= 227 << 10
    # 384 threads share 65,536 registers: 168 each, in steps of 8; nothing is spilled.
    assert (weight["usage"]["registers"], weight["usage"]["stack_bytes"]) == (168, 0)
    _, text, _ = run(monkeypatch, capsys, *arguments, "--details")
    assert f"{weight['code_bytes']:,}" in text and spec.name in text and "not built" not in text


@pytest.mark.compiles
def test_cubins_are_those_of_the_target(tool: Path, tmp_path: Path) -> None:
    binary = build_one(families("float16", "float16", "sm90a")[0], "90a").library
    assert 0.95 * device_code_bytes(binary) < cubin_bytes(binary, tool, "sm_90") <= device_code_bytes(binary)
    assert cubin_bytes(binary, tool, "sm_80") == cubin_bytes(binary, tool, "sm_9") == 0
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(ToolchainError, match=r"cannot read .*text\.so"):
        usage(tmp_path / "text.so", tool)


@pytest.mark.compiles
def test_an_installed_library_is_unpacked_once(tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = build_one(families("float16", "float16", "sm90a")[0], "90a").library
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(tmp_path / "cache"))
    said: list[str] = []
    first, second = (measured(binary, BINARY_TARGET, said.append) for _ in range(2))
    assert first == second and len(said) == 1 and "once" in said[0]
    assert first.target_bytes == cubin_bytes(binary, tool, BINARY_TARGET)
    assert (first.file_bytes, first.code_bytes) == (binary.stat().st_size, device_code_bytes(binary))
    (tmp_path / "cache" / installed.KNOWN).write_text("[1")
    assert measured(binary, BINARY_TARGET, said.append) == first and len(said) == 2  # a damaged store is made anew
    monkeypatch.setattr(installed, "cuobjdump", lambda: None)
    assert measured(binary, BINARY_TARGET, said.append) == replace(first, target_bytes=None)


def test_what_is_not_built_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(tmp_path))
    output = tmp_path / "size.json"
    names = ("--library", "set", "--library", "oracle_paper")
    status, text, _ = run(monkeypatch, capsys, "--dtype", "float16_float32", *names, "-o", str(output))
    record = json.loads(output.read_text())["float16_float32"]
    assert status == 0 and list(record["libraries"]) == ["set", "oracle_paper"]
    assert record["missing"] == 12 and "12 kernels are not built" in text
    assert record["libraries"]["set"]["code_bytes"] is None
    assert "cutlass-sk size --dtype float16_float32 --layout tn --library oracle_paper --build" in text
    assert not any(path.name != "size.json" for path in tmp_path.iterdir())  # nothing was compiled, nothing locked


def test_without_a_compiler_the_rest_is_still_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUTLASS_SK_NVCC", str(tmp_path / "absent"))
    status, text, _ = run(
        monkeypatch, capsys, "--library", "single", "--library", "manifest", "--kernels", "d1684gemm", "--dtype", "float64"
    )
    assert status == 0 and "not built, and cannot be here" in text and "52" in text
    status, _, errors = run(monkeypatch, capsys, "--library", "single", "--build")
    assert status == 2 and errors.startswith("error: ") and "Traceback" not in errors


def test_cublas_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(installed, "find", lambda name: None)
    status, text, errors = run(
        monkeypatch, capsys, "--library", "cublas", "--library", "cublaslt", "--performance", _results("planner.json")
    )
    assert (status, errors) == (0, "")
    assert "libcublas; not installed" in text and "libcublasLt; not installed" in text and "1.000" not in text


def test_the_wheel_of_a_library_is_named(tmp_path: Path) -> None:
    library = tmp_path / "site-packages/nvidia/cu13/lib/libcublas.so.13"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    assert installed.wheel(library) == ""
    (tmp_path / "site-packages/nvidia_cublas-13.1.0.3.dist-info").mkdir()
    assert installed.wheel(library) == "nvidia-cublas 13.1.0.3"


def test_several_dtypes_are_one_record(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = ("--library", "manifest", "--library", "ensemble", "--kernels", "d1684gemm", "--curve", _results("kernel_set_all.json"))
    status, text, _ = run(monkeypatch, capsys, "--dtype", "float16,float64", *names, "--json", "-o", str(tmp_path / "size.json"))
    record = json.loads(text)
    assert status == 0 and list(record) == ["provenance", "float16", "float64"]
    assert record["float64"]["libraries"]["manifest"]["kernels"] == 13 and record["float64"]["request"]["layout"] == "tt"
    assert len(record["float16"]["curve"]) == 54 and record["float64"]["curve"] == []
    assert record["provenance"]["curve"].endswith("kernel_set_all.json") and record["provenance"]["performance"] is None
    assert json.loads((tmp_path / "size.json").read_text()) == record
    _, text, _ = run(monkeypatch, capsys, "--dtype", "float16,float64", *names)
    assert "float16 -> float16, tn" in text and "float64 -> float64, tt" in text


# CUTLASS's manifest.


def test_a_narrow_manifest_can_be_counted_by_hand() -> None:
    # GenerateSM90_TensorOp_1684 has 13 tiles and one alignment, in four layouts.
    narrow = manifest("float64", "float64", "tt", "d1684gemm")
    assert (narrow.count, narrow.in_layout, narrow.by_generation, narrow.operations) == (52, 13, {90: 52}, 52)
    one = manifest("float64", "float64", "tn", "d1684gemm*_32x32x16*_tnn_")
    assert (one.count, one.in_layout, one.operations) == (1, 1, 1)
    # A column-major c = a b is a row-major c^T = b^T a^T: row-major factors become column-major ones.
    other = manifest("float64", "float64", "tt", "d1684gemm*_32x32x16*_nnn_")
    assert (other.count, other.in_layout) == (1, 1)
    assert manifest("float16", "float16", "tn", "d1684gemm").count == 0


@pytest.mark.parametrize(("dtype", "out_dtype"), DTYPES)
def test_the_manifest_is_plausible(dtype: str, out_dtype: str) -> None:
    made = manifest(dtype, out_dtype)
    assert 100 < made.count < 5000 < made.operations
    assert 4 * made.in_layout == made.count == sum(made.by_generation.values())
    assert made.by_generation[90] > 50 and made.by_generation[80] > 50


def test_the_manifest_is_counted_for_the_layout_shown() -> None:
    made = manifest("float64", "float64", "tn", "d1684gemm")
    found = library_size.counted(Request("float64", "float64", "tn", "d1684gemm"))
    assert found.kernels == made.in_layout == 13 and "52 in all layouts" in found.note
    nothing = library_size.counted(replace(HALF, kernels="zzz"))
    assert nothing.kernels == 0 and "nothing matches" in nothing.note


def test_manifests_of_other_types_are_refused() -> None:
    with pytest.raises(DtypeError, match="no kernel is float64 -> float16"):
        manifest("float64", "float16")


# Oracles.


@pytest.mark.parametrize(("dtype", "out_dtype"), DTYPES)
def test_oracles_are_ensembles_of_different_kernels(dtype: str, out_dtype: str) -> None:
    request = Request(dtype, out_dtype, "tn")
    for name, count in (("oracle_paper", 5 if dtype == "float64" else 4), ("oracle_hopper", 6 if dtype == "float64" else 14)):
        specs, code = library_size.specs_of(name, request)  # type: ignore[arg-type]
        sources = library_size.sources_of(specs, code)
        assert len({source.name for source in sources}) == len({source.text for source in sources}) == len(specs) == count
        assert all((spec.layout_a, spec.layout_b) == ("t", "n") for spec in specs)
        for source in sources:
            if code == "data_parallel":
                assert "StreamK" not in source.text and "cutlass_sk/" not in source.text
        assert code == ("stream_k" if (dtype, name) == ("float64", "oracle_hopper") else "data_parallel")
    assert all(emit(spec) for spec in oracle.oracle_hopper(dtype, out_dtype))  # they can be run, under Stream-K's kernels, too


def test_the_hopper_oracle_spans_tiles_schedules_and_clusters() -> None:
    specs = oracle.oracle_hopper("float16", "float16")
    areas = [spec.tile[0] * spec.tile[1] for spec in specs]
    assert (min(areas), max(areas)) == (64 * 32, 256 * 128)
    assert {spec.schedule for spec in specs} == {"pingpong", "cooperative"}
    assert {spec.cluster for spec in specs} == {(1, 1), (2, 1), (1, 2)}


# The curve, and performance for bytes.


def test_the_curve_goes_on_where_the_record_ends() -> None:
    points = library_size.curve(KERNEL_SET, HALF)
    steps = KERNEL_SET["curves"]["data_parallel"]["curve"]
    assert len(points) >= 32 and [point.kernels for point in points] == list(range(1, len(points) + 1))
    assert [(p.kernel, p.code_bytes, p.vs_cublas) for p in points[: len(steps)]] == [
        (step["kernel"], step["bytes"], step["geomean"]) for step in steps
    ]
    added = [
        after.code_bytes - before.code_bytes for before, after in zip(points[len(steps) :], points[len(steps) + 1 :], strict=False)
    ]
    assert added == sorted(added) and min(added) > 0
    assert points[-1].code_bytes == sum(KERNEL_SET["bytes"].values()) and points[-1].vs_cublas is None
    assert library_size.curve(KERNEL_SET, DOUBLE) == library_size.curve({}, HALF) == []


def test_the_long_record_goes_on_from_the_short_one() -> None:
    short, whole = KERNEL_SET["curves"], json.loads((ROOT / "results/h200/kernel_set_all.json").read_text())["curves"]
    for kind, entry in short.items():
        assert whole[kind]["curve"][: len(entry["curve"])] == entry["curve"]
    points = library_size.curve(json.loads((ROOT / "results/h200/kernel_set_all.json").read_text()), HALF)
    ratios = [point.vs_cublas for point in points if point.vs_cublas is not None]
    assert len(ratios) == len(points) == 54 and ratios == sorted(ratios)
    assert points[-1].code_bytes == sum(KERNEL_SET["bytes"].values())
    assert library_size.grown(points, Path("x.json")).vs_cublas == ratios[-1]
    assert library_size.grown(points[:1], None).kernels == 1


def test_a_small_curve_by_hand() -> None:
    record = {
        "bytes": {
            **{"x_f16_f16_b_tn": 30, "x_f16_f16_a_tn": 30, "x_f16_f16_c_tn": 20, "x_f16_f16_d_tn": 50},
            **{"x_f16_f32_e_tn": 1, "x_f16_f16_d_nn": 70},
        },
        "curves": {
            "data_parallel": {"curve": [{"kernel": "x_f16_f16_d_tn", "geomean": 0.5}, {"kernel": "x_f16_f32_e_tn", "geomean": 9.0}]}
        },
    }
    assert library_size.curve(record, HALF) == [
        Point(1, "x_f16_f16_d_tn", 50, 0.5),
        Point(2, "x_f16_f16_c_tn", 70, None),
        Point(3, "x_f16_f16_a_tn", 100, None),
        Point(4, "x_f16_f16_b_tn", 130, None),
    ]
    assert library_size.curve(record, replace(HALF, layout="nn")) == [Point(1, "x_f16_f16_d_nn", 70, None)]
    assert library_size.recorded_layouts(record, HALF) == ["nn", "tn"]


def test_performance_is_taken_from_a_record_of_the_same_kernels() -> None:
    whole = Library("set", "", 8, "stream_k", None, None, missing=8)
    timed = library_size.with_performance(whole, PLANNER, HALF)
    entry = PLANNER["float16"]
    assert (timed.vs_cublas, timed.code_bytes) == (entry["set_vs_cublas"]["geomean"], entry["bytes"])
    assert timed.vs_cublas_per_mb == pytest.approx(entry["set_vs_cublas"]["geomean"] / (entry["bytes"] / 1e6))
    assert timed.bytes_per_kernel == entry["bytes"] / 8
    apart = library_size.with_performance(whole, PLANNER, replace(HALF, layout="nn"))
    assert apart == replace(whole, note="times are recorded for tn")
    altered = {"float16": {**entry, "kernels": entry["kernels"][1:]}}
    other = library_size.with_performance(whole, altered, HALF)
    assert other.vs_cublas is None and "of other kernels" in other.note
    cublas = Library("cublaslt", "", None, "", 10**8, 10**9)
    assert library_size.with_performance(cublas, PLANNER, HALF).vs_cublas_per_mb == 0.01


def test_recorded_bytes_stand_in_for_kernels_that_are_not_built() -> None:
    first = Gemm("float16", device="h200", kernels=1).kernels[0].with_layouts("t", "n")
    unbuilt = Library("single", "", 1, "stream_k", missing=1, note="1 not built")
    of_widths = json.loads((ROOT / "results/h200/kernel_set_widths.json").read_text())
    found = library_size.with_recorded_bytes(unbuilt, of_widths, HALF)
    assert found.code_bytes == of_widths["bytes"][first.name] and found.note == "bytes as recorded; 1 not built"
    assert (
        library_size.with_recorded_bytes(unbuilt, of_widths, DOUBLE)
        == library_size.with_recorded_bytes(unbuilt, {}, HALF)
        == unbuilt
    )
    built = replace(unbuilt, missing=0, code_bytes=7)
    assert library_size.with_recorded_bytes(built, of_widths, HALF) == built
    shown = [table(HALF, [one]).columns[0]._cells for one in (found, unbuilt, built)]
    assert shown == [["single*"], ["single"], ["single"]]


def test_the_readmes_command_has_a_curve_and_marks_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = re.findall(r"`cutlass-sk size ([^`]*--curve[^`]*)`", (ROOT / "README.md").read_text())
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    status, text, _ = run(monkeypatch, capsys, *command.split())
    assert status == 0 and "no candidates" not in text and "…" not in text
    assert re.search(r"^ +set\* ", text, re.MULTILINE) and re.search(r"^ +ensemble\* +54 ", text, re.MULTILINE)
    assert "*: as recorded" in " ".join(text.split())


def _results(name: str) -> str:
    return str(ROOT / "results/h200" / name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--library", "sets"), "library 'sets' is not known; there are single, set, prebuilt, oracle_paper"),
        (("--dtype", "int8"), "int8"),
        (("--layout", "rr"), "rr"),
        (("--dtype", "float64_float32"), "'float64_float32' is no dtype; there are float16, float16_float32"),
        (("--performance", "absent.json"), "absent.json cannot be read"),
        (("--performance", _results("kernel_set.json")), "it has no 'float16'"),
        (("--curve", _results("planner.json")), "it has no 'curves'"),
        (("--library", "cublas", "-o", "/dev/null/size.json"), "/dev/null/size.json cannot be written: /dev/null is no folder"),
        (("--library", "cublas", "-o", "/nowhere/size.json"), "name a file in a folder that exists"),
    ],
)
def test_errors_are_messages(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, errors = run(monkeypatch, capsys, *arguments)
    assert status == 2 and message in " ".join(errors.split()) and "Traceback" not in errors


@pytest.mark.parametrize("content", ["", "[]", "{", '{"other": 1}'])
def test_records_that_are_none(content: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(content)
    with pytest.raises(SizeError, match=r"record\.json"):
        read_candidates(path)
    with pytest.raises(SizeError, match=r"record\.json"):
        read_times(path, "float16")


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        ({"float16": []}, "float16 is missing"),
        ({"float16": {"kernels": None}}, "float16.set_vs_cublas is missing"),
        ({"float16": {"set_vs_cublas": {"geomean": 1.0}, "kernels": None}}, "float16.kernels is missing"),
        ({"float16": {"set_vs_cublas": {"geomean": 1.0}, "kernels": []}}, "float16.kernels is missing"),
        ({"float16": {"set_vs_cublas": {"geomean": 1.0}, "kernels": ["k"], "bytes": True}}, "float16.bytes is missing"),
        ({"float16": {"set_vs_cublas": {}}}, "float16.set_vs_cublas.geomean is missing"),
        ({"float16": {"set_vs_cublas": 3}}, "float16.set_vs_cublas is missing"),
        ({"curves": []}, "curves is missing"),
        ({"curves": {}, "bytes": [1]}, "bytes is missing"),
        ({"curves": {}, "bytes": {"k": "1"}}, "bytes.k is missing"),
        ({"curves": {"data_parallel": []}}, "curves.data_parallel is missing"),
        ({"curves": {"data_parallel": {}}}, "curves.data_parallel.curve is missing"),
        ({"curves": {"data_parallel": {"curve": [3]}}}, "curves.data_parallel.curve[0] is missing"),
        ({"curves": {"data_parallel": {"curve": [{"geomean": 1}]}}}, "curves.data_parallel.curve[0].kernel is missing"),
        ({"curves": {"data_parallel": {"curve": [{"kernel": "k"}]}}}, "curves.data_parallel.curve[0].geomean is missing"),
    ],
)
def test_records_of_another_form_are_one_error(
    content: dict[str, Any], missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(content))
    option = "--curve" if "curves" in content else "--performance"
    status, text, errors = run(monkeypatch, capsys, "--library", "set", option, str(path))
    assert (status, text) == (2, "") and errors.startswith(f"error: {path} is no such record: {missing}")


def test_nothing_that_was_recorded_for_another_layout_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = ("--performance", _results("planner.json"), "--curve", _results("kernel_set.json"))
    names = ("--library", "set", "--library", "ensemble")
    status, text, _ = run(monkeypatch, capsys, "--layout", "nn", *recorded, *names, "--json")
    record = json.loads(text)["float16"]
    libraries = record["libraries"]
    assert status == 0 and record["curve"] == []
    assert libraries["set"]["vs_cublas"] is None and "recorded for tn" in libraries["set"]["note"]
    assert libraries["ensemble"]["code_bytes"] is libraries["ensemble"]["vs_cublas"] is None
    assert libraries["ensemble"]["note"] == "recorded for tn"


def test_the_headline_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    records = ("--performance", _results("planner.json"), "--curve", _results("kernel_set.json"))
    status, text, _ = run(monkeypatch, capsys, *records, "--library", "set", "--library", "ensemble", "--details")
    entry: dict[str, Any] = PLANNER["float16"]
    assert status == 0
    assert f"{entry['set_vs_cublas']['geomean']:.3f}" in text
    assert f"{sum(KERNEL_SET['bytes'].values()):,}" in text and "sm90a_f16_f16_64x96x64_2x1_pingpong_tn" in text
