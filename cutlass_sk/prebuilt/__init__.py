"""Kernels that came compiled: libraries of many kernels, one for each pair of dtypes and target, used before cache and compiler.

A folder holds ``float16_float16_90a.so`` and, beside it, ``float16_float16_90a.json``: its kernels' names, its digest, and the
digest of the sources that it was compiled from. The folder is CUTLASS_SK_PREBUILT_DIR, or this one, which ``cutlass-sk build -o``
fills before a wheel is made that carries kernels. A library of other sources than those that are installed here is passed over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from .. import env, generator
from ..errors import KernelError, ToolchainError
from ..generator import abi
from ..generator.spec import KernelSpec


@dataclass(frozen=True)
class Library:
    """One library, as its ``.json`` says.

    file           its name, in the folder of the ``.json``
    architecture   what its kernels were compiled for, such as ``90a``
    kernels        names of its specs, in the order of the catalogue
    bytes, sha256  of the file
    abi, sources   version of the kernel ABI, and ``sources_digest`` when it was built
    versions       of nvcc, the host compiler and CUTLASS
    packs          whether it has the function that packs operands, too (``generator.abi.PACK``)
    """

    file: str
    architecture: str
    dtype: str
    out_dtype: str
    kernels: tuple[str, ...]
    bytes: int
    sha256: str
    abi: int
    sources: str
    versions: dict[str, str]
    packs: bool = False

    @property
    def usable(self) -> bool:
        """Whether its kernels are those that would be compiled here."""
        return self.abi == abi.ABI_VERSION and self.sources == sources_digest()

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


@dataclass(frozen=True)
class Found:
    """Where a kernel is: its library, and what the names of its functions end in."""

    library: Path
    suffix: str


def suffix(name: str) -> str:
    """What the names of a kernel's functions end in, in a library of several kernels. ``name`` is its spec's."""
    return f"_{name}"


def folder() -> Path:
    """Where libraries are looked for."""
    return env.PREBUILT_DIR.get() or Path(__file__).parent


def find(spec: KernelSpec, architecture: str) -> Found | None:
    """The binary of ``spec`` for ``sm_<architecture>``, if it came compiled.

    Raises KernelError for a library that is damaged: what stands in its place might be anything.
    """
    place = folder()
    library = _by_kernel(place).get((spec.binary.name, architecture))
    if library is None:
        return None
    _check(place / library.file, library.bytes, library.sha256)
    return Found(place / library.file, suffix(spec.binary.name))


def find_packing(architecture: str) -> Path | None:
    """A library for ``sm_<architecture>`` that packs operands, if one came compiled. Raises KernelError as ``find`` does."""
    place = folder()
    for library in _libraries(place):
        if library.packs and library.usable and library.architecture == architecture:
            _check(place / library.file, library.bytes, library.sha256)
            return place / library.file
    return None


def libraries(place: Path | None = None) -> list[Library]:
    """All libraries of a folder, default ``folder()``, usable or not. Raises KernelError for a ``.json`` that cannot be read."""
    return list(_libraries(place or folder()))


@contextmanager
def naming_the_missing(specs: Sequence[KernelSpec], architecture: str) -> Iterator[None]:
    """ToolchainErrors, within: with those of ``specs`` that a folder of libraries lacks, for which a compiler was looked for."""
    try:
        yield
    except ToolchainError as error:
        place = folder()
        if usable := [library for library in _libraries(place) if library.usable]:
            more = f" and {len(specs) - 1} more" if len(specs) > 1 else ""
            error.args = (
                f"{specs[0].binary.name}{more} for sm_{architecture} did not come compiled in {place}, whose libraries have "
                f"{sum(len(library.kernels) for library in usable)} others, and cannot be compiled here: {error}",
            )
        raise


def verify() -> None:
    """Raises KernelError as ``find`` does if any library is damaged, whichever kernel is asked for."""
    place = folder()
    for library in _libraries(place):
        if library.usable:
            _check(place / library.file, library.bytes, library.sha256)


@lru_cache(maxsize=1)
def sources_digest() -> str:
    """Digest of all that decides a kernel's machine code, compiler and CUTLASS aside: our headers, the emitter and nvcc's flags."""
    from ..jit.build import FLAGS
    from ..jit.digest import headers_digest

    root = Path(generator.__file__).parent
    parts = (headers_digest(root / "include"), (root / "emit.py").read_text(encoding="utf-8"), *FLAGS)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@lru_cache(maxsize=4)
def _libraries(place: Path) -> tuple[Library, ...]:
    found = []
    for path in sorted(place.glob("*.json")):
        try:
            record = json.loads(path.read_bytes())
            found.append(Library(**{**record, "kernels": tuple(record["kernels"])}))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise KernelError(f"{path} does not describe a library of kernels ({error}): {_REMEDY}") from error
    return tuple(found)


@lru_cache(maxsize=4)
def _by_kernel(place: Path) -> dict[tuple[str, str], Library]:
    return {(name, library.architecture): library for library in _libraries(place) if library.usable for name in library.kernels}


@lru_cache(maxsize=16)
def _check(path: Path, size: int, sha256: str) -> None:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise KernelError(f"{path} cannot be read ({error.strerror}): {_REMEDY}") from error
    if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
        raise KernelError(f"{path} is damaged, or not the library that its .json describes: {_REMEDY}")


_REMEDY = "install cutlass_sk again, run `cutlass-sk build -o` again, or delete the file and its twin to compile kernels instead"
