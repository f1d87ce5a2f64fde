"""CUTLASS's headers without what no kernel of ours uses: the rest compiles in a third of the time, to the same machine code.

``cute/atom/mma_atom.hpp`` includes every tensor-core instruction of every architecture, 9 of the 15 MB that a kernel's translation
unit had. Copies of a few headers, cut down, lie in front of CUTLASS's own where kernels are compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

DIRECTORY = "lean"
"""Where ``write`` puts the headers, below the directory that nvcc runs in."""

WANTED = re.compile(r"x(32|64|96|128|160|192|224|256)x16_F32(F16F16|BF16BF16)_SS")
"""What follows ``64``, the rows, in the names of the wgmma instructions that ``wgmma_mainloop.hpp`` selects from."""

EMPTIED = (
    *(f"cute/arch/{name}.hpp" for name in ("mma_sm90_gmma_sparse", "mma_sm90_gmma_sparse_ext", "mma_sm120", "mma_sm120_sparse")),
    *(f"cute/atom/mma_traits_sm90_gmma_{name}.hpp" for name in ("sparse", "sparse_ext")),
    *(f"cute/atom/mma_traits_sm{name}.hpp" for name in ("61", "70", "75", "89", "100", "120", "120_sparse")),
)
"""Headers that ``mma_atom.hpp`` includes, and nothing here needs."""

CUT = tuple(f"cute/{name}_sm90_gmma{suffix}.hpp" for name in ("arch/mma", "atom/mma_traits") for suffix in ("", "_ext"))
SELECTOR = "cute/arch/mma_sm90.hpp"

_INSTRUCTION = re.compile(
    r"^(?:template <\n[^{}]*?^|using \w+ = [^;]*;\s*template <>\n)?struct (MMA_64|MMA_Traits<SM90_64)(\w+)[^{]*^\{.*?^\};\n",
    re.MULTILINE | re.DOTALL,
)
_SELECTED = re.compile(r"return SM90::GMMA::(?:SPARSE::G)?MMA_64(\w+)[^;]*;")


def suits(text: str) -> bool:
    """Whether a translation unit is a kernel of ours. CUTLASS's own kernels take its headers whole."""
    return '#include "cutlass_sk/' in text


def write(include: Path, directory: Path) -> None:
    """Writes the headers below ``directory``, made from CUTLASS's in ``include``. A header that CUTLASS lacks is left out."""
    for name, text in _headers(include):
        path = directory / DIRECTORY / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@lru_cache(maxsize=2)
def _headers(include: Path) -> tuple[tuple[str, str], ...]:
    return tuple(_made(include))


def _made(include: Path) -> Iterator[tuple[str, str]]:
    for name in EMPTIED:
        if (include / name).is_file():
            yield name, "#pragma once\n"
    for name in (*CUT, SELECTOR):
        if (include / name).is_file():
            text = (include / name).read_text(encoding="utf-8")
            yield name, _with_wanted_choices(text) if name == SELECTOR else _with_wanted_instructions(text)


def _with_wanted_instructions(text: str) -> str:
    """Drops definitions of instructions, and of their traits, that are not WANTED."""
    return _INSTRUCTION.sub(lambda found: found[0] if WANTED.fullmatch(found[2]) else "", text)


def _with_wanted_choices(text: str) -> str:
    """The selectors in templates must name no instruction that is gone; branches without one return a number, which is none."""
    return _SELECTED.sub(lambda found: found[0] if WANTED.fullmatch(found[1]) else "return 0;", text)
