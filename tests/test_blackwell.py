"""Kernels for compute capability 10.0: they are emitted, compiled, listed and weighed, and nothing plans for them or runs them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import CommandLine

from cutlass_sk import Gemm
from cutlass_sk.cli.size import cuobjdump
from cutlass_sk.device import PRESETS
from cutlass_sk.errors import DeviceError, DtypeError
from cutlass_sk.generator import families, find, kernels
from cutlass_sk.generator.catalog import COMPILED_ONLY, DTYPES, GENERATIONS, LAYOUTS
from cutlass_sk.generator.spec import ARCHITECTURES, PROVED, KernelSpec
from cutlass_sk.generator.text import text_of
from cutlass_sk.jit.build import build_one

SPECS = tuple(kernels(COMPILED_ONLY))
USUAL = SPECS[0].with_layouts("t", "n")


def test_every_target_says_how_far_it_was_proved() -> None:
    assert PROVED.keys() == {target for targets in ARCHITECTURES.values() for target in targets}


def test_float16_has_kernels_in_all_layouts_and_no_plan_uses_them() -> None:
    assert [(spec.layout_a, spec.layout_b) for spec in SPECS] == list(LAYOUTS)
    assert all(find(spec.name) == spec and spec not in set(kernels()) for spec in SPECS)
    assert [dtypes for dtypes in DTYPES if families(*dtypes, "sm100a")] == [("float16", "float16")]
    assert Gemm("float16", device="h200").plan(4096, 4096, 4096).kernel.generation in GENERATIONS


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_text_is_cutlass_s_stream_k_kernel(spec: KernelSpec) -> None:
    text = text_of(spec)
    assert text == text_of(spec) and text.startswith(f"// {spec.name}, compiled and never run\n")
    assert text.count("cutlass::gemm::StreamKScheduler") == 1 and "cutlass_sk/" not in text
    assert text.count("cutlass::arch::Sm100, cutlass::arch::OpClassTensorOp") == 2
    assert text.count("cute::Shape<cute::_256, cute::_128, cute::_64>") == 2
    letters = {"RowMajor": "t", "ColumnMajor": "n"}
    *of_c, a, b = (letters[name] for name in re.findall(r"half_t, cutlass::layout::(\w+)", text))
    assert (of_c, a, b) == (["t", "t"], spec.layout_a, spec.layout_b)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tile": (64, 128, 64)}, "tile_m 128 or 256"),
        ({"tile": (256, 136, 64)}, "in steps of 16"),
        ({"tile": (256, 128, 32)}, "tile_k 64"),
        ({"cluster": (1, 1)}, "shared by the two SMs of a 2x1 cluster"),
        ({"tile": (128, 128, 64)}, "one of 128 rows by nobody"),
    ],
)
def test_a_tile_that_cutlass_lacks_is_refused(change: dict[str, tuple[int, ...]], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        text_of(replace(USUAL, **change))  # type: ignore[arg-type]


def test_what_was_never_run_is_refused_in_one_sentence(cutlass_sk: CommandLine, tmp_path: Path) -> None:
    with pytest.raises(DtypeError, match="generation='sm100a' is compiled, never run; use one of sm90a, sm80"):
        Gemm("float16", generation="sm100a")
    with pytest.raises(DtypeError, match=f"{USUAL.name} is compiled, never run: nothing plans for it or launches it"):
        Gemm("float16", kernels=[USUAL.name])
    blackwell = replace(PRESETS["h200"], name="B200", capability=(10, 0))
    with pytest.raises(DeviceError, match=r"B200 has compute capability 10\.0; .*, and those for 10\.0 are compiled, never run"):
        Gemm("float16", device=blackwell).plan(64, 64, 64)
    with pytest.raises(DeviceError, match="sm100a kernels are compiled, never run"):
        blackwell.architecture(USUAL)
    status, _, errors = cutlass_sk("build", "--arch", "100a", "-o", str(tmp_path / "libraries"))
    assert status == 2 and "it has no launch" in " ".join(errors.split()) and not (tmp_path / "libraries").exists()


@pytest.fixture(scope="module")
def built() -> Iterator[Path]:
    """CUTLASS's headers are read whole: a minute of one core the first time."""
    yield build_one(USUAL, "100a").library


@pytest.mark.compiles
@pytest.mark.timeout(900)
def test_it_compiles_to_tcgen05_and_is_weighed(built: Path, cutlass_sk: CommandLine) -> None:
    tool = cuobjdump()
    assert tool is not None, "cuobjdump is needed: pip install nvidia-cuda-cuobjdump"
    code = subprocess.run([tool, "-sass", built], capture_output=True, text=True, check=True).stdout
    assert "sm_100a" in code and "UTCHMMA" in code, "tcgen05.mma of 16-bit operands"
    status, text, _ = cutlass_sk("size", "--library", "blackwell", "--json")
    library = json.loads(text)["float16"]["libraries"]["blackwell"]
    assert status == 0 and library["kernels"] == 1 and "never run" in library["meaning"]
    assert library["code_bytes"] == library["weights"][0]["code_bytes"] > 10_000 and library["weights"][0]["target"] == "sm_100a"
    status, text, _ = cutlass_sk("size", "--library", "blackwell", "--dtype", "float64")
    assert status == 0 and "there is none for float64 -> float64" in text
