"""Measures what a calibration is fitted to: kernels with several decompositions each, on shapes of its own. Needs a GPU."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import log2
from random import Random

import torch

from .. import env, planner
from ..device import Device
from ..dtypes import torch_dtype
from ..generator import abi
from ..generator.spec import KernelSpec
from ..kernel import Prepared, load_kernel, plan_struct, problem_struct
from ..options import Options
from ..plan import Plan
from ..timing import Pool, buffer_sets, time_us
from ..work import leading
from .records import Record

SMALLEST, LARGEST, ALIGNMENT = 128, 8192, 8
SEED = 1871
CORPUS_SEED, CORPUS_COUNT = 2301, 32824
SLOWEST = 1.8
"""Candidates that are expected to take so many times as long as the fastest are not measured."""
MOST = 64
"""Candidates a shape: one half is expected to be the fastest, the other is of the kernels and widths with the fewest records."""
FAR, FEW, RARE = 4.0, 40, 4
"""Kernels and widths with fewer than 40 records are measured, four a shape, where they are expected to take up to four times as
long as the fastest."""
FILL_US = 300.0
POOL_BYTES = 1 << 30
PARTIALS_BYTES, FLAG_BYTES = 256 << 20, 1 << 20
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
        counts = plan.sk_tiles, plan.sk_units, plan.splits, plan.fixup
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
    return spec.with_layouts("t", "n")


def candidates(
    shape: Shape, specs: Sequence[KernelSpec], device: Device, random: Random, counts: Mapping[str, int] | None = None
) -> list[Candidate]:
    """What is measured of ``shape``: each kernel data-parallel and otherwise, but what is expected to be slow, in random order.

    specs    each at one width
    counts   records that there are, by ``KernelSpec.family``
    """
    found = []
    for spec in map(measured_layouts, specs):
        for scored in planner.scored(*shape, [spec], device, Options()):
            found.append(Candidate(spec, planner.build(scored, Options())))
    found.sort(key=_expected_us)
    chosen = _spread(found, counts or {}, random)
    random.shuffle(chosen)
    return chosen


def _spread(found: Sequence[Candidate], counts: Mapping[str, int], random: Random) -> list[Candidate]:
    """The part of ``found``, fastest first, that is measured: at most ``MOST``, and ``RARE`` of what has few records."""
    fastest = _expected_us(found[0])
    near = [one for one in found if _expected_us(one) <= SLOWEST * fastest]
    chosen, rest = near[: MOST // 2], near[MOST // 2 :]
    # Turn by turn: the first candidate of the rarest, and its second one as if it had one record more.
    turns: Counter[str] = Counter()
    keys = []
    for number, one in enumerate(rest):
        keys.append((counts.get(one.spec.family, 0) + turns[one.spec.family], random.random(), number))
        turns[one.spec.family] += 1
    chosen += [rest[number] for _, _, number in sorted(keys)[: MOST - len(chosen)]]
    seen = {one.spec.family for one in chosen}
    rare = []
    for one in found:
        count = counts.get(one.spec.family, 0)
        if one.spec.family not in seen and count < FEW and _expected_us(one) <= FAR * fastest:
            seen.add(one.spec.family)
            rare.append((count, random.random(), one))
    return chosen + [one for _, _, one in sorted(rare, key=lambda entry: entry[:2])[:RARE]]


def _expected_us(candidate: Candidate) -> float:
    return candidate.plan.predicted_time_us


def measure(
    specs: Sequence[KernelSpec],
    wanted: Sequence[Shape],
    device: Device,
    *,
    budget_seconds: float,
    seed: int = SEED,
    done: frozenset[Shape] = frozenset(),
    counts: Mapping[str, int] | None = None,
    progress: Callable[[int, int], None] = lambda finished, total: None,
) -> Iterator[list[Record]]:
    """Times ``specs``, which have one dtype of a, b and c, on one shape after another; yields the records of each.

    Ends with the last shape or when ``budget_seconds`` are spent. ``done``: shapes that were measured before, which gave so many
    records, ``counts``, by family.
    """
    measured = Counter(counts or {})
    first, random, end = specs[0], Random(seed), time.monotonic() + budget_seconds
    inputs, out = torch_dtype(first.dtype), torch_dtype(first.out_dtype)
    largest = LARGEST * LARGEST
    operands = Pool(inputs, max(POOL_BYTES, 2 * largest * inputs.itemsize))
    outputs = Pool(out, max(POOL_BYTES, largest * out.itemsize), random=False)
    workspace = Workspace()
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

        contenders = [one for one in candidates(shape, specs, device, random, measured) if workspace.holds(one.plan)]
        measured.update(one.spec.family for one in contenders)
        launches, expected = {}, {}
        for index, candidate in enumerate(contenders):
            launches[str(index)] = _launch(candidate, device, workspace, take)
            expected[str(index)] = candidate.plan.predicted_time_us
        times = time_us(launches, sets, repeats=REPEATS, fill_us=FILL_US, expected_us=expected)
        yield [candidate.record(times[str(index)]) for index, candidate in enumerate(contenders)]
    progress(len(wanted), len(wanted))


class Workspace:
    """Partial sums and flags for all launches: they follow each other on one stream and leave flags at zero."""

    def __init__(self) -> None:
        self.partials = torch.empty(PARTIALS_BYTES, dtype=torch.uint8, device="cuda")
        self.flags = torch.zeros(FLAG_BYTES, dtype=torch.uint8, device="cuda")

    def holds(self, plan: Plan) -> bool:
        return plan.partials_bytes <= PARTIALS_BYTES and plan.barrier_bytes <= FLAG_BYTES


def _launch(
    candidate: Candidate, device: Device, workspace: Workspace, take: Callable[[int], list[torch.Tensor]]
) -> Callable[[int], object]:
    """A launch that costs the host little: everything but addresses is settled by the first."""
    spec, plan = candidate.spec, candidate.plan
    m, n, k = plan.m, plan.n, plan.k
    kernel, index = load_kernel(spec, device.architecture(spec)), device.index or 0
    lead_a, lead_b = leading(m, n, k, (spec.layout_a, spec.layout_b))
    problem = problem_struct(m, n, k, lead_a, lead_b, n)
    partials, flags = workspace.partials.data_ptr(), workspace.flags.data_ptr()
    addresses = abi.AddressesStruct(
        alpha=1.0, beta=0.0, partials=partials, barriers=flags, programmatic=device.capability >= (9, 0) and env.PDL.get()
    )
    made: list[Prepared] = []

    def launch(number: int) -> None:
        addresses.a, addresses.b, addresses.c = (tensor.data_ptr() for tensor in take(number))
        addresses.stream = torch._C._cuda_getCurrentRawStream(index)
        if not made:
            size = ctypes.sizeof(abi.LaunchStruct)
            whole = abi.LaunchStruct(struct_bytes=size, device=index, problem=problem, plan=plan_struct(plan), addresses=addresses)
            made.append(kernel.prepare(whole))
        kernel.enqueue(made[0], addresses)

    return launch
