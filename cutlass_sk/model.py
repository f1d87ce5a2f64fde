"""The analytical model: what a decomposition is expected to cost. Pure arithmetic; no torch, no GPU.

The equation is that of the Stream-K paper's appendix (arXiv 2301.03598), for one kernel on one GPU::

    time(g)       = a + b*[peers(g) > 1] + c*iters_per_cta(g) + d*(peers(g) - 1)
    iters_per_cta = ceil(total_iters / g)
    peers         = ceil(iters_per_tile / iters_per_cta)

a: launch, cold misses, storing the tile. b: writing partials. c: one MAC-loop iteration. d: reading and adding one peer's partials.
All in microseconds. For the other decompositions iters_per_cta is what the busiest CTA runs.

A real GPU needs more. ``Profile.time_us`` extends the equation to::

    time = a + norm2(norm4(main, power), dram) + fixup
    main = norm4(c*iters, load*loads) + e*(tiles - 1)

tiles: how many tiles the busiest CTA finishes; e: what a tile costs beyond its iterations (its epilogue, unless the main loop of
the next one hides it). load: what a CTA loads for an iteration (a cluster loads for its CTAs together), at its share of what all
SMs draw from L2, times ``row_cost`` where rows do not start on 128 bytes; loads: its iterations, those of the last wave counted by
``Limits``' alone and crowded. power: all operations, padding included, over the rate that the GPU sustains. dram: the bytes that
the problem has, over what memory moves. norm4, the fourth root of the sum of fourth powers, is the largest of its terms where one
is much larger, and more where two are close; norm2 lets them hinder each other more. fixup: ``fixup_terms``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import log2, sqrt
from struct import calcsize, pack
from typing import NamedTuple

from .generator.spec import ELEMENT_BYTES, KernelSpec
from .plan import CLUSTER_SPLITS, Fixup


@dataclass(frozen=True)
class Constants:
    """The model's constants for one kernel on one GPU, in microseconds.

    a            launch, first loads, storing the last tile
    b            fix-up: writing partials, telling, waiting
    c            one main-loop iteration of a CTA whose loads are not waited for
    d            reading and adding one peer's partials; in a tree, what doubling the peers adds
    d_parallel   the same where CTAs of their own add the partials (2.x)
    e            a tile beyond its iterations
    h            fix-up between shares that are at least a tile long
    r, u         fix-up within a cluster: of two peers, and what doubling them adds
    """

    a: float
    b: float
    c: float
    d: float
    d_parallel: float = 0.0
    e: float = 0.0
    h: float = 0.0
    r: float = 0.0
    u: float = 0.0

    def time_us(self, iters_per_cta: int, peers: int) -> float:
        """The paper's equation: the finisher adds the partials of its peers one after the other."""
        return self.a + (self.b if peers > 1 else 0.0) + self.c * iters_per_cta + self.d * (peers - 1)

    def scaled(self, factor: float) -> Constants:
        """The constants of a GPU whose SMs take ``factor`` times as long; what a launch costs stays."""
        scaled = {name: factor * value for name, value in asdict(self).items() if name != "a"}
        return Constants(self.a, **scaled)


@dataclass(frozen=True)
class Limits:
    """What a whole GPU sustains in one dtype, and how it shares it out.

    l2_gbs       what all SMs draw from L2, GB/s, rows starting on 128 bytes
    dram_gbs     what memory moves, GB/s
    tflops       TFLOP/s, for as long as one likes
    alone        SMs come in pairs that share a way to L2: a CTA that has a pair to itself loads 1 + alone times as fast
    crowded      CTAs that fit twice on an SM, in a launch of less than a wave, are put beside each other there: loading slows down
                 by so much when half of the SMs would do, by twice that when all would
    rows16, rows32, rows64   what loads cost more where rows start on so many bytes only
    narrow       what loads cost more of an operand that comes in boxes of 64 bytes a row: see ``KernelSpec.narrow_boxes``
    """

    l2_gbs: float
    dram_gbs: float
    tflops: float
    alone: float = 0.0
    crowded: float = 0.0
    rows16: float = 0.0
    rows32: float = 0.0
    rows64: float = 0.0
    narrow: float = 0.0

    def row_cost(self, row_bytes: int) -> float:
        """What a load costs of rows that are ``row_bytes`` apart, in loads of rows that start on 128 bytes."""
        if row_bytes % 128 == 0:
            return 1.0
        return 1.0 + (self.rows64 if row_bytes % 64 == 0 else self.rows32 if row_bytes % 32 == 0 else self.rows16)


class Load(NamedTuple):
    """What a decomposition asks of a GPU: all that the model needs to know of it.

    iters, tiles   iterations and tiles of the busiest slot
    last_iters     those of its iterations that lie in a last wave in which only ``last_active`` slots run, else 0
    one_wave       whether every slot runs one tile or share at most
    work_iters     iterations of work tiles in all
    bytes_moved    the least that the problem moves: a and b read once, c written once
    row_bytes_a, row_bytes_b   how far rows of a and b are apart (columns, where column-major)
    fixup, peers   how many units meet in a tile at most, and how they add up
    long_shares    whether shares are at least a tile long
    """

    iters: int
    tiles: int
    last_iters: int
    last_active: int
    one_wave: bool
    work_iters: int
    bytes_moved: int
    row_bytes_a: int
    row_bytes_b: int
    fixup: Fixup
    peers: int
    long_shares: bool


class Terms(NamedTuple):
    """The equation's terms for one decomposition, in microseconds. ``total`` is what they add up to."""

    launch: float
    mma: float
    load: float
    tiles: float
    power: float
    dram: float
    fixup: float
    packing: float
    total: float


PROFILE_FORMAT = "=39d"
PROFILE_BYTES = calcsize(PROFILE_FORMAT)
"""What native/decide.h reads of a kernel."""

PROMOTION_COST = {64: 0.29, 128: 0.14, 256: 0.1}
"""What ending chains of tensor-core sums every so many elements of k adds to an iteration (H200, see results/NOTES.md)."""

PACKING_US, PACKING_US_PER_MB = 1.2, 0.43
"""What packing operands adds to a call: a launch, and to read and write a million bytes (H200, see results/NOTES.md)."""


def packing_us(nbytes: int) -> float:
    """How long it takes to pack operands of so many bytes in all; nothing for none."""
    return PACKING_US + PACKING_US_PER_MB * nbytes * 1e-6 if nbytes else 0.0


def clusters(sms: int, size: int) -> int:
    """Clusters of ``size`` CTAs that run at a time, one CTA an SM.

    A cluster lies within a GPC, of which those of Hopper have 16 or 18 SMs, not all of them in use: an H200 runs 132 / 66 / 39 / 30
    / 15 clusters of 1 / 2 / 3 / 4 / 8 CTAs, and other GPUs are taken to lose as much.
    """
    usable = {1: 1.0, 2: 1.0, 3: 0.89, 4: 0.91}.get(size, 0.91)
    return int(sms * usable + 1e-9) // size


def fixup_terms(fixup: Fixup, peers: int, long_shares: bool) -> tuple[tuple[str, float], ...]:
    """Which constants, how many times, make the cost of adding up ``peers`` partial sums. Another kind of fix-up is one more case.

    A tree whose shares are all at least a tile long has two peers, of which one is long done: h.
    """
    if peers <= 1:
        return ()
    if fixup == "cluster":
        return ("r", 1.0), ("u", log2(peers) - 1)
    if fixup == "tree":
        return (("h", 1.0),) if long_shares else (("b", 1.0), ("d", log2(peers)))
    return ("b", 1.0), ("d" if fixup == "serial" else "d_parallel", peers - 1.0)


class Profile:
    """One kernel on one GPU as the planner needs it: its geometry and the model's constants, worked out once.

    span_m, span_n   rows and columns of c that a work tile (the tiles of a cluster) covers
    slots            work tiles that run at a time
    ctas_per_sm      how many CTAs of the launch an SM is to run at a time
    cluster_slots    (peers, tiles that run at a time) where a tile is split among the CTAs of a cluster
    narrow           whether a, and b, comes in boxes of 64 bytes a row
    """

    __slots__ = (
        *("_alone", "_fixups", "_floor_us", "_iterations", "_twice", "cluster_slots", "constants", "ctas_per_sm", "dram_us"),
        *("half", "limits", "narrow"),
        *("load_a_us", "load_b_us", "power_us", "slots", "span_m", "span_n", "spec", "tile_k"),
    )

    def __init__(
        self,
        spec: KernelSpec,
        sms: int,
        constants: Constants,
        limits: Limits,
        chain: int = 0,
        device_sms: int | None = None,
        ctas_per_sm: int = 1,
        narrow: tuple[bool, bool] | None = None,
    ) -> None:
        """``sms``: those to plan for. ``chain``: elements of k in a chain of tensor-core sums; 0: no limit. ``narrow``: as in
        other layouts than those of ``spec``."""
        if chain:
            factor = 1 + PROMOTION_COST.get(chain, min(PROMOTION_COST.values()))
            constants = replace(constants, c=constants.c * factor)
        device_sms = device_sms or sms
        tile_m, tile_n, self.tile_k = spec.tile
        self.spec, self.constants, self.limits = spec, constants, limits
        span = tile_m * spec.cluster[0], tile_n * spec.cluster[1]
        self.span_m, self.span_n = span[::-1] if spec.swapped else span
        self.ctas_per_sm = ctas_per_sm
        self.slots = max(1, clusters(sms, spec.cluster_size) * ctas_per_sm)
        self.cluster_slots: tuple[tuple[int, int], ...] = ()
        if spec.cluster_fixup and ctas_per_sm == 1:
            self.cluster_slots = tuple((peers, clusters(sms, peers)) for peers in CLUSTER_SPLITS if peers <= sms)
        # Slots that leave half of the SMs idle.
        self.half = max(1, device_sms // 2 // spec.cluster_size)
        # Microseconds in which a CTA loads its share of a's, or b's, part of an iteration, all SMs loading.
        load_us = self.tile_k * ELEMENT_BYTES[spec.dtype] * device_sms / spec.cluster_size / limits.l2_gbs * 1e-3
        self.narrow = spec.narrow_boxes if narrow is None else narrow
        cost_a, cost_b = (1 + limits.narrow * is_narrow for is_narrow in self.narrow)
        self.load_a_us, self.load_b_us = self.span_m * load_us * cost_a, self.span_n * load_us * cost_b
        # Microseconds of the whole GPU for an iteration of one work tile, and for a byte.
        self.power_us = 2 * span[0] * span[1] * self.tile_k / limits.tflops * 1e-6
        self.dram_us = 1e-3 / limits.dram_gbs
        self._alone, self._twice = 1 / (1 + limits.alone), spec.ctas_per_sm > 1 and ctas_per_sm == 1
        # All slots busy, every CTA loading as if it were alone in its pair.
        loads_us = (self.load_a_us + self.load_b_us) * self._alone
        self._floor_us = (constants.c**4 + loads_us**4) ** 0.25 / self.slots
        self._iterations: dict[tuple[int, int], float] = {}
        self._fixups: dict[tuple[Fixup, int, bool], float] = {}

    def packed(self, chained: Sequence[Profile] = ()) -> bytes:
        """All that a decision needs, as native/decide.h reads it. ``chained``: the same where chains of tensor-core sums end after
        one k-tile, and after two; none: they do not."""
        constants, limits = self.constants, self.limits
        clusters = [number for pair in (*self.cluster_slots, (0, 0), (0, 0), (0, 0), (0, 0))[:4] for number in pair]
        return pack(
            PROFILE_FORMAT,
            *(constants.a, constants.b, constants.c, constants.d, constants.d_parallel, constants.e, constants.h),
            *(constants.r, constants.u, self.load_a_us, self.load_b_us, self.power_us, self.dram_us, self._alone, limits.crowded),
            *(self._floor_us, limits.rows16, limits.rows32, limits.rows64, self.span_m, self.span_n, self.tile_k, self.slots),
            *(self.half, self._twice, self.spec.persistent, self.spec.accumulator_fragments, *clusters),
            *(number for one in chained or (self, self) for number in (one.constants.c, one._floor_us)),
        )

    def floor_us(self, work_iters: int, bytes_moved: int) -> float:
        """No decomposition of ``work_iters`` iterations of work tiles takes less."""
        main, power, dram = self._floor_us * work_iters, self.power_us * work_iters, self.dram_us * bytes_moved
        main *= main
        power *= power
        return self.constants.a + sqrt(sqrt(main * main + power * power) + dram * dram) * (1 - 1e-12)

    def time_us(self, load: Load) -> float:
        """What a decomposition is expected to take."""
        iters, tiles, last_iters, last_active, one_wave, work_iters, moved, row_a, row_b, fixup, peers, long_shares = load
        constants = self.constants
        if last_iters:
            loads = self.iteration_us(row_a, row_b) * (iters - last_iters * (1 - self.share(last_active, one_wave)))
        else:
            loads = self.iteration_us(row_a, row_b) * iters
        mma = constants.c * iters
        power = self.power_us * work_iters
        dram = self.dram_us * moved
        mma *= mma
        loads *= loads
        power *= power
        main = sqrt(sqrt(mma * mma + loads * loads)) + constants.e * (tiles - 1)
        main *= main
        time_us = constants.a + sqrt(sqrt(main * main + power * power) + dram * dram)
        return time_us if peers <= 1 else time_us + self.fixup_us(fixup, peers, long_shares)

    def iteration_us(self, row_bytes_a: int, row_bytes_b: int) -> float:
        """How long a CTA loads for an iteration, all SMs loading."""
        key = row_bytes_a & 127, row_bytes_b & 127
        if (known := self._iterations.get(key)) is None:
            row_cost = self.limits.row_cost
            known = self._iterations[key] = self.load_a_us * row_cost(key[0]) + self.load_b_us * row_cost(key[1])
        return known

    def load_us(self, load: Load) -> float:
        """How long the busiest CTA loads."""
        per_iter = self.iteration_us(load.row_bytes_a, load.row_bytes_b)
        return per_iter * (load.iters - load.last_iters * (1 - self.share(load.last_active, load.one_wave)))

    def share(self, active: int, one_wave: bool) -> float:
        """How long a load takes in a wave of ``active`` slots, in loads of a full wave."""
        if not self._twice:
            return self._alone if active <= self.half else 1.0
        if one_wave:
            return self._alone * (1 + self.limits.crowded * active / self.half)
        return min(1.0, self._alone + (1 - self._alone) * active / self.half)

    def terms(self, load: Load, packing: float = 0.0) -> Terms:
        """The terms of ``time_us`` one by one, and of ``packing`` operands."""
        constants = self.constants
        return Terms(
            launch=constants.a,
            mma=constants.c * load.iters,
            load=self.load_us(load),
            tiles=constants.e * (load.tiles - 1),
            power=self.power_us * load.work_iters,
            dram=self.dram_us * load.bytes_moved,
            fixup=self.fixup_us(load.fixup, load.peers, load.long_shares),
            packing=packing,
            total=self.time_us(load) + packing,
        )

    def fixup_us(self, fixup: Fixup, peers: int, long_shares: bool) -> float:
        """What adding up ``peers`` partial sums costs. ``long_shares``: shares are at least a tile long."""
        if peers <= 1:
            return 0.0
        key = fixup, peers, long_shares
        if (known := self._fixups.get(key)) is None:
            known = sum(getattr(self.constants, name) * times for name, times in fixup_terms(*key))
            if len(self._fixups) < 4096:
                self._fixups[key] = known
        return known


def grid_time_us(constants: Constants, tiles: int, iters_per_tile: int, g: int) -> float:
    """The paper's time(g): basic Stream-K of ``tiles`` tiles on ``g`` CTAs."""
    iters_per_cta = -(-tiles * iters_per_tile // g)
    return constants.time_us(iters_per_cta, -(-iters_per_tile // iters_per_cta))


def best_grid(constants: Constants, tiles: int, iters_per_tile: int, sms: int) -> int:
    """The g from 1 to ``sms`` with the least time(g); the smallest one of equals."""
    return min(range(1, sms + 1), key=lambda g: grid_time_us(constants, tiles, iters_per_tile, g))
