"""``trace``: which products a program asks for, and what they would take on Stream-K kernels."""

from __future__ import annotations

import csv
import html
import io
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .aten import Product, read
from .device import Device, resolve
from .errors import DeviceError, DtypeError, PlanError
from .plan import Plan
from .products import gemm_of

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (
    *("count", "operator", "l", "m", "n", "k", "dtype", "out_dtype", "layouts", "device", "gflop"),
    *("kernel", "decomposition", "predicted_us", "predicted_total_us", "share", "measured_us", "cublas_us", "speedup", "note"),
)
"""Columns of the CSV, one row a product. Times are of one call, all of its batch; ``share`` is of the predicted sum, ``speedup`` is
cuBLAS's time over ours."""
_NUMBERS = (
    "count",
    "l",
    "m",
    "n",
    "k",
    "gflop",
    "predicted_us",
    "predicted_total_us",
    "share",
    "measured_us",
    "cublas_us",
    "speedup",
)
WIDTH = 200
"""Characters of a line, where nobody says how many fit."""
_LEFT_OUT = ("kernel", "operator", "layouts", "decomposition", "share", "l", "dtype")
"""Columns that a table does without where it is too wide, in this order."""


@dataclass(frozen=True)
class Row:
    """One product of a program.

    count   calls of it
    plan    of one product of its batch; None where there is no kernel, and ``note`` says why
    measured_us, cublas_us   of one call on the GPU here, where ``trace(measure=True)`` could tell
    """

    product: Product
    count: int
    plan: Plan | None
    note: str
    measured_us: float | None = None
    cublas_us: float | None = None

    @property
    def predicted_us(self) -> float | None:
        """Microseconds of one call, as the model expects: a launch for each product of a batch."""
        return None if self.plan is None else self.plan.predicted_time_us * self.product.l

    @property
    def total_us(self) -> float:
        """Microseconds of all calls; 0 where nothing is predicted."""
        return (self.predicted_us or 0.0) * self.count


@dataclass(frozen=True)
class Trace:
    """The products of a program, those that take longest first, planned for ``device``. Prints as a table."""

    device: str
    rows: tuple[Row, ...]

    @property
    def calls(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def flop(self) -> int:
        return sum(row.product.flop * row.count for row in self.rows)

    @property
    def predicted_us(self) -> float:
        """Predicted microseconds of all calls that have a kernel."""
        return sum(row.total_us for row in self.rows)

    @property
    def summary(self) -> str:
        """One sentence."""
        without = sum(row.count for row in self.rows if row.plan is None)
        said = (
            f"{self.calls} products in {len(self.rows)} sizes, {self.flop / 1e9:,.3f} GFLOP: {self.predicted_us:,.1f} us expected"
        )
        said += f" on {self.device}" + (f"; {without} without a kernel, not counted" if without else "")
        timed = [row for row in self.rows if row.measured_us and row.cublas_us]
        if not timed:
            return said
        ours, cublas = (sum(row.count * (getattr(row, name) or 0.0) for row in timed) for name in ("measured_us", "cublas_us"))
        calls = sum(row.count for row in timed)
        return f"{said}; {calls} measured: {ours:,.1f} us, {cublas:,.1f} us in cuBLAS ({cublas / ours:.2f} times as fast)"

    def records(self) -> list[dict[str, Any]]:
        """The rows, under the names of ``COLUMNS``; None where nothing is known."""
        return [dict(zip(COLUMNS, self._values(row), strict=True)) for row in self.rows]

    def _values(self, row: Row) -> Iterator[Any]:
        product, plan = row.product, row.plan
        yield from (row.count, product.operator, product.l, product.m, product.n, product.k)
        yield from (_name(product.dtype), _name(product.out_dtype), "".join(product.layouts), product.device)
        yield product.flop / 1e9
        yield from (None, None) if plan is None else (plan.kernel.name, plan.decomposition)
        yield from (None, None, None) if plan is None else (row.predicted_us, row.total_us, row.total_us / self.predicted_us)
        yield from (row.measured_us, row.cublas_us)
        yield row.cublas_us / row.measured_us if row.measured_us and row.cublas_us else None
        yield row.note

    def csv(self) -> str:
        """A row a product, with a header."""
        file = io.StringIO()
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records())
        return file.getvalue()

    def html(self) -> str:
        """One page, which needs nothing else."""
        head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in COLUMNS)
        body = "\n".join(
            "<tr>"
            + "".join(
                f'<td class="number">{_text(value)}</td>' if name in _NUMBERS else f"<td>{html.escape(_text(value))}</td>"
                for name, value in record.items()
            )
            + "</tr>"
            for record in self.records()
        )
        return _PAGE.format(summary=html.escape(self.summary), head=head, body=body)

    def table(self, width: int = WIDTH) -> Table:
        """For rich: the columns that fit ``width`` characters, and notes below."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        shown: tuple[str, ...] = (
            "count",
            "operator",
            "l",
            "m",
            "n",
            "k",
            "dtype",
            "layouts",
            "kernel",
            "decomposition",
            "predicted_us",
            "share",
        )
        if any(row.measured_us for row in self.rows):
            shown += ("measured_us", "cublas_us", "speedup")
        columns = {name: [_heading(name), *(_text(record[name]) for record in self.records())] for name in shown}
        left_out = []
        for name in _LEFT_OUT:
            if sum(2 + max(len(line) for cell in cells for line in cell.split("\n")) for cells in columns.values()) <= width:
                break
            del columns[name]
            left_out.append(name)
        notes = self._notes() + ([f"left out to fit: {', '.join(left_out)}"] if left_out else [])
        layout: dict[str, Any] = {"box": SIMPLE_HEAD, "title_justify": "left", "caption_justify": "left"}
        table = Table(title=self.summary, caption="\n".join(notes), padding=(0, 1), collapse_padding=True, pad_edge=False, **layout)
        for name, (heading, *_) in columns.items():
            table.add_column(heading, justify="right" if name in _NUMBERS else "left", no_wrap=True)
        for cells in zip(*(cells[1:] for cells in columns.values()), strict=True):
            table.add_row(*cells)
        return table

    def _notes(self) -> list[str]:
        """Each note once, with the products that it is about."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            if row.note:
                product = row.product
                found.setdefault(row.note, []).append(f"{product.m} x {product.n} x {product.k}")
        return [f"{note}: {', '.join(products)}" for note, products in found.items()]

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=WIDTH)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get()


def trace(
    function: Callable[..., Any], *inputs: Any, device: Device | str | None = "h200", measure: bool = False, **keywords: Any
) -> Trace:
    """Calls ``function(*inputs, **keywords)`` and plans every product that it asks torch for, without a GPU.

    function   a module or any callable; backward within it counts. Meta tensors do: a model need not have its weights
    device     to plan for: a preset or a CUDA device; None: the current GPU, without one ``h200``
    measure    time each product on the current GPU afterwards, ours and cuBLAS's, a second or so each

    Compiled code runs uncompiled meanwhile.
    """
    target = checked(device, measure)
    with recording() as counts:
        function(*inputs, **keywords)
    return planned(counts, target, measure=measure)


def checked(device: Device | str | None, measure: bool = False) -> Device:
    """The device to plan for, before a program is run for it. DeviceError: it is not known, or there is no GPU to measure on."""
    target = resolve(device)
    if measure and not torch.cuda.is_available():
        raise DeviceError("measure=True needs a CUDA GPU, and there is none; without it times are predicted")
    return target


@contextmanager
def recording() -> Iterator[Counter[Product]]:
    """Counts the products that are asked for within, in this thread and in backwards that it starts."""
    recorder = _Recorder()  # type: ignore[no-untyped-call]
    recorder.counts = Counter()
    with recorder:
        yield recorder.counts


def planned(counts: Counter[Product], device: Device | str | None = "h200", *, measure: bool = False) -> Trace:
    """What these products would take on ``device``, and with ``measure`` take here. DeviceError without a GPU to measure on."""
    target = checked(device, measure)
    rows = [Row(product, count, *_plan(product, target)) for product, count in counts.items()]
    if measure:
        rows = [_measured(row) for row in rows]
    return Trace(target.name, tuple(sorted(rows, key=lambda row: (-row.total_us, -row.product.flop * row.count))))


def _plan(product: Product, device: Device) -> tuple[Plan | None, str]:
    if 0 in (product.l, product.m, product.n, product.k):
        return None, "no elements"
    try:
        gemm = gemm_of(product.dtype, product.out_dtype)
    except DtypeError:
        return None, f"no kernel for {_name(product.dtype)} into {_name(product.out_dtype)}"
    try:
        return gemm._plan(product.m, product.n, product.k, device, product.layouts), ""
    except PlanError as error:
        return None, str(error)


def _measured(row: Row) -> Row:
    from .trace_timing import measure

    if row.plan is None:
        return row
    ours, cublas, note = measure(row.product)
    return replace(row, note=note) if note else replace(row, measured_us=ours, cublas_us=cublas)


class _Recorder(TorchDispatchMode):
    counts: Counter[Product]

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        namespace, _, name = func._schema.name.partition("::")
        if namespace in ("aten", "cutlass_sk"):
            if name == "matmul":  # whole in inference mode alone
                with self:
                    return func.decompose(*args, **kwargs)
            written = {"mm_out": 2, "addmm_out": 3}.get(name)  # ours; torch's are overloads
            asked = kwargs if written is None else {"out": args[written]}
            product = read(name.removesuffix("_out").rstrip("_"), args, asked)
            if product is not None:
                self.counts[product] += 1
        return func(*args, **kwargs)


def _heading(column: str) -> str:
    return column.replace("_us", "\nus").replace("_", " ")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return (
        f"{value:.3g}"
        if isinstance(value, float) and abs(value) < 1
        else f"{value:,.1f}"
        if isinstance(value, float)
        else str(value)
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Products of a program</title>
<style>
body {{ font: 14px system-ui, sans-serif; margin: 2em; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .25em .6em; border-bottom: 1px solid #ccc; text-align: left; white-space: nowrap; }}
.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
</style></head><body>
<p>{summary}</p>
<table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table>
</body></html>
"""
