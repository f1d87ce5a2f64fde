"""Programs as they are, on a GPU: what override routes and restores, a language model under it, and what trace sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from problems import build_planned

from cutlass_sk import override, trace
from cutlass_sk.aten import Product
from cutlass_sk.ensemble import decoder, torch_model
from cutlass_sk.ensemble.decoder import Shape
from cutlass_sk.ensemble.torch_load import Scale, build_ahead
from cutlass_sk.routing import _libraries

HALF = (torch.float16, torch.bfloat16)
WIDTH, ROWS = 256, 128
SMALL = Scale(model=Shape(512, 1024, 2, 8, 4, 1000, 2, 128, 16, 32), repeats=1)


@pytest.fixture(scope="module", autouse=True)
def kernels_of_this_file(kernels: None) -> None:
    widths = (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)
    shapes = [shape for k, n in widths for shape in ((ROWS, n, k), (ROWS, k, n), (k, n, ROWS), (n, k, ROWS))]
    build_planned(HALF, shapes)
    build_planned([torch.float16], [(64, 64, 64), (512, 128, 256), (1280, 1280, 1280)])
    for dtype in HALF:
        build_ahead(torch_model.asked(dtype, SMALL))


def normal(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


class Block(torch.nn.Module):
    """One transformer block, by hand."""

    def __init__(self, width: int, heads: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = heads
        make = {"device": "cuda", "dtype": dtype}
        self.qkv, self.out = torch.nn.Linear(width, 3 * width, **make), torch.nn.Linear(width, width, **make)
        self.norm = torch.nn.LayerNorm(width, **make)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width, **make), torch.nn.GELU(), torch.nn.Linear(4 * width, width, **make)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(made.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


@pytest.mark.timeout(300, method="thread", func_only=True)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_a_block_is_routed_forward_and_backward(dtype: torch.dtype, compiled: bool) -> None:
    torch._dynamo.reset()
    model: Any = Block(WIDTH, 4, dtype)
    exact = Block(WIDTH, 4, torch.float64)
    exact.load_state_dict(model.state_dict())
    x = normal(2, ROWS // 2, WIDTH, dtype=dtype)
    expected = exact(x.double())
    expected.square().sum().backward()
    gradients = [parameter.grad for parameter in exact.parameters()]
    called = torch.compile(model) if compiled else model
    theirs = called(x)
    with override() as report:
        made = called(x)
        assert (report.routed, report.not_routed) == (4, 0), report
        made.float().square().sum().backward()
        torch.cuda.synchronize()
    assert (report.routed, report.not_routed) == (4 + 8, 0), report
    assert (made - expected).abs().max() <= 2 * (theirs - expected).abs().max()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is not None and gradient is not None
        assert (parameter.grad - gradient).abs().max() <= 0.05 * gradient.abs().max()
    assert not _libraries and torch.equal(called(x), theirs) and report.routed == 12


CASES: list[tuple[str, Callable[..., torch.Tensor], str]] = [
    ("mm", lambda a, b, bias, wide: a @ b, ""),
    ("mm", lambda a, b, bias, wide: torch.mm(a, b.t(), out=torch.empty_like(a)), ""),
    ("mm", lambda a, b, bias, wide: torch.mm(a, b, out_dtype=torch.float32), ""),
    ("mm", lambda a, b, bias, wide: torch.nn.functional.linear(a, b), ""),
    ("addmm", lambda a, b, bias, wide: torch.nn.functional.linear(a, b, bias), ""),
    ("addmm", lambda a, b, bias, wide: torch.addmm(bias, a, b, beta=0.5, alpha=2), ""),
    ("addmm", lambda a, b, bias, wide: bias.expand(64, 64).contiguous().addmm_(a, b), ""),
    ("bmm", lambda a, b, bias, wide: wide @ wide, ""),
    ("bmm", lambda a, b, bias, wide: a.expand(2, 64, 64) @ b.expand(2, 64, 64), "a batch of small products"),
    ("baddbmm", lambda a, b, bias, wide: torch.baddbmm(wide, wide, wide), "baddbmm has no kernel of ours"),
    ("mm", lambda a, b, bias, wide: a.float() @ b.float(), "float32 has no kernels"),
    ("mm", lambda a, b, bias, wide: a[:0] @ b, "no elements"),
]


@pytest.mark.parametrize(("operator", "call", "reason"), CASES)
def test_what_is_routed_and_why_not(operator: str, call: Callable[..., torch.Tensor], reason: str) -> None:
    operands = normal(64, 64), normal(64, 64), normal(64), normal(2, 1280, 1280)
    expected = call(*operands)
    with override() as report:
        made = [call(*operands) for _ in range(3)]
    (((product, said), count),) = report.counts.items()
    assert (product.operator, said, count, product.device) == (operator, reason, 3, "cuda")
    for one in made:
        assert one.dtype == expected.dtype and one.shape == expected.shape and torch.equal(one, made[0])
        torch.testing.assert_close(one, expected, rtol=5e-3, atol=0.1)
    assert not _libraries and torch.equal(call(*operands), expected) and sum(report.counts.values()) == 3


def test_torch_s_kernels_are_back_after_an_exception() -> None:
    a = normal(64, 64)
    expected = a @ a
    with pytest.raises(ZeroDivisionError), override() as report:
        _ = a @ a
        _ = 1 / 0
    assert report.routed == 1 and not _libraries and torch.equal(a @ a, expected) and report.routed == 1


@pytest.mark.timeout(300, method="thread", func_only=True)
@pytest.mark.parametrize("kind", ["own", "transformers"])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_a_language_model_says_the_same(dtype: torch.dtype, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "transformers":
        pytest.importorskip("transformers")
    else:
        monkeypatch.setattr(decoder, "Llama", _missing)
    torch._dynamo.reset()
    found = torch_model.model(dtype, SMALL)
    assert not found["errors"] and found["tokens"] == 64 and found["tokens_equal"], found
    assert found["routed"] == 3 * (2 * (7 if kind == "transformers" else 4) + 1), found
    assert set(found["reasons"]) <= {"float32 has no kernels", "a batch of small products"}, found
    rounding = max(found["logits_tolerance"], found["cublas_exact_error"])
    for name in ("logits_max_error", "compiled_max_error", "graph_max_error"):
        assert 0 <= found[name] <= 2 * rounding, (name, found)
    assert found["logits_exact_error"] <= 2 * found["cublas_exact_error"], found
    assert found["gradient_error"] <= 2 * found["cublas_gradient_error"], found


def _missing(_: Shape) -> None:
    raise ImportError("transformers")


def test_a_program_is_traced_and_timed() -> None:
    model = Block(WIDTH, 4, torch.float16)
    made = trace(lambda: model(normal(2, ROWS // 2, WIDTH)).sum().backward(), device=None)
    assert made.calls == 4 + 8 and made.device == torch.cuda.get_device_name()
    assert all(row.plan is not None and row.product.device == "cuda" for row in made.rows)
    timed = trace(lambda: (normal(512, 256) @ normal(256, 128), normal(2, 64, 64) @ normal(2, 64, 64)), measure=True)
    assert {row.product for row in timed.rows} == {
        Product("mm", 1, 512, 128, 256, torch.float16, torch.float16, ("t", "t"), "cuda"),
        Product("bmm", 2, 64, 64, 64, torch.float16, torch.float16, ("t", "t"), "cuda"),
    }
    for row in timed.rows:
        assert 0.5 < (row.measured_us or 0) < 200 and 0.5 < (row.cublas_us or 0) < 200, timed
    assert "2 measured" in timed.summary
