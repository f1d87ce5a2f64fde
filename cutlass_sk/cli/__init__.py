"""The command line, ``cutlass-sk``: one file a command."""

from __future__ import annotations

import io
import signal
import sys
from typing import Annotated

import torch
import typer
from rich.console import Console

from .. import __version__
from ..errors import Error
from .build import build
from .cache import app as cache
from .calibrate import calibrate
from .demo import demo
from .doctor import doctor
from .explain import explain
from .model import model
from .plan import plan
from .run import run
from .schedule import schedule
from .trace import trace

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (doctor, plan, explain, schedule, model, trace, run, build, calibrate, demo):
    app.command()(command)
app.add_typer(cache, name="cache")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Stream-K GEMM for NVIDIA GPUs: plan, compile, run and check its kernels."""


def main() -> None:
    """Runs the command line; the package's own errors, and a full GPU, end it with one red message and exit status 2."""
    # A build that is told to end takes its compilers with it, as it does at an interrupt.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may be no text in this encoding
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="cutlass-sk")
    except (Error, torch.OutOfMemoryError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
