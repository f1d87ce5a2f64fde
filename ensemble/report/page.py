"""``index.html``: one page that holds all of a report and needs no network."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from cutlass_sk.device import Device
from cutlass_sk.ensemble.planner_report import COMPUTE_BOUND, DTYPES
from cutlass_sk.ensemble.table import MADE_UP, Table

from .drawing import Picture
from .grid import Grid
from .grids import Section
from .groups import RATIOS, Group
from .packed import packed

LABELS = {
    "gpu": "GPU",
    "driver": "driver",
    "clocks": "clocks and power, as nvidia-smi gave them",
    "commit": "commit measured",
    "date": "date",
    "python": "Python",
    "torch": "torch",
    "cuda": "CUDA",
    "corpus": "sample",
    "n": "problems in the sample",
    "method": "method",
    "calibration": "calibration",
    "script": "measured by",
}
"""Of a source's provenance: key -> what the page calls it. All other keys follow under their own names."""
READING = (
    "A speed-up is the other's time over ours for the same problem, so that above 1 ours is faster. Mean, standard deviation (of "
    "the sample), minimum, maximum and geometric mean are over problems. Only measurements with status ok count. A problem is "
    f"compute-bound above {COMPUTE_BOUND} FLOP/B, with a and b read once and c written once."
)
CONTROLS = """<p class="controls"><label>problems of <select id="group"></select></label>
<label>m <input id="search-m" placeholder="128-512"></label><label>n <input id="search-n"></label>
<label>k <input id="search-k"></label> <span id="count" role="status">unpacking ...</span></p>
<p>Search by a number or a range (128, 128-512, 4096-). Click a heading to sort, and again to turn the order round; the page's
address keeps what is shown. Kernel and plan are those of the set, or where there is none of the single kernel. Times are within
0.05% of the records, ratios within 0.1%. A time that does not count is its status.</p>
<noscript><p>This table needs JavaScript; summary.json and the records hold its numbers.</p></noscript>
<div class="wide"><table id="all"><thead></thead><tbody></tbody></table></div>
<p><button id="more" type="button" hidden>Show more</button></p>"""


def page(
    table: Table,
    sections: Sequence[Section],
    pictures: Mapping[str, Sequence[Picture]],
    summary: Mapping[str, Any],
    device: Device,
    sizes: Sequence[Grid] = (),
) -> str:
    """The page. ``pictures``: by the title of their group; under "" those of library size, as are the tables ``sizes``."""
    groups = [section.group for section in sections]
    mark = f"{MADE_UP}. " if table.made_up else ""
    head = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{mark}cutlass_sk: report</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>\n{_part("page.css")}</style></head>\n<body>'
    )
    parts = [
        head,
        f"<h1>{mark}Stream-K and what it is compared with</h1>",
        _navigation(sections, bool(pictures.get("") or sizes)),
        _about(table, groups, summary, device),
    ]
    for number, section in enumerate(sections):
        parts.append(f'<h2 id="group-{number}">{escape(section.title)}</h2>')
        opened = [grid.html() for grid in (section.ratios, section.beside) if grid is not None]
        parts += [*opened, *map(_figure, pictures.get(section.group.title, ()))]
        parts += [f"<details><summary>{escape(grid.title)}</summary>{grid.html()}</details>" for grid in section.others]
        parts.append(f"<p>{escape(section.missing)}</p>")
    if (others := pictures.get("", ())) or sizes:
        parts += ['<h2 id="kernels">Library size</h2>', *(grid.html() for grid in sizes), *map(_figure, others)]
    parts += ['<h2 id="problems-table">All problems</h2>', CONTROLS]
    parts.append(f'<script type="text/plain" id="problems">{b64encode(packed(groups)).decode()}</script>')
    parts.append(f"<script>\n{_part('page.js')}</script>\n</body></html>\n")
    return "\n".join(parts)


def _about(table: Table, groups: Sequence[Group], summary: Mapping[str, Any], device: Device) -> str:
    """Method, machine, versions, commits, sample, and what was not measured."""
    own = summary["provenance"]
    parts = ['<h2 id="about">What was measured</h2>', f"<p>{escape(READING)}</p>"]
    peaks = f"{device.fp16_tflops:g} TFLOP/s for 16-bit types and {device.fp64_tflops:g} for float64, {device.bandwidth_gbs:g} GB/s"
    parts.append(f"<p>Utilisation is a part of the data sheet's peak of {escape(device.name)}: {peaks}.</p>")
    for number, source in enumerate(table.sources, 1):
        keys = [*(key for key in LABELS if key in source), *(key for key in source if key not in (*LABELS, "host"))]
        rows = [(LABELS.get(key, key), _value(source[key])) for key in keys]
        run = _pairs(f"Run {number} of {len(table.sources)}", rows)
        told = f"Run {number}: {source.get('gpu')}, {_value(source.get('corpus'))}, {source.get('date')}"
        parts.append(run if len(table.sources) == 1 else f"<details><summary>{escape(told)}</summary>{run}</details>")
    made = [("commit of this report", str(own["commit"]))]
    made += [(f"made from {file['file']}", f"{file['holds']}, sha256 {file['sha256']}") for file in own["files"]]
    parts.append(_pairs("This report", made))
    absent = [f"records of {dtype}" for dtype in DTYPES if summary["not_measured"].get(dtype) == "no records"]
    measured = {name for group in groups for name in group.ratios}
    absent += [title for name, (_, _, title) in RATIOS.items() if name not in measured]
    text = f"Nowhere measured: {'; '.join(absent)}. " if absent else ""
    parts.append(f"<p>{escape(text)}Each group says under its tables which ratios it lacks, and what does not count.</p>")
    return "\n".join(parts)


def _value(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        return "\n".join(" ".join(map(str, one.values())) for one in value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _pairs(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>\n' for name, value in rows)
    return f'<div class="wide"><table class="about"><caption>{escape(caption)}</caption>\n<tbody>\n{body}</tbody></table></div>'


def _navigation(sections: Sequence[Section], sized: bool) -> str:
    links = [("about", "What was measured")]
    links += [(f"group-{number}", section.title) for number, section in enumerate(sections)]
    links += [*([("kernels", "Library size")] if sized else []), ("problems-table", "All problems")]
    return "<nav>" + "\n".join(f'<a href="#{target}">{escape(title)}</a>' for target, title in links) + "</nav>"


def _figure(picture: Picture) -> str:
    data, caption = b64encode(picture.png).decode(), escape(picture.caption)
    image = f'<img loading="lazy" alt="{caption}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _part(name: str) -> str:
    return files("cutlass_sk.ensemble.report").joinpath(name).read_text(encoding="utf-8")
