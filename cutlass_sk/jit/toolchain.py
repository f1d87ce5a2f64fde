"""Finds nvcc, the host compiler and the headers, and says what is missing and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from .. import env, generator
from ..errors import ToolchainError
from .digest import headers_digest, remembered_headers_digest

MINIMUM_RELEASE = (12, 3)
"""The oldest nvcc with which CUTLASS 4.2 enables all of its sm_90a instructions. The project is tested with 13.0."""

CUTLASS_RELEASE = "4.2"
CUTLASS_REMEDY = f"`pip install 'nvidia-cutlass=={CUTLASS_RELEASE}.*'`"

_REMEDY = "install the compiler with `pip install 'cutlass-sk[nvcc]'`, or set CUTLASS_SK_NVCC to the nvcc of a CUDA toolkit"

_PARTS = {
    "cuda_runtime.h": "nvidia-cuda-runtime",
    "crt/host_config.h": "nvidia-cuda-crt",
    "cuda/std/utility": "nvidia-cuda-cccl",
    "cicc": "nvidia-nvvm",
    "libcudart_static.a": "nvidia-cuda-runtime",
}
"""A file of each part that nvcc needs beside it, and the wheel which brings the part."""


@dataclass(frozen=True)
class Toolchain:
    """What compiles a kernel.

    nvcc, nvcc_version            the compiler and its release and build lines
    host_compiler, host_version   the C++ compiler that nvcc drives and the first line of its ``--version``
    cutlass_version               version of the nvidia-cutlass wheel
    cutlass_include               CUTLASS's include directories
    cutlass_digest                their contents, read once
    own_include                   the include directory of ``cutlass_sk.generator``
    cuda_libraries                the directory of libcudart_static.a
    """

    nvcc: Path
    nvcc_version: str
    host_compiler: Path
    host_version: str
    cutlass_version: str
    cutlass_include: tuple[Path, ...]
    cutlass_digest: str
    own_include: Path
    cuda_libraries: Path

    @property
    def nvcc_release(self) -> tuple[int, int]:
        """(major, minor) of the CUDA release that nvcc is of."""
        return _release(self.nvcc_version)

    def reread(self) -> Toolchain:
        """The same with CUTLASS's headers as they are now; if these have changed, the next ``find_toolchain`` looks anew, too."""
        current = replace(self, cutlass_digest=headers_digest(*self.cutlass_include))
        if current != self:
            _find_toolchain.cache_clear()
        return current


def find_toolchain() -> Toolchain:
    """The toolchain this process compiles with.

    nvcc is the first of: CUTLASS_SK_NVCC; ``bin/nvcc`` of CUDA_HOME or CUDA_PATH; what ``cuda.pathfinder`` finds (NVIDIA's
    wheels, conda, a toolkit); PATH. The host compiler is NVCC_CCBIN or g++. The answer is kept until one of these changes.

    Raises ToolchainError if a part is missing, does not run or is too old.
    """
    settings = (env.CUDA_HOME.get(), env.CUDA_PATH.get(), env.NVCC_CCBIN.get())
    elsewhere = (os.environ.get("CONDA_PREFIX"), os.environ.get("PATH"))  # where pathfinder and the system look
    return _find_toolchain(env.NVCC.get(), settings, elsewhere)


@lru_cache(maxsize=8)
def _find_toolchain(chosen: Path | None, settings: tuple[str, ...], elsewhere: tuple[str | None, ...]) -> Toolchain:
    nvcc, origin = _find_nvcc(chosen)
    host_compiler = _find_host_compiler()
    cutlass_version, cutlass_include = _find_cutlass()
    with ThreadPoolExecutor(1) as reader:  # while this thread waits for nvcc and the host compiler
        cutlass_digest = reader.submit(remembered_headers_digest, *cutlass_include)
        version = _nvcc_version(nvcc, origin)
        cuda_libraries = _check_parts(nvcc, origin, host_compiler)
        host_version = _run([str(host_compiler), "--version"], "the host compiler").partition("\n")[0]
    return Toolchain(
        nvcc=nvcc,
        nvcc_version=version,
        host_compiler=host_compiler,
        host_version=host_version,
        cutlass_version=cutlass_version,
        cutlass_include=cutlass_include,
        cutlass_digest=cutlass_digest.result(),
        own_include=Path(generator.__file__).parent / "include",
        cuda_libraries=cuda_libraries,
    )


def _find_nvcc(chosen: Path | None) -> tuple[Path, str]:
    """nvcc and, for messages, where it was found."""
    if chosen is not None:
        return chosen, "CUTLASS_SK_NVCC"
    for variable in (env.CUDA_HOME, env.CUDA_PATH):
        root = variable.get()
        if root and (found := shutil.which("nvcc", path=os.path.join(root, "bin"))):
            return Path(found), variable.name
    from cuda.pathfinder import find_nvidia_binary_utility

    if found := find_nvidia_binary_utility("nvcc"):
        return Path(found), "cuda.pathfinder"
    if found := shutil.which("nvcc"):
        return Path(found), "PATH"
    raise ToolchainError(f"no nvcc was found in CUDA_HOME, CUDA_PATH, NVIDIA's wheels, conda or PATH: {_REMEDY}")


def _find_host_compiler() -> Path:
    name = env.NVCC_CCBIN.get() or "g++"
    found = shutil.which(os.path.join(name, "g++") if os.path.isdir(name) else name)
    if found is None:
        raise ToolchainError(f"the host compiler {name} was not found: install g++, or set NVCC_CCBIN to the one to use")
    return Path(found)


def _find_cutlass() -> tuple[str, tuple[Path, ...]]:
    """Version and include directories of nvidia-cutlass, without importing cutlass_library."""
    package = importlib.util.find_spec("cutlass_library")
    root = None if package is None or package.origin is None else Path(package.origin).parent / "source"
    if root is None or not (root / "include" / "cutlass" / "cutlass.h").is_file():
        raise ToolchainError(f"the CUTLASS headers were not found: {CUTLASS_REMEDY}")
    return importlib.metadata.version("nvidia-cutlass"), (root / "include", root / "tools" / "util" / "include")


def _run(command: list[str], what: str) -> str:
    """Standard output and error of a short command."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{what} does not run: {error}; {_REMEDY}") from error
    if done.returncode != 0:
        raise ToolchainError(
            f"{what} does not run: `{shlex.join(command)}` exited with {done.returncode}: {done.stdout.strip()[-500:]}; {_REMEDY}"
        )
    return done.stdout


def _nvcc_version(nvcc: Path, origin: str) -> str:
    what = f"{nvcc} (from {origin})"
    text = _run([str(nvcc), "--version"], what)
    found = re.search(r"^Cuda compilation tools, release (\d+)\.(\d+).*$(\n^Build .*$)?", text, re.MULTILINE)
    if found is None:
        raise ToolchainError(f"{what} is not nvcc: `--version` says {text.strip()[-500:]!r}; {_REMEDY}")
    if (release := _release(found[0])) < MINIMUM_RELEASE:
        least, version = (".".join(map(str, numbers)) for numbers in (MINIMUM_RELEASE, release))
        raise ToolchainError(f"{what} is CUDA {version}, and {least} or later is needed: {_REMEDY}")
    return found[0]


def _release(version: str) -> tuple[int, int]:
    found = re.search(r"release (\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _check_parts(nvcc: Path, origin: str, host_compiler: Path) -> Path:
    """Raises if nvcc's headers, libraries or back end are missing; returns the directory of libcudart_static.a.

    nvcc itself says where it looks (a dry run prints its profile), so wrapper scripts and every kind of installation work.
    """
    dry_run = [str(nvcc), "--dryrun", "-ccbin", str(host_compiler), "-x", "cu", "-E", os.devnull]
    profile = dict(re.findall(r"^#\$ (\w+)=(.*)$", _run(dry_run, f"{nvcc} (from {origin})"), re.MULTILINE))
    words = shlex.split(" ".join(profile.get(name, "") for name in ("INCLUDES", "SYSTEM_INCLUDES", "LIBRARIES")))
    places = [Path(word.removeprefix("-I").removeprefix("-L")) for word in words if word != "-isystem"]
    # NVIDIA's 13.0 wheels keep libraries in lib, while their nvcc looks in lib64.
    places += [Path(profile.get("TOP", "")) / "lib", Path(profile.get("CICC_PATH", ""))]
    where = {part: next((place for place in places if (place / part).is_file()), None) for part in _PARTS}
    missing = [f"{part} (wheel {_PARTS[part]})" for part, place in where.items() if place is None]
    libraries = where["libcudart_static.a"]
    if missing or libraries is None:
        raise ToolchainError(f"{nvcc} (from {origin}) lacks {', '.join(missing)}: {_REMEDY}")
    return libraries.resolve()
