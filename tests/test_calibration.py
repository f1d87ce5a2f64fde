"""Constants come from where it is said, a fit finds what made the times, and the model grows where it must."""

from __future__ import annotations

import dataclasses
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlass_sk import Gemm, calibration, cli, planner
from cutlass_sk.calibration import Calibration, measure, records
from cutlass_sk.calibration import fit as fitting
from cutlass_sk.calibration.neighbours import at_other_widths, of_another_kernel
from cutlass_sk.calibration.records import Record
from cutlass_sk.device import CLOCK_MHZ, PRESETS, Device, preset, scaled
from cutlass_sk.ensemble import corpus
from cutlass_sk.errors import CalibrationError
from cutlass_sk.generator import abi
from cutlass_sk.generator.catalog import DTYPES, GENERATIONS, families
from cutlass_sk.generator.spec import KernelSpec, at_all_widths
from cutlass_sk.model import Constants, Limits, Profile
from cutlass_sk.options import Options
from cutlass_sk.timing import Pool
from cutlass_sk.work import Choice, cut_up, load, score

H200 = PRESETS["h200"]
FAMILY = families("float16", "float16", "sm90a")
ONE_WIDTH = KernelSpec("sm90a", "3x", "float16", "float16", (64, 32, 64), schedule="single")
TWICE = dataclasses.replace(ONE_WIDTH, ctas_per_sm=2)
LIMITS = Limits(12000.0, 4000.0, 1100.0, alone=0.6, crowded=0.45, rows16=0.6, rows32=0.2, rows64=0.1)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    forget_calibrations()


def forget_calibrations() -> None:
    calibration.calibration_of.cache_clear()
    calibration._profile.cache_clear()
    planner.kernel_set.cache_clear()


def candidates(shape: tuple[int, int, int], kernels: Any, device: Device = H200) -> list[planner.Scored]:
    return list(planner.scored(*shape, kernels, device, Options()))


def recorded(scored: planner.Scored, spec: KernelSpec, time_us: float) -> Record:
    plan, layouts = planner.build(scored, Options()), spec.layout_a + spec.layout_b
    return Record(spec.family, layouts, plan.m, plan.n, plan.k, plan.sk_tiles, plan.sk_units, plan.splits, plan.fixup, time_us)


def synthetic(constants: dict[str, Constants], limits: Limits, specs: list[KernelSpec], count: int) -> list[Record]:
    """What a GPU would measure whose times are the model's."""
    found = []
    for shape in measure.shapes(count, seed=5):
        for spec in specs:
            made = Profile(spec, H200.sms, constants[spec.family], limits, device_sms=H200.sms)
            for one in candidates(shape, [spec.with_layouts("t", "n")]):
                found.append(recorded(one, spec.with_layouts("t", "n"), made.time_us(load(one.work, one.choice))))
    return found


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("layouts", ["tt", "tn", "nt", "nn"])
def test_operands_in_boxes_of_64_bytes_a_row_cost_more_to_load(layouts: Any, swapped: bool) -> None:
    """Row-major b, or for c^T column-major a, of kernels of several widths; the planner's profile knows its operands' layouts."""
    family = next(spec for spec in families("float16", "float16", "sm90a") if spec.swapped is swapped)
    spec, limits = family.with_layouts(*layouts), calibration.limits(family, H200)
    expected = (swapped and layouts[0] == "n", not swapped and layouts[1] == "t")
    assert spec.narrow_boxes == expected and limits.narrow > 0
    made, wide = calibration.profile(spec, H200, H200.sms), calibration.profile(spec, H200, H200.sms, narrow=(False, False))
    assert made.narrow == expected and made.spec == wide.spec
    for loaded, plain, narrow in ((made.load_a_us, wide.load_a_us, expected[0]), (made.load_b_us, wide.load_b_us, expected[1])):
        assert loaded == pytest.approx(plain * (1 + limits.narrow * narrow))
    assert families("float64", "float64", "sm90a")[0].with_layouts(*layouts).narrow_boxes == (False, False)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 4000)] * 3),
    spec=st.sampled_from([*(s for g in GENERATIONS for d in DTYPES for s in families(*d, g) if not s.promotable), TWICE]),
    layouts=st.sampled_from([("t", "t"), ("t", "n"), ("n", "t"), ("n", "n")]),
    seed=st.integers(0, 1000),
)
def test_the_fit_predicts_by_the_model_s_own_equation(
    shape: tuple[int, int, int], spec: KernelSpec, layouts: Any, seed: int
) -> None:
    random = Random(seed)
    constants = Constants(*(random.uniform(0.1, 5) for _ in dataclasses.fields(Constants)))
    limits = Limits(*(random.uniform(1000, 9000) for _ in range(3)), *(random.uniform(0, 1) for _ in range(6)))
    spec = spec.with_layouts(*layouts)
    profile = Profile(spec, H200.sms, constants, limits, device_sms=H200.sms)
    scored = [one._replace(work=one.work._replace(profile=profile)) for one in candidates(shape, [spec])]
    table = fitting.columns([recorded(one, spec, 1.0) for one in scored], {spec.family: spec}, H200, [spec.family])
    per_kernel = {name: np.array([getattr(constants, name)]) for name in fitting.PER_KERNEL}
    predicted = fitting.predict(table, per_kernel, dataclasses.asdict(limits))
    assert predicted == pytest.approx([score(one.work, one.choice) for one in scored], rel=1e-9)
    for one in scored:
        terms = profile.terms(load(one.work, one.choice))
        assert terms.total == score(one.work, one.choice) and min(terms) >= 0


def test_a_fit_recovers_the_constants_that_made_the_times() -> None:
    pytest.importorskip("scipy")
    specs = list(FAMILY[:3])
    truth = {
        spec.family: Constants(a=3.0 + i, b=1.0 + i / 4, c=0.25 + 0.1 * i, d=2.0, d_parallel=0.0, e=1.0 + i / 2, h=4.0 + i)
        for i, spec in enumerate(specs)
    }
    found = fitting.fit(synthetic(truth, LIMITS, specs, 160), {s.family: s for s in specs}, H200)
    assert found.quality.rms < 0.01 and found.quality.selection > 0.999
    assert found.held_out is not None and found.held_out.rms < 0.02
    for name, constants in truth.items():
        got = found.constants[name]
        assert got.d_parallel == 0.0
        for key in ("a", "c", "e", "h"):
            assert getattr(got, key) == pytest.approx(getattr(constants, key), rel=0.1), (name, key)
    assert found.limits.l2_gbs == pytest.approx(LIMITS.l2_gbs, rel=0.05)
    assert found.limits.rows16 == pytest.approx(LIMITS.rows16, abs=0.1)
    assert found.limits.alone == pytest.approx(LIMITS.alone, abs=0.1)


def test_a_fit_of_too_little_or_of_mixed_kernels_is_refused() -> None:
    pytest.importorskip("scipy")
    one = recorded(candidates((256, 256, 256), FAMILY[:1])[0], FAMILY[0], 3.0)
    with pytest.raises(CalibrationError, match="measure more shapes"):
        fitting.fit([one], records.catalogue(), H200)
    double = families("float64", "float64", "sm90a")[0]
    other = recorded(candidates((256, 256, 256), [double])[0], double, 3.0)
    with pytest.raises(CalibrationError, match="fit them one by one"):
        fitting.fit([one] * 30 + [other] * 30, records.catalogue(), H200)


def test_a_fit_without_scipy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    one = recorded(candidates((256, 256, 256), FAMILY[:1])[0], FAMILY[0], 3.0)
    with pytest.raises(CalibrationError, match=r"cutlass-sk\[calibrate\]"):
        fitting.fit([one] * 30, records.catalogue(), H200)


def test_no_shape_of_the_corpus_is_measured() -> None:
    judged = {(problem.m, problem.n, problem.k) for problem in corpus.paper("aligned")}
    assert measure.reserved() == judged
    assert corpus.SEED not in range(measure.SEED, measure.SEED + len(DTYPES))
    for index in range(len(DTYPES)):
        chosen = measure.shapes(1000, measure.SEED + index)
        assert len(set(chosen)) == 1000 and not judged & set(chosen)
        assert all(128 <= size <= 8192 and size % 8 == 0 for shape in chosen for size in shape)


def test_every_kernel_s_candidates_are_measured_in_random_order_but_the_slow_ones() -> None:
    chosen = measure.candidates((1536, 1536, 4096), FAMILY, H200, Random(1))
    times = [one.plan.predicted_time_us for one in chosen]
    assert max(times) <= measure.SLOWEST * min(times) and times != sorted(times)
    assert {one.spec.layout_a + one.spec.layout_b for one in chosen} == {"tn"}
    assert {one.plan.decomposition for one in chosen} >= {"data_parallel", "stream_k"}
    assert chosen == measure.candidates((1536, 1536, 4096), FAMILY, H200, Random(1))


def test_calibrations_and_records_round_trip(tmp_path: Path) -> None:
    shipped = calibration.shipped("h200")
    again = Calibration.from_json(shipped.to_json(), "h200")
    assert again == shipped
    kept = [recorded(one, FAMILY[0], 3.25) for one in candidates((256, 384, 4096), FAMILY[:1])]
    path = tmp_path / "records.jsonl"
    records.write(path, kept[:1])
    records.write(path, kept[1:])
    assert records.read(path) == kept


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", None, 10**400])
@pytest.mark.parametrize("name", ["sms", "fp16_tflops", "bandwidth_gbs", "l2_gbs", "tflops"])
def test_rates_that_nothing_can_have_are_refused(name: str, value: object) -> None:
    record = json.loads(calibration.shipped("h200").to_json())
    for place in (record["device"], *record["limits"].values()):
        if name in place:
            place[name] = value
    with pytest.raises(CalibrationError, match=r"is no number|not supported"):
        calibration.Calibration.from_json(json.dumps(record), "mine.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no calibration"),
        ("[]", "is no calibration"),
        ("{}", "is no calibration"),
        ('{"schema": 1}', "its schema is 1, this version reads 2; write one"),
        ('{"device": {}}', "it has no 'schema'"),
        ("[" * 200_000, "is no calibration"),
        ("\udcff\udcfe", "no UTF-8 text"),
        ('{"schema": 2, "device": {}}', "write one with cutlass-sk calibrate"),
    ],
)
def test_a_wrong_calibration_is_refused_with_the_remedy(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text, errors="surrogateescape")
    monkeypatch.setenv("CUTLASS_SK_CALIBRATION", str(path))
    forget_calibrations()
    with pytest.raises(CalibrationError, match=message):
        Gemm("float16", device="h200").plan(512, 512, 512)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is no record"),
        ('{"kernel": "x"}', "line 1 is no record"),
        (json.dumps({**dataclasses.asdict(Record("x", "tn", 8, 8, 8, 0, 0, 1, "none", 2.0))}), "there is no kernel 'x'"),
        (json.dumps({**dataclasses.asdict(Record(FAMILY[0].family, "tn", 8, 8, 8, 0, 0, 1, "none", -2.0))}), "line 1 is no record"),
        ("", "has no records"),
    ],
)
def test_wrong_records_are_refused_with_the_line(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(CalibrationError, match=message):
        records.read(path)


def test_compressed_records_are_read(tmp_path: Path) -> None:
    plain, packed = tmp_path / "records.jsonl", tmp_path / "records.jsonl.gz"
    records.write(plain, [Record(FAMILY[0].family, "tn", 8, 8, 8, 0, 0, 1, "none", time) for time in (2.0, 3.0)])
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert records.read(packed) == records.read(plain)
    for damaged in (packed.read_bytes()[:-9], b"plain"):
        packed.write_bytes(damaged)
        with pytest.raises(CalibrationError, match="cannot be read"):
            records.read(packed)


def test_the_calibration_that_is_named_is_planned_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = calibration.shipped("h200")
    constants = {spec.family: calibration.constants(spec, H200) for spec in at_all_widths(FAMILY)}
    slow = {name: dataclasses.replace(one, a=one.a + 1000) for name, one in constants.items()}
    path = tmp_path / "mine.json"
    path.write_text(dataclasses.replace(shipped, constants=slow).to_json())
    before = Gemm("float16", device="h200").plan(512, 512, 512).predicted_time_us
    monkeypatch.setenv("CUTLASS_SK_CALIBRATION", str(path))
    forget_calibrations()
    assert Gemm("float16", device="h200").plan(512, 512, 512).predicted_time_us == pytest.approx(before + 1000)
    assert str(path) in calibration.described(H200)


def test_an_unknown_gpu_gets_scaled_constants_and_says_so() -> None:
    half = scaled("NVIDIA Invented", 66, (9, 0), CLOCK_MHZ["h100"] / 2, 1000.0)
    assert half.fp16_tflops == pytest.approx(PRESETS["h100"].fp16_tflops / 4) and half.bandwidth_gbs == 1000.0
    spec, reference = families("float64", "float64", "sm90a")[0], calibration.shipped("h200")
    measured, got = reference.constants[spec.family], calibration.constants(spec, half)
    assert (got.a, got.c) == (measured.a, pytest.approx(2 * measured.c))
    limits, full = calibration.limits(spec, half), reference.limits["sm90a_float64"]
    assert limits.tflops == pytest.approx(full.tflops / 4) and limits.l2_gbs == pytest.approx(full.l2_gbs / 4)
    assert limits.dram_gbs == pytest.approx(full.dram_gbs * 1000 / reference.device.bandwidth_gbs)
    assert calibration.described(half).startswith("scaled from NVIDIA H200")
    assert calibration.described(scaled("NVIDIA A10", 72, (8, 6), 1695.0, 600.0)).startswith("estimated")
    assert calibration.described(scaled("NVIDIA H200", 132, (9, 0), 1980.0, 4917.0)) == "measured on NVIDIA H200 (h200)"
    assert calibration.described(PRESETS["h200"]).startswith("measured on")
    assert calibration.described(preset("toy:4")).startswith("scaled from")


def test_a_gpu_of_a_preset_s_kind_keeps_its_peaks() -> None:
    assert dataclasses.replace(scaled("NVIDIA H200", 132, (9, 0), 1980.0, 4917.0), name="h200") == H200
    assert scaled("NVIDIA H200", 132, (9, 0), None, None).fp16_tflops == H200.fp16_tflops
    pcie = scaled("NVIDIA H100 PCIe", 114, (9, 0), 1755.0, 2039.0)
    assert pcie.bandwidth_gbs == 2039.0 and pcie.fp16_tflops < PRESETS["h100"].fp16_tflops * 114 / 132


problems = st.tuples(st.integers(1, 6000), st.integers(1, 6000), st.integers(1, 200))


@settings(max_examples=150, deadline=None)
@given(problems, st.integers(1, 40), st.sampled_from([*FAMILY, TWICE]), st.sampled_from([1, 2, 3, 4]))
def test_more_k_is_never_expected_to_be_faster(shape: tuple[int, int, int], more: int, spec: KernelSpec, splits: int) -> None:
    """For the same cut, of which there is a slot for each share, and rows that start alike: k stays a multiple of 64."""
    m, n, steps = shape
    profile = Profile(spec, H200.sms, calibration.constants(FAMILY[0], H200), LIMITS, device_sms=H200.sms)

    def time_us(k: int) -> float:
        work = cut_up(m, n, k, spec.with_layouts("t", "n"), H200)._replace(profile=profile)
        shared = splits > 1 and work.work_tiles * splits <= work.slots
        choice = Choice(work.work_tiles, work.work_tiles * splits, splits) if shared else Choice()
        return score(work, choice)

    k = 64 * max(steps, splits)
    assert time_us(k + 64 * more) >= time_us(k) - 1e-9


@settings(max_examples=150, deadline=None)
@given(problems, st.sampled_from([*FAMILY, TWICE]))
def test_faster_gpus_and_better_rows_are_never_expected_to_be_slower(shape: tuple[int, int, int], spec: KernelSpec) -> None:
    """For every candidate: with more bandwidth, a faster SM, or rows that start on more bytes."""
    m, n, steps = shape
    constants = calibration.constants(FAMILY[0], H200)
    better = [
        (dataclasses.replace(constants, c=constants.c / 2), LIMITS),
        (constants, dataclasses.replace(LIMITS, l2_gbs=2 * LIMITS.l2_gbs)),
        (constants, dataclasses.replace(LIMITS, dram_gbs=2 * LIMITS.dram_gbs)),
        (constants, dataclasses.replace(LIMITS, tflops=2 * LIMITS.tflops)),
        (constants, dataclasses.replace(LIMITS, alone=2 * LIMITS.alone)),
    ]
    base = Profile(spec, H200.sms, constants, LIMITS, device_sms=H200.sms)
    for one in candidates((m, n, 8 * steps), [spec]):
        asked = load(one.work, one.choice)
        for faster, limits in better:
            assert Profile(spec, H200.sms, faster, limits, device_sms=H200.sms).time_us(asked) <= base.time_us(asked) + 1e-9
        times = [base.time_us(asked._replace(row_bytes_a=row, row_bytes_b=row)) for row in (16, 32, 64, 128)]
        assert times == sorted(times, reverse=True)
        assert base.floor_us(asked.work_iters, asked.bytes_moved) <= base.time_us(asked)


def test_fit_on_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    specs = list(FAMILY[:2])
    truth = {spec.family: Constants(a=3.0, b=1.0, c=0.3, d=2.0, e=1.0, h=4.0) for spec in specs}
    source, target = tmp_path / "records.jsonl", tmp_path / "made.json"
    records.write(source, synthetic(truth, LIMITS, specs, 60))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cutlass-sk", "calibrate", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(str(ended.value.code)), *capsys.readouterr()

    assert run("--from-records", str(source), "--dry-run")[0] == 0 and not target.exists()
    status, _, errors = run("--from-records", str(source))
    assert status == 2 and "-o FILE" in errors
    status, _, errors = run("--from-records", str(tmp_path / "none"), "-o", str(target))
    assert status == 2 and "cannot be read: No such file or directory; records" in errors
    status, text, errors = run("--from-records", str(source), "-o", str(target))
    assert status == 0 and "held out" in text
    assert errors == f"fitting sm90a_float16, 1 of 1: {len(records.read(source)):,} records\n"
    status, _, errors = run("--records", f"{source}.gz")
    assert status == 2 and "is compressed and cannot be appended to" in errors
    made = Calibration.from_json(target.read_text(), str(target))
    assert made.provenance["records"] == len(records.read(source)) and "gpu" not in made.provenance
    assert made.provenance["fits"]["sm90a_float16"]["selection"] > 0.99
    assert made.constants[specs[0].family].c == pytest.approx(0.3, rel=0.1)
    assert set(calibration.shipped("h200").constants) <= set(made.constants)


def test_operands_and_outputs_rotate_through_pools_of_their_own() -> None:
    operands = Pool(torch.float16, 1 << 16, device="cpu")
    sizes = (100, torch.float16), (33, torch.float16)
    assert Pool.set_bytes(*sizes) == 512 and operands.fits(*sizes) == 128
    first, second = operands.take(0, *sizes), operands.take(127, *sizes)
    assert [tensor.numel() for tensor in first] == [100, 33] and not first[0].isnan().any() and first[0].std() > 0.5
    assert all(tensor.data_ptr() % Pool.ALIGNMENT == operands.bytes.data_ptr() % Pool.ALIGNMENT for tensor in (*first, *second))
    assert second[1].data_ptr() + second[1].nbytes <= operands.bytes.data_ptr() + operands.bytes.numel()
    outputs = Pool(torch.float32, 1 << 12, random=False, device="cpu")
    outputs.take(3, (10, torch.float32))[0].fill_(7)
    assert (outputs.data == 7).sum() == 10


def test_a_measured_launch_gets_the_plan_s_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        def __init__(self, spec: KernelSpec, architecture: str) -> None:
            self.made_of = spec, architecture
            loaded.append(self)
            self.launches: list[abi.LaunchStruct] = []
            self.enqueued: list[tuple[Any, ...]] = []

        def prepare(self, launch: abi.LaunchStruct) -> str:
            self.launches.append(abi.LaunchStruct.from_buffer_copy(launch))
            return "prepared"

        def enqueue(self, prepared: str, addresses: abi.AddressesStruct) -> None:
            self.enqueued.append((prepared, addresses.a, addresses.b, addresses.c, addresses.stream, addresses.partials))

    class Workspace:
        partials, flags = torch.zeros(4), torch.zeros(4)

    loaded: list[Kernel] = []
    monkeypatch.setattr(measure, "load_kernel", Kernel)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 77, raising=False)
    sets = [[torch.zeros(4) for _ in "abc"] for _ in range(2)]
    for spec in (FAMILY[0], families("float64", "float64", "sm90a")[0]):
        candidate = measure.candidates((256, 384, 512), [spec], H200, Random(1))[0]
        launch = measure._launch(candidate, H200, Workspace(), sets.__getitem__)  # type: ignore[arg-type]
        launch(1)
        launch(0)
        kernel = loaded[-1]
        (prepared,) = kernel.launches
        problem, plan, addresses = prepared.problem, prepared.plan, prepared.addresses
        assert (problem.m, problem.n, problem.k, problem.lda, problem.ldc) == (256, 384, 512, 512, 384)
        assert problem.ldb == (512 if candidate.spec.layout_b == "n" else 384)
        assert kernel.made_of == (candidate.spec, "90a")
        assert (plan.grid, plan.sk_units, plan.splits) == (candidate.plan.grid, candidate.plan.sk_units, candidate.plan.splits)
        assert (addresses.alpha, addresses.beta, addresses.barriers) == (1.0, 0.0, Workspace.flags.data_ptr())
        pointers = [[tensor.data_ptr() for tensor in sets[number]] for number in (1, 0)]
        assert kernel.enqueued == [("prepared", *three, 77, Workspace.partials.data_ptr()) for three in pointers]


WIDE = FAMILY[0]


def measured(**by_width: Constants) -> dict[str, Constants]:
    return {WIDE.at(int(width.removeprefix("n"))).family: constants for width, constants in by_width.items()}


def test_constants_of_other_widths_lie_on_a_line() -> None:
    known = measured(
        n64=Constants(2.0, 1.0, 0.1, 0.5, e=0.2, h=1.0), n128=Constants(3.0, 2.0, 0.2, 0.5, e=0.1, h=3.0),
        n192=Constants(3.5, 2.0, 0.4, 1.5, e=0.0, h=3.0),
    )  # fmt: skip
    between = at_other_widths(WIDE.at(96), known)
    assert between is not None and dataclasses.astuple(between) == pytest.approx((2.5, 1.5, 0.15, 0.5, 0.0, 0.15, 2.0, 0.0, 0.0))
    beyond = at_other_widths(WIDE.at(256), known)  # e would be less than 0 by its line
    assert beyond is not None and dataclasses.astuple(beyond) == pytest.approx((4.0, 2.0, 0.6, 2.5, 0.0, 0.0, 3.0, 0.0, 0.0))
    below = at_other_widths(WIDE.at(32), known)  # h would be 0 by its line, and is in proportion
    assert below is not None and dataclasses.astuple(below) == pytest.approx((1.5, 0.5, 0.05, 0.5, 0.0, 0.25, 0.5, 0.0, 0.0))
    one = at_other_widths(WIDE.at(64), measured(n128=Constants(3.0, 2.0, 0.2, 0.5, e=0.1)))
    assert one == Constants(3.0, 1.0, 0.1, 0.25, e=0.05)
    assert at_other_widths(WIDE, {}) is None and at_other_widths(ONE_WIDTH, known) is None


def test_constants_of_a_kernel_that_was_not_measured_are_those_of_the_most_similar_one() -> None:
    def named(width: int, **changed: Any) -> str:
        return dataclasses.replace(WIDE, tile=(64, width, 64), narrowest=0, widest=0, **changed).family

    def number(c: float) -> Constants:
        return Constants(5.0, 1.0, c, 1.0)

    best_first = [(named(192), 192), (named(96), 96), (named(240, swapped=True), 240), (named(248, out_dtype="float32"), 248)]
    others = [
        *(named(256, schedule="single"), named(256, cluster=(2, 1)), named(256, dtype="bfloat16"), "nonsense"),
        *("sm90a_f16_f16_128x256x64_2x1_pingpong", "sm80_f16_f16_128x128x32_w2x2_i16816_s4"),
    ]
    for start, (_, width) in enumerate(best_first):
        table = {name: number(near / 1000) for name, near in reversed(best_first[start:])} | dict.fromkeys(others, number(9.0))
        assert of_another_kernel(WIDE, table) == number(width / 1000).scaled(256 / width)
    assert of_another_kernel(WIDE, dict.fromkeys(others, number(9.0))) is None
    assert of_another_kernel(families("float16", "float16", "sm80")[0], dict.fromkeys(others, number(9.0))) is None


def test_every_width_has_constants_that_were_measured_near_it() -> None:
    for dtypes in DTYPES:
        for spec in at_all_widths(families(*dtypes, "sm90a")):
            assert calibration.constants(spec, H200) != calibration.estimated(spec, H200), spec


def test_launches_are_spread_over_kernels_and_widths() -> None:
    variants = at_all_widths(FAMILY)
    counts: Counter[str] = Counter()
    random = Random(3)
    for shape in measure.shapes(60, seed=9):
        found = measure.candidates(shape, variants, H200, random, counts)
        assert 0 < len(found) <= measure.MOST + measure.RARE and len({(one.spec, one.plan) for one in found}) == len(found)
        best = planner.make_plan(*shape, [measure.measured_layouts(spec) for spec in variants], H200)
        assert best in [one.plan for one in found]
        counts.update(one.spec.family for one in found)
    assert {spec.family for spec in variants} == set(counts)
    assert min(counts.values()) >= fitting.FEWEST and max(counts.values()) <= 2 * min(counts.values())
