"""Random inputs against the exact product, element for element, with cuBLAS as the yardstick."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from problems import KERNELS, KINDS, gemm_of, log_uniform_shapes, operands, poisoned

from cutlass_sk import Gemm, KernelSpec
from cutlass_sk.ensemble.accuracy import max_error, reference, rounding
from cutlass_sk.errors import DtypeError

SHAPES = log_uniform_shapes(200, 1, 8192, seed=2301)
LONG_K = 512
"""From here on it is the chain of sums that makes an error, and not the rounding of a short one."""


def cublas(a: torch.Tensor, b: torch.Tensor, out: torch.dtype) -> torch.Tensor:
    return torch.mm(a, b) if a.dtype == out else torch.mm(a, b, out_dtype=out)


@pytest.fixture(autouse=True)
def sums_in_float32() -> Iterator[None]:
    """torch lets cuBLAS add split-k partials in 16 bits unless told otherwise; ours never do, nor may the yardstick."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False
    yield
    matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction = before


def bound(exact: torch.Tensor, yardstick: torch.Tensor) -> float:
    """Twice cuBLAS's largest element error, and one rounding: a unit in the last place of the largest element."""
    return 2 * max_error(yardstick, exact) + 2 * rounding(exact, yardstick.dtype)


@pytest.mark.parametrize("spec", KERNELS, ids=str)
def test_every_decomposition_is_as_accurate_as_cublas(spec: KernelSpec) -> None:
    m, n, k = 1096, 584, 1240
    gemm = gemm_of(spec)
    a, b = operands(spec, m, n, k)
    exact = reference(a, b)
    limit = bound(exact, cublas(a, b, gemm.out_dtype))
    for options in (
        {},
        {"decomposition": "data_parallel"},
        {"splits": 2},
        {"splits": 5},
        {"splits": 16},
        {"decomposition": "stream_k", "sms": 50},
        {"decomposition": "stream_k", "sk_tiles": 10**6},
        {"splits": 8, "reduction_mode": "nondeterministic"},
    ):
        plan = gemm.plan(m, n, k, **options)
        error = max_error(gemm.run(a, b, poisoned(spec, m, n), plan=plan), exact)
        assert error <= limit, f"largest element error {error:.3e} exceeds {limit:.3e} under {plan}"


@pytest.mark.parametrize("spec", KINDS, ids=str)
@pytest.mark.timeout(300, method="thread", func_only=True)
def test_200_log_uniform_shapes(spec: KernelSpec) -> None:
    """Exact inputs: the exact product. Random ones: within twice cuBLAS's own error, where the two sum in the same way.

    float64 kernels, and 2.x ones with float32 outputs, sum a tile's k in one chain. cuBLAS may cut that chain (it splits k, or
    leaves the tensor cores where an output is a vector), and is then more accurate on that shape. There the largest error for each
    step of a long chain, over the whole corpus, must be within twice cuBLAS's; few shapes may be beyond the bound, and none four
    times so.
    """
    gemm = gemm_of(spec)
    worst, worst_cublas, furthest, beyond = 0.0, 0.0, 0.0, []
    for m, n, k in SHAPES:
        a, b = operands(spec, m, n, k, exact=True)
        assert torch.equal(gemm.run(a, b, poisoned(spec, m, n)), (a.double() @ b.double()).to(gemm.out_dtype)), f"m={m} n={n} k={k}"
        a, b = operands(spec, m, n, k)
        exact = reference(a, b)
        yardstick = cublas(a, b, gemm.out_dtype)
        error = max_error(gemm.run(a, b, poisoned(spec, m, n)), exact)
        limit = bound(exact, yardstick)
        if not error <= limit:
            beyond.append(f"m={m} n={n} k={k}: {error:.3e} > {limit:.3e} under {gemm.plan(m, n, k)}")
            furthest = max(furthest, error / limit)
        if k >= LONG_K:
            worst, worst_cublas = max(worst, error / k), max(worst_cublas, max_error(yardstick, exact) / k)
    print(f"{spec}: {len(beyond)} of {len(SHAPES)} shapes beyond twice cuBLAS's error; error / k {worst:.3e} ({worst_cublas:.3e})")
    one_chain = spec.dtype == "float64" or (spec.api == "2x" and spec.out_dtype == "float32")
    if not one_chain:
        assert not beyond, "\n".join(beyond)
    assert worst <= 2 * worst_cublas
    assert len(beyond) <= len(SHAPES) // 20 and furthest <= 4, "\n".join(beyond)


@pytest.mark.parametrize("spec", KINDS, ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (-0.5, 0.0), (2.0, -1.5), (0.0, 2.0), (1.0, float("nan"))])
def test_alpha_and_beta(spec: KernelSpec, alpha: float, beta: float) -> None:
    m, n, k = 520, 392, 1000
    gemm = gemm_of(spec)
    a, b = operands(spec, m, n, k)
    old = torch.randn(m, n, device="cuda", dtype=gemm.out_dtype)
    exact = alpha * reference(a, b) + beta * old.double()
    for options in ({}, {"decomposition": "stream_k"}, {"splits": 5}):
        c = gemm.run(a, b, old.clone(), alpha=alpha, beta=beta, plan=gemm.plan(m, n, k, **options))
        if beta != beta:
            assert bool(c.isnan().all())
            continue
        scale = max(1.0, float(exact.abs().max()))
        tolerance = scale * (torch.finfo(gemm.out_dtype).eps + (1e-13 if spec.dtype == "float64" else 1e-6) * k**0.5)
        assert max_error(c, exact) <= tolerance


@pytest.mark.parametrize("spec", KINDS, ids=str)
def test_1000_repeats_are_bit_equal(spec: KernelSpec) -> None:
    m, n, k = 1096, 584, 4104
    gemm = gemm_of(spec)
    a, b = operands(spec, m, n, k)
    for plan in (gemm.plan(m, n, k, decomposition="stream_k"), gemm.plan(m, n, k, splits=16)):
        first = gemm.run(a, b, poisoned(spec, m, n), plan=plan)
        c, differing = torch.empty_like(first), torch.zeros((), device="cuda", dtype=torch.int64)
        for _ in range(500):
            c.fill_(float("nan"))
            differing += (gemm.run(a, b, c, plan=plan) != first).sum()
        assert int(differing) == 0


def test_nan_and_infinity_travel_as_ieee_says() -> None:
    gemm = Gemm("float16", kernels=1)
    a, b = torch.randn(200, 136, device="cuda").half(), torch.randn(136, 264, device="cuda").half()
    a[3, 5], b[7, 11] = float("nan"), float("inf")
    expected = a.double() @ b.double()
    for options in ({}, {"splits": 3}):
        c = gemm.run(a, b, plan=gemm.plan(200, 264, 136, **options))
        assert torch.equal(c.isnan(), expected.isnan())
        assert torch.equal(c.isinf(), expected.isinf())


SPLIT = ({"decomposition": "data_parallel"}, {"splits": 2}, {"splits": 7}, {"decomposition": "stream_k", "sms": 40})


@pytest.mark.parametrize("spec", KINDS, ids=str)
def test_partial_sums_are_not_rounded_to_the_output(spec: KernelSpec) -> None:
    """Half of k adds up to 2^19, beyond float16, and the other half takes all but 1 of it away, which bfloat16 would lose."""
    m, n, k = 200, 136, 4096
    gemm = gemm_of(spec)
    a = torch.full((m, k), 16.0, device="cuda", dtype=gemm.dtype)
    b = torch.full((k, n), 16.0, device="cuda", dtype=gemm.dtype)
    b[k // 2 :] = -16.0
    a[:, 0], b[0] = 17.0, 15.0  # 255 for 256
    for options in SPLIT:
        c = gemm.run(a, b, poisoned(spec, m, n), plan=gemm.plan(m, n, k, **options))
        assert bool((c == -1.0).all()), options
    infinite = gemm.run(a, b.abs())
    assert torch.equal(infinite.double(), (a.double() @ b.abs().double()).to(gemm.out_dtype).double())


@pytest.mark.parametrize("spec", KINDS, ids=str)
def test_no_global_flag_of_torch_changes_a_result(spec: KernelSpec) -> None:
    m, n, k = 200, 136, 4096
    gemm, matmul = gemm_of(spec), torch.backends.cuda.matmul
    a, b = operands(spec, m, n, k)
    odd = torch.randn(m, k + 1, device="cuda").to(gemm.dtype)[:, 1:]
    plans = [None, *(gemm.plan(m, n, k, **options) for options in SPLIT)]
    expected = [gemm.run(x, b, plan=plan) for x in (a, odd) for plan in plans]
    names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = {name: getattr(matmul, name) for name in names}
    try:
        for value in (True, False):
            for name in names:
                setattr(matmul, name, value)
            torch.use_deterministic_algorithms(value)
            with torch.autocast("cuda", enabled=value), torch.device("cpu"):
                again = [gemm.run(x, b, plan=plan) for x in (a, odd) for plan in plans]
            assert all(torch.equal(x, y) for x, y in zip(again, expected, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)
        for name, value in before.items():
            setattr(matmul, name, value)


def test_float32_inputs_are_refused_and_never_rounded() -> None:
    x = torch.randn(64, 64, device="cuda")
    with pytest.raises(DtypeError, match="float32"):
        Gemm("float32")
    with pytest.raises(DtypeError, match=r"a is torch\.float32, expected torch\.float16"):
        Gemm("float16", kernels=1).run(x, x)
