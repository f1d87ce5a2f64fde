"""What a caller may force about a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import index
from typing import Any

from .device import Device
from .errors import PlanError
from .generator.spec import WIDEST
from .plan import DECOMPOSITIONS, RASTER_ORDERS, REDUCTION_MODES, Decomposition, RasterOrder, ReductionMode

INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Options:
    """What a caller may force; None leaves the choice to the planner.

    decomposition    ``data_parallel``, ``split_k`` or ``stream_k``
    splits           parts each tile is cut in (implies split_k); more than there are k-tiles counts as one a k-tile
    sms              grid width: how many SMs to plan for, at most those of the device
    sk_tiles         with stream_k: how many tiles to share (all of them: basic Stream-K); rounded up to whole clusters
    sk_units         with stream_k: in how many shares; more than the shared tiles have k-tiles counts as one a k-tile
    reduction_mode   ``deterministic``: partials are added in a fixed order, so that the same call gives the same bits.
                     ``nondeterministic`` lets a kernel add them as they arrive; 2.x kernels keep the fixed order.
    raster_order     ``along_m`` or ``along_n``: the direction in which consecutive tiles step
    raster_swizzle   width of the strips in which tiles are visited, in work tiles
    tile_n           columns of a tile, in the kernel's frame (a swapped kernel computes c^T): only kernels that take such tiles
    promotion        elements of k, a multiple of tile_k, that are added up in the tensor core before float32 additions take over;
                     0: no limit. For kernels with float32 outputs: more accurate, and slower
    """

    decomposition: Decomposition | None = None
    splits: int | None = None
    sms: int | None = None
    sk_tiles: int | None = None
    sk_units: int | None = None
    reduction_mode: ReductionMode = "deterministic"
    raster_order: RasterOrder | None = None
    raster_swizzle: int | None = None
    promotion: int | None = None
    tile_n: int | None = None

    def checked(self, device: Device) -> Options:
        """These options, whole numbers of any type as ints. Raises PlanError for a value that no plan can have."""
        for name, allowed in (
            ("decomposition", (None, *DECOMPOSITIONS)),
            ("reduction_mode", REDUCTION_MODES),
            ("raster_order", (None, *RASTER_ORDERS)),
        ):
            if not isinstance(getattr(self, name), str | None) or getattr(self, name) not in allowed:
                choices = ", ".join(repr(value) for value in allowed if value is not None)
                raise PlanError(f"{name}={getattr(self, name)!r} is not known; use one of {choices}")
        names = ("splits", "sms", "sk_tiles", "sk_units", "raster_swizzle", "promotion", "tile_n")
        numbers: dict[str, Any] = {}
        for name, limit in {**dict.fromkeys(names, INT_MAX), "sms": device.sms, "tile_n": WIDEST}.items():
            value, least = getattr(self, name), 0 if name == "promotion" else 1
            numbers[name] = number = whole_number(value)
            if value is not None and (number is None or not least <= number <= limit):
                of = f" (the SMs of {device.name})" if name == "sms" else ""
                raise PlanError(f"{name}={value!r} must be a whole number from {least} to {limit}{of}")
        if self.splits is not None and self.decomposition not in (None, "split_k"):
            raise PlanError(f"splits={self.splits} belongs to decomposition='split_k', not {self.decomposition!r}")
        for name in ("sk_tiles", "sk_units"):
            if getattr(self, name) is not None and self.decomposition != "stream_k":
                other = "" if self.decomposition is None else f", not {self.decomposition!r}"
                raise PlanError(f"{name}={getattr(self, name)} belongs to decomposition='stream_k'{other}")
        return replace(self, **numbers)


def whole_number(value: object) -> int | None:
    """numpy's integers are as good as Python's; None for bool, float and whatever is no single number."""
    if value is None or isinstance(value, bool):
        return None
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
