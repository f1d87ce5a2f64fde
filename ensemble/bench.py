"""Contenders on the problems of a corpus, on one GPU: the sweep behind ``cutlass-sk bench``.

Problems are worked through in a shuffled order that is always the same, so that what was measured until the budget is spent is a
fair sample; every problem for all dtypes before the next one. How they are timed is ``attempt.Attempt``'s.
"""

from __future__ import annotations

import gc
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from random import Random
from typing import Any

import torch

from cutlass_sk import Gemm, env, packing
from cutlass_sk.calibration import calibration_of
from cutlass_sk.device import Device
from cutlass_sk.ensemble.attempt import QUICK
from cutlass_sk.ensemble.bench_measure import Bench, Measuring, Task, Tell
from cutlass_sk.ensemble.bench_store import Folder
from cutlass_sk.ensemble.contenders import Contender, Setup
from cutlass_sk.ensemble.corpus import Corpus, Problem
from cutlass_sk.ensemble.planner_sweep import METHOD, Budget
from cutlass_sk.ensemble.table import SCHEMA_VERSION, Measurement, Timing
from cutlass_sk.ensemble.watchdog import Watchdog
from cutlass_sk.errors import DeviceError
from cutlass_sk.generator.catalog import DTYPES
from cutlass_sk.generator.spec import KernelSpec, Layout
from cutlass_sk.provenance import provenance

ORDER_SEED = 83
PATIENCE_SECONDS, EXIT_HUNG = 120.0, 4
WIDEST_ALIGNMENT = 8
"""In elements: no kernel wants leading dimensions to be multiples of more."""
PAIRS = {dtype if dtype == out_dtype else f"{dtype}_{out_dtype}": (dtype, out_dtype) for dtype, out_dtype in DTYPES}
"""Name of a pair of dtypes -> element types of a and b, and of c."""


@dataclass(frozen=True)
class Ran:
    """What a sweep did: tasks measured now, and whether all of its tasks are done."""

    measured: int
    complete: bool


def ordered(corpus: Corpus, limit: int | None = None) -> list[tuple[int, Problem]]:
    """(place, problem): the corpus's different (m, n, k), shuffled, always in the same way; the first ``limit`` of them."""
    once: dict[tuple[int, int, int], Problem] = {}
    for problem in corpus:
        once.setdefault((problem.m, problem.n, problem.k), problem)
    problems = list(once.values())
    Random(ORDER_SEED).shuffle(problems)
    return list(enumerate(problems[:limit]))


def tasks(
    problems: Iterable[tuple[int, Problem]], setups: Sequence[Setup], timings: Sequence[Timing], isolated_every: int = 1
) -> Iterator[Task]:
    """All of one problem before the next one. ``isolated_every``: of how many problems one is timed isolated, if that is wanted."""
    for (place, problem), setup in product(problems, setups):
        wanted = tuple(timing for timing in timings if timing != "isolated" or place % isolated_every == 0)
        if wanted:
            yield Task(place, problem, setup, wanted)


def setup_of(pair: str, device: Device, layout: str | None = None) -> Setup:
    """The setup of one of ``PAIRS``. ``layout``: of a and b, such as ``tn``; default ``tn``, and ``tt`` for float64."""
    dtype, out_dtype = PAIRS[pair]
    text = layout or ("tt" if dtype == "float64" else "tn")
    letters: dict[str, Layout] = {"t": "t", "n": "n"}
    kernels = Gemm(dtype, out_dtype=out_dtype, device=device).kernels
    return Setup(dtype, out_dtype, (letters[text[0]], letters[text[1]]), kernels, device)


def opened(
    setup: Setup, problems: Iterable[Problem], contenders: Iterable[Contender], stream: torch.cuda.Stream | None = None
) -> tuple[Bench, float]:
    """A bench on the current GPU, with every kernel that may be launched built and loaded; the tolerance of its check.

    stream   benches that are used in turn must share one
    """
    from cutlass_sk.ensemble.arena import TOLERANCE, Arena
    from cutlass_sk.jit.build import build
    from cutlass_sk.kernel import load_kernel

    specs = needed(setup, problems, contenders)
    for architecture in sorted({setup.device.architecture(spec) for spec in specs}):
        build([spec for spec in specs if setup.device.architecture(spec) == architecture], architecture)
    for spec in specs:
        load_kernel(spec, setup.device.architecture(spec))
    packing.build(setup.device)
    arena = Arena(setup.dtype, setup.out_dtype, setup.layouts, setup.device, QUICK, stream)
    return arena, TOLERANCE[setup.dtype, setup.out_dtype]


def needed(setup: Setup, problems: Iterable[Problem], contenders: Iterable[Contender]) -> list[KernelSpec]:
    """The contenders' kernels in every layout that operands of these problems are launched with; none is built between times."""
    from cutlass_sk.ensemble.arena import layouts_of

    alike = {tuple((side == 1, side % WIDEST_ALIGNMENT) for side in (p.m, p.n, p.k)): p for p in problems}
    kernels = dict.fromkeys(spec for contender in contenders for spec in contender.kernels(setup))
    found = [(spec, pair) for spec in kernels for pair in sorted({layouts_of(p, spec, setup.layouts) for p in alike.values()})]
    return [spec.with_layouts(*pair) for spec, pair in found]


def source(
    corpus: Corpus,
    device: Device,
    contenders: Sequence[Contender],
    *,
    layout: str | None,
    dry: bool,
    commit: str | None,
    shard: str,
) -> dict[str, Any]:
    """The provenance of a run."""
    row = {
        **provenance("cutlass-sk bench", commit),
        "schema": SCHEMA_VERSION,
        "made_up": dry,
        "corpus": corpus.name,
        "corpus_sha256": corpus.sha256,
        "problems": len(corpus),
        "shard": shard,
        "contenders": [contender.name for contender in contenders],
        "layouts": layout or "tn, and tt for float64",
        "calibration": calibration_of(device).source,
        "pdl": env.PDL.get(),
        "effort": asdict(QUICK),
        "method": f"{METHOD}; operands that start on less than 16 bytes are packed, and the copies count",
    }
    made_up = {"gpu": "none: the times are made up", "method": "dry run: the times are made up from predictions"}
    return {**row, **made_up} if dry else row


def sweep(
    todo: Iterable[Task],
    corpus: str,
    contenders: Sequence[Contender],
    benches: Mapping[tuple[str, str], tuple[Bench, float]],
    folder: Folder,
    budget: Budget,
    advance: Callable[[Task], object] = lambda task: None,
    tell: Tell = print,
    patience: float = PATIENCE_SECONDS,
) -> Ran:
    """Measures what ``folder`` does not hold yet, until the budget is spent: while the GPU times one problem, the next one is begun
    and what the one before took is written down.

    benches   by (dtype, out_dtype): the bench, and the tolerance of its check
    advance   told of each task that was measured
    tell      given a line for each contender that failed
    patience  seconds without a problem done after which the process ends with EXIT_HUNG, as where a kernel never does

    DeviceError where the GPU takes no more work from this process. Those that were in flight are suspects: the next sweep measures
    each by itself, and the one at fault gets status ``failed``. The same where patience ends.
    """
    flying: deque[Measuring] = deque()
    count = 0

    def land() -> None:
        nonlocal count
        one = flying[0]
        rows, tried = one.finish(corpus)
        if one.failed and one.bench.lost():
            if len(flying) > 1:  # another one may be at fault
                suspect()
            else:
                append(one, rows, tried)
            raise DeviceError(f"the GPU takes no more work from this process since {one.task}; the same command goes on after it")
        flying.popleft()
        append(one, rows, tried)
        watchdog.feed()
        count += 1
        advance(one.task)

    def give_up() -> None:
        if len(flying) == 1:
            append(flying[0], flying[0].given_up(corpus), {})
        else:
            suspect()
        since = flying[0].task if flying else "the start"
        tell(f"nothing was done for {patience:.0f} s, since {since}; the same command goes on after it")
        os._exit(EXIT_HUNG)

    def suspect() -> None:
        folder.suspect(key for each in flying for key in each.task.keys.values())

    def append(one: Measuring, rows: Mapping[Timing, Sequence[Measurement]], tried: Mapping[str, Any]) -> None:
        for several in rows.values():
            if several:
                folder.append(several, **({"tried": tried} if tried else {}))

    def drain() -> None:
        if flying:
            flying[-1].time()
        while flying:
            land()

    with Watchdog(patience, give_up) as watchdog:
        for task in todo:
            task = task.without(folder.done)
            if not task.timings:
                continue
            if budget.spent:
                drain()
                return Ran(count, False)
            alone = not folder.suspects.isdisjoint(task.keys.values())
            if alone:
                drain()
            bench, tolerance = benches[task.setup.dtype, task.setup.out_dtype]
            flying.append(Measuring(task, contenders, bench, tolerance, tell))
            if alone:
                drain()
            if len(flying) > 1:
                flying[-2].time()
            if len(flying) > 2:
                land()
        drain()
        return Ran(count, True)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within, the garbage collector leaves alone what is there already, kernels and plans among it."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
