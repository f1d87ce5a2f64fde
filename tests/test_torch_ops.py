"""torch.ops.cutlass_sk: what torch.compile, export, autograd, autocast and torch.func see, on CPU tensors."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.library import opcheck

import cutlass_sk
from cutlass_sk import Gemm, addmm, linear, matmul
from cutlass_sk.errors import DtypeError, OperandError

pytestmark = pytest.mark.filterwarnings("ignore:cutlass_sk. CPU tensors", "ignore::DeprecationWarning")
OPS = torch.ops.cutlass_sk


def normal(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = False) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)
    return made.to(dtype).requires_grad_(grad)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def samples() -> list[tuple[Any, tuple[Any, ...]]]:
    a, b, c = normal(5, 7, grad=True), normal(7, 3, grad=True), normal(3, grad=True)
    half = normal(5, 7, dtype=torch.float16, grad=True), normal(7, 3, dtype=torch.float16, grad=True)
    batch = normal(2, 5, 7, grad=True), normal(2, 7, 3, grad=True)
    plain = a.detach(), b.detach()
    return [
        *((OPS.mm.default, (a, b)), (OPS.mm.default, (a, b, torch.float64, 0.5)), (OPS.mm.default, (*half, torch.float32))),
        *((OPS.mm.default, (a, normal(3, 7, grad=True).t())), (OPS.mm.default, plain), (OPS.mm.default, (a, plain[1]))),
        *((OPS.addmm.default, (c, a, b)), (OPS.addmm.default, (c, *half, 0.5, 2.0, torch.float32))),
        *((OPS.addmm.default, (normal(5, 1, grad=True), a, b, -1.0)), (OPS.bmm.default, batch)),
        *(
            (OPS.mm_out.default, (*plain, torch.empty(5, 3).double())),
            (OPS.mm_out.default, (*plain, torch.empty(3, 5).double().t())),
        ),
        (OPS.addmm_out.default, (c.detach(), *plain, torch.zeros(5, 3).double(), 0.5, 2.0)),
    ]


@pytest.mark.parametrize("index", range(len(samples())))
def test_opcheck(index: int) -> None:
    operator, arguments = samples()[index]
    arguments = tuple(x.double() if isinstance(x, torch.Tensor) and x.dtype == torch.float64 else x for x in arguments)
    assert set(opcheck(operator, arguments).values()) == {"SUCCESS"}


GRADIENTS: list[tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = [
    (matmul, [(5, 7), (7, 3)]),
    (matmul, [(7,), (7,)]),
    (matmul, [(7,), (7, 3)]),
    (matmul, [(2, 3, 4), (4,)]),
    (matmul, [(2, 3, 4), (4, 2)]),
    (matmul, [(2, 3, 4), (2, 4, 2)]),
    (matmul, [(3, 1, 2, 4), (2, 4, 2)]),
    (lambda a, b: matmul(a, b.t()), [(5, 7), (3, 7)]),
    (lambda a, b: matmul(a.t(), b), [(7, 5), (7, 3)]),
    (lambda a, b, bias: matmul(a, b, bias=bias), [(2, 3, 4), (4, 2), (2,)]),
    (lambda a, b, bias: matmul(a, b, bias=bias), [(2, 3, 4), (2, 4, 2), (3, 1)]),
    (lambda c, a, b: addmm(c, a, b, beta=0.5, alpha=-2.0), [(3, 1), (3, 4), (4, 2)]),
    (lambda c, a, b: addmm(c, a, b, beta=0), [(3, 2), (3, 4), (4, 2)]),
    (linear, [(2, 3, 4), (5, 4), (5,)]),
]


@pytest.mark.parametrize("index", range(len(GRADIENTS)))
def test_gradcheck_and_double_backward(index: int) -> None:
    function, shapes = GRADIENTS[index]
    inputs = tuple(normal(*shape, grad=True) for shape in shapes)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_a_layer_of_float32_is_refused_when_called_and_may_be_cast() -> None:
    module, x = cutlass_sk.nn.Linear(4, 5), normal(2, 4).float()
    module.load_state_dict(torch.nn.Linear(4, 5).state_dict())
    with pytest.raises(DtypeError, match=r"no kernel multiplies torch\.float32 operands into torch\.float32; cast them"):
        module(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(x).dtype == torch.bfloat16
    assert module.half()(x.half()).dtype == torch.float16


def test_backward_multiplies_on_our_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    run = Gemm.run

    def counted(self: Gemm, a: torch.Tensor, b: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        shapes.append((*a.shape, b.shape[1]))
        return run(self, a, b, *arguments, **options)

    monkeypatch.setattr(Gemm, "run", counted)
    module = cutlass_sk.nn.Linear(7, 3, dtype=torch.float64)
    module(normal(2, 5, 7)).sum().backward()
    assert shapes == [(10, 7, 3), (3, 10, 7)]  # none for the input's gradient, which nobody asked for


def test_gradients_of_float32_results_have_the_operands_dtype() -> None:
    a, b = normal(5, 7, dtype=torch.float16, grad=True), normal(7, 3, dtype=torch.float16, grad=True)
    matmul(a, b, out_dtype=torch.float32).sum().backward()
    assert a.grad is not None and b.grad is not None and (a.grad.dtype, b.grad.dtype) == (torch.float16, torch.float16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_casts_as_torch_does(dtype: torch.dtype) -> None:
    a, b, c = (x.float().requires_grad_() for x in (normal(5, 7), normal(7, 3), normal(3)))
    double = normal(5, 7)
    with torch.autocast("cpu", dtype=dtype):
        for ours, theirs in (
            (matmul(a, b), torch.matmul(a, b)),
            (matmul(a, b.to(dtype)), torch.matmul(a, b.to(dtype))),
            (linear(a, b.t(), c), torch.nn.functional.linear(a, b.t(), c)),
            (addmm(c, a, b), torch.addmm(c, a, b)),
            (matmul(a.expand(2, 5, 7), b.expand(2, 7, 3)), torch.matmul(a.expand(2, 5, 7), b.expand(2, 7, 3))),
        ):
            assert ours.dtype == theirs.dtype == dtype
            torch.testing.assert_close(ours, theirs)
        assert matmul(a, b, out_dtype=torch.float32).dtype == torch.float32
        assert matmul(double, double.t()).dtype == torch.float64
        made = matmul(a, b)
    made.sum().backward()
    assert a.grad is not None and a.grad.dtype == torch.float32
    with torch.autocast("cpu", enabled=False), pytest.raises(DtypeError):
        matmul(a, b)


def test_torch_func_maps_and_differentiates() -> None:
    a, b, c = normal(4, 5, 7), normal(7, 3), normal(4, 7, 3)
    torch.testing.assert_close(torch.func.vmap(matmul, (0, None))(a, b), a @ b)
    torch.testing.assert_close(torch.func.vmap(matmul, (None, 0))(a[0], c), a[0] @ c)
    torch.testing.assert_close(torch.func.vmap(matmul, (0, 0))(a, c), a @ c)
    torch.testing.assert_close(torch.func.vmap(matmul, (2, None))(a.movedim(0, 2), b), a @ b)
    bias = normal(4, 3)
    torch.testing.assert_close(torch.func.vmap(linear, (0, None, 0))(a, b.t(), bias), a @ b + bias[:, None])
    torch.testing.assert_close(
        torch.func.vmap(torch.func.vmap(matmul))(a[None].expand(2, 4, 5, 7), c[None].expand(2, 4, 7, 3)),
        a @ c + a.new_zeros(2, 1, 1, 1),
    )
    gradient = torch.func.grad(lambda x: matmul(x, b).square().sum())(a[0])
    torch.testing.assert_close(gradient, 2 * a[0] @ b @ b.t())
    per_sample = torch.func.vmap(torch.func.grad(lambda x, w: matmul(x, w).square().sum(), argnums=1), (0, None))(a, b)
    torch.testing.assert_close(per_sample, 2 * a.mT @ (a @ b))


def test_forward_mode() -> None:
    a, b, c = normal(5, 7), normal(7, 3), normal(3)
    for function, reference, inputs in (
        (matmul, torch.matmul, (a, b)),
        (matmul, torch.matmul, (torch.stack([a, -a]), torch.stack([b, b]))),
        (addmm, torch.addmm, (c, a, b)),
    ):
        tangents = tuple(torch.ones_like(x) for x in inputs)
        torch.testing.assert_close(torch.func.jvp(function, inputs, tangents), torch.func.jvp(reference, inputs, tangents))
    with torch.autograd.forward_ad.dual_level():
        made = matmul(torch.autograd.forward_ad.make_dual(a, a), b)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(made).tangent, a @ b)
    inputs = tuple(x.clone().requires_grad_() for x in (a, b))
    assert torch.autograd.gradcheck(matmul, inputs, check_forward_ad=True, check_batched_grad=True)
    torch.testing.assert_close(
        torch.func.hessian(lambda x: matmul(x, b).pow(3).sum())(a[:2]), torch.func.hessian(lambda x: (x @ b).pow(3).sum())(a[:2])
    )


WEIGHT = normal(24, 40, dtype=torch.float16)
BIAS = normal(24, dtype=torch.float16)
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "matmul": lambda x: matmul(x, WEIGHT.t()),
    "bias": lambda x: torch.relu(matmul(x, WEIGHT.t(), bias=BIAS)) + 1,
    "addmm": lambda x: addmm(BIAS, x, WEIGHT.t(), beta=0.5, alpha=2),
    "linear": lambda x: linear(x.view(2, -1, 40), WEIGHT, BIAS).sum(-1),
    "float32": lambda x: matmul(x, WEIGHT.t(), out_dtype=torch.float32) + 1,
    "out": lambda x: matmul(x, WEIGHT.t(), out=x.new_empty(x.shape[0], 24)),
    "vector": lambda x: matmul(x, WEIGHT[0]) + 1,
    "batch": lambda x: matmul(x.view(2, -1, 40), WEIGHT.t().expand(2, 40, 24)),
}
BACKENDS = ("eager", "aot_eager", "inductor")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_without_a_break_for_any_m_same_bits(name: str, backend: str) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=True)
    torch._dynamo.utils.counters.clear()
    for m in (16, 18, 64):
        x = normal(m, 40, dtype=torch.float16)
        assert torch.equal(compiled(x), function(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_compiled_training_has_the_same_gradients(backend: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        cutlass_sk.nn.Linear(8, 16, dtype=torch.float64), torch.nn.GELU(), cutlass_sk.nn.Linear(16, 4, dtype=torch.float64)
    )
    x = normal(2, 6, 8)
    model(x).square().sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    torch.compile(model, fullgraph=True, backend=backend)(x).square().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_compiled_autocast_and_out_of_the_caller() -> None:
    a, b, out = normal(5, 7).float(), normal(7, 3).float(), torch.empty(5, 3, dtype=torch.float64)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def cast(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return matmul(x, y)

    assert torch.equal(cast(a, b), matmul(a.bfloat16(), b.bfloat16()))
    write = torch.compile(lambda x, y, z: matmul(x, y, out=z), fullgraph=True, backend="aot_eager")
    write(a.double(), b.double(), out)
    assert torch.equal(out, matmul(a.double(), b.double()))


@pytest.mark.parametrize("strict", [True, False])
def test_export_saves_and_loads(strict: bool) -> None:
    model = cutlass_sk.nn.Linear(8, 4, dtype=torch.float64)
    rows = torch.export.Dim("rows", min=2, max=1024)
    exported = torch.export.export(model, (normal(6, 8),), dynamic_shapes=({0: rows},), strict=strict)
    assert any("cutlass_sk" in str(node.target) for node in exported.graph.nodes)
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for m in (2, 33):
        assert torch.equal(loaded(normal(m, 8)), model(normal(m, 8)))


def test_fake_and_meta_tensors_have_shapes_and_the_same_refusals() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        made = matmul(torch.empty(2, 5, 7, dtype=torch.float16), torch.empty(7, 3, dtype=torch.float16), out_dtype=torch.float32)
        assert (made.shape, made.dtype) == ((2, 5, 3), torch.float32)
        with pytest.raises(DtypeError):
            matmul(torch.empty(5, 7), torch.empty(7, 3))
    meta = OPS.mm(torch.empty(5, 7, dtype=torch.float16, device="meta"), torch.empty(7, 3, dtype=torch.float16, device="meta"))
    assert meta.shape == (5, 3) and meta.device.type == "meta"
    with pytest.raises(OperandError, match="must equal b's k"):
        OPS.mm(normal(2, 3), normal(4, 5))
