"""A problem cut up for one kernel, the ways to share it out, and what each asks of the GPU. Pure: no torch, no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .calibration import profile
from .device import Device
from .errors import PlanError
from .generator.spec import ELEMENT_BYTES, KernelSpec, Layout
from .model import Load, Profile
from .options import INT_MAX, Options
from .plan import Fixup

NOTHING = Options()
"""Nothing forced."""
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


def cut_up(m: int, n: int, k: int, spec: KernelSpec, device: Device, options: Options = NOTHING) -> Work:
    """Cuts the problem into tiles; PlanError if it is beyond 32-bit tile arithmetic."""
    sms = options.sms or device.sms
    return cut(m, n, k, profile(spec, device, sms), (spec.layout_a, spec.layout_b), device, sms, options)


def cut(m: int, n: int, k: int, plain: Profile, layouts: tuple[Layout, Layout], device: Device, sms: int, options: Options) -> Work:
    """The same for a kernel that is profiled already, in the operands' layouts, on ``sms`` SMs."""
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
    chosen = profile(spec, device, sms, chain, plain.narrow) if chain else plain
    across = (tiles_n, tiles_m) if spec.swapped else (tiles_m, tiles_n)
    rows = row_bytes(m, n, k, spec, layouts)
    return Work(m, n, k, chosen, device, sms, *across, iters, bytes_moved(m, n, k, spec), *rows)


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


def leading(m: int, n: int, k: int, layouts: tuple[Layout, Layout]) -> tuple[int, int]:
    """Leading dimensions of dense a and b in these layouts."""
    return (k if layouts[0] == "t" else m), (n if layouts[1] == "t" else k)


def row_bytes(m: int, n: int, k: int, spec: KernelSpec, layouts: tuple[Layout, Layout]) -> tuple[int, int]:
    """Bytes from one row of a, and of b, to the next, as the kernel loads them: where it asks for more than they have, packed."""
    width = ELEMENT_BYTES[spec.dtype]
    a, b = (
        packed_row_bytes(lead * width, spec.alignment * width) if lead % spec.alignment else lead * width
        for lead in leading(m, n, k, layouts)
    )
    return a, b


def packed_row_bytes(nbytes: int, alignment: int) -> int:
    """Bytes from one row of a packed operand to the next: multiples of ``alignment``, and of 128, where loads are fastest, if that
    adds an eighth at most to the ``nbytes`` of a row; else of 64 or 32."""
    step = max(alignment, *(fast for fast in (0, 32, 64, 128) if 8 * fast <= nbytes))
    return -(-nbytes // step) * step


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
    """Whether CTAs of their own add the partials (2.x, many peers): a tile's fragments side by side, not one finisher after all.

    Only where there are at most two CTAs an SM in all: of more, the first ones are put on SMs in pairs, where each takes up to 1.7
    times as long (float64 on an H200, see results/NOTES.md).
    """
    if work.spec.persistent or choice.units <= 2 * choice.shared:
        return False
    return choice.units + choice.shared * work.spec.accumulator_fragments <= 2 * work.slots


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
