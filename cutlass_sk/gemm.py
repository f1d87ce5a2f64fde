"""The public face: ``Gemm(dtype).run(a, b, c)``."""

from __future__ import annotations

import ctypes
import sys
import warnings
from contextlib import ExitStack
from typing import Any

import torch

from . import env, operands, planner, workspace
from .device import Device, real, resolve
from .dtypes import name_of
from .dtypes import torch_dtype as _torch_dtype
from .errors import DtypeError, OperandError, PlanError
from .generator import abi
from .generator.catalog import GENERATIONS, LAYOUTS, families
from .generator.spec import Generation, KernelSpec
from .jit.build import build
from .kernel import load_kernel, plan_struct, problem_struct
from .operands import Operands
from .plan import Decomposition, Plan, RasterOrder, ReductionMode

PLAN_CACHE_SIZE = 4096


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
    tile         (tile_m, tile_n, tile_k): use only kernels with this tile
    cluster      (cluster_m, cluster_n): use only kernels with this cluster
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
    ) -> None:
        self._dtype = name_of(dtype)
        self._out_dtype = self._dtype if out_dtype is None else name_of(out_dtype)
        if generation is not None and generation not in GENERATIONS:
            raise DtypeError(f"generation={generation!r} is not known; use one of {', '.join(GENERATIONS)}")
        if isinstance(device, str) and not device.startswith("cuda"):
            resolve(device)  # an unknown preset is an error here, not at the first plan
        self._device, self._generation = device, generation
        self._tile = None if tile is None else tuple(tile)
        self._cluster = None if cluster is None else tuple(cluster)
        self._plans: dict[tuple[Device, int, int, int], Plan] = {}
        for name in (generation,) if generation else GENERATIONS:
            if self._kernels(name):
                return
        shape = (f" with tile {self._tile}" if self._tile else "") + (f" and cluster {self._cluster}" if self._cluster else "")
        raise DtypeError(
            f"no {generation or ''} kernel multiplies {self._dtype} into {self._out_dtype}{shape}; see supported_dtypes()"
        )

    def __repr__(self) -> str:
        given: dict[str, Any] = {
            "device": self._device,
            "generation": self._generation,
            "tile": self._tile,
            "cluster": self._cluster,
        }
        if self._out_dtype != self._dtype:
            given = {"out_dtype": self._out_dtype, **given}
        return f"Gemm({self._dtype!r}{''.join(f', {key}={value!r}' for key, value in given.items() if value is not None)})"

    def __reduce__(self) -> tuple[Any, ...]:
        configuration = (self._dtype, self._out_dtype, self._device, self._generation, self._tile, self._cluster)
        return _restore, configuration

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
        """The kernels that plans are made of, for row-major operands."""
        return self._kernels_on(resolve(self._device))

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
    ) -> Plan:
        """The plan for c[m, n] = a[m, k] @ b[k, n]: the one with the least predicted time, within what is forced.

        The options are those of :class:`~cutlass_sk.planner.Options`. No GPU is needed. Raises PlanError naming the option that
        is out of range.
        """
        options = planner.Options(decomposition, splits, sms, sk_tiles, sk_units, reduction_mode, raster_order, raster_swizzle, promotion)
        device = resolve(self._device)
        if options == planner.Options():
            return self._plan(m, n, k, device)
        return planner.make_plan(m, n, k, self._kernels_on(device), device, options)

    def compile(self, *, progress: bool | None = None) -> None:
        """Builds every kernel of this Gemm ahead, in all four operand layouts, into the cache. Needs nvcc, no GPU."""
        device = resolve(self._device)
        specs = [spec.with_layouts(*layouts) for spec in self._kernels_on(device) for layouts in LAYOUTS]
        for architecture in sorted({device.architecture(spec) for spec in specs}):
            build([spec for spec in specs if device.architecture(spec) == architecture], architecture, progress=progress)

    def run(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None = None,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: torch.cuda.Stream | int | None = None,
        plan: Plan | None = None,
    ) -> torch.Tensor:
        """c <- alpha * a @ b + beta * c, enqueued on ``stream`` (default: torch's current one on the operands' GPU); returns c.

        a       (m, k), ``dtype``; row- or column-major, views included, at any address. Aligned ones (16 bytes, both pointer and
                leading dimension) are read in place; others are packed by a copy first.
        b       (k, n), likewise
        c       (m, n), ``out_dtype``; default a new row-major tensor. Row- or column-major and aligned: written in place;
                otherwise through a temporary. With beta == 0 its old values are never read.
        plan    from ``plan(m, n, k)``; default the best one. A column-major c is computed as c^T = b^T a^T: plan (n, m, k).

        CPU tensors are multiplied by the reference, which executes the same plan slowly. Raises OperandError or DtypeError before
        anything is launched, LaunchError if the launch fails, and what building a kernel raises on first use.
        """
        m, n, k = operands.check(a, b, c, self._dtype, self._out_dtype)
        alpha, beta = operands.scalar("alpha", alpha), operands.scalar("beta", beta)
        if a.device.type == "cpu":
            return self._run_on_cpu(a, b, c, alpha, beta, plan)
        device = real(a.device.index)
        self._check_device(device)
        with ExitStack() as context:
            if stream is not None:
                context.enter_context(torch.cuda.stream(_as_stream(stream, a.device)))
            elif torch.cuda.current_device() != a.device.index:
                context.enter_context(torch.cuda.device(a.device))
            if c is None:
                beta, c = 0.0, torch.empty(m, n, dtype=self.out_dtype, device=a.device)
            if m == 0 or n == 0:
                return c
            if k == 0 or alpha == 0.0:
                return c.zero_() if beta == 0.0 else c.mul_(beta)
            x, y, z = (b.t(), a.t(), c.t()) if operands.is_column_major(c) else (a, b, c)
            m, n = z.shape
            chosen = self._plan(m, n, k, device) if plan is None else self._checked(plan, m, n, k)
            ready = operands.prepare(x, y, z, chosen.kernel, read_c=beta != 0.0)
            self._launch(ready, chosen, device, alpha, beta)
            if ready.result is not None:
                ready.result.copy_(ready.c[:, :n])
        return c

    def _launch(self, ready: Operands, plan: Plan, device: Device, alpha: float, beta: float) -> None:
        spec = plan.kernel.with_layouts(ready.a.layout, ready.b.layout)
        kernel = load_kernel(spec, device.architecture(spec))
        stream = torch.cuda.current_stream().cuda_stream
        leading_c = operands.leading_dimension(ready.c, spec.alignment_c)
        launch = abi.LaunchStruct(
            struct_bytes=ctypes.sizeof(abi.LaunchStruct),
            device=device.index,
            programmatic=env.PDL.get(),
            problem=problem_struct(ready.m, ready.n, ready.k, ready.a.leading, ready.b.leading, leading_c),
            plan=plan_struct(plan),
            a=ready.a.tensor.data_ptr(),
            b=ready.b.tensor.data_ptr(),
            c=ready.c.data_ptr(),
            alpha=alpha,
            beta=beta,
            stream=stream,
        )
        if plan.sk_units:
            # Both stay alive until the launch is enqueued; the allocator keeps them from other streams.
            partials = workspace.partials(plan.partials_bytes, ready.c.device)
            barriers = workspace.barriers(plan.barrier_bytes, ready.c.device, stream)
            launch.partials, launch.barriers = partials.data_ptr(), barriers.data_ptr()
        kernel.launch(launch)
        # The kernel wrote behind torch's back: let autograd see it.
        torch.autograd.graph.increment_version(ready.c)

    def _run_on_cpu(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float, plan: Plan | None
    ) -> torch.Tensor:
        from . import reference

        _say_once("cutlass_sk: CPU tensors are multiplied by the reference, which executes the plan step by step and is slow")
        (m, k), n = a.shape, b.shape[1]
        if c is None:
            beta, c = 0.0, torch.empty(m, n, dtype=self.out_dtype)
        if m == 0 or n == 0:
            return c
        if k == 0 or alpha == 0.0:
            return c.zero_() if beta == 0.0 else c.mul_(beta)
        chosen = self._plan(m, n, k, resolve(self._device)) if plan is None else self._checked(plan, m, n, k)
        reference.execute(chosen, a, b, c, alpha, beta)
        return c

    def _kernels(self, generation: Generation) -> tuple[KernelSpec, ...]:
        return tuple(
            spec
            for spec in families(self._dtype, self._out_dtype, generation)
            if self._tile in (None, spec.tile) and self._cluster in (None, spec.cluster)
        )

    def _kernels_on(self, device: Device) -> tuple[KernelSpec, ...]:
        generation = self._generation or device.generation
        if kernels := self._kernels(generation):
            return kernels
        raise DtypeError(f"{self!r} has no {generation} kernel, which {device.name} needs; leave tile and cluster open")

    def _plan(self, m: int, n: int, k: int, device: Device) -> Plan:
        key = (device, m, n, k)
        if (plan := self._plans.get(key)) is not None:
            return plan
        plan = planner.make_plan(m, n, k, self._kernels_on(device), device)
        if len(self._plans) >= PLAN_CACHE_SIZE:
            self._plans.clear()
        self._plans[key] = plan
        if env.DEBUG.get():
            print(plan, file=sys.stderr)
        return plan

    def _checked(self, plan: Plan, m: int, n: int, k: int) -> Plan:
        if not isinstance(plan, Plan):
            raise PlanError(f"plan is a {type(plan).__name__}; pass what Gemm.plan returns")
        if (plan.m, plan.n, plan.k) != (m, n, k):
            hint = " (a column-major c is computed as c^T = b^T a^T)" if (plan.m, plan.n, plan.k) == (n, m, k) else ""
            raise PlanError(f"the plan is for m={plan.m}, n={plan.n}, k={plan.k}; this call needs m={m}, n={n}, k={k}{hint}")
        if (plan.kernel.dtype, plan.kernel.out_dtype) != (self._dtype, self._out_dtype):
            raise PlanError(f"the plan's kernel {plan.kernel} is not for {self._dtype} into {self._out_dtype}")
        return plan

    def _check_device(self, device: Device) -> None:
        """A Gemm that was made for one CUDA device refuses tensors of another."""
        if self._device is None or (isinstance(self._device, str) and not self._device.startswith("cuda")):
            return
        own = resolve(self._device)
        if own.index is not None and own.index != device.index:
            raise OperandError(f"the operands lie on cuda:{device.index}; this Gemm is for cuda:{own.index}")


def _restore(
    dtype: str,
    out_dtype: str,
    device: Device | torch.device | str | int | None,
    generation: Generation | None,
    tile: tuple[int, int, int] | None,
    cluster: tuple[int, int] | None,
) -> Gemm:
    return Gemm(dtype, out_dtype=out_dtype, device=device, generation=generation, tile=tile, cluster=cluster)


def _as_stream(stream: Any, device: torch.device) -> torch.cuda.Stream:
    if isinstance(stream, torch.cuda.Stream):
        if stream.device != device:
            raise OperandError(f"stream belongs to {stream.device}, the operands lie on {device}")
        return stream
    if isinstance(stream, int) and not isinstance(stream, bool):
        return torch.cuda.ExternalStream(stream, device=device)
    raise OperandError(f"stream is a {type(stream).__name__}; pass a torch.cuda.Stream or a cudaStream_t as an integer")


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warnings.warn(text, stacklevel=4)
