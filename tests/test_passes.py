"""nvcc's two passes side by side: the same bytes as nvcc's own, and nvcc itself wherever anything is otherwise than expected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cutlass_sk.errors import CompileError
from cutlass_sk.jit import build, passes
from cutlass_sk.jit.build import Source, compile_sources
from cutlass_sk.jit.toolchain import find_toolchain
from cutlass_sk.prebuilt.build import linked

TEXT = """
static __device__ int hidden;
namespace { __device__ int unnamed; }
__global__ void fill(int* p) { *p = ++hidden + ++unnamed; }
extern "C" void start(int* p) { fill<<<1, 1>>>(p); }
"""
KEY = "0123456789abcdef"
DRY_RUN = """\
#$ _SPACE_=
#$ CICC_PATH=/cuda/nvvm/bin
#$ PATH=/cuda/bin:/usr/bin
#$ "/usr/bin"/g++ -E -o "kernel.cpp4.ii" "kernel.cu"
#$ cudafe++ --gen_module_id_file --module_id_file_name "kernel.module_id" --orig_src_path_name "/a $HOME `id`/kernel.cu" "x"
#$ "/usr/bin"/g++ -E -o "kernel.cpp1.ii" "kernel.cu"
#$ "$CICC_PATH/cicc" --module_id_file_name "kernel.module_id" "kernel.cpp1.ii"
#$ ptxas "kernel.ptx" -o "kernel.cubin"
#$ fatbinary --create="kernel.fatbin"
#$ "/usr/bin"/g++ -c "kernel.cudafe1.cpp"
#$ rm kernel.cubin
"""


@pytest.fixture(autouse=True)
def two_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CUTLASS_SK_JOBS", "2")


def nvcc_that_says(text: str, folder: Path) -> list[str]:
    (folder / "said").write_text(text)
    (folder / "nvcc").write_text(f'#!/bin/sh\ncat "{folder}/said" >&2\n')
    (folder / "nvcc").chmod(0o755)
    return [str(folder / "nvcc")]


def test_the_bytes_are_those_of_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, used = {}, []
    script = passes.script

    def watched(*arguments: object) -> object:
        used.append(script(*arguments))  # type: ignore[arg-type]
        return used[-1]

    monkeypatch.setattr(passes, "script", watched)
    for jobs in ("1", "2"):
        monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(tmp_path / f"the $HOME of `{jobs}`, it's"))
        monkeypatch.setenv("CUTLASS_SK_JOBS", jobs)
        (entry,) = compile_sources([Source("tiny", TEXT, "90a", "_suffix")])
        made[jobs] = linked([entry], find_toolchain())  # an object names the file that it was compiled from
    assert len(used) == 1 and used[0] is not None, "with one job there is nothing to run beside"
    assert made["1"] == made["2"]


def test_kernels_that_fill_the_processors_are_compiled_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "script", lambda *_: pytest.fail("there is no processor for it"))
    compile_sources([Source(name, f"{TEXT}// {name}", "90a") for name in ("one", "two")])


def test_an_error_is_said_as_nvcc_says_it(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CompileError, match="undeclared") as caught:
        compile_sources([Source("broken", "undeclared x;", "90a")])
    assert caught.value.log.count("error") < 5, "one pass's, not two"


def test_nvcc_goes_on_where_the_script_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.passes, "script", lambda *_: ("exit 3", dict(os.environ)))
    (entry,) = compile_sources([Source("tiny", TEXT, "90a")])
    assert entry.library.is_file()


def test_the_script_runs_both_passes_at_once(tmp_path: Path) -> None:
    found = passes.script(nvcc_that_says(DRY_RUN, tmp_path), tmp_path, {"A": "b"}, KEY)
    assert found is not None
    text, environment = found
    assert environment == {"A": "b", "CICC_PATH": "/cuda/nvvm/bin", "PATH": "/cuda/bin:/usr/bin"}
    lines = text.splitlines()
    assert lines.count("(") == 2 and "wait $host || failed=1" in lines and lines[-1] == "/usr/bin/g++ -c kernel.cudafe1.cpp"
    assert "--gen_module_id_file" not in text and "/cuda/nvvm/bin/cicc --module_id_file_name kernel.module_id" in text
    assert "'/a $HOME `id`/kernel.cu'" in text, "no shell reads a path"
    assert (tmp_path / passes.MODULE).read_text() == "_01234567_9_kernel_cu_89abcdef"


@pytest.mark.parametrize(
    "text",
    [
        "",
        DRY_RUN.replace("cudafe++", "cudafe--"),
        DRY_RUN.replace(" --gen_module_id_file", ""),
        DRY_RUN.replace("kernel.module_id", "other"),
        DRY_RUN.replace("#$ CICC_PATH", "#$ CICC"),
        DRY_RUN.replace("ptxas", "ptxas '"),
        DRY_RUN.replace("#$ ptxas", "#$ optimise x\n#$ ptxas"),
        "\n".join(DRY_RUN.splitlines()[:-2]),
    ],
)
def test_another_dry_run_gives_no_script(text: str, tmp_path: Path) -> None:
    assert passes.script(nvcc_that_says(text, tmp_path), tmp_path, {}, KEY) is None
    assert passes.script([str(tmp_path / "absent")], tmp_path, {}, KEY) is None
