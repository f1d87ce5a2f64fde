"""The schedule of a plan laid out in time: which SM does what, from when to when.

Time is counted in MAC-loop iterations. CTAs start in launch order, each on the SM that is free first, one an SM. Storing partial
sums takes no time, adding those of one peer takes ``fixup_iters``: with 0, the pictures of the Stream-K paper.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from .errors import PlanError
from .model import clusters
from .plan import Plan
from .schedule import Segment, worker_count, worker_segments

Action = Literal["mac", "store", "wait", "fixup"]

MOST_SEGMENTS = 20_000
"""Beyond what a picture can show."""


@dataclass(frozen=True)
class Step:
    """What a CTA does from ``begin`` to ``end``, in iterations.

    sm       the row: an SM, or the SMs that run a cluster
    worker   the CTA or cluster, by its place in the launch order
    action   ``mac``: all k-tiles of ``segment``. ``store``: putting out its partial sums. ``wait``, ``fixup``: waiting for those of
             ``peer``, adding them
    """

    sm: int
    worker: int
    action: Action
    begin: int
    end: int
    segment: Segment
    peer: int | None = None


@dataclass(frozen=True)
class Timeline:
    """All steps of a launch. Those of an SM follow each other without a gap; it is idle from the last one's end on."""

    plan: Plan
    sms: int
    fixup_iters: int
    steps: tuple[Step, ...]

    @property
    def length(self) -> int:
        """When the last CTA ends."""
        return max(self.ends())

    def ends(self) -> list[int]:
        """When each SM has done its last step; 0 where it has none."""
        ends = [0] * self.sms
        for step in self.steps:
            ends[step.sm] = max(ends[step.sm], step.end)
        return ends

    @property
    def cut_tiles(self) -> int:
        """Work tiles whose k-tiles several units run."""
        runs = Counter(step.segment.work_tile for step in self.steps if step.action == "mac")
        return sum(count > 1 for count in runs.values())

    @property
    def utilisation(self) -> float:
        """Iterations that are run / (SMs x length): the paper's quantization efficiency."""
        busy = sum(step.end - step.begin for step in self.steps if step.action == "mac")
        return busy / (self.sms * self.length)


def timeline(plan: Plan, fixup_iters: int = 0) -> Timeline:
    """Lays out ``plan``; PlanError where it is too large to draw, or adds partial sums in clusters or in CTAs of their own."""
    if plan.fixup in ("cluster", "separate"):
        raise PlanError(f"partial sums added by fixup={plan.fixup!r} are not drawn; take a plan whose finishers add them")
    if plan.tiles + plan.sk_units > MOST_SEGMENTS:
        raise PlanError(
            f"{plan.tiles} tiles and {plan.sk_units} shares are too many to draw; take larger tiles or a smaller problem"
        )
    sms = max(1, clusters(plan.requested_grid, plan.kernel.cluster_size))
    layout = _Layout(fixup_iters)
    free = [(0, sm) for sm in range(sms)]
    for worker in range(worker_count(plan)):
        now, sm = heapq.heappop(free)
        for segment in worker_segments(plan, worker):
            now = layout.run(sm, worker, segment, now)
        heapq.heappush(free, (now, sm))
    return Timeline(plan, sms, fixup_iters, tuple(layout.steps))


@dataclass
class _Layout:
    """``ready``: when the partial sums of a (unit, work tile) are there. A unit waits for units of lower CTAs only, so in launch
    order they are known."""

    fixup_iters: int
    steps: list[Step] = field(default_factory=list)
    ready: dict[tuple[int, int], int] = field(default_factory=dict)

    def run(self, sm: int, worker: int, segment: Segment, begin: int) -> int:
        """Lays out a segment from ``begin`` on; when it ends."""
        now = begin + segment.k_end - segment.k_begin
        self.steps.append(Step(sm, worker, "mac", begin, now, segment))
        for peer in segment.peers:
            if (there := self.ready[peer, segment.work_tile]) > now:
                self.steps.append(Step(sm, worker, "wait", now, there, segment, peer))
                now = there
            self.steps.append(Step(sm, worker, "fixup", now, now + self.fixup_iters, segment, peer))
            now += self.fixup_iters
        if segment.role == "partial" and segment.unit is not None:
            self.steps.append(Step(sm, worker, "store", now, now, segment))
            self.ready[segment.unit, segment.work_tile] = now
        return now
