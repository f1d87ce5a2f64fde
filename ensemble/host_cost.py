"""What deciding and calling cost on the host, and how large a kernel set is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch

from cutlass_sk import Gemm
from cutlass_sk.cli.size import device_code_bytes
from cutlass_sk.device import Device
from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.generator.spec import KernelSpec, Layout, binaries_of
from cutlass_sk.jit.build import build_one

CALLS, BATCHES = 200, 25
SIZE = 256


def decide_us(gemm: Gemm, problems: Sequence[Problem]) -> dict[str, float]:
    """Median microseconds of ``Gemm.plan`` on a problem that it meets for the first time, and on one that it knows.

    ``problems`` must be different ones, new to ``gemm``, and fewer than it keeps plans for.
    """
    gemm.plan(31, 33, 37)  # constants are looked up once

    def each() -> float:
        times = []
        for problem in problems:
            m, n, k = problem.m, problem.n, problem.k
            begin = perf_counter_ns()
            gemm.plan(m, n, k)
            times.append(perf_counter_ns() - begin)
        return median(times) / 1e3

    new = each()
    return {"decide_us_new": round(new, 3), "decide_us_known": round(each(), 3)}


def call_us(gemm: Gemm, layouts: tuple[Layout, Layout]) -> dict[str, float]:
    """Microseconds of CPU that a loop takes to issue one 256^3 product: ``run`` and ``torch.mm(out=)`` into c, and ``torch.mm``.

    Batches of 200 calls, waited for in between and interleaved; medians.
    """
    a = _random(gemm.dtype, layouts[0])
    b = _random(gemm.dtype, layouts[1])
    c = torch.empty(SIZE, SIZE, dtype=gemm.out_dtype, device="cuda")
    if gemm.dtype == gemm.out_dtype:
        calls: dict[str, Callable[[], object]] = {
            "run_cpu_us": lambda: gemm.run(a, b, c),
            "torch_mm_cpu_us": lambda: torch.mm(a, b, out=c),
            "torch_mm_alloc_cpu_us": lambda: torch.mm(a, b),
        }
    else:
        out = gemm.out_dtype
        calls = {
            "run_cpu_us": lambda: gemm.run(a, b, c),
            "torch_mm_cpu_us": lambda: torch.mm(a, b, out_dtype=out, out=c),
            "torch_mm_alloc_cpu_us": lambda: torch.mm(a, b, out_dtype=out),
        }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for batch in range(BATCHES + 1):
        for name, call in calls.items():
            torch.cuda.synchronize()
            begin = perf_counter_ns()
            for _ in range(CALLS):
                call()
            taken = (perf_counter_ns() - begin) / 1e3 / CALLS
            if batch:
                times[name].append(taken)
    torch.cuda.synchronize()
    return {name: round(median(values), 3) for name, values in times.items()}


def sizes(kernels: Sequence[KernelSpec], device: Device) -> dict[str, Any]:
    """Names of the binaries, bytes of their GPU code, and of their shared objects, each kernel in its own."""
    binaries = binaries_of(kernels)
    libraries = [build_one(spec, device.architecture(spec)).library for spec in binaries]
    return {
        "kernels": [spec.name for spec in binaries],
        "bytes": sum(map(device_code_bytes, libraries)),
        "shared_object_bytes": sum(library.stat().st_size for library in libraries),
    }


def _random(dtype: torch.dtype, layout: Layout) -> torch.Tensor:
    matrix = torch.randn(SIZE, SIZE, dtype=dtype, device="cuda")
    return matrix if layout == "t" else matrix.t()
