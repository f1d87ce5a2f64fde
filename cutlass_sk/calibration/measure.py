"""Measures what a calibration is fitted to: kernels with several decompositions each, on shapes of its own. Needs a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from math import log2
from random import Random

import torch

from .. import planner
from ..call import Call, enqueue, template
from ..device import Device
from ..dtypes import torch_dtype
from ..generator.spec import ELEMENT_BYTES, KernelSpec
from ..kernel import load_kernel, plan_struct, problem_struct
from ..options import Options
from ..plan import Plan
from ..timing import Pool, buffer_sets, time_us
from .records import Record

SMALLEST, LARGEST, ALIGNMENT = 128, 8192, 8
SEED = 1871
CORPUS_SEED, CORPUS_COUNT = 2301, 32824
SLOWEST = 1.8
"""Candidates that are expected to take so many times as long as the fastest are not measured."""
MOST = 90
"""Candidates a shape."""
FILL_US = 300.0
POOL_BYTES = 1 << 30
MOST_SETS = 60
REPEATS = 4

Shape = tuple[int, int, int]
Size = tuple[int, torch.dtype]
Sizes = tuple[Size, ...]


@dataclass(frozen=True)
class Candidate:
    """One kernel, in the layouts that are measured, with one plan."""

    spec: KernelSpec
    plan: Plan

    def record(self, measured_us: float) -> Record:
        plan, spec = self.plan, self.spec
        counts = plan.sk_tiles, plan.sk_units, plan.splits
        return Record(spec.family, spec.layout_a + spec.layout_b, plan.m, plan.n, plan.k, *counts, round(measured_us, 3))


def drawn(seed: int) -> Iterator[Shape]:
    """Shapes without end, log-uniform in [128, 8192] and rounded to 8."""
    generator = Random(seed)

    def size() -> int:
        value = SMALLEST * 2 ** (generator.random() * log2(LARGEST / SMALLEST))
        return round(value / ALIGNMENT) * ALIGNMENT

    while True:
        yield size(), size(), size()


@lru_cache(maxsize=1)
def reserved() -> frozenset[Shape]:
    """The shapes of the corpus that results are judged by (``ensemble.corpus.paper``): nothing is fitted to them."""
    return frozenset(islice(drawn(CORPUS_SEED), CORPUS_COUNT))


def shapes(count: int, seed: int = SEED) -> list[Shape]:
    """``count`` shapes to fit to, each once, none of them ``reserved``."""
    fresh = (shape for shape in drawn(seed) if shape not in reserved())
    found: dict[Shape, None] = {}
    while len(found) < count:
        found[next(fresh)] = None
    return list(found)


def measured_layouts(spec: KernelSpec) -> KernelSpec:
    """The kernel for a row-major and b column-major; b row-major, too, for float64."""
    if spec.dtype == "float64":
        return spec.with_layouts("t", "t")
    return spec.with_layouts("t", "n")  # and a^T, b^T of a kernel that computes c^T: its a is b^T


def candidates(shape: Shape, specs: Sequence[KernelSpec], device: Device, random: Random) -> list[Candidate]:
    """What is measured of ``shape``: each kernel data-parallel and otherwise, but what is expected to be slow, in random order."""
    found: list[tuple[float, Candidate]] = []
    for spec in map(measured_layouts, specs):
        for scored in planner.scored(*shape, [spec], device, Options()):
            plan = planner.build(scored, Options())
            found.append((scored.time_us, Candidate(spec, plan)))
    fastest = min(time_us for time_us, _ in found)
    chosen = sorted((one for one in found if one[0] <= SLOWEST * fastest), key=lambda one: one[0])[:MOST]
    random.shuffle(chosen)
    return [candidate for _, candidate in chosen]


def measure(
    specs: Sequence[KernelSpec],
    wanted: Sequence[Shape],
    device: Device,
    *,
    budget_seconds: float,
    seed: int = SEED,
    done: frozenset[Shape] = frozenset(),
    progress: Callable[[int, int], None] = lambda finished, total: None,
) -> Iterator[list[Record]]:
    """Times ``specs``, which have one dtype of a, b and c, on one shape after another; yields the records of each.

    Ends with the last shape or when ``budget_seconds`` are spent. ``done``: shapes that were measured before.
    """
    first, random, end = specs[0], Random(seed), time.monotonic() + budget_seconds
    inputs, out = torch_dtype(first.dtype), torch_dtype(first.out_dtype)
    largest = LARGEST * LARGEST
    operands = Pool(inputs, max(POOL_BYTES, 2 * largest * inputs.itemsize))
    outputs = Pool(out, max(POOL_BYTES, largest * out.itemsize), random=False)
    for number, shape in enumerate(wanted):
        if time.monotonic() >= end:
            return
        progress(number, len(wanted))
        if shape in done:
            continue
        m, n, k = shape
        read, written = ((m * k, inputs), (k * n, inputs)), (m * n, out)
        sets = buffer_sets(Pool.set_bytes(*read, written), most=MOST_SETS)
        sets = min(sets, operands.fits(*read), outputs.fits(written))

        def take(number: int, read: Sizes = read, written: Size = written) -> list[torch.Tensor]:
            return [*operands.take(number, *read), *outputs.take(number, written)]

        contenders = candidates(shape, specs, device, random)
        launches, expected = {}, {}
        for index, candidate in enumerate(contenders):
            launches[str(index)] = _launch(candidate, device, take)
            expected[str(index)] = candidate.plan.predicted_time_us
        times = time_us(launches, sets, repeats=REPEATS, fill_us=FILL_US, expected_us=expected)
        yield [candidate.record(times[str(index)]) for index, candidate in enumerate(contenders)]
    progress(len(wanted), len(wanted))


def _launch(candidate: Candidate, device: Device, take: Callable[[int], list[torch.Tensor]]) -> Callable[[int], object]:
    """A launch that costs the host little: everything but addresses is settled before."""
    spec, plan = candidate.spec, candidate.plan
    m, n, k = plan.m, plan.n, plan.k
    transposed = spec.layout_c == "n"
    rows, across = (n, m) if transposed else (m, n)
    lead_a, lead_b = (k if spec.layout_a == "t" else rows), (across if spec.layout_b == "t" else k)
    kernel = load_kernel(spec, device.architecture(spec))
    problem = problem_struct(rows, across, k, lead_a, lead_b, n)
    reach = m * k * ELEMENT_BYTES[spec.dtype], k * n * ELEMENT_BYTES[spec.dtype], m * n * ELEMENT_BYTES[spec.out_dtype]
    call = Call(
        kernel,
        replace(plan, kernel=spec),
        template(device.index or 0, problem, plan_struct(plan)),
        device.capability >= (9, 0),
        *reach,
    )

    def launch(number: int) -> None:
        a, b, c = take(number)
        enqueue(call, *((b, a) if transposed else (a, b)), c, 1.0, 0.0)

    return launch
