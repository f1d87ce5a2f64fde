"""A plan executed on the CPU, segment by segment: what the kernels should compute, with their slots, waits and order of sums.

It is a reference for small problems, not a fast GEMM: it says whether a schedule is right. Sums inside a k-tile are torch's, so
results equal a GPU's bit for bit only where every sum is exact.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch

from .errors import PlanError
from .plan import Plan
from .schedule import Reduction, Segment, reductions, schedule, share, work_tile_coordinates


def execute(plan: Plan, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, alpha: float = 1.0, beta: float = 0.0) -> None:
    """c[m, n] = alpha * a[m, k] @ b[k, n] + beta * c[m, n], in place; CPU tensors of any strides. c is not read when beta is 0.

    Workers take turns, one segment each. Raises :class:`PlanError` if they all wait, or if a partial sum is lost or left over.
    """
    _check(plan, a, b, c)
    if plan.swapped:
        a, b, c = b.t(), a.t(), c.t()
    execution = _Execution(plan, a, b, c, alpha, beta)
    queues: list[deque[Segment | Reduction]] = [deque(segments) for segments in schedule(plan)]
    queues += [deque([reduction]) for reduction in reductions(plan)]
    while any(queues):
        turns = 0
        for queue in queues:
            if queue and execution.ready(queue[0]):
                execution.run(queue.popleft())
                turns += 1
        if turns == 0:
            waiting = [queue[0] for queue in queues if queue]
            raise PlanError(f"deadlock: all {len(waiting)} unfinished workers wait, the first in {waiting[0]}; plan {plan}")
    execution.check_slots()


@dataclass
class _Partial:
    work_tile: int
    sums: torch.Tensor
    reads: int = 0


@dataclass
class _Execution:
    plan: Plan
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    alpha: float
    beta: float
    slots: dict[tuple[int, bool], _Partial] = field(default_factory=dict)

    def ready(self, step: Segment | Reduction) -> bool:
        return all(self._slot(peer, step.work_tile) in self.slots for peer in step.peers)

    def run(self, step: Segment | Reduction) -> None:
        rows, columns = self._block(step.work_tile)
        if isinstance(step, Reduction):
            first, *others = (self._read(peer, step.work_tile) for peer in step.peers)
            self._store(rows, columns, sum(others, start=first), self._fragment_rows(step.fragment, first.shape[0]))
            return
        sums = self._mac_loop(rows, columns, step.k_begin, step.k_end)
        for peer in step.peers:
            sums += self._read(peer, step.work_tile)
        if step.role == "partial":
            self._share(step, sums)
        else:
            self._store(rows, columns, sums)

    def check_slots(self) -> None:
        reads = max(1, len(reductions(self.plan)) // max(1, self.plan.sk_tiles))
        for (unit, _), partial in self.slots.items():
            if partial.reads != reads:
                tile = partial.work_tile
                raise PlanError(f"partial sums of unit {unit} for work tile {tile} were read {partial.reads} times, not {reads}")

    def _slot(self, unit: int, work_tile: int) -> tuple[int, bool]:
        """A unit has one slot; under a separate reduction two, one for the tile that it started."""
        started = share(self.plan, unit)[0] <= work_tile * self.plan.iters_per_tile
        return unit, started and self.plan.reduction_ctas > 0

    def _share(self, segment: Segment, sums: torch.Tensor) -> None:
        if segment.unit is None:
            raise PlanError(f"a data-parallel tile has no slot for partial sums: {segment}")
        slot = self._slot(segment.unit, segment.work_tile)
        if slot in self.slots:
            raise PlanError(f"unit {segment.unit} would overwrite its sums for work tile {self.slots[slot].work_tile}: {segment}")
        self.slots[slot] = _Partial(segment.work_tile, sums)

    def _read(self, unit: int, work_tile: int) -> torch.Tensor:
        partial = self.slots[self._slot(unit, work_tile)]
        if partial.work_tile != work_tile:
            raise PlanError(f"unit {unit} holds sums for work tile {partial.work_tile}, not {work_tile}")
        partial.reads += 1
        return partial.sums

    def _block(self, work_tile: int) -> tuple[slice, slice]:
        """Rows and columns of a work tile: the tiles of a cluster, whose CTAs run in step. Slices end at the matrix's edge."""
        kernel = self.plan.kernel
        work_m, work_n = work_tile_coordinates(self.plan, work_tile)
        height, width = kernel.tile[0] * kernel.cluster[0], kernel.tile[1] * kernel.cluster[1]
        return slice(work_m * height, (work_m + 1) * height), slice(work_n * width, (work_n + 1) * width)

    def _mac_loop(self, rows: slice, columns: slice, k_begin: int, k_end: int) -> torch.Tensor:
        tile_k = self.plan.kernel.tile[2]
        dtype = getattr(torch, self.plan.kernel.accumulator)
        a, b = self.a[rows].to(dtype), self.b[:, columns].to(dtype)
        sums = torch.zeros(a.shape[0], b.shape[1], dtype=dtype, device="cpu")
        for k_tile in range(k_begin, k_end):
            depth = slice(k_tile * tile_k, (k_tile + 1) * tile_k)
            sums.addmm_(a[:, depth], b[depth])
        return sums

    def _fragment_rows(self, fragment: int, height: int) -> list[int]:
        """A fragment is eight rows of each warp's part of the tile."""
        warp_height = self.plan.kernel.tile[0] // self.plan.kernel.warps[0]
        return [row for row in range(height) if row % warp_height // 8 == fragment]

    def _store(self, rows: slice, columns: slice, sums: torch.Tensor, chosen: list[int] | None = None) -> None:
        c = self.c[rows, columns]
        value = self.alpha * sums
        if self.beta != 0:
            value += self.beta * c.to(value.dtype)
        value = value.to(c.dtype)  # torch forgets about a pending negation where it copies float32 to float16
        if chosen is None:
            c.copy_(value)
        else:
            c[chosen] = value[chosen]


def _check(plan: Plan, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    kernel = plan.kernel
    expected = {
        "a": ((plan.m, plan.k), getattr(torch, kernel.dtype)),
        "b": ((plan.k, plan.n), getattr(torch, kernel.dtype)),
        "c": ((plan.m, plan.n), getattr(torch, kernel.out_dtype)),
    }
    for (name, (shape, dtype)), tensor in zip(expected.items(), (a, b, c), strict=True):
        if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.device.type != "cpu":
            found = f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
            raise PlanError(f"{name} must be {shape} {dtype} on cpu for this plan, not {found}")
