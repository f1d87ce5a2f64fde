"""The page of a report is whole, needs no network, is safe from what records say, and can be searched and sorted."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from reports import FIVE, SOURCE, Checker, measured, page_of

from cutlass_sk.device import PRESETS
from cutlass_sk.ensemble.report import grouped, of_group, page, sections, summarize
from cutlass_sk.ensemble.report.grids import Grid
from cutlass_sk.ensemble.table import Table
from cutlass_sk.ensemble.table_records import read_any

RESULTS = Path(__file__).parent.parent / "results/h200"
RECORDS = RESULTS / "planner.records.jsonl.gz"
H200 = PRESETS["h200"]
EVIL = '</script><script>alert("x")</script>&|`$x$'
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")


@pytest.fixture(scope="module")
def committed() -> Table:
    return read_any(RECORDS)


def test_the_page_of_the_committed_records(committed: Table) -> None:
    groups = grouped(committed)
    pictures = {group.title: of_group(group, H200) for group in groups[:2]}
    text = page(committed, sections(groups), pictures, summarize(committed, groups, []), H200)
    images = sum(len(picture.png) for several in pictures.values() for picture in several) * 4 / 3
    assert len(text) - images + 4 * images < 3e6  # four dtypes have about as many bytes of pictures each
    checker = Checker(text)
    largest = checker.problems["groups"][0]
    assert (largest["title"], len(largest["rows"])) == ("float16: planner, back to back", 2000)
    assert largest["contenders"] == ["set", "single", "data_parallel", "cublas"]
    row = next(row for row in largest["rows"] if row[:3] == [1176, 456, 432])
    assert row[3] == [4.48, 4.48, 4.48, 4.986]
    assert [checker.problems["texts"][at] for at in row[4]] == [
        "sm90a_f16_f16_64x96x64_n32to256_4x1_pingpong",
        "data_parallel, 100 CTAs, along_n 1",
    ]
    for known in ("NVIDIA H200", "580.159.04", "2.11.0+cu130", "18ef51e", "seed 81, sha256 7418b05edeae", "contenders interleaved"):
        assert any(known in data for tag, data in checker.texts if tag == "td"), known
    assert "Nowhere measured: single Stream-K kernel over the oracle" in text
    assert {"group", "search-m", "search-n", "search-k", "all", "count", "more"} <= {one.get("id") for _, one in checker.tags}
    assert "1.060" in [data for tag, data in checker.texts if tag == "td"]


def test_the_page_needs_no_network() -> None:
    text = page_of(FIVE)
    for tag, attributes in Checker(text).tags:
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    assert "http" not in text and "@import" not in text and "url(" not in text


def test_texts_of_records_are_escaped() -> None:
    rows = tuple(row._replace(corpus=EVIL, kernel=EVIL, raster=EVIL) for row in FIVE.rows)
    table = Table((*rows, measured(64, EVIL, 2.0, corpus=EVIL)), ({**SOURCE, EVIL: EVIL, "method": EVIL},))
    text = page_of(table)
    assert "alert(" in text and "<script>alert" not in text and text.count("<script") == 2 == text.count("</script")
    checker = Checker(text)
    assert EVIL in checker.problems["texts"] and checker.problems["groups"][0]["contenders"][-1] == EVIL
    assert EVIL in [data for tag, data in checker.texts if tag == "td"]
    (group,) = grouped(table)
    for line in sections([group])[0].markdown().split("\n"):
        assert "<script" not in line
        if line.startswith("| 64 x"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 8
    (first, *_) = of_group(group, H200)
    assert b"alert(" in first.svg and b"<script" not in first.svg and "/" not in first.name and "<" not in first.name


def test_a_table_as_markdown_and_html() -> None:
    grid = Grid("a < b", ("x", "y|z"), (("1", "`<b>`"),))
    assert grid.markdown() == "### a &lt; b\n\n| x | y\\|z |\n| --- | --- |\n| 1 | \\`&lt;b>\\` |"
    checker = Checker(grid.html())
    assert [data for tag, data in checker.texts if tag in ("th", "td", "caption")] == ["a < b", "x", "y|z", "1", "`<b>`"]


def test_a_browser_shows_searches_and_sorts_the_table(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser to open the page with: none of {', '.join(BROWSERS)} is on the PATH")
    if subprocess.run([browser, "--version"], capture_output=True, timeout=60).returncode:  # a stub that asks for an installation
        pytest.skip(f"{browser} does not run")
    action = """<script>
      const rows = () => [...document.querySelectorAll("#all tbody tr")].map((row) => row.cells[0].textContent).join(" ");
      const seen = [rows()];
      const field = document.getElementById("search-m");
      field.value = "128-256";
      field.dispatchEvent(new Event("input"));
      seen.push(rows());
      const heading = (name) => [...document.querySelectorAll("#all th button")].find((one) => one.textContent.startsWith(name));
      const click = () => heading("set us").click();
      click();
      seen.push(rows());
      click();
      seen.push(rows());
      document.title = seen.join("; ");
    </script></body>"""
    (tmp_path / "index.html").write_text(page_of(FIVE).replace("</body>", action))
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom")
    command = [browser, *options, (tmp_path / "index.html").as_uri()]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert re.findall("<title>(.*)</title>", found) == ["64 128 192 256 4096; 128 192 256; 256 128 192; 192 128 256"]
