"""alpha and beta: numbers, 0-d tensors, and those whose value the host must not ask for."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch

from cutlass_sk import Gemm
from cutlass_sk.configuration import of_sums
from cutlass_sk.errors import OperandError, PlanError
from cutlass_sk.factors import Factor, add_scaled, factor
from cutlass_sk.generator.catalog import families

pytestmark = pytest.mark.filterwarnings("ignore:cutlass_sk. CPU tensors")
CPU, META, HALF = torch.device("cpu"), torch.device("meta"), torch.float16


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.ones(2, 3, dtype=torch.float16), torch.ones(3, 4, dtype=torch.float16), torch.ones(2, 4, dtype=torch.float16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64, torch.bool])
def test_a_tensor_on_the_cpu_is_its_number(dtype: torch.dtype) -> None:
    a, b, c = operands()
    one = torch.tensor(1, dtype=dtype)
    assert factor("alpha", one, CPU, HALF) == 1.0 and type(factor("alpha", one, META, HALF)) is float
    assert torch.equal(Gemm("float16").run(a, b, c, alpha=one, beta=one), torch.full((2, 4), 4.0).half())
    assert Gemm("float16").run(a, b, c, beta=torch.tensor(nan)).isnan().all()


def test_a_tensor_beside_the_operands_is_not_looked_at() -> None:
    value = torch.empty((), device="meta")  # has no number, and stands for a GPU's
    assert factor("alpha", value, META, HALF) is value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: torch.ones(1), r"alpha must be a real number; it is a tensor of shape \(1,\)"),
        (lambda: torch.tensor(1j), r"alpha must be a real number; .*complex"),
        (lambda: torch.tensor(1.0, device="meta"), r"alpha lies on meta; pass a Python number"),
        (lambda: torch.tensor(1.0, requires_grad=True), r"alpha requires grad, which run\(\) does not record"),
        (lambda: "1", r"alpha='1' must be a real number"),
    ],
)
def test_what_is_no_factor_is_refused_and_c_untouched(value: Callable[[], Any], message: str) -> None:
    a, b, c = operands()
    with pytest.raises(OperandError, match=message):
        Gemm("float16").run(a, b, c, alpha=value())
    assert torch.equal(c, operands()[2])


def test_the_gradient_of_a_factor_may_be_done_without() -> None:
    a, b, _ = operands()
    with torch.no_grad():
        assert torch.equal(Gemm("float16").run(a, b, alpha=torch.tensor(2.0, requires_grad=True)), torch.full((2, 4), 6.0).half())


def test_a_factor_under_vmap_is_refused() -> None:
    a, b, _ = operands()
    with pytest.raises(OperandError, match=r"alpha is wrapped by torch\.func"):
        torch.func.vmap(lambda alpha: Gemm("float16").run(a, b, alpha=alpha))(torch.ones(3))


@pytest.mark.parametrize("as_tensors", [False, True])
@pytest.mark.parametrize("alpha", [0.0, -0.0, 1.0, 0.25, -2.0, inf, nan])
@pytest.mark.parametrize("beta", [0.0, -0.0, 1.0, -0.5, inf, nan])
def test_products_are_scaled_as_blas_says(alpha: float, beta: float, as_tensors: bool) -> None:
    """0 takes nothing from what it scales; everything else is IEEE's."""
    product = torch.tensor([[1.0, -3.0, nan, 2e5]])
    c = torch.tensor([[2.0, nan, 4.0, 0.0]], dtype=torch.float16)
    scaled = torch.zeros(1, 4) if alpha == 0 else alpha * product
    expected = (scaled if beta == 0 else scaled + beta * c.float()).half()
    factors: list[Factor] = [torch.tensor(x, dtype=torch.float64) if as_tensors else x for x in (alpha, beta)]
    add_scaled(c, product.clone(), *factors)
    assert torch.equal(c.isnan(), expected.isnan()) and torch.equal(c.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("splits", [None, 3])
@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
def test_a_product_is_scaled_beyond_the_range_of_c(out_dtype: str, splits: int | None) -> None:
    """As on a GPU, through the reference: sums of 90,000 fit into no float16, a tenth of them does."""
    gemm = Gemm("float16", out_dtype=out_dtype, device="h200")
    a, b = torch.full((5, 100), 30.0).half(), torch.full((100, 7), 30.0).half()
    c = torch.full((5, 7), nan, dtype=gemm.out_dtype)
    plan = None if splits is None else gemm.plan(5, 7, 100, splits=splits)
    gemm._run_then_scale(a, b, c, torch.tensor(0.125), torch.tensor(0.0), plan)
    assert (c == 11250).all()
    gemm._run_then_scale(a, b, c, torch.tensor(0.0), 2.0, plan)
    assert (c == 22500).all()
    gemm._run_then_scale(a[:, :0], b[:0], c, torch.tensor(nan), torch.tensor(0.5), None)
    assert (c == 11250).all()  # nothing is scaled by alpha where k is 0


def test_a_plan_for_another_problem_is_refused_with_factors_on_the_gpu() -> None:
    a, b, c = operands()
    gemm = Gemm("float16", device="h200")
    with pytest.raises(PlanError, match="the plan is for m=9"):
        gemm._run_then_scale(a, b, c, torch.tensor(1.0), 0.0, gemm.plan(9, 4, 3))
    assert torch.equal(c, operands()[2])


def test_sums_are_kept_by_kernels_of_the_same_tiles() -> None:
    for dtype in ("float16", "bfloat16"):
        for generation in ("sm90a", "sm80"):
            kept = tuple(map(of_sums, families(dtype, dtype, generation)))
            assert kept == families(dtype, "float32", generation)
    for out_dtype in ("float32", "float64"):
        gemm = Gemm("float16" if out_dtype == "float32" else "float64", out_dtype=out_dtype)
        assert gemm._of_sums is gemm
    one = Gemm("float16", kernels=["sm90a_f16_f16_64x128x64_n32to256_4x1_pingpong_tt"], device="h200")
    assert one._of_sums.kernels == (of_sums(one.spec),) and one._of_sums.spec.tile == one.spec.tile


def test_a_beta_without_c_is_refused_whatever_it_is() -> None:
    a, b, _ = operands()
    with pytest.raises(OperandError, match=r"beta=nan scales c, and no c is given"):
        Gemm("float16").run(a, b, beta=torch.tensor(nan))
