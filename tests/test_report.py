"""The report says what was measured: its numbers are those of the records, and its pictures show every one."""

from __future__ import annotations

import io
import json
import re
import sys
from math import factorial, log, sqrt
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command_line import CommandLine
from PIL import Image
from reports import FIVE, SOURCE, Checker, group_of, measured, unpacked
from rich.console import Console

import cutlass_sk.ensemble.cli  # noqa: F401  the command joins the command line
from cutlass_sk.device import PRESETS
from cutlass_sk.ensemble.cli.report import headline
from cutlass_sk.ensemble.report import grouped, of_group, sections, summarize
from cutlass_sk.ensemble.report.curves import read_curves
from cutlass_sk.ensemble.report.groups import gpu, plan_text
from cutlass_sk.ensemble.report.packed import packed
from cutlass_sk.ensemble.table import MADE_UP, Table, TableError, read, write
from cutlass_sk.ensemble.table_records import read_any

RESULTS = Path(__file__).parent.parent / "results/h200"
RECORDS, CURVES = RESULTS / "planner.records.jsonl.gz", RESULTS / "kernel_set_widths.json"
SIZES = RESULTS / "size.json"
SVG = "{http://www.w3.org/2000/svg}"
H200 = PRESETS["h200"]


def test_ratios_by_hand() -> None:
    (group,) = grouped(FIVE)
    ratios = [4.0, 0.5, 0.5, 4.0, 1.0]  # cuBLAS over the set, problem by problem
    mean = sum(ratios) / 5
    spread = sqrt(sum((ratio - mean) ** 2 for ratio in ratios) / 4)
    summary = summarize(FIVE, [group], [])
    found = summary["float16"]["five"]["back_to_back"]
    assert found["set_vs_cublas"] == {
        **{"mean": 2.0, "geomean": round(4 ** (1 / 5), 4), "std": round(spread, 4)},
        **{"min": 0.5, "max": 4.0, "n": 5},
    }
    assert found["single_vs_cublas"]["mean"] == round((2 + 0.5 + 0.4 + 4 + 0.5) / 5, 4)
    assert set(found) == {"set_vs_cublas", "single_vs_cublas"} and summary["library_size"] == {}
    missing = summary["not_measured"]["float16"]["five"]["back_to_back"]
    assert "single_vs_oracle" in missing and "set_vs_cublas_compute_bound" in missing and "set_vs_cublas" not in missing
    assert summary["not_measured"]["float64"] == "no records" and "float64" not in summary


def test_the_compute_bound_are_above_400_flop_a_byte() -> None:
    shapes = ((1200, 400.0), (1208, 800.0))  # m = n = k = s: s / 3 FLOP a byte, that is 400 and 402.7
    rows = [measured(s, name, us)._replace(n=s, k=s) for s, theirs in shapes for name, us in (("set", 100.0), ("cublas", theirs))]
    group = group_of(*rows)
    assert [group.intensity(problem) for problem in group.problems] == pytest.approx([400.0, 1208 / 3])
    assert [ratio for _, ratio in group.pairs("set_vs_cublas_compute_bound")] == [8.0]
    wide = group_of(*(row._replace(out_dtype="float32") for row in rows))  # c of 4 bytes: fewer FLOP a byte
    assert not wide.pairs("set_vs_cublas_compute_bound") and len(wide.pairs("set_vs_cublas")) == 2


@pytest.mark.parametrize("status", ["wrong", "failed", "not_timed"])
@pytest.mark.parametrize("contender", ["set", "cublas"])
def test_other_statuses_never_count(status: str, contender: str) -> None:
    rows = [row._replace(status=status) if row.contender == contender and row.m == 64 else row for row in FIVE.rows]
    table = Table(tuple(rows), (SOURCE,))
    (group,) = grouped(table)
    summary = summarize(table, [group], [])
    assert summary["float16"]["five"]["back_to_back"]["set_vs_cublas"]["n"] == 4
    assert summary["float16"]["five"]["back_to_back"]["set_vs_cublas"]["mean"] == 1.5
    assert summary["left_out"] == {"float16": {"five": {"back_to_back": {contender: {status: 1}}}}}
    assert 64 not in [problem.m for problem in group.times(contender)]
    told = status.replace("_", " ")
    assert f"Not counted: {contender}: 1 {told}." in sections([group])[0].missing
    (first, *_) = unpacked(packed([group]))["groups"][0]["rows"]
    assert first[3][["set", "single", "cublas"].index(contender)] == told


def test_ratios_of_other_contenders() -> None:
    rows = [
        measured(64, name, us)
        for name, us in (("set", 2.0), ("single", 4.0), ("oracle", 1.0), ("cublaslt_best", 3.0), ("best", 5.0))
    ]
    found = group_of(*rows).ratios
    assert {name: ratios.mean for name, ratios in found.items()} == {
        **{"single_vs_oracle": 0.25, "set_vs_oracle": 0.5, "set_vs_cublaslt_best": 1.5},
        "set_vs_exhaustive": 1.0,  # the plan that the set chose is the best of all
    }


@pytest.fixture(scope="module")
def committed() -> Table:
    return read_any(RECORDS)


def test_the_numbers_are_those_of_planner_json(committed: Table) -> None:
    known = json.loads((RESULTS / "planner.json").read_text())
    summary = summarize(committed, grouped(committed), [])
    compared = 0
    for dtype in ("float16", "float16_float32", "bfloat16", "float64"):
        planner, searched = summary[dtype]["planner"], summary[dtype]["planner_exhaustive"]
        for name in ("single_vs_data_parallel", "single_vs_cublas", "set_vs_cublas"):
            assert planner["back_to_back"][name] == known[dtype][name]
            assert planner["isolated"][name] == known[dtype][f"{name}_isolated"]
            compared += 1
        assert planner["back_to_back"]["set_vs_cublas_compute_bound"] == known[dtype]["set_vs_cublas_compute_bound"]
        assert planner["back_to_back"]["cublas_vs_itself"] == known[dtype]["cublas_vs_itself"]
        assert searched["back_to_back"]["set_vs_exhaustive"] == known[dtype]["set_vs_exhaustive"]
        assert summary[dtype]["square"]["back_to_back"]["set_vs_cublas"]["mean"] == known[dtype]["square_8192_vs_cublas"]
    assert compared == 12 and summary["left_out"] == {}
    assert summary["provenance"]["sources"][0]["commit"] == known["provenance"]["commit"]


def test_the_worst_and_the_best_by_hand() -> None:
    rows = [measured(m, name, us) for m in range(1, 31) for name, us in (("set", 10.0), ("cublas", float(m)))]
    (section,) = sections([group_of(*rows)])
    size, worst, best = section.others
    assert [row[0] for row in worst.rows] == [f"{m} x 64 x 64" for m in range(1, 21)]
    assert [row[0] for row in best.rows] == [f"{m} x 64 x 64" for m in range(30, 20, -1)]
    assert worst.rows[0] == ("1 x 64 x 64", "0.100", "10.00", "1.00", "1.50", "k1", "split_k, 4 splits, 8 CTAs, along_m 1")
    assert section.ratios.rows[0][1:] == ("1.550", "0.880", "0.100", "3.000", f"{factorial(30) ** (1 / 30) / 10:.3f}", "30")
    # 2 x 64 x 64 = 8192 FLOP for each of m: 10^3.5 to 10^4 is m = 1 alone, and 10^5 to 10^5.5 all from 13 on.
    assert [row[0] for row in size.rows] == ["10^3.5 to 10^4", "10^4 to 10^4.5", "10^4.5 to 10^5", "10^5 to 10^5.5"]
    assert [row[1].rpartition(" ")[2] for row in size.rows] == ["1)", "2)", "9)", "18)"]
    assert len(sections([group_of(*rows[:2])])[0].others) == 0


def test_plans_in_words() -> None:
    stream_k = measured(64, "set", 1.0)._replace(decomposition="stream_k", sk_tiles=5, sk_units=4)
    assert plan_text(stream_k) == "stream_k, 5 tiles in 4 shares, 8 CTAs, along_m 1"
    assert plan_text(measured(64, "cublas", 1.0)) == ""


def test_pictures_show_every_point() -> None:
    (group,) = grouped(FIVE)
    utilisation, speedup = of_group(group, H200)
    assert (utilisation.name, speedup.name) == ("utilisation-float16-five-back-to-back", "speedup-float16-five-back-to-back")
    for picture, labels, marks in (
        (utilisation, ("arithmetic intensity (FLOP/B)", "utilisation (% of 989 TFLOP/s)", "cuBLAS", "Stream-K set"), 15),
        (speedup, ("compute-bound above 400 FLOP/B", "size (FLOP)", "cuBLAS's time over ours (above 1: ours is faster)"), 10),
    ):
        text = picture.svg.decode()
        for label in labels:
            assert label in text
        drawn = re.findall(r'<use [^>]*style="[^"]*(?:fill-opacity|opacity)', text)
        assert len(drawn) >= marks, len(drawn)
        with Image.open(io.BytesIO(picture.png)) as image:
            assert image.format == "PNG" and image.width > 500 and len(image.convert("RGB").getcolors(1 << 24)) > 20  # type: ignore[arg-type]
    assert of_group(group, H200) == [utilisation, speedup]
    alone = group_of(*(row for row in FIVE.rows if row.contender != "cublas"))
    assert [picture.name.partition("-")[0] for picture in of_group(alone, H200)] == ["utilisation"]


def test_points_lie_where_they_belong() -> None:
    (group,) = grouped(FIVE)
    flop, moved = 2 * 64**3, 3 * 64**2 * 2
    assert group.utilisation("cublas", H200)[0] == pytest.approx((flop / moved, flop / 8e-6 / 989e12 * 100))
    utilisation, speedup = of_group(group, H200)
    for picture, name, expected in (
        (utilisation, "points-set", [(log(x), y) for x, y in group.utilisation("set", H200)]),
        (speedup, "points-single", [(log(group.intensity(p)), log(ratio)) for p, ratio in group.pairs("single_vs_cublas")]),
        (speedup, "points-set", [(log(group.intensity(p)), log(ratio)) for p, ratio in group.pairs("set_vs_cublas")]),
    ):
        (points,) = (one for one in ElementTree.fromstring(picture.svg).iter(f"{SVG}g") if one.get("id") == name)
        drawn = [(float(mark.get("x", 0)), -float(mark.get("y", 0))) for mark in points.iter(f"{SVG}use")]
        assert len(drawn) == 5
        for axis in (0, 1):  # up to where the axis begins, and its scale
            own, wanted = ([point[axis] for point in several] for several in (drawn, expected))
            scale = (max(own) - min(own)) / (max(wanted) - min(wanted))
            assert own == pytest.approx([min(own) + scale * (value - min(wanted)) for value in wanted], abs=0.01)


def test_peaks_are_those_of_the_gpu_that_was_measured() -> None:
    assert gpu(FIVE) is H200 and gpu(Table((), ({"gpu": "NVIDIA A100-SXM4"},))) is PRESETS["a100"]
    assert b"67 TFLOP/s" in of_group(group_of(*(row._replace(dtype="float64") for row in FIVE.rows)), H200)[0].svg


def small(path: Path) -> Path:
    write(path, FIVE)
    return path


def test_the_command(cutlass_sk: CommandLine, tmp_path: Path) -> None:
    table, folder = small(tmp_path / "five.parquet"), tmp_path / "new/report"
    arguments = ("report", str(table), "-o", str(folder), "--curve", str(CURVES), "--table", str(tmp_path / "copy.parquet"))
    arguments = (*arguments, "--markdown", str(tmp_path / "all.md"))
    status, printed, errors = cutlass_sk(*arguments)
    assert status == 0 and errors == f"{folder / 'index.html'}: 15 times\n"
    assert " ".join(next(line for line in printed.splitlines() if "five" in line).split()) == "five, back to back 5 1.320 0.956"
    text = (tmp_path / "all.md").read_text()
    assert "## float16: five, back to back (5 problems)" in text and "| Stream-K set over cuBLAS | 2.000 | 1.837 | 0.500 |" in text
    assert "All measurements count." in text and "MADE UP" not in text + printed
    assert read(tmp_path / "copy.parquet") == FIVE
    names = ("utilisation-float16-five-back-to-back", "speedup-float16-five-back-to-back", "kernels")
    pictures = {f"pictures/{name}.{kind}" for name in names for kind in ("png", "svg")}
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert set(files) == {"summary.json", "index.html", *pictures}
    checker = Checker((folder / "index.html").read_text())
    assert sum(tag == "img" and str(one["src"]).startswith("data:image/png;base64,") for tag, one in checker.tags) == 3
    assert "data-parallel plans alone (184 problems)" in (folder / "pictures/kernels.svg").read_text()
    first = {path: path.read_bytes() for path in files.values()}
    assert cutlass_sk(*arguments)[0] == 0
    assert first == {path: path.read_bytes() for path in files.values()}
    sources = json.loads((folder / "summary.json").read_text())["provenance"]["files"]
    assert [(file["file"], file["holds"]) for file in sources] == [("five.parquet", "15 times"), (CURVES.name, "3 curves")]


def test_pictures_of_corpora_with_similar_names_lie_side_by_side(cutlass_sk: CommandLine, tmp_path: Path) -> None:
    """A file's name keeps only ASCII of a corpus's."""
    rows = tuple(row._replace(corpus=name) for name in ("один", "два") for row in FIVE.rows)
    write(tmp_path / "both.parquet", Table(rows, (SOURCE,)))
    assert cutlass_sk("report", str(tmp_path / "both.parquet"), "-o", str(tmp_path / "report"))[0] == 0
    pictures = {path.stem: path.read_bytes() for path in (tmp_path / "report/pictures").glob("speedup*.svg")}
    first = "speedup-float16-back-to-back"
    assert set(pictures) == {first, f"{first}-2"} and pictures[first] != pictures[f"{first}-2"]


def test_what_is_made_up_says_so_everywhere(cutlass_sk: CommandLine, tmp_path: Path) -> None:
    table, folder, text = tmp_path / "dry.parquet", tmp_path / "report", tmp_path / "all.md"
    write(table, Table(FIVE.rows, ({**SOURCE, "made_up": True},)))
    status, printed, errors = cutlass_sk("report", str(table), "-o", str(folder), "--size", str(SIZES), "--markdown", str(text))
    assert status == 0 and printed.startswith(f"{MADE_UP}.\n") and errors == f"{MADE_UP}. {folder / 'index.html'}: 15 times\n"
    markdown, page = text.read_text(), (folder / "index.html").read_text()
    assert markdown.startswith(f"{MADE_UP}: nothing below was measured.\n") and "All measurements count" not in markdown + page
    titles = [line for line in markdown.splitlines() if line.startswith("#")]
    assert titles and all(MADE_UP in title for title in titles)
    assert f"<h1>{MADE_UP}. " in page and f"<title>{MADE_UP}. " in page
    pictures = list((folder / "pictures").glob("*.svg"))
    assert len(pictures) == 3 and all(MADE_UP in picture.read_text() for picture in pictures)


def test_the_headline_fits_a_terminal(committed: Table, cutlass_sk: CommandLine, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(headline(grouped(committed)))
    lines = captured.get().splitlines()
    assert len(lines) < 40 and not any("…" in line for line in lines)
    assert sum("planner/exhaustive, back to back" in line for line in lines) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read"),
        ("[]", "has no curves"),
        ('{"curves": {}}', "has no curves"),
        ('{"curves": {"any": {"curve": [], "problems": 1}}}', "curve 'any' cannot be used: KeyError 'meaning'"),
        ('{"curves": {"any": {"curve": [{"count": 1, "bytes": 1, "geomean": 0}], "problems": 1, "meaning": ""}}}', "geomean=0.0"),
        ('{"curves": {"any": {"curve": [7], "problems": 1, "meaning": ""}}}', "curve 'any' cannot be used: TypeError"),
    ],
)
def test_other_curves_are_one_clear_error(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "curve.json"
    path.write_text(content)
    with pytest.raises(TableError) as raised:
        read_curves(path)
    assert message in str(raised.value) and str(path) in str(raised.value) and "give a record of kernel_set" in str(raised.value)


def test_bad_input_is_one_error_and_status_2(cutlass_sk: CommandLine, tmp_path: Path) -> None:
    table, folder = str(small(tmp_path / "five.parquet")), str(tmp_path / "report")
    (tmp_path / "file").write_text("")
    for arguments, message in (
        ((table,), "Missing option"),
        ((str(tmp_path / "absent.parquet"), "-o", folder), "absent.parquet cannot be read"),
        ((table, table, "-o", folder), "2 rows of the same measurement"),
        ((table, "-o", folder, "--table", "x.csv"), "'x.csv' must end in .parquet"),
        ((table, "-o", folder, "--curve", table), "five.parquet cannot be read"),
        ((table, "-o", str(tmp_path / "file")), "cannot be made"),
    ):
        status, text, errors = cutlass_sk("report", *arguments)
        assert (status, text) == (2, "") and message in errors and "Traceback" not in errors
    assert not Path(folder).exists()


def test_without_matplotlib_the_remedy_is_given(cutlass_sk: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = small(tmp_path / "five.parquet")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, errors = cutlass_sk("report", str(table), "-o", str(tmp_path / "report"))
    assert status == 2 and "pip install 'cutlass-sk[report]'" in errors and errors.count("\n") == 1


def crowd(count: int) -> Table:
    """So many problems, back to back and isolated."""
    rows = [
        measured(8 * (1 + number % 900), name, us * (1 + number % 97 / 200))._replace(n=64 + number // 900, timing=timing)
        for number in range(count)
        for timing in ("back_to_back", "isolated")
        for name, us in (("set", 2.0), ("single", 3.0), ("cublas", 2.5))
    ]
    return Table(tuple(rows), (SOURCE,))


def test_a_crowd_is_drawn_by_its_density() -> None:
    group = grouped(crowd(6100))[0]
    utilisation, speedup = of_group(group, H200)
    for one in (utilisation, speedup):
        text = one.svg.decode()
        assert "(darker: more problems)" in text and 'id="points-' not in text and "<image" in text
        assert len(one.svg) < 400_000 and len(one.png) < 100_000
    assert 'id="means-set"' in speedup.svg.decode() and "the middle 90% of the problems" in speedup.svg.decode()


def test_the_page_holds_a_crowd_in_few_bytes() -> None:
    groups = grouped(crowd(6100))
    data = packed(groups)
    assert len(data) < 12 * 6100  # bytes a problem, of both timing modes: sizes, six times, kernel and plan
    first, second = unpacked(data)["groups"]
    assert first["title"].endswith("back to back") and second["title"].endswith("isolated, cold L2")
    for group, found in zip(groups, (first, second), strict=True):
        assert len(found["rows"]) == 6100
        for (problem, row), (m, n, k, times, words) in zip(list(group.problems.items())[::611], found["rows"][::611], strict=True):
            assert (problem.m, problem.n, problem.k) == (m, n, k)
            assert times == pytest.approx([row[name].us for name in group.contenders], rel=5e-4)
            assert words == ["k1", plan_text(row["set"])]
