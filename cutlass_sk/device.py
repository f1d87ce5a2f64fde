"""The GPU that is planned for: a real one, or a named preset that needs no GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from .errors import DeviceError
from .generator.spec import COMPILED, Generation, KernelSpec

if TYPE_CHECKING:
    import torch


_NEEDS: dict[Generation, str] = {
    "sm90a": "sm90a kernels need 9.0",
    "sm80": "sm80 kernels are built for 8.0, 8.6, 8.9 and 9.0",
    "sm100a": f"sm100a kernels are {COMPILED}",
}


@dataclass(frozen=True)
class Device:
    """What planning needs to know of a GPU.

    name                 as CUDA gives it, or the preset's
    sms                  streaming multiprocessors
    capability           compute capability, (major, minor)
    fp16_tflops, fp64_tflops   dense tensor-core peaks, TFLOP/s
    bandwidth_gbs        memory bandwidth, GB/s
    index                CUDA device index; None for a preset
    """

    name: str
    sms: int
    capability: tuple[int, int]
    fp16_tflops: float
    fp64_tflops: float
    bandwidth_gbs: float
    index: int | None = None

    def __hash__(self) -> int:
        return hash((self.name, self.sms, self.index))

    def tflops(self, dtype: str) -> float:
        """The dense tensor-core peak for a and b of ``dtype``, TFLOP/s."""
        return self.fp64_tflops if dtype == "float64" else self.fp16_tflops

    @property
    def generation(self) -> Generation:
        """The newest kernel generation that runs here."""
        if self.capability == (9, 0):
            return "sm90a"
        if self.capability[0] == 8:
            return "sm80"
        major, minor = self.capability
        raise DeviceError(
            f"{self.name} has compute capability {major}.{minor}; kernels run on 8.x and 9.0"
            + (f", and those for 10.0 are {COMPILED}" if self.capability >= (10, 0) else "")
        )

    def architecture(self, spec: KernelSpec) -> str:
        """The compile target (``90a``, ``80``, ...) for ``spec`` on this GPU."""
        if spec.generation == "sm90a":
            if self.capability == (9, 0):
                return "90a"
        elif spec.generation == "sm80" and self.capability in {(8, 0), (8, 6), (8, 9), (9, 0)}:
            return f"{self.capability[0]}{self.capability[1]}"
        major, minor = self.capability
        raise DeviceError(
            f"{spec.name} does not run on {self.name} (compute capability {major}.{minor}): " + _NEEDS[spec.generation]
        )


# Data-sheet peaks; planning uses them only where no constants were measured.
PRESETS = {
    "h200": Device("h200", 132, (9, 0), 989.0, 67.0, 4800.0),
    "h100": Device("h100", 132, (9, 0), 989.0, 67.0, 3350.0),
    "a100": Device("a100", 108, (8, 0), 312.0, 19.5, 2039.0),
}
CLOCK_MHZ = {"h200": 1980.0, "h100": 1980.0, "a100": 1410.0}
"""The SM clock that CUDA reports of the GPU of each preset (cudaDevAttrClockRate)."""
DEFAULT_PRESET = "h200"
_CUDA_NAME = re.compile(r"cuda(:\d+)?")


def toy(sms: int) -> Device:
    """A Hopper-like GPU of ``sms`` SMs, for pictures and tests."""
    full = PRESETS["h200"]
    share = sms / full.sms
    return Device(f"toy:{sms}", sms, (9, 0), full.fp16_tflops * share, full.fp64_tflops * share, full.bandwidth_gbs * share)


def preset(name: str) -> Device:
    """The preset called ``name``: ``h200``, ``h100``, ``a100`` or ``toy:P`` with P SMs."""
    name = name.lower()
    if name in PRESETS:
        return PRESETS[name]
    head, _, sms = name.partition(":")
    if head == "toy" and sms.isdecimal() and len(sms) <= 4 and 1 <= int(sms) <= 1024:
        return toy(int(sms))
    hint = "; CPU tensors need no device" if name == "cpu" else ""
    raise DeviceError(f"device={name!r} is no preset; there are {', '.join(PRESETS)} and toy:P (P from 1 to 1024), or 'cuda'{hint}")


def is_cuda(device: object) -> bool:
    """Whether ``device`` means a CUDA device, not a preset or a ``Device``."""
    return not isinstance(device, Device) and not (isinstance(device, str) and not _CUDA_NAME.fullmatch(device))


def check_name(device: object) -> None:
    """Raises DeviceError for what can be no device, without looking for GPUs."""
    import torch

    if isinstance(device, str) and not _CUDA_NAME.fullmatch(device):
        preset(device)
    elif isinstance(device, torch.device) and device.type != "cuda":
        raise DeviceError(f"device={device!r} is not a CUDA device; leave it out for CPU tensors, or name a preset such as 'h200'")
    elif not isinstance(device, Device | str | torch.device | int | None) or isinstance(device, bool):
        raise DeviceError(f"device={device!r} is neither a CUDA device nor a preset such as 'h200'")


def resolve(device: Device | torch.device | str | int | None) -> Device:
    """What ``device`` means: a Device, a preset's name, a CUDA device, or None for the current GPU (without one, h200)."""
    if isinstance(device, Device):
        return device
    if isinstance(device, str) and not _CUDA_NAME.fullmatch(device):
        return preset(device)
    import torch

    if device is None:
        if not torch.cuda.is_available():
            return PRESETS[DEFAULT_PRESET]
        return real(torch.cuda.current_device())
    try:
        target = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise DeviceError(f"device={device!r} is neither a CUDA device nor a preset: {error}") from None
    if target.type != "cuda":
        raise DeviceError(f"device={device!r} is not a CUDA device; presets are given by name, such as 'h200'")
    if not torch.cuda.is_available():
        raise DeviceError(f"device={device!r}: no CUDA GPU is usable here; use a preset such as 'h200' to plan")
    return real(torch.cuda.current_device() if target.index is None else target.index)


@lru_cache(maxsize=64)
def real(index: int) -> Device:
    """The CUDA GPU with this index."""
    import torch

    if not 0 <= index < torch.cuda.device_count():
        raise DeviceError(f"CUDA device {index} does not exist; there are {torch.cuda.device_count()}")
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    return scaled(properties.name, properties.multi_processor_count, capability, *_rates(index), index)


def scaled(
    name: str, sms: int, capability: tuple[int, int], clock_mhz: float | None, bandwidth_gbs: float | None, index: int | None = None
) -> Device:
    """A GPU with the peaks of the nearest preset, scaled by SMs and clock.

    clock_mhz, bandwidth_gbs   as CUDA reports them; None, where it does not, counts as those of the preset
    """
    key = next((key for key in PRESETS if key in name.lower()), "h100" if capability >= (9, 0) else "a100")
    near = PRESETS[key]
    share = sms / near.sms * (clock_mhz / CLOCK_MHZ[key] if clock_mhz else 1.0)
    # What a data sheet says of a preset's own memory is some percent less than clock times width.
    same = bandwidth_gbs is None or abs(bandwidth_gbs / near.bandwidth_gbs - 1) < 0.05
    bandwidth = near.bandwidth_gbs if same or bandwidth_gbs is None else bandwidth_gbs
    return Device(name, sms, capability, near.fp16_tflops * share, near.fp64_tflops * share, bandwidth, index)


def _rates(index: int) -> tuple[float | None, float | None]:
    """The SM clock in MHz, and memory clock times bus width in GB/s, two transfers a cycle; None where CUDA does not say."""
    from cuda.bindings import runtime

    def attribute(name: str) -> int:
        status, value = runtime.cudaDeviceGetAttribute(getattr(runtime.cudaDeviceAttr, name), index)
        return int(value) if status == runtime.cudaError_t.cudaSuccess and value else 0

    clock_khz = attribute("cudaDevAttrClockRate")
    memory_khz, width_bits = attribute("cudaDevAttrMemoryClockRate"), attribute("cudaDevAttrGlobalMemoryBusWidth")
    return clock_khz / 1e3 or None, 2 * memory_khz * 1e3 * width_bits / 8 / 1e9 or None
