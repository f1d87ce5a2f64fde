"""The GPU driver of this machine, asked without torch, which does not say why it finds no GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Driver:
    """What libcuda says; all of it empty on a machine without GPU and driver.

    version   of the newest CUDA that it serves, (major, minor)
    module    version of the kernel module
    gpus      how many GPUs it has, or the system has where it does not work
    problem   why it does not work, with the remedy
    """

    version: tuple[int, int] | None = None
    module: str = ""
    gpus: int = 0
    problem: str = ""

    @property
    def cuda(self) -> str:
        return f"CUDA {self.version[0]}.{self.version[1]}" if self.version else "no CUDA"

    def serves(self, release: tuple[int, int]) -> bool:
        """Whether it runs machine code that the compiler or the runtime of a CUDA release made: any minor release of its major."""
        return self.version is None or release[0] <= self.version[0]


def find_driver() -> Driver:
    """The driver as it is; raises nothing."""
    nodes, module = _nodes(), _module()
    try:
        from cuda.bindings import driver

        status, number = driver.cuDriverGetVersion()
    except (ImportError, OSError, RuntimeError) as error:
        if nodes == 0:
            return Driver(module=module)
        remedy = "install NVIDIA's driver; in a container, start it with the GPUs (`docker run --gpus all`)"
        return Driver(module=module, gpus=nodes, problem=f"libcuda cannot be loaded ({str(error).splitlines()[0]}): {remedy}")
    version = (number // 1000, number % 1000 // 10) if status == driver.CUresult.CUDA_SUCCESS else None
    (status,) = driver.cuInit(0)
    if status == driver.CUresult.CUDA_SUCCESS:
        _, gpus = driver.cuDeviceGetCount()
        return Driver(version, module, gpus)
    if status == driver.CUresult.CUDA_ERROR_NO_DEVICE:  # or CUDA_VISIBLE_DEVICES hides them
        return Driver(version, module)
    return Driver(
        version, module, nodes, f"cuInit says {status.name}: `nvidia-smi` says more; restart, or install the driver again"
    )


def _nodes() -> int:
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def _module() -> str:
    try:
        found = re.search(r"Kernel Module.*?(\d+\.[\d.]+)", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return ""
    return found[1] if found else ""
