"""Every kernel of the catalogue has one name and one text, the same in every process and on every machine."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest

import cutlass_sk
from cutlass_sk.generator import families, find, kernels
from cutlass_sk.generator.catalog import DTYPES, EVERY_GENERATION, GENERATIONS, LAYOUTS
from cutlass_sk.generator.emit import emit, emit_data_parallel
from cutlass_sk.generator.spec import ELEMENT_BYTES, KernelSpec, Layout, at_all_widths, binaries_of, binary_name

CATALOGUE = tuple(kernels())
FIRST = CATALOGUE[0]
ONE_WIDTH = replace(FIRST, narrowest=0, widest=0, tile=(64, 128, 64))
TMA_DOUBLE = tuple(spec for spec in families("float64", "float64", "sm90a") if spec.api == "3x")
VECTOR_DOUBLE = families("float64", "float64", "sm90a")[-1]
DIGESTS = """
import hashlib
from cutlass_sk.generator import kernels
from cutlass_sk.generator.emit import emit, emit_data_parallel
print(*(f"{spec.name} {hashlib.sha256(emit(spec).encode()).hexdigest()}" for spec in kernels()), sep="\\n")
"""

text_of = cache(emit)


def generator(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cutlass_sk.generator", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_text_is_the_same_in_every_process(tmp_path: Path) -> None:
    outputs = []
    for seed in ("0", "4242"):
        environment = {"PYTHONHASHSEED": seed, "HOME": str(tmp_path / seed), "PATH": "", "USER": f"user{seed}"}
        done = subprocess.run(
            [sys.executable, "-c", DIGESTS], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == len(CATALOGUE)


STOCK = tuple(spec for spec in CATALOGUE if spec.api == "2x" or spec.dtype != "float64")


@pytest.mark.parametrize("spec", STOCK, ids=str)
def test_data_parallel_twins_are_cutlass_s_own(spec: KernelSpec) -> None:
    text, ours = emit_data_parallel(spec), text_of(spec)
    assert "StreamK" not in text and "cutlass_sk/" not in text and "cutlass_sk::" not in text
    if spec.api == "3x":
        assert text.count("cutlass::gemm::PersistentScheduler") == 1 and "device_kernel<" in text
    else:
        assert text.count("GemmIdentityThreadblockSwizzle<1>") == 1 and "Kernel2<" in text
    assert f"namespace cutlass_sk_data_parallel_{spec.name} {{" in text
    if spec.api == "2x":
        # Layouts, shapes and element types are those of the kernel it is the twin of, in the same order.
        words = r"layout::\w+|GemmShape<[\d, ]+>|half_t|bfloat16_t|\bdouble\b"
        assert re.findall(words, text) == re.findall(words, ours)
        return
    operands = re.findall(r"(\S+), cutlass::layout::(\w+), (\d+),", text)  # c, c, a, b
    (of_c,) = re.findall(r"WgmmaEpilogue<\n\s+(\S+), cutlass::layout::(\w+),", ours)
    ((operand_a, operand_b),) = re.findall(r"WgmmaMainloop<\n\s+\S+ cutlass::layout::(\w+), cutlass::layout::(\w+),", ours)
    assert [found[:2] for found in operands[:2]] == [of_c, of_c]
    assert [layout for _, layout, _ in operands[2:]] == [operand_a, operand_b]
    shapes = re.findall(r"cute::Shape<cute::_(\d+), cute::_(\d+), cute::_(\d+)>", text)
    assert shapes == [tuple(map(str, shape)) for shape in (spec.tile, (*spec.cluster, 1))] * 2
    assert f"KernelTmaWarpSpecialized{spec.schedule.title()}" in text


def test_kernels_that_cutlass_lacks_have_no_twin() -> None:
    for spec in (TMA_DOUBLE[0], replace(FIRST, schedule="single"), replace(FIRST, ctas_per_sm=2)):
        with pytest.raises(ValueError, match=f"{spec.name} has no data-parallel twin in CUTLASS"):
            emit_data_parallel(spec)


@pytest.mark.parametrize("spec", CATALOGUE, ids=str)
def test_every_kernel_is_emitted(spec: KernelSpec) -> None:
    text = text_of(spec)
    assert text.startswith(f"// {spec.name}\n") and text.endswith("\n")
    assert text.count(f'CUTLASS_SK_EXPORT_KERNEL(Shim, "{spec.name}")') == 1
    assert len(spec.name) < 160  # the description's field
    assert text.count("{") == text.count("}") and not re.search(r"\$\{|\{name\}", text)
    assert f'#include "cutlass_sk/gemm_{spec.api}.h"' in text
    tile = ["cute::Int<{}>", "cute::_{}"] if spec.api == "3x" else []
    for extent in spec.tile:
        assert any(form.format(extent) in text for form in [*tile, "{}"])
    if spec.api == "3x":
        assert "cutlass_sk::StreamKGemm<" in text and "cutlass_sk::KernelPolicy<" in text
        assert "cutlass::gemm::StreamKScheduler" not in text and "kernel::GemmUniversal<" not in text
    else:
        assert "ThreadblockSwizzleStreamK" in text
        assert re.search(rf"GemmShape<{spec.tile[0]}, {spec.tile[1]}, {spec.tile[2]}>", text)
        assert re.search(rf"GemmShape<{', '.join(map(str, spec.instruction))}>", text)


@pytest.mark.parametrize("spec", CATALOGUE, ids=str)
def test_the_text_names_nothing_of_this_machine(spec: KernelSpec) -> None:
    text = text_of(spec)
    for include in re.findall(r'#include\s*["<](.*)[">]', text):
        assert not include.startswith("/") and ".." not in include
    assert not re.search(r"(?<![\w/])/[A-Za-z_]\w*/", text)  # an absolute path
    assert str(Path.home()) not in text and sys.prefix not in text and str(Path(cutlass_sk.__file__).parent.parent) not in text
    assert not re.search(r"\b20\d\d-\d\d-\d\d\b", text)  # a date
    assert text.isascii()


def test_names_and_specs_are_unique_and_found_again() -> None:
    assert len({spec.name for spec in CATALOGUE}) == len(set(CATALOGUE)) == len(CATALOGUE)
    assert all(find(spec.name) == spec for spec in CATALOGUE)
    assert all(re.fullmatch(r"[a-z0-9_]+", spec.name) for spec in CATALOGUE)


def test_every_field_of_a_spec_is_in_its_name() -> None:
    """Two specs of one name would share a cache entry's namespace; the api follows from the rest of a name."""
    others = {
        "generation": "sm80",
        "dtype": "bfloat16",
        "out_dtype": "float32",
        "tile": (64, 64, 32),
        "cluster": (1, 2),
        "instruction": (16, 8, 8),
        "warps": (4, 1),
        "stages": 3,
        "promotable": True,
        "layout_a": "n",
        "layout_b": "n",
        "swapped": not FIRST.swapped,
        "schedule": "single",
        "ctas_per_sm": 2,
        "narrowest": FIRST.narrowest + 32,
        "widest": FIRST.widest - 32,
    }
    assert {field.name for field in fields(KernelSpec)} == {"api", *others}
    only_3x, only_2x = (
        {"cluster", "promotable", "swapped", "schedule", "ctas_per_sm", "narrowest", "widest"},
        {"instruction", "warps"},
    )
    for name, value in others.items():
        for spec, foreign in ((FIRST.at(64), only_2x), (ONE_WIDTH, only_2x | {"narrowest", "widest"}), (VECTOR_DOUBLE, only_3x)):
            if name not in foreign and not (name == "tile" and spec.widest) and not (name == "generation" and spec.widest):
                assert replace(spec, **{name: value}).name != spec.name, name  # type: ignore[arg-type]


def test_each_kernel_lives_in_a_namespace_of_its_own() -> None:
    namespaces = Counter(name for spec in CATALOGUE for name in re.findall(r"^namespace (\w+) \{", text_of(spec), re.MULTILINE))
    assert namespaces == Counter(f"cutlass_sk_{spec.name}" for spec in CATALOGUE)


@pytest.mark.parametrize("spec", CATALOGUE, ids=str)
def test_names_are_declared_once_in_their_namespace(spec: KernelSpec) -> None:
    """And nothing of the kernel is declared outside of it."""
    text = text_of(spec)
    found = re.search(rf"^namespace cutlass_sk_{spec.name} {{\n(.*)^}}  // namespace cutlass_sk_{spec.name}\n", text, re.M | re.S)
    assert found is not None
    inside, outside = found[1], text[: found.start()] + text[found.end() :]
    declared = re.findall(r"^(?:using|struct|class)\s+(\w+)", inside, re.MULTILINE)
    assert declared and max(Counter(declared).values()) == 1
    assert re.findall(r"^(?:using|struct|class|typedef|template)\s+(\w+)", outside, re.MULTILINE) == ["Shim"]
    assert (
        re.search(rf"using Shim = cutlass_sk::Gemm{spec.api}<cutlass_sk_{spec.name}::(\w+)(?:, (?:true|false))?>;", outside)[1]
        in declared
    )  # type: ignore[index]


def test_texts_differ_beyond_their_names() -> None:
    bodies = {text_of(spec).replace(spec.name, "NAME") for spec in CATALOGUE}
    assert len(bodies) == len(CATALOGUE)


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(("dtype", "out_dtype"), DTYPES)
def test_families_are_complete_and_their_members_consistent(generation: str, dtype: str, out_dtype: str) -> None:
    family = families(dtype, out_dtype, generation)  # type: ignore[arg-type]
    assert family
    for spec in family:
        assert (spec.generation, spec.dtype, spec.out_dtype, spec.layout_a, spec.layout_b) == (
            generation,
            dtype,
            out_dtype,
            "t",
            "t",
        )
        assert all(spec.with_layouts(*layouts) in CATALOGUE for layouts in LAYOUTS)
        assert spec.accumulator == ("float64" if dtype == "float64" else "float32")
        assert spec.alignment * ELEMENT_BYTES[dtype] == (8 if dtype == "float64" and spec.api == "2x" else 16)
        assert str(spec) == spec.name
    assert len(CATALOGUE) == len(LAYOUTS) * sum(len(families(*dtypes, g)) for g in GENERATIONS for dtypes in DTYPES)


def test_there_are_no_families_of_other_dtypes() -> None:
    assert families("float32", "float32", "sm90a") == families("float16", "bfloat16", "sm80") == ()


def test_command_list_prints_every_name() -> None:
    done = generator("list")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [spec.name for spec in kernels(EVERY_GENERATION)]


def test_command_list_of_one_dtype_by_any_of_its_names() -> None:
    names = [spec.name for spec in kernels(EVERY_GENERATION) if spec.dtype == "float64"]
    assert generator("list", "--dtype", "double").stdout.splitlines() == names
    assert generator("list", "--dtype", "int8").returncode == 2


def test_command_show_prints_what_a_kernel_is() -> None:
    done = generator("show", "sm80_f64_f64_64x64x16_w2x2_i884_s4_nt")
    assert (done.returncode, done.stderr) == (0, "")
    name, *rest = done.stdout.splitlines()
    assert name == "sm80_f64_f64_64x64x16_w2x2_i884_s4_nt"
    shown = dict(line.split(maxsplit=1) for line in rest)
    assert {field.name for field in fields(KernelSpec)} <= shown.keys()
    assert (shown["tile"], shown["layout_a"], shown["layout_b"]) == ("(64, 64, 16)", "n", "t")
    assert (shown["accumulator"], shown["partial_bytes"]) == ("float64", str(64 * 64 * 8))
    compiled = (f"sm_{target} (compiled, never run)" for target in (80, 86, 89))
    assert shown["architectures"] == ", ".join((*compiled, "sm_90 (run on an H200)"))


def test_command_emit_prints_the_text() -> None:
    spec = CATALOGUE[0]
    done = generator("emit", spec.name)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", text_of(spec))


@pytest.mark.parametrize("command", ["show", "emit"])
def test_an_unknown_name_is_answered_with_near_ones(command: str) -> None:
    done = generator(command, f"{FIRST.family}_zz")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no kernel is called '{FIRST.family}_zz'; near it: {FIRST.family}_" in done.stderr
    assert "Traceback" not in done.stderr
    assert generator(command, "x" * 1000).returncode == 2


@pytest.mark.parametrize("arguments", [(), ("compile",), ("show",), ("emit", "a", "b")])
def test_wrong_usage_is_explained(arguments: tuple[str, ...]) -> None:
    done = generator(*arguments)
    assert done.returncode == 2 and done.stderr.startswith("usage: python -m cutlass_sk.generator") and done.stdout == ""


def test_fp64_kernels_that_load_by_tma_are_made_of_our_own_collectives() -> None:
    """In each of Hopper's instructions, whether the catalogue has it or not."""
    tile_k = {4: 16, 8: 16, 16: 32}
    variants = [
        replace(spec, instruction=(16, 8, depth), tile=(*spec.tile[:2], tile_k[depth])) for spec in TMA_DOUBLE for depth in tile_k
    ]
    assert len({spec.name for spec in variants}) == len(variants) > len(TMA_DOUBLE) > 0
    for spec in variants:
        text = emit(spec)
        assert text == emit(spec) and f"namespace cutlass_sk_{spec.name} {{" in text
        assert "cutlass_sk::Fp64Mainloop<" in text and "cutlass_sk::Fp64Epilogue<" in text and "Gemm3x<" in text
        assert (spec.alignment, spec.alignment_c) == (2, 1)


@pytest.mark.parametrize(
    "changed", [{"tile": (64, 40, 16)}, {"tile": (16, 16, 16)}, {"tile": (64, 64, 8)}, {"stages": 1}, {"instruction": (8, 8, 4)}]
)
def test_fp64_kernels_that_cannot_be_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="sm90a_f64_f64"):
        emit(replace(TMA_DOUBLE[0], **changed))  # type: ignore[arg-type]


@pytest.mark.parametrize("tile", [(96, 128, 64), (64, 264, 64), (64, 128, 8), (0, 128, 64)])
def test_16_bit_kernels_that_cannot_be_are_refused(tile: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="needs tile_m in steps of 64"):
        emit(replace(ONE_WIDTH, schedule="pingpong", tile=tile))
    with pytest.raises(ValueError, match="TMA takes 256 at most"):
        emit(replace(ONE_WIDTH, cluster=(1, 1), tile=(320, 64, 64)))
    with pytest.raises(ValueError, match="stages=3 cannot be chosen"):
        emit(replace(ONE_WIDTH, stages=3))


def test_a_swapped_kernel_is_emitted_for_the_transposed_product() -> None:
    """c^T = b^T a^T: the operands change places, and all layouts turn."""
    for layout_a, layout_b in LAYOUTS:
        spec = replace(FIRST.with_layouts(layout_a, layout_b), swapped=True)
        turned: dict[str, Layout] = {"t": "n", "n": "t"}
        other = replace(spec, swapped=False, layout_a=turned[layout_b], layout_b=turned[layout_a])
        swapped, plain = (re.sub(r"sm90a_f16_f16_\w+", "NAME", text_of(one)) for one in (spec, other))
        operands = re.compile(r"WgmmaMainloop<\n\s+cutlass::half_t, cutlass::layout::(\w+), cutlass::layout::(\w+),")
        output = re.compile(r"WgmmaEpilogue<\n\s+cutlass::half_t, cutlass::layout::(\w+),")
        assert operands.findall(swapped) == operands.findall(plain) and len(operands.findall(plain)) == 1
        assert (output.findall(swapped), output.findall(plain)) == (["ColumnMajor"], ["RowMajor"])


def test_one_binary_has_a_spec_for_each_width() -> None:
    assert FIRST.name.startswith("sm90a_f16_f16_64x256x64_n32to256_4x1_pingpong") and FIRST.binary == FIRST
    assert FIRST.widths == (32, 64, 96, 128, 160, 192, 224, 256) and [spec.tile[1] for spec in FIRST.variants] == list(FIRST.widths)
    narrow = FIRST.at(96)
    assert narrow.tile == (64, 96, 64) and narrow.binary == FIRST and narrow.at(256) == FIRST and narrow.at(96) is narrow
    assert narrow.name == FIRST.name.replace("64x256x64", "64x96x64") and narrow.variants == FIRST.variants
    assert narrow.partial_bytes == FIRST.partial_bytes == 64 * 256 * 4 and narrow.cluster_fixup == FIRST.cluster_fixup
    assert ONE_WIDTH.variants == (ONE_WIDTH,) and ONE_WIDTH.binary is ONE_WIDTH and ONE_WIDTH.widths == (128,)
    assert at_all_widths([FIRST, narrow, ONE_WIDTH, ONE_WIDTH]) == (*FIRST.variants, ONE_WIDTH)
    assert at_all_widths([narrow]) == (narrow,) and binaries_of([narrow, ONE_WIDTH, FIRST]) == (FIRST, ONE_WIDTH)
    assert find(narrow.name) == narrow and {spec.binary for spec in CATALOGUE} == set(CATALOGUE)
    for spec in at_all_widths(CATALOGUE):
        assert (binary_name(spec.name), binary_name(spec.family)) == (spec.binary.name, spec.binary.family)
    for spec, width in ((FIRST, 40), (FIRST, 288), (FIRST, 0), (ONE_WIDTH, 64)):
        with pytest.raises(ValueError, match=f"tile_n={width} is no width of {spec.name}; it takes "):
            spec.at(width)


@pytest.mark.parametrize(
    "changed",
    [
        {"narrowest": 0},
        {"widest": 0},
        {"narrowest": 16},
        {"narrowest": 288},
        {"widest": 288},
        {"widest": 128},
        {"tile": (64, 72, 64)},
        {"tile": (64, 32, 64), "narrowest": 64},
        {"tile": (128, 256, 64)},
    ],
    ids=str,
)
def test_widths_that_no_kernel_has_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(
        ValueError, match=r"must lie from narrowest=.* to widest=|has 256 sums a thread, and there are registers for"
    ):
        replace(FIRST, **changed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"only 16-bit 3\.x kernels take several tile widths"):
        replace(TMA_DOUBLE[0], narrowest=32, widest=64)


def test_a_family_is_a_name_without_layouts() -> None:
    for spec in CATALOGUE:
        assert spec.name == f"{spec.family}_{spec.layout_a}{spec.layout_b}"
        assert {spec.with_layouts(*layouts).family for layouts in LAYOUTS} == {spec.family}
    assert len({spec.family for spec in CATALOGUE}) * len(LAYOUTS) == len(CATALOGUE)


def test_which_kernels_may_split_a_tile_in_a_cluster() -> None:
    """16-bit ones without a cluster of their own, whose warpgroups have 64 rows each."""
    square = KernelSpec("sm90a", "3x", "float16", "float16", (64, 64, 64), schedule="pingpong")
    assert square.cluster_fixup and replace(square, swapped=True).cluster_fixup
    assert replace(square, schedule="single").cluster_fixup
    assert replace(square, schedule="cooperative", tile=(128, 64, 64)).cluster_fixup
    assert not replace(square, cluster=(2, 1)).cluster_fixup and not replace(square, tile=(128, 64, 64)).cluster_fixup
    assert not replace(square, schedule="cooperative", tile=(256, 64, 64)).cluster_fixup
    # Eight peers send seven runs of 8 KiB to a warpgroup; that is what a quarter of an SM has not got, nor half of one for two.
    assert replace(square, schedule="single", ctas_per_sm=3).cluster_fixup
    assert not replace(square, ctas_per_sm=4).cluster_fixup
    assert not replace(square, schedule="cooperative", tile=(128, 64, 64), ctas_per_sm=2).cluster_fixup
    for generation in GENERATIONS:
        for dtype, out_dtype in DTYPES:
            found = [spec for spec in families(dtype, out_dtype, generation) if spec.cluster_fixup]
            assert bool(found) == (generation == "sm90a" and dtype != "float64")


def test_kernels_that_end_chains_have_registers_for_them() -> None:
    for spec in CATALOGUE:
        assert spec.promotable == (spec.api == "3x" and spec.out_dtype == "float32")
        assert any(used.takes_promotion for used in spec.variants) == spec.promotable
    widest = {(64, 256): 128, (64, 192): 96, (128, 256): 128, (128, 192): 96, (256, 128): 64}
    for spec in families("float16", "float32", "sm90a"):
        most = widest[spec.tile[0], spec.widest]
        assert {used.tile[1] for used in spec.variants if used.takes_promotion} == {w for w in spec.widths if w <= most}
        assert not replace(spec, promotable=False).takes_promotion
