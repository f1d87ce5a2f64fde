"""``cutlass-sk doctor``: what works on this machine, what is missing, and the remedy."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
import typer
from rich.console import Console
from rich.markup import escape

from .. import __version__, calibration, env, extension, prebuilt
from ..device import Device, real, resolve
from ..errors import DeviceError, Error, reason
from ..generator.catalog import kernels
from ..generator.spec import PROVED
from ..jit.cache import Cache
from ..jit.key import SCHEMA
from ..jit.root import REMEDY
from ..jit.tidy import stored
from ..jit.toolchain import CUTLASS_RELEASE, CUTLASS_REMEDY, find_toolchain
from ..jit.trust import require_private
from .driver import Driver, find_driver
from .options import JsonOption


@dataclass(frozen=True)
class Finding:
    """``works`` None is a fact without a verdict; ``remedy`` says what to do where something is missing."""

    name: str
    works: bool | None
    value: str
    remedy: str = ""


def doctor(as_json: JsonOption = False) -> None:
    """Say what works here: GPU, driver, kernels that came compiled, compiler, CUTLASS, cache. Exit status 1, with the remedy, if
    kernels cannot be compiled and none came compiled for the GPU, if those that came are damaged, or if there is a GPU and they
    cannot run on it."""
    driver = find_driver()
    came, targets = _prebuilt()
    findings = [
        Finding("cutlass_sk", None, __version__),
        _torch(driver),
        *_gpu(driver),
        _proved(),
        came,
        _constants(),
        *_compiler(driver),
        _cache(),
        *_environment(),
        _repeated_calls(),
    ]
    broken = {finding.name for finding in findings if finding.works is False}
    compiles = not broken & {"compiler", "CUTLASS", "cache", "environment"}
    runs = not broken & {"torch", "GPU", "driver", "environment", "compiled kernels"}
    works = runs and (compiles or bool(came.works))
    findings += [
        Finding("plan", True, "plans for this GPU, and for presets" if runs else "plans for presets, such as h200"),
        Finding("CPU tensors", True, "multiplied by the reference, slowly"),
        Finding("build", compiles, "compiles kernels" if compiles else "cannot compile kernels", "" if compiles else "see above"),
        Finding("run", works, _run_verdict(runs, compiles, works, came, targets), "" if works else "see above"),
    ]
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        _print(findings)
    raise typer.Exit(0 if works or (compiles and driver.gpus == 0 and came.works is not False) else 1)


def _run_verdict(runs: bool, compiles: bool, works: bool, came: Finding, targets: list[str]) -> str:
    """``came``: the finding on kernels that came compiled, for ``targets``."""
    if came.works is False:
        return "nothing, while kernels that came compiled cannot be used"
    if works and not compiles:
        return "runs the kernels that came compiled, and can compile no others"
    if runs:
        return "compiles on first use and runs" if compiles else "cannot compile what it would run"
    if compiles:
        return "needs a GPU; kernels can be built here for one"
    return f"needs a GPU; kernels came compiled for {', '.join(targets)}" if targets else "needs a GPU and a compiler"


def _print(findings: list[Finding]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = {True: "[green]ok[/]", False: "[red]no[/]", None: " -"}[finding.works]
        console.print(f"{mark}  {finding.name:{width}}  {escape(finding.value)}")
        if finding.remedy:
            console.print(f"    {'':{width}}  -> {escape(finding.remedy)}")


def _torch(driver: Driver) -> Finding:
    built_for = torch.version.cuda
    value, remedy = f"{torch.__version__} (CUDA runtime {built_for or 'none'})", ""
    if driver.gpus and not driver.problem and not torch.cuda.is_available():
        if built_for is None:
            remedy = "there is a GPU, and this build of torch is without CUDA: install one for CUDA (pytorch.org)"
        elif not driver.serves(_release(built_for)):
            remedy = f"the driver serves {driver.cuda}: install a newer driver, or torch for that CUDA (pytorch.org)"
        else:
            remedy = "torch finds no GPU and the driver does: `python -c 'import torch; torch.cuda.init()'` says why"
    return Finding("torch", False if remedy else None, value, remedy)


def _gpu(driver: Driver) -> Iterator[Finding]:
    if torch.cuda.is_available():
        device = real(torch.cuda.current_device())
        try:
            targets = [device.architecture(spec) for spec in kernels() if spec.generation == device.generation]
            runs, remedy = f"runs {device.generation} kernels, compiled for sm_{targets[0]} ({PROVED[targets[0]]})", ""
        except DeviceError as error:
            runs, remedy = "unsupported", str(error)
        yield Finding("GPU", not remedy, f"{_describe(device)}; {runs}", remedy)
    else:
        build = "" if torch.version.cuda else "a CUDA build of torch and "
        remedy = f"to run kernels: {build}a GPU of compute capability 9.0 or 8.x with its driver"
        yield Finding("GPU", False, f"torch sees none, the driver {driver.gpus}" if driver.gpus else "torch sees none", remedy)
    if driver.problem:
        yield Finding("driver", False, driver.module or "unknown", driver.problem)
    elif driver.version:
        yield Finding("driver", None, f"{driver.module}, {driver.cuda}" if driver.module else driver.cuda)


def _proved() -> Finding:
    """How far this project has seen kernels work, by compile target."""
    targets = {proof: [target for target in PROVED if PROVED[target] == proof] for proof in PROVED.values()}
    return Finding("proved", None, "; ".join(f"{proof}: {', '.join(f'sm_{t}' for t in found)}" for proof, found in targets.items()))


def _prebuilt() -> tuple[Finding, list[str]]:
    """The kernels that came compiled, and their targets. They work if some are for the GPU; else the only verdict is damage."""
    try:
        prebuilt.verify()
        found = [library for library in prebuilt.libraries() if library.usable]
        fitting = found
        if torch.cuda.is_available():
            device = real(torch.cuda.current_device())
            targets = {device.architecture(spec) for spec in kernels() if spec.generation == device.generation}
            fitting = [library for library in found if library.architecture in targets]
    except DeviceError:  # the GPU's finding says so
        fitting = []
    except Error as error:
        return Finding("compiled kernels", False, "cannot be used", str(error)), []
    held = ", ".join(f"{len(one.kernels)} of {one.dtype} -> {one.out_dtype} for sm_{one.architecture}" for one in found)
    works = True if fitting and torch.cuda.is_available() else None
    finding = Finding("compiled kernels", works, held or f"none for these sources in {prebuilt.folder()}")
    return finding, sorted({f"sm_{one.architecture}" for one in found})


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


def _compiler(driver: Driver) -> Iterator[Finding]:
    try:
        toolchain = find_toolchain()
    except Error as error:
        yield Finding("compiler", False, "cannot be used", str(error))
        return
    release = toolchain.nvcc_version.partition("\n")[0].rpartition(", ")[2]
    remedy = (
        ""
        if driver.serves(toolchain.nvcc_release)
        else (
            f"the driver serves {driver.cuda}, nothing later: install a newer driver, or set CUTLASS_SK_NVCC "
            f"to an nvcc that it serves"
        )
    )
    yield Finding("compiler", not remedy, f"nvcc {release}: {toolchain.nvcc}", remedy)
    yield Finding("host compiler", True, f"{toolchain.host_version}: {toolchain.host_compiler}")
    fits = toolchain.cutlass_version.startswith(f"{CUTLASS_RELEASE}.")
    remedy = "" if fits else f"kernels are written for {CUTLASS_RELEASE}: {CUTLASS_REMEDY}"
    yield Finding("CUTLASS", fits, f"{toolchain.cutlass_version}: {toolchain.cutlass_include[0]}", remedy)


def _cache() -> Finding:
    """Whether kernels can be kept: in a directory, existing or to be made, that its user alone can write to."""
    try:
        cache = Cache()
        root = cache.root
        builds = root / str(SCHEMA) / "tmp"
        existing = next(path for path in (builds, *builds.parents) if path.exists())
        found = stored(cache)
        size = f"{len(found)} kernels, {sum(one.nbytes for one in found):,} bytes"
        require_private(root, *(path for path in [root / str(SCHEMA)] if path.exists()))
    except OSError as error:
        return Finding("cache", False, f"{root}: cannot be read", f"{error}; {REMEDY}")
    except Error as error:
        return Finding("cache", False, "cannot be used", str(error))
    try:
        tempfile.TemporaryDirectory(prefix="doctor-", dir=existing).cleanup()
    except OSError as error:
        return Finding("cache", False, f"{root}: {size}, cannot be written: {reason(error)}", REMEDY)
    if os.statvfs(existing).f_flag & os.ST_NOEXEC:
        return Finding("cache", False, f"{root}: {size}, on a filesystem mounted noexec", "set CUTLASS_SK_CACHE_DIR to another")
    return Finding("cache", True, f"{root}: {size}, writable and private")


def _environment() -> Iterator[Finding]:
    """Variables with a value that cannot be used, and such as mean nothing."""
    for variable in env.VARIABLES:
        try:
            variable.get()
        except Error as error:
            yield Finding("environment", False, variable.name, str(error))
    for name, similar in env.unknown().items():
        meant = f"did you mean {similar}?" if similar else "the README lists those that there are"
        yield Finding("unknown variable", False, name, f"it means nothing here: {meant}")


def _release(text: str) -> tuple[int, int]:
    major, minor, *_ = map(int, text.split("."))
    return major, minor


def _repeated_calls() -> Finding:
    if extension.native is not None:
        return Finding("repeated calls", True, "by the native extension")
    return Finding(
        "repeated calls", False, f"in Python, which takes more CPU time; no native extension: {extension.missing}", extension.REMEDY
    )
