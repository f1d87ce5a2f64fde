"""A planned problem beside its plain data-parallel twin, as tables and sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from rich.table import Table

from ..errors import PlanError
from ..gemm import Gemm
from ..generator.spec import Generation, Layout
from ..plan import Decomposition, Plan
from .options import Layouts, option_names


@dataclass(frozen=True)
class Planned:
    """``data_parallel`` is what the same kernel would do plain data-parallel, ``stream_k`` what it would do as Stream-K, both with
    the plan's tiles."""

    gemm: Gemm
    plan: Plan
    data_parallel: Plan
    stream_k: Plan


def plan_problem(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "float16",
    out_dtype: str | None = None,
    generation: Generation | None = None,
    layout: Layouts = "tt",
    decomposition: Decomposition | None = None,
    splits: int | None = None,
    sms: int | None = None,
    tile_n: int | None = None,
    device: str | None = None,
) -> Planned:
    """Plans c[m, n] = a[m, k] @ b[k, n] for ``device`` (default: the current GPU, without one an H200)."""
    with option_names():
        gemm = Gemm(dtype, out_dtype=out_dtype, generation=generation, device=device)
        plan = gemm.plan(m, n, k, decomposition=decomposition, splits=splits, sms=sms, tile_n=tile_n)
    kernel = plan.kernel
    alone, width = Gemm(dtype, out_dtype=out_dtype, device=device, kernels=[kernel]), kernel.tile[1]
    data_parallel = alone.plan(m, n, k, decomposition="data_parallel", sms=sms, tile_n=width)
    try:
        stream_k = alone.plan(m, n, k, decomposition="stream_k", sms=sms, tile_n=width)
    except PlanError:  # too long a line for 32 bits; there is no such twin then
        stream_k = data_parallel
    layout_a, layout_b = layouts(layout)
    return Planned(gemm, *(replace(p, kernel=p.kernel.with_layouts(layout_a, layout_b)) for p in (plan, data_parallel, stream_k)))


def layouts(text: Layouts) -> tuple[Layout, Layout]:
    """The layouts of a and b."""
    return ("t" if text[0] == "t" else "n"), ("t" if text[1] == "t" else "n")


FORMATS: dict[str, Callable[[Any], str]] = {
    "requested_grid": "{} CTAs".format,
    "grid": "{} CTAs".format,
    "dp_tiles": "{} tiles".format,
    "sk_tiles": "{} tiles".format,
    "iters_per_tile": "{} k-tiles".format,
    "sk_units": "{} shares".format,
    "splits": "{} a tile".format,
    "peers": "{} a tile".format,
    "waves": "{:.2f}".format,
    "efficiency": "{:.1%}".format,
    "data_parallel_efficiency": "{:.1%}".format,
    "partials_bytes": "{:,} bytes".format,
    "barrier_bytes": "{:,} bytes".format,
    "reduction_ctas": "{} CTAs".format,
    "raster_swizzle": "{} wide".format,
    "promotion": lambda k: f"every {k} of k" if k else "none",
    "predicted_time_us": "{:.1f} us".format,
}
"""How a field of a plan is shown; others as they are."""


def plan_record(plan: Plan) -> dict[str, Any]:
    """A plan for JSON, with its kernel's name and the bytes of its workspace."""
    record = asdict(plan)
    record["kernel"]["name"] = plan.kernel.name
    record["workspace_bytes"] = plan.workspace_bytes
    return record


def plan_table(plan: Plan) -> Table:
    """Every field of ``plan``, one a row."""
    table = Table("plan", f"{plan.m} x {plan.n} x {plan.k}", title_justify="left")
    for field in fields(plan):
        if field.name not in ("m", "n", "k"):
            table.add_row(field.name, FORMATS.get(field.name, str)(getattr(plan, field.name)))
    return table


def why(planned: Planned) -> str:
    """One sentence: what the plan gains over plain data-parallel, or why it is that."""
    plan, plain, stream_k = planned.plan, planned.data_parallel, planned.stream_k
    waves = f"{_count(plain.tiles, 'tile')}, {round(plain.tiles / plain.waves)} at a time, {plain.waves:.2f} waves"
    if plain.tiles * plain.iters_per_tile <= plan.kernel.cluster_size:
        return f"There is one k-tile ({waves}): nothing to share, {plan.predicted_time_us:.1f} us expected."
    if plan.decomposition == "data_parallel":
        return (
            f"Data-parallel ({waves}) keeps its SMs {plan.efficiency:.1%} busy; Stream-K would reach {stream_k.efficiency:.1%} "
            f"and is expected to take {stream_k.predicted_time_us:.1f} us, against {plan.predicted_time_us:.1f} us."
        )
    gain = "faster" if plan.predicted_time_us < plain.predicted_time_us else "slower"
    return (
        f"Plain data-parallel ({waves}) would keep its SMs {plain.efficiency:.1%} busy; this plan shares k and reaches "
        f"{plan.efficiency:.1%}. It is expected to be {gain}: {plan.predicted_time_us:.1f} us against "
        f"{plain.predicted_time_us:.1f} us."
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
