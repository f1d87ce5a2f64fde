"""``cutlass-sk demo``: the whole way of a product, on what this machine has."""

from __future__ import annotations

import sys
import time

import torch
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from ..device import real
from ..errors import DeviceError, Error
from ..gemm import Gemm
from ..generator.catalog import families
from ..jit.build import build_one
from ..kernel import Kernel
from ..reference import execute
from ..timeline import timeline
from .compare import METHOD, compare, comparison_table, compile_kernels
from .drawing import gantt, legend
from .planned import Planned, plan_problem, why
from .size import device_code_bytes

SHAPES = {
    "few tiles and a long k": (128, 128, 16384),
    "one and a bit waves": (1536, 1536, 4096),
    "short and wide": (256, 3584, 8192),
    "large square": (8192, 8192, 8192),
}
DRAWN = (192, 192, 512)
"""Nine tiles of 64x64, as many as in Figure 2 of the Stream-K paper, on a GPU of four SMs."""
BAR = 20


def demo() -> None:
    """Plan, compile, run and check a few instructive products; without a GPU everything but the run."""
    console = Console()
    if _gpu_runs_kernels(console):
        _on_gpu(console)
    else:
        _without_gpu(console)


def _gpu_runs_kernels(console: Console) -> bool:
    if not torch.cuda.is_available():
        console.print("No CUDA GPU is usable here: planning for an H200, compiling for it, checking on the CPU.\n", highlight=False)
        return False
    device = real(torch.cuda.current_device())
    try:
        console.print(f"{device.name}, {device.sms} SMs, {device.generation} kernels.\n", highlight=False)
    except DeviceError as error:
        console.print(f"{error}. Planning for an H200, compiling for it, checking on the CPU.\n", highlight=False)
        return False
    return True


def _on_gpu(console: Console) -> None:
    problems = {name: plan_problem(*shape) for name, shape in SHAPES.items()}
    _print_plans(console, problems)
    start = time.perf_counter()
    compile_kernels(list({planned.plan.kernel: None for planned in problems.values()}))
    console.print(f"Kernels compiled, or found in the cache, in {time.perf_counter() - start:.1f} s.\n", highlight=False)
    console.print(comparison_table([compare(planned) for planned in problems.values()]))
    console.print(METHOD, style="dim", highlight=False)


def _without_gpu(console: Console) -> None:
    _print_plans(console, {name: plan_problem(*shape, device="h200") for name, shape in SHAPES.items()})
    _draw_schedules(console)
    _compile_one(console)
    _check_reference(console)


def _print_plans(console: Console, problems: dict[str, Planned]) -> None:
    for name, planned in problems.items():
        plan = planned.plan
        kind = f"{plan.splits} splits" if plan.splits > 1 else f"{plan.sk_tiles} tiles in {plan.sk_units} shares"
        shared = "" if plan.decomposition == "data_parallel" else f": {kind}, {plan.dp_tiles} tiles whole, {plan.peers} peers"
        console.print(f"[bold]{plan.m} x {plan.n} x {plan.k}[/], {name}", highlight=False)
        console.print(f"  {plan.kernel}\n  {plan.decomposition}{shared}; grid {plan.grid} CTAs", highlight=False)
        console.print(f"  SMs busy {_bar(planned.data_parallel.efficiency)} plain data-parallel", highlight=False)
        console.print(f"           {_bar(plan.efficiency)} this plan", highlight=False)
        console.print(Padding(why(planned), (0, 0, 1, 2)), highlight=False)


def _bar(share: float) -> str:
    full = round(share * BAR)
    filled, empty = ("█", "░") if _can_print("█░") else ("#", ".")
    return filled * full + empty * (BAR - full) + f" {share:6.1%}"


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _draw_schedules(console: Console) -> None:
    gemm = Gemm("float16", device="toy:4", tile=(64, 64, 64), cluster=(1, 1))
    plans = {
        "data-parallel": gemm.plan(*DRAWN, decomposition="data_parallel"),
        "basic Stream-K": gemm.plan(*DRAWN, decomposition="stream_k", sk_tiles=9),
        "Stream-K for the last waves, data-parallel for the rest": gemm.plan(*DRAWN, decomposition="stream_k"),
    }
    tiles, iters = plans["data-parallel"].tiles, plans["data-parallel"].iters_per_tile
    console.print("[bold]{} x {} x {}[/]".format(*DRAWN), f"drawn on 4 SMs: {tiles} tiles of {iters} k-tiles", highlight=False)
    console.print(legend(colored=console.color_system is not None))
    for name, plan in plans.items():
        drawn = timeline(plan, fixup_iters=1)
        console.print(f"\n{name}: done after {drawn.length} steps, SMs {plan.efficiency:.0%} busy without fix-up", highlight=False)
        console.print(gantt(drawn))
    console.print()


def _compile_one(console: Console) -> None:
    spec = families("float16", "float16", "sm90a")[0]
    console.print(f"[bold]Compiling[/] {spec} for sm_90a (the first time about 9 s on two cores, 11 s on one)", highlight=False)
    start = time.perf_counter()
    entry = build_one(spec, "90a")
    took, code_bytes = time.perf_counter() - start, device_code_bytes(entry.library)
    kernel = Kernel(entry.library).description
    table = Table(show_header=False)
    table.add_row("ready in", f"{took:.1f} s (nvcc took {entry.seconds:.1f} s when it was compiled)")
    table.add_row("shared object", f"{entry.library_bytes:,} bytes, {code_bytes:,} of them GPU code")
    table.add_row("shared memory", f"{kernel.shared_memory_bytes:,} bytes, {kernel.stages} stages, {kernel.threads} threads a CTA")
    console.print(table)
    console.print()


def _check_reference(console: Console) -> None:
    gemm = Gemm("float16", device="toy:4", tile=(64, 64, 64), cluster=(1, 1))
    plan = gemm.plan(*DRAWN, decomposition="stream_k", sk_tiles=9)
    generator = torch.Generator().manual_seed(0)
    whole_a = torch.randint(-1, 2, (plan.m, plan.k), generator=generator)
    whole_b = torch.randint(-1, 2, (plan.k, plan.n), generator=generator)
    c = torch.full((plan.m, plan.n), torch.nan, dtype=torch.float16)
    execute(plan, whole_a.half(), whole_b.half(), c)
    wrong = int((c != (whole_a @ whole_b).half()).sum())
    a = torch.randn(plan.m, plan.k, generator=generator).half()
    b = torch.randn(plan.k, plan.n, generator=generator).half()
    execute(plan, a, b, c)
    exact = a.double() @ b.double()
    error, rounding = (c.double() - exact).abs().max().item(), (exact.half().double() - exact).abs().max().item()
    console.print("[bold]CPU reference[/] of the basic Stream-K plan above", highlight=False)
    console.print(f"  inputs in {{-1, 0, 1}}: {wrong} of {c.numel():,} elements differ from the exact product", highlight=False)
    console.print(f"  random inputs: largest error against fp64 {error:.2g}; rounding alone {rounding:.2g}", highlight=False)
    if wrong:
        raise Error("the CPU reference gave a wrong product; please report this machine's `cutlass-sk doctor --json`")
