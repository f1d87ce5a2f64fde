"""The page of a report is whole, needs no network, is safe from what records say, and can be searched and sorted."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from reports import FIVE, SOURCE, Checker, measured, page_of

from cutlass_sk.device import PRESETS
from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.ensemble.report import grouped, of_group, page, sections, summarize
from cutlass_sk.ensemble.report.grid import Grid
from cutlass_sk.ensemble.report.groups import plan_text
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
    shape = [1176, 456, 432]
    row = next(row for row in largest["rows"] if row[:3] == shape)
    own = groups[0].problems[Problem(*shape)]
    assert row[3] == pytest.approx([own[name].us for name in largest["contenders"]], rel=5e-4)
    assert row[4] == [own["set"].kernel, plan_text(own["set"])]
    (source, *_) = committed.sources
    for known in ("NVIDIA H200", source["driver"], source["torch"], source["commit"], "seed 81, sha256", "contenders interleaved"):
        assert any(str(known) in data for tag, data in checker.texts if tag == "td"), known
    assert "; single Stream-K kernel over the oracle; " in text
    assert {"group", "search-m", "search-n", "search-k", "all", "count", "more"} <= {one.get("id") for _, one in checker.tags}
    mean = groups[0].ratios["set_vs_cublas"].mean
    assert f"{mean:.3f}" in [data for tag, data in checker.texts if tag == "td"]


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


def browser() -> str:
    """A browser that runs; without one the test is skipped, and says why."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser to open the page with: none of {', '.join(BROWSERS)} is on the PATH")
    if subprocess.run([found, "--version"], capture_output=True, timeout=60).returncode:  # a stub that asks for an installation
        pytest.skip(f"{found} does not run")
    return found


def opened(page: Path, fragment: str = "") -> str:
    """The page's DOM as a browser has it, once its scripts are through."""
    quiet = ("background-networking", "component-update", "sync", "gpu", "quic")
    options = [f"--disable-{name}" for name in quiet] + ["--headless", "--no-sandbox", "--no-first-run"]
    profile = f"--user-data-dir={page.parent / f'profile{len(list(page.parent.iterdir()))}'}"
    command = [browser(), *options, profile, "--virtual-time-budget=10000", "--dump-dom", page.as_uri() + fragment]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def shown(dom: str, identifier: str = "all") -> list[list[str]]:
    """The cells of a table's body, row by row."""
    body = dom.partition(f'<table id="{identifier}">')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in body.split("</tr>")[:-1]]


def test_a_browser_searches_by_the_address(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text(page_of(FIVE))
    whole = opened(page)
    assert [row[0] for row in shown(whole)] == ["64", "128", "192", "256", "4096"] and "5 of 5 problems, 5 shown" in whole
    headings = re.findall("<button[^>]*>(.*?)</button>", whole.partition('<table id="all">')[2].partition("</thead>")[0])
    first = dict(zip(headings, shown(whole)[0], strict=True))
    assert [first[name] for name in ("m \u25b2", "n", "set us", "cublas us", "kernel")] == ["64", "64", "2.00", "8.00", "k1"]
    assert float(first["set vs cublas"]) == pytest.approx(4.0, rel=2e-3)
    dom = opened(page, "#group=0&m=128-256&k=-64&sort=set us&falling=1")
    assert [row[0] for row in shown(dom)] == ["192", "128", "256"] and "3 of 5 problems, 3 shown" in dom
    assert 'aria-sort="descending"><button type="button">set us' in dom
    assert [row[0] for row in shown(opened(page, "#m=100"))] == []


def test_a_browser_searches_and_sorts_by_hand(tmp_path: Path) -> None:
    action = """<script>
      const rows = (table) => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent).join(" ");
      const click = (table, name) =>
        [...table.querySelectorAll("th button")].find((one) => one.textContent.startsWith(name)).click();
      const act = () => {
        const all = document.getElementById("all"), seen = [rows(all)];
        const field = document.getElementById("search-m");
        field.value = "128-256";
        field.dispatchEvent(new Event("input"));
        seen.push(rows(all), location.hash);
        click(all, "set us");
        seen.push(rows(all));
        click(all, "set us");
        seen.push(rows(all), location.hash);
        const size = [...document.querySelectorAll("table.sortable")].find((one) => one.caption.textContent.startsWith("By size"));
        click(size, "FLOP");
        click(size, "FLOP");
        seen.push(rows(size));
        document.title = seen.join("; ");
      };
      const wait = () => document.querySelector("#all tbody tr") ? act() : setTimeout(wait, 20);
      wait();
    </script></body>"""
    (tmp_path / "index.html").write_text(page_of(FIVE).replace("</body>", action))
    (title,) = re.findall("<title>(.*)</title>", opened(tmp_path / "index.html"))
    assert title.replace("&amp;", "&").split("; ") == [
        *("64 128 192 256 4096", "128 192 256", "#group=0&m=128-256&sort=m"),
        *("256 128 192", "192 128 256", "#group=0&m=128-256&sort=set+us&falling=1"),
        "10^7.5 to 10^8 10^6 to 10^6.5 10^5.5 to 10^6",
    ]
