"""The public face: ``Gemm(dtype).run(a, b, c)``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from . import configuration, env, operands, packing, planner, prebuilt
from . import explain as _explain
from .call import Call, launch, make_calls, plain
from .device import Device, check_name, is_cuda, real, resolve
from .dtypes import name_of
from .dtypes import torch_dtype as _torch_dtype
from .errors import DtypeError, LaunchError, OperandError, PlanError
from .factors import Factor, add_scaled, factor
from .generator.abi import ProblemStruct
from .generator.catalog import COMPILED_ONLY, GENERATIONS, families
from .generator.spec import COMPILED, Generation, KernelSpec, Layout, at_all_widths, binaries_of
from .jit.build import build
from .kernel import Kernel, load_kernel, plan_struct, problem_struct
from .operands import Operands
from .options import Options
from .plan import Decomposition, Plan, RasterOrder, ReductionMode
from .workspace import PER_THREAD_STREAM

PLAN_CACHE_SIZE = 4096
UNFORCED = (None,) * 9


class Gemm:
    """Matrix products of one dtype, c <- alpha * a @ b + beta * c, on Stream-K kernels.

    Constructing it is cheap: nothing is compiled and CUDA is not touched. It may be shared by threads and is pickled by its
    configuration.

    dtype        element type of a and b: a torch dtype or its name (``float16``, ``bfloat16``, ``float64``)
    out_dtype    element type of c; default ``dtype``. float16 and bfloat16 may also give ``float32``. Sums are always float32
                 (float64 for float64).
    device       what ``plan`` plans for: a CUDA device, or a preset that needs no GPU (``h200``, ``h100``, ``a100``, ``toy:P``);
                 default the current GPU, without one ``h200``. ``run`` plans for the GPU that holds its operands.
    generation   ``sm90a`` or ``sm80``; default the newest that the GPU runs
    tile         (tile_m, tile_n, tile_k): use only this tile, and kernels that take it
    cluster      (cluster_m, cluster_n): use only kernels with this cluster
    kernels      use only so many kernels, the first ones: they stand in the order in which they are worth most, and 1 is the
                 Stream-K paper's single kernel. Or which ones: specs or names. Default: all of the set (``generator.catalog``).

    A kernel is used at whichever of its tile widths suits a problem; ``tile``, ``tile_n`` of ``plan`` and ``kernels`` with the spec
    or name of another width than the widest (``spec.at(96)``) settle on one.
    """

    def __init__(
        self,
        dtype: torch.dtype | str,
        *,
        out_dtype: torch.dtype | str | None = None,
        device: Device | torch.device | str | int | None = None,
        generation: Generation | None = None,
        tile: tuple[int, int, int] | None = None,
        cluster: tuple[int, int] | None = None,
        kernels: int | Sequence[KernelSpec | str] | None = None,
    ) -> None:
        self._dtype = name_of(dtype)
        self._out_dtype = self._dtype if out_dtype is None else name_of(out_dtype)
        if generation is not None and generation not in GENERATIONS:
            known = f"is {COMPILED}" if generation in COMPILED_ONLY else "is not known"
            raise DtypeError(f"generation={generation!r} {known}; use one of {', '.join(GENERATIONS)}")
        check_name(device)
        self._device, self._generation = device, generation
        self._preset = None if device is None or is_cuda(device) else resolve(device)
        self._tile = configuration.shape("tile", tile, 3)
        self._cluster = configuration.shape("cluster", cluster, 2)
        self._count, self._chosen = configuration.choice(kernels, self._dtype, self._out_dtype)
        if self._chosen and generation is None:
            self._generation = self._chosen[0].generation
        # Plans of each device and layouts, and those of the device that was last planned for, row-major.
        self._plans: dict[tuple[Device, tuple[Layout, Layout]], dict[tuple[int, int, int], Plan]] = {}
        self._lately: tuple[Device | None, dict[tuple[int, int, int], Plan]] = None, {}
        self._sets: dict[tuple[Device, tuple[Layout, Layout]], planner.KernelSet] = {}
        self._calls = make_calls(self.dtype, self.out_dtype)
        self._debug = env.DEBUG.get()
        for name in (generation,) if generation else GENERATIONS:
            if self._variants(name):
                return
        raise DtypeError(f"no kernel is {self!r}; {configuration.what_exists(self._dtype, self._out_dtype, generation)}")

    def __repr__(self) -> str:
        given: dict[str, Any] = {
            "device": self._device,
            "generation": self._generation,
            "tile": self._tile,
            "cluster": self._cluster,
            "kernels": [spec.name for spec in self._chosen] if self._chosen else self._count,
        }
        if self._out_dtype != self._dtype:
            given = {"out_dtype": self._out_dtype, **given}
        return f"Gemm({self._dtype!r}{''.join(f', {key}={value!r}' for key, value in given.items() if value is not None)})"

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self._dtype, self._out_dtype, self._device, self._generation, self._tile, self._cluster)
        return _restore, (*given, self._chosen or self._count)

    @property
    def dtype(self) -> torch.dtype:
        """Element type of a and b."""
        return _torch_dtype(self._dtype)

    @property
    def out_dtype(self) -> torch.dtype:
        """Element type of c."""
        return _torch_dtype(self._out_dtype)

    @property
    def spec(self) -> KernelSpec:
        """The first kernel of this Gemm's set, for row-major operands."""
        return self.kernels[0]

    @property
    def kernels(self) -> tuple[KernelSpec, ...]:
        """The kernels that plans are made of, for row-major operands: each binary once, whatever its widths."""
        return binaries_of(self._variants_on(resolve(self._device)))

    def plan(
        self,
        m: int,
        n: int,
        k: int,
        *,
        decomposition: Decomposition | None = None,
        splits: int | None = None,
        sms: int | None = None,
        sk_tiles: int | None = None,
        sk_units: int | None = None,
        reduction_mode: ReductionMode = "deterministic",
        raster_order: RasterOrder | None = None,
        raster_swizzle: int | None = None,
        promotion: int | None = None,
        tile_n: int | None = None,
    ) -> Plan:
        """The plan for c[m, n] = a[m, k] @ b[k, n]: the one with the least predicted time, within what is forced. Needs no GPU.

        decomposition    ``data_parallel``, ``split_k`` or ``stream_k``
        splits           parts each tile is cut in (implies split_k); more than there are k-tiles counts as one a k-tile
        sms              how many SMs to plan for
        sk_tiles         with stream_k: how many tiles to share; all of them: basic Stream-K
        sk_units         with stream_k: in how many shares; more than the shared tiles have k-tiles counts as one a k-tile
        reduction_mode   ``deterministic`` (same call, same bits) or ``nondeterministic`` (partials added as they arrive)
        raster_order     ``along_m`` or ``along_n``: the direction in which consecutive tiles step
        raster_swizzle   width, in work tiles, of the strips in which tiles are visited
        promotion        limit on chains of tensor-core sums, in elements of k; 0: none. float32 outputs only
        tile_n           columns of a tile: one of the kernels' widths

        Options says more of each (``cutlass_sk.options``). Raises PlanError naming the option that is out of range.
        """
        device = self._planned_for()
        forced = decomposition, splits, sms, sk_tiles, sk_units, raster_order, raster_swizzle, promotion, tile_n
        if forced == UNFORCED and reduction_mode == "deterministic":
            lately, plans = self._lately
            try:
                if device is lately and (known := plans.get((m, n, k))) is not None:
                    return known
            except TypeError:  # a size that cannot even be looked up: refused below
                pass
            return self._plan(planner.whole("m", m), planner.whole("n", n), planner.whole("k", k), device)
        first, rest = forced[:5], forced[5:]
        return planner.make_plan(m, n, k, self._variants_on(device), device, Options(*first, reduction_mode, *rest))

    def explain(self, m: int, n: int, k: int, *, layout_a: Layout = "t", layout_b: Layout = "t") -> _explain.Explanation:
        """Every candidate that ``plan(m, n, k)`` chooses from, what the model expects of each, and why one won. Needs no GPU.

        layout_a, layout_b   of dense a and b: ``t`` row-major, ``n`` column-major
        """
        for name, layout in (("layout_a", layout_a), ("layout_b", layout_b)):
            if layout not in ("t", "n"):
                raise PlanError(f"{name}={layout!r} is not known; use 't' (row-major) or 'n' (column-major)")
        device = resolve(self._device)
        kernels = [spec.with_layouts(layout_a, layout_b) for spec in self._variants_on(device)]
        return _explain.explain(m, n, k, kernels, device)

    def compile(self, *, layouts: Sequence[str] | None = None, progress: bool | None = None) -> None:
        """Builds every kernel of this Gemm ahead, into the cache, but for those that came compiled.

        layouts    of a and b: some of ``tt``, ``tn``, ``nt`` and ``nn``, t row-major and n column-major; default all four
        progress   whether standard error shows what compiles; default only if it is a terminal

        Needs nvcc where there are others; needs no GPU. Raises PlanError for other layouts, and what building a kernel raises.
        """
        chosen = configuration.layouts_named(layouts)
        device = resolve(self._device)
        specs = [spec.with_layouts(*pair) for spec in binaries_of(self._variants_on(device)) for pair in chosen]
        for architecture in sorted({device.architecture(spec) for spec in specs}):
            left = [s for s in specs if device.architecture(s) == architecture and prebuilt.find(s, architecture) is None]
            if left:
                with prebuilt.naming_the_missing(left, architecture):
                    build(left, architecture, progress=progress)

    def run(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None = None,
        *,
        alpha: float | torch.Tensor = 1.0,
        beta: float | torch.Tensor = 0.0,
        stream: torch.cuda.Stream | int | None = None,
        plan: Plan | None = None,
    ) -> torch.Tensor:
        """c <- alpha * a @ b + beta * c, enqueued on ``stream`` (default: torch's current one on the operands' GPU); returns c.

        a       (m, k), ``dtype``; row- or column-major, views included, at any address. Aligned ones (16 bytes, both pointer and
                leading dimension) are read in place; others are packed first. Some float64 ones are read as they lie.
        b       (k, n), likewise
        c       (m, n), ``out_dtype``; default a new row-major tensor, and then beta must be 0. Row-major: written in place, at
                any address (by ``sm80`` kernels of 16-bit operands only where it is aligned), and so is a column-major one, as
                c^T = b^T a^T, unless ``plan`` is given; otherwise through a temporary. With beta == 0 its old values are not read.
        alpha, beta   real numbers, or 0-d tensors; rounded to the type of sums. 0 takes nothing from what it scales, not even NaN.
                One that lies on the operands' GPU is not waited for: the sums are scaled after a product that leaves them in their
                type, by a kernel of the same tile, which may have to be built
        plan    from ``plan(m, n, k)``; default the best one

        CPU tensors are multiplied by the reference, which executes the same plan slowly. Raises OperandError or DtypeError before
        anything is launched, LaunchError if the launch fails, and what building a kernel raises on first use.
        """
        if plan is None and stream is None:
            repeated = self._calls.repeat(a, b, c, alpha, beta)
            if repeated is not None:
                return repeated
        m, n, k = operands.check(a, b, c, self._dtype, self._out_dtype)
        alpha, beta = factor("alpha", alpha, a.device, a.dtype), factor("beta", beta, a.device, a.dtype)
        if c is None and (isinstance(beta, torch.Tensor) or beta != 0.0):
            given = f"beta lies on {a.device} and" if isinstance(beta, torch.Tensor) else f"beta={beta}"
            raise OperandError(f"{given} scales c, and no c is given; pass c, or leave beta out")
        if stream is not None and a.device.type == "cpu":
            raise OperandError("stream is given, and the operands are CPU tensors; leave it out")
        if a.device.type == "cpu":
            return self._run_on_cpu(a, b, c, float(alpha), float(beta), plan)
        device = real(a.device.index)
        self._check_device(device)
        with ExitStack() as context:
            if stream is not None:
                context.enter_context(torch.cuda.stream(_as_stream(stream, a.device)))
            elif torch.cuda.current_device() != a.device.index:
                context.enter_context(torch.cuda.device(a.device))
            if c is None:
                c = torch.empty(m, n, dtype=self.out_dtype, device=a.device)
            if m == 0 or n == 0:
                return c
            if isinstance(alpha, torch.Tensor) or isinstance(beta, torch.Tensor):
                self._run_then_scale(a, b, c, alpha, beta, plan)
                return c
            if k == 0 or alpha == 0.0:
                return c.zero_() if beta == 0.0 else c.mul_(beta)
            x, y, z = (b.t(), a.t(), c.t()) if plan is None and operands.is_column_major(c) else (a, b, c)
            m, n = z.shape
            chosen = self._plan(m, n, k, device, _layouts(x, y)) if plan is None else self._checked(plan, m, n, k)
            ready = operands.prepare(x, y, z, chosen.kernel, read_c=beta != 0.0)
            made = self._launch(ready, chosen, device, alpha, beta)
            if ready.result is not None:
                ready.result.copy_(ready.c[:, :n])
            elif plan is None and x is a and ready.packed is not None and plain(a) and plain(b) and plain(c):
                self._calls.remember(a, b, c, replace(made, packing=packing.repeated(ready.packed, device)))
        return c

    def _run_then_scale(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, alpha: Factor, beta: Factor, plan: Plan | None
    ) -> None:
        """With a factor that lies on the GPU. Launches on the current stream."""
        if plan is not None and a.shape[1]:
            plan = self._checked(plan, c.shape[0], c.shape[1], a.shape[1])
            plan = replace(plan, kernel=configuration.of_sums(plan.kernel))
        with torch.no_grad():
            add_scaled(c, self._of_sums.run(a, b, plan=plan), alpha if a.shape[1] else 1.0, beta)

    @cached_property
    def _of_sums(self) -> Gemm:
        """The same kernels with outputs of the type of sums: no scale is known that would keep them in range of another."""
        if (sums := self.spec.accumulator) == self._out_dtype:
            return self
        given: dict[str, Any] = {
            "device": self._device,
            "generation": self._generation,
            "tile": self._tile,
            "cluster": self._cluster,
        }
        chosen = [configuration.of_sums(spec) for spec in self._chosen]
        return Gemm(self._dtype, out_dtype=sums, kernels=chosen or self._count, **given)

    def _launch(self, ready: Operands, plan: Plan, device: Device, alpha: float, beta: float) -> Call:
        spec = plan.kernel.with_layouts(ready.a.layout, ready.b.layout)
        kernel = load_kernel(spec, device.architecture(spec))
        leading_c = operands.leading_dimension(ready.c, spec.alignment_c)
        problem = problem_struct(ready.m, ready.n, ready.k, ready.a.leading, ready.b.leading, leading_c)
        _check_workspace(kernel, problem, plan)
        programmatic = device.capability >= (9, 0)
        tensors = ready.a.tensor, ready.b.tensor, ready.c
        return launch(kernel, plan, problem, device.index or 0, programmatic, *tensors, alpha, beta)

    def _run_on_cpu(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float, plan: Plan | None
    ) -> torch.Tensor:
        from . import reference

        _say_once(
            "cutlass_sk: CPU tensors are multiplied by the reference, which executes the plan step by step and is slow; "
            "torch.from_dlpack(x).cuda() moves tensors and arrays to a GPU"
        )
        (m, k), n = a.shape, b.shape[1]
        if c is None:
            c = torch.empty(m, n, dtype=self.out_dtype, device="cpu")
        if m == 0 or n == 0:
            return c
        if k == 0 or alpha == 0.0:
            return c.zero_() if beta == 0.0 else c.mul_(beta)
        chosen = self._plan(m, n, k, resolve(self._device)) if plan is None else self._checked(plan, m, n, k)
        reference.execute(chosen, a, b, c, alpha, beta)
        return c

    def _variants(self, generation: Generation) -> tuple[KernelSpec, ...]:
        """The kernels at their widths, those of the first kernel first."""
        fitting = [
            spec
            for spec in at_all_widths(self._chosen or families(self._dtype, self._out_dtype, generation))
            if spec.generation == generation and self._tile in (None, spec.tile) and self._cluster in (None, spec.cluster)
        ]
        counted = set(binaries_of(fitting)[: self._count])
        return tuple(spec for spec in fitting if spec.binary in counted)

    def _variants_on(self, device: Device) -> tuple[KernelSpec, ...]:
        generation = self._generation or device.generation
        variants = self._variants(generation)
        if not variants:
            others = [name for name in GENERATIONS if name != generation and self._variants(name)]
            raise DtypeError(f"{self!r} has no {generation} kernel, the default on {device.name}; generation={others[0]!r} has one")
        device.architecture(variants[0])  # raises where this GPU cannot run them
        return variants

    def _planned_for(self) -> Device:
        """The device to plan for. The current one may change from call to call."""
        if self._preset is not None:
            return self._preset
        if self._device is None and torch.cuda.is_initialized():
            return real(torch.cuda.current_device())
        return resolve(self._device)

    def _plan(self, m: int, n: int, k: int, device: Device, layouts: tuple[Layout, Layout] = ("t", "t")) -> Plan:
        plans = self._plans.setdefault((device, layouts), {})
        if layouts == ("t", "t"):
            self._lately = device, plans
        if (plan := plans.get((m, n, k))) is not None:
            return plan
        if (kernels := self._sets.get((device, layouts))) is None:
            specs = tuple(spec.with_layouts(*layouts) for spec in self._variants_on(device))
            kernels = self._sets[(device, layouts)] = planner.kernel_set(specs, device)
        plan = planner.plan_with(m, n, k, kernels)
        if len(plans) >= PLAN_CACHE_SIZE:
            plans.clear()
        plans[(m, n, k)] = plan
        if self._debug:
            print(plan, file=sys.stderr)
        return plan

    def _checked(self, plan: Plan, m: int, n: int, k: int) -> Plan:
        if not isinstance(plan, Plan):
            raise PlanError(f"plan is a {type(plan).__name__}; pass what Gemm.plan returns")
        if (plan.m, plan.n, plan.k) != (m, n, k):
            raise PlanError(f"the plan is for m={plan.m}, n={plan.n}, k={plan.k}; this call needs m={m}, n={n}, k={k}")
        if (plan.kernel.dtype, plan.kernel.out_dtype) != (self._dtype, self._out_dtype):
            raise PlanError(f"the plan's kernel {plan.kernel} is not for {self._dtype} into {self._out_dtype}")
        plan.check()
        return plan

    def _check_device(self, device: Device) -> None:
        """A Gemm that was made for one CUDA device refuses tensors of another."""
        if self._device is None or (isinstance(self._device, str) and not self._device.startswith("cuda")):
            return
        own = resolve(self._device)
        if own.index is not None and own.index != device.index:
            raise OperandError(f"the operands lie on cuda:{device.index}; this Gemm is for cuda:{own.index}")


def _layouts(a: torch.Tensor, b: torch.Tensor) -> tuple[Layout, Layout]:
    """How a and b lie: how far their rows are apart decides what loading them costs."""
    return ("n" if operands.is_column_major(a) else "t"), ("n" if operands.is_column_major(b) else "t")


def _restore(
    dtype: str,
    out_dtype: str,
    device: Device | torch.device | str | int | None,
    generation: Generation | None,
    tile: tuple[int, int, int] | None,
    cluster: tuple[int, int] | None,
    kernels: int | Sequence[KernelSpec | str] | None,
) -> Gemm:
    return Gemm(dtype, out_dtype=out_dtype, device=device, generation=generation, tile=tile, cluster=cluster, kernels=kernels)


def _check_workspace(kernel: Kernel, problem: ProblemStruct, plan: Plan) -> None:
    """The kernel's word on a plan that may have been altered: what it refuses, or memory it would write beyond, is a PlanError."""
    try:
        query = kernel.query(problem, plan_struct(plan))
    except LaunchError as error:
        raise PlanError(str(error)) from error
    if (query.partials_bytes, query.barrier_bytes) != (plan.partials_bytes, plan.barrier_bytes):
        raise PlanError(
            f"the plan has partials_bytes={plan.partials_bytes}, barrier_bytes={plan.barrier_bytes}; {plan.kernel} needs "
            f"{query.partials_bytes} and {query.barrier_bytes}: take plans from Gemm.plan"
        )


def _as_stream(stream: Any, device: torch.device) -> torch.cuda.Stream:
    if isinstance(stream, torch.cuda.Stream):
        if stream.device != device:
            raise OperandError(f"stream belongs to {stream.device}, the operands lie on {device}")
        return stream
    if isinstance(stream, int) and not isinstance(stream, bool) and 0 <= stream < 2**63:
        if stream == PER_THREAD_STREAM:
            raise OperandError("stream=2 is another stream in every thread; pass a torch.cuda.Stream of your own")
        return torch.cuda.ExternalStream(stream, device=device)
    raise OperandError(f"stream is a {type(stream).__name__}; pass a torch.cuda.Stream or a cudaStream_t as an integer")


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warnings.warn(text, stacklevel=4)
