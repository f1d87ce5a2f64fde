"""``cutlass-sk doctor``: what works on this machine, what is missing, and the remedy."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.markup import escape

from .. import __version__, calibration, extension
from ..device import Device, real, resolve
from ..errors import DeviceError, Error
from ..jit.cache import LIBRARY, Cache
from ..jit.key import SCHEMA
from ..jit.toolchain import find_toolchain
from .options import JsonOption


@dataclass(frozen=True)
class Finding:
    """``works`` None is a fact without a verdict; ``remedy`` says what to do where something is missing."""

    name: str
    works: bool | None
    value: str
    remedy: str = ""


def doctor(as_json: JsonOption = False) -> None:
    """Say what works here: GPU, compiler, CUTLASS, cache. Exit status 1 if kernels cannot be compiled."""
    findings = [
        Finding("cutlass_sk", None, __version__),
        Finding("torch", None, f"{torch.__version__} (CUDA runtime {torch.version.cuda or 'none'})"),
        *_gpu(),
        _constants(),
        *_compiler(),
        _cache(),
        _repeated_calls(),
    ]
    works = {finding.name: bool(finding.works) for finding in findings}
    compiles, runs = works["compiler"] and works["cache"], works["GPU"]
    findings += [
        Finding("plan", True, "plans for this GPU, and for presets" if runs else "plans for presets, such as h200"),
        Finding("CPU tensors", True, "multiplied by the reference, slowly"),
        Finding("build", compiles, "compiles kernels" if compiles else "cannot compile kernels", "" if compiles else "see above"),
        Finding("run", runs and compiles, _run_verdict(runs, compiles), "" if runs and compiles else "see above"),
    ]
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        _print(findings)
    raise typer.Exit(0 if compiles else 1)


def _run_verdict(runs: bool, compiles: bool) -> str:
    if runs:
        return "compiles on first use and runs" if compiles else "runs only kernels that are in the cache already"
    return "needs a GPU; kernels can be built here for one" if compiles else "needs a GPU and a compiler"


def _print(findings: list[Finding]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = {True: "[green]ok[/]", False: "[red]no[/]", None: " -"}[finding.works]
        console.print(f"{mark}  {finding.name:{width}}  {escape(finding.value)}")
        if finding.remedy:
            console.print(f"    {'':{width}}  -> {escape(finding.remedy)}")


def _gpu() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        build = "" if torch.version.cuda else "a CUDA build of torch and "
        remedy = f"to run kernels: {build}a GPU of compute capability 9.0 or 8.x with its driver"
        yield Finding("GPU", False, "torch sees none", remedy)
        return
    device = real(torch.cuda.current_device())
    try:
        generation, remedy = f"runs {device.generation} kernels", ""
    except DeviceError as error:
        generation, remedy = "unsupported", str(error)
    yield Finding("GPU", not remedy, f"{_describe(device)}; {generation}", remedy)
    yield Finding("driver", None, _driver())


def _constants() -> Finding:
    """Where the model's constants come from that plans are compared by."""
    try:
        device = resolve(None)
        return Finding("constants", None, f"for {device.name}: {calibration.described(device)}")
    except Error as error:
        return Finding("constants", False, "cannot be used", str(error))


def _describe(device: Device) -> str:
    major, minor = device.capability
    return f"{device.name}, compute capability {major}.{minor}, {device.sms} SMs"


def _driver() -> str:
    """The driver's version, and the newest CUDA that it serves."""
    from cuda.bindings import driver

    status, version = driver.cuDriverGetVersion()
    served = f"CUDA {version // 1000}.{version % 1000 // 10}" if status == driver.CUresult.CUDA_SUCCESS else str(status)
    try:
        found = re.search(r"Kernel Module.*?(\d+\.[\d.]+)", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        found = None
    return f"{found[1]}, {served}" if found else served


def _compiler() -> Iterator[Finding]:
    try:
        toolchain = find_toolchain()
    except Error as error:
        yield Finding("compiler", False, "cannot be used", str(error))
        return
    release = toolchain.nvcc_version.partition("\n")[0].rpartition(", ")[2]
    yield Finding("compiler", True, f"nvcc {release}: {toolchain.nvcc}")
    yield Finding("host compiler", True, f"{toolchain.host_version}: {toolchain.host_compiler}")
    yield Finding("CUTLASS", True, f"{toolchain.cutlass_version}: {toolchain.cutlass_include[0]}")


def _cache() -> Finding:
    try:
        root = Cache().root
    except Error as error:
        return Finding("cache", False, "", str(error))
    libraries = [path.stat().st_size for path in root.glob(f"{SCHEMA}/??/*/{LIBRARY}")]
    existing = next(path for path in (root, *root.parents) if path.exists())
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    value = f"{root}: {len(libraries)} kernels, {sum(libraries):,} bytes" + ("" if writable else ", read-only")
    return Finding("cache", writable, value, "" if writable else "set CUTLASS_SK_CACHE_DIR to a directory that can be written")


def _repeated_calls() -> Finding:
    if extension.native is not None:
        return Finding("repeated calls", True, "by the native extension")
    return Finding(
        "repeated calls", False, f"in Python, which takes more CPU time; no native extension: {extension.missing}", extension.REMEDY
    )
