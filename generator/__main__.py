"""``python -m cutlass_sk.generator list [--dtype DTYPE] | show NAME | emit NAME``"""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import fields

from .catalog import DTYPES, EVERY_GENERATION, find, kernels
from .spec import ARCHITECTURES, PROVED, dtype_named
from .text import text_of


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cutlass_sk.generator", description="The kernels and their CUDA C++ text.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="names of all kernels, one a line")
    listing.add_argument("--dtype", type=dtype_named, choices=tuple(dict.fromkeys(dtype for dtype, _ in DTYPES)), help="of a and b")
    for command, text in (("show", "what a kernel is"), ("emit", "its CUDA C++ text, to standard output")):
        commands.add_parser(command, help=text).add_argument("name")
    options = parser.parse_args(arguments)
    if options.command == "list":
        for spec in kernels(EVERY_GENERATION):
            if options.dtype in (None, spec.dtype):
                print(spec.name)
        return 0
    try:
        spec = find(options.name)
    except KeyError as error:
        print(error.args[0], file=sys.stderr)
        return 2
    if options.command == "emit":
        print(text_of(spec.binary), end="")
        return 0
    shown = {field.name: getattr(spec, field.name) for field in fields(spec)}
    shown |= {"widths": " ".join(map(str, spec.widths)), "accumulator": spec.accumulator}
    shown |= {"alignment": spec.alignment, "alignment_c": spec.alignment_c}
    shown |= {"partial_bytes": spec.partial_bytes}
    shown |= {"architectures": ", ".join(f"sm_{target} ({PROVED[target]})" for target in ARCHITECTURES[spec.generation])}
    print(spec.name)
    for key, value in shown.items():
        print(f"  {key:14} {value}")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... list | head` ends quietly
    sys.exit(main())
