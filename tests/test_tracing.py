"""trace(): every product of a program, counted, planned and printed, without a GPU."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command_line import CommandLine
from rich.console import Console

from cutlass_sk import Gemm, linear, matmul, trace
from cutlass_sk.aten import Product, read
from cutlass_sk.errors import DeviceError
from cutlass_sk.tracing import COLUMNS, recording

pytestmark = pytest.mark.filterwarnings("ignore:cutlass_sk. CPU tensors")
HALF = torch.float16


def product(operator: str, m: int, n: int, k: int, dtype: torch.dtype = HALF, **others: object) -> Product:
    fields = {"l": 1, "out_dtype": dtype, "layouts": ("t", "t"), "device": "meta", **others}
    return Product(operator, m=m, n=n, k=k, dtype=dtype, **fields)  # type: ignore[arg-type]


def meta(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def test_every_operator_is_counted_with_its_layouts() -> None:
    a, b, weight, bias = meta(64, 32), meta(32, 16), meta(16, 32), meta(16)
    with recording() as counts:
        _ = a @ b
        torch.mm(a, b)
        torch.addmm(bias, a, b)
        torch.nn.functional.linear(a, weight)
        torch.nn.functional.linear(meta(4, 16, 32), weight, bias)
        meta(2, 3, 64, 32) @ meta(2, 3, 32, 16)
        torch.baddbmm(meta(2, 64, 16), meta(2, 64, 32), meta(2, 32, 16))
        meta(64, 16).addmm_(a, b)
        torch.mm(meta(32, 64).t(), meta(16, 32).t())
        with torch.inference_mode():
            a @ b
            torch.nn.functional.linear(a, weight)
        a + a
    assert counts == {
        product("mm", 64, 16, 32): 3,
        product("addmm", 64, 16, 32): 2,
        product("mm", 64, 16, 32, layouts=("t", "n")): 1,
        product("addmm", 64, 16, 32, layouts=("t", "n")): 1,
        product("bmm", 64, 16, 32, l=6): 1,
        product("baddbmm", 64, 16, 32, l=2): 1,
        product("mm", 64, 16, 32, layouts=("n", "n")): 1,
        product("linear", 64, 16, 32, layouts=("t", "n")): 1,
    }


def test_ours_are_counted_too() -> None:
    a, b = torch.ones(8, 4, dtype=HALF), torch.ones(4, 2, dtype=HALF)
    with recording() as counts:
        matmul(a, b, out_dtype=torch.float32)
        matmul(a, b, out=torch.empty(8, 2))
        linear(a, b.t(), a[0, :2])
    assert counts == {
        product("mm", 8, 2, 4, out_dtype=torch.float32, device="cpu"): 2,
        product("addmm", 8, 2, 4, device="cpu"): 1,
    }


def test_a_model_forward_and_backward_is_planned_and_summed() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 512, dtype=HALF), torch.nn.ReLU(), torch.nn.Linear(512, 128, dtype=HALF))
    model.to("meta")
    forward = trace(model, meta(96, 256))
    assert (forward.calls, forward.flop, forward.device) == (2, 2 * 96 * (256 * 512 + 512 * 128), "h200")
    plans = Gemm("float16", device="h200")
    for row in forward.rows:
        assert row.plan is not None and row.plan.device == "h200" and row.plan.kernel.dtype == "float16"
        m, n, k = row.product.m, row.product.n, row.product.k
        assert row.predicted_us == pytest.approx(plans.explain(m, n, k, layout_b="n").plan.predicted_time_us)
    assert forward.predicted_us == pytest.approx(sum(row.plan.predicted_time_us for row in forward.rows if row.plan))
    both = trace(lambda x: model(x).sum().backward(), meta(96, 256), device="a100")
    assert both.calls == 2 + 3 and both.device == "a100"
    assert trace(model, input=meta(96, 256)).calls == 2


def test_what_has_no_kernel_says_so() -> None:
    made = trace(
        lambda: (
            meta(8, 4, dtype=torch.float32) @ meta(4, 2, dtype=torch.float32),
            meta(0, 4) @ meta(4, 2),
            meta(8, 4) @ meta(4, 2),
        )
    )
    notes = {row.product.m + (row.product.dtype == HALF): row.note for row in made.rows}
    assert sorted(notes.values()) == ["", "no elements", "no kernel for float32 into float32"]
    assert made.rows[0].note == "" and "2 without a kernel, not counted" in made.summary


def test_what_cannot_be_planned_does_not_end_a_trace() -> None:
    """Sparse operands, and sizes beyond 32 bits; nested ones are no product that is known."""
    a, nested = torch.randn(8, 8), torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)])
    assert read("bmm", (nested, nested), {}) is None
    far = torch.empty(1 << 31, 8, dtype=torch.float16, device="meta")
    made = trace(lambda: (a @ a.to_sparse_csr(), a.to_sparse() @ a, far @ far[:8]), device="h200")
    (row,) = [row for row in made.rows if row.product.dtype == torch.float16]
    assert row.plan is None and "m=2147483648 must be a whole number" in row.note
    assert all(row.product.device == "meta" for row in made.rows)


def test_csv_html_and_table_say_the_same() -> None:
    made = trace(lambda: [meta(64, 4096) @ meta(4096, 64) for _ in range(3)])
    (row,) = csv.DictReader(io.StringIO(made.csv()))
    assert tuple(row) == COLUMNS and (row["count"], row["m"], row["k"], row["layouts"], row["share"]) == (
        "3",
        "64",
        "4096",
        "tt",
        "1.0",
    )
    assert float(row["predicted_total_us"]) == pytest.approx(made.predicted_us) == pytest.approx(3 * float(row["predicted_us"]))
    page = made.html()
    for text in (row["kernel"], row["decomposition"], "3 products in 1 sizes", "4096"):
        assert text in page
    printed = str(made)
    assert row["decomposition"] in printed and made.summary in printed
    empty = trace(lambda: None)
    assert (empty.rows, empty.predicted_us) == ((), 0) and "0 products" in empty.html() and len(empty.csv().splitlines()) == 1


@pytest.mark.parametrize("measured", [False, True])
def test_a_table_fits_a_terminal_with_notes_below(measured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from cutlass_sk import trace_timing

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(trace_timing, "measure", lambda asked: (1234.5, 2345.6, ""))

    def program() -> None:
        for m in (16384, 32768):
            meta(m, 4096) @ meta(4096, 28672)
            meta(m, 64, dtype=torch.float32) @ meta(64, 64, dtype=torch.float32)

    made = trace(program, measure=measured)
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(made.table(80))
    text = captured.get()
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    for number in ("16384", "32768", "28672", *(["1,234.5", "2,345.6"] if measured else [])):
        assert number in text
    said = " ".join(text.split())
    assert "no kernel for float32 into float32: 32768 x 64 x 64, 16384 x 64 x 64" in said and "left out to fit: kernel" in said
    assert made.rows[0].plan is not None and made.rows[0].plan.kernel.name in str(made) and "left out" not in str(made)


def test_measured_times_stand_beside_the_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    from cutlass_sk import trace_timing

    with pytest.raises(DeviceError, match="measure=True needs a CUDA GPU"):
        trace(lambda: meta(64, 32) @ meta(32, 16), measure=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        trace_timing, "measure", lambda asked: (2.0, 3.0, "") if asked.m == 64 else (0.0, 0.0, "not measured: no memory")
    )
    made = trace(lambda: [meta(64, 32) @ meta(32, 16), meta(8, 32) @ meta(32, 16), meta(64, 32) @ meta(32, 16)], measure=True)
    first, other = made.records()
    assert (first["measured_us"], first["cublas_us"], first["speedup"], first["note"]) == (2.0, 3.0, 1.5, "")
    assert (other["measured_us"], other["speedup"], other["note"]) == (None, None, "not measured: no memory")
    assert "2 measured: 4.0 us, 6.0 us in cuBLAS (1.50 times as fast)" in made.summary and "speedup" in str(made)


def test_products_are_timed_in_their_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    from cutlass_sk import trace_timing

    launched = []

    def timed(contenders: dict[str, Callable[[int], object]], sets: int) -> dict[str, float]:
        launched.append(sets)
        for launch in contenders.values():
            launch(sets - 1)
        return {"ours": 1.0, "cublas": 2.0}

    monkeypatch.setattr(trace_timing, "time_us", timed)
    for name in ("randn", "empty"):
        make = getattr(torch, name)
        monkeypatch.setattr(trace_timing.torch, name, lambda *shape, make=make, device=None, **others: make(*shape, **others))
    assert trace_timing.measure(product("mm", 64, 16, 32, layouts=("t", "n"), dtype=torch.float64)) == (1.0, 2.0, "")
    assert trace_timing.measure(product("bmm", 64, 16, 32, l=3)) == (1.0, 2.0, "")
    assert trace_timing.measure(product("bmm", 64, 16, 32, l=3, out_dtype=torch.float32))[2]
    assert launched == [16, 16]


SCRIPT = """
import sys, torch, beside
if __name__ == "__main__":
    a = torch.empty(int(sys.argv[1]), 64, dtype=torch.float16, device="meta")
    a @ a.t()
    sys.exit(int(sys.argv[2]))
"""


def test_the_command_traces_a_script(cutlass_sk: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, table, page = (tmp_path / name for name in ("script.py", "products.csv", "products.html"))
    script.write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("")
    code, output, _ = cutlass_sk("trace", "--csv", str(table), "--html", str(page), str(script), "--", "96", "0")
    assert code == 0 and "1 products in 1 sizes" in output
    assert (
        table.read_text().splitlines()[1].startswith("1,mm,1,96,96,64,float16,float16,tn,meta,") and "<table>" in page.read_text()
    )
    assert cutlass_sk("trace", str(script), "--", "96", "3")[0] == 3
    for options, message in (("--device", "foo"), "'foo'"), (("--measure",), "needs a CUDA GPU"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        status, _, errors = cutlass_sk("trace", *options, str(script), "--", "96", "3")
        assert status == 2 and message in errors, "the script would have ended with 3"
    assert cutlass_sk("trace", str(tmp_path / "none.py"))[0] == 2


def test_a_model_of_transformers_without_weights() -> None:
    transformers = pytest.importorskip("transformers")
    configuration = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=100
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(configuration).half()
    made = trace(model, torch.zeros(1, 16, dtype=torch.int64, device="meta"))
    linear_calls = sum(row.count for row in made.rows if row.product.l == 1)
    assert linear_calls >= 2 * 7 + 1 and made.predicted_us > 0
