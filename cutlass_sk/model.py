"""The analytical model: what a decomposition is expected to cost. Pure arithmetic; no torch, no GPU.

The equation is that of the Stream-K paper's appendix (arXiv 2301.03598), for one kernel on one GPU::

    time(g)       = a + b*[peers(g) > 1] + c*iters_per_cta(g) + d*(peers(g) - 1)
    iters_per_cta = ceil(total_iters / g)
    peers         = ceil(iters_per_tile / iters_per_cta)

a: launch, cold misses, storing the tile. b: writing partials. c: one MAC-loop iteration. d: reading and adding one peer's partials.
All in microseconds. For the other decompositions iters_per_cta is what the busiest CTA runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .device import Device
from .generator.spec import KernelSpec


@dataclass(frozen=True)
class Constants:
    """The model's constants for one kernel on one GPU, in microseconds."""

    a: float
    b: float
    c: float
    d: float

    def time_us(self, iters_per_cta: int, peers: int) -> float:
        """Expected time of a launch whose busiest CTA runs ``iters_per_cta`` iterations and whose tiles have ``peers`` CTAs."""
        return self.a + (self.b if peers > 1 else 0.0) + self.c * iters_per_cta + self.d * (peers - 1)


LAUNCH_US = 3.0
MAIN_LOOP_EFFICIENCY = 0.8
"""Share of a GPU's data-sheet peak that a main loop reaches, where nothing was measured."""
FIXUP_ITERS = {"3x": (2.0, 1.5), "2x": (9.0, 8.0)}
"""b and d in iterations. 2.x: on an A100 these give the choices of the paper's Figure 8: g = 108, 64 and 8."""


@lru_cache(maxsize=1024)
def constants(spec: KernelSpec, device: Device) -> Constants:
    """The constants of ``spec`` on ``device``, from the GPU's peak rate."""
    tile_m, tile_n, tile_k = spec.tile
    peak_tflops = device.fp64_tflops if spec.dtype == "float64" else device.fp16_tflops
    flop_per_us = peak_tflops * 1e6 * MAIN_LOOP_EFFICIENCY / (device.sms * spec.ctas_per_sm)
    c = 2 * tile_m * tile_n * tile_k / flop_per_us
    b, d = FIXUP_ITERS[spec.api]
    return Constants(a=LAUNCH_US, b=b * c, c=c, d=d * c)


def grid_time_us(constants: Constants, tiles: int, iters_per_tile: int, g: int) -> float:
    """The paper's time(g): basic Stream-K of ``tiles`` tiles on ``g`` CTAs."""
    iters_per_cta = -(-tiles * iters_per_tile // g)
    return constants.time_us(iters_per_cta, -(-iters_per_tile // iters_per_cta))


def best_grid(constants: Constants, tiles: int, iters_per_tile: int, sms: int) -> int:
    """The g from 1 to ``sms`` with the least time(g); the smallest one of equals."""
    return min(range(1, sms + 1), key=lambda g: grid_time_us(constants, tiles, iters_per_tile, g))
