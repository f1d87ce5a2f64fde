"""Gemm without a GPU: cheap to make, carried by its configuration, and right on CPU tensors, in every layout and corner case."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

import cutlass_sk.gemm as gemm_module
from cutlass_sk import Device, Gemm, Plan, supported_dtypes
from cutlass_sk.device import PRESETS
from cutlass_sk.dtypes import name_of
from cutlass_sk.errors import DeviceError, DtypeError, OperandError, PlanError
from cutlass_sk.generator.catalog import DTYPES, families
from cutlass_sk.generator.spec import KernelSpec
from cutlass_sk.plan import DECOMPOSITIONS

pytestmark = pytest.mark.filterwarnings("ignore:cutlass_sk. CPU tensors")
NAN = float("nan")
SET = families("float16", "float16", "sm90a")
ALONE = next(spec for spec in SET if spec.cluster == (1, 1))


def trits(rows: int, columns: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Elements in {-1, 0, 1}: every sum is exact, in any order."""
    return torch.randint(-1, 2, (rows, columns), generator=torch.Generator().manual_seed(seed)).to(dtype)


def operands(m: int, n: int, k: int, dtype: torch.dtype = torch.float16) -> tuple[torch.Tensor, torch.Tensor]:
    return trits(m, k, dtype, 1), trits(k, n, dtype, 2)


def product_of(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.double() @ b.double()


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, column-major."""
    return tensor.t().contiguous().t()


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_construction_is_cheap_and_leaves_cuda_alone() -> None:
    code = """
import sys, time, torch
from_torch = set(sys.modules)  # torch itself may import cuda.bindings
def extra(): return [name for name in set(sys.modules) - from_torch if name.split(".")[0] in ("cuda", "cutlass_library")]
from cutlass_sk import Gemm
times = []
for _ in range(50):
    start = time.perf_counter(); Gemm("float16", device="h200"); times.append(time.perf_counter() - start)
print(min(times), torch.cuda.is_initialized(), extra())
Gemm("float16", device="h200").plan(512, 512, 512)
print(torch.cuda.is_initialized(), extra())
"""
    made, planned = python(code).splitlines()
    seconds, *rest = made.split()
    assert float(seconds) < 1e-3
    assert rest == planned.split() == ["False", "[]"]


CONFIGURATIONS: list[tuple[dict[str, Any], str]] = [
    ({"dtype": torch.float16}, "Gemm('float16')"),
    ({"dtype": "bfloat16", "out_dtype": torch.float32}, "Gemm('bfloat16', out_dtype='float32')"),
    ({"dtype": "float64", "out_dtype": "float64", "device": "a100"}, "Gemm('float64', device='a100')"),
    (
        {"dtype": "half", "device": "toy:5", "generation": "sm90a", "tile": [*ALONE.tile], "cluster": [1, 1]},
        f"Gemm('float16', device='toy:5', generation='sm90a', tile={ALONE.tile}, cluster=(1, 1))",
    ),
    ({"dtype": "float16", "device": "h200", "kernels": 1}, "Gemm('float16', device='h200', kernels=1)"),
    ({"dtype": "float64", "device": "h200", "kernels": 100}, "Gemm('float64', device='h200', kernels=100)"),
    (
        {"dtype": "float16", "device": "h200", "kernels": [ALONE.name, SET[0]]},
        f"Gemm('float16', device='h200', generation='sm90a', kernels=['{ALONE.name}', '{SET[0].name}'])",
    ),
    ({"dtype": "float16", "device": PRESETS["h200"], "generation": "sm80"}, "Gemm('float16', device=Device(name='h200'"),
]


@pytest.mark.parametrize(("configuration", "printed"), CONFIGURATIONS, ids=str)
def test_repr_pickle_and_copies_carry_the_configuration(configuration: dict[str, Any], printed: str) -> None:
    gemm = Gemm(**configuration)
    assert repr(gemm).startswith(printed)
    plan = gemm.plan(300, 200, 100)
    for other in (pickle.loads(pickle.dumps(gemm)), copy.deepcopy(gemm), copy.copy(gemm)):
        assert type(other) is Gemm and other is not gemm
        assert (repr(other), other.dtype, other.out_dtype, other.kernels) == (repr(gemm), gemm.dtype, gemm.out_dtype, gemm.kernels)
        assert other.plan(300, 200, 100) == plan
    if "Device(" not in printed:
        again = eval(repr(gemm), {"Gemm": Gemm})
        assert repr(again) == repr(gemm)


def test_a_pickle_holds_no_plans() -> None:
    gemm = Gemm("float16", device="h200")
    before = pickle.dumps(gemm)
    gemm.plan(1000, 1000, 1000)
    assert pickle.dumps(gemm) == before


def test_spec_is_the_first_of_the_kernels_of_the_device() -> None:
    gemm = Gemm("float16", device="h200")
    assert gemm.kernels == families("float16", "float16", "sm90a")
    assert gemm.spec == gemm.kernels[0]
    (paper,) = families("float16", "float16", "sm80")
    assert paper.tile == (128, 128, 32)
    assert Gemm("float16", device="a100").spec == paper
    assert Gemm("float16", device="h200", generation="sm80").spec == paper
    assert Gemm("float16", device="h200", cluster=(1, 1)).kernels == tuple(
        spec for spec in families("float16", "float16", "sm90a") if spec.cluster == (1, 1)
    )


def test_so_many_kernels_are_the_first_ones() -> None:
    for count in range(1, len(SET) + 2):
        assert Gemm("float16", device="h200", kernels=count).kernels == SET[:count]
    single = Gemm("float16", device="h200", kernels=1)
    for shape in ((128, 128, 16384), (1536, 1536, 4096), (33, 5000, 77)):
        plans = [single.plan(*shape), single.plan(*shape, decomposition="stream_k"), single.plan(*shape, splits=2)]
        assert {plan.kernel.binary for plan in plans} == {SET[0]}
    assert Gemm("float16", device="a100", kernels=1).kernels == families("float16", "float16", "sm80")
    tall = [spec for spec in SET if spec.cluster == (4, 1)]
    assert len(tall) > 1 and Gemm("float16", device="h200", cluster=(4, 1), kernels=1).kernels == (tall[0],)


def test_kernels_are_chosen_by_spec_or_by_name_in_the_order_given() -> None:
    own = replace(ALONE, tile=(64, 72, 64), narrowest=0, widest=0)  # not of the catalogue
    names = [SET[3].with_layouts("n", "t").name, own, SET[1]]
    gemm = Gemm("float16", device="h200", kernels=names)
    assert gemm.kernels == (SET[3], own, SET[1]) and gemm.spec == SET[3]
    assert pickle.loads(pickle.dumps(gemm)).kernels == gemm.kernels
    assert Gemm("float16", device="h200", kernels=names, tile=own.tile).kernels == (own,)
    assert gemm.plan(1536, 1536, 4096).kernel.binary in gemm.kernels
    paper = families("float16", "float16", "sm80")
    assert Gemm("float16", device="h200", kernels=paper).plan(64, 64, 64).kernel == paper[0]
    a, b = operands(150, 270, 333)
    assert torch.equal(Gemm("float16", device="h200", kernels=[own]).run(a, b).double(), product_of(a, b))


@pytest.mark.parametrize(
    ("kernels", "error", "message"),
    [
        *((kernels, PlanError, "kernels=.* must be a whole number of 1 or more") for kernels in (0, -1, True, [], (), "", ALONE)),
        (ALONE.name, PlanError, "or kernels by name or spec in a list"),
        ([ALONE.family], PlanError, f"no kernel is called '{ALONE.family}'; near it: {ALONE.family}_"),
        (["magic"], PlanError, "no kernel is called 'magic'"),
        (families("bfloat16", "bfloat16", "sm90a"), DtypeError, "is for bfloat16 into bfloat16; this Gemm is for float16 into "),
        (families("float16", "float32", "sm90a"), DtypeError, "is for float16 into float32; this Gemm is for float16 into float16"),
        ([ALONE, *families("float16", "float16", "sm80")], PlanError, "are of several generations; a Gemm has kernels of one"),
    ],
    ids=str,
)
def test_kernels_that_cannot_be_chosen_are_refused(kernels: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Gemm("float16", kernels=kernels)


def test_a_kernel_is_used_at_all_widths_or_at_the_one_that_is_named() -> None:
    shapes = ((128, 128, 16384), (1536, 1536, 4096), (33, 5000, 77), (4096, 4096, 4096), (1024, 1000, 64))
    free = Gemm("float16", device="h200", kernels=[SET[0]])
    assert len({free.plan(*shape).kernel for shape in shapes}) > 1
    narrow = SET[0].at(96)
    for chosen in ([narrow], [narrow.name]):
        gemm = Gemm("float16", device="h200", kernels=chosen)
        assert {gemm.plan(*shape).kernel for shape in shapes} == {narrow} and gemm.kernels == (SET[0],)
        assert pickle.loads(pickle.dumps(gemm)).plan(*shapes[0]).kernel == narrow and narrow.name in repr(gemm)
    by_tile = Gemm("float16", device="h200", tile=narrow.tile)
    assert by_tile.kernels == tuple(spec for spec in SET if spec.tile[0] == 64)
    assert {by_tile.plan(*shape).kernel.tile for shape in shapes} == {narrow.tile}
    assert Gemm("float16", device="h200", tile=SET[0].tile, kernels=1).plan(64, 64, 64).kernel == SET[0]
    a, b = operands(150, 270, 333)
    for width in SET[0].widths:
        assert torch.equal(free.run(a, b, plan=free.plan(150, 270, 333, tile_n=width)).double(), product_of(a, b))


def test_kernels_of_another_generation_are_refused() -> None:
    with pytest.raises(DtypeError, match="no kernel is Gemm"):
        Gemm("float16", generation="sm80", kernels=[ALONE])
    with pytest.raises(DeviceError):
        Gemm("float16", device="a100", kernels=[ALONE]).plan(64, 64, 64)


@pytest.mark.parametrize("spec", [*SET, *families("float64", "float64", "sm90a")], ids=str)
@pytest.mark.parametrize("shape", [(70, 300, 200), (301, 71, 201)], ids=str)
def test_every_kernel_is_exact_in_every_layout(spec: KernelSpec, shape: tuple[int, int, int]) -> None:
    gemm = Gemm(spec.dtype, device="h200", kernels=[spec])
    a, b = operands(*shape, gemm.dtype)
    for layouts in product((torch.clone, transposed), repeat=2):
        x, y = layouts[0](a), layouts[1](b)
        assert torch.equal(gemm.run(x, y).double(), product_of(a, b))
        plan = gemm.plan(*shape, decomposition="stream_k", sms=7)
        assert plan.kernel.binary == spec and torch.equal(gemm.run(x, y, plan=plan).double(), product_of(a, b))


def test_supported_dtypes_can_all_be_made_and_no_others() -> None:
    assert supported_dtypes() == tuple((getattr(torch, inputs), getattr(torch, out)) for inputs, out in DTYPES)
    every = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.complex64)
    for dtype, out_dtype in product(every, every):
        if (dtype, out_dtype) in supported_dtypes():
            gemm = Gemm(dtype, out_dtype=out_dtype, device="h200")
            assert (gemm.dtype, gemm.out_dtype) == (dtype, out_dtype)
        else:
            with pytest.raises(DtypeError):
                Gemm(dtype, out_dtype=out_dtype, device="h200")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (torch.float16, "float16"),
        ("float16", "float16"),
        ("half", "float16"),
        ("torch.half", "float16"),
        (torch.half, "float16"),
        ("torch.bfloat16", "bfloat16"),
        ("float", "float32"),
        ("double", "float64"),
        (torch.double, "float64"),
    ],
)
def test_dtypes_by_any_of_their_names(given: Any, name: str) -> None:
    assert name_of(given) == name


@pytest.mark.parametrize("given", [torch.int8, "int8", "Float16", "", None, 16, float, torch.complex64, "torch."])
def test_an_unknown_dtype_is_named(given: Any) -> None:
    with pytest.raises(DtypeError, match=re.escape(f"dtype={given!r} has no kernels; supported: bfloat16, float16, float64")):
        Gemm(given)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"generation": "sm70"}, DtypeError, "generation='sm70' is not known; use one of sm90a, sm80"),
        ({"out_dtype": "float64"}, DtypeError, "there are float16 -> float16, float16 -> float32"),
        (
            {"tile": (1, 2, 3)},
            DtypeError,
            r"tile=\(1, 2, 3\)\); for float16 -> float16 there are \(tile, cluster\) sm90a {}x{}x{} {}x{} ".format(
                *SET[0].tile, *SET[0].cluster
            )
            + r"\(and narrower, to 32, in steps of 32\), ",
        ),
        ({"cluster": (4, 4)}, DtypeError, r"cluster=\(4, 4\)\); for float16 -> float16 there are"),
        ({"generation": "sm80", "cluster": (2, 1)}, DtypeError, r"generation='sm80', cluster=\(2, 1\)\); .* sm80 128x128x32 1x1$"),
        ({"device": "v100"}, DeviceError, "device='v100' is no preset; there are h200, h100, a100 and toy:P"),
        ({"device": "toy:0"}, DeviceError, "device='toy:0'"),
        ({"device": "toy:1025"}, DeviceError, "device='toy:1025'"),
        ({"device": "toy:"}, DeviceError, "device='toy:'"),
        ({"device": ""}, DeviceError, "device=''"),
    ],
    ids=str,
)
def test_what_cannot_be_made_is_refused_at_once(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Gemm("float16", **given)


def test_a_kernel_that_the_device_lacks_is_refused_when_planned() -> None:
    with pytest.raises(DtypeError, match=r"no sm80 kernel, the default on a100; generation='sm90a' has one"):
        Gemm("float16", device="a100", tile=ALONE.tile).plan(64, 64, 64)
    old = Device("old", 80, (7, 0), 100.0, 7.0, 900.0)
    with pytest.raises(DeviceError, match=r"old has compute capability 7\.0; kernels run on 8\.x and 9\.0$"):
        Gemm("float16", device=old).plan(64, 64, 64)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU is needed.")
def test_a_cuda_device_that_is_not_there_is_named() -> None:
    for device in ("cuda", "cuda:0", torch.device("cuda:1"), 0):
        with pytest.raises(DeviceError, match=re.escape(f"device={device!r}: no CUDA GPU is usable here")):
            Gemm("float16", device=device).plan(64, 64, 64)
    assert Gemm("float16").plan(64, 64, 64).device == "h200"


def test_plans_are_kept_and_forced_ones_are_made_anew() -> None:
    gemm = Gemm("float16", device="h200")
    assert gemm.plan(500, 500, 500) is gemm.plan(500, 500, 500)
    forced = gemm.plan(500, 500, 500, decomposition="split_k", splits=2)
    assert (forced.decomposition, forced.splits) == ("split_k", 2)
    assert gemm.plan(500, 500, 500).splits != 2 or gemm.plan(500, 500, 500) is not forced


@pytest.mark.parametrize(("dtype", "out_dtype"), supported_dtypes(), ids=str)
@pytest.mark.parametrize("layouts", ["tt", "tn", "nt", "nn"])
@pytest.mark.parametrize("decomposition", [None, *DECOMPOSITIONS])
def test_every_dtype_layout_and_decomposition_is_exact(
    dtype: torch.dtype, out_dtype: torch.dtype, layouts: str, decomposition: Any
) -> None:
    gemm = Gemm(dtype, out_dtype=out_dtype, device="h200")
    a, b = operands(150, 270, 333, dtype)
    plan = None if decomposition is None else gemm.plan(150, 270, 333, decomposition=decomposition)
    a, b = (transposed(x) if layout == "n" else x for x, layout in zip((a, b), layouts, strict=True))
    c = torch.full((150, 270), NAN, dtype=out_dtype)
    assert gemm.run(a, b, c, plan=plan) is c
    assert torch.equal(c.double(), product_of(a, b))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 300, 65), (300, 1, 65), (257, 129, 1), (128, 128, 64), (5, 7, 1000)], ids=str)
@pytest.mark.parametrize("generation", ["sm90a", "sm80"])
def test_ragged_and_thin_shapes_are_exact(shape: tuple[int, int, int], generation: Any) -> None:
    a, b = operands(*shape)
    c = Gemm("float16", device="h200", generation=generation).run(a, b)
    assert (c.shape, c.dtype, c.is_contiguous()) == ((shape[0], shape[1]), torch.float16, True)
    assert torch.equal(c.double(), product_of(a, b))


@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (2.5, 0), (1, 1), (-0.5, 2), (3, -1.5), (torch.tensor(2.0), True)], ids=str)
def test_alpha_and_beta(alpha: Any, beta: Any) -> None:
    a, b = operands(40, 50, 60, torch.float64)
    before = trits(40, 50, torch.float64, 3)
    c = before.clone()
    Gemm("float64", device="h200").run(a, b, c, alpha=alpha, beta=beta)
    assert torch.equal(c, float(alpha) * product_of(a, b) + float(beta) * before)


def test_a_new_c_has_no_old_values_for_beta() -> None:
    a, b = operands(40, 50, 60)
    with pytest.raises(OperandError, match=r"beta=7.0 scales c, and no c is given"):
        Gemm("float16").run(a, b, beta=7.0)
    assert torch.equal(Gemm("float16").run(a, b, beta=-0.0).double(), product_of(a, b))


@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("kind", ["column_major", "window", "window_of_columns", "every_other_row", "every_other_column"])
def test_c_of_any_strides_is_written_in_place_and_nothing_beside_it(kind: str, beta: float) -> None:
    a, b = operands(130, 70, 90)
    buffer = trits(300, 300, torch.float16, 4)
    before = buffer.clone()
    view = {
        "column_major": lambda x: x.t()[20:150, 30:100],
        "window": lambda x: x[20:150, 30:100],
        "window_of_columns": lambda x: x[:130, :70],
        "every_other_row": lambda x: x[0:260:2, 5:75],
        "every_other_column": lambda x: x[3:133, 0:140:2],
    }[kind]
    expected = before.clone()
    view(expected).copy_(product_of(a, b) + beta * view(before).double())
    c = view(buffer)
    assert Gemm("float16").run(a, b, c, beta=beta) is c
    assert torch.equal(buffer, expected)


def test_operands_may_be_views_of_any_strides() -> None:
    big = trits(300, 300, torch.float16, 5)
    a, b = big[1:100:2, 3:93], big.t()[7:97, 200:260]
    assert torch.equal(Gemm("float16").run(a, b).double(), product_of(a, b))
    row, column = trits(1, 64, torch.float16, 6).expand(80, 64), trits(64, 1, torch.float16, 7).expand(64, 90)
    assert torch.equal(Gemm("float16").run(row, column).double(), product_of(row, column))
    negative = torch._neg_view(a)
    assert negative.is_neg()
    assert torch.equal(Gemm("float16").run(negative, b).double(), -product_of(a, b))


@pytest.mark.parametrize("shape", [(0, 5, 6), (5, 0, 6), (0, 0, 6), (0, 5, 0), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("given", [False, True])
def test_an_empty_c(shape: tuple[int, int, int], given: bool) -> None:
    m, n, k = shape
    a, b = torch.empty(m, k, dtype=torch.float16), torch.empty(k, n, dtype=torch.float16)
    c = torch.empty(m, n, dtype=torch.float16) if given else None
    result = Gemm("float16").run(a, b, c, beta=2.0 if given else 0.0)
    assert result.shape == (m, n) and (c is None or result is c)


def test_no_k_gives_beta_c() -> None:
    a, b = torch.empty(4, 0, dtype=torch.float16), torch.empty(0, 3, dtype=torch.float16)
    assert torch.equal(Gemm("float16").run(a, b), torch.zeros(4, 3, dtype=torch.float16))
    c = torch.full((4, 3), 2.0, dtype=torch.float16)
    assert torch.equal(Gemm("float16").run(a, b, c, beta=1.5), torch.full((4, 3), 3.0, dtype=torch.float16))
    c.fill_(NAN)
    assert torch.equal(Gemm("float16").run(a, b, c), torch.zeros(4, 3, dtype=torch.float16))


def test_alpha_zero_does_not_read_a_and_b() -> None:
    a, b = torch.full((4, 5), NAN, dtype=torch.float16), torch.full((5, 3), NAN, dtype=torch.float16)
    c = torch.full((4, 3), 2.0, dtype=torch.float16)
    assert torch.equal(Gemm("float16").run(a, b, c, alpha=0, beta=0.5), torch.ones(4, 3, dtype=torch.float16))
    c.fill_(NAN)
    assert torch.equal(Gemm("float16").run(a, b, c, alpha=0.0), torch.zeros(4, 3, dtype=torch.float16))


def test_beta_zero_does_not_read_c_and_other_betas_do() -> None:
    a, b = operands(40, 50, 60)
    poisoned = torch.full((40, 50), NAN, dtype=torch.float16)
    assert torch.equal(Gemm("float16").run(a, b, poisoned.clone(), beta=-0.0).double(), product_of(a, b))
    assert Gemm("float16").run(a, b, poisoned.clone(), beta=1e-3).isnan().all()


def test_nan_and_inf_in_a_stay_in_their_rows() -> None:
    a, b = torch.ones(130, 70, dtype=torch.float16), torch.ones(70, 50, dtype=torch.float16)
    a[3, 5], a[129, 69] = NAN, float("inf")
    c = Gemm("float16").run(a, b)
    assert c[3].isnan().all() and c[129].isposinf().all()
    assert (c[[0, 1, 2, *range(4, 129)]] == 70).all()


def test_a_plan_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[Plan] = []
    from cutlass_sk import reference

    execute = reference.execute
    monkeypatch.setattr(reference, "execute", lambda plan, *rest: (executed.append(plan), execute(plan, *rest)))
    gemm = Gemm("float16", device="h200")
    a, b = operands(200, 300, 400)
    forced = gemm.plan(200, 300, 400, decomposition="stream_k", sms=3, raster_order="along_n")
    gemm.run(a, b, plan=forced)
    gemm.run(a, b)
    assert executed == [forced, gemm.plan(200, 300, 400)] and forced != gemm.plan(200, 300, 400)


def test_a_plan_that_does_not_fit_is_refused_and_c_is_untouched() -> None:
    gemm = Gemm("float16", device="h200")
    a, b = operands(20, 30, 40)
    c = torch.full((20, 30), 7.0, dtype=torch.float16)
    refused: list[tuple[Any, str]] = [
        (gemm.plan(20, 30, 41), "the plan is for m=20, n=30, k=41; this call needs m=20, n=30, k=40$"),
        (gemm.plan(30, 20, 40), "the plan is for m=30, n=20, k=40; this call needs m=20, n=30, k=40$"),
        (Gemm("bfloat16", device="h200").plan(20, 30, 40), "kernel sm90a_bf16_bf16_.* is not for float16 into float16"),
        (Gemm("float16", out_dtype="float32", device="h200").plan(20, 30, 40), "_f16_f32_.* is not for float16 into float16"),
        ("stream_k", "plan is a str; pass what Gemm.plan returns"),
        ({"m": 20}, "plan is a dict"),
    ]
    for plan, message in refused:
        with pytest.raises(PlanError, match=message):
            gemm.run(a, b, c, plan=plan)
    assert (c == 7).all()


def test_a_plan_that_loses_work_is_refused() -> None:
    gemm = Gemm("float16", device="h200")
    a, b = operands(200, 300, 400)
    plan = gemm.plan(200, 300, 400, decomposition="stream_k", sms=2)
    with pytest.raises(PlanError):
        gemm.run(a, b, plan=replace(plan, kernel=replace(plan.kernel, dtype="bfloat16")))


@pytest.mark.parametrize(
    "change",
    [
        *({"grid": value} for value in (0, -1, 2.5)),
        *({"dp_tiles": value} for value in (0, -5)),
        *({name: 0} for name in ("iters_per_tile", "tiles_m", "sk_units", "splits", "raster_swizzle")),
        *({"m": 7}, {"sk_units": 10**9}, {"splits": 3}, {"reduction_ctas": 4}),
    ],
    ids=str,
)
def test_an_altered_plan_is_refused(change: dict[str, Any]) -> None:
    gemm = Gemm("float16", device="h200")
    a, b = operands(200, 300, 400)
    plan = gemm.plan(200, 300, 400, decomposition="stream_k", sms=3)
    with pytest.raises(PlanError):
        gemm.run(a, b, plan=replace(plan, **change))


def test_every_plan_of_the_planner_holds_together() -> None:
    for gemm in (Gemm("float16", device="h200"), Gemm("float64", device="h200"), Gemm("float16", device="a100")):
        for m, n, k in ((1, 1, 1), (200, 300, 4000), (5000, 3000, 77)):
            gemm.plan(m, n, k).check()
            gemm.plan(m, n, k, splits=5).check()
            gemm.plan(m, n, k, splits=1).check()
            gemm.plan(m, n, k, decomposition="stream_k", sms=7).check()
            gemm.plan(m, n, k, decomposition="data_parallel").check()


def test_the_cpu_is_mentioned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_module, "_said", set())
    a, b = operands(4, 4, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            Gemm("float16").run(a, b)
    assert [str(warning.message).startswith("cutlass_sk: CPU tensors are multiplied") for warning in caught] == [True]
    assert caught[0].filename == __file__  # it points at the caller


def test_debug_prints_each_new_plan_once(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUTLASS_SK_DEBUG", "1")
    gemm = Gemm("float16", device="h200")
    a, b = operands(9, 8, 7)
    for _ in range(2):
        gemm.run(a, b)
    assert capfd.readouterr().err.count("9 x 8 x 7 on h200: sm90a_") == 1


def test_threads_share_a_gemm() -> None:
    gemm = Gemm("float16", device="h200")
    shapes = [(m, n, k) for m in (33, 150) for n in (64, 200) for k in (17, 300)]
    expected = {shape: product_of(*operands(*shape)) for shape in shapes}
    started, wrong = threading.Barrier(8), list[str]()

    def work(first: int) -> None:
        started.wait(30)
        for shape in shapes[first:] + shapes[:first]:
            result = gemm.run(*operands(*shape)).double()
            if not torch.equal(result, expected[shape]):
                wrong.append(f"{shape} in thread {first}")

    threads = [threading.Thread(target=work, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads) and not wrong


def test_errors_leave_c_as_it_was() -> None:
    gemm = Gemm("float16")
    a, b = operands(4, 5, 6)
    c = torch.full((4, 5), NAN, dtype=torch.float16)
    c[0, 0] = 3
    bits = c.view(torch.int16).clone()
    for bad in ({"alpha": "x"}, {"beta": None}, {"plan": 3}):
        with pytest.raises((OperandError, PlanError)):
            gemm.run(a, b, c, **bad)  # type: ignore[arg-type]
    assert torch.equal(c.view(torch.int16), bits)


def test_planning_again_is_fast() -> None:
    gemm = Gemm("float16", device="h200")
    gemm.plan(1000, 1000, 1000)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        gemm.plan(1000, 1000, 1000)
        times.append(time.perf_counter() - start)
    assert min(times) < 100e-6
