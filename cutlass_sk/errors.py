"""Every exception the library raises.

All derive from :class:`Error`. User errors are raised before anything is launched: the output is untouched and the CUDA
context stays usable. Each message names the operand or option, its value and the way out.
"""

from __future__ import annotations

from pathlib import Path


class Error(Exception):
    """Base of all cutlass_sk exceptions."""


class OperandError(Error, ValueError, RuntimeError):
    """An operand has a shape, rank, dtype, device, layout or overlap that the call cannot take. A RuntimeError, as torch's are."""


class PlanError(Error, ValueError):
    """A forced plan option is out of range, or a plan does not fit the problem or the kernel."""


class DtypeError(Error, TypeError, RuntimeError):
    """No kernel exists for this combination of dtypes and generation. A RuntimeError, as torch's are."""


class DeviceError(Error, RuntimeError):
    """The GPU, or its absence, rules the call out (unsupported architecture, no GPU, unknown preset)."""


class CalibrationError(Error, ValueError):
    """A calibration cannot be read, or cannot be made from what was measured."""


class ToolchainError(Error, RuntimeError):
    """nvcc, the host compiler or the CUTLASS headers cannot be found or used."""


class CacheError(Error, RuntimeError):
    """The kernel cache cannot be written, or others can write to it, so that nothing is loaded from it."""


class CompileError(Error, RuntimeError):
    """nvcc ran and failed.

    Attributes: ``command`` (what was run), ``log`` (all compiler output), ``source`` (the kept .cu file).
    """

    def __init__(self, message: str, *, command: str, log: str, source: Path) -> None:
        super().__init__(message)
        self.command, self.log, self.source = command, log, source


class KernelError(Error, RuntimeError):
    """A compiled kernel cannot be loaded, or speaks another ABI."""


class LaunchError(Error, RuntimeError):
    """A launch failed; the message names the kernel's status and the CUDA error."""


class WriteError(Error, RuntimeError):
    """A file cannot be written; the message names it, not what it is written by."""


class EnvironmentVariableError(Error, ValueError):
    """A CUTLASS_SK_* environment variable holds a value that cannot be used."""


def reason(error: Exception) -> str:
    """Why a file cannot be used, in the system's words: no number, and no path, which the message has already."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
