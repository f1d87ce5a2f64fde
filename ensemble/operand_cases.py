"""Random products of whatever operands torch can make, compared with float64 element by element, and byte by byte around them.

    python -m cutlass_sk.ensemble.operand_cases --cases 5000 --seed 1

A case is numbers alone, so that it is printed, shrunk and run again from one line (``--case``). Its data are the same on every
machine. What lies around a and b is NaN, which must not reach the result; what lies around c must stay as it was, and c is NaN
where beta is 0.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import inf, nan
from typing import Any

import torch

from cutlass_sk import Gemm, KernelSpec, packing, prebuilt
from cutlass_sk.device import real
from cutlass_sk.dtypes import torch_dtype
from cutlass_sk.ensemble.random_operands import GENERATIONS, Case, View, cases
from cutlass_sk.ensemble.watchdog import Watchdog
from cutlass_sk.generator.catalog import DTYPES, LAYOUTS
from cutlass_sk.generator.spec import Generation
from cutlass_sk.jit.build import build

WHOLE_SETS = ("float16", "bfloat16", "float64")
"""Dtypes whose cases choose among all kernels of the Hopper set; others use its first kernel, to compile less."""
CANARY = 7.0
HANG_SECONDS = 60.0


def kernels() -> tuple[KernelSpec, ...]:
    """Every kernel that a case may launch: what is built before thousands of them are run."""
    gemms = [_gemm(*pair, generation, _count(*pair)) for pair in DTYPES for generation in dict.fromkeys(GENERATIONS)]
    return tuple(spec.with_layouts(*layouts) for gemm in gemms for spec in gemm.kernels for layouts in LAYOUTS)


def build_kernels() -> None:
    """Compiles what the cache lacks of them for the current GPU, side by side."""
    device = real(torch.cuda.current_device())
    by_architecture: dict[str, list[KernelSpec]] = {}
    for spec in kernels():
        architecture = device.architecture(spec)
        if prebuilt.find(spec, architecture) is None:
            by_architecture.setdefault(architecture, []).append(spec)
    for architecture, specs in by_architecture.items():
        build(specs, architecture)
    packing.build(device)


def _count(dtype: str, out_dtype: str) -> int | None:
    """Of the kernels that a case chooses among."""
    return None if dtype == out_dtype and dtype in WHOLE_SETS else 1


@cache
def _gemm(dtype: str, out_dtype: str, generation: Generation, count: int | None) -> Gemm:
    return Gemm(dtype, out_dtype=out_dtype, generation=generation, kernels=count)


@dataclass
class _Memory:
    """A matrix (rows, columns) in ``whole``, and what that held at first."""

    whole: torch.Tensor
    before: torch.Tensor
    shape: tuple[int, int]
    place: View

    @cached_property
    def view(self) -> torch.Tensor:
        return self.view_of(self.whole)

    def view_of(self, memory: torch.Tensor) -> torch.Tensor:
        seen = memory.as_strided(self.shape, self.place.strides, self.place.offset)
        return torch._neg_view(seen) if self.place.negated else seen

    def unchanged(self) -> bool:
        return torch.equal(_bits(self.whole), _bits(self.before))


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def _memory(
    view: View, rows: int, columns: int, dtype: torch.dtype, fill: Callable[[int], torch.Tensor], around: float, device: str
) -> _Memory:
    """Memory of ``around``, but for the elements of the view, which are what ``fill`` gives of their number."""
    down, across = view.strides
    places = view.offset + torch.arange(rows)[:, None] * down + torch.arange(columns) * across
    last = int(places.max()) if places.numel() else view.offset
    used = torch.zeros(last + 1 + view.behind, dtype=torch.bool)
    used[places.flatten()] = True
    whole = torch.full(used.shape, around, dtype=torch.float64)
    whole[used] = fill(int(used.sum())).double()
    whole = whole.to(dtype).to(device)
    return _Memory(whole, whole.clone(), (rows, columns), view)


def _operands(case: Case, device: str) -> tuple[_Memory, _Memory, _Memory | None]:
    """a, b and c, of the same data on every device."""
    generator = torch.Generator().manual_seed(case.seed)

    def data(count: int, largest: int, specials: int) -> torch.Tensor:
        if not case.exact:
            return torch.randn(count, generator=generator)
        values = torch.randint(-largest, largest + 1, (count,), generator=generator, dtype=torch.int8).float()
        places = torch.randint(max(1, count), (min(specials, count),), generator=generator)
        values[places] = torch.tensor([nan, inf, -inf])[: places.numel()]
        return values

    def old(count: int) -> torch.Tensor:
        return torch.full((count,), nan) if case.beta == 0 else data(count, 4, 0)

    inputs, out = torch_dtype(case.dtype), torch_dtype(case.out_dtype)
    a = _memory(case.a, case.m, case.k, inputs, lambda count: data(count, 1, case.specials), nan, device)
    b = _memory(case.b, case.k, case.n, inputs, lambda count: data(count, 1, case.specials), nan, device)
    return a, b, None if case.c is None else _memory(case.c, case.m, case.n, out, old, CANARY, device)


def wrong_with(case: Case, device: str, judge: str | None = None) -> str | None:
    """What is wrong with the library's answer to a case on ``cuda`` or ``cpu``, in a sentence; None if nothing is.

    judge   where it is compared, default on ``device``
    """
    a, b, c = _operands(case, device)
    first, second = _answers(case, a, b, c, device)
    old = None if c is None else c.view_of(c.before)
    if problem := _compare(first, *_expected(case, a.view_of(a.before), b.view_of(b.before), old, judge or device)):
        return problem
    if c is not None:  # what was to be written, so that the rest can be told
        c.view.copy_(c.view_of(c.before))
    for where, memory in (("of a", a), ("of b", b), ("around c", c)):
        if memory is not None and not memory.unchanged():
            return f"memory {where} was written to"
    if "reduction_mode" not in case.forced and not _same(first, second):
        return "the same call gave other bits"
    return None


def _answers(case: Case, a: _Memory, b: _Memory, c: _Memory | None, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What two calls left, the second of which may be a repeated one."""
    # Factors on the GPU ask for kernels with float32 outputs, of which cases have the first.
    count = 1 if case.factors == "beside" else _count(case.dtype, case.out_dtype)
    gemm = _gemm(case.dtype, case.out_dtype, case.generation, count)
    sizes = case.m, case.n, case.k
    given: dict[str, Any] = {"alpha": case.alpha, "beta": case.beta}
    if case.factors != "number":
        where = device if case.factors == "beside" else "cpu"
        names = ("alpha", "beta") if c is not None else ("alpha",)
        given |= {name: torch.tensor(given[name], dtype=torch.float64, device=where) for name in names}
    if case.forced and 0 not in sizes:
        given["plan"] = gemm.plan(*sizes, **case.forced)  # type: ignore[arg-type]
    answers = []
    for _ in range(2):
        if c is not None:
            c.whole.copy_(c.before)
        result = gemm.run(a.view, b.view, None if c is None else c.view, **given)
        if c is not None and result is not c.view:
            raise AssertionError("the result is not c")
        answers.append(result.clone())
    return answers[0], answers[1]


def _expected(
    case: Case, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, judge: str
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The result in float64, (m, n), and what elements may be off by before they are rounded; None: by nothing."""
    exact = torch.zeros(case.m, case.n, dtype=torch.float64, device=judge)
    scale = exact.clone()
    if case.k and case.alpha != 0:
        x, y = a.to(judge).double(), b.to(judge).double()
        exact += case.alpha * (x @ y)
        scale += abs(case.alpha) * (x.abs() @ y.abs())
    if case.beta != 0 and c is not None:
        old = c.to(judge).double()
        exact += case.beta * old
        scale += abs(case.beta) * old.abs()
    if case.exact:
        return exact, None
    return exact, (case.k + 32) * (2.0**-52 if case.dtype == "float64" else 2.0**-23) * scale


def _compare(result: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor | None) -> str | None:
    if tuple(result.shape) != tuple(exact.shape):
        return f"the result is {tuple(result.shape)}, not {tuple(exact.shape)}"
    got, wanted = result.to(exact.device).double(), exact.to(result.dtype).double()
    if bound is None:
        right = got == wanted
    else:
        half_a_unit = torch.finfo(result.dtype).eps / 2 * exact.abs() + torch.finfo(result.dtype).smallest_normal
        right = (got == wanted) | ((got - exact).abs() <= bound + half_a_unit)
    right |= got.isnan() & wanted.isnan()
    if bool(right.all()):
        return None
    row, column = (~right).nonzero()[0].tolist()
    count, value = int((~right).sum()), float(got[row, column])
    return f"{count} of {right.numel()} elements are wrong: ({row}, {column}) is {value}, not {float(wanted[row, column])}"


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return bool(((x == y) | (x.isnan() & y.isnan())).all())


@dataclass
class Run:
    """What came of cases: how many ran, and (reproduction, what was wrong) of those that failed."""

    cases: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)


def run(
    each: Iterator[Case],
    device: str,
    *,
    hung: Callable[[Run], object],
    seconds: float = HANG_SECONDS,
    judge: str | None = None,
) -> Run:
    """Runs cases one after the other, as ``wrong_with``. Ends at one that leaves the GPU unusable. If one takes longer than
    ``seconds``, a compilation included, it is a failure, and ``hung`` is called from another thread."""
    made, current = Run(), ""

    def expired() -> None:
        made.failures.append((current, f"no answer in {seconds:.0f} seconds"))
        hung(made)

    with Watchdog(seconds, expired) as watchdog:
        for case in each:
            current = case.reproduction
            watchdog.feed()
            made.cases += 1
            if wrong := failure(case, device, judge):
                made.failures.append((current, wrong))
                if device == "cuda" and lost():
                    break
    return made


def failure(case: Case, device: str, judge: str | None = None) -> str | None:
    """``wrong_with``, or the error that was raised: a case's operands are ones that a call takes."""
    try:
        return wrong_with(case, device, judge)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def lost() -> bool:
    """Whether the GPU takes no more work from this process."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=100, help="how many cases")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--case", help="one case in JSON, as a failure prints it, instead")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--judge", choices=("cuda", "cpu"), help="where results are compared; default where they were made")
    parser.add_argument("--hang-seconds", type=float, default=HANG_SECONDS, help="limit for one case")
    parser.add_argument("--list-kernels", action="store_true", help="print the kernels that cases launch, and run none")
    options = parser.parse_args(arguments)
    if options.list_kernels:
        print(*kernels(), sep="\n")
        return 0

    def report(made: Run) -> None:
        for reproduction, wrong in made.failures:
            print(f"{wrong}\n  {reproduction}", flush=True)
        print(f"{made.cases} cases of seed {options.seed} on {options.device}, {len(made.failures)} failures", flush=True)

    def hung(made: Run) -> None:
        report(made)
        os._exit(3)

    if options.device == "cuda":
        build_kernels()
    each = iter([Case.of_json(options.case)]) if options.case else cases(options.cases, options.seed, options.first)
    begin = time.monotonic()
    made = run(each, options.device, hung=hung, seconds=options.hang_seconds, judge=options.judge)
    report(made)
    print(f"{time.monotonic() - begin:.1f} s")
    return 1 if made.failures else 0


if __name__ == "__main__":
    sys.exit(main())
