"""One problem of a bench: its contenders side by side, on a GPU or made up, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol, TypeVar

from cutlass_sk.ensemble.attempt import CUBLAS, CUBLAS_AGAIN, QUICK, Entrants, Found, Outcome, Timed, TooLarge
from cutlass_sk.ensemble.bench_store import Key
from cutlass_sk.ensemble.contenders import Called, Contender, Entry, NotTimed, Planned, Searched, Setup
from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.ensemble.planner_sweep import Pretended, described
from cutlass_sk.ensemble.table import Measurement, Timing
from cutlass_sk.ensemble.table_records import PLAN, status
from cutlass_sk.errors import Error
from cutlass_sk.plan import Plan

Tell = Callable[[str], object]
T = TypeVar("T")


class Pending(Protocol):
    """One problem in flight, as ``attempt.Attempt`` is."""

    def prepare(self) -> None: ...
    def launch(self) -> None: ...
    def finish(self) -> Outcome: ...


class Bench(Protocol):
    """Times contenders on a GPU (``arena.Arena``), or makes times up (``MadeUp``)."""

    def begin(self, problem: Problem, entrants: Entrants, timings: Iterable[Timing]) -> Pending: ...
    def lost(self) -> bool: ...
    def close(self) -> None: ...


class MadeUp(Pretended):
    """Times without a GPU, as ``Pretended`` makes them up: the same for the same problem and contender."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def begin(self, problem: Problem, entrants: Entrants, timings: Iterable[Timing]) -> Pending:
        return _MadeUpAttempt(self, problem, entrants, tuple(timings))

    def outcome(self, problem: Problem, entrants: Entrants, timings: Iterable[Timing]) -> Outcome:
        plans, found = dict(entrants.plans), {}
        calls: dict[str, Timed] = {}
        cublas_us = self._setup.plan(problem, self._setup.variants).predicted_time_us * self._near_1(problem, CUBLAS)
        for name, several in entrants.searches.items():
            if callable(several):
                found[name] = Found(1, (), (0,))
                calls[f"{name} 0"] = Timed(cublas_us * self._near_1(problem, name), 0.0)
                continue
            order = sorted(range(len(several)), key=lambda number: self._us(problem, several[number]))
            found[name] = Found(len(several), (), tuple(order[: QUICK.finalists]))
            plans |= {f"{name} {number}": several[number] for number in found[name].finalists}
        times = {name: Timed(self._us(problem, plan), 0.0) for name, plan in plans.items()}
        times |= {name: Timed(cublas_us * self._near_1(problem, name), 0.0) for name in entrants.others}
        times |= {**calls, CUBLAS: Timed(cublas_us), **({CUBLAS_AGAIN: Timed(cublas_us)} if entrants.again else {})}
        return Outcome({timing: times for timing in timings}, found)

    def lost(self) -> bool:
        return False


@dataclass(frozen=True)
class _MadeUpAttempt:
    bench: MadeUp
    problem: Problem
    entrants: Entrants
    timings: tuple[Timing, ...]

    def prepare(self) -> None:
        pass

    def launch(self) -> None:
        pass

    def finish(self) -> Outcome:
        return self.bench.outcome(self.problem, self.entrants, self.timings)


@dataclass(frozen=True)
class Task:
    """One problem for one pair of dtypes. ``place``: of the problem in the order of the corpus."""

    place: int
    problem: Problem
    setup: Setup
    timings: tuple[Timing, ...]

    @property
    def keys(self) -> dict[Timing, Key]:
        p, setup = self.problem, self.setup
        return {timing: (setup.dtype, setup.out_dtype, p.m, p.n, p.k, timing) for timing in self.timings}

    def without(self, done: set[Key]) -> Task:
        """What is left of it."""
        return replace(self, timings=tuple(timing for timing, key in self.keys.items() if key not in done))

    def __str__(self) -> str:
        p = self.problem
        return f"{p.m} x {p.n} x {p.k}, {self.setup.dtype} -> {self.setup.out_dtype}"


Rows = dict[Timing, list[Measurement]]
Values = dict[Timing, dict[str, dict[str, Any]]]


class Measuring:
    """One task in flight: begun as it is made, then ``time``, then ``finish``. Nothing raises: what did is recorded as failed."""

    def __init__(self, task: Task, contenders: Iterable[Contender], bench: Bench, tolerance: float, tell: Tell) -> None:
        self.task, self.bench, self._tolerance, self._tell = task, bench, tolerance, tell
        self.failed = False
        self._entries: dict[str, Entry | None] = {}
        for contender in contenders:
            if task.place % contender.every:
                continue
            try:
                self._entries[contender.name] = contender.entry(task.setup, task.problem)
            except Error as error:
                tell(f"{task}: {contender.name} failed: {error}")
                self._entries[contender.name] = None
        self._wanted = {name: entry for name, entry in self._entries.items() if not (entry is None or isinstance(entry, NotTimed))}
        self._error: Exception | None = None
        self._attempt = self._step(lambda: self._begin(self._wanted)) if self._wanted else None

    def time(self) -> None:
        """Prepares and enqueues what is timed."""
        if self._attempt is not None and self._error is None:
            self._step(self._attempt.prepare)
        if self._attempt is not None and self._error is None:
            self._step(self._attempt.launch)

    def finish(self, corpus: str) -> tuple[Rows, dict[str, Any]]:
        """A row for each contender that is measured on this problem, by timing, whatever became of it; and, of searches, {name:
        [candidates tried, candidates wrong or refused]}. Where one raised, each is tried alone, and those that do not are timed
        together."""
        values: Values = {}
        tried: dict[str, Any] = {}
        if self._attempt is not None and self._error is None:
            outcome = self._step(self._attempt.finish)
            if outcome is not None:
                values, tried = self._read(self._wanted, outcome)
        if isinstance(self._error, TooLarge):
            values = {timing: {name: {"status": "not_timed"} for name in self._wanted} for timing in self.task.timings}
        elif self._error is not None:
            if self.bench.lost():
                self._tell(f"{self.task}: {self._error}")
            else:
                values, tried = self._apart()
        self._attempt = None
        rows = self._rows(corpus, values)
        self.failed = any(row.status == "failed" for several in rows.values() for row in several)
        return rows, tried

    def given_up(self, corpus: str) -> Rows:
        """The rows where it never ends: ``failed`` for all that was to be timed."""
        return self._rows(corpus, {})

    def _rows(self, corpus: str, values: Values) -> Rows:
        rows: Rows = {}
        for timing, key in self.task.keys.items():
            rows[timing] = []
            for name, entry in self._entries.items():
                found = {"status": "not_timed"} if isinstance(entry, NotTimed) else values.get(timing, {}).get(name, {})
                rows[timing].append(Measurement(corpus, *key, name, **{"us": None, "status": "failed", **found}))
        return rows

    def _step(self, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except (RuntimeError, Error, TooLarge) as error:
            self._error = error
            return None

    def _begin(self, wanted: Mapping[str, Entry]) -> Pending:
        entrants = Entrants(
            plans={name: entry.plan for name, entry in wanted.items() if isinstance(entry, Planned)},
            others={name: entry.other for name, entry in wanted.items() if isinstance(entry, Called) and entry.other is not None},
            searches={name: entry.candidates for name, entry in wanted.items() if isinstance(entry, Searched)},
            again=CUBLAS_AGAIN in wanted,
        )
        if entrants.least_us == inf:
            setup = self.task.setup
            entrants = replace(entrants, expected_us=setup.plan(self.task.problem, setup.variants).predicted_time_us)
        return self.bench.begin(self.task.problem, entrants, self.task.timings)

    def _alone(self, wanted: Mapping[str, Entry]) -> tuple[Values, dict[str, Any]]:
        attempt = self._begin(wanted)
        attempt.prepare()
        attempt.launch()
        return self._read(wanted, attempt.finish())

    def _apart(self) -> tuple[Values, dict[str, Any]]:
        """As all together, without those that raise."""
        good: dict[str, Entry] = {}
        for name, entry in self._wanted.items():
            try:
                self._alone({name: entry})
                good[name] = entry
            except (RuntimeError, Error) as error:
                self._tell(f"{self.task}: {name} failed: {error}")
                if self.bench.lost():
                    return {}, {}
        try:
            return self._alone(good) if good else ({}, {})
        except (RuntimeError, Error) as error:
            self._tell(f"{self.task}: {', '.join(good)} failed together: {error}")
            return {}, {}

    def _read(self, wanted: Mapping[str, Entry], outcome: Outcome) -> tuple[Values, dict[str, Any]]:
        """us, status, error and plan of each contender; what searches tried."""
        values: Values = {}
        for timing, times in outcome.times.items():
            values[timing] = own = {}
            for name, entry in wanted.items():
                if isinstance(entry, Searched):
                    several = [
                        _value(times[f"{name} {number}"], self._tolerance, entry.plan(number))
                        for number in outcome.found[name].finalists
                    ]
                    several.sort(key=lambda value: (value["status"] != "ok", value["us"] or inf))
                    if several:
                        own[name] = several[0]
                elif name in times:
                    plan = entry.plan if isinstance(entry, Planned) else None
                    own[name] = _value(times[name], self._tolerance, plan, checked=name not in (CUBLAS, CUBLAS_AGAIN))
        return values, {name: [found.tried, len(found.wrong)] for name, found in outcome.found.items()}


def measure(
    task: Task, corpus: str, contenders: Sequence[Contender], bench: Bench, tolerance: float, tell: Tell
) -> tuple[Rows, dict[str, Any]]:
    """One task by itself, from begin to end."""
    one = Measuring(task, contenders, bench, tolerance, tell)
    one.time()
    return one.finish(corpus)


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
