"""Kernels that came compiled: which are found, that no stale or damaged one is, and that they need nothing beside them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import CommandLine

import cutlass_sk.kernel as kernel_module
from cutlass_sk import Gemm, gemm, prebuilt
from cutlass_sk.errors import DtypeError, EnvironmentVariableError, KernelError, PlanError, ToolchainError
from cutlass_sk.generator import abi, families
from cutlass_sk.generator.catalog import LAYOUTS
from cutlass_sk.generator.spec import KernelSpec
from cutlass_sk.jit.build import Source
from cutlass_sk.jit.toolchain import find_toolchain
from cutlass_sk.kernel import load_kernel
from cutlass_sk.prebuilt.build import build_library

FAKE = """
#include <cstring>
#include "cutlass_sk/abi.h"
#define FUNCTIONS(kernel)                                                                           \\
  CUTLASS_SK_EXPORT int32_t cutlass_sk_describe_##kernel(CutlassSkDescription* out) {               \\
    out->abi_version = CUTLASS_SK_ABI_VERSION;                                                    \\
    std::strcpy(out->name, #kernel);                                                                \\
    return 0;                                                                                     \\
  }                                                                                               \\
  CUTLASS_SK_EXPORT int32_t cutlass_sk_query_##kernel() { return 0; }                               \\
  CUTLASS_SK_EXPORT int32_t cutlass_sk_prepare_##kernel() { return 0; }                             \\
  CUTLASS_SK_EXPORT int32_t cutlass_sk_enqueue_##kernel() { return 0; }
"""
WIDE = families("float16", "float16", "sm90a")[0]
SPECS = [WIDE, WIDE.with_layouts("t", "n")]
OTHER = families("float16", "float16", "sm90a")[1]
(AMPERE,) = families("float64", "float64", "sm80")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a library of SPECS, whose functions do nothing."""
    place = tmp_path / "libraries"
    place.mkdir()
    monkeypatch.setenv("CUTLASS_SK_PREBUILT_DIR", str(place))
    monkeypatch.setattr(kernel_module, "_kernels", {})
    code, path, toolchain = tmp_path / "fake.cpp", place / "float16_float16_90a.so", find_toolchain()
    code.write_text(FAKE + "\n".join(f"FUNCTIONS({spec.name})" for spec in SPECS))
    command = [str(toolchain.host_compiler), "-std=c++17", "-shared", "-fPIC", f"-I{toolchain.own_include}", "-o", str(path)]
    subprocess.run([*command, str(code)], check=True)
    data = path.read_bytes()
    described = prebuilt.Library(
        file=path.name,
        architecture="90a",
        dtype="float16",
        out_dtype="float16",
        kernels=tuple(spec.name for spec in SPECS),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        abi=abi.ABI_VERSION,
        sources=prebuilt.sources_digest(),
        versions={},
    )
    describe(place, described)
    return place


def describe(folder: Path, library: prebuilt.Library) -> None:
    (folder / library.file).with_suffix(".json").write_text(library.to_json())
    for cached in (prebuilt._libraries, prebuilt._by_kernel, prebuilt._check):
        cached.cache_clear()


def test_kernels_that_came_compiled_are_used_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[KernelSpec] = []

    def build_one(spec: KernelSpec, architecture: str) -> None:
        built.append(spec)
        raise KeyError

    monkeypatch.setattr(kernel_module, "build_one", build_one)
    for spec in SPECS:
        assert load_kernel(spec, "90a").description.name == spec.name
    assert load_kernel(WIDE.at(WIDE.widths[0]), "90a") is load_kernel(WIDE, "90a"), "a width is the same binary"
    assert built == []
    for spec, architecture in ((OTHER, "90a"), (WIDE, "80")):
        with pytest.raises(KeyError):
            load_kernel(spec, architecture)
    assert built == [OTHER, WIDE]


def test_compile_builds_only_what_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[KernelSpec] = []
    monkeypatch.setattr(gemm, "build", lambda specs, architecture, progress: asked.extend(specs))
    Gemm("float16", device="h200", kernels=[WIDE]).compile()
    assert asked == [WIDE.with_layouts(*layouts) for layouts in LAYOUTS if layouts not in (("t", "t"), ("t", "n"))]


def test_compile_builds_the_layouts_that_are_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[KernelSpec] = []
    monkeypatch.setattr(gemm, "build", lambda specs, architecture, progress: asked.extend(specs))
    product = Gemm("float16", device="h200", kernels=[WIDE])
    product.compile(layouts=["tt", "tn"])
    assert asked == []
    product.compile(layouts=("tn", "nn"))
    assert asked == [WIDE.with_layouts("n", "n")]
    for wrong in ("tt", [], ["t"], ["tt", "xx"], [("t", "t")]):
        with pytest.raises(PlanError, match="must be a list of some of tt, tn, nt, nn"):
            product.compile(layouts=wrong)  # type: ignore[arg-type]


def test_without_a_compiler_the_missing_kernel_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLASS_SK_NVCC", str(folder / "nvcc"))
    said = rf"{OTHER.name}.* for sm_90a did not come compiled in {folder}, whose libraries have 2 others, .*CUTLASS_SK_NVCC"
    with pytest.raises(ToolchainError, match=said):
        load_kernel(OTHER, "90a")
    with pytest.raises(ToolchainError, match=said.replace(".*", " and 3 more", 1)):
        Gemm("float16", device="h200", kernels=[OTHER]).compile()
    (folder / "float16_float16_90a.json").unlink()
    prebuilt._libraries.cache_clear()
    with pytest.raises(ToolchainError) as error:  # nothing came compiled, nothing to be said of that
        Gemm("float16", device="h200", kernels=[OTHER]).compile()
    assert "did not come" not in str(error.value)


@pytest.mark.parametrize("change", [{"sources": "others"}, {"abi": abi.ABI_VERSION + 1}])
def test_kernels_of_other_sources_are_passed_over(change: dict[str, object], folder: Path) -> None:
    (library,) = prebuilt.libraries()
    assert library.usable and prebuilt.find(WIDE, "90a") is not None
    describe(folder, replace(library, **change))  # type: ignore[arg-type]
    assert prebuilt.find(WIDE, "90a") is None
    assert [one.usable for one in prebuilt.libraries()] == [False]


@pytest.mark.parametrize("damage", ["flipped", "truncated", "gone"])
def test_a_damaged_library_is_one_clear_error(damage: str, folder: Path) -> None:
    path = folder / "float16_float16_90a.so"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data if damage == "flipped" else data[:1000])
    describe(folder, *prebuilt.libraries())
    with pytest.raises(KernelError, match=r"float16_float16_90a\.so (is damaged|cannot be read).*cutlass-sk build -o"):
        load_kernel(WIDE, "90a")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"kernels": 1}'])
def test_a_damaged_description_is_one_clear_error(text: str, folder: Path) -> None:
    (folder / "float16_float16_90a.json").write_text(text)
    with pytest.raises(KernelError, match=r"float16_float16_90a\.json does not describe a library of kernels"):
        load_kernel(WIDE, "90a")


def test_a_folder_without_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLASS_SK_PREBUILT_DIR", str(tmp_path))
    assert prebuilt.libraries() == [] and prebuilt.find(WIDE, "90a") is None


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLASS_SK_PREBUILT_DIR", str(tmp_path / "absent"))
    with pytest.raises(EnvironmentVariableError, match=r"CUTLASS_SK_PREBUILT_DIR='.*absent' .* no such folder"):
        prebuilt.find(WIDE, "90a")


def test_size_weighs_them(folder: Path, cutlass_sk: CommandLine) -> None:
    status, text, _ = cutlass_sk("size", "--library", "prebuilt", "--json")
    found = json.loads(text)["float16"]["libraries"]["prebuilt"]
    size = (folder / "float16_float16_90a.so").stat().st_size
    assert (status, found["kernels"], found["code_bytes"], found["library_bytes"]) == (0, 2, 0, size)
    status, text, _ = cutlass_sk("size", "--library", "prebuilt", "--dtype", "float64")
    assert status == 0 and "there is none here" in text


def test_an_object_of_a_library_has_other_flags_and_so_another_key() -> None:
    alone, object_ = Source("name", "text", "90a"), Source("name", "text", "90a", "_name")
    assert "-shared" in alone.flags and "-shared" not in object_.flags
    assert {"-c", "-DCUTLASS_SK_SUFFIX=_name"} <= set(object_.flags) and "-DNDEBUG" in object_.flags


def test_a_library_holds_one_pair_of_dtypes(tmp_path: Path) -> None:
    with pytest.raises(DtypeError, match="one pair of dtypes"):
        build_library([WIDE, AMPERE], "80", tmp_path)


def test_build_refuses_dtypes_that_no_kernel_has(cutlass_sk: CommandLine) -> None:
    status, _, errors = cutlass_sk("build", "--dtype", "float16,int8")
    assert status == 2 and "'int8' is no dtype" in errors


# With real kernels

ALONE = """
import ctypes, sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cutlass_library", "cutlass_cppgen", "cutlass"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
from cutlass_sk import Gemm, packing
from cutlass_sk.device import PRESETS
from cutlass_sk.errors import ToolchainError
from cutlass_sk.generator import abi, families
from cutlass_sk.jit.toolchain import find_toolchain
from cutlass_sk.kernel import load_kernel, plan_struct, problem_struct

try:
    find_toolchain()
except ToolchainError:
    pass
else:
    sys.exit("a compiler was found")
(spec,) = families("float64", "float64", "sm80")
for layout_b in "tn":
    kernel = load_kernel(spec.with_layouts("t", layout_b), "80")
    plan = Gemm("float64", generation="sm80", device="a100").plan(300, 200, 5000)
    query = kernel.query(problem_struct(300, 200, 5000, 5000, 200, 200), plan_struct(plan))
    assert (query.grid, query.sk_units) == (plan.grid, plan.sk_units)
    print(kernel.description.name)
struct, result = abi.PackStruct(struct_bytes=ctypes.sizeof(abi.PackStruct)), abi.ResultStruct()
assert packing._function(PRESETS["a100"])(struct, result) == abi.Status.OK  # nothing to do
assert packing._function(PRESETS["h200"]) is None
"""


@pytest.mark.compiles
def test_a_library_needs_no_compiler_and_is_the_same_bytes_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [AMPERE, AMPERE.with_layouts("t", "n")]
    both = build_library(specs, "80", tmp_path / "both")
    assert both.kernels == tuple(spec.name for spec in specs)
    environment = {name: value for name, value in os.environ.items() if name in ("HOME", "LD_LIBRARY_PATH")}
    environment |= {"PATH": "", "CUTLASS_SK_CACHE_DIR": "/proc/nothing", "CUTLASS_SK_PREBUILT_DIR": str(tmp_path / "both")}
    done = subprocess.run([sys.executable, "-c", ALONE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [spec.name for spec in specs]
    assert "operands are packed by torch, a copy each; the kernel cannot be had" in done.stderr  # for the other GPU
    library = str(tmp_path / "both" / both.file)
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "libcuda.so" not in needed and "libcudart.so" not in needed
    exported = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    functions = (abi.DESCRIBE, abi.ENQUEUE, abi.PREPARE, abi.QUERY)
    named = {f"{one}_{spec.name}" for one in functions for spec in specs}
    assert {line.split()[2] for line in exported.splitlines()} == {*named, abi.PACK}

    here = build_library(specs[:1], "80", tmp_path / "here")
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(tmp_path / "another cache"))
    there = build_library(specs[:1], "80", tmp_path / "there")
    assert here == there
    assert (tmp_path / "here" / here.file).read_bytes() == (tmp_path / "there" / there.file).read_bytes()
