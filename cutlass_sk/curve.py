"""The Stream-K paper's model of one problem: predicted time against the number of CTAs."""

from __future__ import annotations

from dataclasses import dataclass

from .model import Constants, best_grid, grid_time_us


@dataclass(frozen=True)
class Curve:
    """time(g) of basic Stream-K of one problem with the paper's kernel, for g from 1 to ``sms``."""

    size: tuple[int, int, int]
    kernel: str
    device: str
    tiles: int
    iters_per_tile: int
    sms: int
    constants: Constants

    @property
    def best(self) -> int:
        """The g with the least time."""
        return best_grid(self.constants, self.tiles, self.iters_per_tile, self.sms)

    def time_us(self, g: int) -> float:
        return grid_time_us(self.constants, self.tiles, self.iters_per_tile, g)

    def iters_per_cta(self, g: int) -> int:
        return -(-self.tiles * self.iters_per_tile // g)

    def peers(self, g: int) -> int:
        return -(-self.iters_per_tile // self.iters_per_cta(g))

    @property
    def title(self) -> str:
        count = f"{self.tiles} tile{'' if self.tiles == 1 else 's'} of {self.iters_per_tile} k-tiles"
        return f"{' x '.join(map(str, self.size))}\n{count}"
