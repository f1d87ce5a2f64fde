"""What a ``Gemm`` may be made of: kernels, tiles, clusters and layouts as callers name them, and what to name instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .errors import DtypeError, PlanError
from .generator.catalog import COMPILED_ONLY, DTYPES, GENERATIONS, LAYOUTS, families, find
from .generator.spec import COMPILED, WIDTH_STEP, Generation, KernelSpec, Layout


def choice(
    kernels: int | Sequence[KernelSpec | str] | None, dtype: str, out_dtype: str
) -> tuple[int | None, tuple[KernelSpec, ...]]:
    """How many kernels of the set, or which ones; the latter without their layouts, which operands decide."""
    if kernels is None or (type(kernels) is int and kernels >= 1):
        return kernels, ()
    if not isinstance(kernels, list | tuple) or not kernels or not all(isinstance(kernel, str | KernelSpec) for kernel in kernels):
        raise PlanError(f"kernels={kernels!r} must be a whole number of 1 or more, or kernels by name or spec in a list")
    chosen = []
    for kernel in kernels:
        try:
            spec = kernel if isinstance(kernel, KernelSpec) else find(kernel)
        except KeyError as error:
            raise PlanError(error.args[0]) from None
        if spec.generation in COMPILED_ONLY:
            raise DtypeError(f"{spec.name} is {COMPILED}: nothing plans for it or launches it")
        if (spec.dtype, spec.out_dtype) != (dtype, out_dtype):
            raise DtypeError(f"{spec.name} is for {spec.dtype} into {spec.out_dtype}; this Gemm is for {dtype} into {out_dtype}")
        chosen.append(spec.with_layouts("t", "t"))
    if len({spec.generation for spec in chosen}) > 1:
        raise PlanError(f"kernels={[spec.name for spec in chosen]} are of several generations; a Gemm has kernels of one")
    return None, tuple(chosen)


def shape(name: str, value: Any, length: int) -> tuple[int, ...] | None:
    """``tile`` or ``cluster`` as a tuple of whole numbers."""
    if value is None:
        return None
    if not isinstance(value, tuple | list) or len(value) != length or not all(type(size) is int for size in value):
        raise PlanError(f"{name}={value!r} must be {length} whole numbers")
    return tuple(value)


def layouts_named(names: Sequence[str] | None) -> Sequence[tuple[Layout, Layout]]:
    """Layouts of a and b, ``tn`` for row-major a and column-major b; all of them for None."""
    known = {a + b: (a, b) for a, b in LAYOUTS}
    if names is None:
        return LAYOUTS
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) and name in known for name in names):
        raise PlanError(
            f"layouts={names!r} must be a list of some of {', '.join(known)}: row-major (t) or column-major (n) a and b"
        )
    return [known[name] for name in names]


def of_sums(spec: KernelSpec) -> KernelSpec:
    """The kernel that leaves the sums as they are."""
    return spec if spec.out_dtype == spec.accumulator else replace(spec, out_dtype=spec.accumulator, promotable=spec.api == "3x")


def what_exists(dtype: str, out_dtype: str, generation: Generation | None) -> str:
    """What a caller may ask for instead: tiles of these dtypes, or else the dtypes that there are."""
    generations = (generation,) if generation else GENERATIONS
    tiles = [
        f"{name} {'x'.join(map(str, s.tile))} {s.cluster[0]}x{s.cluster[1]}"
        + (f" (and narrower, to {s.narrowest}, in steps of {WIDTH_STEP})" if s.widest else "")
        for name in generations
        for s in families(dtype, out_dtype, name)
    ]
    if tiles:
        return f"for {dtype} -> {out_dtype} there are (tile, cluster) {', '.join(tiles)}"
    return f"there are {', '.join(f'{inputs} -> {out}' for inputs, out in DTYPES)}"
