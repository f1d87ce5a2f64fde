"""Kernels, inputs and checks that the GPU tests share."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import torch

from cutlass_sk import Gemm, KernelSpec, Plan, planner
from cutlass_sk.aten import Product
from cutlass_sk.device import real
from cutlass_sk.dtypes import torch_dtype
from cutlass_sk.ensemble.torch_load import build_ahead
from cutlass_sk.generator.catalog import DTYPES, GENERATIONS, LAYOUTS, families
from cutlass_sk.generator.spec import Layout
from cutlass_sk.options import Options
from cutlass_sk.plan import CLUSTER_SPLITS, RASTER_ORDERS, REDUCTION_MODES
from cutlass_sk.work import Choice, cut_up


def _tested() -> Iterator[KernelSpec]:
    """Every kernel, in the layouts of ``Linear`` (tn; tt for float64); the first of a dtype in others, too, float16's in all."""
    for generation in GENERATIONS:
        for dtype, out_dtype in DTYPES:
            for index, family in enumerate(families(dtype, out_dtype, generation)):
                usual: tuple[Layout, Layout] = ("t", "t") if dtype == "float64" else ("t", "n")
                other = (
                    LAYOUTS if dtype == out_dtype != "bfloat16" and generation == "sm90a" else (usual, ("t", "t"), ("n", "n"))[:2]
                )
                if generation == "sm80":
                    other = (("t", "t"), ("n", "n"))
                if index > 1 and (dtype, out_dtype) == ("bfloat16", "float32"):
                    continue  # differs from float16's in the letters of its instruction alone
                for layouts in other if index == 0 else (usual,):
                    yield family.with_layouts(*layouts)


KERNELS: tuple[KernelSpec, ...] = tuple(_tested())


KINDS: tuple[KernelSpec, ...] = tuple(
    {(s.generation, s.api, s.dtype, s.out_dtype): s for s in reversed(KERNELS) if s.layout_a == s.layout_b == "t"}.values()
)[::-1]
"""One kernel for each pair of dtypes, generation and way to load: what operands a caller may bring does not depend on the tile."""


def _built() -> Iterator[KernelSpec]:
    yield from KERNELS
    yield from (spec.with_layouts(*layouts) for spec in KINDS for layouts in LAYOUTS)
    yield from (spec.with_layouts("t", "t") for spec in CHOSEN)


CHOSEN: tuple[KernelSpec, ...] = (
    KERNELS[0],
    next(spec for spec in KERNELS if spec.cluster_fixup),
    next(spec for spec in KERNELS if spec.schedule == "cooperative"),
    next(spec for spec in KERNELS if spec.dtype == "float64"),
    next(spec for spec in KERNELS if spec.generation == "sm80"),
)
"""One of each way to schedule, for tests of streams, threads and graphs."""
BUILT: tuple[KernelSpec, ...] = tuple(dict.fromkeys(_built()))
"""What the tests launch: vectors and transposed operands ask for other layouts than the kernel's own."""


def build_planned(dtypes: Iterable[torch.dtype], shapes: Iterable[tuple[int, int, int]]) -> None:
    """Builds what is planned for these products in all layouts, side by side: a test that compiles meets its watchdog."""
    asked = itertools.product(dtypes, shapes, LAYOUTS)
    build_ahead(Counter(Product("mm", 1, *shape, dtype, dtype, layouts, "cuda") for dtype, shape, layouts in asked))


def gemm_of(spec: KernelSpec) -> Gemm:
    """A Gemm that uses only this kernel."""
    return Gemm(spec.dtype, out_dtype=spec.out_dtype, kernels=[spec])


def operands(spec: KernelSpec, m: int, n: int, k: int, *, exact: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """a (m, k) and b (k, n) in the kernel's layouts; values in {-1, 0, 1}, or normal ones."""
    dtype = torch_dtype(spec.dtype)

    def matrix(rows: int, columns: int, layout: str) -> torch.Tensor:
        shape = (rows, columns) if layout == "t" else (columns, rows)
        if exact:
            x = torch.randint(-1, 2, shape, device="cuda", dtype=torch.int8).to(dtype)
        else:
            x = torch.randn(shape, device="cuda", dtype=dtype)
        return x if layout == "t" else x.t()

    return matrix(m, k, spec.layout_a), matrix(k, n, spec.layout_b)


def poisoned(spec: KernelSpec, m: int, n: int) -> torch.Tensor:
    return torch.full((m, n), float("nan"), device="cuda", dtype=torch_dtype(spec.out_dtype))


def plans(gemm: Gemm, m: int, n: int, k: int) -> list[Plan]:
    """Every kind of schedule: grids from one SM to all, splits, hybrids, basic Stream-K, both reductions; the main ones at every
    width of the kernel."""
    every = width_plans(gemm, m, n, k)
    every += [gemm.plan(m, n, k), gemm.plan(m, n, k, decomposition="data_parallel")]
    every += [gemm.plan(m, n, k, splits=splits) for splits in (1, 2, 3, 5, 8, 16, 33)]
    every += [gemm.plan(m, n, k, decomposition="stream_k", sms=sms) for sms in range(1, 133)]
    every += [gemm.plan(m, n, k, decomposition="stream_k", sk_tiles=10**6, sk_units=units) for units in (1, 7, 31, 64, 132, 200)]
    every += [gemm.plan(m, n, k, decomposition="stream_k", sms=50, sk_tiles=tiles) for tiles in (1, 5, 12)]
    every += [gemm.plan(m, n, k, decomposition="data_parallel", sms=sms) for sms in (1, 2, 17, 131)]
    every += [gemm.plan(m, n, k, splits=splits, reduction_mode="nondeterministic") for splits in (4, 16)]
    every += [gemm.plan(m, n, k, decomposition="stream_k", sms=sms, reduction_mode="nondeterministic") for sms in (33, 132)]
    every += cluster_plans(gemm.spec, m, n, k)
    if gemm.spec.persistent:
        every += [
            gemm.plan(m, n, k, raster_order=order, raster_swizzle=w) for order in ("along_m", "along_n") for w in (1, 2, 3, 8, 100)
        ]
    return every


def width_plans(gemm: Gemm, m: int, n: int, k: int) -> list[Plan]:
    """Each kind of schedule at every width of the kernel, where it has several."""
    made: list[Plan] = []
    for spec in gemm.spec.variants if gemm.spec.widest else ():
        forced: list[dict[str, Any]] = [
            {"decomposition": "data_parallel"},
            {"decomposition": "data_parallel", "sms": 17},
            *({"splits": splits} for splits in (2, 3, 8, 33)),
            *({"decomposition": "stream_k", "sms": sms} for sms in (4, 31, 132)),
            {"decomposition": "stream_k", "sk_tiles": 10**6, "sk_units": 31},
            {"decomposition": "stream_k", "sms": 50, "sk_tiles": 5, "raster_order": "along_n", "raster_swizzle": 3},
            {"decomposition": "stream_k", "sms": 33, "reduction_mode": "nondeterministic"},
        ]
        if spec.takes_promotion:
            forced += [{"promotion": spec.tile[2] * iters} for iters in (1, 2)]
        made += [gemm.plan(m, n, k, tile_n=spec.tile[1], **options) for options in forced]
        made += cluster_plans(spec, m, n, k)
    return made


def cluster_plans(spec: KernelSpec, m: int, n: int, k: int) -> list[Plan]:
    """Splits whose parts add up in clusters, also where more clusters are launched than run at a time."""
    work = cut_up(m, n, k, spec, real(0))
    made = []
    for splits in CLUSTER_SPLITS if spec.cluster_fixup else ():
        if splits <= work.iters_per_tile:
            choice = Choice(work.work_tiles, work.work_tiles * splits, splits, True)
            made.append(planner.build(planner.Scored(1.0, work, choice), Options()))
    return made


def random_plan(gemm: Gemm, m: int, n: int, k: int, random: Random) -> Plan:
    """Any width, decomposition, grid, raster and reduction that the library can be asked for."""
    spec = random.choice(gemm.spec.variants)
    clusters = cluster_plans(spec, m, n, k)
    if clusters and random.random() < 0.2:
        return random.choice(clusters)
    forced: dict[str, Any] = {"sms": random.randint(gemm.spec.cluster_size, 132), "tile_n": spec.tile[1]}
    kind = random.choice(["data_parallel", "split_k", "stream_k"])
    if kind == "split_k":
        forced["splits"] = random.randint(2, 20)
    else:
        forced["decomposition"] = kind
    if kind == "stream_k" and random.random() < 0.7:
        forced["sk_tiles"] = random.randint(1, 300)
        forced["sk_units"] = random.randint(1, 150)
    if gemm.spec.persistent:
        forced["raster_order"], forced["raster_swizzle"] = random.choice(RASTER_ORDERS), random.choice([1, 2, 3, 8])
        forced["reduction_mode"] = random.choice(REDUCTION_MODES)
    return gemm.plan(m, n, k, **forced)


def log_uniform_shapes(count: int, low: int, high: int, seed: int) -> list[tuple[int, int, int]]:
    generator = random.Random(seed)

    def size() -> int:
        return round(low * (high / low) ** generator.random())

    return [(size(), size(), size()) for _ in range(count)]
