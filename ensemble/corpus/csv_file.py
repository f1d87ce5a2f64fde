"""Problems in CSV files: read with one clear error for what is wrong, and written."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from cutlass_sk.errors import reason

from .problem import LARGEST_SIZE, Corpus, CorpusError, Problem, check_matrices

SIZES = ("m", "n", "k")
COLUMNS = ("name", *SIZES, "layout", "dtype", "source", "count")
LAYOUTS = ("tt", "tn", "nt", "nn", "any")


def from_csv(path: Path) -> Corpus:
    """A user's own problems: columns m, n, k, and name, layout, dtype, source, count where they matter; others are ignored."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path} cannot be read: {reason(error)}; give a CSV file in UTF-8 with columns m, n, k") from error
    return Corpus(path.stem, tuple(read_csv(text, str(path))))


def read_csv(text: str, origin: str) -> Iterator[Problem]:
    """Problems of a CSV text; CorpusError names ``origin``, the line and the value of what is wrong, and the way out."""
    reader = csv.DictReader(StringIO(text), skipinitialspace=True)
    try:
        if not (columns := reader.fieldnames):
            raise CorpusError(
                f"{origin} is empty; its first line must name the columns, m, n and k at least, and each other is a problem"
            )
        reader.fieldnames = [column.strip() for column in columns]
        _check_heading(reader.fieldnames, origin)
        empty = True
        for row in reader:
            empty = False
            yield _problem(dict(row), f"{origin}, line {reader.line_num}")
    except csv.Error as error:
        raise CorpusError(f"{origin}, line {reader.line_num} is no CSV: {error}; save it as plain text, a problem a line") from None
    if empty:
        raise CorpusError(f"{origin} holds no problems; give one a line under the heading")


def to_csv(problems: Iterable[Problem]) -> str:
    """A CSV text that ``read_csv`` reads as the same problems."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([getattr(problem, column) for column in COLUMNS] for problem in problems)
    return text.getvalue()


def _check_heading(columns: Iterable[str], origin: str) -> None:
    found = list(columns)
    if missing := [column for column in SIZES if column not in found]:
        raise CorpusError(
            f"{origin}, line 1: no column {', '.join(missing)} among {', '.join(map(repr, found))}; the first line must name "
            "m, n and k, with commas between columns"
        )
    if twice := sorted({column for column in found if column in COLUMNS and found.count(column) > 1}):
        raise CorpusError(f"{origin}, line 1: column {', '.join(twice)} is there twice; leave one")


def _problem(row: dict[str | None, Any], where: str) -> Problem:
    if surplus := row.get(None):  # where csv puts cells that have no column
        raise CorpusError(
            f"{where}: {', '.join(map(repr, surplus))} beyond the last column; write a cell a column, one with a comma in quotes"
        )
    m, n, k = (_whole(row[column], column, where) for column in SIZES)
    check_matrices(m, n, k, where, "give sizes in elements")
    layout = (row.get("layout") or "any").strip()
    if layout not in LAYOUTS:
        raise CorpusError(f"{where}: layout={layout!r} is not one of {', '.join(LAYOUTS)}; leave it empty for any")
    count = _whole(row["count"], "count", where) if row.get("count") else 1
    name, dtype, source = ((row.get(column) or "").strip() for column in ("name", "dtype", "source"))
    return Problem(m, n, k, name, layout, dtype, source, count)


def _whole(text: str | None, column: str, where: str) -> int:
    """A whole number from 1 to the largest size."""
    if text is None or not text.strip():
        raise CorpusError(f"{where}: {column} is missing; give a whole number, with commas between columns")
    if not re.fullmatch(r"[+-]?[0-9]+", text.strip()):
        raise CorpusError(f"{where}: {column}={text!r} is no whole number; write digits alone, such as 4096")
    if len(text) > 20 or int(text) > LARGEST_SIZE:
        raise CorpusError(
            f"{where}: {column}={text.strip():.40} is larger than {LARGEST_SIZE}, the most a kernel takes; cut the problem up"
        )
    if int(text) < 1:
        raise CorpusError(f"{where}: {column}={int(text)} must be 1 or more; leave problems without work out")
    return int(text)
