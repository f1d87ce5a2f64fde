"""override(): what is routed, what is not and why, and that nothing is left behind. On CPU tensors, by the reference."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import cutlass_sk
from cutlass_sk import Gemm, errors, override
from cutlass_sk.routing import OVERLOADS, _libraries

pytestmark = pytest.mark.filterwarnings("ignore:cutlass_sk. CPU tensors")


class Block(torch.nn.Module):
    """One transformer block, by hand."""

    def __init__(self, width: int = 32, heads: int = 4, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False, dtype=dtype)
        self.out = torch.nn.Linear(width, width, dtype=dtype)
        self.norm = torch.nn.LayerNorm(width, dtype=dtype)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width, dtype=dtype), torch.nn.GELU(), torch.nn.Linear(4 * width, width, dtype=dtype)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.mT / (width // self.heads) ** 0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


def unchanged() -> bool:
    """Whether torch's own kernels are in place."""
    a = torch.ones(2, 2, dtype=torch.float64)
    with torch.profiler.profile() as profile:
        torch.mm(a, a)
    return not _libraries and not any("cutlass" in event.name for event in profile.events())


def test_a_block_forward_and_backward() -> None:
    torch.manual_seed(0)
    model, x = Block(), torch.randn(2, 8, 32, dtype=torch.float64)
    expected = model(x)
    expected.square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with override(cpu=True) as report:
        made = model(x)
        forward = report.routed
        made.square().sum().backward()
    torch.testing.assert_close(made, expected)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert forward == 4 and report.routed == 4 + 8
    assert report.reasons == {"a batch of small products": 6}
    assert str(report).startswith("12 of 18 products routed, ")
    assert "6 x bmm not routed: a batch of small products" in str(report)
    assert unchanged()


CASES: list[tuple[str, Any, str]] = [
    ("mm", lambda a, b: torch.mm(a, b), ""),
    ("mm", lambda a, b: torch.mm(a, b, out=torch.empty(6, 5, dtype=a.dtype)), ""),
    ("mm", lambda a, b: a @ b, ""),
    ("bmm", lambda a, b: torch.einsum("mk,kn->mn", a, b), ""),
    ("addmm", lambda a, b: torch.addmm(a[0, :5], a, b, beta=2, alpha=0.5), ""),
    ("addmm", lambda a, b: torch.addmm(a[0, :5], a, b, out=torch.empty(6, 5, dtype=a.dtype)), ""),
    ("addmm", lambda a, b: torch.ones(6, 5, dtype=a.dtype).addmm_(a, b, beta=0.5), ""),
    ("addmm", lambda a, b: torch.nn.functional.linear(a, b.t(), a[0, :5]), ""),
    ("bmm", lambda a, b: torch.bmm(a[None], b[None]), ""),
    ("bmm", lambda a, b: torch.bmm(a.expand(2, 6, 7), b.expand(2, 7, 5)), "a batch of small products"),
    ("baddbmm", lambda a, b: torch.baddbmm(a[None, :, :5], a[None], b[None]), "baddbmm has no kernel of ours"),
    ("mm", lambda a, b: a.float() @ b.float(), "float32 has no kernels"),
    ("mm", lambda a, b: a.int() @ b.int(), "int32 has no kernels"),
    ("mm", lambda a, b: a[:0] @ b, "no elements"),
    ("mm", lambda a, b: torch.mm(a, b, out=torch.empty(0, dtype=a.dtype)), "out is resized"),
]


@pytest.mark.parametrize(("operator", "call", "reason"), CASES)
def test_what_is_routed_and_why_not(operator: str, call: Any, reason: str) -> None:
    a, b = torch.randint(-1, 2, (6, 7)).double(), torch.randint(-1, 2, (7, 5)).double()
    expected = call(a, b)
    with override(cpu=True) as report:
        made = call(a, b)
    assert torch.equal(made, expected) and made.dtype == expected.dtype
    (((product, said), count),) = report.counts.items()
    assert (product.operator, said, count) == (operator, reason, 1)


def test_batches_are_routed_when_their_products_are_large_enough() -> None:
    a, b = torch.randint(-1, 2, (3, 6, 7)).double(), torch.randint(-1, 2, (3, 7, 5)).double()
    with override(cpu=True, loop_flop=2 * 6 * 7 * 5) as report:
        assert torch.equal(a @ b, torch.stack([x @ y for x, y in zip(a, b, strict=True)]))
        assert torch.equal(torch.bmm(a, b, out=torch.empty(3, 6, 5).double()), a @ b)
    assert report.not_routed == 0


def test_without_cpu_nothing_of_the_cpu_is_touched() -> None:
    a = torch.eye(4, dtype=torch.float64)
    with override() as report:
        assert "CPU" not in _libraries and torch.equal(a @ a, a)
    assert report.routed == report.not_routed == 0


def test_errors_of_torch_stay_torch_s() -> None:
    with override(cpu=True) as report:
        for call in (lambda: torch.mm(torch.ones(2, 3), torch.ones(4, 5)), lambda: torch.mm(torch.ones(2), torch.ones(2, 2))):
            with pytest.raises(RuntimeError) as raised:
                call()
            assert not isinstance(raised.value, errors.Error)
    assert not report.counts
    a = torch.ones(8, 8, dtype=torch.float16)
    with override(cpu=True) as report, pytest.raises(RuntimeError, match="dtype"):
        torch.mm(a, a, out=torch.empty(8, 8))
    assert report.reasons == {"out of another dtype": 1}


def test_all_is_restored_also_after_an_exception_and_in_any_order() -> None:
    a = torch.eye(4, dtype=torch.float64)
    with pytest.raises(ZeroDivisionError), override(cpu=True):
        _ = 1 / 0
    assert unchanged()
    with override(cpu=True) as outer:
        a @ a
        with override(cpu=True) as inner:
            a @ a
            with override() as innermost:
                a @ a
        a @ a
    assert (outer.routed, inner.routed, innermost.reasons) == (2, 1, {"on the CPU": 1})
    assert unchanged()
    first, second = override(cpu=True), override(cpu=True)
    first.__enter__()
    report = second.__enter__()
    first.__exit__(None, None, None)
    a @ a
    second.__exit__(None, None, None)
    assert report.routed == 1 and unchanged()


def test_a_broken_toolchain_is_met_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def broken(*_: Any, **__: Any) -> torch.Tensor:
        calls.append(1)
        raise errors.ToolchainError("nvcc is not found\nmore")

    monkeypatch.setattr(Gemm, "run", broken)
    a = torch.eye(4, dtype=torch.float64)
    with override(cpu=True) as report:
        for _ in range(3):
            assert torch.equal(a @ a, a)
    assert calls == [1] and report.reasons == {"nvcc is not found": 3}


def test_other_threads_are_routed_too() -> None:
    a = torch.eye(4, dtype=torch.float64)
    with override(cpu=True) as report:
        thread = threading.Thread(target=lambda: a @ a)
        thread.start()
        thread.join()
    assert report.routed == 1


@pytest.mark.parametrize("inference", [False, True])
def test_inference_and_autocast(inference: bool) -> None:
    model, x = Block(dtype=torch.float32), torch.randn(1, 8, 32)
    with torch.inference_mode(inference), torch.autocast("cpu", dtype=torch.bfloat16), override(cpu=True) as report:
        model(x)
    assert report.routed == 4 and {product.dtype for product, _ in report.counts} == {torch.bfloat16}


def test_compiled_code_is_routed() -> None:
    torch._dynamo.reset()
    model, x = Block(), torch.randn(2, 8, 32, dtype=torch.float64)
    compiled = torch.compile(model, fullgraph=True)
    expected = compiled(x)
    with override(cpu=True) as report:
        torch.testing.assert_close(compiled(x), expected)
        again = report.routed
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), expected)
    assert again == 4 and report.routed == 8


def test_the_functional_face_is_not_counted_twice() -> None:
    a = torch.eye(4, dtype=torch.float64)
    with override(cpu=True) as report:
        cutlass_sk.matmul(a, a)
    assert all(product.operator != "mm" for product, _ in report.counts)


def test_overloads_exist() -> None:
    for name in OVERLOADS:
        operator, _, overload = name.partition(".")
        assert hasattr(getattr(torch.ops.aten, operator), overload or "default")


def test_a_model_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    configuration = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, n_positions=32, vocab_size=50, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(configuration).double().eval()
    tokens = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        logits = model(tokens).logits
        generated = model.generate(tokens, max_new_tokens=4, do_sample=False, pad_token_id=0)
        with override(cpu=True) as report:
            torch.testing.assert_close(model(tokens).logits, logits)
            assert torch.equal(model.generate(tokens, max_new_tokens=4, do_sample=False, pad_token_id=0), generated)
    assert report.routed >= 9 and unchanged()
