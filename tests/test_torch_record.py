"""The record of PyTorch's face: every part on the CPU's reference, what it counts, and that one part's failure is not another's."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlass_sk import Gemm
from cutlass_sk.ensemble import decoder, torch_load, torch_model, torch_record
from cutlass_sk.ensemble.torch_record import DRY, FULL, assembled, in_a_process, main
from cutlass_sk.tracing import planned

pytestmark = pytest.mark.filterwarnings("ignore:cutlass_sk. CPU tensors", "ignore::DeprecationWarning")
KINDS = ["own", "transformers"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "transformers":
        pytest.importorskip("transformers")
    else:
        monkeypatch.setattr(decoder, "Llama", _missing)
    return str(request.param)


def _missing(_: decoder.Shape) -> None:
    raise ImportError("transformers")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_a_decoder_prefers_the_next_token(kind: str, dtype: torch.dtype) -> None:
    made, tokens = decoder.decoder(DRY.model, dtype, "cpu"), DRY.model.tokens("cpu")
    assert ("transformers" in made.name) == (kind == "transformers") and torch.get_default_dtype() == torch.float32
    with torch.no_grad():
        assert made(tokens).shape == (*tokens.shape, DRY.model.vocabulary) and made(tokens).dtype == dtype
        generated = made.generate(tokens, 3)
    assert torch.equal(generated[:, :-3], tokens)
    assert torch.equal(generated[:, -3:], (tokens[:, -1:] + torch.arange(1, 4)) % DRY.model.vocabulary)


def test_both_decoders_are_of_one_architecture() -> None:
    pytest.importorskip("transformers")
    theirs, own = decoder.Llama(DRY.model), decoder.Own(DRY.model)
    source, target = dict(theirs.model.named_parameters()), dict(own.named_parameters())
    with torch.no_grad():
        for x in source.values():
            x.normal_(std=0.1)
        names = [f"model.layers.0.{name}.weight" for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")]
        target["layers.0.qkv.weight"].copy_(torch.cat([source[name] for name in names]))
        ups = [source[f"model.layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up")]
        target["layers.0.up.weight"].copy_(torch.cat(ups))
        for name, other in {
            **{"layers.0.out": "model.layers.0.self_attn.o_proj", "layers.0.down": "model.layers.0.mlp.down_proj"},
            **{"layers.0.norms.0": "model.layers.0.input_layernorm", "layers.0.norms.1": "model.layers.0.post_attention_layernorm"},
            **{"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"},
        }.items():
            target[f"{name}.weight"].copy_(source[f"{other}.weight"])
        tokens = DRY.model.tokens("cpu")
        torch.testing.assert_close(own(tokens), theirs(tokens))


def test_the_model_part(kind: str) -> None:
    torch._dynamo.reset()
    found = torch_model.model(torch.float16, DRY)
    assert found["tokens_equal"] and found["cublas_tokens_equal"] and not found["errors"]
    assert found["dtype"] == "float16" and found["tokens"] == DRY.model.batch * DRY.model.new
    products = 8 if kind == "transformers" else 5
    assert (found["routed"], found["not_routed"]) == (3 * products, 0)
    assert found["logits_exact_error"] < 0.01 and found["gradient_error"] < 0.01
    for name in ("eager", "override", "compiled", "compiled_override", "graph", "graph_override", "backward", "generate_override"):
        assert found[f"{name}_ms"] > 0, name


def test_wrong_products_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "Llama", _missing)
    run = Gemm.run

    def wrong(self: Gemm, *arguments: Any, **options: Any) -> torch.Tensor:
        return run(self, *arguments, **options).neg_()

    monkeypatch.setattr(Gemm, "run", wrong)
    torch._dynamo.reset()
    found = torch_model.model(torch.float16, DRY)
    assert not found["tokens_equal"] and found["cublas_tokens_equal"]
    assert found["logits_max_error"] > 0.1 > found["logits_tolerance"] and found["compiled_max_error"] > 0.1
    assert found["gradient_error"] > 0.1 > found["cublas_gradient_error"]


def test_a_step_that_fails_is_named_and_the_others_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "Llama", _missing)

    def broken(*_: Any) -> Callable[[], torch.Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch_model, "graphed", broken)
    found = torch_model.model(torch.float16, DRY)
    assert found["errors"] == {"graph": "RuntimeError: operation not permitted when stream is capturing"}
    assert "graph_ms" not in found and found["compiled_override_ms"] > 0


def test_stress_counts_launches_and_those_that_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    found = torch_load.load(DRY)
    assert found["launches"] == DRY.threads * DRY.streams * DRY.launches and found["mismatches"] == 0
    assert found["calls"] == DRY.calls and found["allocated_growth_bytes"] == 0 and "resident_growth_bytes" in found
    mixed = torch_load.mixed

    def flaky(scale: torch_load.Scale) -> list[Callable[[], torch.Tensor]]:
        left = [1]  # the one call that is compared with others
        jobs = mixed(scale)[:1]
        return [lambda: jobs[0]() if left and left.pop() else jobs[0]() + 1]

    monkeypatch.setattr(torch_load, "mixed", flaky)
    found = torch_load.stress(DRY)
    assert found["mismatches"] == found["launches"] == 8


def test_calls_are_named_as_the_record_has_them() -> None:
    found = torch_load.calls(DRY)
    assert {"matmul_cpu_us", "torch_matmul_cpu_us", "run_cpu_us"} < set(found) and min(found.values()) > 0


def test_kernels_are_known_before_they_are_launched() -> None:
    """The plans of what a model asks for under way, generation's included, are among those that are built ahead."""
    ahead = torch_model.asked(torch.float16, FULL) + torch_load.asked(FULL)
    assert all(row.plan is not None for row in planned(ahead, "h200").rows)
    sizes = {(product.m, product.n, product.k) for product in ahead}
    shape = FULL.model
    for rows in (shape.batch * shape.length, shape.batch * shape.prompt, shape.batch):
        assert (rows, shape.width, shape.hidden) in sizes
    assert (shape.hidden, shape.width, shape.batch * shape.length) in sizes or (
        shape.width,
        shape.hidden,
        shape.batch * shape.length,
    ) in sizes


def test_a_part_that_hangs_or_fails_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert in_a_process("calls", 0.1, True) == (None, "ended after 0 s by the watchdog")
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'before' >&2\necho 'RuntimeError: no' >&2\nexit 7\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert in_a_process("calls", 10, True) == (None, "status 7: RuntimeError: no")


def test_the_record_has_what_was_found_and_says_what_was_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def found(part: str, seconds: float, dry_run: bool) -> tuple[Any, str]:
        assert (dry_run and 0 < seconds <= 90) or part == "kernels"
        if part == "load":
            return None, "status -6"
        if part.startswith("model"):
            return {"name": part, "errors": {"graph": "no"} if part.endswith("bfloat16") else {}}, ""
        return ({"matmul_cpu_us": 4.0}, "") if part == "calls" else (None, "")

    monkeypatch.setattr(torch_record, "in_a_process", found)
    file = tmp_path / "torch.json"
    assert main(["--dry-run", "-o", str(file), "--commit", "c"]) == 1
    record = json.loads(file.read_text())
    assert record["matmul_cpu_us"] == 4.0 and record["stress"] is None and len(record["model"]) == 2
    assert record["errors"] == {"load": "status -6", "model bfloat16, graph": "no"}
    assert record["provenance"]["commit"] == "c" and "dry_run" in record["provenance"]
    assert assembled({"calls": {"run_cpu_us": 1.0}}, {}, {})["run_cpu_us"] == 1.0


@pytest.mark.slow
def test_a_dry_run_goes_through_processes(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry-run", "--parts", "kernels", "calls", "load"]) == 0
    printed = capfd.readouterr().out
    record = json.loads(printed[printed.index("\n{") :])
    assert record["stress"]["mismatches"] == 0 and record["run_cpu_us"] > 0 and record["errors"] == {} and record["model"] == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU is needed.")
def test_measuring_needs_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-o", str(tmp_path / "torch.json")]) == 2 and "--dry-run" in capsys.readouterr().err
