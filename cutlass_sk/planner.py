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
from .model import PROFILE_BYTES, Load, Profile, packing_us
from .options import INT_MAX, Options, whole_number
from .plan import Decomposition, Fixup, Plan, RasterOrder
from .schedule import count_peers

try:
    from . import _native

    # Built from other sources, it would read something else into a profile's numbers.
    _decide = _native.decide if _native.PROFILE_BYTES == PROFILE_BYTES else None
    MOST_KERNELS = _native.MOST_KERNELS
    """As many, counting each width, as a native decision takes."""
except (ImportError, AttributeError):
    _decide, MOST_KERNELS = None, 0

NOTHING = Options()
"""Nothing forced."""

LARGE = 1 << 19
"""Sizes up to which decisions are made natively: no count of theirs is beyond 64 bits, nor refused."""
MAX_PEERS = 1 << 20
"""The most units that may meet in a tile; far beyond what pays."""


class Choice(NamedTuple):
    """In work tiles: the first ``shared`` ones in ``units`` shares (``splits`` > 1: so many for each tile), the others whole.

    in_cluster   the parts of a tile are one cluster
    """

    shared: int = 0
    units: int = 0
    splits: int = 1
    in_cluster: bool = False


class Work(NamedTuple):
    """A problem cut up for one kernel and grid. Work tiles are the tiles of one cluster; slots run one of them at a time.

    work_tiles_m, work_tiles_n   in the kernel's frame: a swapped one computes c^T, n x m
    bytes_moved                  the least that the problem moves
    row_bytes_a, row_bytes_b     how far rows of a and b are apart where they are dense, or packed (columns, where column-major)
    """

    m: int
    n: int
    k: int
    profile: Profile
    device: Device
    requested_grid: int
    work_tiles_m: int
    work_tiles_n: int
    iters_per_tile: int
    bytes_moved: int
    row_bytes_a: int
    row_bytes_b: int

    @property
    def spec(self) -> KernelSpec:
        return self.profile.spec

    @property
    def slots(self) -> int:
        return self.profile.slots

    @property
    def work_tiles(self) -> int:
        return self.work_tiles_m * self.work_tiles_n

    @property
    def max_shared(self) -> int:
        """The most work tiles whose iterations can be counted in 32 bits."""
        return min(self.work_tiles, INT_MAX // self.iters_per_tile)


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
        return [profile(kernel.spec, self.device, self.sms, length * kernel.tile_k) for length in lengths]

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
        return bool((n | k) & 7)

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
            kernel = profile(kernel.spec, self.device, self.sms, chain)
        work = Work(m, n, k, kernel, self.device, self.sms, *across, -(-k // kernel.tile_k), moved, row_a, row_b)
        return Scored(time_us + self.packing_us(m, n, k, group.alignment), work, Choice(shared, units, splits, in_cluster))


@lru_cache(maxsize=256)
def kernel_set(kernels: tuple[KernelSpec, ...], device: Device, sms: int | None = None) -> KernelSet:
    """``kernels`` on ``sms`` SMs of ``device``; default all."""
    return KernelSet(kernels, device, sms or device.sms)


def cut_up(m: int, n: int, k: int, spec: KernelSpec, device: Device, options: Options = NOTHING) -> Work:
    """Cuts the problem into tiles; PlanError if it is beyond 32-bit tile arithmetic."""
    sms = options.sms or device.sms
    return _cut(m, n, k, profile(spec, device, sms), (spec.layout_a, spec.layout_b), device, sms, options)


def _cut(
    m: int, n: int, k: int, plain: Profile, layouts: tuple[Layout, Layout], device: Device, sms: int, options: Options
) -> Work:
    if not (0 < m <= INT_MAX and 0 < n <= INT_MAX and 0 < k <= INT_MAX):
        name, size = next((name, size) for name, size in (("m", m), ("n", n), ("k", k)) if not 0 < size <= INT_MAX)
        raise PlanError(f"{name}={size!r} must be a whole number from 1 to {INT_MAX}")
    spec = plain.spec
    tiles_m, tiles_n, iters = -(-m // plain.span_m), -(-n // plain.span_n), -(-k // plain.tile_k)
    if tiles_m * tiles_n * spec.cluster_size + plain.slots > INT_MAX // 2:
        raise PlanError(f"m={m}, n={n} make {tiles_m * tiles_n} tiles of {spec.name}, too many for one launch; split the problem")
    if not spec.persistent and k > INT_MAX - 2 * plain.tile_k:  # 2.x kernels count k up to the end of the last k-tile, in 32 bits
        raise PlanError(f"k={k} is too long for {spec.name}; split the problem")
    chain = promotion(m, n, k, plain, options)
    chosen = profile(spec, device, sms, chain) if chain else plain
    across = (tiles_n, tiles_m) if spec.swapped else (tiles_m, tiles_n)
    rows = row_bytes(m, n, k, spec, layouts)
    return Work(m, n, k, chosen, device, sms, *across, iters, bytes_moved(m, n, k, spec), *rows)


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
            work = _cut(m, n, k, kernel, layouts, device, sms, options)
        except PlanError as error:
            refusal = error
            continue
        fitting += 1
        yield work
    if refusal is not None and not fitting:
        raise refusal


def leading(m: int, n: int, k: int, layouts: tuple[Layout, Layout]) -> tuple[int, int]:
    """Leading dimensions of dense a and b in these layouts."""
    return (k if layouts[0] == "t" else m), (n if layouts[1] == "t" else k)


def row_bytes(m: int, n: int, k: int, spec: KernelSpec, layouts: tuple[Layout, Layout]) -> tuple[int, int]:
    """Bytes from one row of a, and of b, to the next, as the kernel loads them: where it asks for more than they have, packed."""
    step, width = spec.alignment, ELEMENT_BYTES[spec.dtype]
    lead_a, lead_b = leading(m, n, k, layouts)
    return -(-lead_a // step) * step * width, -(-lead_b // step) * step * width


def free_choices(work: Work) -> list[Choice]:
    """The decompositions worth scoring where nothing is forced. Data-parallel comes first, so that it wins ties."""
    tiles, slots, iters, max_shared = work.work_tiles, work.slots, work.iters_per_tile, work.max_shared
    choices = [Choice()]
    if tiles > slots:
        # The last, partial wave with or without the one before it, in as many shares as there are slots.
        rest = tiles % slots
        if rest and rest + slots <= max_shared:
            choices += (Choice(rest + slots, slots), Choice(rest, min(slots, rest * iters)))
        return choices
    if tiles > max_shared or iters == 1:
        return choices
    # Splits: few, so that a tile is added up in one level or two; and as many as there is room for. Of splits that leave the same
    # number of iterations the fewest.
    most = min(slots // tiles, iters)
    for splits, clusters in work.profile.cluster_slots:
        if tiles <= clusters and splits <= iters:
            choices.append(Choice(tiles, tiles * splits, splits, True))
    last = 1
    for splits in (2, 3, 4, 8, 16, most):
        if splits <= most:
            splits = -(-iters // -(-iters // splits))
            if splits > last:
                choices.append(Choice(tiles, tiles * splits, splits))
                last = splits
    if tiles * most < slots:
        choices.append(Choice(tiles, min(slots, tiles * iters)))
    return choices


def forced_choices(work: Work, options: Options) -> Iterator[Choice]:
    """The decompositions worth scoring within what is forced."""
    tiles, slots, iters = work.work_tiles, work.slots, work.iters_per_tile
    decomposition = options.decomposition or ("split_k" if options.splits else None)
    if decomposition is None:
        yield from free_choices(work)
    if decomposition == "data_parallel":
        yield Choice()
    if decomposition == "split_k":
        if work.max_shared < tiles:
            raise PlanError(f"split_k of {tiles} tiles x {iters} iterations is beyond 32-bit arithmetic; use data_parallel")
        for splits in [options.splits] if options.splits else range(2, max(2, min(iters, slots // tiles)) + 1):
            splits = min(splits, iters, MAX_PEERS)
            if tiles * splits > INT_MAX // 4:
                raise PlanError(f"splits={splits} of {tiles} tiles make too many parts for one launch")
            yield Choice(tiles, tiles * splits, splits) if splits > 1 else Choice()
            if any(splits == known and tiles <= clusters for known, clusters in work.profile.cluster_slots):
                yield Choice(tiles, tiles * splits, splits, True)
    if decomposition == "stream_k":
        yield stream_k(work, options)


def stream_k(work: Work, options: Options) -> Choice:
    """The shared part: everything, if there is less than a wave; else the last, partial wave with the one before it."""
    tiles, slots, iters = work.work_tiles, work.slots, work.iters_per_tile
    if options.sk_tiles is not None:
        shared = min(-(-options.sk_tiles // work.spec.cluster_size), tiles)
    else:
        shared = tiles if tiles <= slots else tiles % slots + slots
    if shared > work.max_shared:
        raise PlanError(f"sharing {shared} tiles x {iters} iterations is beyond 32-bit arithmetic; use fewer sk_tiles")
    return Choice(shared, min(options.sk_units or slots, shared * iters, MAX_PEERS))


def score(work: Work, choice: Choice) -> float:
    """The model's time for a decomposition, in microseconds."""
    return work.profile.time_us(load(work, choice))


def load(work: Work, choice: Choice) -> Load:
    """What a decomposition asks of the GPU."""
    tiles, slots, iters = work.work_tiles_m * work.work_tiles_n, work.profile.slots, work.iters_per_tile
    shared, units, splits, _ = choice
    problem = work[-3:]  # bytes_moved, row_bytes_a, row_bytes_b
    if units == 0:
        waves = -(-tiles // slots)
        last = (tiles - 1) % slots + 1
        return Load(waves * iters, waves, iters, last, waves == 1, tiles * iters, *problem, "none", 1, False)
    share = -(-iters // splits) if splits > 1 else -(-shared * iters // units)
    # As many as can meet in a tile: one iteration of the first, one of the last, whole shares between them.
    peers = splits if splits > 1 else 1 if shared == units else 2 + max(0, iters - 2) // (shared * iters // units)
    fixup = fixup_of(work, choice)
    meeting = fixup, min(peers, units), share >= iters
    whole = tiles - shared
    if units > slots:
        most = busiest_iters(work, choice)
        return Load(most, -(-most // iters), 0, slots, False, tiles * iters, *problem, *meeting)
    # Slot 0 runs a unit, then a whole tile in each further round; the slots behind the units run whole tiles alone.
    rounds = -(-(units + whole) // slots)
    most, finished = share + (rounds - 1) * iters, rounds
    if whole and units < slots:
        others = -(-whole // slots)
        most, finished = max(most, others * iters), max(finished, others)
    last_iters, active = (most, units + whole) if finished == 1 else (0, slots)
    return Load(most, finished, last_iters, active, finished == 1, tiles * iters, *problem, *meeting)


def fixup_of(work: Work, choice: Choice) -> Fixup:
    """How the partial sums of a tile meet."""
    if choice.units == 0:
        return "none"
    if work.spec.persistent:
        return "cluster" if choice.in_cluster else "tree"
    return "separate" if reduces_in_parallel(work, choice) else "serial"


def bytes_moved(m: int, n: int, k: int, spec: KernelSpec) -> int:
    """The least that a problem moves: a and b read once, c written once."""
    return (m + n) * k * ELEMENT_BYTES[spec.dtype] + m * n * ELEMENT_BYTES[spec.out_dtype]


def reduces_in_parallel(work: Work, choice: Choice) -> bool:
    """Whether CTAs of their own add the partials (2.x, many peers): a tile's fragments side by side, not one finisher after all."""
    return not work.spec.persistent and choice.units > 2 * choice.shared


def busiest_iters(work: Work, choice: Choice) -> int:
    """Iterations of the slot with most work. Slots take positions (units, then whole tiles) round robin."""
    slots, iters = work.slots, work.iters_per_tile
    whole = work.work_tiles - choice.shared
    if choice.units == 0:
        return -(-whole // slots) * iters
    share = -(-iters // choice.splits) if choice.splits > 1 else -(-choice.shared * iters // choice.units)
    unit_waves, rest = divmod(choice.units, slots)

    def load(slot: int) -> int:
        own_units = unit_waves + (slot < rest)
        positions = -(-(choice.units + whole - slot) // slots)
        return own_units * share + (positions - own_units) * iters

    return max(load(0), load(rest)) if choice.units + whole > rest else load(0)


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


def promotion(m: int, n: int, k: int, kernel: Profile, options: Options) -> int:
    """Elements of k in a chain of tensor-core sums, for float32 outputs; 0: no limit.

    A chain costs accuracy by its length, and ending it costs time: 12 to 16% with 128 elements, 25 to 38% with 64 (float16 squares
    on an H200). cuBLAS lets chains run where its Hopper kernels take the problem, and sums more accurately elsewhere, where sizes
    are no multiples of 8. So do we: no limit on the former, 128 on the latter, 64 there if all tiles run at once and time hardly
    matters.
    """
    spec, tile_k = kernel.spec, kernel.tile_k
    if options.promotion is not None:
        if options.promotion % tile_k or (options.promotion and not spec.takes_promotion):
            kernels = f"multiples of {tile_k}" if spec.takes_promotion else "kernels with float32 outputs and narrow tiles"
            raise PlanError(f"promotion={options.promotion} does not fit {spec.name}; it is for {kernels}")
        return options.promotion
    if not spec.takes_promotion or not ragged(n, k):
        return 0
    work_tiles = -(-m // kernel.span_m) * -(-n // kernel.span_n)
    return tile_k * (1 if work_tiles <= kernel.slots else 2)


def ragged(n: int, k: int) -> bool:
    """Whether rows of a, b or c cannot all start on 16 bytes."""
    return n % 8 != 0 or k % 8 != 0


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
