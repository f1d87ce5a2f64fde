"""A bench without a GPU: what is refused, wrong, raised, lost or never ends, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from benches import SETUP, SOURCE, measured, tasks

from cutlass_sk.ensemble import bench
from cutlass_sk.ensemble.attempt import Entrants, Outcome, Timed, TooLarge
from cutlass_sk.ensemble.bench_measure import MadeUp, Pending, Task
from cutlass_sk.ensemble.bench_store import LOG, Folder, read_folder
from cutlass_sk.ensemble.contenders import chosen
from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.ensemble.planner_sweep import Budget
from cutlass_sk.ensemble.table import Timing
from cutlass_sk.errors import DeviceError


class Faulty(MadeUp):
    """Refuses, gets wrong, or raises at what it is told to; and then may be lost."""

    def __init__(self, errors: Mapping[str, Timed] = {}, raising: str = "", gone: bool = False) -> None:
        super().__init__(SETUP)
        self.errors, self.raising, self.gone, self.calls = errors, raising, gone, 0

    def begin(self, problem: Problem, entrants: Entrants, timings: Iterable[Timing]) -> Pending:
        self.calls += 1
        if self.raising and self.raising in {*entrants.plans, *entrants.others}:
            raise RuntimeError("out of memory")
        return super().begin(problem, entrants, timings)

    def outcome(self, problem: Problem, entrants: Entrants, timings: Iterable[Timing]) -> Outcome:
        made = super().outcome(problem, entrants, timings)
        return Outcome({timing: {**times, **self.errors} for timing, times in made.times.items()}, made.found)

    def lost(self) -> bool:
        return self.gone


class Searching(Faulty):
    """Searches of it end with these finalists."""

    def __init__(self, errors: Mapping[str, Timed], finalists: tuple[int, ...]) -> None:
        super().__init__(errors)
        self.finalists = finalists

    def outcome(self, problem: Problem, entrants: Entrants, timings: Iterable[Timing]) -> Outcome:
        made = super().outcome(problem, entrants, timings)
        return Outcome(made.times, {name: replace(found, finalists=self.finalists) for name, found in made.found.items()})


def test_statuses() -> None:
    nan = float("nan")
    refused = {"set": Timed(None, None), "single": Timed(2.0, 0.5), "data_parallel": Timed(3.0, nan), "cublas": Timed(5.0)}
    found = measured(Faulty(refused), list(refused))
    assert {name: (r.status, r.us, r.error) for name, r in found.items()} == {
        "set": ("failed", None, None),
        "single": ("wrong", 2.0, 0.5),
        "data_parallel": ("wrong", 3.0, None),
        "cublas": ("ok", 5.0, None),
    }
    others = measured(Faulty({"cublas_fp32_reduce": Timed(4.0, 9.0)}), ["cublas_fp32_reduce", "cublas_padded"])
    assert [r.status for r in others.values()] == ["wrong", "not_timed"] and not others["cublas_padded"].us
    # The fastest right one of the oracle's counts; wrong ones do not, however fast.
    times = {"oracle 0": Timed(1.0, 7.0), "oracle 1": Timed(9.0, 0.0), "oracle 2": Timed(8.0, 0.0)}
    best = measured(Searching(times, (0, 1, 2)), ["oracle"])
    assert (best["oracle"].status, best["oracle"].us) == ("ok", 8.0) and best["oracle"].decomposition == "data_parallel"
    assert measured(Searching({}, ()), ["oracle", "set"])["oracle"].status == "failed"


def test_what_raises_is_recorded_and_the_others_are_timed() -> None:
    faulty = Faulty(raising="single")
    found = measured(faulty, ["set", "single", "cublas"])
    assert {name: r.status for name, r in found.items()} == {"set": "ok", "single": "failed", "cublas": "ok"}
    assert faulty.calls == 5  # all, one by one, those that do not raise

    class Small(MadeUp):
        def begin(self, *arguments: Any) -> Pending:
            raise TooLarge("does not fit")

    assert {r.status for r in measured(Small(SETUP), ["set", "cublas"]).values()} == {"not_timed"}
    huge = Task(0, Problem(2**31 - 1, 2**31 - 1, 8), SETUP, ("back_to_back",))  # no plan can count its tiles
    assert measured(MadeUp(SETUP), ["set"], huge)["set"].status == "failed"


def test_a_lost_gpu_ends_the_sweep_and_the_next_ones_find_who_was_at_fault(tmp_path: Path) -> None:
    todo = tasks(5)

    class Fatal(Faulty):
        def begin(self, problem: Problem, entrants: Entrants, timings: Iterable[Timing]) -> Pending:
            self.gone = self.gone or problem == todo[1].problem
            if self.gone:
                raise RuntimeError("an illegal memory access was encountered")
            return super().begin(problem, entrants, timings)

    def run(one: MadeUp) -> bench.Ran:
        with Folder(tmp_path, SOURCE) as folder:
            benches = {("float16", "float16"): (one, 1.0)}
            return bench.sweep(todo, "x", chosen(["set"]), benches, folder, Budget(1e9), tell=lambda line: None)

    def held() -> dict[tuple[int, int, int], str]:
        return {(r.m, r.n, r.k): r.status for r in read_folder(tmp_path).rows} if (tmp_path / LOG).exists() else {}

    keys = [task.keys["back_to_back"][2:5] for task in todo]
    with pytest.raises(DeviceError, match="goes on after it"):
        run(Fatal())
    with pytest.raises(DeviceError, match="goes on after it"):  # suspects are measured one by one
        run(Fatal())
    assert held() == {keys[0]: "ok", keys[1]: "failed"}
    assert run(MadeUp(SETUP)) == bench.Ran(3, True)
    assert held() == {key: "failed" if key == keys[1] else "ok" for key in keys}


class Hung(Exception):
    """What ends a sweep in the tests where the process would end."""


def test_a_kernel_that_never_ends_is_found_by_those_who_come_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo, ended = tasks(4), Event()

    class Stuck(MadeUp):
        def begin(self, problem: Problem, entrants: Entrants, timings: Iterable[Timing]) -> Pending:
            made = super().begin(problem, entrants, timings)

            class Waiting:
                prepare, launch = staticmethod(made.prepare), staticmethod(made.launch)

                @staticmethod
                def finish() -> Outcome:
                    if problem == todo[2].problem:
                        assert ended.wait(20)
                        raise Hung  # no RuntimeError: the sweep ends as the process would
                    return made.finish()

            return Waiting()

    monkeypatch.setattr("os._exit", lambda status: (said.append(status), ended.set()))

    def run(one: MadeUp) -> bench.Ran:
        ended.clear()
        with Folder(tmp_path, SOURCE) as folder:
            benches = {("float16", "float16"): (one, 1.0)}
            return bench.sweep(todo, "x", chosen(["set"]), benches, folder, Budget(1e9), tell=said.append, patience=0.3)

    said: list[Any] = []
    for _ in range(2):  # the first finds two suspects, the second which one it is
        with pytest.raises(Hung):
            run(Stuck(SETUP))
    assert said[1::2] == [bench.EXIT_HUNG] * 2 and "nothing was done for 0 s" in said[0] and str(todo[2]) in said[2]
    statuses = {(r.m, r.n, r.k): r.status for r in read_folder(tmp_path).rows}
    assert statuses == {task.keys["back_to_back"][2:5]: "failed" if number == 2 else "ok" for number, task in enumerate(todo[:3])}
    assert run(MadeUp(SETUP)) == bench.Ran(1, True)
