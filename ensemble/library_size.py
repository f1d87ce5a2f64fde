"""Library size against kernel count: bytes of the Stream-K kernels, of data-parallel ensembles, of CUTLASS's own and of cuBLAS.

All but ``blackwell`` are for compute capability 9.0, and but for cuBLAS of one pair of dtypes and of layouts. Nothing is compiled
unless asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cutlass_sk import Gemm, prebuilt
from cutlass_sk.cli.size import Usage, cuobjdump, device_code_bytes, usage
from cutlass_sk.ensemble import installed
from cutlass_sk.ensemble.manifest import manifest
from cutlass_sk.ensemble.oracle import oracle_hopper, oracle_paper
from cutlass_sk.errors import CacheError, ToolchainError
from cutlass_sk.generator.catalog import COMPILED_ONLY, families
from cutlass_sk.generator.emit import emit_data_parallel
from cutlass_sk.generator.spec import COMPILED, SHORT_NAME, KernelSpec, Layout
from cutlass_sk.generator.text import text_of
from cutlass_sk.jit.build import Source, compile_sources, lookup_sources
from cutlass_sk.jit.cache import Entry
from cutlass_sk.kernel import load_kernel

Code = Literal["stream_k", "data_parallel"]
Name = Literal[
    "single", "set", "prebuilt", "oracle_paper", "oracle_hopper", "ensemble", "blackwell", "manifest", "cublas", "cublaslt"
]
TARGETS = {"sm90a": "90a", "sm80": "90", "sm100a": "100a"}
"""What kernels of a generation are compiled for, to be weighed: side by side on Hopper, but for Blackwell's."""
BINARY_TARGET = "sm_90"
MEGABYTE = 1e6

MEANINGS: dict[Name, str] = {
    "single": "one Stream-K kernel",
    "set": "the Stream-K set that Gemm plans with",
    "prebuilt": "what came compiled, in all of its layouts",
    "oracle_paper": "the Stream-K paper's data-parallel ensemble",
    "oracle_hopper": "a data-parallel ensemble for Hopper",
    "ensemble": "data-parallel, of measured candidates, one after the other (--curve)",
    "blackwell": f"Stream-K kernels for sm_100a, {COMPILED}",
    "manifest": "what CUTLASS's generator instantiates",
    "cublas": "libcublas",
    "cublaslt": "libcublasLt",
}


@dataclass(frozen=True)
class Request:
    """Whose size: dtypes of a, b and of c, layouts of a and b; ``kernels`` filters CUTLASS's manifest."""

    dtype: str
    out_dtype: str
    layout: str
    kernels: str = "all"

    @property
    def record_key(self) -> str:
        """The name of this pair of dtypes in results/h200/planner.json."""
        return self.dtype if self.dtype == self.out_dtype else f"{self.dtype}_{self.out_dtype}"

    @property
    def short_name(self) -> str:
        return f"{SHORT_NAME[self.dtype]}_{SHORT_NAME[self.out_dtype]}"

    def command(self, library: str) -> str:
        """What builds a library's kernels."""
        return f"cutlass-sk size --dtype {self.record_key} --layout {self.layout} --library {library} --build"


@dataclass(frozen=True)
class Weight:
    """One compiled kernel.

    code_bytes    GPU code: cubins, and the little that is around them in a shared object
    shared_bytes  shared memory of a CTA; None for kernels without our C ABI, which alone says it
    usage         registers and spills; None without cuobjdump
    """

    name: str
    target: str
    code_bytes: int
    library_bytes: int
    shared_bytes: int | None
    usage: Usage | None


@dataclass(frozen=True)
class Library:
    """One library. Bytes are None where they are not known in full; ``missing`` kernels are not built.

    kernels         how many it holds (None: not known)
    code            what its kernels can do: Stream-K kernels run data-parallel plans, too; empty for the others
    code_bytes      GPU code for compute capability 9.0
    library_bytes   of shared objects
    vs_cublas       geometric mean of cuBLAS's time over this library's, as a record says
    """

    name: Name
    meaning: str
    kernels: int | None = None
    code: Code | Literal[""] = ""
    code_bytes: int | None = None
    library_bytes: int | None = None
    missing: int = 0
    vs_cublas: float | None = None
    note: str = ""
    weights: tuple[Weight, ...] = ()

    @property
    def bytes_per_kernel(self) -> float | None:
        return self.code_bytes / self.kernels if self.code_bytes and self.kernels else None

    @property
    def vs_cublas_per_mb(self) -> float | None:
        """Performance for each 10^6 bytes of GPU code."""
        return self.vs_cublas / self.code_bytes * MEGABYTE if self.vs_cublas and self.code_bytes else None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "bytes_per_kernel": self.bytes_per_kernel, "vs_cublas_per_mb": self.vs_cublas_per_mb}


@dataclass(frozen=True)
class Point:
    """The ensemble after ``kernel`` was added. Bytes of GPU code are those of all so far; ``vs_cublas`` None: not in the record."""

    kernels: int
    kernel: str
    code_bytes: int
    vs_cublas: float | None


def specs_of(name: Name, request: Request) -> tuple[tuple[KernelSpec, ...], Code]:
    """The kernels of ``single``, ``set``, ``blackwell``, ``oracle_paper`` or ``oracle_hopper``, and what of them is compiled."""
    pair = request.dtype, request.out_dtype
    if name in ("single", "set"):
        gemm = Gemm(request.dtype, out_dtype=request.out_dtype, device="h200", kernels=1 if name == "single" else None)
        specs, code = tuple(gemm.kernels), "stream_k"
    elif name == "blackwell":
        specs, code = families(*pair, "sm100a"), "stream_k"
    else:
        specs = oracle_paper(*pair) if name == "oracle_paper" else oracle_hopper(*pair)
        own = any(spec.api == "3x" and spec.dtype == "float64" for spec in specs)  # CUTLASS has no such kernels
        code = "stream_k" if own else "data_parallel"
    layout_a, layout_b = (_letter(letter) for letter in request.layout)
    laid_out = tuple(spec.with_layouts(layout_a, layout_b) for spec in specs)
    return laid_out, "stream_k" if code == "stream_k" else "data_parallel"


def sources_of(specs: Sequence[KernelSpec], code: Code) -> list[Source]:
    """What is compiled of ``specs``."""
    text, suffix = (text_of, "") if code == "stream_k" else (emit_data_parallel, "_data_parallel")
    return [Source(spec.name + suffix, text(spec), TARGETS[spec.generation]) for spec in specs]


def weigh(name: Name, request: Request, *, build: bool = False) -> Library:
    """A library of kernels, as the cache holds them; ``build`` compiles those that it lacks."""
    specs, code = specs_of(name, request)
    if not specs:
        return Library(name, MEANINGS[name], 0, note=f"there is none for {request.dtype} -> {request.out_dtype}")
    sources = sources_of(specs, code)
    note = ""
    try:
        entries: Sequence[Entry | None] = compile_sources(sources) if build else lookup_sources(sources)
    except (CacheError, ToolchainError) as error:
        if build:
            raise
        entries, note = [None] * len(sources), f"not built, and cannot be here: {error}"
    tool = cuobjdump()
    weights = []
    for spec, source, entry in zip(specs, sources, entries, strict=True):
        if entry is not None:
            taken = None if tool is None else usage(entry.library, tool)
            loads = code == "stream_k" and spec.generation not in COMPILED_ONLY
            own = load_kernel(spec, source.architecture).description.shared_memory_bytes if loads else None
            weights.append(
                Weight(source.name, f"sm_{source.architecture}", device_code_bytes(entry.library), entry.library_bytes, own, taken)
            )
    missing = len(sources) - len(weights)
    if missing and not note:
        note = f"{missing} not built: {request.command(name)}"
    return Library(
        name,
        MEANINGS[name],
        len(sources),
        code,
        None if missing else sum(weight.code_bytes for weight in weights),
        None if missing else sum(weight.library_bytes for weight in weights),
        missing,
        note=note,
        weights=tuple(weights),
    )


def shipped(request: Request) -> Library:
    """The library of this pair of dtypes that came compiled, in the package or in CUTLASS_SK_PREBUILT_DIR."""
    target = TARGETS["sm90a"]
    pair = request.dtype, request.out_dtype
    found = [one for one in prebuilt.libraries() if (one.dtype, one.out_dtype) == pair and one.architecture == target]
    if not found:
        return Library("prebuilt", MEANINGS["prebuilt"], note="there is none here; `cutlass-sk build -o` makes one")
    (one,) = found
    code = device_code_bytes(prebuilt.folder() / one.file)
    note = f"one shared object, {one.file}" + ("" if one.usable else ", of other sources than those installed: not used")
    return Library("prebuilt", MEANINGS["prebuilt"], len(one.kernels), "stream_k", code, one.bytes, note=note)


def counted(request: Request) -> Library:
    """CUTLASS's manifest: a count of the kernels for the layout asked for, since compiling it takes hours."""
    made = manifest(request.dtype, request.out_dtype, request.layout, request.kernels)
    meaning = f"{MEANINGS['manifest']} for --kernels={request.kernels}"
    if made.operations == 0:
        return Library("manifest", meaning, 0, note="nothing matches that filter; all stands for every kernel")
    parts = ", ".join(f"{count} of sm_{generation}" for generation, count in made.by_generation.items())
    note = f"counted, not compiled; of these types {made.count} in all layouts" + (f": {parts}" if parts else "")
    return Library("manifest", meaning, made.in_layout, note=note)


def bought(name: Name, say: Callable[[str], None]) -> Library:
    """cuBLAS or cuBLASLt as installed here."""
    path = installed.find(installed.LIBRARIES[name])
    if path is None:
        return Library(name, MEANINGS[name], note="not installed")
    found = installed.measured(path, BINARY_TARGET, say)
    wheel = installed.wheel(path)
    note = f"{f'{wheel}; ' if wheel else ''}{found.code_bytes:,} bytes of GPU code, packed, for all architectures"
    if found.target_bytes is None:
        note += f"; cuobjdump, which is not installed, would say how much is for {BINARY_TARGET}"
    return Library(name, f"{MEANINGS[name]} as installed, all dtypes", None, "", found.target_bytes, found.file_bytes, note=note)


def curve(record: Mapping[str, Any], request: Request) -> list[Point]:
    """The data-parallel ensemble grown kernel by kernel: the record's greedy data-parallel curve as far as it goes, then its other
    candidates, the smallest first (by name where they are equal). Empty if the record holds no candidates of these dtypes and
    layouts.

    Bytes are of kernels that can run Stream-K, too: those were measured.
    """
    prefix = f"_{request.short_name}_"
    sizes = {
        name: int(size) for name, size in (record.get("bytes") or {}).items() if prefix in name and _layout(name) == request.layout
    }
    steps = record.get("curves", {}).get("data_parallel", {}).get("curve", [])
    measured = {step["kernel"]: float(step["geomean"]) for step in steps if step["kernel"] in sizes}
    order = [*measured, *sorted(sizes.keys() - measured.keys(), key=lambda name: (sizes[name], name))]
    total, points = 0, []
    for number, name in enumerate(order, 1):
        total += sizes[name]
        points.append(Point(number, name, total, measured.get(name)))
    return points


def recorded_layouts(record: Mapping[str, Any], request: Request) -> list[str]:
    """Layouts of the candidates of these dtypes that a record of ``kernel_set`` has."""
    return sorted({_layout(name) for name in record.get("bytes") or {} if f"_{request.short_name}_" in name})


def grown(points: Sequence[Point], source: Path | None, layouts: Sequence[str] = ()) -> Library:
    """The curve's last point as a library. ``layouts``: those that the record has candidates of."""
    if not points:
        why = (
            "needs a record of candidates: --curve results/h200/kernel_set_all.json"
            if source is None
            else f"recorded for {', '.join(layouts)}"
            if layouts
            else f"no candidates in {source}"
        )
        return Library("ensemble", MEANINGS["ensemble"], note=why)
    last, timed = points[-1], [point for point in points if point.vs_cublas is not None]
    note = "bytes and ratio as recorded there, of that run's own problems"
    if timed and timed[-1] != last:
        note += f"; times of the first {len(timed)} alone, {timed[-1].vs_cublas:.3f} of cuBLAS"
    return Library("ensemble", MEANINGS["ensemble"], last.kernels, "stream_k", last.code_bytes, vs_cublas=last.vs_cublas, note=note)


def with_recorded_bytes(library: Library, record: Mapping[str, Any], request: Request) -> Library:
    """The library with the bytes that a record of ``kernel_set`` has of its Stream-K kernels, where not all are built here."""
    if not library.missing or library.code != "stream_k":
        return library
    sizes = record.get("bytes") or {}
    names = [spec.name for spec in specs_of(library.name, request)[0]]
    if not all(name in sizes for name in names):
        return library
    return replace(library, code_bytes=sum(int(sizes[name]) for name in names), note=f"bytes as recorded; {library.note}")


def with_performance(library: Library, record: Mapping[str, Any], request: Request) -> Library:
    """The library with the ratio that a record of ``planner_sweep`` has of its kernels, and, where not all of them are built here,
    with the bytes. With a note alone where the record is of other kernels or layouts; unchanged where it is of other dtypes."""
    if library.name in ("cublas", "cublaslt"):
        return replace(library, vs_cublas=1.0) if library.library_bytes else library
    entry = record.get(request.record_key, {})
    ratio = entry.get(f"{library.name}_vs_cublas")
    if ratio is None or library.name not in ("single", "set"):
        return library
    recorded = entry["kernels"][:1] if library.name == "single" else entry["kernels"]
    names = [spec.name for spec in specs_of(library.name, request)[0]]
    if names != recorded:
        same = [name.rpartition("_")[0] for name in names] == [name.rpartition("_")[0] for name in recorded]
        why = f"times are recorded for {_layout(recorded[0])}" if same else "the record of times is of other kernels"
        return replace(library, note="; ".join(filter(None, (library.note, why))))
    if library.missing and names == entry["kernels"]:
        library = replace(library, code_bytes=entry["bytes"], library_bytes=entry["shared_object_bytes"])
    return replace(library, vs_cublas=float(ratio["geomean"]))


def _layout(kernel: str) -> str:
    """The letters of a and b that a kernel's name ends in."""
    return kernel.rpartition("_")[2]


def _letter(text: str) -> Layout:
    return "t" if text == "t" else "n"
