"""``cutlass-sk bench``: contenders measured on the problems of a corpus, and ``cutlass-sk bench merge``: shards as one table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from time import monotonic
from typing import Annotated, Literal

import torch
import typer
from rich.console import Console
from rich.table import Column
from rich.table import Table as Listing

from cutlass_sk.device import real, resolve
from cutlass_sk.ensemble import bench as made
from cutlass_sk.ensemble import contenders as known
from cutlass_sk.ensemble.bench_measure import MadeUp, Task
from cutlass_sk.ensemble.bench_store import LOG, Folder
from cutlass_sk.ensemble.bench_store import merge as merged
from cutlass_sk.ensemble.cli.report import table_path
from cutlass_sk.ensemble.clocks import Sampler
from cutlass_sk.ensemble.corpus import NAMES, by_name
from cutlass_sk.ensemble.planner_sweep import Budget
from cutlass_sk.ensemble.table import MADE_UP, Timing, check_writable, write
from cutlass_sk.errors import DeviceError
from cutlass_sk.generator.spec import dtype_named

app = typer.Typer(help="Measure contenders on the problems of a corpus. Needs a GPU, unless told to --dry-run.")
TIMINGS: dict[str, tuple[Timing, ...]] = {
    "back_to_back": ("back_to_back",),
    "isolated": ("isolated",),
    "both": ("back_to_back", "isolated"),
}


def pairs(text: str) -> list[str]:
    names = list(dict.fromkeys("_".join(map(dtype_named, name.split("_"))) for name in text.split(",")))
    if unknown := [name for name in names if name not in made.PAIRS]:
        raise typer.BadParameter(f"{unknown[0]!r} is no dtype; there are {', '.join(made.PAIRS)}, with commas between several")
    return names


def shard_of(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise typer.BadParameter(f"{text!r} is no shard; give i/n with i from 0 to n - 1")
    return int(index), int(count)


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder of what is measured; what it holds is not measured again."),
    ] = None,
    corpus: Annotated[str, typer.Option("--corpus", help=f"{', '.join(NAMES)}, or the path of a CSV file.")] = "paper",
    dtype: Annotated[str, typer.Option("--dtype", help=f"Commas between several: {', '.join(made.PAIRS)}.")] = "float16",
    contenders: Annotated[
        str, typer.Option("--contenders", help=f"Commas between several: {', '.join(known.CONTENDERS)}, {known.ONE_OF_ORACLE}each.")
    ] = ",".join(known.DEFAULT),
    timing: Annotated[
        Literal["back_to_back", "isolated", "both"], typer.Option("--timing", help="isolated: one launch at a time, cold L2.")
    ] = "back_to_back",
    isolated_every: Annotated[
        int, typer.Option("--isolated-every", min=1, metavar="N", help="Time only every N-th problem isolated.")
    ] = 1,
    layout: Annotated[
        Literal["tt", "tn", "nt", "nn"] | None,
        typer.Option("--layout", help="Layouts of a and b, for all problems.  \\[default: tn, and tt for float64]"),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only so many problems, drawn at random.")] = None,
    shard: Annotated[str, typer.Option("--shard", metavar="i/n", help="Every n-th problem from the i-th on, i from 0.")] = "0/1",
    budget_seconds: Annotated[
        float | None, typer.Option("--budget-seconds", min=0.0, help="Stop after so long, not counting compilation.")
    ] = None,
    table: Annotated[
        bool, typer.Option("--table/--no-table", help="Write times.parquet in the end, or leave it to bench merge.")
    ] = True,
    commit: Annotated[str | None, typer.Option("--commit", help="Commit to record.  \\[default: what git says]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan everything and make the times up; needs no GPU.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the contenders, and which of them run here.")] = False,
) -> None:
    """Measure contenders on the problems of a corpus. The same command goes on where it stopped."""
    if context.invoked_subcommand is not None:
        return
    if listed:
        _print_contenders(Console(highlight=False))
        return
    if output is None:
        raise typer.BadParameter("-o FOLDER says where the times go")
    chosen = known.chosen([name.strip() for name in contenders.split(",")])
    dtypes, part = pairs(dtype), shard_of(shard)
    if not dry_run:
        if not torch.cuda.is_available():
            raise DeviceError("bench measures on a CUDA GPU and there is none; --dry-run makes the times up without one")
        for contender in chosen:
            if why := contender.unavailable():
                raise known.ContenderError(f"contender {contender.name!r} cannot be timed here: {why}")
    if table:
        check_writable()
    device = resolve("h200") if dry_run else real(torch.cuda.current_device())
    found = by_name(corpus, sms=device.sms)
    whole = made.ordered(found, limit)
    problems = whole[part[0] :: part[1]]
    if not problems:
        raise typer.BadParameter(f"--shard {shard} of {len(whole):,} problems is none; use fewer shards")
    setups = [made.setup_of(name, device, layout) for name in dtypes]
    source = made.source(found, device, chosen, layout=layout, dry=dry_run, commit=commit, shard=shard)
    todo = list(made.tasks(problems, setups, TIMINGS[timing], isolated_every))
    console = Console(stderr=True, highlight=False)

    def tell(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)

    with Folder(output, source) as folder:
        sizes = [problem for _, problem in problems]
        left = [task for whole in todo if (task := whole.without(folder.done)).timings]
        before = _problems_done(todo, folder)
        benches = {}
        stream = None if dry_run else torch.cuda.Stream()
        try:
            for setup in setups if left else ():
                opened = (MadeUp(setup), inf) if dry_run else made.opened(setup, sizes, chosen, stream)
                benches[setup.dtype, setup.out_dtype] = opened
            started = monotonic()
            with show(console, todo, left) as advance, Sampler() as sampler, made.undisturbed():
                budget = Budget(inf if budget_seconds is None else budget_seconds)
                ran = made.sweep(left, found.name, chosen, benches, folder, budget, advance, tell)
            seconds = monotonic() - started
            folder.sampled({} if dry_run else sampler.summary)
        finally:
            for one, _ in benches.values():
                one.close()
            written = folder.compact() if table else output / LOG
        done = _problems_done(todo, folder)
    rate = f", {ran.measured / len(setups) / seconds:,.1f} problems/s" if ran.measured else ""
    cut = "" if ran.complete else "; the budget is spent"
    mark = f"{MADE_UP}. " if dry_run else ""
    tell(f"{mark}{done:,} of {len(problems):,} problems, {done - before:,} of them now{rate}{cut}; {written}")


@app.command("merge")
def merge(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Folders of bench, or tables made of them (.parquet).")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.parquet", callback=table_path, help="The table to write.")
    ],
) -> None:
    """Shards as one table: folders of one GPU, commit, schema and corpus."""
    table = merged(folders)
    write(output, table)
    mark = f"{MADE_UP}. " if table.made_up else ""
    Console(stderr=True, highlight=False).print(f"{mark}{output}: {len(table.rows):,} times", soft_wrap=True, markup=False)


@contextmanager
def show(console: Console, todo: Sequence[Task], left: Sequence[Task]) -> Iterator[Callable[[Task], None]]:
    """Shows how many problems are done, how many a second, and the time that is left, where standard error is a terminal.

    A problem is done when all of its tasks in ``todo`` are; ``left`` are those to be measured. Yields what is told of each.
    """
    if not (sys.stderr.isatty() and left):
        yield lambda task: None
        return

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Task as Bar
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Bar) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.1f} problems/s")

    each = len(todo) / len({task.place for task in todo})
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("problems", total=len(todo) / each, completed=int((len(todo) - len(left)) / each))
        yield lambda task: progress.advance(bar, 1 / each)


def _problems_done(todo: Iterable[Task], folder: Folder) -> int:
    """Problems of which all that is to do is in the folder."""
    whole: dict[int, bool] = {}
    for task in todo:
        whole[task.place] = whole.get(task.place, True) and folder.done.issuperset(task.keys.values())
    return sum(whole.values())


def _print_contenders(console: Console) -> None:
    """The contenders, and under them why some cannot be timed here: each reason once."""
    each = f"the oracle's kernels, each a contender of its own: {', '.join(known.each_of_oracle())}"
    rows = [(one.name, one.description, one.unavailable()) for one in known.CONTENDERS.values()]
    rows.append((f"{known.ONE_OF_ORACLE}each", each, known.CONTENDERS["oracle"].unavailable()))
    table = Listing(Column("contender", no_wrap=True), Column("", overflow="fold"), "here")
    reasons: dict[str, list[str]] = {}
    for name, description, why in rows:
        table.add_row(name, description, "no" if why else "yes")
        if why:
            reasons.setdefault(why, []).append(name)
    console.print(table)
    for why, names in reasons.items():
        console.print(f"{'all' if len(names) == len(rows) else ', '.join(names)}: {why}")
