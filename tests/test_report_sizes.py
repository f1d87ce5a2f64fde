"""Library sizes in a report, the paper's tables beside ours, and the README's headline: all come out of records."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from reports import FIVE, SOURCE, group_of, measured

from cutlass_sk.ensemble import readme
from cutlass_sk.ensemble.report import beside, grouped, of_sizes, sections, size_pictures, sizes, summarize
from cutlass_sk.ensemble.table import Table, TableError, write

ROOT = Path(__file__).parent.parent
SIZE, SUMMARY = ROOT / "results/h200/size.json", ROOT / "results/h200/summary.json"
KEYS = {"kernels", "cubin_bytes", "so_bytes"}


def library(kernels: int | None, code: int | None, whole: int | None, ratio: float | None = None) -> dict[str, Any]:
    return {"kernels": kernels, "code_bytes": code, "library_bytes": whole, "meaning": "some", "vs_cublas": ratio}


RECORD: dict[str, Any] = {
    "provenance": {"commit": "abc"},
    "float16": {
        "libraries": {
            "single": library(1, 100_000, 700_000, 0.5),
            "set": library(8, 800_000, 6_000_000),
            "oracle_hopper": library(14, None, None),
            "cublas": library(None, 50_000_000, 60_000_000, 1.0),
        },
        "curve": [{"kernels": 1, "kernel": "k", "code_bytes": 60_000, "vs_cublas": 0.8}],
    },
}


def written(path: Path, record: Any) -> Path:
    path.write_text(json.dumps(record))
    return path


def test_sizes_get_the_performance_that_was_measured(tmp_path: Path) -> None:
    groups = grouped(FIVE)
    found = sizes.with_performance(sizes.read_sizes(written(tmp_path / "size.json", RECORD)), groups)
    summary = summarize(FIVE, groups, [], found)
    known = summary["library_size"]
    assert list(known) == ["float16_single", "float16_set", "float16_oracle_hopper", "cublas"]
    assert {name: own["kernels"] for name, own in known.items()} == dict(zip(known, (1, 8, 14, None), strict=True))
    ratio = groups[0].ratios["set_vs_cublas"].geomean
    assert ratio is not None and known["float16_set"] == {
        **{"kernels": 8, "cubin_bytes": 800_000, "so_bytes": 6_000_000, "bytes_per_kernel": 100_000},
        **{"vs_cublas": round(ratio, 4), "vs_cublas_per_mb": round(ratio / 0.8, 4)},
    }
    assert known["float16_single"]["vs_cublas"] != 0.5 and known["cublas"]["vs_cublas_per_mb"] == 0.02
    assert known["float16_oracle_hopper"]["cubin_bytes"] is None and summary["provenance"]["sizes"] == {"commit": "abc"}
    grid = sizes.table(found, groups)
    assert grid.rows[1][:6] == ("float16", "set", "8", "800,000", "100,000", "6,000,000") and grid.rows[3][0] == "all"
    picture = of_sizes(found)
    assert picture is not None and b"GPU code for one architecture (MB)" in picture.svg and b"set: 1.65" in picture.svg


def test_an_oracle_weighs_what_its_kernels_weigh(tmp_path: Path) -> None:
    us_of = {"oracle": 2.5, "oracle_of_set": 2.0, "data_parallel": 4.0, "cublas": 2.0}
    rows = [measured(m, name, us) for m in (64, 128) for name, us in us_of.items()]
    found = sizes.with_performance(sizes.read_sizes(written(tmp_path / "size.json", RECORD)), [group_of(*rows)])
    own = found.libraries["float16"]
    same = own["oracle_of_set"]
    assert (same.kernels, same.cubin_bytes, same.vs_cublas) == (8, 800_000, 1.0)
    assert (own["oracle_hopper"].kernels, own["oracle_hopper"].vs_cublas) == (14, pytest.approx(0.8))
    assert (own["data_parallel"].kernels, own["data_parallel"].vs_cublas) == (1, pytest.approx(0.5))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read"),
        ("[]", "holds no library sizes"),
        ('{"float16": {}}', "holds no library sizes"),
        ('{"provenance": {}, "int8": {}}', "holds no library sizes"),
        ('{"provenance": {}, "float16": {"libraries": {}}}', "float16 cannot be used: KeyError 'curve'"),
        ('{"provenance": {}, "float16": {"libraries": {"set": {"kernels": -1}}, "curve": []}}', "float16 cannot be used"),
        ('{"provenance": {}, "float16": 7}', "float16 cannot be used: TypeError"),
    ],
)
def test_other_sizes_are_one_clear_error(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "size.json"
    path.write_text(content)
    with pytest.raises(TableError) as raised:
        sizes.read_sizes(path)
    assert str(path) in str(raised.value) and message in str(raised.value) and "cutlass-sk size --json" in str(raised.value)


def test_the_command_takes_sizes(cutlass_sk: CommandLine, tmp_path: Path) -> None:
    write(tmp_path / "five.parquet", FIVE)
    size, folder = written(tmp_path / "size.json", RECORD), tmp_path / "report"
    options = ("--size", str(size), "--markdown", str(tmp_path / "all.md"))
    status, _, _ = cutlass_sk("report", str(tmp_path / "five.parquet"), "-o", str(folder), *options)
    text = (tmp_path / "all.md").read_text()
    assert status == 0 and "### Library size (size.json; times: float16: five, back to back)" in text
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["provenance"]["files"][1]["holds"] == "sizes of 4 libraries" and len(summary["library_size"]) == 4
    assert (folder / "pictures/size.png").exists() and 'id="kernels"' in (folder / "index.html").read_text()
    planner = ROOT / "results/h200/planner.json"
    status, text, errors = cutlass_sk("report", str(tmp_path / "five.parquet"), "-o", str(folder), "--size", str(planner))
    assert (status, text) == (2, "") and "planner.json" in errors and "cutlass-sk size --json" in errors


def test_labels_of_libraries_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, found = json.loads(SUMMARY.read_text())["library_size"], sizes.read_sizes(SIZE)

    def size(dtypes: str, name: str) -> sizes.Size:
        own = recorded.get(name if name in sizes.ALL_DTYPES else f"{dtypes}_{name}", {})
        return sizes.Size(own.get("kernels"), own.get("cubin_bytes"), own.get("so_bytes"), "", own.get("vs_cublas"))

    libraries = {pair: {name: size(pair, name) for name in (*known, *sizes.JOIN)} for pair, known in found.libraries.items()}
    figures = []
    monkeypatch.setattr(size_pictures, "drawn", lambda name, caption, figure: figures.append(figure))
    of_sizes(replace(found, libraries=libraries))
    (figure,) = figures
    figure.draw_without_rendering()
    for axes in figure.axes[: len(figure.axes) // 2]:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) > 5 and not any(one.overlaps(other) for one, other in combinations(boxes, 2))
        assert all(axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1 for box in boxes)


def test_corpora_of_one_name_are_refused() -> None:
    rows = tuple(row._replace(corpus=corpus) for corpus in ("a/b", "a_b") for row in FIVE.rows)
    table = Table(rows, (SOURCE,))
    with pytest.raises(TableError, match="two corpora have the name 'a_b'"):
        summarize(table, grouped(table), [])
    summary = summarize(FIVE, grouped(Table(rows[:15], (SOURCE,))), [])
    assert set(summary["float16"]) == {"a_b"}


def test_the_papers_tables_stand_beside_ours() -> None:
    times = (("single", 2.0), ("data_parallel", 3.0), ("cublas", 2.0))
    rows = [measured(m, name, us)._replace(dtype="float64", out_dtype="float64") for m in (64, 128) for name, us in times]
    grid = beside.table(group_of(*rows))
    assert grid is not None and "Table 1" in grid.title and grid.headings[1] == "same tile, data-parallel"
    assert [row[0] for row in grid.rows] == ["average", "standard deviation", "minimum", "maximum"]
    assert grid.rows[0][1:] == ("1.50 (1.23)", "1.00 (-)", "- (-)", "- (-)")
    assert beside.table(group_of(*FIVE.rows)) is None
    assert grid in sections([group_of(*rows)])[0].grids


# The committed records, and the README that is made of them.


def test_the_committed_sizes() -> None:
    found = sizes.read_sizes(SIZE)
    assert {"float16_float32", "float64", "float16"} <= set(found.libraries)
    for dtypes in ("float16_float32", "float64"):
        own = found.libraries[dtypes]
        assert all(own[name].cubin_bytes and own[name].so_bytes for name in ("single", "set", "oracle_paper", "cublas", "cublaslt"))
        assert own["manifest"].kernels and own["manifest"].kernels > 30 > (own["set"].kernels or 0)
    assert len(found.curves["float16"]) >= 32


def test_the_committed_summary_holds_what_it_must() -> None:
    summary = json.loads(SUMMARY.read_text())
    assert summary["provenance"]["sources"] and summary["provenance"]["commit"]
    for own in summary["library_size"].values():
        assert set(own) >= KEYS
    corpus = readme.chief(summary)
    for dtypes in ("float16_float32", "float64"):
        for timing in ("back_to_back", "isolated"):
            for name in ("single_vs_data_parallel", "single_vs_cublas", "set_vs_cublas"):
                assert set(summary[dtypes][corpus][timing][name]) == {"mean", "geomean", "std", "min", "max", "n"}


def test_the_readme_is_what_its_script_writes() -> None:
    summary, text = json.loads(SUMMARY.read_text()), (ROOT / "README.md").read_text()
    assert readme.replaced(text, readme.headline(summary)) == text
    assert all((ROOT / "docs/figures" / name).exists() and f"docs/figures/{name}" in text for name in readme.PICTURES)


def test_the_headline_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report"
    (report / "pictures").mkdir(parents=True)
    (tmp_path / "docs/figures").mkdir(parents=True)
    rows = tuple(row._replace(corpus="paper/aligned") for row in FIVE.rows)
    groups = grouped(Table(rows, (SOURCE,)))
    summary = summarize(FIVE, groups, [])
    written(report / "summary.json", summary)
    (tmp_path / "README.md").write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")
    arguments = ["--report", str(report), "--root", str(tmp_path)]
    with pytest.raises(SystemExit):
        readme.main(arguments)
    assert "speedup-float16-paper-aligned-back-to-back.png cannot be read" in capsys.readouterr().err
    for name in ("speedup-float16-paper-aligned-back-to-back.png", "size.png"):
        (report / "pictures" / name).write_bytes(name.encode())
    readme.main(arguments)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| the set over cuBLAS | 1.32 (2.00; 0.50 to 4.00; 5) |" in text
    assert (tmp_path / "docs/figures/size.png").read_bytes() == b"size.png"
    (tmp_path / "README.md").write_text("no marks")
    with pytest.raises(SystemExit):
        readme.main(arguments)
    assert "lacks the marks" in capsys.readouterr().err
    written(report / "summary.json", {})
    with pytest.raises(SystemExit):
        readme.main(arguments)
    assert "the summary has no times of paper_aligned or planner" in capsys.readouterr().err
