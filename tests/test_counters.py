"""Reading Nsight Compute's CSV, naming causes, choosing problems: all without a GPU and without ncu."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from cutlass_sk.ensemble import counters, counters_report, ncu, records
from cutlass_sk.ensemble.counters_report import CAUSES, cause
from cutlass_sk.ensemble.ncu import Launch

RANGE = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
HEAD = ["ID", "Process ID", "Process Name", "Host Name", RANGE, "Id:Domain:Start/Stop_Range:PL_Type", "Kernel Name", "Context"]
NAMES = [
    "dram__bytes_read.sum",
    ncu.TIME,
    ncu.GRID,
    "launch__cluster_size",
    ncu.ACTIVE,
    ncu.ACTIVE_MOST,
    ncu.ELAPSED,
    ncu.TENSOR[0],
]
UNITS = ["Mbyte", "us", "", "", "cycle", "cycle", "cycle", "%"]
OURS = "void cutlass::device_kernel<cutlass_sk::StreamKGemm<Shape<128, 160>>>(T1::Params)"


def line(cells: list[str]) -> str:
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"


def row(number: int, label: str, kernel: str, values: list[str]) -> str:
    said = f'4711  "<default domain>:{label}:none:none:none:none:none:none" ' if label else ""
    return line([str(number), "4711", "python3.12", "127.0.0.1", said, "", kernel, "1", *values])


def raw(*, labels: bool = True) -> str:
    """Two problems; cuBLAS takes two kernels for the first one."""

    def name(problem: int, contender: str) -> str:
        return ncu.label(problem, contender) if labels else ""

    return "".join(
        [
            '==PROF== Connected to process 4711 (/usr/bin/python3.12)\n==PROF== Profiling "x" - 0: 0%....100% - 6 passes\n',
            line([*HEAD, *NAMES]),
            line([*([""] * len(HEAD)), *UNITS]),
            row(0, name(0, "ours"), OURS, ["1,234.5", "62.5", "116", "n/a", "80,000", "100,000", "101,000", "50.0"]),
            row(
                1,
                name(0, "cublas"),
                "nvjet_hsh_256x128_splitK_TNT",
                ["1.5", "30", "132", "2", "60,000", "61,000", "62,000", "80.0"],
            ),
            row(2, name(0, "cublas"), "splitKreduce_kernel", ["0.5", "10", "528", "(!) n/a", "15,000", "15,500", "16,000", "0"]),
            row(3, name(1, "ours"), OURS, ["1", "5", "100", "4", "9,000", "9,500", "9,900", "20"]),
            "==PROF== Disconnected from process 4711\n",
            row(4, name(1, "cublas"), "nvjet_hsh_64x64_TNT", ["1", "6", "100", "1", "9,000", "9,500", "9,900", "30"]),
        ]
    )


def manifest() -> dict[str, Any]:
    device = counters.resolve("h200")
    shapes = [(7200, 376, 4856), (1176, 456, 432), (640, 640, 640)]
    _, plans = counters.planned("float16", shapes, device)
    entries = [counters.described(plan, None, "float16", device) for plan in plans]
    return {"provenance": {"gpu": "x"}, "dtype": "float16", "layouts": ["t", "n"], "problems": entries}


def counted(**changed: float | None) -> dict[str, float | None]:
    """cuBLAS's counters of a made-up product, with changes by short names."""
    short = {"time": ncu.TIME, "elapsed": ncu.ELAPSED, "active": ncu.ACTIVE, "most": ncu.ACTIVE_MOST, "tensor": ncu.TENSOR[0]}
    short |= {"from_l2": ncu.FROM_L2, "l2": ncu.L2, "dram": ncu.DRAM[0]}
    values: dict[str, float | None] = {"time": 1e5, "elapsed": 170e3, "active": 160e3, "most": 165e3, "tensor": 80.0}
    values |= {"from_l2": 4e8, "l2": 3e8, "dram": 1e8, **changed}
    return {short[name]: value for name, value in values.items()}


def names(found: list[tuple[str, float]]) -> list[str]:
    assert {name for name, _ in found} <= set(CAUSES)
    return [name for name, _ in found]


def test_raw_csv_is_read_in_base_units_with_its_labels() -> None:
    launches = ncu.parse(raw())
    assert [launch.label for launch in launches] == [(0, "ours"), (0, "cublas"), (0, "cublas"), (1, "ours"), (1, "cublas")]
    first = launches[0]
    assert first.kernel == OURS and first.metrics["dram__bytes_read.sum"] == 1_234_500_000.0
    assert (
        first.metrics[ncu.TIME] == 62_500.0 and first.metrics[ncu.GRID] == 116.0 and first.metrics["launch__cluster_size"] is None
    )
    assert set(first.metrics) == set(NAMES)


@pytest.mark.parametrize("cut", [1, 2, 7, 120])
def test_a_line_that_was_cut_off_is_left_out(cut: int) -> None:
    assert len(ncu.parse(raw()[:-cut])) == 4
    assert ncu.parse(raw()[:90]) == [] and ncu.parse("") == []


def test_the_details_page_is_read_too() -> None:
    head = line(["ID", "Kernel Name", RANGE, "Metric Name", "Metric Unit", "Metric Value"])
    label = '1 "<default domain>:cutlass_sk/0/ours:none"'
    text = head + line(["0", "k", label, ncu.TIME, "us", "1,000.5"]) + line(["0", "k", label, ncu.GRID, "", "132"])
    assert ncu.parse(text) == [Launch("k", (0, "ours"), {ncu.TIME: 1_000_500.0, ncu.GRID: 132.0})]


def test_numbers() -> None:
    assert ncu.number("1,234.5") == 1234.5 and ncu.number("2", "Kbyte") == 2000.0 and ncu.number("3", "usecond") == 3000.0
    assert ncu.number("158 (0: 158)") == 158.0
    assert [ncu.number(text) for text in ("", "n/a", "(!) n/a", "nan", "inf", "no data")] == [None] * 6


def test_without_nvtx_labels_the_order_tells() -> None:
    labelled = ncu.by_contender(ncu.parse(raw()))
    for launched in (None, list(labelled)):
        plain = ncu.by_contender(ncu.parse(raw(labels=False)), 2, launched)
        assert {place: len(found) for place, found in plain.items()} == {place: len(found) for place, found in labelled.items()}
    cut = ncu.parse(raw(labels=False))[:-1]
    assert list(ncu.by_contender(cut, 2)) == [(0, "ours"), (0, "cublas"), (1, "ours")]


def test_without_nvtx_labels_failures_are_known_or_refused() -> None:
    plain = ncu.parse(raw(labels=False))
    for problems in (1, 3):  # two were profiled: of three, which one failed?
        with pytest.raises(ncu.NcuError, match="no NVTX labels"):
            ncu.by_contender(plain, problems)
    known = [(0, "ours"), (0, "cublas"), (2, "ours"), (2, "cublas")]
    assert list(ncu.by_contender(plain, 3, known)) == known
    for other in (known[:3], [(0, "ours"), (1, "ours"), (1, "cublas"), (2, "cublas")], known[1:]):
        with pytest.raises(ncu.NcuError, match="profile again"):
            ncu.by_contender(plain, 3, other)
    made = manifest()
    for entry, names in zip(made["problems"], (["ours", "cublas"], [], ["ours", "cublas"]), strict=True):
        entry["profiled"] = names
    assert [row["m"] for row in counters_report.problems(made, plain)] == [7200, 640]


def test_the_kernels_of_one_product_are_added_up() -> None:
    both = ncu.together(ncu.by_contender(ncu.parse(raw()))[0, "cublas"])
    assert both[ncu.TIME] == 40_000.0 and both["dram__bytes_read.sum"] == 2e6 and both[ncu.ELAPSED] == 78_000.0
    assert both[ncu.TENSOR[0]] == pytest.approx(80.0 * 62 / 78)
    assert both[ncu.GRID] == 132.0 and both["launch__cluster_size"] == 2.0


def test_causes_are_told_apart() -> None:
    even = counted()
    assert names(cause(even, even)) == ["not slower"]
    assert names(cause(counted(time=1.3e5, elapsed=221e3, most=216e3, active=160e3, tensor=61.5), even)) == ["idle SMs"]
    twice = counted(time=2e5, elapsed=340e3, active=330e3, most=335e3, tensor=40.0)
    assert names(cause(twice, even)) == ["lower tensor utilisation in the main loop"]
    assert names(cause(twice, even, iters_per_tile=8)) == ["long prologue and epilogue"]
    assert names(cause({**twice, ncu.FROM_L2: 6e8}, even)) == ["more traffic from L2"]
    assert names(cause({**twice, ncu.FROM_L2: None, ncu.L2: 6e8}, even)) == ["more traffic from L2"]
    assert names(cause({**twice, ncu.DRAM[0]: 1.9e8}, even)) == ["lower tensor utilisation in the main loop"]  # 950 GB/s
    assert names(cause({**twice, ncu.DRAM[0]: 4e8}, even)) == ["more traffic from memory"]
    assert names(cause(counted(time=1.3e5), even)) == ["lower clock"]
    assert names(cause(counted(time=1.2e5, elapsed=204e3, tensor=80 / 1.2), even)) == ["launch and drain"]


def test_padding_counts_where_tensor_pipes_work_more_for_it() -> None:
    even, busier = counted(), counted(time=1.3e5, elapsed=221e3, active=211e3, most=216e3)
    assert names(cause(busier, even, padding=1.3)) == ["padding"]
    assert names(cause(busier, even, padding=1.1)) == ["slower tensor instructions"]
    same_work = counted(time=1.3e5, elapsed=221e3, active=211e3, most=216e3, tensor=61.5)
    assert "padding" not in names(cause(same_work, even, padding=1.3))


def test_causes_come_by_size_and_bear_missing_counters() -> None:
    both = counted(time=2e5, elapsed=340e3, most=335e3, active=250e3, from_l2=9e8, tensor=40.0)
    found = cause(both, counted())
    assert names(found) == ["more traffic from L2", "idle SMs"] and found[0][1] == pytest.approx(2.25)
    assert names(cause({}, {})) == ["not told by these counters"]
    assert names(cause({ncu.TIME: 2.0}, {ncu.TIME: 1.0}, padding=1.5)) == ["padding"]


def test_a_record_of_what_was_profiled() -> None:
    found = counters_report.problems(manifest(), ncu.parse(raw()))
    assert [row["m"] for row in found] == [7200, 1176]  # nothing of the third one
    first = found[0]
    assert first["ours"]["time_us"] == 62.5 and first["cublas"]["kernels_us"] == [30.0, 10.0]
    assert first["ours"]["active_share"] == pytest.approx(0.8) and "idle SMs" in first["cause"]
    assert found[1]["cause"].startswith("not slower")
    cut = counters_report.problems(manifest(), ncu.parse(raw()[:-9]))
    assert cut[1]["cublas"] is None and cut[1]["cause"] is None
    counters_report.table(cut, "float16")


def test_the_worst_problems_of_a_dtype_are_chosen_after_own_ones() -> None:
    def made(m: int, us: float, cublas_us: float | None, dtype: str = "float16", part: str = "main") -> records.Row:
        own = {"us": us, "kernel": "k", "grid": 1}
        return {"part": part, "dtype": dtype, "m": m, "n": 8, "k": 8, "set": own, "cublas": {"us": cublas_us}}

    rows = [
        made(1, 10, 9),
        made(2, 10, 5),
        made(3, 10, None),
        made(4, 10, 1, "float64"),
        made(5, 10, 2, part="isolated"),
        made(6, 10, 7),
    ]
    found = counters.recorded(rows, "float16")
    assert list(found) == [(2, 8, 8), (6, 8, 8), (1, 8, 8)] and found[2, 8, 8]["ratio"] == 0.5
    assert counters.chosen(found, 2, [(6, 8, 8), (9, 9, 9)]) == [(6, 8, 8), (9, 9, 9), (2, 8, 8)]
    assert counters.chosen({}, 5, []) == []


def test_a_problem_s_floors_and_padding() -> None:
    entry = manifest()["problems"][0]
    assert entry["floors"]["compute_us"] == pytest.approx(2 * 7200 * 376 * 4856 / 989e12 * 1e6, rel=1e-3)
    assert entry["floors"]["dram_us"] == pytest.approx(2 * (7200 * 4856 + 376 * 4856 + 7200 * 376) / 4800e9 * 1e6, rel=1e-3)
    assert entry["padding"] >= 1.0 and entry["plan"]["iters_per_tile"] == 76


def test_a_dry_run_prints_the_command_and_the_plans(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert counters.main(["--dry-run", "--shape", "256x512x1024", "640x640x640", "-o", str(tmp_path / "c.json")]) == 0
    said = capsys.readouterr().out
    assert "--profile-from-start off" in said and "--nvtx" in said and "--child" in said and "640 x 640 x 640" in said
    assert list(tmp_path.iterdir()) == []


def test_without_ncu_there_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert counters.main(["--shape", "256x512x1024", "-o", str(tmp_path / "c.json")]) == 2
    said = capsys.readouterr().err
    assert "ncu is not on the PATH" in said and "Traceback" not in said and said.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--shape", "12x13"],
        ["--shape", "0x1x1"],
        ["--worst", "3", "-o", "x"],
        ["--from-csv", "x"],
        ["--shape", "8x8x8"],
        *(["--dry-run", "--shape", "8x8x8", f"--budget-seconds={text}"] for text in ("nan", "inf", "-1", "0", "soon")),
        *(["--from-csv", "x", "--manifest", "y", *more] for more in (["--dry-run"], ["--shape", "8x8x8"], ["--worst", "2"])),
        ["--from-csv", "x", "--manifest", "y", "--records", "z"],
        ["--shape", "8x8x8", "--dry-run", "-o", "/nowhere/at/all.json"],
    ],
)
def test_bad_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        counters.main(arguments)
    assert stopped.value.code == 2 and "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "provenance is missing"),
        (b"{}", "provenance is missing"),
        (b"\xff\xfe{}", "cannot be read"),
        (b"{", "cannot be read"),
        (b'{"provenance": {}, "dtype": "int8", "layouts": [], "problems": []}', "dtype is missing"),
        (b'{"provenance": {}, "dtype": "float16", "layouts": [], "problems": [3]}', "problems[0].m is missing"),
        (None, "cannot be read: No such file or directory;"),
    ],
)
def test_a_manifest_that_is_none_is_one_sentence(
    content: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.csv").write_text(raw())
    if content is not None:
        (tmp_path / "m.json").write_bytes(content)
    assert counters.main(["--from-csv", str(tmp_path / "c.csv"), "--manifest", str(tmp_path / "m.json")]) == 2
    said = capsys.readouterr().err
    assert message in said and str(tmp_path / "m.json") in said and said.count("\n") == 1


GOOD = {
    "part": "main",
    "dtype": "float16",
    "m": 8,
    "n": 8,
    "k": 8,
    "set": {"us": 2.0, "kernel": "k", "grid": 1},
    "cublas": {"us": 1.0},
}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.jsonl.gz", records.compact([GOOD] * 50)[:20] + b"\x00\xff\xff" * 20, "cannot be read"),
        ("r.jsonl.gz", records.compact([GOOD])[:-9], "cannot be read"),
        ("r.jsonl.gz", b"plain", "cannot be read"),
        ("r.jsonl", b'{"m": 1}\n', "record 1: part is missing"),
        ("r.jsonl", json.dumps({**GOOD, "set": {"us": 1.0}}).encode() + b"\n", "record 1: set.kernel is missing"),
        ("r.jsonl", json.dumps({**GOOD, "m": None}).encode() + b"\n", "record 1: m is missing"),
        ("absent.jsonl", None, "cannot be read: No such file or directory;"),
    ],
)
def test_records_that_are_none_are_one_sentence(
    name: str, content: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert counters.main(["--dry-run", "--worst", "1", "--records", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert message in said and str(tmp_path / name) in said and said.count("\n") == 1


def test_a_csv_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.csv").write_text(raw()[:-5])
    (tmp_path / "m.json").write_text(json.dumps(manifest()))
    arguments = ["--from-csv", str(tmp_path / "c.csv"), "--manifest", str(tmp_path / "m.json"), "-o", str(tmp_path / "c.json")]
    assert counters.main(arguments) == 0
    result = json.loads((tmp_path / "c.json").read_text())
    assert result["provenance"]["gpu"] == "x" and len(result["problems"]) == 2
    assert "2 of 3 problems profiled" in capsys.readouterr().out
    assert counters.main([*arguments[:1], str(tmp_path / "none"), *arguments[2:]]) == 2


def pretended(folder: Path, body: str) -> str:
    """An ``ncu`` that is a Python program; ``log`` and ``metrics`` are what it was given."""
    path = folder / "ncu"
    head = (
        "import sys, time\nargs = sys.argv\nlog = args[args.index('--log-file') + 1]\nmetrics = args[args.index('--metrics') + 1]\n"
    )
    path.write_text(f"#!{sys.executable}\n{head}{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_metric_that_ncu_refuses_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text(raw())
    body = f"""
if 'dmma' in metrics:
    open(log, 'w').write('==ERROR== Failed to find metric {ncu.TENSOR[2]}\\n')
    sys.exit(1)
open(log, 'w').write(open({str(tmp_path / "good.csv")!r}).read())
open({str(tmp_path / "asked")!r}, 'w').write(metrics)"""
    text = counters.profile(pretended(tmp_path, body), tmp_path / "c.json", counters.time() + 60)
    assert text == raw()
    assert (tmp_path / "asked").read_text().split(",") == [name for name in ncu.METRICS if name != ncu.TENSOR[2]]
    assert ncu.refused("==ERROR== unknown: lts__t_bytes\n==PROF== launch__grid_size", ncu.METRICS) == [ncu.L2]


def test_what_was_written_before_the_timeout_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "NCU_GRACE", 2.0)
    (tmp_path / "cut.csv").write_text(raw()[:-5])
    body = f"f = open(log, 'w'); f.write(open({str(tmp_path / 'cut.csv')!r}).read()); f.flush(); time.sleep(100)"
    begin = counters.time()
    text = counters.profile(pretended(tmp_path, body), tmp_path / "c.json", begin)
    assert len(ncu.parse(text)) == 4 and counters.time() - begin < 30


@pytest.mark.parametrize(
    ("said", "expected"),
    [("==ERROR== ERR_NVGPUCTRPERM - no permission", "may not read"), ("==ERROR== Strange", "Strange"), ("", "wrote")],
)
def test_an_ncu_that_gives_nothing_is_an_error_that_says_why(tmp_path: Path, said: str, expected: str) -> None:
    with pytest.raises(ncu.NcuError, match=expected):
        counters.profile(pretended(tmp_path, f"open(log, 'w').write({said!r})"), tmp_path / "c.json", counters.time() + 60)


@pytest.mark.filterwarnings("ignore:cutlass_sk. CPU tensors")
def test_both_contenders_multiply_the_same_operands() -> None:
    gemm = counters.Gemm("float64", device="h200")
    made = counters.contenders(gemm, (24, 40, 32), ("t", "n"), "cpu")
    ours, cublas = made["ours"].args, made["cublas"].args  # type: ignore[attr-defined]
    assert ours[0] is cublas[0] and ours[1] is cublas[1] and ours[1].stride() == (1, 32) and ours[0].stride() == (32, 1)
    result = made["ours"]()
    assert result is ours[2] and counters.torch.allclose(result, cublas[0] @ cublas[1])  # type: ignore[arg-type]


def test_the_child_launches_twice_and_goes_on_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    done: list[str] = []
    cuda = counters.torch.cuda
    monkeypatch.setattr(cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cuda.nvtx, "range_push", done.append)
    monkeypatch.setattr(cuda.nvtx, "range_pop", lambda: done.append("pop"))
    monkeypatch.setattr(cuda.profiler, "start", lambda: done.append("start"))
    monkeypatch.setattr(cuda.profiler, "stop", lambda: done.append("stop"))

    def made(gemm: object, sizes: tuple[int, int, int], layouts: object) -> dict[str, Any]:
        def launch() -> None:
            done.append("launch")
            if sizes[0] == 7200 and "start" in done:
                raise RuntimeError("out of memory")

        return {"ours": launch}

    monkeypatch.setattr(counters, "contenders", made)
    made_of, path = manifest(), tmp_path / "m.json"
    counters.launch_all(made_of, counters.time() + 60, path)
    assert [entry["profiled"] for entry in json.loads(path.read_text())["problems"]] == [[], ["ours"], ["ours"]]
    once = ("launch", "{}", "start", "launch", "stop", "pop")
    assert done == [word.format(f"cutlass_sk/{number}/ours") for number in range(3) for word in once]
    said = capsys.readouterr().out
    assert "7200 x 376 x 4856 failed: out of memory" in said and "640 x 640 x 640 profiled" in said
    counters.launch_all(manifest(), counters.time())
    assert len(done) == 18 and "spent after 0 of 3" in capsys.readouterr().out
