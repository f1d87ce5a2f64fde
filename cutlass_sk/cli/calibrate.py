"""``cutlass-sk calibrate``: the model's constants, measured on this GPU."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .. import calibration
from ..calibration import Calibration, measure, records
from ..calibration.fit import Fit, combined, fit
from ..calibration.records import Record
from ..device import PRESETS, Device, real, resolve
from ..errors import CalibrationError, DeviceError, WriteError
from ..generator.catalog import DTYPES, families
from ..generator.spec import KernelSpec, at_all_widths, binaries_of
from ..jit.build import build
from ..provenance import provenance, save
from .options import DTYPE_NAMES, dtype_option, written_path

HELD_OUT = "fitted to three quarters of the shapes, judged on the others"


def calibrate(
    dtype: Annotated[
        str | None, dtype_option("--dtype", "Only this element type of a and b.  \\[default: all]", DTYPE_NAMES)
    ] = None,
    budget_seconds: Annotated[float, typer.Option("--budget-seconds", min=1.0, help="How long to measure.")] = 600.0,
    shapes: Annotated[int, typer.Option("--shapes", min=1, help="At most so many shapes for each pair of dtypes.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the shapes.")] = measure.SEED,
    output: Annotated[
        Path | None,
        typer.Option(
            *("--output", "-o"), callback=written_path, help="The calibration to write.  \\[default: your own for this GPU]"
        ),
    ] = None,
    kept: Annotated[
        Path | None,
        typer.Option("--records", callback=written_path, help="Append what is measured to this file, and skip what is in it."),
    ] = None,
    from_records: Annotated[
        Path | None, typer.Option("--from-records", help="Fit this file's records (.jsonl, .jsonl.gz); needs no GPU.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="With --from-records: the GPU that they are of.")] = "h200",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be measured or written, and do neither.")] = False,
) -> None:
    """Measure this GPU and fit the model's constants. Needs a GPU, and scipy."""
    console = Console(highlight=False)
    if kept is not None and kept.suffix == ".gz":
        raise CalibrationError(f"{kept} is compressed and cannot be appended to; unpack it, or name a new .jsonl file")
    dtypes = (dtype,) if dtype else DTYPE_NAMES
    pairs = [pair for pair in DTYPES if pair[0] in dtypes]
    if from_records is not None:
        target, found = resolve(device), [one for one in records.read(from_records) if _pair(one)[0] in dtypes]
        if output is None and not dry_run:
            raise CalibrationError("--from-records says not where the GPU is that they are of; -o FILE says where to write")
        if not found:
            raise CalibrationError(f"{from_records} has no records of {', '.join(dtypes)}; leave --dtype out")
    else:
        if not torch.cuda.is_available():
            if not dry_run:
                raise DeviceError(
                    "calibrate measures on a CUDA GPU and there is none; --from-records FILE fits what was measured before"
                )
            target = PRESETS[device] if device in PRESETS else resolve(device)
        else:
            target = real(torch.cuda.current_device())
        if dry_run:
            console.print(_intent(pairs, target, shapes, budget_seconds, output))
            return
        found = _measure(pairs, target, shapes, seed, budget_seconds, kept)
    fits = _fits(found, target)
    console.print(_table(fits))
    if dry_run:
        return
    path = output or _own_path(target)
    made = combined(target, fits, _provenance(found, fits, seed, from_records))
    save(path, _completed(made, target).to_json())
    console.print(f"written to {path}", soft_wrap=True)
    if output is not None and from_records is None:
        console.print(f"plan with it by CUTLASS_SK_CALIBRATION={path.resolve()}", soft_wrap=True)


def _own_path(device: Device) -> Path:
    """Where the user's own calibration goes, with a folder for it."""
    path = calibration.own_path(device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"{path} cannot be written: {error.strerror}; -o FILE says where else it may go") from None
    return path


def _kernels(pair: tuple[str, str], device: Device) -> list[KernelSpec]:
    """The kernels of a pair of dtypes, each at all of its widths: what has constants of its own."""
    return list(at_all_widths(families(*pair, device.generation)))


def _intent(pairs: list[tuple[str, str]], device: Device, shapes: int, seconds: float, output: Path | None) -> str:
    specs = [spec for pair in pairs for spec in _kernels(pair, device)]
    count = f"{len(binaries_of(specs))} kernels" + (f", at {len(specs)} widths in all," if len(specs) > len(pairs) else "")
    path = output or calibration.own_path(device)
    return (
        f"{device.name}: {count} of {len(pairs)} pairs of dtypes, up to {shapes} shapes for each pair, {seconds:.0f} s "
        f"in all beyond what compiling takes; the calibration would be written to {path}"
    )


def _measure(
    pairs: list[tuple[str, str]], device: Device, shapes: int, seed: int, seconds: float, kept: Path | None
) -> list[Record]:
    known = records.read(kept) if kept is not None and kept.exists() else []
    found = list(known)
    specs = binaries_of(measure.measured_layouts(spec) for pair in pairs for spec in _kernels(pair, device))
    for architecture in sorted({device.architecture(spec) for spec in specs}):
        build([spec for spec in specs if device.architecture(spec) == architecture], architecture)
    with Progress(console=Console(stderr=True)) as progress:
        for index, pair in enumerate(pairs):
            task = progress.add_task(" -> ".join(pair), total=shapes)
            batches = measure.measure(
                _kernels(pair, device),
                measure.shapes(shapes, seed + index),
                device,
                budget_seconds=seconds / len(pairs),
                seed=seed,
                done=frozenset(one.shape for one in known if _pair(one) == pair),
                counts=Counter(one.kernel for one in known),
                progress=lambda finished, total, task=task: progress.update(task, completed=finished, total=total),  # type: ignore[misc]
            )
            for batch in batches:
                found += batch
                if kept is not None:
                    records.write(kept, batch)
    return found


def _pair(record: Record) -> tuple[str, str]:
    spec = records.catalogue()[record.kernel]
    return spec.dtype, spec.out_dtype


def _fits(found: list[Record], device: Device) -> dict[str, Fit]:
    """One fit for each generation and dtype of a and b. What has too few records for one is left out, unless nothing is left."""
    specs = records.catalogue()
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in found:
        spec = specs[record.kernel]
        groups[f"{spec.generation}_{spec.dtype}"].append(record)
    console = Console(stderr=True, highlight=False)
    fits, failure = {}, None
    for number, (name, group) in enumerate(sorted(groups.items()), 1):
        console.print(f"fitting {name}, {number} of {len(groups)}: {len(group):,} records", soft_wrap=True)
        try:
            fits[name] = fit(group, specs, device)
        except CalibrationError as error:
            failure = error
            console.print(f"{name} is left out: {error}", soft_wrap=True)
    if failure is not None and not fits:
        raise failure
    return fits


def _table(fits: dict[str, Fit]) -> Table:
    """Fit quality, a kernel a row."""
    table = Table("kernel", caption=f"held out: {HELD_OUT}; selection: best measured time over that of the one predicted fastest")
    for heading in ("records", "shapes", "rms", "selection", "worst"):
        table.add_column(heading, justify="right")
    for name, one in fits.items():
        rows = [(kernel, quality) for kernel, quality in one.by_kernel.items()]
        rows.append((f"{name}, all", one.quality))
        if one.held_out is not None:
            rows.append((f"{name}, held out", one.held_out))
        for heading, quality in rows:
            numbers = f"{quality.rms:.1%}", f"{quality.selection:.3f}", f"{quality.worst:.3f}"
            table.add_row(heading, str(quality.records), str(quality.shapes), *numbers)
        for kernel in one.left_out:
            table.add_row(f"{kernel}: too few records", "", "", "", "", "")
    return table


def _provenance(found: list[Record], fits: dict[str, Fit], seed: int, source: Path | None) -> dict[str, Any]:
    judged = {
        name: {
            "records": one.quality.records,
            "shapes": one.quality.shapes,
            "rms": round(one.quality.rms, 4),
            "selection": round(one.quality.selection, 4),
            "held_out_selection": None if one.held_out is None else round(one.held_out.selection, 4),
        }
        for name, one in fits.items()
    }
    made = {**provenance("cutlass-sk calibrate"), "records": len(found), "seed": seed, "fits": judged}
    if source is not None:  # fitted here, measured elsewhere: what this machine is says nothing
        made = {key: value for key, value in made.items() if key not in ("gpu", "driver", "clocks", "cuda", "torch", "seed")}
        made["source"] = source.name
    return made


def _completed(made: Calibration, device: Device) -> Calibration:
    """With what the calibration in use knows of kernels that were not measured now, on the same GPU."""
    before = calibration.calibration_of(device)
    if not calibration.is_of(before, device):
        return made
    constants, limits = {**before.constants, **made.constants}, {**before.limits, **made.limits}
    return Calibration(
        made.device,
        constants,
        limits,
        {**made.provenance, "before": {key: value for key, value in before.provenance.items() if key != "before"}},
    )
