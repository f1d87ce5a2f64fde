"""A plan run on the GPU: its error, and its time against cuBLAS and against the same kernel plain data-parallel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rich.table import Table

from ..device import resolve
from ..generator.spec import KernelSpec, Layout
from ..jit.build import build
from ..timing import buffer_sets, time_us
from .planned import Planned

METHOD = (
    "Times are medians over replays of launches captured back to back in a CUDA graph, over buffers beyond the L2, contenders "
    "in turns; cuBLAS is torch.mm with torch's default settings. Errors: largest of any element, normal random data."
)


@dataclass(frozen=True)
class Comparison:
    """Errors are the largest of any element against fp64; ``cublas_error`` is None where cuBLAS itself is the fp64 product."""

    planned: Planned
    error: float
    cublas_error: float | None
    planned_us: float
    data_parallel_us: float
    cublas_us: float


def compile_kernels(kernels: list[KernelSpec]) -> None:
    """Builds what the cache lacks of ``kernels`` for the current GPU, with progress on a terminal."""
    device = resolve(None)
    for architecture in sorted({device.architecture(kernel) for kernel in kernels}):
        build([kernel for kernel in kernels if device.architecture(kernel) == architecture], architecture)


def compare(planned: Planned) -> Comparison:
    """Runs, checks and times ``planned`` on the current GPU."""
    gemm, plan, plain = planned.gemm, planned.plan, planned.data_parallel
    a = _random(plan.m, plan.k, gemm.dtype, plan.kernel.layout_a, seed=0)
    b = _random(plan.k, plan.n, gemm.dtype, plan.kernel.layout_b, seed=1)
    c = torch.full((plan.m, plan.n), torch.nan, dtype=gemm.out_dtype, device="cuda")

    def cublas() -> torch.Tensor:
        return torch.mm(a, b) if gemm.out_dtype == gemm.dtype else torch.mm(a, b, out_dtype=gemm.out_dtype)

    gemm.run(a, b, c, plan=plan)
    exact = a.double() @ b.double()
    error = _largest_error(c, exact)
    cublas_error = None if gemm.dtype == torch.float64 else _largest_error(cublas(), exact)
    del exact
    set_bytes = sum(tensor.numel() * tensor.itemsize for tensor in (a, b, c))
    sets = [(a, b, c), *((a.clone(), b.clone(), c.clone()) for _ in range(buffer_sets(set_bytes) - 1))]

    def cublas_into(number: int) -> torch.Tensor:
        x, y, z = sets[number]
        return torch.mm(x, y, out=z) if z.dtype == x.dtype else torch.mm(x, y, out_dtype=z.dtype, out=z)

    times = time_us(
        {
            "planned": lambda number: gemm.run(*sets[number], plan=plan),
            "data_parallel": lambda number: gemm.run(*sets[number], plan=plain),
            "cublas": cublas_into,
        },
        len(sets),
    )
    return Comparison(planned, error, cublas_error, times["planned"], times["data_parallel"], times["cublas"])


def comparison_table(comparisons: list[Comparison]) -> Table:
    """One problem a row."""
    table = Table("m x n x k", "decomposition")
    for heading in ("error", "cuBLAS's", "us", "data-parallel us", "cuBLAS us", "vs data-parallel", "vs cuBLAS"):
        table.add_column(heading, justify="right")
    for one in comparisons:
        plan = one.planned.plan
        table.add_row(
            f"{plan.m} x {plan.n} x {plan.k}",
            plan.decomposition,
            f"{one.error:.2g}",
            "-" if one.cublas_error is None else f"{one.cublas_error:.2g}",
            f"{one.planned_us:.1f}",
            f"{one.data_parallel_us:.1f}",
            f"{one.cublas_us:.1f}",
            f"{one.data_parallel_us / one.planned_us:.2f}x",
            f"{one.cublas_us / one.planned_us:.2f}x",
        )
    return table


def _random(rows: int, columns: int, dtype: torch.dtype, layout: Layout, seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = (rows, columns) if layout == "t" else (columns, rows)
    values = torch.randn(shape, dtype=dtype, device="cuda", generator=generator)
    return values if layout == "t" else values.t()


def _largest_error(c: torch.Tensor, exact: torch.Tensor) -> float:
    return (c.double() - exact).abs().max().item()
