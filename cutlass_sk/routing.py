"""``override()``: a program's own products on Stream-K kernels, without a change to it.

While an override is open, the kernels behind ``aten::mm``, ``addmm`` and ``bmm`` are ours; those of torch take what we do not. To
these operators ``linear``, ``matmul`` and ``einsum`` come down, in forward and backward. A dispatch mode would slow down every
operator, and would not see compiled code.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from . import products
from .aten import Product, read
from .dtypes import supported_dtypes
from .errors import CompileError, DeviceError, Error, KernelError, ToolchainError

LOOP_FLOP = 4e9
"""Products of a batch are a launch each, of 5 us of CPU time: below this, an H200 ends sooner than the next one is launched."""

OVERLOADS = (
    *("mm", "mm.out", "mm.dtype", "mm.dtype_out", "addmm", "addmm.out", "addmm.dtype", "addmm.dtype_out", "addmm_"),
    *("bmm", "bmm.out", "bmm.dtype", "bmm.dtype_out", "baddbmm", "baddbmm.out", "baddbmm.dtype", "baddbmm.dtype_out", "baddbmm_"),
)


@dataclass
class _Seen:
    """Calls of one signature: their product, why they are left to torch (empty if they are not), and how many there were."""

    product: Product
    reason: str
    count: int = 0


@dataclass(frozen=True)
class Report:
    """What was routed while an override was open, and what was not and why."""

    _seen: dict[tuple[object, ...], _Seen] = field(default_factory=dict, repr=False)

    @property
    def counts(self) -> Counter[tuple[Product, str]]:
        """(product, reason) -> how many calls; the reason of routed ones is empty."""
        counts: Counter[tuple[Product, str]] = Counter()
        for seen in list(self._seen.values()):
            counts[(seen.product, seen.reason)] += seen.count
        return counts

    @property
    def routed(self) -> int:
        """Calls that ran on our kernels."""
        return sum(count for (_, reason), count in self.counts.items() if not reason)

    @property
    def not_routed(self) -> int:
        """Calls that were left to torch."""
        return sum(count for (_, reason), count in self.counts.items() if reason)

    @property
    def reasons(self) -> dict[str, int]:
        """Why calls were left to torch, most frequent first."""
        found: Counter[str] = Counter()
        for (_, reason), count in self.counts.items():
            if reason:
                found[reason] += count
        return dict(found.most_common())

    def __str__(self) -> str:
        """One line, and one for each operator and reason."""
        flop = sum(product.flop * count for (product, _), count in self.counts.items())
        ours = sum(product.flop * count for (product, reason), count in self.counts.items() if not reason)
        share = f", {ours / flop:.1%} of the FLOP" if flop else ""
        lines: Counter[tuple[str, str]] = Counter()
        for (product, reason), count in self.counts.items():
            lines[(product.operator, reason)] += count
        first = f"{self.routed} of {self.routed + self.not_routed} products routed{share}"
        rest = [
            f"  {count} x {operator}" + (f" not routed: {reason}" if reason else " routed")
            for (operator, reason), count in lines.most_common()
        ]
        return "\n".join([first, *rest])


@dataclass(eq=False)
class _Override:
    cpu: bool
    loop_flop: float
    report: Report = field(default_factory=Report)
    broken: str = ""


_open: list[_Override] = []
_libraries: dict[str, torch.library.Library] = {}
_guard = threading.RLock()
_within = threading.local()
"""``ours``: whether this thread is in one of our products, which on the CPU are made of torch's."""


@contextmanager
def override(*, cpu: bool = False, loop_flop: float = LOOP_FLOP) -> Iterator[Report]:
    """Routes products of torch to our kernels until it is left, also by an exception; gives a Report, which prints.

    It holds in all threads of the process, for backward runs in threads of its own; open and leave it while no other thread
    multiplies, for torch takes a kernel away without waiting for those that are about to call it. Of several that are open the last
    one decides and counts. Routed are dense products with kernels (``supported_dtypes``), on CUDA. All others run in torch, and the
    report says why.
    Results are as near to exact ones as cuBLAS's, and not the same bits. A CUDA graph captured meanwhile keeps our kernels.

    cpu         route CPU products, too, to the slow reference: for tests
    loop_flop   the least FLOP of a product in a batch that is routed; a batch is a launch a product
    """
    opened = _Override(cpu, loop_flop)
    with _guard:
        _open.append(opened)
        _register()
    try:
        yield opened.report
    finally:
        with _guard:
            _open.remove(opened)
            _register()


def _register() -> None:
    """Puts our kernels in place for what is open, and takes those of the last override away."""
    wanted = {"CUDA": bool(_open) and torch.version.cuda is not None, "CPU": any(entry.cpu for entry in _open)}
    for key, needed in wanted.items():
        if needed and key not in _libraries:
            kernels = {name: torch.library.get_kernel(f"aten::{name}", key) for name in OVERLOADS if _exists(name, key)}
            library = _libraries[key] = torch.library.Library("aten", "IMPL")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch says that a kernel is put before its own: it is
                for name, kernel in kernels.items():
                    library.impl(name, _kernel(name, kernel), key, with_keyset=True, allow_override=True)
        elif not needed and key in _libraries:
            _libraries.pop(key)._destroy()


def _exists(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key))


def _kernel(name: str, theirs: Any) -> Callable[..., Any]:
    operator = name.partition(".")[0].rstrip("_")
    run, in_place = _RUN.get(operator), name.endswith("_")

    def kernel(keys: torch._C.DispatchKeySet, *arguments: Any, **keywords: Any) -> Any:
        entry = None if getattr(_within, "ours", False) else next(reversed(_open), None)
        seen = None if entry is None else _recognised(entry, name, operator, arguments, keywords)
        if seen is None:
            return theirs.call_boxed(keys, *arguments, **keywords)
        if not seen.reason and run is not None:
            _within.ours = True
            try:
                return run(seen.product, arguments, {**keywords, "out": arguments[0]} if in_place else keywords)
            except Error as error:
                _left(seen, error)
            finally:
                _within.ours = False
        return theirs.call_boxed(keys, *arguments, **keywords)

    return kernel


def _recognised(entry: _Override, name: str, operator: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> _Seen | None:
    """What is known of calls like this one, this one counted; None if it is no product, or not a right one."""
    signature = (name, *map(_shown, arguments), *keywords, *map(_shown, keywords.values()))
    table = entry.report._seen
    seen = table.get(signature)
    if seen is None:
        product = read(operator, arguments, keywords)
        if product is None:
            return None
        asked = {**keywords, "out": arguments[0]} if name.endswith("_") else keywords
        seen = table.setdefault(signature, _Seen(product, _why_not(entry, product, arguments, asked)))
    with _guard:
        seen.count += 1
    return seen


def _shown(x: Any) -> object:
    """All that the decision depends on."""
    if isinstance(x, torch.Tensor):
        return x.shape, x.stride(), x.dtype, x.device
    return x if isinstance(x, torch.dtype) else type(x)


def _left(seen: _Seen, error: Error) -> None:
    """Calls like one that was refused are left to torch from now on, and if it was for all to hear, so are all others."""
    seen.reason = str(error).partition("\n")[0]
    if isinstance(error, CompileError | DeviceError | KernelError | ToolchainError):
        with _guard:
            for entry in _open:
                entry.broken = entry.broken or seen.reason


_SUPPORTED = set(supported_dtypes())


def _why_not(entry: _Override, product: Product, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """Why a call is left to torch; empty if it is not."""
    if product.operator not in _RUN:
        return f"{product.operator} has no kernel of ours"
    if product.device == "cpu" and not entry.cpu:
        return "on the CPU"
    if (product.dtype, product.out_dtype) not in _SUPPORTED:
        same = product.dtype == product.out_dtype
        return (
            f"{_name(product.dtype)} has no kernels" if same else f"{_name(product.dtype)} into {_name(product.out_dtype)} has none"
        )
    if 0 in (product.l, product.m, product.n, product.k):
        return "no elements"
    if product.l > 1 and product.flop / product.l < entry.loop_flop:
        return "a batch of small products"
    tensors = [x for x in (*arguments, *keywords.values()) if isinstance(x, torch.Tensor)]
    if any(x.device != tensors[0].device for x in tensors):
        return "operands on several devices"
    shape = (product.m, product.n) if product.operator != "bmm" else (product.l, product.m, product.n)
    out = keywords.get("out")
    if out is not None and tuple(out.shape) != shape:
        return "out is resized"
    if product.out_dtype != product.dtype and not any(isinstance(x, torch.dtype) for x in (*arguments, *keywords.values())):
        return "out of another dtype"
    if product.operator == "addmm":
        input = arguments[0]
        if input.dtype != product.out_dtype or any(
            s not in (1, t) for s, t in zip(reversed(input.shape), reversed(shape), strict=False)
        ):
            return "input of another dtype or shape"
        if not all(isinstance(keywords.get(name, 1), int | float) for name in ("beta", "alpha")):
            return "beta or alpha is no real number"
    return entry.broken


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _mm(product: Product, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> torch.Tensor:
    a, b = arguments[:2]
    out: torch.Tensor | None = keywords.get("out")
    if out is None:
        return products.mm(a, b, product.out_dtype)
    products.mm_out(a, b, out)
    return out


def _addmm(product: Product, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> torch.Tensor:
    input, a, b = arguments[:3]
    beta, alpha = float(keywords.get("beta", 1)), float(keywords.get("alpha", 1))
    out: torch.Tensor | None = keywords.get("out")
    if out is None:
        return products.addmm(input, a, b, beta, alpha, product.out_dtype)
    products.addmm_out(input, a, b, out, beta, alpha)
    return out


def _bmm(product: Product, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> torch.Tensor:
    made = products.bmm(arguments[0], arguments[1], product.out_dtype)
    out: torch.Tensor | None = keywords.get("out")
    return made if out is None else out.copy_(made)


_RUN: dict[str, Callable[[Product, tuple[Any, ...], dict[str, Any]], torch.Tensor]] = {"mm": _mm, "addmm": _addmm, "bmm": _bmm}
