"""What callers bring, on the GPU: views, unaligned memory, windows of larger tensors, empty sizes, errors that leave no trace."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from problems import KINDS, gemm_of, operands, poisoned

from cutlass_sk import Gemm, KernelSpec
from cutlass_sk.errors import DtypeError, LaunchError, OperandError, PlanError
from cutlass_sk.generator import abi
from cutlass_sk.kernel import Kernel, Prepared


@pytest.mark.parametrize("spec", KINDS, ids=str)
def test_aligned_transposed_views_are_not_copied(spec: KernelSpec) -> None:
    gemm = gemm_of(spec)
    a, b = operands(spec.with_layouts("n", "n"), 512, 384, 1024)
    c = poisoned(spec, 512, 384)
    gemm.run(a, b, c)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    gemm.run(a, b, c, plan=gemm.plan(512, 384, 1024, decomposition="data_parallel"))
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.parametrize("spec", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(131, 77, 203), (1, 1, 1), (7, 1, 65), (1, 9, 130), (64, 33, 1)], ids=str)
def test_any_address_and_any_stride(spec: KernelSpec, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    gemm = gemm_of(spec)
    big_a = torch.randint(-1, 2, (3 * m + 2, 2 * k + 3), device="cuda").to(gemm.dtype)
    big_b = torch.randint(-1, 2, (2 * k + 3, 3 * n + 2), device="cuda").to(gemm.dtype)
    views_a = [
        big_a[1 : m + 1, 1 : k + 1],
        big_a[: 3 * m : 3, 1 : 2 * k : 2],
        big_a[:1, :k].expand(m, k),
        big_a[:m, :k].t().contiguous().t(),
    ]
    views_b = [
        big_b[1 : k + 1, 1 : n + 1],
        big_b[1 : 2 * k : 2, : 3 * n : 3],
        big_b[:k, :1].expand(k, n),
        big_b[:k, :n].t().contiguous().t(),
    ]
    for a, b in zip(views_a, views_b, strict=True):
        exact = (a.double() @ b.double()).to(gemm.out_dtype)
        for options in ({}, {"splits": 3}):
            c = gemm.run(a, b, poisoned(spec, m, n), plan=gemm.plan(m, n, k, **options))
            assert torch.equal(c, exact), (a.stride(), b.stride(), options)


@pytest.mark.parametrize("spec", KINDS, ids=str)
@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("offset", [0, 8, 3])
def test_c_as_a_window_leaves_the_bytes_around_it_alone(spec: KernelSpec, column_major: bool, offset: int) -> None:
    m, n, k = 200, 136, 264
    gemm = gemm_of(spec)
    a, b = operands(spec, m, n, k, exact=True)
    frame = torch.full((320, 320), 7.0, device="cuda", dtype=gemm.out_dtype)
    frame = frame.t() if column_major else frame
    before = frame.clone()
    window = frame[offset : offset + m, offset : offset + n]
    for beta in (0.0, 1.0):
        window.fill_(float("nan") if beta == 0.0 else 3.0)
        result = gemm.run(a, b, window, beta=beta)
        assert result is window
        exact = (a.double() @ b.double() + (3.0 if beta else 0.0)).to(gemm.out_dtype)
        assert torch.equal(window, exact)
    window.fill_(7.0)
    assert torch.equal(frame, before)


@pytest.mark.parametrize("spec", KINDS, ids=str)
def test_empty_sizes_and_zero_factors(spec: KernelSpec) -> None:
    gemm = gemm_of(spec)
    for m, n, k in ((0, 8, 8), (8, 0, 8), (0, 0, 0)):
        a, b = operands(spec, m, n, k)
        assert gemm.run(a, b).shape == (m, n)
    a, b = operands(spec, 16, 24, 0)
    assert torch.equal(gemm.run(a, b), torch.zeros(16, 24, device="cuda", dtype=gemm.out_dtype))
    c = torch.full((16, 24), 3.0, device="cuda", dtype=gemm.out_dtype)
    assert bool((gemm.run(a, b, c, beta=2.0) == 6.0).all())
    a, b = (torch.full_like(x, float("nan")) for x in operands(spec, 16, 24, 32))
    assert bool((gemm.run(a, b, c, alpha=0.0, beta=0.5) == 3.0).all())
    torch.cuda.synchronize()


def test_errors_leave_c_and_the_context_alone() -> None:
    gemm = Gemm("float16", kernels=1)
    a, b = torch.randn(64, 64, device="cuda").half(), torch.randn(64, 64, device="cuda").half()
    c = torch.full((64, 64), 5.0, device="cuda").half()
    wrong = [
        (lambda: gemm.run(a[:, :32], b, c), OperandError),
        (lambda: gemm.run(a.float(), b, c), DtypeError),
        (lambda: gemm.run(a, b.cpu(), c), OperandError),
        (lambda: gemm.run(a, b, a), OperandError),
        (lambda: gemm.run(a, b, c, plan=gemm.plan(64, 64, 128)), PlanError),
        (lambda: gemm.run(a, b, c, stream="0"), OperandError),
        (lambda: gemm.run(a, b, c, alpha=torch.ones((), device="cuda")), OperandError),
        (lambda: gemm.plan(64, 64, 64, splits=0), PlanError),
    ]
    for call, error in wrong:
        with pytest.raises(error):
            call()
    torch.cuda.synchronize()
    assert bool((c == 5.0).all())
    assert torch.equal(gemm.run(a, b), gemm.run(a, b))


def test_a_failing_launch_names_status_and_cuda_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = Gemm("float16", kernels=1)
    a, b = torch.randn(64, 64, device="cuda").half(), torch.randn(64, 64, device="cuda").half()
    prepare = Kernel.prepare

    def on_no_device(self: Kernel, request: abi.LaunchStruct) -> Prepared:
        request.device = 63
        return prepare(self, request)

    monkeypatch.setattr(Kernel, "prepare", on_no_device)
    with pytest.raises(LaunchError, match=r"CUTLASS_SK_CUDA_ERROR.*cudaErrorInvalidDevice"):
        gemm.run(a, b)
    monkeypatch.undo()
    torch.cuda.synchronize()
    assert torch.allclose(gemm.run(a, b).float(), (a.float() @ b.float()), atol=0.1)


def test_a_repeated_call_refuses_what_the_first_one_does() -> None:
    """A call that was made before skips the checks; what looks like it but is something else must not get through."""
    gemm = Gemm("float16", kernels=1)
    a, b = torch.randn(64, 64, device="cuda").half(), torch.randn(64, 64, device="cuda").half()
    c = torch.empty(64, 64, device="cuda").half()
    for _ in range(3):
        gemm.run(a, b, c)
        gemm.run(a, b)
    again = torch.equal(gemm.run(a, b), c)
    assert again
    gone = a.clone()
    gone.untyped_storage().resize_(0)
    grown = torch.zeros(64 * 64 * 2, device="cuda").half()
    for x, y, z in (
        (a.to_sparse(), b, c),
        (a.to_sparse_csr(), b, c),
        (torch.nested.nested_tensor([a]), b, c),
        (gone, b, c),
        (a.clone().requires_grad_(), b, c),
        (a, b, a),
        (a, b, b),
        (grown[: 64 * 64].view(64, 64), b, grown[32 : 32 + 64 * 64].view(64, 64)),
        (a, b, c.float()),
        (a, b, c.expand(2, 64, 64)[0].t()[:1].expand(64, 64)),
    ):
        with pytest.raises((OperandError, DtypeError)):
            gemm.run(x, y, z)
    with pytest.raises(OperandError):
        gemm.run(a, b, beta=1.0)
    with pytest.raises(OperandError):
        gemm.run(a, b, c, stream=2)
    misaligned = grown[4 : 4 + 64 * 64].view(64, 64).copy_(a)
    assert torch.allclose(gemm.run(misaligned, b).float(), c.float(), atol=0.1)
    assert torch.equal(gemm.run(a.t().contiguous().t(), b), c)


def test_an_altered_plan_is_refused_before_it_writes() -> None:
    gemm = Gemm("float16", kernels=1)
    a, b = torch.randn(1000, 4000, device="cuda").half(), torch.randn(4000, 1000, device="cuda").half()
    plan = gemm.plan(1000, 1000, 4000, splits=4)
    for change in ({"partials_bytes": 512}, {"barrier_bytes": 4}, {"grid": 0}, {"sk_units": 3}, {"promotion": 64}):
        with pytest.raises(PlanError):
            gemm.run(a, b, plan=replace(plan, **change))
    torch.cuda.synchronize()


def test_streams_given_in_other_ways() -> None:
    gemm, stream = Gemm("float16", kernels=1), torch.cuda.Stream()
    a, b = torch.randn(256, 512, device="cuda").half(), torch.randn(512, 128, device="cuda").half()
    torch.cuda.synchronize()
    expected = gemm.run(a, b)
    by_object = gemm.run(a, b, stream=stream)
    by_handle = gemm.run(a, b, stream=stream.cuda_stream)
    torch.cuda.synchronize()
    assert torch.equal(by_object, expected)
    assert torch.equal(by_handle, expected)


def test_in_place_writes_bump_the_version_counter() -> None:
    gemm = Gemm("float16", kernels=1)
    a, c = torch.randn(64, 64, device="cuda").half(), torch.zeros(64, 64, device="cuda").half()
    version = c._version
    gemm.run(a, a.clone(), c)
    assert c._version > version
