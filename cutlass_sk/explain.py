"""Why a plan won: its candidates, the terms of the model's equation for each, and what they say. Pure: no torch, no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import calibration, planner
from .device import Device
from .generator.spec import KernelSpec
from .model import Terms
from .plan import Plan
from .work import NOTHING, load

BOUNDS = {
    "launch": "launching",
    "mma": "the main loop's arithmetic",
    "load": "loads from L2",
    "tiles": "epilogues between tiles",
    "power": "what the GPU sustains",
    "dram": "memory",
    "fixup": "adding up partial sums",
    "packing": "packing operands whose rows start off 16 bytes",
}
"""What each of ``Terms`` stands for."""


@dataclass(frozen=True)
class Candidate:
    """A plan and the terms of its predicted time, in microseconds. ``bound``: the largest of them."""

    plan: Plan
    terms: Terms

    @property
    def bound(self) -> str:
        return max(BOUNDS, key=lambda name: float(getattr(self.terms, name)))

    @property
    def time_us(self) -> float:
        return self.plan.predicted_time_us

    def __str__(self) -> str:
        plan = self.plan
        cut = f" in {plan.splits}" if plan.splits > 1 else f" of {plan.sk_tiles} tiles in {plan.sk_units}" if plan.sk_units else ""
        return f"{plan.kernel.family} {plan.decomposition}{cut}{' by clusters' if plan.fixup == 'cluster' else ''}"


@dataclass(frozen=True)
class Explanation:
    """All candidates for one problem, the fastest expected first: that one is the plan.

    constants   where the model's constants come from
    """

    m: int
    n: int
    k: int
    device: str
    constants: str
    candidates: tuple[Candidate, ...]

    @property
    def plan(self) -> Plan:
        return self.candidates[0].plan

    @property
    def data_parallel(self) -> Candidate:
        """The winner's kernel, data-parallel."""
        same = (one for one in self.candidates if one.plan.kernel == self.plan.kernel and not one.plan.sk_units)
        return next(same, self.candidates[0])

    @property
    def next_kernel(self) -> Candidate | None:
        """The best of another kernel; None where there is no other."""
        return next((one for one in self.candidates if one.plan.kernel != self.plan.kernel), None)

    def why(self) -> str:
        """Sentences: what bounds the winner, and what it gains over its own kernel data-parallel and over the next kernel.

        What another one has more of in a term may be longer than it takes more: the terms overlap.
        """
        first = self.candidates[0]
        sentences = [f"{first} is expected to take {first.time_us:.1f} us, most of it for {BOUNDS[first.bound]}."]
        plain = self.data_parallel
        if plain is not first:
            sentences.append(f"Data-parallel, the same kernel would take {plain.time_us:.1f} us{_difference(first, plain)}.")
        elif len(shared := [one for one in self.candidates if one.plan.kernel == first.plan.kernel]) > 1:
            sentences.append(f"Sharing k, the same kernel would take {shared[1].time_us:.1f} us{_difference(first, shared[1])}.")
        if (other := self.next_kernel) is not None:
            sentences.append(f"The next kernel, {other}, would take {other.time_us:.1f} us{_difference(first, other)}.")
        if len(sentences) > 1:
            sentences.append("Terms overlap, so that one may differ by more than the times do.")
        return " ".join(sentences)

    def __str__(self) -> str:
        """A table of the ten best, and why."""
        names = (*BOUNDS, "total")
        width = max(len(str(one)) for one in self.candidates[:10])
        lines = [f"{self.m} x {self.n} x {self.k} on {self.device}, microseconds; constants {self.constants}"]
        lines.append(f"{'':{width}}" + "".join(f"{name:>8}" for name in names) + "  bound by")
        for one in self.candidates[:10]:
            lines.append(f"{one!s:{width}}" + "".join(f"{getattr(one.terms, name):8.2f}" for name in names) + f"  {one.bound}")
        return "\n".join([*lines, self.why()])


def _difference(winner: Candidate, other: Candidate) -> str:
    """Where the other loses most; empty where no term is larger."""
    lost = {name: getattr(other.terms, name) - getattr(winner.terms, name) for name in BOUNDS}
    name = max(lost, key=lambda key: float(lost[key]))
    return f", {lost[name]:.1f} us more for {BOUNDS[name]}" if lost[name] >= 0.05 else ""


def explain(m: int, n: int, k: int, kernels: Sequence[KernelSpec], device: Device) -> Explanation:
    """Every candidate that the planner scores for c[m, n] = a[m, k] @ b[k, n]; the first is what ``planner.make_plan`` gives."""
    winner = planner.make_plan(m, n, k, kernels, device)
    chosen, found = planner.kernel_set(tuple(kernels), device), []
    for scored in planner.scored(winner.m, winner.n, winner.k, kernels, device, NOTHING):
        packing = chosen.packing_us(winner.m, winner.n, winner.k, scored.work.spec.alignment)
        terms = scored.work.profile.terms(load(scored.work, scored.choice), packing)
        found.append(Candidate(planner.build(scored, NOTHING), terms))
    # The planner takes kernels in the order of what they cannot do without: among equals, its choice is the winner.
    found.sort(key=lambda one: (one.time_us, one.plan != winner))
    return Explanation(winner.m, winner.n, winner.k, device.name, calibration.described(device), tuple(found))
