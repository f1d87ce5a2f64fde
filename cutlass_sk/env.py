"""Every environment variable the library reads, typed and documented in one place.

Values are read when they are needed, so a change takes effect at the next use. A wrong value raises
:class:`~cutlass_sk.errors.EnvironmentVariableError`; an unset or empty variable means the default.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from .errors import EnvironmentVariableError

T = TypeVar("T")


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One environment variable: its name, how its text is read, its default and what it does."""

    name: str
    read: Callable[[str], T]
    default: T
    doc: str

    def get(self) -> T:
        text = os.environ.get(self.name, "")
        if not text:
            return self.default
        try:
            return self.read(text)
        except (ValueError, RuntimeError) as error:  # RuntimeError: ~user without such a user
            raise EnvironmentVariableError(f"{self.name}={text!r} cannot be used: {error}. {self.doc}") from None


def _absolute_path(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise ValueError("it must be an absolute path")
    return path


def _existing_folder(text: str) -> Path:
    path = _absolute_path(text)
    if not path.is_dir():
        raise ValueError("there is no such folder")
    return path


def _switch(text: str) -> bool:
    try:
        return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
    except KeyError:
        raise ValueError("it must be 1, true or yes, or else 0, false or no") from None


def _jobs(text: str) -> int:
    jobs = int(text) if text.isdecimal() else 0
    if jobs < 1:
        raise ValueError("it must be a positive whole number")
    return jobs


CACHE_DIR = Variable[Path | None](
    "CUTLASS_SK_CACHE_DIR", _absolute_path, None, "Absolute path of the kernel cache; default: the user's cache directory."
)
NVCC = Variable[Path | None]("CUTLASS_SK_NVCC", _absolute_path, None, "Absolute path of the nvcc to use; default: searched for.")
JOBS = Variable[int | None]("CUTLASS_SK_JOBS", _jobs, None, "How many kernels compile side by side; default: the number of CPUs.")
PDL = Variable[bool](
    "CUTLASS_SK_PDL",
    _switch,
    True,
    "0 launches without programmatic dependent launch: each kernel starts after the one before it has ended.",
)
DEBUG = Variable[bool](
    "CUTLASS_SK_DEBUG", _switch, False, "1 prints the plan of each new problem to standard error; read when a Gemm is made."
)
CALIBRATION = Variable[Path | None](
    "CUTLASS_SK_CALIBRATION",
    _absolute_path,
    None,
    "Absolute path of a calibration to plan with, read once in a process; default: the user's own for the GPU, else a shipped one.",
)
PREBUILT_DIR = Variable[Path | None](
    "CUTLASS_SK_PREBUILT_DIR",
    _existing_folder,
    None,
    "Absolute path of the folder of kernels that came compiled, from cutlass-sk build -o; default: those in the installed package.",
)

CUDA_HOME = Variable[str](
    "CUDA_HOME", str, "", "Directory of a CUDA toolkit, whose bin/nvcc is used where CUTLASS_SK_NVCC is not set."
)
CUDA_PATH = Variable[str]("CUDA_PATH", str, "", "The same as CUDA_HOME, which goes first.")
NVCC_CCBIN = Variable[str]("NVCC_CCBIN", str, "", "The host compiler, or the directory of its g++, as for nvcc; default: g++.")

VARIABLES: tuple[Variable[Path | None] | Variable[int | None] | Variable[bool] | Variable[str], ...] = (
    CACHE_DIR,
    NVCC,
    JOBS,
    PDL,
    DEBUG,
    CALIBRATION,
    CUDA_HOME,
    CUDA_PATH,
    NVCC_CCBIN,
    PREBUILT_DIR,
)

PREFIX = "CUTLASS_SK_"


def unknown() -> dict[str, str]:
    """Variables that are set and begin as ours do, and mean nothing; with the most similar one that does, or an empty text."""
    from difflib import get_close_matches

    ours = {variable.name.removeprefix(PREFIX): variable.name for variable in VARIABLES if variable.name.startswith(PREFIX)}
    strange = [name for name in os.environ if name.startswith(PREFIX) and name not in ours.values()]
    similar = {name: get_close_matches(name.removeprefix(PREFIX), ours, 1, 0.7) for name in strange}
    return {name: ours[found[0]] if found else "" for name, found in similar.items()}
