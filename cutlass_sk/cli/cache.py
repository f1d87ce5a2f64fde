"""``cutlass-sk cache``: what the kernel cache holds, whether it is whole, and its removal. Needs no GPU and no compiler."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from ..jit.cache import Cache
from ..jit.key import SCHEMA
from ..jit.tidy import Removed, Stored, clear, damaged, prune, stored
from .options import JsonOption

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def cache() -> None:
    """List, verify, prune and clear the kernel cache; other processes may build and load meanwhile."""


@app.command("list")
def list_entries(as_json: JsonOption = False) -> None:
    """List compiled kernels, those of other versions of cutlass_sk included."""
    kernels, found = Cache(), stored(Cache())
    if as_json:
        record = {"root": str(kernels.root), "bytes": sum(one.nbytes for one in found), "entries": [_record(one) for one in found]}
        print(json.dumps(record, indent=1))
        return
    if found:
        Console().print(_table(found))
    _say(f"{kernels.root}: {_kernels(len(found))}, {sum(one.nbytes for one in found):,} bytes")


@app.command()
def verify() -> None:
    """Check every kernel against its digest, as loading it does. Exit status 1 if one would not be loaded."""
    kernels = Cache()
    broken, found = damaged(kernels), [one for one in stored(kernels) if one.schema == SCHEMA]
    for one in found:
        if one.key in broken:
            _say(f"{one.name}: {one.path}: {broken[one.key]}")
    if broken:
        _say(f"{len(broken)} of {_kernels(len(found))} would be compiled again; `cutlass-sk cache prune` removes them")
        raise typer.Exit(1)
    _say(f"{kernels.root}: {_kernels(len(found))}, whole")


@app.command("prune")
def prune_entries(
    keep_days: Annotated[
        float | None, typer.Option("--keep-days", min=0, help="Keep what was used within so many days, to a day.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", min=0, help="Keep what was used last, so many bytes at most.")
    ] = None,
) -> None:
    """Remove kernels that are not used; damaged ones, and what killed builds left, in any case."""
    _report(prune(Cache(), keep_days, max_bytes))


@app.command("clear")
def clear_entries() -> None:
    """Remove all kernels, those of other versions of cutlass_sk included. What is being built stays."""
    _report(clear(Cache()))


def _report(removed: Removed) -> None:
    _say(f"{_kernels(removed.entries)} removed, {removed.nbytes:,} bytes; {_kernels(len(stored(Cache())))} kept")


def _record(one: Stored) -> dict[str, object]:
    return {**asdict(one), "path": str(one.path), "used": _day(one), "this_version": one.schema == SCHEMA}


def _table(found: list[Stored]) -> Table:
    """One entry a row."""
    table = Table(Column("kernel", overflow="fold"), "target", Column("bytes", justify="right"), "last used", "layout")
    for one in found:
        layout = "this version's" if one.schema == SCHEMA else f"{one.schema}, another version's"
        table.add_row(one.name, one.architecture and f"sm_{one.architecture}", f"{one.nbytes:,}", _day(one), layout)
    return table


def _day(one: Stored) -> str:
    try:
        return datetime.fromtimestamp(one.used, timezone.utc).date().isoformat()
    except (ValueError, OverflowError):  # a clock far off
        return "unknown"


def _kernels(count: int) -> str:
    return f"{count:,} kernel" if count == 1 else f"{count:,} kernels"


def _say(text: str) -> None:
    Console().print(text, highlight=False, markup=False, soft_wrap=True)
