"""Hardware counters of chosen problems, ours beside cuBLAS: why a shape loses, as far as Nsight Compute can tell:
``python -m cutlass_sk.ensemble.counters -o counters.json --worst 20 --records results/h200/planner.records.jsonl.gz``

Starts ``ncu`` on itself. The child multiplies random normal data, each product twice by ours and by cuBLAS (``torch.mm``); the
second launch is profiled, within an NVTX range that says whose it is. The L2 is warm, each kernel runs alone (no programmatic
dependent launch) and is replayed for every few counters, so that times are not those of a sweep: compare ours with cuBLAS, not with
records.
The CSV and the manifest of what was launched are kept beside the output; ``--from-csv`` reads them again.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import time
from typing import Any

import torch
from rich.console import Console

from cutlass_sk import Gemm, planner
from cutlass_sk.device import Device, resolve
from cutlass_sk.ensemble import counters_report, ncu
from cutlass_sk.ensemble.counters_input import Shape, read_csv, read_manifest, seconds, shape, sweep_rows
from cutlass_sk.ensemble.ncu import NcuError
from cutlass_sk.ensemble.planner_report import DTYPES, pairs
from cutlass_sk.ensemble.planner_sweep import Contest
from cutlass_sk.ensemble.records import RecordError, Row
from cutlass_sk.errors import Error, reason
from cutlass_sk.generator.spec import ELEMENT_BYTES, Layout
from cutlass_sk.jit.build import build
from cutlass_sk.plan import Plan
from cutlass_sk.provenance import output_argument, provenance, save

METHOD = (
    "Nsight Compute, kernel replay, caches and clocks left alone, the second launch of each on warm data, launches apart "
    "(CUTLASS_SK_PDL=0); cuBLAS as torch.mm calls it (ensemble/counters.py)"
)
BUDGET_SECONDS = 400.0
CHILD_GRACE, NCU_GRACE = 20.0, 60.0
"""Seconds beyond the budget after which the child ends itself, so that ncu writes what it has, and after which ncu is stopped."""
ATTEMPTS = 3
"""Runs of ncu, each without the metrics that the one before refused."""
WIDTH = 200


def recorded(rows: Sequence[Row], dtype: str) -> dict[Shape, Row]:
    """Shape -> what was recorded back to back: cuBLAS's time over the set's, both times, the kernel; the worst first."""
    found: dict[Shape, Row] = {}
    for row, ratio in sorted(pairs(rows, "set_vs_cublas", dtype), key=lambda pair: pair[1]):
        own = row["set"]
        entry = {"ratio": ratio, "us": own["us"], "cublas_us": row["cublas"]["us"], "kernel": own["kernel"], "grid": own["grid"]}
        found.setdefault((row["m"], row["n"], row["k"]), entry)
    return found


def chosen(records: dict[Shape, Row], worst: int, own: Sequence[Shape]) -> list[Shape]:
    """A user's own shapes, then the worst of the records; each once."""
    return list(dict.fromkeys([*own, *list(records)[:worst]]))


def described(plan: Plan, record: Row | None, dtype: str, device: Device) -> dict[str, Any]:
    """A problem of the manifest: its plan, its tiles, and the least times that the GPU's peaks allow.

    The plan is today's; ``recorded`` says with which kernel the record was made.
    """
    element, out = (ELEMENT_BYTES[name] for name in DTYPES[dtype])
    m, n, k = plan.m, plan.n, plan.k
    tile_m, tile_n, _ = plan.kernel.tile
    names = ("decomposition", "grid", "sk_tiles", "sk_units", "dp_tiles", "splits", "peers", "fixup", "iters_per_tile", "waves")
    return {
        **{"m": m, "n": n, "k": k, "dtype": dtype, "ratio_recorded": None if record is None else round(record["ratio"], 4)},
        "recorded": record,
        "plan": {
            "kernel": plan.kernel.family,
            **{name: getattr(plan, name) for name in names},
            "raster": f"{plan.raster_order} {plan.raster_swizzle}",
            "predicted_us": round(plan.predicted_time_us, 3),
        },
        "tiles": [plan.tiles_m, plan.tiles_n],
        "padding": round(plan.tiles * tile_m * tile_n / (m * n), 4),
        "floors": {
            "compute_us": round(2 * m * n * k / device.tflops(dtype) / 1e6, 3),
            "dram_us": round(((m + n) * k * element + m * n * out) / device.bandwidth_gbs / 1e3, 3),
        },
    }


def planned(dtype: str, shapes: Sequence[Shape], device: Device) -> tuple[Contest, list[Plan]]:
    """What ``Gemm.run`` plans for operands that lie as those of the records."""
    contest = Contest(dtype, Gemm(DTYPES[dtype][0], out_dtype=DTYPES[dtype][1], device=device).kernels, device)
    return contest, [planner.make_plan(*sizes, contest.variants, device) for sizes in shapes]


def end_at(deadline: float) -> None:
    """Ends this process at the deadline, whatever it is doing."""
    watchdog = threading.Timer(max(0.0, deadline - time()), os._exit, (0,))
    watchdog.daemon = True
    watchdog.start()


def launch_all(manifest: dict[str, Any], deadline: float, path: Path | None = None) -> None:
    """The child: launches every problem until the deadline (seconds since the epoch), the second time for the profiler.

    Whose launches succeeded is noted in the manifest, and in its file at ``path``: ``profiled`` of a problem.
    """
    for entry in manifest["problems"]:
        entry["profiled"] = []
    dtype, out_dtype = DTYPES[manifest["dtype"]]
    gemm = Gemm(dtype, out_dtype=out_dtype)
    torch.manual_seed(0)
    for number, entry in enumerate(manifest["problems"]):
        if time() >= deadline:
            print(f"the budget is spent after {number} of {len(manifest['problems'])} problems", flush=True)
            return
        sizes = entry["m"], entry["n"], entry["k"]
        try:
            for name, launch in contenders(gemm, sizes, manifest["layouts"]).items():
                _profiled(ncu.label(number, name), launch)
                entry["profiled"].append(name)
                if path is not None:
                    save(path, json.dumps(manifest, indent=1) + "\n")
            said = "profiled"
        except (Error, RuntimeError) as error:
            said = f"failed: {error}"
        print(f"{' x '.join(map(str, sizes))} {said}", flush=True)


def _profiled(label: str, launch: Callable[[], object]) -> None:
    """Launches twice; the profiler sees the second one, within a range called ``label``."""
    launch()
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_push(label)
    torch.cuda.profiler.start()
    try:
        launch()
        torch.cuda.synchronize()
    finally:
        torch.cuda.profiler.stop()
        torch.cuda.nvtx.range_pop()


def contenders(gemm: Gemm, sizes: Shape, layouts: Sequence[Layout], device: str = "cuda") -> dict[str, Callable[[], object]]:
    """Ours and cuBLAS on the same operands."""
    m, n, k = sizes
    a, b = _random(gemm, m, k, layouts[0], device), _random(gemm, k, n, layouts[1], device)
    c = torch.empty(m, n, device=device, dtype=gemm.out_dtype)
    more = {} if gemm.dtype == gemm.out_dtype else {"out_dtype": gemm.out_dtype}
    return {"ours": partial(gemm.run, a, b, c), "cublas": partial(torch.mm, a, b, out=c, **more)}


def _random(gemm: Gemm, rows: int, columns: int, layout: Layout, device: str) -> torch.Tensor:
    if layout == "n":
        return torch.randn(columns, rows, device=device, dtype=gemm.dtype).t()
    return torch.randn(rows, columns, device=device, dtype=gemm.dtype)


def child_command(manifest: Path, deadline: float) -> list[str]:
    return [sys.executable, "-m", "cutlass_sk.ensemble.counters", "--child", str(manifest), "--deadline", f"{deadline:.1f}"]


def profile(tool: str, output: Path, deadline: float) -> str:
    """ncu's CSV of what the manifest beside ``output`` lists, as far as the time goes. NcuError where no launch was profiled."""
    log, said = output.with_suffix(".ncu.csv"), output.with_suffix(".ncu.log")
    environment = {**os.environ, "CUTLASS_SK_PDL": "0"}
    metrics = list(ncu.METRICS)
    for _ in range(ATTEMPTS):
        log.unlink(missing_ok=True)
        arguments = ncu.command(tool, log, child_command(output.with_suffix(".manifest.json"), deadline), metrics)
        status = ncu.run(arguments, said, environment, deadline + NCU_GRACE - time())
        text = log.read_text(errors="replace") if log.exists() else ""
        if status != 0:
            print(f"ncu {'was stopped at the timeout' if status is None else f'ended with {status}'}; see {said}", file=sys.stderr)
        if ncu.parse(text):
            return text
        everything = text + said.read_text(errors="replace")
        unknown = ncu.refused(everything, metrics)
        if not unknown or time() >= deadline:
            break
        print(f"ncu does not know {', '.join(unknown)}: again without", file=sys.stderr)
        metrics = [name for name in metrics if name not in unknown]
    raise NcuError(f"ncu profiled no launch: {ncu.failure(everything)}; {log} and {said} hold what was said")


def finish(manifest: dict[str, Any], text: str, output: Path | None) -> None:
    """Writes the JSON and prints the table."""
    found = counters_report.problems(manifest, ncu.parse(text))
    result = {"provenance": {**manifest["provenance"], "method": METHOD}, "problems": found}
    if output is not None:
        save(output, json.dumps(result, indent=1) + "\n")
    Console(width=WIDTH).print(counters_report.table(found, manifest["dtype"]))
    print(f"{len(found)} of {len(manifest['problems'])} problems profiled")


def measure(options: argparse.Namespace) -> int:
    deadline = time() + options.budget_seconds
    records = recorded(sweep_rows(options.records), options.dtype) if options.records else {}
    shapes = chosen(records, options.worst, options.shape)
    if not shapes:
        raise RecordError(
            f"there is no problem of {options.dtype} to profile; give --shape MxNxK, or --worst N with --records FILE"
        )
    device = resolve(None)
    contest, plans = planned(options.dtype, shapes, device)
    entries = [described(plan, records.get(sizes), options.dtype, device) for sizes, plan in zip(shapes, plans, strict=True)]
    output = options.output or Path("counters.json")
    path = output.with_suffix(".manifest.json")
    tool = shutil.which("ncu")
    if options.dry_run:
        print(shlex.join(ncu.command(tool or "ncu", output.with_suffix(".ncu.csv"), child_command(path, deadline))))
        for plan, entry in zip(plans, entries, strict=True):
            print(f"{plan}\n  recorded {entry['ratio_recorded']}, padding {entry['padding']:.2f}, floors {entry['floors']}")
        return 0
    if tool is None:
        raise NcuError("ncu is not on the PATH; install NVIDIA Nsight Compute (it comes with the CUDA toolkit), or use --dry-run")
    if device.index is None:
        raise NcuError("measuring needs a CUDA GPU; --dry-run prints the plans without one")
    source = provenance("ensemble/counters.py", options.commit)
    manifest = {"provenance": source, "dtype": options.dtype, "layouts": contest.layouts, "problems": entries}
    save(path, json.dumps(manifest, indent=1) + "\n")
    specs = list(dict.fromkeys(plan.kernel.with_layouts(*contest.layouts) for plan in plans))
    build(specs, device.architecture(specs[0]))  # here, so that compilers are not profiled
    text = profile(tool, output, deadline)
    finish(read_manifest(path), text, output)
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    made.add_argument(
        "-o", "--output", type=output_argument, help="the JSON to write; ncu's CSV, log and the manifest go beside it"
    )
    made.add_argument("--records", type=Path, help="records of planner_sweep, .jsonl or .gz")
    made.add_argument("--worst", type=int, default=0, metavar="N", help="the N problems of the records that lose most to cuBLAS")
    made.add_argument("--shape", type=shape, nargs="+", default=[], metavar="MxNxK", help="problems of your own, before those")
    made.add_argument("--dtype", choices=DTYPES, default="float16")
    made.add_argument(
        "--budget-seconds",
        type=seconds,
        default=BUDGET_SECONDS,
        help=f"after which no problem is begun (default {BUDGET_SECONDS:g})",
    )
    made.add_argument("--commit", help="commit to record; default what git says")
    made.add_argument("--dry-run", action="store_true", help="print ncu's command and the plans; needs no GPU")
    made.add_argument("--from-csv", type=Path, metavar="FILE", help="read ncu's CSV, with --manifest; measure nothing")
    made.add_argument("--manifest", type=Path, metavar="FILE", help="what was launched, written beside the CSV")
    made.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    made.add_argument("--deadline", type=float, default=0.0, help=argparse.SUPPRESS)
    return made


def main(arguments: list[str] | None = None) -> int:
    made = parser()
    options = made.parse_args(arguments)
    if options.worst < 0 or (options.worst and options.records is None and options.from_csv is None):
        made.error(f"--worst {options.worst} takes a number from 0 on, and --records FILE to choose from")
    if (options.from_csv is None) != (options.manifest is None):
        made.error("--from-csv and --manifest go together")
    given = {"--dry-run": options.dry_run, "--shape": options.shape, "--worst": options.worst, "--records": options.records}
    if options.from_csv and (used := [name for name, value in given.items() if value]):
        made.error(f"--from-csv measures nothing and reads the problems of the manifest; leave {', '.join(used)} out")
    if options.output is None and not (options.dry_run or options.from_csv or options.child):
        made.error("-o FILE says where the record goes")
    try:
        if options.child:
            end_at(options.deadline + CHILD_GRACE)
            launch_all(read_manifest(options.child), options.deadline, options.child)
        elif options.from_csv:
            finish(read_manifest(options.manifest), read_csv(options.from_csv), options.output)
        else:
            return measure(options)
    except OSError as error:
        print(f"{error.filename or 'a file'} cannot be used: {reason(error)}", file=sys.stderr)
        return 2
    except (Error, NcuError, RecordError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
