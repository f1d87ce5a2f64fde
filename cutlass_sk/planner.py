"""From a problem to a plan: candidates, their predicted time, the best one. Pure: no torch, no GPU.

A new problem is decided in some ten microseconds: kernels are taken in the order of what they cannot do without, and once that is
more than the best plan so far, the rest is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, SupportsIndex

from .calibration import profile
from .device import Device
from .errors import PlanError
from .generator.spec import ELEMENT_BYTES, KernelSpec, Layout
from .model import PROFILE_BYTES, Profile, packing_us
from .options import INT_MAX, Options, whole_number
from .plan import Decomposition, Plan, RasterOrder
from .schedule import count_peers
from .work import (
    NOTHING,
    Choice,
    Work,
    busiest_iters,
    bytes_moved,
    cut,
    fixup_of,
    forced_choices,
    free_choices,
    leading,
    promotion,
    ragged,
    reduces_in_parallel,
    row_bytes,
    score,
)

try:
    from . import _native

    # Built from other sources, it would read something else into a profile's numbers.
    _decide = _native.decide if _native.PROFILE_BYTES == PROFILE_BYTES else None
    MOST_KERNELS = _native.MOST_KERNELS
    """As many, counting each width, as a native decision takes."""
except (ImportError, AttributeError):
    _decide, MOST_KERNELS = None, 0

LARGE = 1 << 19
"""Sizes up to which decisions are made natively: no count of theirs is beyond 64 bits, nor refused."""


class Scored(NamedTuple):
    """A candidate and its predicted time."""

    time_us: float
    work: Work
    choice: Choice


class Group(NamedTuple):
    """Kernels whose operands are packed alike, and the same as ``decide`` takes them."""

    profiles: tuple[Profile, ...]
    packed: bytes

    @property
    def alignment(self) -> int:
        return self.profiles[0].spec.alignment


class KernelSet:
    """Kernels, each at one width, on one GPU, with what planning needs of them worked out once.

    Where rows of a or b cannot start on 16 bytes, operands are packed for kernels that load by TMA, which takes time; those that
    take any rows, if there are any, do without. float32 outputs are then summed in short chains (``promotion``).
    """

    __slots__ = ("_all", "_ragged", "device", "layouts", "sms")

    def __init__(self, kernels: Sequence[KernelSpec], device: Device, sms: int) -> None:
        self.device, self.sms = device, sms
        self.layouts = kernels[0].layout_a, kernels[0].layout_b
        fitting = [spec for spec in kernels if spec.cluster_size <= sms] or list(kernels)
        profiles = [profile(spec, device, sms) for spec in fitting]
        self._all = (self._group(profiles),)
        if len({spec.alignment for spec in fitting}) > 1:  # float64
            by_alignment = (
                [kernel for kernel in profiles if (kernel.spec.alignment == 1) is any_rows] for any_rows in (False, True)
            )
            self._ragged = tuple(map(self._group, by_alignment))
        else:
            self._ragged = (self._group([kernel for kernel in profiles if kernel.spec.takes_promotion] or profiles, chained=True),)

    def _group(self, profiles: Sequence[Profile], *, chained: bool = False) -> Group:
        chains = self._chained if chained else lambda kernel: ()
        return Group(tuple(profiles), b"".join(kernel.packed(chains(kernel)) for kernel in profiles))

    def _chained(self, kernel: Profile) -> list[Profile]:
        """The kernel where ``promotion`` ends chains after one k-tile, and after two."""
        lengths = (1, 2) if kernel.spec.takes_promotion else ()
        return [profile(kernel.spec, self.device, self.sms, length * kernel.tile_k, kernel.narrow) for length in lengths]

    def groups(self, m: int, n: int, k: int) -> tuple[Group, ...]:
        """The kernels that may take a problem, by what they ask of operands."""
        return self._ragged if self.ragged(m, n, k) else self._all

    def profiles(self, m: int, n: int, k: int, *, promoted: bool = False) -> tuple[Profile, ...]:
        """The kernels that may take a problem. ``promoted``: only those that can end chains of sums."""
        groups = self._ragged if promoted else self.groups(m, n, k)
        return tuple(kernel for group in groups for kernel in group.profiles)

    def ragged(self, m: int, n: int, k: int) -> bool:
        """Whether rows cannot all start on 16 bytes."""
        if self._all[0].profiles[0].spec.dtype == "float64":
            lead_a, lead_b = leading(m, n, k, self.layouts)
            return bool((lead_a | lead_b) & 1)
        return ragged(n, k)

    def packing_us(self, m: int, n: int, k: int, alignment: int) -> float:
        """How long it takes to pack operands of dense rows for kernels that ask for rows of so many elements."""
        lead_a, lead_b = leading(m, n, k, self.layouts)
        rows_a, rows_b = (m if self.layouts[0] == "t" else k), (k if self.layouts[1] == "t" else n)
        elements = (m * k if rows_a > 1 and lead_a % alignment else 0) + (k * n if rows_b > 1 and lead_b % alignment else 0)
        return packing_us(elements * ELEMENT_BYTES[self._all[0].profiles[0].spec.dtype])

    def decided_natively(self, m: int, n: int, k: int) -> Scored | None:
        """What ``decide`` gives, from the extension; None where there is none, or the problem or the set is very large."""
        groups = self.groups(m, n, k)
        if _decide is None or max(len(group.profiles) for group in groups) > MOST_KERNELS:
            return None
        if not (0 < m <= LARGE and 0 < n <= LARGE and 0 < k <= LARGE):
            return None
        return min((self._decided(m, n, k, group) for group in groups), key=lambda candidate: candidate.time_us)

    def _decided(self, m: int, n: int, k: int, group: Group) -> Scored:
        """The group's best, by the extension."""
        assert _decide is not None
        ragged, moved = self.ragged(m, n, k), bytes_moved(m, n, k, group.profiles[0].spec)
        row_a, row_b = row_bytes(m, n, k, group.profiles[0].spec, self.layouts)
        time_us, number, shared, units, splits, in_cluster = _decide(group.packed, m, n, k, moved, row_a, row_b, ragged)
        kernel = group.profiles[number]
        tiles_m, tiles_n = -(-m // kernel.span_m), -(-n // kernel.span_n)
        across = (tiles_n, tiles_m) if kernel.spec.swapped else (tiles_m, tiles_n)
        if ragged and (chain := promotion(m, n, k, kernel, NOTHING)):
            kernel = profile(kernel.spec, self.device, self.sms, chain, kernel.narrow)
        work = Work(m, n, k, kernel, self.device, self.sms, *across, -(-k // kernel.tile_k), moved, row_a, row_b)
        return Scored(time_us + self.packing_us(m, n, k, group.alignment), work, Choice(shared, units, splits, in_cluster))


@lru_cache(maxsize=256)
def kernel_set(kernels: tuple[KernelSpec, ...], device: Device, sms: int | None = None) -> KernelSet:
    """``kernels`` on ``sms`` SMs of ``device``; default all."""
    return KernelSet(kernels, device, sms or device.sms)


def _cuts(
    m: int,
    n: int,
    k: int,
    profiles: Sequence[Profile],
    layouts: tuple[Layout, Layout],
    device: Device,
    sms: int,
    options: Options,
) -> Iterator[Work]:
    """The problem in the tiles of each kernel that can take it; PlanError, the last kernel's, if none can."""
    refusal, fitting = None, 0
    for kernel in profiles:
        try:
            work = cut(m, n, k, kernel, layouts, device, sms, options)
        except PlanError as error:
            refusal = error
            continue
        fitting += 1
        yield work
    if refusal is not None and not fitting:
        raise refusal


def scored(m: int, n: int, k: int, kernels: Sequence[KernelSpec], device: Device, options: Options) -> Iterator[Scored]:
    """Every candidate of every eligible kernel, with its time, in the order of the kernels. PlanError as ``make_plan``."""
    if options.tile_n is not None:
        kernels = _as_wide_as(options.tile_n, kernels)
    if options.raster_order or options.raster_swizzle:  # 2.x kernels have one raster: they are asked where there are no others
        kernels = [spec for spec in kernels if spec.persistent] or kernels
    chosen = kernel_set(tuple(kernels), device, options.sms)
    profiles = chosen.profiles(m, n, k, promoted=bool(options.promotion))
    for work in _cuts(m, n, k, profiles, chosen.layouts, device, chosen.sms, options):
        packing = chosen.packing_us(m, n, k, work.spec.alignment)
        for choice in forced_choices(work, options):
            yield Scored(score(work, choice) + packing, work, choice)


def _as_wide_as(tile_n: int, kernels: Sequence[KernelSpec]) -> list[KernelSpec]:
    found = [spec for spec in kernels if spec.tile[1] == tile_n]
    if not found:
        widths = ", ".join(map(str, sorted({spec.tile[1] for spec in kernels})))
        raise PlanError(f"tile_n={tile_n} is no width of these kernels' tiles; use one of {widths}")
    return found


def decide(m: int, n: int, k: int, kernels: KernelSet) -> Scored:
    """The best candidate where nothing is forced: what ``min`` over ``scored`` gives, in a fraction of the time."""
    return kernels.decided_natively(m, n, k) or decide_in_python(m, n, k, kernels)


def decide_in_python(m: int, n: int, k: int, kernels: KernelSet) -> Scored:
    """``decide`` without the extension; native/decide.h is its twin."""
    found, refusal = [], None
    for group in kernels.groups(m, n, k):
        try:
            works = list(_cuts(m, n, k, group.profiles, kernels.layouts, kernels.device, kernels.sms, NOTHING))
        except PlanError as error:
            refusal = error
            continue
        time_us, work, choice = _best(works)
        found.append(Scored(time_us + kernels.packing_us(m, n, k, group.alignment), work, choice))
    if refusal is not None and not found:
        raise refusal
    return min(found, key=lambda candidate: candidate.time_us)


def _best(works: Sequence[Work]) -> Scored:
    floors = []
    for number, work in enumerate(works):
        tiles = work.work_tiles_m * work.work_tiles_n
        floors.append((work.profile.floor_us(tiles * work.iters_per_tile, work.bytes_moved), number))
    best: Scored | None = None
    for floor, number in sorted(floors):
        if best is not None and floor >= best.time_us:
            break
        work = works[number]
        for choice in free_choices(work):
            time_us = score(work, choice)
            if best is None or time_us < best.time_us:
                best = Scored(time_us, work, choice)
    assert best is not None  # data-parallel is always among the choices
    return best


def plan_with(m: int, n: int, k: int, kernels: KernelSet) -> Plan:
    """``make_plan`` where nothing is forced."""
    return build(decide(m, n, k, kernels), NOTHING)


def make_plan(m: int, n: int, k: int, kernels: Sequence[KernelSpec], device: Device, options: Options | None = None) -> Plan:
    """The plan with the least predicted time for c[m, n] = a[m, k] @ b[k, n] over ``kernels``, within ``options``.

    kernels   each at the width that its spec has (``generator.spec.at_all_widths`` gives those of binaries)

    Raises PlanError where an option is out of range or nothing fits it.
    """
    m, n, k = whole("m", m), whole("n", n), whole("k", k)
    if options is None or options == NOTHING:
        return plan_with(m, n, k, kernel_set(tuple(kernels), device))
    options = options.checked(device)
    best = min(scored(m, n, k, kernels, device, options), key=lambda candidate: candidate.time_us, default=None)
    if best is None:
        raise PlanError(f"no decomposition of m={m}, n={n}, k={k} fits {options}")
    return build(best, options)


def build(candidate: Scored, options: Options) -> Plan:
    """The full plan of one decomposition."""
    time_us, work, choice = candidate
    m, n, k, kernel, device, requested_grid, work_tiles_m, work_tiles_n, iters, *_ = work
    spec, slots, tiles = kernel.spec, kernel.slots, work_tiles_m * work_tiles_n
    (cluster_m, cluster_n), persistent = spec.cluster, spec.persistent
    cluster = cluster_m * cluster_n
    shared, units, splits, in_cluster = choice
    whole = tiles - shared
    if splits > 1:
        decomposition: Decomposition = "split_k"
    else:
        decomposition = "stream_k" if units else options.decomposition or "data_parallel"

    parallel = not persistent and reduces_in_parallel(work, choice)
    reduction_ctas = shared * spec.accumulator_fragments if parallel else 0
    # A unit waits for lower ones only, and CTAs start in order: with a worker for every unit, no residency can deadlock.
    workers = max(min(slots, units + whole), units)
    partials_bytes = barrier_bytes = 0
    if units and not in_cluster:
        flags = units * cluster * spec.tile_warpgroups if persistent else max(units, reduction_ctas)
        partials_bytes = units * cluster * (2 if parallel else 1) * spec.partial_bytes
        barrier_bytes = flags * 4
    order, swizzle = raster(work, options)
    waves = -(-tiles // slots)
    return Plan.of(
        {
            "m": m,
            "n": n,
            "k": k,
            "kernel": spec,
            "device": device.name,
            "decomposition": decomposition,
            "requested_grid": requested_grid,
            "grid": workers * cluster if persistent else units + whole + reduction_ctas,
            "tiles_m": work_tiles_m * cluster_m,
            "tiles_n": work_tiles_n * cluster_n,
            "iters_per_tile": iters,
            "dp_tiles": whole * cluster,
            "sk_tiles": shared * cluster,
            "sk_units": units,
            "splits": splits,
            "peers": count_peers(shared, iters, units, splits) if units else 1,
            "fixup": fixup_of(work, choice) if units else "none",
            "waves": tiles / slots,
            "efficiency": tiles * iters / ((busiest_iters(work, choice) if units else waves * iters) * slots),
            "data_parallel_efficiency": tiles / (waves * slots),
            "partials_bytes": partials_bytes,
            "barrier_bytes": barrier_bytes,
            "reduction_mode": options.reduction_mode if persistent else "deterministic",
            "reduction_ctas": reduction_ctas,
            "raster_order": order,
            "raster_swizzle": swizzle,
            "promotion": promotion(m, n, k, kernel, options),
            "predicted_time_us": time_us,
        }
    )


def raster(work: Work, options: Options) -> tuple[RasterOrder, int]:
    """The order in which tiles are visited: along the shorter side."""
    if not work.spec.persistent:
        # ThreadblockSwizzleStreamK has one order, by shape.
        order: RasterOrder = "along_n" if work.work_tiles_m >= work.work_tiles_n else "along_m"
        if options.raster_order not in (None, order) or options.raster_swizzle not in (None, 1):
            raise PlanError(
                f"{work.spec.name} visits these tiles {order} with swizzle 1; raster_order and raster_swizzle cannot be forced"
            )
        return order, 1
    shorter: RasterOrder = "along_m" if work.work_tiles_m < work.work_tiles_n else "along_n"
    return options.raster_order or shorter, options.raster_swizzle or 1


def whole(name: str, size: SupportsIndex) -> int:
    """A size as an int; PlanError if it is none."""
    number = size if type(size) is int else whole_number(size)
    if number is None:
        raise PlanError(f"{name}={size!r} must be a whole number from 1 to {INT_MAX}")
    return number
