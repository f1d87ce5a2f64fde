"""The pictures show what the schedule is: checked on the SVG, not on the code that draws it."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
from command_line import CommandLine

from cutlass_sk.cli.drawing import legend
from cutlass_sk.cli.picture import tile_color
from cutlass_sk.cli.schedule import FIGURES, Drawn
from cutlass_sk.timeline import timeline

DOCS = Path(__file__).parent.parent / "docs/figures"
UTILISATION = {"1a": 0.75, "1b": 0.9, "2a": 0.9, "2b": 1.0, "3a": 1.0, "3b": 1.0, "3c": 1.0, "9": 1.0}
"""1a to 2b as the Stream-K paper has them; work of the others divides evenly, too."""
CTAS = {"1a": 4, "1b": 4, "2a": 18, "2b": 4, "3a": 4, "3b": 4, "3c": 4, "9": 4}
SVG = "{http://www.w3.org/2000/svg}"
Box = tuple[float, float, float, float]


def boxes(path: Path) -> dict[str, Box]:
    """Left, top, right and bottom of every piece that has a name of ours."""
    found = {}
    for group in ElementTree.parse(path).iter(f"{SVG}g"):
        if re.match("(mac|idle|wait|fixup)-", name := group.get("id", "")):
            (outline,) = (one for one in group.iter(f"{SVG}path") if "fill" in one.get("style", ""))
            numbers = [float(number) for number in re.findall(r"-?[\d.]+", outline.get("d", ""))]
            assert name not in found
            found[name] = (min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2]))
    return found


def curves(path: Path) -> dict[str, tuple[float, ...]]:
    """The coordinates of every curve of a picture, and of every mark of a minimum."""
    found: dict[str, tuple[float, ...]] = {}
    for group in ElementTree.parse(path).iter(f"{SVG}g"):
        if (name := group.get("id", "")).startswith("curve-"):
            found[name] = tuple(map(float, re.findall(r"-?[\d.]+", next(group.iter(f"{SVG}path")).get("d", ""))))
        elif name.startswith("minimum-"):
            found[name] = tuple(float(mark.get(axis, "nan")) for mark in group.iter(f"{SVG}use") for axis in ("x", "y"))
    return found


def drawn(cutlass_sk: CommandLine, path: Path, *arguments: str) -> dict[str, Box]:
    assert cutlass_sk("schedule", *arguments, "-o", str(path)) == (0, f"written to {path}\n", "")
    return boxes(path)


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_holds_all_work_once_and_keeps_the_sms_as_busy_as_it_says(
    cutlass_sk: CommandLine, tmp_path: Path, figure: Any
) -> None:
    """Areas of boxes are work, so the utilisation can be read off the picture."""
    found = drawn(cutlass_sk, path := tmp_path / "figure.svg", "--figure", figure)
    ranges, rows, ctas, busy = defaultdict(list), defaultdict(list), set(), 0.0
    size, tile = FIGURES[figure][1].size, FIGURES[figure][1].tile
    for name, (left, top, right, _) in found.items():
        rows[top].append((left, right))
        if piece := re.fullmatch(r"mac-sm\d+-cta(\d+)-tile(\d+)-k(\d+)-(\d+)", name):
            cta, number, k_begin, k_end = map(int, piece.groups())
            ranges[number].append((k_begin, k_end))
            ctas.add(cta)
            busy += right - left
    iters = size[2] // tile[2]
    assert len(ranges) == -(-size[0] // tile[0]) * -(-size[1] // tile[1]) and len(ctas) == CTAS[figure]
    for parts in ranges.values():
        assert sorted(k for begin, end in parts for k in range(begin, end)) == list(range(iters))
    begin, end = min(left for left, *_ in found.values()), max(right for _, _, right, _ in found.values())
    for spans in rows.values():  # no overlap, no gap
        spans.sort()
        assert [right for _, right in spans] == pytest.approx([*(left for left, _ in spans[1:]), end], abs=1e-3)
    assert len(rows) == 4
    assert busy / (4 * (end - begin)) == pytest.approx(UTILISATION[figure], abs=1e-4)
    assert f"{UTILISATION[figure]:.1%} utilisation" in path.read_text()


def test_basic_stream_k_gives_every_cta_its_72_iterations() -> None:
    assert timeline(FIGURES["2b"][1].plan()).ends() == [72] * 4


@pytest.mark.parametrize(("hybrid", "shared"), [("none", 21), ("one-tile", 1), ("two-tile", 5), (None, 5)])
def test_hybrids_share_the_tiles_of_the_paper(hybrid: Any, shared: int) -> None:
    plan = Drawn((896, 384, 128), (128, 128, 4), decomposition="stream_k", hybrid=hybrid).plan()
    assert (plan.sk_tiles, plan.dp_tiles, plan.sk_units) == (shared, 21 - shared, 4)


@pytest.mark.parametrize("tiles", [4, 8])
def test_one_tile_hybrid_of_full_waves_shares_the_last_one(tiles: int) -> None:
    assert Drawn((128 * tiles, 128, 256), decomposition="stream_k", hybrid="one-tile").plan().sk_tiles == 4


def test_waits_and_fixups_are_drawn(cutlass_sk: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    options = ("--tile", "128x128x64", "--sms", "2", "--decomposition", "stream_k", "--fixup-iters", "2")
    found = drawn(cutlass_sk, path, "128", "128", "320", *options)
    assert set(found) == {
        *("mac-sm0-cta0-tile0-k0-3", "mac-sm1-cta1-tile0-k3-5", "idle-sm0-3-5"),
        *("wait-sm1-cta1-tile0-unit0", "fixup-sm1-cta1-tile0-unit0"),
    }
    left, _, right, _ = found["fixup-sm1-cta1-tile0-unit0"]
    assert right - left == pytest.approx(found["mac-sm1-cta1-tile0-k3-5"][2] - found["mac-sm1-cta1-tile0-k3-5"][0])
    assert "store-tile0-unit0" in (text := path.read_text()) and "sum-tile0-unit0-unit1" in text
    assert "tile 0, k 0-2" in text and ">wait<" in text and "50.0% utilisation" in text


@pytest.mark.parametrize("figure", [*FIGURES, "8"])
def test_the_drawn_figures_are_those_in_docs(cutlass_sk: CommandLine, tmp_path: Path, figure: str) -> None:
    """Where matplotlib writes SVG in another way, the boxes are still the same."""
    command = ("model",) if figure == "8" else ("schedule", "--figure", figure)
    paths = [tmp_path / "first.svg", tmp_path / "second.svg"]
    for path in paths:
        assert cutlass_sk(*command, "-o", str(path))[0] == 0
    first, second = (path.read_bytes() for path in paths)
    kept = DOCS / f"figure-{figure}.svg"
    assert first == second
    if first != kept.read_bytes():
        pieces = curves if figure == "8" else boxes
        assert pieces(kept) and pieces(paths[0]).keys() == pieces(kept).keys()
        for name, numbers in pieces(kept).items():
            assert pieces(paths[0])[name] == pytest.approx(numbers, abs=0.01)


def test_another_curve_is_told_from_the_drawn_one(cutlass_sk: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "other.svg"
    assert cutlass_sk("model", "--device", "h100", "-o", str(path))[0] == 0
    drawn, other = curves(DOCS / "figure-8.svg"), curves(path)
    assert len(drawn) == 6 and drawn.keys() != other.keys()
    assert drawn["curve-0"] != pytest.approx(other["curve-0"], abs=0.01)


def test_the_users_own_style_does_not_matter(cutlass_sk: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, styled = tmp_path / "plain.svg", tmp_path / "styled.svg"
    drawn(cutlass_sk, plain, "--figure", "9")
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 30.0)
    drawn(cutlass_sk, styled, "--figure", "9")
    assert plain.read_bytes() == styled.read_bytes() and matplotlib.rcParams["font.size"] == 30.0


def test_model_draws_the_minima_of_the_paper(cutlass_sk: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "model.svg"
    assert cutlass_sk("model", "-o", str(path)) == (0, f"written to {path}\n", "")
    groups = {group.get("id"): group for group in ElementTree.parse(path).iter(f"{SVG}g")}
    for number, best in enumerate((108, 64, 8)):
        curve = next(groups[f"curve-{number}"].iter(f"{SVG}path"))
        points = re.findall(r"[ML] ([\d.]+) ([\d.]+)", curve.get("d", ""))
        (mark,) = groups[f"minimum-{number}-g{best}"].iter(f"{SVG}use")
        lowest = max(points, key=lambda point: float(point[1]))  # y grows downwards
        assert (float(mark.get("x", 0)), float(mark.get("y", 0))) == pytest.approx(tuple(map(float, lowest)), abs=0.01)
        assert f"g = {best}: " in path.read_text()


def test_model_prints_the_minima_of_the_paper_and_of_a_problem_of_ones_own(cutlass_sk: CommandLine) -> None:
    status, text, _ = cutlass_sk("model")
    assert status == 0
    assert [int(g) for g in re.findall(r"^│ +(\d+) │.*the fastest", text, re.MULTILINE)] == [108, 64, 8]
    status, text, _ = cutlass_sk("model", "128", "128", "128", "--device", "toy:16", "--dtype", "float64")
    assert status == 0 and "4 tiles of 8 k-tiles" in text and "on toy:16" in text
    assert re.search(r"^│ +16 │ +2 │ +4 │.*all SMs", text, re.MULTILINE)  # 32 k-tiles on 16 CTAs: 2 each, 4 a tile


def test_without_a_file_the_schedule_is_text(cutlass_sk: CommandLine) -> None:
    status, text, _ = cutlass_sk("schedule", "384", "384", "128", "--tile", "128x128x4", "--decomposition", "data_parallel")
    assert status == 0 and "75.0% utilisation" in text and "done after 96 k-tiles" in text
    assert re.search(r"^SM 0 0{32}4{32}8{32} 96\nSM 1 1{32}5{32} {32} 64$", text, re.MULTILINE)
    assert "\n0 one k-tile of tile 0  + adding one partial sum  . waiting\n" in text, "without colours, what they tell is left out"
    assert legend().plain.startswith("0 one k-tile of tile 0, data-parallel  0 the same in a Stream-K share  + ")


def test_the_figures_are_listed(cutlass_sk: CommandLine) -> None:
    status, text, _ = cutlass_sk("schedule", "--figures")
    assert status == 0 and re.findall(r"^│ (\w+) +│", text, re.MULTILINE) == list(FIGURES)


@pytest.mark.parametrize(
    ("size", "shared"),
    [
        (("1536", "1024", "512"), "8 of them in Stream-K shares, none cut"),
        (("896", "384", "512"), "5 of them in Stream-K shares, 3 cut"),
    ],
)
def test_tiles_that_are_cut_are_told_from_those_in_shares(cutlass_sk: CommandLine, size: tuple[str, ...], shared: str) -> None:
    options = ("--decomposition", "stream_k", "--sms", "8" if size[0] == "1536" else "4")
    status, text, _ = cutlass_sk("schedule", *size, *options)
    assert status == 0 and shared in text


def test_stores_are_marked_at_the_end_of_their_box(cutlass_sk: CommandLine, tmp_path: Path) -> None:
    found = drawn(cutlass_sk, path := tmp_path / "3c.svg", "--figure", "3c")
    groups = {group.get("id"): group for group in ElementTree.parse(path).iter(f"{SVG}g")}
    for unit, box in enumerate(("mac-sm0-cta0-tile1-k0-8", "mac-sm1-cta1-tile2-k0-16", "mac-sm2-cta2-tile3-k0-24")):
        (mark,) = groups[f"store-tile{unit + 1}-unit{unit}"].iter(f"{SVG}use")
        assert float(mark.get("x", 0)) == pytest.approx(found[box][2], abs=0.01)


def test_png(cutlass_sk: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "1a.png"
    assert cutlass_sk("schedule", "--figure", "1a", "-o", str(path)) == (0, f"written to {path}\n", "")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_colors_differ_for_as_many_tiles_as_the_figures_have() -> None:
    assert len({tile_color(tile) for tile in range(24)}) == 24 and tile_color(24) == tile_color(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("schedule", "8", "8", "8", "--tile", "12x"), "'12x' must be 3 whole numbers"),
        (("schedule", "8", "8", "8", "--tile", "0x8x8"), "'0x8x8' is an empty tile"),
        (("schedule", "8", "8", "8", "--sms", "0"), "--sms"),
        (("schedule", "8", "8", "8", "--sms", "2000"), "--sms"),
        (("schedule", "--figure", "7"), "'7' is not one of"),
        (("schedule", "--figure", "1a", "--sms", "3"), "--figure 1a says all that --sms would say"),
        (("schedule", "8", "8"), "M, N and K are needed"),
        (("schedule", "8", "8", "8", "-o", "x.gif"), "'x.gif' must end in .svg or .png"),
        (("schedule", "0", "8", "8"), "error: m=0 must be a whole number"),
        (("schedule", "8", "8", "8", "--sk-units", "2"), "error: --sk-units 2 belongs to --decomposition stream_k\n"),
        (
            ("schedule", "8", "8", "8", "--hybrid", "none"),
            "error: --hybrid none says what stream_k shares; use --decomposition stream_k, without --sk-tiles",
        ),
        (("schedule", "1000000", "1000000", "64"), "too many to draw"),
        (("schedule", "8", "8", "8", "-o", "/nowhere/at/all.svg"), "error: /nowhere/at/all.svg cannot be written"),
        (("schedule", "8", "8", "8", "-o", "/nowhere/at/all.svg"), "name a file in a folder that exists"),
        (
            ("schedule", "8", "8", "8", "--splits", "2", "--decomposition", "stream_k"),
            "--splits 2 belongs to --decomposition split_k",
        ),
        (("model", "8", "8"), "M, N and K are needed"),
        (("model", "8", "8", "0"), "error: k=0 must be a whole number"),
        (("model", "--device", "a1000"), "error: --device a1000 is no preset"),
        (("model", "-o", "picture"), "'picture' must end in .svg or .png"),
    ],
)
def test_bad_input_is_one_error_and_status_2(cutlass_sk: CommandLine, arguments: tuple[str, ...], message: str) -> None:
    status, text, errors = cutlass_sk(*arguments)
    assert (status, text) == (2, "")
    assert message in errors and "Traceback" not in errors


def test_without_matplotlib_the_remedy_is_given(cutlass_sk: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, errors = cutlass_sk("schedule", "--figure", "1a", "-o", str(tmp_path / "1a.svg"))
    assert status == 2 and "pip install 'cutlass-sk[report]'" in errors and errors.count("\n") == 1
    assert cutlass_sk("schedule", "--figure", "1a")[0] == 0
