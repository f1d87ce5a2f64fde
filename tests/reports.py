"""Made-up measurements for the tests of the report, and a reader of its page."""

from __future__ import annotations

import gzip
import json
from base64 import b64decode
from html.parser import HTMLParser
from math import exp
from typing import Any

from cutlass_sk.ensemble.report import grouped, page, sections, summarize
from cutlass_sk.ensemble.report.groups import Group, gpu
from cutlass_sk.ensemble.table import Measurement, Table

SOURCE = {"commit": "abc", "gpu": "NVIDIA H200", "torch": "2.11", "method": "back & forth", "corpus": "five"}
PLAN: dict[str, Any] = {"kernel": "k1", "decomposition": "split_k", "grid": 8, "sk_tiles": 0, "sk_units": 0, "splits": 4}


def measured(m: int, contender: str, us: float | None, status: str = "ok", **changes: Any) -> Measurement:
    plan = {**PLAN, "raster": "along_m 1", "predicted_us": 1.5} if contender in ("set", "single") else {}
    values = {"corpus": "five", "dtype": "float16", "out_dtype": "float16", "timing": "back_to_back", **plan, **changes}
    return Measurement(m=m, n=64, k=64, contender=contender, us=us, status=status, **values)


FIVE = Table(
    tuple(
        measured(m, contender, us)
        for m, times in {
            64: (2.0, 4.0, 8.0),
            128: (2.0, 2.0, 1.0),
            192: (4.0, 5.0, 2.0),
            256: (1.0, 1.0, 4.0),
            4096: (3.0, 6.0, 3.0),
        }.items()
        for contender, us in zip(("set", "single", "cublas"), times, strict=True)
    ),
    (SOURCE,),
)


def group_of(*rows: Measurement) -> Group:
    (group,) = grouped(Table(rows, (SOURCE,)))
    return group


def page_of(table: Table) -> str:
    groups = grouped(table)
    return page(table, sections(groups), {}, summarize(table, groups, [{"file": "f", "sha256": "0", "holds": "x"}]), gpu(table))


class Checker(HTMLParser):
    """Tags that are opened must be closed, in turn; and what is in the page."""

    VOID = ("meta", "img", "input", "br", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data))

    @property
    def problems(self) -> dict[str, Any]:
        """The table of all problems, unpacked."""
        (place,) = (at for at, (_, attributes) in enumerate(self.scripts) if attributes.get("id") == "problems")
        return unpacked(b64decode([data for tag, data in self.texts if tag == "script"][place]))

    @property
    def scripts(self) -> list[tuple[str, dict[str, str | None]]]:
        return [one for one in self.tags if one[0] == "script"]


def unpacked(data: bytes) -> dict[str, Any]:
    """What ``packed`` packed: the header, with rows in each group: m, n, k, times (a status is a text), kernel and plan."""
    text, _, rest = gzip.decompress(data).partition(b"\n")
    found: dict[str, Any] = json.loads(text)
    columns: list[list[int]] = []
    for column in found.pop("columns"):
        rows, width, minus = column["rows"], column["bytes"], column["minus"]
        own, rest = rest[: rows * width], rest[rows * width :]
        folded = [sum(own[number * rows + row] << 8 * number for number in range(width)) for row in range(rows)]
        earlier = [0] * rows if minus is None else columns[minus]
        columns.append(
            [(-(value + 1) // 2 if value % 2 else value // 2) + base for value, base in zip(folded, earlier, strict=True)]
        )
    assert not rest
    first = len(found["statuses"]) + 1

    def time(code: int) -> float | str | None:
        if code == 0:
            return None
        return found["statuses"][code - 1] if code < first else found["least_us"] * exp((code - first) * found["step"])

    for group in found["groups"]:
        sizes, times, plan = ([columns[place] for place in group.pop(name)] for name in ("sizes", "times", "plan"))
        assert group.pop("rows") == len(sizes[0])
        codes = zip(*times, strict=True)
        words = ([found["texts"][at] for at in pair] for pair in zip(*plan, strict=True))
        group["rows"] = [
            [*size, list(map(time, row)), pair] for size, row, pair in zip(zip(*sizes, strict=True), codes, words, strict=True)
        ]
    return found
