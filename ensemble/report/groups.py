"""Measurements by what may be compared: one dtype, one corpus, one timing mode. And the ratios of contenders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cutlass_sk.device import PRESETS, Device
from cutlass_sk.ensemble.corpus import Problem
from cutlass_sk.ensemble.planner_report import COMPUTE_BOUND, DTYPES
from cutlass_sk.ensemble.ratios import Ratios
from cutlass_sk.ensemble.table import MADE_UP, Measurement, Table
from cutlass_sk.generator.spec import ELEMENT_BYTES

RATIOS: dict[str, tuple[str, str, str]] = {
    "single_vs_data_parallel": ("data_parallel", "single", "single Stream-K kernel over the same kernel data-parallel"),
    "single_vs_fixed_split": ("fixed_split", "single", "single Stream-K kernel over the same kernel, fixed split"),
    "single_vs_cublas": ("cublas", "single", "single Stream-K kernel over cuBLAS"),
    "single_vs_cublas_compute_bound": ("cublas", "single", f"single Stream-K kernel over cuBLAS, above {COMPUTE_BOUND} FLOP/B"),
    "set_vs_cublas": ("cublas", "set", "Stream-K set over cuBLAS"),
    "set_vs_cublas_compute_bound": ("cublas", "set", f"Stream-K set over cuBLAS, above {COMPUTE_BOUND} FLOP/B"),
    "single_vs_oracle": ("oracle", "single", "single Stream-K kernel over the oracle"),
    "set_vs_oracle": ("oracle", "set", "Stream-K set over the oracle"),
    "set_vs_oracle_of_set": ("oracle_of_set", "set", "Stream-K set over its own kernels at all widths, data-parallel"),
    "set_vs_oracle_paper": ("oracle_paper", "set", "Stream-K set over an oracle of the paper's kernels"),
    "set_vs_cublaslt_best": ("cublaslt_best", "set", "Stream-K set over the best of cuBLASLt's algorithms"),
    "set_vs_cublas_fp32_reduce": ("cublas_fp32_reduce", "set", "Stream-K set over cuBLAS with float32 sums"),
    "set_vs_cublas_padded": ("cublas_padded", "set", "Stream-K set over cuBLAS on padded copies"),
    "set_vs_exhaustive": ("best", "set", "Stream-K set as planned over the best of all its plans"),
    "oracle_vs_cublas": ("cublas", "oracle", "the oracle over cuBLAS"),
    "oracle_of_set_vs_cublas": ("cublas", "oracle_of_set", "the set's kernels at all widths, data-parallel, over cuBLAS"),
    "oracle_paper_vs_cublas": ("cublas", "oracle_paper", "the oracle of the paper's kernels over cuBLAS"),
    "data_parallel_vs_cublas": ("cublas", "data_parallel", "the single kernel data-parallel over cuBLAS"),
    "cublas_vs_itself": ("cublas_again", "cublas", "cuBLAS over itself (noise)"),
}
"""Name -> whose time is divided by whose, and what that is called. Above 1 the second is faster."""

CONTENDERS = {
    "set": "Stream-K set",
    "single": "single Stream-K kernel",
    "data_parallel": "same kernel data-parallel",
    "fixed_split": "same kernel, fixed split",
    "cublas": "cuBLAS",
    "cublas_fp32_reduce": "cuBLAS, float32 sums",
    "cublas_padded": "cuBLAS, padded",
    "oracle": "oracle",
    "oracle_of_set": "oracle of the set's kernels",
    "oracle_paper": "oracle of the paper's kernels",
    "cublaslt_best": "best of cuBLASLt",
    "torch_compile": "torch.compile",
    "best": "best plan of a search",
}
TIMINGS = {"back_to_back": "back to back", "isolated": "isolated, cold L2"}
NOISE = "cublas_again"
"""A contender that is there for the noise alone."""


@dataclass(frozen=True)
class Group:
    """What may be compared.

    problems   each problem's measurements, by contender
    made_up    whether the times are of a dry run
    """

    dtype: str
    out_dtype: str
    corpus: str
    timing: str
    problems: Mapping[Problem, Mapping[str, Measurement]]
    made_up: bool = False
    _times: dict[str, dict[Problem, float]] = field(default_factory=dict, compare=False, repr=False)
    _pairs: dict[str, list[tuple[Problem, float]]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def dtypes(self) -> str:
        """The name of the pair of dtypes in records: ``float16``, ``float16_float32``."""
        return self.dtype if self.dtype == self.out_dtype else f"{self.dtype}_{self.out_dtype}"

    @property
    def corpus_key(self) -> str:
        """The name of the corpus in ``summary.json``."""
        return self.corpus.replace("/", "_")

    @property
    def subject(self) -> str:
        """Dtypes, corpus and timing mode."""
        arrow = self.dtype if self.dtype == self.out_dtype else f"{self.dtype} -> {self.out_dtype}"
        return f"{arrow}: {self.corpus}, {TIMINGS[self.timing]}"

    @property
    def title(self) -> str:
        """The subject, which says so where times are made up."""
        return f"{MADE_UP}. {self.subject}" if self.made_up else self.subject

    @cached_property
    def contenders(self) -> list[str]:
        """All but the noise; those that have a title first, in their order."""
        found = dict.fromkeys(name for row in self.problems.values() for name in row if name != NOISE)
        return [*(name for name in CONTENDERS if name in found), *(name for name in found if name not in CONTENDERS)]

    def intensity(self, problem: Problem) -> float:
        """FLOP a byte."""
        return problem.intensity(ELEMENT_BYTES[self.dtype], ELEMENT_BYTES[self.out_dtype])

    def times(self, contender: str) -> Mapping[Problem, float]:
        """Microseconds of every time that counts, by problem."""
        if contender not in self._times:
            found = ((problem, row[contender].ok_us) for problem, row in self.problems.items() if contender in row)
            self._times[contender] = {problem: us for problem, us in found if us is not None}
        return self._times[contender]

    def utilisation(self, contender: str, device: Device) -> list[tuple[float, float]]:
        """(FLOP a byte, percent of the data-sheet peak of ``device``) of every time that counts."""
        peak = device.tflops(self.dtype)
        return [(self.intensity(problem), problem.flop / us / 1e6 / peak * 100) for problem, us in self.times(contender).items()]

    def pairs(self, name: str) -> list[tuple[Problem, float]]:
        """(problem, speed-up) of every problem that has both times of the ratio ``name``, both with status ok."""
        if name not in self._pairs:
            self._pairs[name] = self._paired(name)
        return self._pairs[name]

    def _paired(self, name: str) -> list[tuple[Problem, float]]:
        other, own, _ = RATIOS[name]
        theirs = self.times(other)
        found = []
        for problem, ours in self.times(own).items():
            if problem not in theirs or (name.endswith("_compute_bound") and self.intensity(problem) <= COMPUTE_BOUND):
                continue
            # The plan that the set chose is one of those that a search tried.
            best = min(theirs[problem], ours) if name == "set_vs_exhaustive" else theirs[problem]
            found.append((problem, best / ours))
        return found

    @cached_property
    def ratios(self) -> dict[str, Ratios]:
        """Every ratio that at least one problem has both times of."""
        made = {name: Ratios.of([ratio for _, ratio in self.pairs(name)]) for name in RATIOS}
        return {name: ratios for name, ratios in made.items() if ratios.n}

    def left_out(self) -> dict[str, dict[str, int]]:
        """By contender and status, how many measurements are not counted."""
        found: dict[str, dict[str, int]] = {}
        for row in self.problems.values():
            for contender, measured in row.items():
                if measured.status != "ok":
                    counts = found.setdefault(contender, {})
                    counts[measured.status] = counts.get(measured.status, 0) + 1
        return found

    @cached_property
    def chief(self) -> str | None:
        """The ratio that problems are ranked by, if there is one: the first measured of the set, else of the single kernel."""
        wanted = ("set_vs_cublas", "single_vs_cublas", "set_vs_exhaustive", "single_vs_data_parallel")
        return next((name for name in wanted if self.pairs(name)), None)


def grouped(table: Table) -> list[Group]:
    """The groups of a table: dtypes in the order of the records, within one the groups with most problems first."""
    found: dict[tuple[str, str, str, str], dict[Problem, dict[str, Measurement]]] = {}
    known: dict[tuple[int, int, int], Problem] = {}
    for row in table.rows:
        sizes = row.m, row.n, row.k
        problem = known.get(sizes) or known.setdefault(sizes, row.problem)
        problems = found.setdefault((row.dtype, row.out_dtype, row.corpus, row.timing), {})
        problems.setdefault(problem, {})[row.contender] = row
    order = list(DTYPES.values())

    def place(group: Group) -> tuple[int, int]:
        pair = (group.dtype, group.out_dtype)
        return order.index(pair) if pair in order else len(order), -len(group.problems)

    return sorted((Group(*key, problems, table.made_up) for key, problems in found.items()), key=place)


def gpu(table: Table) -> Device:
    """The preset whose data-sheet peaks stand for the GPU that was measured; the H200's where it has none."""
    name = next((str(source.get("gpu")) for source in table.sources), "").lower()
    return next((device for key, device in PRESETS.items() if key in name), PRESETS["h200"])


def plan_text(measured: Measurement) -> str:
    """A plan in a few words; empty for a contender without one."""
    if measured.decomposition is None:
        return ""
    words = {
        "stream_k": f"{measured.sk_tiles} tiles in {measured.sk_units} shares",
        "split_k": f"{measured.splits} splits",
    }
    shared = words.get(measured.decomposition)
    return f"{measured.decomposition}{f', {shared}' if shared else ''}, {measured.grid} CTAs, {measured.raster}"
