"""The analytical model: what a decomposition is expected to cost. Pure arithmetic; no torch, no GPU.

The equation is that of the Stream-K paper's appendix (arXiv 2301.03598), for one kernel on one GPU::

    time(g)       = a + b*[peers(g) > 1] + c*iters_per_cta(g) + d*(peers(g) - 1)
    iters_per_cta = ceil(total_iters / g)
    peers         = ceil(iters_per_tile / iters_per_cta)

a: launch, cold misses, storing the tile. b: writing partials. c: one MAC-loop iteration. d: reading and adding one peer's partials.
All in microseconds. For the other decompositions iters_per_cta is what the busiest CTA runs; ``Constants`` has the equation's forms
for kernels that add partials in other ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .device import Device
from .generator.spec import ELEMENT_BYTES, KernelSpec
from .schedule import FIXUP_ARITY


@dataclass(frozen=True)
class Constants:
    """The model's constants for one kernel on one GPU, in microseconds."""

    a: float
    b: float
    c: float
    d: float
    d_parallel: float

    def time_us(self, iters_per_cta: int, peers: int) -> float:
        """The paper's equation: the finisher adds the partials of its peers one after the other."""
        return self.a + (self.b if peers > 1 else 0.0) + self.c * iters_per_cta + self.d * (peers - 1)

    def tree_time_us(self, iters_per_cta: int, peers: int) -> float:
        """Where peers add up as a tree of arity four (3.x): a level writes partials and adds up to three of them."""
        levels, reach = 0, 1
        while reach < peers:
            levels, reach = levels + 1, reach * FIXUP_ARITY
        adds = min(peers - 1, (FIXUP_ARITY - 1) * levels)
        return self.a + self.b * levels + self.c * iters_per_cta + self.d * adds

    def parallel_time_us(self, iters_per_cta: int, peers: int) -> float:
        """Where CTAs of their own add the partials of a tile, its parts side by side."""
        return self.a + self.b + self.c * iters_per_cta + self.d_parallel * (peers - 1)


# (generation, element bytes, tile) -> constants on an H200, 2026-11-30, launches back to back in a graph: a, c from data-parallel
# times of 128x128x16384 (fp64: x8192) and 1024^3, b and d from split-k times of the former, 2 to 64 splits.
MEASURED_H200: dict[tuple[str, int, tuple[int, int, int]], Constants] = {
    ("sm90a", 2, (128, 128, 64)): Constants(a=4.0, b=2.2, c=0.285, d=0.8, d_parallel=0.8),
    ("sm90a", 2, (128, 256, 64)): Constants(a=5.0, b=2.55, c=0.566, d=1.15, d_parallel=1.15),
    ("sm90a", 8, (64, 64, 16)): Constants(a=4.6, b=0.9, c=0.32, d=1.3, d_parallel=0.17),
    ("sm80", 2, (128, 128, 32)): Constants(a=4.5, b=1.5, c=0.315, d=1.0, d_parallel=0.2),
    ("sm80", 8, (64, 64, 16)): Constants(a=4.6, b=1.0, c=0.565, d=1.3, d_parallel=0.17),
}

LAUNCH_US = 4.5
MAIN_LOOP_EFFICIENCY = 0.8
"""Share of a GPU's data-sheet peak that a main loop reaches, where nothing was measured."""
FIXUP_ITERS = {"3x": (5.0, 2.4, 2.4), "2x": (9.0, 8.0, 0.2)}
"""b, d and d_parallel in iterations. 2.x: b and d give the choices of the paper's Figure 8 on an A100: g = 108, 64 and 8."""


@lru_cache(maxsize=1024)
def constants(spec: KernelSpec, device: Device) -> Constants:
    """The constants of ``spec`` on ``device``: those of an H200 on Hopper GPUs of its size, else from the GPU's peak rate."""
    tile_m, tile_n, tile_k = spec.tile
    if (device.capability, device.sms) == ((9, 0), 132):
        measured = MEASURED_H200.get((spec.generation, ELEMENT_BYTES[spec.dtype], spec.tile))
        if measured is not None:
            return measured
    peak_tflops = device.fp64_tflops if spec.dtype == "float64" else device.fp16_tflops
    flop_per_us = peak_tflops * 1e6 * MAIN_LOOP_EFFICIENCY / device.sms
    c = 2 * tile_m * tile_n * tile_k / flop_per_us
    b, d, d_parallel = FIXUP_ITERS[spec.api]
    return Constants(a=LAUNCH_US, b=b * c, c=c, d=d * c, d_parallel=d_parallel * c)


PROMOTION_COST = {64: 0.29, 128: 0.14, 256: 0.1}
"""What ending chains of tensor-core sums every so many elements of k adds to an iteration (H200, see results/NOTES.md)."""


def grid_time_us(constants: Constants, tiles: int, iters_per_tile: int, g: int) -> float:
    """The paper's time(g): basic Stream-K of ``tiles`` tiles on ``g`` CTAs."""
    iters_per_cta = -(-tiles * iters_per_tile // g)
    return constants.time_us(iters_per_cta, -(-iters_per_tile // iters_per_cta))


def best_grid(constants: Constants, tiles: int, iters_per_tile: int, sms: int) -> int:
    """The g from 1 to ``sms`` with the least time(g); the smallest one of equals."""
    return min(range(1, sms + 1), key=lambda g: grid_time_us(constants, tiles, iters_per_tile, g))
