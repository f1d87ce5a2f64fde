"""README.md is true: its Python runs, and it names every command and environment variable. So are the pages in docs/."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import typer

from cutlass_sk import Gemm, env
from cutlass_sk.ensemble import cli
from cutlass_sk.generator.catalog import DTYPES, families
from cutlass_sk.generator.emit import emit
from cutlass_sk.generator.spec import KernelSpec

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = tuple(sorted((ROOT / "docs").glob("*.md")))
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore:cutlass_sk. CPU tensors")
def test_python_snippets_run_one_after_the_other() -> None:
    assert SNIPPETS
    namespace: dict[str, object] = {"__name__": "readme"}
    for snippet in SNIPPETS:
        exec(compile(snippet, "README.md", "exec"), namespace)


@pytest.mark.parametrize("variable", env.VARIABLES, ids=lambda variable: variable.name)
def test_environment_variable_is_documented(variable: env.Variable[object]) -> None:
    assert f"`{variable.name}`" in README


@pytest.mark.parametrize("command", sorted(typer.main.get_command(cli.app).commands))  # type: ignore[attr-defined]
def test_command_is_documented(command: str) -> None:
    assert f"`cutlass-sk {command}" in README


def test_plan_example_is_what_the_command_says() -> None:
    from cutlass_sk.cli.planned import FORMATS

    example = README.partition("$ cutlass-sk plan")[2].partition("```")[0]
    assert example
    for name in FORMATS:
        assert name in example
    plan = Gemm("float16", device="h200").plan(*map(int, example.split()[:3]))
    for value in (
        plan.kernel.name,
        str(plan.partials_bytes and f"{plan.partials_bytes:,} bytes"),
        f"{plan.predicted_time_us:.1f} us",
    ):
        assert value in example


def test_the_kernel_table_is_the_catalogue() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) to (\d+) \| (\d)x(\d) \| (\w+) \| (yes)? ?\|$", README, re.MULTILINE)
    listed = [
        ((int(m), int(most), 64), int(least), int(most), (int(x), int(y)), schedule, bool(yes))
        for _, m, least, most, x, y, schedule, yes in rows
    ]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    for dtype, out_dtype in DTYPES:
        family = families(dtype, out_dtype, "sm90a")
        if dtype == "float64":
            tiles = re.findall(r"\d+x\d+", README.partition("For float64 they are 16 deep:")[2].partition(").\n")[0])
            tiles.remove("2x1")  # the cluster
            assert tiles == ["{}x{}".format(*spec.tile) for spec in family if spec.api == "3x"]
        else:
            assert listed == [(s.tile, s.narrowest, s.widest, s.cluster, s.schedule, s.swapped) for s in family]


def test_links_lead_to_files() -> None:
    for target in re.findall(r"\]\((?!http|#)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_the_measured_tables_are_the_records() -> None:
    from cutlass_sk.ensemble.core import markdown
    from cutlass_sk.ensemble.planner_report import summary

    record = json.loads((ROOT / "results/h200/core.json").read_text())
    assert markdown(record) in README
    assert summary(json.loads((ROOT / "results/h200/planner.json").read_text())) in README
    tests = json.loads((ROOT / "results/h200/gpu-tests.json").read_text())
    assert tests["failed"] == 0 and f"{tests['passed']} GPU tests passed" in README


def test_files_that_the_documents_name_exist() -> None:
    for document in ("README.md", "CONTRIBUTING.md", "results/NOTES.md", *(f"docs/{page.name}" for page in PAGES)):
        for path in re.findall(r"`((?:results|ensemble|generator|cutlass_sk|tests)/[\w./-]+)`", (ROOT / document).read_text()):
            assert (ROOT / path).exists(), f"{document} names {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_commands_and_marks_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    assert set(re.findall(r"\bcutlass-sk (\w+)", text)) <= set(commands)
    for mark in re.findall(r'--8<-- "README.md:(\w+)"', text):
        assert f"[start:{mark}]" in README and f"[end:{mark}]" in README


def test_the_kernel_that_the_documentation_adds_can_be() -> None:
    (line,) = re.findall(r"^ +(\(\(\d+.*\)),$", (ROOT / "docs/adding.md").read_text(encoding="utf-8"), re.MULTILINE)
    (rows, narrowest, widest), cluster, schedule, swapped = ast.literal_eval(line)
    tile, widths = (rows, widest, 64), {"narrowest": narrowest, "widest": widest}
    spec = KernelSpec("sm90a", "3x", "float16", "float16", tile, cluster, schedule=schedule, swapped=swapped, **widths)
    assert spec.name in emit(spec) and spec.family in (ROOT / "docs/adding.md").read_text(encoding="utf-8")
