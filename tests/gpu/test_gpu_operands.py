"""Any operand a BLAS user may bring, on the GPU: the value, or an error that leaves no trace."""

from __future__ import annotations

import re
from dataclasses import replace
from math import nan

import pytest
import torch
from operand_table import DECOMPOSITIONS, DTYPES, alignments, table, with_plan
from problems import KINDS, gemm_of, operands, poisoned
from wrong_operands import WRONG, good

from cutlass_sk import Gemm, KernelSpec, packing
from cutlass_sk import gemm as gemm_module
from cutlass_sk.ensemble.operand_cases import build_kernels, failure, lost
from cutlass_sk.errors import DtypeError, LaunchError, OperandError, PlanError
from cutlass_sk.generator import abi
from cutlass_sk.generator.catalog import GENERATIONS
from cutlass_sk.generator.spec import Generation
from cutlass_sk.kernel import Kernel, Prepared


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    build_kernels()


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


@pytest.mark.parametrize("decomposition", DECOMPOSITIONS)
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(("dtype", "out_dtype"), DTYPES)
def test_whatever_is_brought_gives_the_value(dtype: str, out_dtype: str, generation: Generation, decomposition: str) -> None:
    """Factors, strides, windows, NaN: ``operand_table`` says what. With poison around a and b, and canaries around c."""
    wrong = {}
    for name, case in table(dtype, out_dtype, generation):
        if found := failure(with_plan(case, decomposition), "cuda"):
            wrong[name] = found
            assert not lost(), wrong
    assert not wrong


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(("dtype", "out_dtype"), DTYPES)
def test_any_address_and_leading_dimension(dtype: str, out_dtype: str, generation: Generation) -> None:
    wrong = {}
    for name, case in alignments(dtype, out_dtype, generation):
        if found := failure(case, "cuda"):
            wrong[name] = found
            assert not lost(), wrong
    assert not wrong


def test_empty_sizes_launch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm, like = Gemm("float16"), torch.zeros(0, device="cuda").half()

    def launched(*given: object, **kept: object) -> None:
        raise AssertionError("something was launched")

    for module, name in ((gemm_module, "launch"), (gemm_module, "add_scaled"), (packing, "copy"), (Kernel, "enqueue")):
        monkeypatch.setattr(module, name, launched)
    factor = torch.ones((), device="cuda")
    for m, n, k in ((0, 8, 8), (8, 0, 8), (0, 0, 0), (0, 3, 0)):
        for alpha, beta in ((1.0, 0.0), (2.0, 3.0), (factor, factor)):
            c = like.new_zeros(m, n)
            assert gemm.run(like.new_zeros(m, k), like.new_zeros(k, n), c, alpha=alpha, beta=beta) is c
    torch.cuda.synchronize()


# alpha and beta on the GPU.


@pytest.mark.parametrize("spec", KINDS, ids=str)
def test_factors_on_the_gpu_are_not_waited_for(spec: KernelSpec) -> None:
    gemm = gemm_of(spec)
    a, b = operands(spec, 136, 72, 200, exact=True)
    odd_a = torch.zeros(136, 203, device="cuda", dtype=gemm.dtype)[:, 1:201].copy_(a)
    old = torch.randint(-4, 5, (136, 72), device="cuda").to(gemm.out_dtype)
    cases = [(alpha, beta) for alpha in (0.0, 0.5, nan) for beta in (0.0, -2.0, nan)]
    results = []
    for warm in (True, False):
        for alpha, beta in cases:
            x, y = (torch.tensor(value, device="cuda") for value in (alpha, beta))
            for given in ((x, y), (x, beta), (alpha, y)):
                c = old.clone()
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("default" if warm else "error")
                try:
                    gemm.run(odd_a, b, c, alpha=given[0], beta=given[1])
                finally:
                    torch.cuda.set_sync_debug_mode("default")
                results.append((c, alpha, beta))
    for c, alpha, beta in results:
        product = alpha * (a.double() @ b.double()) if alpha else torch.zeros_like(c, dtype=torch.float64)
        exact = (product + beta * old.double() if beta else product).to(c.dtype)
        assert torch.equal(c.isnan(), exact.isnan()) and torch.equal(c.nan_to_num(), exact.nan_to_num()), (alpha, beta)


def test_factors_on_the_gpu_keep_their_value_until_they_are_used() -> None:
    """In a graph: each replay reads what they are then."""
    gemm = Gemm("float16", kernels=1)
    a, b = (torch.randint(-1, 2, shape, device="cuda").half() for shape in ((64, 128), (128, 96)))
    c, alpha, beta = torch.ones(64, 96, device="cuda").half(), torch.ones((), device="cuda"), torch.zeros((), device="cuda")
    gemm.run(a, b, c.clone(), alpha=alpha, beta=beta)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm.run(a, b, c, alpha=alpha, beta=beta)
    for x, y in ((2.0, 0.0), (-0.5, 1.0), (0.0, nan), (nan, 0.0)):
        old = c.fill_(3.0).double()
        alpha.fill_(x), beta.fill_(y)
        graph.replay()
        product = x * (a.double() @ b.double()) if x else torch.zeros_like(old)
        expected = product + y * old if y else product
        assert torch.equal(c.isnan(), expected.isnan()) and torch.equal(c.nan_to_num(), expected.nan_to_num().half())


# Aliasing and refusals.


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("place", ["the same", "its last byte", "one row on", "transposed"])
def test_a_c_that_overlaps_an_operand_is_refused_with_the_ranges(place: str, name: str) -> None:
    gemm, memory = Gemm("float16", kernels=1), torch.randn(64 * 64 * 2, device="cuda").half()
    shared, other = memory[: 64 * 64].view(64, 64), torch.randn(64, 64, device="cuda").half()
    first = {"the same": 0, "its last byte": 64 * 64 - 1, "one row on": 64, "transposed": 0}[place]
    c = memory[first : first + 64 * 64].view(64, 64)
    c = c.t() if place == "transposed" else c
    operand = {"a": (shared, other), "b": (other, shared)}[name]
    gemm.run(*operand, torch.empty_like(other))  # a call of this signature is known
    before = memory.clone()
    ranges = " is bytes ".join(("c", f"[{c.data_ptr():#x}, {c.data_ptr() + 8192:#x}), {name}", f"[{shared.data_ptr():#x}, "))
    with pytest.raises(OperandError, match=re.escape(f"c overlaps {name}: {ranges}")):
        gemm.run(*operand, c)
    assert torch.equal(memory, before)


def test_a_c_beside_an_operand_is_written() -> None:
    gemm = Gemm("float16", kernels=1)
    both = torch.randint(-1, 2, (64, 128), device="cuda").half()
    b = torch.randint(-1, 2, (64, 64), device="cuda").half()
    for a, c in ((both[:, :64], both[:, 64:]), (both[:, ::2], both[:, 1::2])):
        expected, kept = (a.double() @ b.double()).half(), a.clone()
        assert torch.equal(gemm.run(a, b, c), expected) and torch.equal(a, kept)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_operand_is_refused_and_c_untouched(case: str) -> None:
    changes, error, message = WRONG[case]
    with torch.device("cuda"):
        given = good() | changes()
    target = given["c"]
    watched = isinstance(target, torch.Tensor) and target.device.type == "cuda"
    before = target.detach().clone() if watched else None
    with pytest.raises(error, match=re.escape(message)):
        Gemm("float16", kernels=1).run(given["a"], given["b"], target, beta=1.0)
    torch.cuda.synchronize()
    if watched:
        assert torch.equal(target.detach(), before)


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
        (lambda: gemm.run(a, b.cpu(), c.cpu()), OperandError),
        (lambda: gemm.run(a, b, c.cpu()), OperandError),
        (lambda: gemm.run(a, b, c, alpha=torch.ones(1, device="cuda")), OperandError),
        (lambda: gemm.run(a, b, c, beta=torch.ones((), device="cuda", dtype=torch.complex64)), OperandError),
        (lambda: gemm.run(a, b, c, beta=torch.ones((), device="cuda", requires_grad=True)), OperandError),
        (lambda: gemm.run(a.cpu(), b.cpu(), c.cpu(), beta=torch.ones((), device="cuda")), OperandError),
        (lambda: gemm.run(a, b, beta=torch.ones((), device="cuda")), OperandError),
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
