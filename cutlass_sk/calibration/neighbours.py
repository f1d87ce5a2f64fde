"""Constants of kernels that were not measured, from those that were and are like them. Pure arithmetic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from itertools import pairwise
from math import log

from ..generator.spec import SHORT_NAME, KernelSpec
from ..model import Constants

FAMILY = re.compile(
    r"(?P<generation>\w+?)_(?P<dtype>[a-z0-9]+)_(?P<out_dtype>[a-z0-9]+)_(?P<tile_m>\d+)x(?P<tile_n>\d+)x(?P<tile_k>\d+)(_n\d+to\d+)?"
    r"_(?P<cluster>\d+x\d+)(?P<schedule>_single|_pingpong)?(?P<rest>(_\w+)?)"
)
"""A 3.x kernel's ``KernelSpec.family``, which a calibration may have of kernels that are no longer made."""


def at_other_widths(spec: KernelSpec, measured: Mapping[str, Constants]) -> Constants | None:
    """From the same binary at other widths: linear in the width, between two of them or beyond the nearest two.

    Narrower than all, a constant is at least in proportion to the width; wider than all, at least what it is at the widest. Where
    one width was measured, constants are in proportion to it.
    """
    known = [(width, measured[family]) for width in spec.widths if (family := spec.at(width).family) in measured]
    if len(known) < 2:
        return known[0][1].scaled(spec.tile[1] / known[0][0]) if known else None
    width = spec.tile[1]
    (low, first), (high, last) = next((pair for pair in pairwise(known) if width < pair[1][0]), known[-2:])
    share = (width - low) / (high - low)
    values = {}
    for name in (field.name for field in fields(Constants)):
        near = getattr(first if width < low else last, name)
        least = near * min(1.0, width / low) if not 0 <= share <= 1 else 0.0
        values[name] = max(least, getattr(first, name) * (1 - share) + getattr(last, name) * share)
    return Constants(**values)


def of_another_kernel(spec: KernelSpec, measured: Mapping[str, Constants]) -> Constants | None:
    """From the most similar kernel of the same generation, dtype, tile_m, tile_k, schedule and cluster, in proportion to the
    tile. Alike are, in this order: the same output dtype, the same frame (``swapped``), and the nearest width."""
    own = FAMILY.fullmatch(spec.family)
    if own is None:
        return None
    same = ("generation", "dtype", "tile_m", "tile_k", "cluster", "schedule")
    likeness: list[tuple[tuple[bool, bool, float], str, int]] = []
    for family in measured:
        other = FAMILY.fullmatch(family)
        if other is None or other.group(*same) != own.group(*same):
            continue
        apart = abs(log(int(other["tile_n"]) / spec.tile[1]))
        swapped = other["rest"].endswith("_swapped")
        likeness.append(
            ((other["out_dtype"] != SHORT_NAME[spec.out_dtype], swapped != spec.swapped, apart), family, int(other["tile_n"]))
        )
    if not likeness:
        return None
    _, family, tile_n = min(likeness)
    return measured[family].scaled(spec.tile[1] / tile_n)
