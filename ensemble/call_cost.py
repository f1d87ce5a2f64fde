"""CPU time of one call: what the interpreter's thread pays before it can go on, whatever the GPU does.

Contenders take turns in one process, in batches of calls that fit into the GPU's queue; the GPU is waited for between batches, and
only the loop that issues the calls is timed. A record gives medians over the batches, in microseconds a call, loop included.

`native` is Gemm.run through `cutlass_sk._native`, `python` the same through ctypes. Other bindings were considered, not measured:
nanobind needs Python's headers as well, brings a runtime, and sees a tensor no cheaper than through DLPack's C functions; tvm-ffi
would be one more dependency of every user.

    python -m cutlass_sk.ensemble.call_cost -o FILE
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import repeat
from pathlib import Path
from statistics import median

import torch

import cutlass_sk
from cutlass_sk import Gemm, extension
from cutlass_sk.call import Calls, NativeCalls, PythonCalls
from cutlass_sk.dtypes import torch_dtype
from cutlass_sk.provenance import output_argument, provenance, save

METHOD = "CPU time of the issuing loop, contenders interleaved, GPU idle before each batch, medians (ensemble/call_cost.py)"

DTYPES = ("float16", "float64")
SHAPE = (256, 256, 256)
"""Small: the GPU keeps up."""
SHARED_SHAPE = (128, 128, 4096)
"""One tile or a few and a long k: its plan shares tiles, and a call needs a workspace."""
KERNELS = 1
"""The first kernel alone: it does not add up in clusters, which need no workspace."""
CALLS, BATCHES = 200, 200
"""A stream's queue takes 1024 launches."""

Launch = Callable[[], object]


def contenders(dtype: str) -> dict[str, Launch]:
    """Calls by name; each has run once, so that it is known."""
    launches: dict[str, Launch] = {"empty loop": lambda: None}
    for label, (m, n, k) in (("", SHAPE), (" shared tiles", SHARED_SHAPE)):
        inputs = torch_dtype(dtype)
        a, b = torch.randn(m, k, device="cuda", dtype=inputs), torch.randn(k, n, device="cuda", dtype=inputs)
        c = torch.empty(m, n, device="cuda", dtype=inputs)
        launches[f"mm(out=){label}"] = partial(torch.mm, a, b, out=c)
        launches[f"mm{label}"] = partial(torch.mm, a, b)
        launches[f"torch.matmul{label}"] = partial(torch.matmul, a, b)
        launches[f"cutlass_sk.matmul, all kernels{label}"] = partial(cutlass_sk.matmul, a, b)
        for name, calls in tables(dtype).items():
            gemm = Gemm(dtype, kernels=KERNELS)
            if label and gemm.plan(m, n, k).workspace_bytes == 0:
                continue
            gemm._calls = calls
            launches[f"run(a, b, c) {name}{label}"] = partial(gemm.run, a, b, c)
            launches[f"run(a, b) {name}{label}"] = partial(gemm.run, a, b)
    for launch in launches.values():
        launch()
    return launches


def tables(dtype: str) -> dict[str, Calls]:
    """The ways to repeat a call that there are here."""
    inputs = torch_dtype(dtype)
    known: dict[str, Calls] = {} if extension.native is None else {"native": NativeCalls(inputs, inputs)}
    return {**known, "python": PythonCalls(inputs)}


def measure(launches: Mapping[str, Launch], batches: int, synchronise: Callable[[], object]) -> dict[str, float]:
    """Median microseconds a call."""
    times: dict[str, list[float]] = {name: [] for name in launches}
    for batch in range(batches + 1):
        for name, launch in launches.items():
            synchronise()
            begin = time.perf_counter_ns()
            for _ in repeat(None, CALLS):
                launch()
            elapsed = time.perf_counter_ns() - begin
            if batch:  # the first one warms up
                times[name].append(elapsed / CALLS / 1e3)
    return {name: round(median(values), 3) for name, values in times.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=output_argument, help="the JSON record to write")
    parser.add_argument("--commit", help="commit to record; default what git says")
    parser.add_argument("--batches", type=int, default=BATCHES, help="how many batches of each contender")
    parser.add_argument("--dry-run", action="store_true", help="print the plans and measure nothing; needs no GPU")
    options = parser.parse_args(arguments)
    if options.output is None and not options.dry_run:
        parser.error("-o FILE says where the record goes")
    if options.dry_run:
        for dtype in DTYPES:
            for shape in (SHAPE, SHARED_SHAPE):
                print(dtype, Gemm(dtype, kernels=KERNELS).plan(*shape))
        print(f"native extension: {extension.missing or 'there'}; {CALLS} calls a batch, {options.batches} batches")
        return 0
    if not torch.cuda.is_available():
        print("measuring needs a CUDA GPU; --dry-run prints the plans without one", file=sys.stderr)
        return 2
    rows = {}
    for dtype in DTYPES:
        rows[dtype] = measure(contenders(dtype), options.batches, torch.cuda.synchronize)
        for name, value in rows[dtype].items():
            print(f"{dtype:8} {name:36} {value:8.2f} us", flush=True)
    protocol = {"calls": CALLS, "batches": options.batches, "shape": SHAPE, "shared_shape": SHARED_SHAPE, "unit": "us a call"}
    origin = {**provenance("ensemble/call_cost.py", options.commit), "method": METHOD, "cpu": cpu()}
    save(options.output, json.dumps({"provenance": origin, "protocol": protocol, "rows": rows}, indent=1))
    return 0


def cpu() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


if __name__ == "__main__":
    sys.exit(main())
