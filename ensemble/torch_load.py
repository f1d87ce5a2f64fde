"""Many calls of PyTorch's face: what one costs the interpreter, on many threads and streams, and what they leave in memory."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import cutlass_sk
from cutlass_sk import Gemm, prebuilt
from cutlass_sk.aten import Product
from cutlass_sk.device import resolve
from cutlass_sk.ensemble import call_cost
from cutlass_sk.ensemble.decoder import Shape
from cutlass_sk.generator.spec import Layout
from cutlass_sk.jit.build import build
from cutlass_sk.tracing import planned


@dataclass(frozen=True)
class Scale:
    """How much is done.

    device              ``cuda``, or ``cpu`` for a dry run
    side, batches       of the matrices whose calls are timed, and how many batches of calls
    shapes              m, n and k of the other calls
    threads, streams    of the stress, and ``launches`` of each thread on each stream
    calls               after which memory is looked at
    model, repeats      what is multiplied in a model, and how often it is timed
    backend             of torch.compile
    """

    device: str = "cuda"
    side: int = 256
    batches: int = 200
    shapes: tuple[tuple[int, int, int], ...] = (
        *((136, 72, 9000), (520, 392, 4104), (1096, 584, 1240), (64, 4096, 512), (256, 256, 256), (200, 3000, 768)),
        *((1, 512, 2048), (37, 200, 333), (64, 64, 128), (64, 128, 64)),
    )
    threads: int = 8
    streams: int = 4
    launches: int = 1000
    calls: int = 100_000
    model: Shape = field(default_factory=Shape)
    repeats: int = 15
    backend: str = "inductor"

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def stream(self) -> torch.cuda.Stream | None:
        """A new one; the CPU has none."""
        return torch.cuda.Stream() if self.device == "cuda" else None


def build_ahead(products: Counter[Product]) -> None:
    """Compiles the kernels that are planned for ``products``, side by side, but for those that came compiled."""
    device = resolve(None)
    rows = planned(products, device).rows
    specs = {row.plan.kernel.with_layouts(*row.product.layouts).binary for row in rows if row.plan is not None}
    for architecture in sorted({device.architecture(spec) for spec in specs}):
        of_it = [spec for spec in specs if device.architecture(spec) == architecture]
        build([spec for spec in of_it if prebuilt.find(spec, architecture) is None], architecture, progress=False)


def asked(scale: Scale) -> Counter[Product]:
    """The products of ``calls`` and ``mixed``."""
    half, shapes = torch.float16, (*scale.shapes, (scale.side,) * 3, (scale.side, scale.side, scale.side - 1))
    layouts: tuple[Layout, ...] = ("t", "n")
    return Counter(Product("mm", 1, *shape, half, half, ("t", layout), "cuda") for shape in shapes for layout in layouts)


def calls(scale: Scale) -> dict[str, float]:
    """Microseconds that the interpreter pays for a float16 product, ours and torch's; ``odd``: of operands that are packed."""
    size = scale.side
    a, b, c = (torch.randn(size, size, device=scale.device).half() for _ in range(3))
    bias, gemm = torch.randn(size, device=scale.device).half(), Gemm("float16")
    odd_a, odd_b = (torch.randn(*shape, device=scale.device).half() for shape in ((size, size - 1), (size - 1, size)))
    launches: dict[str, Callable[[], object]] = {
        "torch_matmul_cpu_us": partial(torch.matmul, a, b),
        "matmul_cpu_us": partial(cutlass_sk.matmul, a, b),
        "run_cpu_us": partial(gemm.run, a, b),
        "torch_mm_out_cpu_us": partial(torch.mm, a, b, out=c),
        "run_into_c_cpu_us": partial(gemm.run, a, b, c),
        "torch_mm_odd_cpu_us": partial(torch.mm, odd_a, odd_b, out=c),
        "run_odd_into_c_cpu_us": partial(gemm.run, odd_a, odd_b, c),
        "torch_linear_cpu_us": partial(torch.nn.functional.linear, a, b, bias),
        "linear_cpu_us": partial(cutlass_sk.linear, a, b, bias),
    }
    for launch in launches.values():
        launch()
    return call_cost.measure(launches, scale.batches, scale.wait)


def mixed(scale: Scale) -> list[Callable[[], torch.Tensor]]:
    """Float16 products of all shapes, each by four functions and into memory of its own; without gradients."""
    gemm = Gemm("float16")
    made: list[Callable[[], torch.Tensor]] = []
    for m, n, k in scale.shapes:
        a, b = torch.randn(m, k, device=scale.device).half(), torch.randn(k, n, device=scale.device).half()
        weight, bias = b.t().contiguous(), torch.randn(n, device=scale.device).half()
        made += [partial(gemm.run, a, b), partial(cutlass_sk.matmul, a, b), partial(cutlass_sk.linear, a, weight, bias)]
        made.append(partial(_into_poison, gemm, a, b))
    scale.wait()
    return made


def _into_poison(gemm: Gemm, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    c = torch.full((a.shape[0], b.shape[1]), float("nan"), dtype=a.dtype, device=a.device)
    return gemm.run(a, b, c)


def load(scale: Scale) -> dict[str, Any]:
    """``stress``, then ``memory``."""
    return {**stress(scale), **memory(scale)}


def stress(scale: Scale) -> dict[str, Any]:
    """Launches of mixed shapes from threads that share their streams, and how many gave other bits than by themselves."""
    jobs = mixed(scale)
    expected = [job() for job in jobs]
    streams = [scale.stream() for _ in range(scale.streams)]
    scale.wait()

    def worker(number: int) -> int:
        wrong = []
        for stream in streams:
            with torch.cuda.stream(stream):
                wrong.append(torch.zeros((), dtype=torch.int64, device=scale.device))
        for turn in range(scale.launches):
            for index, stream in enumerate(streams):
                job = (turn * 7 + index * 3 + number) % len(jobs)
                with torch.cuda.stream(stream):
                    made = jobs[job]()
                    wrong[index] += (made != expected[job]).any()
                    made.fill_(float("nan"))  # for whoever gets its memory next
        scale.wait()
        return sum(map(int, wrong))

    begin = time.monotonic()
    with ThreadPoolExecutor(scale.threads) as pool:
        mismatches = sum(pool.map(worker, range(scale.threads)))
    launches = scale.threads * scale.streams * scale.launches
    seconds = round(time.monotonic() - begin, 2)
    return {"threads": scale.threads, "streams": scale.streams, "launches": launches, "mismatches": mismatches, "seconds": seconds}


def memory(scale: Scale) -> dict[str, int]:
    """Bytes that ``calls`` calls of mixed shapes add to what torch has allocated, the driver given away, and the process resident.

    Calls with gradients are among them. A twentieth goes before, for what is kept from then on.
    """
    jobs = mixed(scale)
    leaf = torch.randn(64, 128, device=scale.device).half().requires_grad_()
    jobs.append(partial(_with_gradient, leaf, torch.randn(128, 64, device=scale.device).half()))
    seen = []
    for count in (scale.calls // 20, scale.calls):
        for turn in range(count):
            jobs[turn % len(jobs)]()
        seen.append(_footprint(scale))
    before, after = seen
    return {"calls": scale.calls, **{f"{name}_growth_bytes": after[name] - before[name] for name in before}}


def _with_gradient(leaf: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (made,) = torch.autograd.grad(cutlass_sk.matmul(leaf, b).sum(), leaf)
    return made


def _footprint(scale: Scale) -> dict[str, int]:
    scale.wait()
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if scale.device != "cuda":
        return {"allocated": 0, "driver": 0, "resident": resident}
    free, total = torch.cuda.mem_get_info()
    return {"allocated": torch.cuda.memory_allocated(), "driver": total - free, "resident": resident}
