"""What calibrating measures: one launch of one kernel with one decomposition a record, kept as JSON lines. No torch."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..device import Device
from ..errors import CalibrationError, reason
from ..generator.catalog import DTYPES, GENERATIONS, families
from ..generator.spec import KernelSpec, at_all_widths
from ..model import Load
from ..work import Choice, Work, cut_up, load


@dataclass(frozen=True)
class Record:
    """How long one launch took.

    kernel    ``KernelSpec.family``
    layouts   of the kernel's a and b, such as ``tn``
    sk_tiles, sk_units, splits, fixup   as in ``Plan``
    """

    kernel: str
    layouts: str
    m: int
    n: int
    k: int
    sk_tiles: int
    sk_units: int
    splits: int
    fixup: str
    time_us: float

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k


@lru_cache(maxsize=1)
def catalogue() -> Mapping[str, KernelSpec]:
    """Every kernel at each of its widths, by its family."""
    every = at_all_widths(spec for name in GENERATIONS for dtypes in DTYPES for spec in families(*dtypes, name))
    return {spec.family: spec for spec in every}


def load_of(record: Record, specs: Mapping[str, KernelSpec], device: Device) -> tuple[Work, Load]:
    """What the launch asked of the GPU, as the model sees it."""
    layouts = record.layouts
    spec = specs[record.kernel].with_layouts("t" if layouts[0] == "t" else "n", "t" if layouts[1] == "t" else "n")
    work = cut_up(*record.shape, spec, device)
    return work, load(work, Choice(record.sk_tiles // spec.cluster_size, record.sk_units, record.splits, record.fixup == "cluster"))


def write(path: Path, records: Iterable[Record]) -> None:
    """Appends ``records``, one a line."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(record)) + "\n" for record in records)


def read(path: Path) -> list[Record]:
    """The records of a file, .jsonl or .jsonl.gz; CalibrationError where it has others or none."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = [line for line in data.decode().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise CalibrationError(
            f"{path} cannot be read: {reason(error)}; records are written by cutlass-sk calibrate --records"
        ) from None
    records, known = [], catalogue()
    types: dict[str, Any] = {
        field.name: {"int": int, "float": (int, float), "str": str}[str(field.type)] for field in fields(Record)
    }
    for number, line in enumerate(lines, 1):
        try:
            record = Record(**json.loads(line))
            wrong = [name for name, kind in types.items() if not isinstance(getattr(record, name), kind)]
            if wrong or record.layouts not in ("tt", "tn", "nt", "nn") or not 0 < record.time_us < float("inf"):
                raise ValueError(f"wrong {', '.join(wrong) or 'layouts or time_us'}")
            if min(record.shape) < 1 or min(record.sk_tiles, record.sk_units) < 0 or record.splits < 1:
                raise ValueError("a count is out of range")
        except (TypeError, ValueError) as error:
            raise CalibrationError(f"{path}, line {number} is no record: {error}; measure again with --records") from None
        if record.kernel not in known:
            raise CalibrationError(f"{path}, line {number}: there is no kernel {record.kernel!r}; measure again with this version")
        records.append(record)
    if not records:
        raise CalibrationError(f"{path} has no records; measure with cutlass-sk calibrate --records {path}")
    return records
