"""``cutlass-sk explain``: the candidates for a problem, the terms of their predicted times, and why one won. Needs no GPU."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Annotated, Any

import torch
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

from ..errors import DeviceError
from ..explain import BOUNDS, Candidate, Explanation
from ..gemm import Gemm
from ..jit.build import build
from ..timing import buffer_sets, time_us
from .options import DtypeOption, GenerationOption, JsonOption, K, LayoutOption, Layouts, M, N, OutDtypeOption, option_names
from .plan import DeviceOption
from .planned import layouts, plan_record

HEADINGS = {"mma": "math", "load": "L2", "dram": "mem", "fixup": "fixup"}


def explain(
    m: M,
    n: N,
    k: K,
    dtype: DtypeOption = "float16",
    out_dtype: OutDtypeOption = None,
    generation: GenerationOption = None,
    layout: LayoutOption = "tt",
    device: DeviceOption = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Show so many candidates.")] = 10,
    measure: Annotated[bool, typer.Option("--measure", help="Time them on the GPU here, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the candidates for c[M, N] = a[M, K] @ b[K, N] and why one won. Needs no GPU, but for --measure."""
    if measure and not torch.cuda.is_available():
        raise DeviceError("--measure times candidates on a CUDA GPU, and there is none; leave it out to see what is predicted")
    if measure and device is not None and not device.startswith("cuda"):
        raise DeviceError(f"--measure times on the GPU here, not on device={device!r}; leave --device out")
    layout_a, layout_b = layouts(layout)
    with option_names():
        gemm = Gemm(dtype, out_dtype=out_dtype, generation=generation, device=device)
        explanation = gemm.explain(m, n, k, layout_a=layout_a, layout_b=layout_b)
    shown = explanation.candidates[:top]
    times = _measured(gemm, shown, layout) if measure else None
    if as_json:
        print(json.dumps(explanation_record(explanation, shown, times), indent=1))
        return
    console = Console()
    console.print(explanation_table(explanation, shown, times))
    console.print(explanation.why(), highlight=False)


def explanation_record(explanation: Explanation, shown: tuple[Candidate, ...], times: list[float] | None) -> dict[str, Any]:
    """The same as the table and the sentences say, for programs; ``terms_us`` has a ``total``, which its terms do not add up to."""
    measured = [{}] * len(shown) if times is None else [{"measured_us": time} for time in times]
    candidates = [
        {"bound": one.bound, "terms_us": one.terms._asdict(), **time, "plan": plan_record(one.plan)}
        for one, time in zip(shown, measured, strict=True)
    ]
    return {
        **{name: getattr(explanation, name) for name in ("m", "n", "k", "device", "constants")},
        "candidate_count": len(explanation.candidates),
        "why": explanation.why(),
        "candidates": candidates,
    }


def explanation_table(explanation: Explanation, shown: tuple[Candidate, ...], times: list[float] | None) -> Table:
    """A candidate a row, in microseconds."""
    title = (
        f"{explanation.m} x {explanation.n} x {explanation.k} on {explanation.device}: {len(explanation.candidates)} candidates, us"
    )
    table = Table(
        Column("candidate", overflow="fold"), title=title, title_justify="left", box=SIMPLE, padding=0,
        caption=f"constants {explanation.constants}", caption_justify="left",
    )  # fmt: skip
    for name in (*BOUNDS, "total"):
        table.add_column(HEADINGS.get(name, name), justify="right", min_width=len(HEADINGS.get(name, name)))
    table.add_column("bound by", min_width=6)
    if times is not None:
        table.add_column("measured", justify="right")
    for row, one in enumerate(shown):
        cells = [
            label(one),
            *(f"{getattr(one.terms, name):.1f}" for name in (*BOUNDS, "total")),
            HEADINGS.get(one.bound, one.bound),
        ]
        table.add_row(*cells, *([] if times is None else [f"{times[row]:.1f}"]))
    return table


def label(candidate: Candidate) -> str:
    """Tile, cluster and decomposition, short, without the kernel's other widths: a row must fit a terminal."""
    plan = candidate.plan
    cut = f" {plan.splits}" if plan.splits > 1 else f" {plan.sk_tiles}/{plan.sk_units}" if plan.sk_units else ""
    cut += " by clusters" if plan.fixup == "cluster" else ""
    kernel = re.sub(r"_n\d+to\d+", "", plan.kernel.family.split("_", 3)[3])
    return f"{kernel} {plan.decomposition.replace('data_parallel', 'dp')}{cut}"


def _measured(gemm: Gemm, shown: tuple[Candidate, ...], layout: Layouts) -> list[float]:
    """Microseconds of each candidate, launches back to back over buffers that outgrow the L2."""
    plan = shown[0].plan
    m, n, k = plan.m, plan.n, plan.k
    build(sorted({one.plan.kernel.with_layouts(*layouts(layout)) for one in shown}, key=str))

    def matrix(rows: int, columns: int, letter: str) -> torch.Tensor:
        shape = (rows, columns) if letter == "t" else (columns, rows)
        values = torch.randn(shape, dtype=gemm.dtype, device="cuda")
        return values if letter == "t" else values.t()

    size = (m * k + k * n) * gemm.dtype.itemsize + m * n * gemm.out_dtype.itemsize
    sets = [
        (matrix(m, k, layout[0]), matrix(k, n, layout[1]), torch.empty(m, n, dtype=gemm.out_dtype, device="cuda"))
        for _ in range(buffer_sets(size))
    ]

    def launch(candidate: Candidate, number: int) -> torch.Tensor:
        return gemm.run(*sets[number], plan=candidate.plan)

    contenders = {str(row): partial(launch, one) for row, one in enumerate(shown)}
    return list(time_us(contenders, len(sets)).values())
