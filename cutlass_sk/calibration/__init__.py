"""Measured constants of the model, by GPU: shipped ones, a user's own, and what stands in for those that are missing.

A calibration is a JSON file, written by ``cutlass-sk calibrate``. For a GPU the first of these is taken: the file that
``CUTLASS_SK_CALIBRATION`` names, the user's own for that GPU, the one shipped for it, and the shipped H200's, scaled by SMs, clock
and bandwidth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from .. import env
from ..device import Device
from ..errors import CalibrationError
from ..generator.spec import KernelSpec
from ..model import Constants, Limits, Profile
from .neighbours import at_other_widths, of_another_kernel

SCHEMA = 2
"""Raised when a file's fields change their meaning."""

LARGEST = 1e12
"""No constant or rate comes near it."""

SHIPPED = ("h200",)
"""Calibrations that come with the package; the first one is scaled for GPUs that have none."""

LAUNCH_US = 4.5
MAIN_LOOP_EFFICIENCY = 0.8
"""Share of a GPU's data-sheet peak that a main loop reaches, where nothing was measured."""
FIXUP_ITERS = {"3x": (5.0, 2.4, 2.4, 4.0), "2x": (9.0, 8.0, 0.2, 17.0)}
"""b, d, d_parallel and h in iterations. 2.x: b and d give the choices of the paper's Figure 8 on an A100: g = 108, 64 and 8."""


@dataclass(frozen=True)
class Calibration:
    """What was measured on one GPU.

    device       the GPU
    constants    by ``KernelSpec.family``
    limits       by element type of a and b, for each generation (``sm90a_float16``)
    provenance   GPU, clocks, versions, commit, date, seed, how well the fit predicts
    source       where it comes from, for people
    """

    device: Device
    constants: Mapping[str, Constants]
    limits: Mapping[str, Limits]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def to_json(self) -> str:
        """The file's text."""
        device = {key: value for key, value in asdict(self.device).items() if key != "index"}
        constants = {key: asdict(value) for key, value in sorted(self.constants.items())}
        limits = {key: asdict(value) for key, value in sorted(self.limits.items())}
        record = {"schema": SCHEMA, "device": device, "provenance": dict(self.provenance), "limits": limits, "constants": constants}
        return json.dumps(record, indent=1) + "\n"

    @staticmethod
    def from_json(text: str, source: str) -> Calibration:
        """Reads a file's text; CalibrationError if it is none."""
        try:
            record = json.loads(text)
            if record["schema"] != SCHEMA:
                raise ValueError(f"its schema is {record['schema']!r}, this version reads {SCHEMA}")
            device = Device(**{**record["device"], "capability": tuple(record["device"]["capability"])})
            constants = {key: Constants(**value) for key, value in record["constants"].items()}
            limits = {key: Limits(**value) for key, value in record["limits"].items()}
            entries: list[Constants | Limits] = [*constants.values(), *limits.values()]
            numbers = [number for entry in entries for number in asdict(entry).values()]
            if not all(isinstance(number, int | float) and 0 <= number < LARGEST for number in numbers):
                raise ValueError(f"a constant is no number from 0 to {LARGEST:g}")
            rates = [device.sms, device.fp16_tflops, device.fp64_tflops, device.bandwidth_gbs]
            rates += [rate for entry in limits.values() for rate in (entry.l2_gbs, entry.dram_gbs, entry.tflops)]
            if not all(isinstance(rate, int | float) and 1 / LARGEST < rate < LARGEST for rate in rates):
                raise ValueError("a rate, or the number of SMs, is no number above 0")
            if len(device.capability) != 2:
                raise ValueError(f"its capability is {device.capability}, not major and minor")
            return Calibration(device, constants, limits, record["provenance"], source)
        except KeyError as error:
            raise CalibrationError(f"{source} is no calibration: it has no {error}; write one with cutlass-sk calibrate") from None
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise CalibrationError(f"{source} is no calibration: {error}; write one with cutlass-sk calibrate") from None


def profile(spec: KernelSpec, device: Device, sms: int, chain: int = 0, narrow: tuple[bool, bool] | None = None) -> Profile:
    """``spec`` on ``sms`` SMs of ``device``, as the planner needs it. Of its layouts only ``narrow_boxes`` matters, for which
    ``narrow`` stands in if it is given."""
    narrow = spec.narrow_boxes if narrow is None else narrow
    if (spec.layout_a, spec.layout_b) != ("t", "t"):
        spec = spec.with_layouts("t", "t")
    return _profile(spec, device, sms, chain, narrow)


@lru_cache(maxsize=4096)
def _profile(spec: KernelSpec, device: Device, sms: int, chain: int, narrow: tuple[bool, bool]) -> Profile:
    return Profile(spec, sms, constants(spec, device), limits(spec, device), chain, device.sms, narrow=narrow)


def constants(spec: KernelSpec, device: Device) -> Constants:
    """The model's constants for ``spec`` on ``device``: measured there or on another GPU, taken from the kernel's other widths or
    from one like it, or estimated from peaks."""
    # The user's own may lack a kernel: what is shipped of it is nearer than another kernel, and that is nearer than a guess.
    calibrations = calibration_of(device), shipped(SHIPPED[0])
    for source in (_measured, at_other_widths, of_another_kernel):
        for calibration in calibrations:
            # What 2.x kernels of the older generation cost on a Hopper GPU says little of the GPUs that they are made for.
            if device.capability[0] == calibration.device.capability[0] and (found := source(spec, calibration.constants)):
                return found.scaled(_slower(spec, device, calibration.device))
    return estimated(spec, device)


def _measured(spec: KernelSpec, known: Mapping[str, Constants]) -> Constants | None:
    return known.get(spec.family)


def limits(spec: KernelSpec, device: Device) -> Limits:
    """What ``device`` sustains for the dtype of ``spec``."""
    calibration = calibration_of(device)
    dtype = f"{spec.generation}_{spec.dtype}"
    if dtype not in calibration.limits:
        calibration = shipped(SHIPPED[0])
    measured = calibration.limits.get(dtype)
    if measured is None or device.capability[0] != calibration.device.capability[0]:
        return estimated_limits(spec, device)
    speed = device.sms / calibration.device.sms / _slower(spec, device, calibration.device)
    bandwidth = device.bandwidth_gbs / calibration.device.bandwidth_gbs
    return replace(measured, l2_gbs=measured.l2_gbs * speed, dram_gbs=measured.dram_gbs * bandwidth, tflops=measured.tflops * speed)


def estimated_limits(spec: KernelSpec, device: Device) -> Limits:
    """A guess: 2.5 times memory is what L2 caches give; no limit of power is known."""
    return Limits(2.5 * device.bandwidth_gbs, 0.9 * device.bandwidth_gbs, device.tflops(spec.dtype))


def _slower(spec: KernelSpec, device: Device, reference: Device) -> float:
    """How many times as long an SM of ``device`` takes as one of ``reference``."""
    return (reference.tflops(spec.dtype) / reference.sms) / (device.tflops(spec.dtype) / device.sms)


def estimated(spec: KernelSpec, device: Device) -> Constants:
    """A guess from data-sheet peaks."""
    tile_m, tile_n, tile_k = spec.tile
    flop_per_us = device.tflops(spec.dtype) * 1e6 * MAIN_LOOP_EFFICIENCY / device.sms
    c = 2 * tile_m * tile_n * tile_k / flop_per_us
    b, d, d_parallel, h = FIXUP_ITERS[spec.api]
    return Constants(a=LAUNCH_US, b=b * c, c=c, d=d * c, d_parallel=d_parallel * c, e=c, h=h * c, r=3 * c, u=c)


@lru_cache(maxsize=64)
def calibration_of(device: Device) -> Calibration:
    """The calibration that serves ``device``. CalibrationError if a file that should be read is none."""
    if path := env.CALIBRATION.get():
        return _read(path)
    if device.index is not None and (own := _found_own(device)) is not None:
        return _read(own)
    for name in SHIPPED:
        if name in device.name.lower():
            return shipped(name)
    return shipped(SHIPPED[0])


def described(device: Device) -> str:
    """Where the constants for ``device`` come from, in a few words."""
    calibration = calibration_of(device)
    if device.capability[0] != calibration.device.capability[0]:
        return "estimated from data-sheet peaks; cutlass-sk calibrate measures them"
    reference = calibration.device
    if is_of(calibration, device):
        return f"measured on {reference.name} ({calibration.source})"
    return f"scaled from {reference.name} ({calibration.source}) by SMs, clock and bandwidth; cutlass-sk calibrate measures them"


def is_of(calibration: Calibration, device: Device) -> bool:
    """Whether ``calibration`` was measured on a GPU like ``device``, by name and SMs."""
    named = device.name in (calibration.device.name, calibration.source) or calibration.source in device.name.lower()
    return named and device.sms == calibration.device.sms


@lru_cache(maxsize=8)
def shipped(name: str) -> Calibration:
    """A calibration that comes with the package."""
    return Calibration.from_json(resources.files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8"), name)


def own_path(device: Device) -> Path:
    """Where the user's own calibration of a GPU is kept. CalibrationError for a user without a configuration directory."""
    from platformdirs import user_config_path

    name = re.sub(r"[^a-z0-9]+", "-", device.name.lower())
    try:
        path = user_config_path("cutlass_sk", appauthor=False) / "calibration" / f"{name}.json"
    except RuntimeError as error:  # without HOME and without a user entry; some versions of platformdirs leave "~" as it is
        raise CalibrationError(f"the user has no configuration directory ({error}); set HOME") from None
    if not path.is_absolute():
        raise CalibrationError(f"the user has no configuration directory ({path} is not absolute); set HOME")
    return path


def _found_own(device: Device) -> Path | None:
    try:
        path = own_path(device)
        return path if path.is_file() else None
    except (CalibrationError, OSError):  # no home, or one that cannot be read
        return None


def _read(path: Path) -> Calibration:
    try:
        return Calibration.from_json(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise CalibrationError(f"{path} cannot be read: {error.strerror}; is it what CUTLASS_SK_CALIBRATION should name?") from None
    except UnicodeDecodeError:
        raise CalibrationError(f"{path} is no calibration: it is no UTF-8 text; write one with cutlass-sk calibrate") from None
