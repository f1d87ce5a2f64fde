"""What a kernel *is*: one frozen, printable specification for each binary and for each tile width that it is used at."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Literal

Generation = Literal["sm90a", "sm80", "sm100a"]
Layout = Literal["t", "n"]
Schedule = Literal["cooperative", "single", "pingpong"]

ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
SHORT_NAME = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
ALIASES = {"half": "float16", "float": "float32", "double": "float64"}
"""Other names that a dtype may be asked for by, in Python and on every command line."""

ARCHITECTURES: dict[str, tuple[str, ...]] = {"sm90a": ("90a",), "sm80": ("80", "86", "89", "90"), "sm100a": ("100a",)}
"""The compile targets (``sm_<target>``) that a kernel of each generation may be built for."""
COMPILED = "compiled, never run"
PROVED = {"90a": "run on an H200", "90": "run on an H200", "80": COMPILED, "86": COMPILED, "89": COMPILED, "100a": COMPILED}
"""By compile target: how far this project has seen its kernels work."""

WIDTH_STEP, WIDEST = 32, 256
"""Steps and limit of the tile widths that one binary takes: wgmma's n is at most 256."""
MOST_SUMS = 208
"""Sums a thread has registers for, of the 240 that a consumer warpgroup's threads get."""

NAMED_TILE = re.compile(r"(?P<rows>\d+x)\d+(?P<rest>x\d+_n\d+to(?P<widest>\d+))")
"""The tile, and the widths, in the name of a kernel that takes several."""


def dtype_named(text: str) -> str:
    """``float16`` for "float16", "half" or "torch.float16"; what is no dtype stays what it is."""
    plain = text.removeprefix("torch.")
    return ALIASES.get(plain, plain)


@dataclass(frozen=True)
class KernelSpec:
    """A Stream-K GEMM kernel, c[m, n] = alpha * a[m, k] @ b[k, n] + beta * c[m, n].

    One binary may take several widths of tiles (``widths``), one in each launch. Its spec is the one with the widest tile; those
    of its other widths (``variants``) stand for the same binary, used at that width.

    generation   ``sm90a``: Hopper (``3x``: TMA and wgmma, with fp64 mma.sync). ``sm80``: CUTLASS 2.x, cp.async and mma.sync.
                 ``sm100a``: CUTLASS's own 3.x collectives with tcgen05, compiled and never run (``blackwell.py``).
    api          ``3x`` or ``2x``: the CUTLASS API the kernel is built on. fp64 has both on Hopper: ``3x`` needs aligned a and b.
    dtype        element type of a and b: ``float16``, ``bfloat16`` or ``float64``.
    out_dtype    element type of c. Sums are float32 (float64 for float64).
    tile         (tile_m, tile_n, tile_k) in elements: the tile that is used; two SMs share one of 256 rows on ``sm100a``
    narrowest, widest   the least and the largest tile_n that the binary takes, in steps of 32; 0: it has one (16-bit 3.x only)
    cluster      (cluster_m, cluster_n) in CTAs; (1, 1) for 2.x.
    instruction  (m, n, k) of the tensor-core instruction; for wgmma n follows tile_n.
    schedule     how consumer warpgroups share work (3.x): ``cooperative``: two share a tile; ``single``: there is one;
                 ``pingpong``: two, each with a tile of its own, take turns at the main loop and at the epilogue.
    ctas_per_sm  how many CTAs fit on an SM (3.x): with two, the next launch has its prologue behind it when this one ends.
    warps        (m, n) warps that share the tile (2.x only).
    stages       shared-memory stages; 0: a launch has as many as fit beside its width (16-bit 3.x, which takes no other).
    promotable   whether a launch may limit how many products are added up in the tensor core before an ordinary float32 addition
                 takes over their sum (3.x); see include/cutlass_sk/wgmma_mainloop.hpp
    swapped      whether the kernel computes c^T = b^T a^T (3.x); tile and cluster are those of c^T. Operands are the same.
    layout_a/b   ``t``: row-major operand, ``n``: column-major (the letters of BLAS for a row-major library); c is row-major.
    """

    generation: Generation
    api: Literal["3x", "2x"]
    dtype: str
    out_dtype: str
    tile: tuple[int, int, int]
    cluster: tuple[int, int] = (1, 1)
    instruction: tuple[int, int, int] = (64, 0, 16)
    warps: tuple[int, int] = (0, 0)
    stages: int = 0
    promotable: bool = False
    layout_a: Layout = "t"
    layout_b: Layout = "t"
    schedule: Schedule = "cooperative"
    ctas_per_sm: int = 1
    swapped: bool = False
    narrowest: int = 0
    widest: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for widths that no kernel can have."""
        if not self.narrowest and not self.widest:
            return
        if self.api != "3x" or self.dtype == "float64":
            raise ValueError(f"narrowest={self.narrowest}, widest={self.widest}: only 16-bit 3.x kernels take several tile widths")
        steps = self.narrowest, self.tile[1], self.widest
        if any(width % WIDTH_STEP for width in steps) or not 0 < self.narrowest <= self.tile[1] <= self.widest <= WIDEST:
            raise ValueError(
                f"tile_n={self.tile[1]} must lie from narrowest={self.narrowest} to widest={self.widest}, "
                f"all multiples of {WIDTH_STEP} up to {WIDEST}"
            )
        if (sums := self.tile[0] * self.widest // (128 * self.tile_warpgroups)) > MOST_SUMS:
            raise ValueError(
                f"a {self.schedule} tile of {self.tile[0]} x {self.widest} has {sums} sums a thread, and there are registers for "
                f"{MOST_SUMS}; use a smaller tile_m or widest"
            )

    @property
    def name(self) -> str:
        """Unique, readable name: generation, dtypes, tile, widths, cluster or warps, schedule, instruction, stages, layouts."""
        tile = "x".join(map(str, self.tile)) + (f"_n{self.narrowest}to{self.widest}" if self.widest else "")
        if self.api == "3x":
            shape = f"{tile}_{self.cluster[0]}x{self.cluster[1]}"
            shape += f"_{self.schedule}" if self.schedule != "cooperative" else ""
            shape += f"_i{''.join(map(str, self.instruction))}" if self.dtype == "float64" else ""
            shape += f"_s{self.stages}" if self.stages else ""
            shape += f"_o{self.ctas_per_sm}" if self.ctas_per_sm > 1 else ""
            shape += "_p" if self.promotable else ""
            shape += "_swapped" if self.swapped else ""
        else:
            instruction = "".join(map(str, self.instruction))
            shape = f"{tile}_w{self.warps[0]}x{self.warps[1]}_i{instruction}_s{self.stages}"
        return f"{self.generation}_{SHORT_NAME[self.dtype]}_{SHORT_NAME[self.out_dtype]}_{shape}_{self.layout_a}{self.layout_b}"

    def __str__(self) -> str:
        return self.name

    @property
    def family(self) -> str:
        """The name without the layouts of a and b, which the model's constants are kept by."""
        return self.name.rpartition("_")[0]

    @property
    def binary(self) -> KernelSpec:
        """The spec that is compiled: the one with the widest tile."""
        return self if self.widest in (0, self.tile[1]) else _at(self, self.widest)

    @property
    def widths(self) -> tuple[int, ...]:
        """Every tile_n that the binary takes, the narrowest first."""
        return tuple(range(self.narrowest, self.widest + 1, WIDTH_STEP)) if self.widest else (self.tile[1],)

    @property
    def variants(self) -> tuple[KernelSpec, ...]:
        """The binary at each of its widths."""
        return tuple(self.at(width) for width in self.widths)

    def at(self, width: int) -> KernelSpec:
        """The same binary, used with tiles ``width`` columns wide. ValueError if it does not take them."""
        if width not in self.widths:
            raise ValueError(f"tile_n={width} is no width of {self.name}; it takes {', '.join(map(str, self.widths))}")
        return self if width == self.tile[1] else _at(self, width)

    @property
    def takes_promotion(self) -> bool:
        """Whether plans may limit chains of tensor-core sums at this width: those that it leaves unused then hold the chains."""
        return self.promotable and 2 * self.tile[1] <= self.widest

    @property
    def accumulator(self) -> str:
        """Element type of sums and partials."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def alignment(self) -> int:
        """Elements of a and b that pointers and leading dimensions must be multiples of (16 bytes; 1 element for fp64 2.x)."""
        return 1 if self.dtype == "float64" and self.api == "2x" else 16 // ELEMENT_BYTES[self.dtype]

    @property
    def narrow_boxes(self) -> tuple[bool, bool]:
        """Whether a, and b, is loaded in boxes of 32 elements a row, half a line of L2, since widths go in such steps: the operand
        that a tile's columns come from, b or for c^T a, where its rows run along them (16-bit 3.x of several widths)."""
        if not self.widest:
            return False, False
        return self.swapped and self.layout_a == "n", not self.swapped and self.layout_b == "t"

    @property
    def alignment_c(self) -> int:
        """Elements of c that its pointer and leading dimension must be multiples of."""
        any_address = (self.api == "3x" and self.generation != "sm100a") or self.dtype == "float64"
        return 1 if any_address else 16 // ELEMENT_BYTES[self.out_dtype]

    @property
    def cluster_size(self) -> int:
        return self.cluster[0] * self.cluster[1]

    @property
    def tile_warpgroups(self) -> int:
        """Consumer warpgroups that share a tile; each has its own flag (3.x)."""
        return 2 if self.schedule == "cooperative" else 1

    @property
    def cluster_fixup(self) -> bool:
        """Whether a tile may be split among the CTAs of a cluster, which add up through its shared memory (3.x, no cluster of its
        own). A binary may do so at all of its widths or at none."""
        tile_m, tile_n, _ = self.binary.tile
        by_columns = self.api == "3x" and self.accumulator == "float32" and tile_m == 64 * self.tile_warpgroups
        if not by_columns or self.cluster != (1, 1):
            return False
        # What peers send (include/cutlass_sk/cluster_fixup.hpp) must fit where stages of operands were, beside the epilogue's
        # buffers (wgmma_epilogue.hpp), two of 4 KiB for each consumer warpgroup with a 16-bit c.
        runs = max(-(-(tile_n // 32) // peers) * (peers - 1) for peers in (2, 3, 4, 8))
        consumers = 2 if self.schedule == "pingpong" else self.tile_warpgroups
        epilogue = 8192 * consumers if ELEMENT_BYTES[self.out_dtype] == 2 else 1024
        stages = (233472 // self.ctas_per_sm - 2048 - epilogue) // 1024 * 1024
        return runs * 8192 * self.tile_warpgroups <= stages

    @property
    def partial_bytes(self) -> int:
        """Bytes of one CTA's partial sums: one output tile of accumulators, the widest that the binary takes."""
        return self.tile[0] * (self.widest or self.tile[1]) * ELEMENT_BYTES[self.accumulator]

    @property
    def persistent(self) -> bool:
        """Whether a CTA loops over many tiles (3.x), or each data-parallel tile has a CTA of its own (2.x)."""
        return self.api == "3x"

    @property
    def accumulator_fragments(self) -> int:
        """Reduction CTAs a tile gets in a separate reduction (2.x: one for each 8 rows of a warp's part of the tile)."""
        return 0 if self.api == "3x" else self.tile[0] // self.warps[0] // 8

    def with_layouts(self, layout_a: Layout, layout_b: Layout) -> KernelSpec:
        """The same kernel for other operand layouts."""
        return _laid_out(self, layout_a, layout_b)

    def __hash__(self) -> int:
        """Worked out once: specs are what plans and kernels are looked up by."""
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = hash(tuple(getattr(self, one.name) for one in fields(self)))
            self.__dict__["_hash"] = known
        return known

    def __getstate__(self) -> dict[str, object]:
        """Without the hash: texts have another one in another process."""
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}


@lru_cache(maxsize=4096)
def _laid_out(spec: KernelSpec, layout_a: Layout, layout_b: Layout) -> KernelSpec:
    return replace(spec, layout_a=layout_a, layout_b=layout_b)


@lru_cache(maxsize=4096)
def _at(spec: KernelSpec, width: int) -> KernelSpec:
    return replace(spec, tile=(spec.tile[0], width, spec.tile[2]))


def at_all_widths(kernels: Iterable[KernelSpec]) -> tuple[KernelSpec, ...]:
    """What plans are made of: each binary at all of its widths. A spec of another width than the widest stays what it is."""
    return tuple(dict.fromkeys(used for spec in kernels for used in (spec.variants if spec == spec.binary else (spec,))))


def binary_name(name: str) -> str:
    """The name or family of the binary of a kernel, from that of one of its variants."""
    return NAMED_TILE.sub(r"\g<rows>\g<widest>\g<rest>", name)


def binaries_of(kernels: Iterable[KernelSpec]) -> tuple[KernelSpec, ...]:
    """What is compiled for ``kernels``: each binary once, in their order."""
    return tuple(dict.fromkeys(spec.binary for spec in kernels))
