"""The whole command line: the library's commands, and those that compare. One file a command, as in ``cutlass_sk.cli``."""

from cutlass_sk.cli import app, main

from .bench import app as bench
from .corpus import corpus
from .report import report
from .size import size

for command in (size, corpus, report):
    app.command()(command)
app.add_typer(bench, name="bench")

__all__ = ["app", "main"]
