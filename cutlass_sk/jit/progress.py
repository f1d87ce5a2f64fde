"""What compiles and for how long, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext


@contextmanager
def show_progress(shown: bool | None, total: int) -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """Shows ``total`` compilations; yields a function whose context is the compilation of one named kernel.

    ``shown`` None means only if standard error is a terminal.
    """
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda name: nullcontext()
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        everything = progress.add_task("compiling kernels", total=total)

        @contextmanager
        def watch(name: str) -> Iterator[None]:
            one = progress.add_task(f"  {name}", total=1)
            yield
            progress.advance(one)
            progress.stop_task(one)
            progress.advance(everything)

        yield watch
