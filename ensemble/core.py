"""Stream-K, the same kernel data-parallel and cuBLAS on 30 shapes: ``python -m cutlass_sk.ensemble.core -o FILE``

For each dtype and generation one kernel, the first of its set, runs with the planner's plan and with the best data-parallel one,
each at the tile width that suits it. All three contenders are checked against the exact product before they are timed.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch

from cutlass_sk import Gemm
from cutlass_sk.dtypes import torch_dtype
from cutlass_sk.ensemble.accuracy import max_error, reference
from cutlass_sk.generator.spec import Generation
from cutlass_sk.plan import Plan
from cutlass_sk.provenance import output_argument, provenance, save
from cutlass_sk.timing import Launch, buffer_sets, time_us

# Few tiles and long k; short and wide; around whole waves of 128x128 tiles on 132 SMs; squares; model layers; ragged.
SHAPES: tuple[tuple[int, int, int], ...] = (
    (128, 128, 4096),
    (128, 128, 16384),
    (128, 128, 65536),
    (256, 128, 32768),
    (256, 256, 16384),
    (384, 256, 8192),
    (512, 512, 8192),
    (512, 512, 32768),
    (256, 3584, 8192),
    (128, 8192, 8192),
    (64, 4096, 4096),
    (16, 4096, 14336),
    (768, 2944, 4096),
    (1408, 1536, 4096),
    (1536, 1536, 4096),
    (1664, 1408, 6144),
    (2176, 2048, 2048),
    (2304, 2048, 1024),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (512, 11008, 4096),
    (2048, 5120, 1280),
    (4096, 1024, 4096),
    (1000, 1000, 1000),
    (1504, 696, 3000),
    (776, 6216, 4808),
    (3000, 200, 5000),
)

METHOD = (
    "back-to-back launches in a CUDA graph over rotating buffers beyond L2, contenders interleaved, medians (cutlass_sk/timing.py)"
)

KINDS: tuple[tuple[str, str, Generation], ...] = (
    ("float16", "float16", "sm90a"),
    ("float16", "float32", "sm90a"),
    ("float64", "float64", "sm90a"),
    ("float16", "float16", "sm80"),
    ("float16", "float32", "sm80"),
    ("float64", "float64", "sm80"),
)


@dataclass(frozen=True)
class Operands:
    """One buffer set: a (m, k) and b (k, n) row-major, and an output for each contender in turn."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor


def measure(m: int, n: int, k: int, dtype: str, out_dtype: str, generation: Generation) -> dict[str, Any]:
    """One row: microseconds and largest element errors of the contenders."""
    inputs, out = torch_dtype(dtype), torch_dtype(out_dtype)
    set_bytes = (m * k + k * n) * inputs.itemsize + m * n * out.itemsize
    sets = [
        Operands(
            torch.randn(m, k, device="cuda", dtype=inputs),
            torch.randn(k, n, device="cuda", dtype=inputs),
            torch.empty(m, n, device="cuda", dtype=out),
        )
        for _ in range(buffer_sets(set_bytes))
    ]
    gemm = Gemm(dtype, out_dtype=out_dtype, generation=generation, kernels=1)
    stream_k = gemm.plan(m, n, k)
    data_parallel = gemm.plan(m, n, k, decomposition="data_parallel")

    def ours(plan: Plan) -> Launch:
        return lambda number: gemm.run(sets[number].a, sets[number].b, sets[number].c, plan=plan)

    def cublas(number: int) -> None:
        operands = sets[number]
        if inputs == out:
            torch.mm(operands.a, operands.b, out=operands.c)
        else:
            torch.mm(operands.a, operands.b, out_dtype=out, out=operands.c)

    contenders: dict[str, Launch] = {"stream_k": ours(stream_k), "data_parallel": ours(data_parallel), "cublas": cublas}
    exact = reference(sets[0].a, sets[0].b)
    errors = {}
    for name, launch in contenders.items():
        sets[0].c.fill_(float("nan"))
        launch(0)
        errors[name] = max_error(sets[0].c, exact)
    del exact
    times = time_us(contenders, len(sets))
    return {
        "dtype": dtype,
        "out_dtype": out_dtype,
        "generation": generation,
        "m": m,
        "n": n,
        "k": k,
        "stream_k_us": round(times["stream_k"], 3),
        "data_parallel_us": round(times["data_parallel"], 3),
        "cublas_us": round(times["cublas"], 3),
        "max_error": max(errors["stream_k"], errors["data_parallel"]),
        "cublas_max_error": errors["cublas"],
        "kernel": stream_k.kernel.name,
        "decomposition": stream_k.decomposition,
        "grid": stream_k.grid,
        "sk_tiles": stream_k.sk_tiles,
        "sk_units": stream_k.sk_units,
        "splits": stream_k.splits,
        "predicted_us": round(stream_k.predicted_time_us, 3),
    }


def line(row: dict[str, Any]) -> str:
    """One row for the terminal."""
    over_data_parallel, over_cublas = row["data_parallel_us"] / row["stream_k_us"], row["cublas_us"] / row["stream_k_us"]
    return (
        f"{row['dtype']:8} {row['out_dtype']:8} {row['generation']:6} {row['m']:5} {row['n']:5} {row['k']:6}"
        f"{row['stream_k_us']:11.2f} us  {over_data_parallel:6.2f} x data-parallel  {over_cublas:5.2f} x cuBLAS"
        f"  error {row['max_error']:.2e} ({row['cublas_max_error']:.2e})"
    )


HEADLINES: tuple[tuple[int, int, int], ...] = (
    (128, 128, 16384),
    (128, 128, 65536),
    (512, 512, 8192),
    (256, 3584, 8192),
    (1536, 1536, 4096),
    (1024, 1024, 1024),
    (8192, 8192, 8192),
)
"""Shapes that the README shows; its last row is the geometric mean over all."""


def markdown(record: dict[str, Any]) -> str:
    """The README's table of a record: time over data-parallel and over cuBLAS, above 1 is faster than it."""
    columns = [(dtype, out, generation) for dtype, out, generation in KINDS if out != "float32"]
    heading = " | ".join(f"{dtype} `{generation}`" for dtype, _, generation in columns)
    lines = [f"| m x n x k | {heading} |", "|---" * (len(columns) + 1) + "|"]
    rows = {(row["dtype"], row["out_dtype"], row["generation"], row["m"], row["n"], row["k"]): row for row in record["rows"]}

    def cell(chosen: list[dict[str, Any]]) -> str:
        ratios = (geometric_mean(row[other] / row["stream_k_us"] for row in chosen) for other in ("data_parallel_us", "cublas_us"))
        return "{:.2f}, {:.2f}".format(*ratios)

    for m, n, k in HEADLINES:
        lines.append(f"| {m} x {n} x {k} | " + " | ".join(cell([rows[(*column, m, n, k)]]) for column in columns) + " |")
    means = (cell([row for key, row in rows.items() if key[:3] == column]) for column in columns)
    lines.append(f"| geometric mean of {len(SHAPES)} | " + " | ".join(means) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=output_argument, help="the JSON record to write")
    parser.add_argument("--table", type=Path, metavar="RECORD", help="print a record as the README's table and measure nothing")
    parser.add_argument("--commit", help="commit to record; default what git says")
    parser.add_argument("--limit", type=int, default=len(SHAPES), help="only the first LIMIT shapes")
    parser.add_argument("--dry-run", action="store_true", help="print the plans and measure nothing; needs no GPU")
    options = parser.parse_args(arguments)
    if options.table:
        print(markdown(json.loads(options.table.read_text())))
        return 0
    if options.output is None and not options.dry_run:
        parser.error("-o FILE says where the record goes")
    shapes = SHAPES[: options.limit]
    if options.dry_run:
        for dtype, out_dtype, generation in KINDS:
            for shape in shapes:
                print(dtype, out_dtype, Gemm(dtype, out_dtype=out_dtype, generation=generation).plan(*shape))
        return 0
    if not torch.cuda.is_available():
        print("measuring needs a CUDA GPU; --dry-run prints the plans without one", file=sys.stderr)
        return 2
    rows = []
    for dtype, out_dtype, generation in KINDS:
        for shape in shapes:
            row = measure(*shape, dtype, out_dtype, generation)
            rows.append(row)
            print(line(row), flush=True)
            torch.cuda.empty_cache()
    record = {"provenance": {**provenance("ensemble/core.py", options.commit), "method": METHOD}, "rows": rows}
    save(options.output, json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
