"""CUTLASS's headers cut down: what is dropped and kept, and that it is the same machine code that comes out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from cutlass_sk.generator import families
from cutlass_sk.generator.emit import emit, emit_data_parallel
from cutlass_sk.jit import lean
from cutlass_sk.jit.build import OF_A_LIBRARY, command_line, sources
from cutlass_sk.jit.toolchain import find_toolchain

ARCH = """\
enum class Major { K, MN };

// GMMA 64x8x16 F16+=F16*F16
template <
  GMMA::Major tnspA
>
struct MMA_64x8x16_F16F16F16_SS
{
  static void fma() { if (true) { asm(""); } }
};

struct MMA_64x8x32_S32S8S8_SS_TN
{
};

template <
  GMMA::Major tnspA
>
struct MMA_64x160x16_F32BF16BF16_SS
{
};
} // namespace
"""
TRAITS = """\
template <SM90::GMMA::Major MajorMode>
struct MakeTensor<SM90::GMMA::smem_desc<MajorMode>>
{
};

template <
  GMMA::Major tnspA
>
using SM90_64x16x16_F32F16F16_RS = SM90::GMMA::MMA_64x16x16_F32F16F16_RS<tnspA>;

template <GMMA::Major tnspA>
struct MMA_Traits<SM90_64x16x16_F32F16F16_RS<tnspA>>
{
};

using SM90_64x8x32_S32S8S8_SS_TN = SM90::GMMA::MMA_64x8x32_S32S8S8_SS_TN;

template <>
struct MMA_Traits<SM90_64x8x32_S32S8S8_SS_TN>
{
};

template <
  GMMA::Major tnspA
>
using SM90_64x32x16_F32F16F16_SS = SM90::GMMA::MMA_64x32x16_F32F16F16_SS<tnspA>;

template <GMMA::Major tnspA>
struct MMA_Traits<SM90_64x32x16_F32F16F16_SS<tnspA>>
{
};
"""
SELECTOR = """\
if constexpr (N == 8) { return SM90::GMMA::MMA_64x8x16_F16F16F16_SS<a, b>{}; }
if constexpr (N == 32) { return SM90::GMMA::MMA_64x32x16_F32F16F16_SS<a, b>{}; }
else { return SM90::GMMA::SPARSE::GMMA_64x32x32_F32F16F16_SS<a, b>{}; }
"""


def test_only_wanted_instructions_are_left(tmp_path: Path) -> None:
    include = tmp_path / "include"
    for name, text in ((lean.CUT[0], ARCH), (lean.CUT[2], TRAITS), (lean.SELECTOR, SELECTOR), (lean.EMPTIED[0], "large")):
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        (include / name).write_text(text)
    lean.write(include, tmp_path)
    made = {path.relative_to(tmp_path / lean.DIRECTORY).as_posix(): path.read_text() for path in tmp_path.glob("lean/**/*.hpp")}
    assert made.keys() == {lean.CUT[0], lean.CUT[2], lean.SELECTOR, lean.EMPTIED[0]}, "what CUTLASS lacks is left out"
    assert made[lean.EMPTIED[0]] == "#pragma once\n"
    kept = r"(?m)^(?:struct|using|enum class) (\w+)"
    assert re.findall(kept, made[lean.CUT[0]]) == ["Major", "MMA_64x160x16_F32BF16BF16_SS"]
    assert made[lean.CUT[0]].endswith("} // namespace\n")
    assert re.findall(kept, made[lean.CUT[2]]) == ["MakeTensor", "SM90_64x32x16_F32F16F16_SS", "MMA_Traits"]
    assert re.findall(r"return ([^<;]*)", made[lean.SELECTOR]) == ["0", "SM90::GMMA::MMA_64x32x16_F32F16F16_SS", "0"]


def test_the_headers_of_the_installed_cutlass_are_cut_down(tmp_path: Path) -> None:
    include = find_toolchain().cutlass_include[0]
    lean.write(include, tmp_path)
    whole = sum((include / name).stat().st_size for name in (*lean.EMPTIED, *lean.CUT))
    left = sum((tmp_path / lean.DIRECTORY / name).stat().st_size for name in (*lean.EMPTIED, *lean.CUT))
    assert whole > 8_000_000 and left < 500_000
    instructions = (tmp_path / lean.DIRECTORY / lean.CUT[0]).read_text() + (tmp_path / lean.DIRECTORY / lean.CUT[1]).read_text()
    assert len(re.findall(r"(?m)^struct MMA_64", instructions)) == 16, "eight widths, two types"


def test_kernels_of_cutlass_get_its_headers_whole() -> None:
    spec = families("float16", "float16", "sm80")[0]
    assert lean.suits(emit(spec)) and not lean.suits(emit_data_parallel(spec))


@pytest.mark.compiles
def test_the_machine_code_is_the_same(tmp_path: Path) -> None:
    toolchain, (source,) = find_toolchain(), sources([families("float16", "float16", "sm90a")[0]])
    cubins = []
    for name in ("lean", "whole"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "kernel.cu").write_text(source.text)
        if name == "lean":
            lean.write(toolchain.cutlass_include[0], folder)
        command = [word for word in command_line(toolchain, source) if word not in OF_A_LIBRARY]
        command = [*command[: command.index("-o")], "-cubin", "-o", "kernel.cubin", "kernel.cu"]
        subprocess.run(command, cwd=folder, check=True, timeout=250)
        # nvcc names a module by where it was compiled.
        cubins.append(re.sub(rb"_(INTERNAL|GLOBAL__N_)_[0-9a-f]{8}_", b"", (folder / "kernel.cubin").read_bytes()))
    assert cubins[0] == cubins[1]
