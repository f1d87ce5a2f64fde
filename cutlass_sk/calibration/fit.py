"""From measured times to constants: least squares on the logarithm of predicted over measured. Needs numpy and scipy, no GPU.

``predict`` is ``Profile.time_us`` for many launches at once; a test holds the two together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any

from .. import calibration
from ..device import Device
from ..errors import CalibrationError
from ..generator.spec import ELEMENT_BYTES, KernelSpec
from ..model import Constants, Limits, fixup_terms
from .records import Record, load_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

PER_KERNEL = tuple(field.name for field in fields(Constants))
SHARED = tuple(field.name for field in fields(Limits))

NEAR = 0.15
"""A record counts half where it took exp(0.15) times as long as the best of its shape: what nobody would choose matters less."""
PRIOR = 0.05
"""Pull of a constant to where it started, for those that the records say nothing of: a factor of e counts as one record 5% off."""
FEWEST = 20
"""Records that a kernel's constants need."""


@dataclass(frozen=True)
class Quality:
    """How well a fit predicts. ``selection``: time of the best record of a shape over that of the one predicted fastest, as
    geometric mean over shapes (1 is perfect); ``worst``: the least of them; ``rms``: of log(predicted / measured)."""

    records: int
    shapes: int
    rms: float
    selection: float
    worst: float


@dataclass(frozen=True)
class Fit:
    """Constants of one generation and dtype. ``held_out``: of a fit to three quarters of the shapes, on the last quarter."""

    constants: Mapping[str, Constants]
    limits: Limits
    quality: Quality
    held_out: Quality | None
    by_kernel: Mapping[str, Quality]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Columns:
    """What the model sees of many launches, one a row.

    kernel        number of the kernel
    load_a, load_b   bytes that an iteration loads of a and of b, times SMs over the cluster's CTAs
    narrow_a, narrow_b   whether in boxes of 64 bytes a row, as 0 and 1
    rows_a, rows_b   the four classes of row alignment, 128, 64, 32 and 16 bytes, as 0 and 1
    active        slots that run in the last wave, over half of the slots
    twice         whether the kernel fits twice on an SM
    group         number of the shape
    fixups        how many times each of ``PER_KERNEL`` is part of the fix-up
    """

    kernel: NDArray[np.intp]
    iters: Array
    tiles: Array
    last_iters: Array
    active: Array
    one_wave: NDArray[np.bool_]
    twice: NDArray[np.bool_]
    flop: Array
    moved: Array
    load_a: Array
    load_b: Array
    narrow_a: Array
    narrow_b: Array
    rows_a: Array
    rows_b: Array
    fixups: Mapping[str, Array]
    measured: Array
    group: NDArray[np.intp]

    def part(self, rows: Any) -> Columns:
        """Some of the rows."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "fixups"}
        return Columns(**{k: v[rows] for k, v in values.items()}, fixups={k: v[rows] for k, v in self.fixups.items()})


def columns(records: Sequence[Record], specs: Mapping[str, KernelSpec], device: Device, names: Sequence[str]) -> Columns:
    """The launches of ``records`` as arrays; ``names`` numbers the kernels."""
    import numpy as np

    number = {name: index for index, name in enumerate(names)}
    groups: dict[tuple[int, int, int], int] = {}
    rows, fixups = [], []
    for record in records:
        work, load = load_of(record, specs, device)
        profile, spec = work.profile, work.spec
        width = ELEMENT_BYTES[spec.dtype] * spec.tile[2] * device.sms / spec.cluster_size
        flop = 2.0 * profile.span_m * profile.span_n * spec.tile[2] * load.work_iters
        rows.append(
            (
                *(number[record.kernel], load.iters, load.tiles, load.last_iters, load.last_active / profile.half, load.one_wave),
                *(spec.ctas_per_sm > 1, flop, load.bytes_moved, profile.span_m * width, profile.span_n * width),
                *(load.row_bytes_a, load.row_bytes_b, record.time_us, groups.setdefault(record.shape, len(groups))),
                *profile.narrow,
            )
        )
        fixups.append(dict(fixup_terms(load.fixup, load.peers, load.long_shares)))
    table = np.array(rows, dtype=np.float64).T

    def classes(row_bytes: Array) -> Array:
        return np.stack([row_bytes % 128 == 0, *(_starts(row_bytes, size) for size in (64, 32, 16))], axis=1).astype(np.float64)

    return Columns(
        kernel=table[0].astype(np.intp),
        iters=table[1],
        tiles=table[2],
        last_iters=table[3],
        active=table[4],
        one_wave=table[5] > 0,
        twice=table[6] > 0,
        flop=table[7],
        moved=table[8],
        load_a=table[9],
        load_b=table[10],
        narrow_a=table[15],
        narrow_b=table[16],
        rows_a=classes(table[11]),
        rows_b=classes(table[12]),
        fixups={name: np.array([terms.get(name, 0.0) for terms in fixups]) for name in PER_KERNEL},
        measured=table[13],
        group=table[14].astype(np.intp),
    )


def _starts(row_bytes: Array, size: int) -> NDArray[np.bool_]:
    """Rows start on ``size`` bytes and not on more; 16 stands for fewer, too."""
    aligned: NDArray[np.bool_] = row_bytes % (2 * size) != 0
    return aligned if size == 16 else aligned & (row_bytes % size == 0)


def predict(table: Columns, per_kernel: Mapping[str, Array], shared: Mapping[str, Any]) -> Array:
    """``Profile.time_us`` of every row. ``per_kernel``: constants by kernel number."""
    import numpy as np

    constant = {name: values[table.kernel] for name, values in per_kernel.items()}
    alone = 1 / (1 + shared["alone"])
    once = np.where(table.active <= 1, alone, 1.0)
    crowded = alone * (1 + shared["crowded"] * table.active)
    ramp = np.minimum(1.0, alone + (1 - alone) * table.active)
    share = np.where(table.twice, np.where(table.one_wave, crowded, ramp), once)
    costs = np.array([1.0, 1 + shared["rows64"], 1 + shared["rows32"], 1 + shared["rows16"]])
    load_a, load_b = table.load_a * (1 + shared["narrow"] * table.narrow_a), table.load_b * (1 + shared["narrow"] * table.narrow_b)
    per_iter = (load_a * (table.rows_a @ costs) + load_b * (table.rows_b @ costs)) / shared["l2_gbs"] * 1e-3
    loads = per_iter * (table.iters - table.last_iters * (1 - share))
    main = ((constant["c"] * table.iters) ** 4 + loads**4) ** 0.25 + constant["e"] * (table.tiles - 1)
    power, dram = table.flop / shared["tflops"] * 1e-6, table.moved / shared["dram_gbs"] * 1e-3
    fixup = sum(constant[name] * times for name, times in table.fixups.items())
    total: Array = constant["a"] + np.sqrt(np.sqrt(main**4 + power**4) + dram**2) + fixup
    return total


def quality(table: Columns, predicted: Array) -> Quality:
    """How well ``predicted`` predicts and chooses. Shapes with one record say nothing of choosing."""
    import numpy as np

    by_shape = defaultdict(list)
    for row, group in enumerate(table.group):
        by_shape[group].append(row)
    ratios = [
        table.measured[rows].min() / table.measured[min(rows, key=lambda row: predicted[row])]
        for rows in by_shape.values()
        if len(rows) > 1
    ]
    rms = sqrt(float(np.mean(np.log(predicted / table.measured) ** 2)))
    selection = exp(float(np.mean(np.log(ratios)))) if ratios else 1.0
    return Quality(len(table.measured), len(by_shape), rms, selection, float(min(ratios, default=1.0)))


def fit(records: Sequence[Record], specs: Mapping[str, KernelSpec], device: Device, *, held_out: bool = True) -> Fit:
    """Constants of the kernels that ``records`` are of, which have one generation and one dtype of a and b."""
    scipy = _scipy()
    counts = Counter(record.kernel for record in records)
    names = sorted(name for name, count in counts.items() if count >= FEWEST)
    if not names:
        raise CalibrationError(f"a fit needs {FEWEST} records of a kernel, and {len(records)} are given; measure more shapes")
    if len({(specs[name].generation, specs[name].dtype) for name in names}) > 1:
        raise CalibrationError("kernels of several generations or dtypes have no limits in common; fit them one by one")
    table = columns([record for record in records if record.kernel in set(names)], specs, device, names)
    start_kernel, start_shared = _start(names, specs, device)
    tested = table.group % 4 == 3
    apart = None
    if held_out and tested.any() and not tested.all():
        rest, test = table.part(~tested), table.part(tested)
        apart = quality(test, predict(test, *_solve(scipy, rest, start_kernel, start_shared)))
    per_kernel, shared = _solve(scipy, table, start_kernel, start_shared)
    predicted = predict(table, per_kernel, shared)
    return Fit(
        constants={
            name: Constants(**{key: float(values[index]) for key, values in per_kernel.items()}) for index, name in enumerate(names)
        },
        limits=Limits(**shared),
        quality=quality(table, predicted),
        held_out=apart,
        by_kernel={name: quality(table.part(rows := table.kernel == i), predicted[rows]) for i, name in enumerate(names)},
        left_out=tuple(sorted(set(counts) - set(names))),
    )


def _scipy() -> Any:
    try:
        import scipy.optimize
        import scipy.sparse
    except ImportError:
        raise CalibrationError("fitting needs scipy, which is not installed; pip install 'cutlass-sk[calibrate]'") from None
    return scipy


def _start(names: Sequence[str], specs: Mapping[str, KernelSpec], device: Device) -> tuple[dict[str, Array], dict[str, float]]:
    """Where the search starts: estimates from data-sheet peaks. What a kernel never pays is 0 and stays 0."""
    import numpy as np

    guesses = [calibration.estimated(specs[name], device) for name in names]
    per_kernel = {key: np.array([getattr(guess, key) for guess in guesses], dtype=np.float64) for key in PER_KERNEL}
    trees = np.array([specs[name].persistent for name in names])
    per_kernel["d_parallel"][trees] = 0.0
    per_kernel["h"][~trees] = 0.0
    limits = calibration.estimated_limits(specs[names[0]], device)
    shared = {key: float(getattr(limits, key)) for key in SHARED}
    return per_kernel, {**shared, "alone": 0.5, "crowded": 0.4, "rows16": 0.4, "rows32": 0.1, "rows64": 0.05, "narrow": 0.4}


def _solve(
    scipy: Any, table: Columns, per_kernel: Mapping[str, Array], shared: Mapping[str, float]
) -> tuple[dict[str, Array], dict[str, float]]:
    """Least squares in the logarithm of every constant, so that all stay positive."""
    import numpy as np

    slots = [(key, index) for key, values in per_kernel.items() for index, value in enumerate(values) if value > 0]
    start = np.log([*(per_kernel[key][index] for key, index in slots), *shared.values()])
    best = np.full(table.group.max() + 1, np.inf)
    np.minimum.at(best, table.group, table.measured)
    weight = 1 / np.sqrt(1 + (np.log(table.measured / best[table.group]) / NEAR) ** 2)
    measured = np.log(table.measured)

    def unpack(x: Array) -> tuple[dict[str, Array], dict[str, float]]:
        values = np.exp(x)
        kernels = {key: np.array(old) for key, old in per_kernel.items()}
        for (key, index), value in zip(slots, values, strict=False):
            kernels[key][index] = value
        return kernels, dict(zip(shared, map(float, values[len(slots) :]), strict=True))

    def residuals(x: Array) -> Array:
        return np.concatenate([weight * (np.log(predict(table, *unpack(x))) - measured), PRIOR * (x - start)])

    count = len(measured)
    pattern = scipy.sparse.lil_matrix((count + len(start), len(start)), dtype=np.int8)
    for column, (_, index) in enumerate(slots):
        pattern[np.flatnonzero(table.kernel == index), column] = 1
    pattern[:count, len(slots) :] = 1
    pattern[np.arange(count, count + len(start)), np.arange(len(start))] = 1
    found = scipy.optimize.least_squares(
        residuals, start, jac_sparsity=pattern.tocsr(), loss="soft_l1", f_scale=0.05, x_scale=1.0, max_nfev=60
    )
    return unpack(found.x)


def combined(device: Device, fits: Mapping[str, Fit], provenance: Mapping[str, Any]) -> calibration.Calibration:
    """One calibration of the fits, which are given by generation and dtype (``sm90a_float16``)."""
    constants = {name: rounded(value) for one in fits.values() for name, value in one.constants.items()}
    return calibration.Calibration(device, constants, {key: rounded(one.limits) for key, one in fits.items()}, provenance)


def rounded(value: Any) -> Any:
    """Four digits: more are noise."""
    return type(value)(**{f.name: _digits(getattr(value, f.name)) for f in fields(value)})


def _digits(value: float) -> float:
    return value if value <= 0 else round(value, max(0, 3 - int(log(value, 10) // 1)))
