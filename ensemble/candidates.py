"""The plans that an exhaustive search tries: each kernel at each width, every decomposition worth a launch. Pure; no
torch, no GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cutlass_sk import planner
from cutlass_sk.device import Device
from cutlass_sk.generator.spec import KernelSpec
from cutlass_sk.options import Options
from cutlass_sk.plan import RASTER_ORDERS, Plan
from cutlass_sk.planner import Scored
from cutlass_sk.work import Choice, Work, cut_up, score

MOST_SPLITS = 12
SWIZZLES = (1, 2, 4, 8)


def candidates(m: int, n: int, k: int, kernels: Sequence[KernelSpec], device: Device) -> list[Plan]:
    """Different plans for c[m, n] = a[m, k] @ b[k, n], in the order of the kernels; the planner's own choice among them.

    For each kernel, which is given at one width: data-parallel; splits up to one wave, thinned to ``MOST_SPLITS``; Stream-K of all
    tiles, of the last two waves and of the last one, on some grids. Where tiles make two waves or more, other rasters of
    data-parallel and the last two waves.
    """
    plans: dict[tuple[object, ...], Plan] = {}
    chosen = planner.make_plan(m, n, k, kernels, device)
    plans[identity(chosen)] = chosen
    eligible = {kernel.spec for kernel in planner.kernel_set(tuple(kernels), device).profiles(m, n, k)}
    for spec in kernels:
        if spec.with_layouts("t", "t") not in eligible:
            continue
        work = cut_up(m, n, k, spec, device)
        for choice in dict.fromkeys(choices(work)):
            scored = Scored(score(work, choice), work, choice)
            for options in rasters(work, choice):
                plan = planner.build(scored, options)
                plans.setdefault(identity(plan), plan)
    return list(plans.values())


def identity(plan: Plan) -> tuple[object, ...]:
    """What two plans of one problem must share to launch the same."""
    return (
        plan.kernel,
        plan.grid,
        plan.sk_tiles,
        plan.sk_units,
        plan.splits,
        plan.fixup,
        plan.raster_order,
        plan.raster_swizzle,
        plan.promotion,
    )


def choices(work: Work) -> Iterator[Choice]:
    """Decompositions of one kernel, data-parallel first; some may be equal."""
    tiles, slots, iters = work.work_tiles, work.slots, work.iters_per_tile
    yield Choice()
    if tiles <= slots and tiles <= work.max_shared and iters > 1:
        for splits in thinned(sorted({-(-iters // -(-iters // s)) for s in range(2, min(slots // tiles, iters) + 1)}), MOST_SPLITS):
            yield Choice(tiles, tiles * splits, splits)
        for splits, clusters in work.profile.cluster_slots:
            if tiles <= clusters and splits <= iters:
                yield Choice(tiles, tiles * splits, splits, True)
    shares = [tiles]
    if tiles > slots and tiles % slots:
        shares += [tiles % slots + slots, tiles % slots]
    for shared in shares:
        if shared > work.max_shared:
            continue
        for grid in (slots, slots * 3 // 4, slots // 2):
            units = min(grid, shared * iters)
            if units >= 1 and units != shared:
                yield Choice(shared, units)


def rasters(work: Work, choice: Choice) -> Iterator[Options]:
    """The default raster; others where there are tiles enough for it to matter and the kernel can follow them."""
    yield Options()
    many = work.spec.persistent and work.work_tiles >= 2 * work.slots
    if many and (choice.units == 0 or (choice.units == work.slots and work.slots < choice.shared < work.work_tiles)):
        for order in RASTER_ORDERS:
            for swizzle in SWIZZLES:
                yield Options(raster_order=order, raster_swizzle=swizzle)


def thinned(values: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of sorted values, dense where they are small; first and last stay."""
    if len(values) <= most:
        return list(values)
    last = len(values) - 1
    return [values[index] for index in sorted({round((last + 1) ** (step / (most - 1))) - 1 for step in range(most)})]
