"""One problem of a bench: its contenders side by side, on a GPU or made up, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from cutlass_sk.ensemble.arena import CUBLAS, CUBLAS_AGAIN, FINALISTS, Other, Timed, TooLarge
from cutlass_sk.ensemble.bench_store import Key
from cutlass_sk.ensemble.contenders import Called, Contender, Entry, NotTimed, Planned, Searched, Setup
from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.ensemble.planner_sweep import Pretended, described
from cutlass_sk.ensemble.table import Measurement, Timing
from cutlass_sk.ensemble.table_records import PLAN, status
from cutlass_sk.errors import Error
from cutlass_sk.plan import Plan

Tell = Callable[[str], object]


class Bench(Protocol):
    """Times contenders on a GPU (``arena.Arena``), or makes times up (``MadeUp``)."""

    def time(
        self,
        problem: Problem,
        plans: Mapping[str, Plan],
        *,
        again: bool = False,
        others: Mapping[str, Other] | None = None,
        expected_us: float = inf,
    ) -> dict[str, Timed]: ...

    def time_isolated(
        self, problem: Problem, plans: Mapping[str, Plan], *, again: bool = False, others: Mapping[str, Other] | None = None
    ) -> dict[str, Timed]: ...

    def shortlist(self, problem: Problem, plans: Sequence[Plan]) -> tuple[list[Plan], tuple[Plan, ...]]: ...
    def lost(self) -> bool: ...
    def close(self) -> None: ...


class MadeUp(Pretended):
    """Times without a GPU, as ``Pretended`` makes them up: the same for the same problem and contender."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def time(
        self,
        problem: Problem,
        plans: Mapping[str, Plan],
        *,
        again: bool = False,
        others: Mapping[str, Other] | None = None,
        expected_us: float = inf,
    ) -> dict[str, Timed]:
        every = {"": self._setup.plan(problem, self._setup.variants), **plans}  # cuBLAS's time is made of the fastest
        times = super().time(problem, every, again=again)
        cublas_us = times[CUBLAS].us or inf
        times |= {name: Timed(cublas_us * self._near_1(problem, name), 0.0) for name in others or {}}
        del times[""]
        return times

    def time_isolated(
        self, problem: Problem, plans: Mapping[str, Plan], *, again: bool = False, others: Mapping[str, Other] | None = None
    ) -> dict[str, Timed]:
        return self.time(problem, plans, again=again, others=others)

    def shortlist(self, problem: Problem, plans: Sequence[Plan]) -> tuple[list[Plan], tuple[Plan, ...]]:
        return [plan for plan, _ in self.search(problem, plans, plans[0]).best[:FINALISTS]], ()

    def lost(self) -> bool:
        return False


@dataclass(frozen=True)
class Task:
    """One problem for one pair of dtypes in one timing mode. ``place``: of the problem in the order of the corpus."""

    place: int
    problem: Problem
    setup: Setup
    timing: Timing

    @property
    def key(self) -> Key:
        p, setup = self.problem, self.setup
        return setup.dtype, setup.out_dtype, p.m, p.n, p.k, self.timing

    def __str__(self) -> str:
        p = self.problem
        return f"{p.m} x {p.n} x {p.k}, {self.setup.dtype} -> {self.setup.out_dtype}, {self.timing}"


def measure(
    task: Task, corpus: str, contenders: Sequence[Contender], bench: Bench, tolerance: float, tell: Tell
) -> tuple[list[Measurement], dict[str, Any]]:
    """A row for each contender that is measured on this problem, whatever became of it; and, of searches, {name: [plans tried,
    plans wrong or refused]}. Where one raises, each is tried alone, and those that do not are timed together."""
    here = [contender for contender in contenders if task.place % contender.every == 0]
    entries: dict[str, Entry | None] = {}
    for contender in here:
        try:
            entries[contender.name] = contender.entry(task.setup, task.problem)
        except Error as error:
            tell(f"{task}: {contender.name} failed: {error}")
            entries[contender.name] = None
    wanted = {name: entry for name, entry in entries.items() if entry is not None and not isinstance(entry, NotTimed)}
    found: dict[str, dict[str, Any]] = {}
    tried: dict[str, Any] = {}
    try:
        if wanted:
            found, tried = _values(task, wanted, bench, tolerance)
    except TooLarge:
        found = {name: {"status": "not_timed"} for name in wanted}
    except (RuntimeError, Error) as error:
        if not bench.lost():
            found, tried = _apart(task, wanted, bench, tolerance, tell)
        else:
            tell(f"{task}: {error}")
    rows = []
    for name, entry in entries.items():
        values = {"status": "not_timed"} if isinstance(entry, NotTimed) else found.get(name, {})
        rows.append(Measurement(corpus, *task.key, name, **{"us": None, "status": "failed", **values}))
    return rows, tried


def _apart(
    task: Task, entries: Mapping[str, Entry], bench: Bench, tolerance: float, tell: Tell
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """As ``_values``, without those that raise."""
    good: dict[str, Entry] = {}
    for name, entry in entries.items():
        try:
            _values(task, {name: entry}, bench, tolerance)
            good[name] = entry
        except (RuntimeError, Error) as error:
            tell(f"{task}: {name} failed: {error}")
            if bench.lost():
                return {}, {}
    try:
        return _values(task, good, bench, tolerance) if good else ({}, {})
    except (RuntimeError, Error) as error:
        tell(f"{task}: {', '.join(good)} failed together: {error}")
        return {}, {}


def _values(
    task: Task, entries: Mapping[str, Entry], bench: Bench, tolerance: float
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """us, status, error and plan of each contender, timed side by side; what searches tried."""
    plans: dict[str, Plan] = {}
    others: dict[str, Other] = {}
    tried: dict[str, Any] = {}
    for name, entry in entries.items():
        if isinstance(entry, Planned):
            plans[name] = entry.plan
        elif isinstance(entry, Searched):
            finalists, wrong = bench.shortlist(task.problem, entry.plans)
            plans |= {f"{name} {number}": plan for number, plan in enumerate(finalists)}
            tried[name] = [len(entry.plans), len(wrong)]
        elif isinstance(entry, Called) and entry.other is not None:
            others[name] = entry.other
    again = CUBLAS_AGAIN in entries
    if task.timing == "isolated":
        times = bench.time_isolated(task.problem, plans, again=again, others=others)
    else:
        expected_us = task.setup.plan(task.problem, task.setup.variants).predicted_time_us
        times = bench.time(task.problem, plans, again=again, others=others, expected_us=expected_us)
    found: dict[str, dict[str, Any]] = {}
    for name, entry in entries.items():
        if isinstance(entry, Searched):
            several = [_value(times[one], tolerance, plans[one]) for one in plans if one.startswith(f"{name} ")]
            several.sort(key=lambda value: (value["status"] != "ok", value["us"] or inf))
            if several:
                found[name] = several[0]
        elif name in times:
            found[name] = _value(times[name], tolerance, plans.get(name), checked=name in plans or name in others)
    return found, tried


def _value(timed: Timed, tolerance: float, plan: Plan | None, *, checked: bool = True) -> dict[str, Any]:
    """The values of a row from ``us`` on. ``checked``: its result was compared with cuBLAS's."""
    if plan is not None:
        value = described(plan, timed)
    else:
        value = {"us": None if timed.us is None else round(timed.us, 3)}
        if checked:
            error = timed.error
            value["error"] = None if error is None or error != error else float(f"{error:.3g}")
    found = {"us": value["us"], "status": status(value, tolerance), "error": value.get("error")}
    return {**found, **{name: value[name] for name in PLAN if name in value}}
