"""What ``cutlass-sk bench`` compares, by name: who it is, whether it runs here, and what it launches for a problem.

A contender is one class: a name, a description, and ``entry``. ``CONTENDERS`` lists them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch

from cutlass_sk import planner
from cutlass_sk.device import Device
from cutlass_sk.ensemble import baselines, cublaslt
from cutlass_sk.ensemble.attempt import CUBLAS, CUBLAS_AGAIN, Other, Others
from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.ensemble.oracle import oracle_hopper, oracle_paper
from cutlass_sk.errors import Error, PlanError
from cutlass_sk.generator.catalog import DTYPES
from cutlass_sk.generator.spec import KernelSpec, Layout, at_all_widths
from cutlass_sk.options import Options
from cutlass_sk.plan import Decomposition, Plan

AGAIN_EVERY = 8
"""The noise is measured on every so many problems."""
BEST_EVERY = 4
"""The best of cuBLASLt's algorithms is measured on every so many problems."""


ONE_OF_ORACLE = "oracle:"
"""What the names of the oracle's kernels, each a contender of its own, begin with; ``oracle:each`` are all of them."""


class ContenderError(Error, ValueError):
    """A contender is not known, or cannot run here."""


@dataclass(frozen=True)
class Setup:
    """One pair of dtypes on one GPU.

    kernels   row-major; the first is the single kernel
    layouts   of a and b: row-major ``t`` or column-major ``n``; c is row-major
    """

    dtype: str
    out_dtype: str
    layouts: tuple[Layout, Layout]
    kernels: tuple[KernelSpec, ...]
    device: Device

    @cached_property
    def variants(self) -> tuple[KernelSpec, ...]:
        """The kernels at all of their widths, for operands that lie as those that are timed."""
        return at_all_widths([spec.with_layouts(*self.layouts) for spec in self.kernels])

    @cached_property
    def single(self) -> tuple[KernelSpec, ...]:
        """The first kernel at all of its widths."""
        return self.variants[: len(self.kernels[0].widths)]

    def data_parallel(self, problem: Problem, kernels: tuple[KernelSpec, ...]) -> list[Plan]:
        """The data-parallel plan of each kernel that has one. PlanError where none has."""
        shape, options = (problem.m, problem.n, problem.k), Options(decomposition="data_parallel")
        try:  # at once, which is much faster than one by one
            found = list(planner.scored(*shape, kernels, self.device, options))
        except PlanError:  # too many tiles for one launch of some
            found = []
        if len(found) == len(kernels):
            return [planner.build(candidate, options) for candidate in found]
        plans, refusal = [], None
        for spec in kernels:
            try:
                plans.append(self.plan(problem, (spec,), "data_parallel"))
            except PlanError as error:
                refusal = error
        if refusal is not None and not plans:
            raise refusal
        return plans

    def plan(self, problem: Problem, kernels: tuple[KernelSpec, ...], decomposition: Decomposition | None = None) -> Plan:
        """The plan that is expected to be the fastest. PlanError where there is none."""
        return planner.make_plan(problem.m, problem.n, problem.k, kernels, self.device, Options(decomposition=decomposition))


@dataclass(frozen=True)
class Planned:
    """One plan to launch."""

    plan: Plan


@dataclass(frozen=True)
class Searched:
    """Plans, or what gives several calls, of which the fastest as measured counts."""

    candidates: tuple[Plan, ...] | Others

    def plan(self, number: int) -> Plan | None:
        """The plan of a candidate; None for a call."""
        return None if callable(self.candidates) else self.candidates[number]


@dataclass(frozen=True)
class Called:
    """A product that is no plan. None: cuBLAS as torch calls it, which is always timed."""

    other: Other | None


@dataclass(frozen=True)
class NotTimed:
    """Nothing to launch for a problem, and why: its row says ``not_timed``."""

    why: str


Entry = Planned | Searched | Called | NotTimed


class Contender(ABC):
    """One way to multiply. ``every``: it is measured on every so many problems, in the order of the sweep."""

    name: str
    description: str
    every: int = 1

    def unavailable(self) -> str | None:
        """Why it cannot be timed here, in a sentence; None if it can."""
        return None if torch.cuda.is_available() else "It is timed on a CUDA GPU, and there is none."

    def kernels(self, setup: Setup) -> tuple[KernelSpec, ...]:
        """The kernels that it may launch, row-major."""
        return ()

    @abstractmethod
    def entry(self, setup: Setup, problem: Problem) -> Entry:
        """What it launches for c[m, n] = a[m, k] @ b[k, n]. PlanError where no kernel takes it."""


class OfSet(Contender):
    """Launches kernels of the set."""

    def kernels(self, setup: Setup) -> tuple[KernelSpec, ...]:
        return setup.kernels


class Set(OfSet):
    name, description = "set", "all kernels of Gemm(dtype), as planned"

    def entry(self, setup: Setup, problem: Problem) -> Entry:
        return Planned(setup.plan(problem, setup.variants))


class OfSingle(Contender):
    """Launches the first kernel of the set."""

    def kernels(self, setup: Setup) -> tuple[KernelSpec, ...]:
        return setup.kernels[:1]


class Single(OfSingle):
    name, description = "single", "the first kernel of the set, as planned"

    def entry(self, setup: Setup, problem: Problem) -> Entry:
        return Planned(setup.plan(problem, setup.single))


class DataParallel(OfSingle):
    name, description = "data_parallel", "the first kernel of the set, whole tiles alone"

    def entry(self, setup: Setup, problem: Problem) -> Entry:
        return Planned(setup.plan(problem, setup.single, "data_parallel"))


class FixedSplit(OfSingle):
    name = "fixed_split"
    description = (
        "the first kernel of the set, every tile in the number of equal parts that is expected to be the fastest, 1 included"
    )

    def entry(self, setup: Setup, problem: Problem) -> Entry:
        whole = setup.plan(problem, setup.single, "data_parallel")
        try:
            split = setup.plan(problem, setup.single, "split_k")
        except PlanError:  # parts that cannot be counted in 32 bits
            return Planned(whole)
        return Planned(min(whole, split, key=lambda plan: plan.predicted_time_us))


class Fastest(Contender):
    """The fastest, as measured, of data-parallel plans of several kernels."""

    def entry(self, setup: Setup, problem: Problem) -> Entry:
        return Searched(tuple(setup.data_parallel(problem, self.candidates(setup))))

    def candidates(self, setup: Setup) -> tuple[KernelSpec, ...]:
        """The kernels, each at one width."""
        return tuple(spec.with_layouts(*setup.layouts) for spec in self.kernels(setup))


class Oracle(Fastest):
    name = "oracle"
    description = "the fastest, as measured, of an ensemble of data-parallel kernels for Hopper (oracle_hopper of cutlass-sk size)"

    def kernels(self, setup: Setup) -> tuple[KernelSpec, ...]:
        return oracle_hopper(setup.dtype, setup.out_dtype)


class OraclePaper(Fastest):
    name, every = "oracle_paper", 16
    description = f"the fastest, as measured, of the Stream-K paper's kernels, data-parallel, on every {every}th problem"

    def kernels(self, setup: Setup) -> tuple[KernelSpec, ...]:
        return oracle_paper(setup.dtype, setup.out_dtype)


class OracleOfSet(Fastest):
    name, every = "oracle_of_set", 16
    description = f"the fastest, as measured, of the set's kernels at all widths, data-parallel, on every {every}th problem"

    def kernels(self, setup: Setup) -> tuple[KernelSpec, ...]:
        return setup.kernels

    def candidates(self, setup: Setup) -> tuple[KernelSpec, ...]:
        return setup.variants


class Cublas(Contender):
    name, description = CUBLAS, "cuBLAS, as torch.mm calls it"

    def entry(self, setup: Setup, problem: Problem) -> Entry:
        return Called(None)


class CublasAgain(Contender):
    name, description, every = CUBLAS_AGAIN, f"cuBLAS once more, for the noise, on every {AGAIN_EVERY}th problem", AGAIN_EVERY

    def entry(self, setup: Setup, problem: Problem) -> Entry:
        return Called(None)


class CublasFp32Reduce(Contender):
    name, description = "cublas_fp32_reduce", "cuBLAS, told to add partial sums in float32 alone"

    def entry(self, setup: Setup, problem: Problem) -> Entry:
        if setup.out_dtype not in ("float16", "bfloat16"):
            return NotTimed(f"cuBLAS has no narrower sums to leave out for {setup.out_dtype}")
        return Called(baselines.fp32_reduce)


class CublasPadded(Contender):
    name = "cublas_padded"
    description = f"cuBLAS on copies padded to multiples of {baselines.PADDED_TO}, the copies included; for other sizes alone"

    def entry(self, setup: Setup, problem: Problem) -> Entry:
        if all(size % baselines.PADDED_TO == 0 for size in (problem.m, problem.n, problem.k)):
            return NotTimed("nothing to pad")
        return Called(baselines.padded)


class CublasLtBest(Contender):
    name, every = "cublaslt_best", BEST_EVERY
    description = (
        f"the fastest, as measured, of the {cublaslt.PROPOSALS} algorithms that cuBLASLt's heuristic proposes, "
        f"on every {BEST_EVERY}th problem"
    )

    def unavailable(self) -> str | None:
        return super().unavailable() or cublaslt.unavailable()

    def entry(self, setup: Setup, problem: Problem) -> Entry:
        return Searched(cublaslt.algorithms)


class TorchCompile(Contender):
    name = "torch_compile"
    description = "torch.compile, tuned for the problem (max-autotune-no-cudagraphs), which compiles for seconds each"

    def unavailable(self) -> str | None:
        return super().unavailable() or baselines.compiled_unavailable()

    def entry(self, setup: Setup, problem: Problem) -> Entry:
        if setup.dtype == "float64" or setup.dtype != setup.out_dtype:
            return NotTimed(f"torch.compile has no kernels but cuBLAS's from {setup.dtype} to {setup.out_dtype}")
        return Called(baselines.compiled)


class OneOfOracle(Contender):
    """One of the oracle's kernels, data-parallel, named by its tile and what else tells it from the others."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.name = f"{ONE_OF_ORACLE}{label}"
        self.description = f"the oracle's kernel {label}, data-parallel"

    def kernels(self, setup: Setup) -> tuple[KernelSpec, ...]:
        return tuple(spec for spec in oracle_hopper(setup.dtype, setup.out_dtype) if label_of(spec) == self.label)

    def entry(self, setup: Setup, problem: Problem) -> Entry:
        if not (kernels := self.kernels(setup)):
            return NotTimed(f"the oracle has no kernel {self.label} from {setup.dtype} to {setup.out_dtype}")
        return Planned(setup.plan(problem, (kernels[0].with_layouts(*setup.layouts),), "data_parallel"))


_ALL: tuple[type[Contender], ...] = (
    *(Set, Single, DataParallel, FixedSplit, Oracle, OraclePaper, OracleOfSet),
    *(Cublas, CublasAgain, CublasFp32Reduce, CublasPadded, CublasLtBest, TorchCompile),
)
CONTENDERS: dict[str, Contender] = {kind.name: kind() for kind in _ALL}
"""By name, in the order of their rows."""
DEFAULT = ("set", "single", "data_parallel", "cublas", "cublas_again")


def label_of(spec: KernelSpec) -> str:
    """Tile, cluster and schedule, such as ``64x128x64_2x1_pingpong``: the name without dtypes and layouts."""
    return spec.family.split("_", 3)[3]


def each_of_oracle() -> dict[str, Contender]:
    """The oracle's kernels of all dtypes as contenders of their own, by name."""
    labels = dict.fromkeys(label_of(spec) for pair in DTYPES for spec in oracle_hopper(*pair))
    return {one.name: one for one in map(OneOfOracle, labels)}


def chosen(names: Iterable[str]) -> tuple[Contender, ...]:
    """The contenders of these names, each once, in the order of ``CONTENDERS``, and then those of ``each_of_oracle``.

    Raises ContenderError for a name that is not known.
    """
    wanted = list(names)
    known = CONTENDERS | (each_of_oracle() if any(name.startswith(ONE_OF_ORACLE) for name in wanted) else {})
    if f"{ONE_OF_ORACLE}each" in wanted:
        wanted += [name for name in known if name.startswith(ONE_OF_ORACLE)]
        wanted = [name for name in wanted if name != f"{ONE_OF_ORACLE}each"]
    if unknown := [name for name in wanted if name not in known]:
        raise ContenderError(f"contender {unknown[0]!r} is not known; there are {', '.join(known)}, {ONE_OF_ORACLE}each")
    if not wanted:
        raise ContenderError(f"no contender is named; there are {', '.join(known)}, {ONE_OF_ORACLE}each")
    return tuple(contender for name, contender in known.items() if name in wanted)
