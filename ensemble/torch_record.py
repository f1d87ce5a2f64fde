"""PyTorch's face measured: what a call costs, whether threads and streams disturb each other, what stays in memory, and a language
model whose products are routed to our kernels.

    python -m cutlass_sk.ensemble.torch_record -o results/h200/torch.json

Each part runs in a process of its own, with a limit: one that fails, crashes or hangs is an error in the record, and the others
still run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from cutlass_sk import packing
from cutlass_sk.device import resolve
from cutlass_sk.ensemble import torch_load, torch_model
from cutlass_sk.ensemble.call_cost import cpu
from cutlass_sk.ensemble.decoder import Shape
from cutlass_sk.ensemble.torch_load import Scale
from cutlass_sk.provenance import output_argument, provenance, save

METHOD = (
    "calls: as ensemble/call_cost.py, all in one process; stress: against the bits of the same calls one after the other, outputs "
    "poisoned; model: milliseconds by the clock, GPU waited for, contenders in turns, medians"
)


FULL = Scale()
DRY = Scale("cpu", 16, 1, ((5, 7, 9), (8, 8, 8)), 2, 2, 2, 20, Shape(32, 64, 1, 2, 1, 50, 2, 8, 4, 3), 1, "eager")
"""On the CPU's reference: every line of a part, and figures that mean nothing."""


def kernels(scale: Scale) -> None:
    """Builds what the other parts launch, side by side."""
    if scale.device == "cuda":
        asked = torch_load.asked(scale)
        for dtype in DTYPES:
            asked += torch_model.asked(dtype, scale)
        torch_load.build_ahead(asked)
        packing.build(resolve(None))


DTYPES = (torch.float16, torch.bfloat16)
PARTS: dict[str, tuple[float, Callable[[Scale], Any]]] = {
    "kernels": (120, kernels),
    "calls": (40, torch_load.calls),
    "load": (60, torch_load.load),
    **{f"model {str(dtype).removeprefix('torch.')}": (90, partial(torch_model.model, dtype)) for dtype in DTYPES},
}
"""Part -> the most seconds that it may take, and what it does."""


def in_a_process(part: str, seconds: float, dry_run: bool) -> tuple[Any, str]:
    """(what a part found, "") or (None, what went wrong)."""
    with TemporaryDirectory(prefix="cutlass_sk-") as folder:
        file = Path(folder) / "part.json"
        command = [sys.executable, "-m", "cutlass_sk.ensemble.torch_record", "--part", part, "-o", str(file)]
        try:
            done = subprocess.run(
                [*command, *(["--dry-run"] if dry_run else [])], stderr=subprocess.PIPE, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return None, f"ended after {seconds:.0f} s by the watchdog"
        sys.stderr.write(done.stderr)
        if done.returncode or not file.exists():
            said = done.stderr.strip().splitlines()
            return None, f"status {done.returncode}" + (f": {said[-1][:400]}" if said else "")
        return json.loads(file.read_text()), ""


def assembled(found: dict[str, Any], errors: dict[str, str], origin: dict[str, Any]) -> dict[str, Any]:
    """The record; what a part did not find is not in it."""
    return {
        "provenance": origin,
        **(found.get("calls") or {}),
        "stress": found.get("load"),
        "model": [value for part, value in found.items() if part.startswith("model") and value],
        "errors": errors,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cutlass_sk.ensemble.torch_record", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("-o", "--output", type=output_argument, help="the JSON record to write")
    parser.add_argument("--commit", help="commit to record; default what git says")
    parser.add_argument("--seconds", type=float, default=150, help="for all parts; one that begins late has what is left")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--dry-run", action="store_true", help="every part, small and on the CPU; its figures mean nothing")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part:
        save(options.output, json.dumps(PARTS[options.part][1](DRY if options.dry_run else FULL)))
        return 0
    if options.output is None and not options.dry_run:
        parser.error("-o FILE says where the record goes")
    if not torch.cuda.is_available() and not options.dry_run:
        print("measuring needs a CUDA GPU; --dry-run goes through all parts without one", file=sys.stderr)
        return 2
    found: dict[str, Any] = {}
    errors: dict[str, str] = {}
    begin = time.monotonic()
    for part in options.parts:
        began = time.monotonic()
        left = options.seconds - (began - begin)
        found[part], error = in_a_process(part, max(1.0, min(PARTS[part][0], left)), options.dry_run)
        within = (found[part] or {}).get("errors", {})
        errors |= {part: error} if error else {f"{part}, {name}": text for name, text in within.items()}
        print(f"{part}: {error or json.dumps(found[part])}, {time.monotonic() - began:.0f} s", flush=True)
    origin = {**provenance("ensemble/torch_record.py", options.commit), "method": METHOD, "cpu": cpu()}
    if options.dry_run:
        origin["dry_run"] = "no figure means anything"
    record = json.dumps(assembled(found, errors, origin), indent=1) + "\n"
    if options.output:
        save(options.output, record)
    else:
        print(record)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
