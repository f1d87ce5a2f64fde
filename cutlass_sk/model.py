"""The analytical model: what a decomposition is expected to cost. Pure arithmetic; no torch, no GPU.

The equation is that of the Stream-K paper's appendix (arXiv 2301.03598), for one kernel on one GPU::

    time(g)       = a + b*[peers(g) > 1] + c*iters_per_cta(g) + d*(peers(g) - 1)
    iters_per_cta = ceil(total_iters / g)
    peers         = ceil(iters_per_tile / iters_per_cta)

a: launch, cold misses, storing the tile. b: writing partials. c: one MAC-loop iteration. d: reading and adding one peer's partials.
All in microseconds. For the other decompositions iters_per_cta is what the busiest CTA runs.

A Hopper GPU needs more. ``Profile.time_us`` extends the equation to::

    time = a + norm4(c*iters + e*(tiles - 1), l2, dram, power) + fixup(peers)

tiles: how many tiles the busiest CTA finishes; e: what a tile costs beyond its iterations (its epilogue, unless the main loop of
the next one hides it). l2 and dram: bytes that all CTAs load (a cluster loads for its CTAs together) and that the problem has, over
what the GPU moves. power: all operations, padding included, over the rate that the GPU sustains. norm4, the fourth root of the sum
of fourth powers, is the largest of them where one is much larger, and more where two are close. fixup: peers add up as a tree of
arity four, b for each of its levels and d for each partial that is added on its longest path; where all shares are at least a tile
long, a unit meets one other that is long done: h.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from .generator.spec import ELEMENT_BYTES, KernelSpec
from .plan import CLUSTER_SPLITS
from .schedule import FIXUP_ARITY


@dataclass(frozen=True)
class Constants:
    """The model's constants for one kernel on one GPU, in microseconds.

    a            launch, first loads, storing the last tile
    b            a level of fix-up: writing partials, telling, waiting (2.x: once)
    c            one main-loop iteration of a CTA
    d            reading and adding one peer's partials
    d_parallel   the same where CTAs of their own add the partials (2.x)
    e            a tile beyond its iterations
    h            fix-up between shares that are at least a tile long
    r, u         fix-up within a cluster: of two peers, and for each further one
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
    """What a whole GPU sustains: GB/s out of the L2 cache and out of memory, and TFLOP/s in one dtype, for as long as one likes."""

    l2_gbs: float
    dram_gbs: float
    tflops: float


PROMOTION_COST = {64: 0.29, 128: 0.14, 256: 0.1}
"""What ending chains of tensor-core sums every so many elements of k adds to an iteration (H200, see results/NOTES.md)."""


def cluster_slots(sms: int) -> tuple[tuple[int, int], ...]:
    """(CTAs in a cluster, clusters that fit) for each number of parts in which a cluster may split a tile.

    A cluster lies within a GPC. Those of an H200 have 16 or 18 SMs of which not all work, so that clusters of more than two leave
    some idle.
    """
    usable = {2: 1.0, 3: 0.9, 4: 0.9, 8: 0.84}
    return tuple((peers, int(sms * usable[peers]) // peers) for peers in CLUSTER_SPLITS if peers <= sms)


def tree(peers: int) -> tuple[int, int]:
    """(levels, partials added on the longest path) of the fix-up of ``peers`` units that meet in a tile."""
    levels, reach = 0, 1
    while reach < peers:
        levels, reach = levels + 1, reach * FIXUP_ARITY
    return levels, min(peers - 1, (FIXUP_ARITY - 1) * levels)


_TREES = [tree(max(1, peers)) for peers in range(257)]


class Profile:
    """One kernel on one GPU as the planner needs it: its geometry and the model's constants, worked out once.

    span_m, span_n   rows and columns of c that a work tile (the tiles of a cluster) covers
    slots            work tiles that run at a time
    cluster_slots    (peers, tiles that run at a time) where a tile is split among the CTAs of a cluster
    """

    __slots__ = (
        "cluster_slots",
        "constants",
        "dram_us",
        "l2_us",
        "power_us",
        "slots",
        "span_m",
        "span_n",
        "spec",
        "tile_k",
        "tree_fixup",
    )

    def __init__(self, spec: KernelSpec, sms: int, constants: Constants, limits: Limits, chain: int = 0) -> None:
        """``chain``: elements of k in a chain of tensor-core sums (see ``planner.promotion``); 0: no limit."""
        if chain:
            factor = 1 + PROMOTION_COST.get(chain, min(PROMOTION_COST.values()))
            constants = replace(constants, c=constants.c * factor)
        tile_m, tile_n, self.tile_k = spec.tile
        self.spec, self.constants = spec, constants
        span = tile_m * spec.cluster[0], tile_n * spec.cluster[1]
        self.span_m, self.span_n = span[::-1] if spec.swapped else span
        self.slots = max(1, sms // spec.cluster_size)
        self.cluster_slots = cluster_slots(sms) if spec.cluster_fixup else ()
        self.tree_fixup = spec.persistent
        # Microseconds of the whole GPU for an iteration of one work tile, and for a byte.
        self.l2_us = sum(span) * self.tile_k * ELEMENT_BYTES[spec.dtype] / limits.l2_gbs * 1e-3
        self.power_us = 2 * span[0] * span[1] * self.tile_k / limits.tflops * 1e-6
        self.dram_us = 1e-3 / limits.dram_gbs

    def floor_us(self, work_iters: int, bytes_moved: int) -> float:
        """No decomposition of ``work_iters`` iterations of work tiles takes less."""
        per_iter = max(self.constants.c / self.slots, self.power_us, self.l2_us)
        return self.constants.a + max(per_iter * work_iters, self.dram_us * bytes_moved)

    def time_us(self, iters: int, tiles: int, work_iters: int, bytes_moved: int, fixup_us: float) -> float:
        """``iters`` iterations and ``tiles`` tiles of the busiest slot, ``work_iters`` iterations of work tiles in all."""
        constants = self.constants
        main = constants.c * iters + constants.e * (tiles - 1)
        l2, power, dram = self.l2_us * work_iters, self.power_us * work_iters, self.dram_us * bytes_moved
        main *= main
        l2 *= l2
        power *= power
        dram *= dram
        return float(constants.a + fixup_us + (main * main + l2 * l2 + power * power + dram * dram) ** 0.25)

    def cluster_fixup_us(self, peers: int) -> float:
        """What adding up the sums of ``peers`` CTAs of one cluster costs."""
        return self.constants.r + self.constants.u * (peers - 2)

    def fixup_us(self, peers: int, long_shares: bool, parallel: bool = False) -> float:
        """What adding up ``peers`` partial sums costs. ``long_shares``: shares are at least a tile long."""
        constants = self.constants
        if peers <= 1:
            return 0.0
        if not self.tree_fixup:
            return constants.b + (constants.d_parallel if parallel else constants.d) * (peers - 1)
        if long_shares:
            return constants.h
        levels, adds = _TREES[peers] if peers < len(_TREES) else tree(peers)
        return constants.b * levels + constants.d * adds


def grid_time_us(constants: Constants, tiles: int, iters_per_tile: int, g: int) -> float:
    """The paper's time(g): basic Stream-K of ``tiles`` tiles on ``g`` CTAs."""
    iters_per_cta = -(-tiles * iters_per_tile // g)
    return constants.time_us(iters_per_cta, -(-iters_per_tile // iters_per_cta))


def best_grid(constants: Constants, tiles: int, iters_per_tile: int, sms: int) -> int:
    """The g from 1 to ``sms`` with the least time(g); the smallest one of equals."""
    return min(range(1, sms + 1), key=lambda g: grid_time_us(constants, tiles, iters_per_tile, g))
