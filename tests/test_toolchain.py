"""The toolchain is found in the documented order, or one error says what is missing and how to get it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cutlass_sk import env
from cutlass_sk.errors import EnvironmentVariableError, ToolchainError
from cutlass_sk.generator import abi
from cutlass_sk.jit import digest
from cutlass_sk.jit import key as key_module
from cutlass_sk.jit.digest import headers_digest
from cutlass_sk.jit.key import kernel_key
from cutlass_sk.jit.toolchain import MINIMUM_RELEASE, Toolchain, find_toolchain

VERSION = "Cuda compilation tools, release {}, V{}.1"


@pytest.fixture
def toolchain() -> Toolchain:
    return find_toolchain()


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def wrapper(path: Path, toolchain: Toolchain) -> Path:
    return script(path, f'exec "{toolchain.nvcc}" "$@"')


def fake_nvcc(path: Path, release: str, tree: Path) -> Path:
    """An nvcc of ``release`` whose profile points below ``tree``; it compiles nothing."""
    profile = f"echo '#$ TOP={tree}'; echo '#$ INCLUDES=\"-I{tree}/include\"'; echo '#$ CICC_PATH={tree}/nvvm/bin'"
    return script(path, f'if [ "$1" = --version ]; then echo "{VERSION.format(release, release)}"; else {profile}; fi')


def test_found_toolchain_is_complete(toolchain: Toolchain) -> None:
    assert "release" in toolchain.nvcc_version and "Build" in toolchain.nvcc_version
    assert toolchain.host_version and "\n" not in toolchain.host_version
    assert toolchain.cutlass_version.startswith("4.2")
    assert (toolchain.cutlass_include[0] / "cutlass/cutlass.h").is_file()
    assert (toolchain.cutlass_include[1] / "cutlass/util/packed_stride.hpp").is_file()
    assert (toolchain.own_include / "cutlass_sk/abi.h").is_file()
    assert (toolchain.cuda_libraries / "libcudart_static.a").is_file()


def test_finding_does_not_import_cutlass_library() -> None:
    code = (
        "import sys; from cutlass_sk.jit.toolchain import find_toolchain; find_toolchain();print('cutlass_library' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_order(toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, home, cuda_path = (wrapper(tmp_path / name / "bin/nvcc", toolchain) for name in ("chosen", "home", "path"))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "path"))
    assert find_toolchain().nvcc == cuda_path
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert find_toolchain().nvcc == home
    monkeypatch.setenv(env.NVCC.name, str(chosen))
    assert find_toolchain().nvcc == chosen
    monkeypatch.delenv(env.NVCC.name)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "without nvcc"))
    assert find_toolchain().nvcc == cuda_path


def test_path_is_searched_last(toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = wrapper(tmp_path / "nvcc", toolchain)
    for name in (env.NVCC.name, "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    pathfinder = pytest.importorskip("cuda.pathfinder")
    monkeypatch.setattr(pathfinder, "find_nvidia_binary_utility", lambda name: None)
    assert find_toolchain().nvcc == nvcc
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ToolchainError, match=r"no nvcc was found.*pip install 'cutlass-sk\[nvcc\]'.*CUTLASS_SK_NVCC"):
        find_toolchain()


def test_wheel_layout(toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's wheels keep libraries in lib, where their nvcc does not look, and cicc in nvvm/bin."""
    wheel = tmp_path / "nvidia/cu13"
    for part in ("include/cuda_runtime.h", "include/crt/host_config.h", "include/cuda/std/utility", "lib/libcudart_static.a"):
        script(wheel / part, "")
    nvcc = fake_nvcc(wheel / "bin/nvcc", "13.0", wheel)
    monkeypatch.setenv(env.NVCC.name, str(nvcc))
    with pytest.raises(ToolchainError, match=r"lacks cicc \(wheel nvidia-nvvm\): .*pip install"):
        find_toolchain()
    script(wheel / "nvvm/bin/cicc", "")
    assert find_toolchain().cuda_libraries == wheel / "lib"


def test_missing_headers_name_their_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.NVCC.name, str(fake_nvcc(tmp_path / "nvcc", "13.0", tmp_path)))
    with pytest.raises(ToolchainError, match=r"cuda_runtime.h \(wheel nvidia-cuda-runtime\).*utility \(wheel nvidia-cuda-cccl\)"):
        find_toolchain()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo broken >&2; exit 3", r"does not run.*exited with 3: broken.*pip install"),
        ("echo hello", r"is not nvcc.*hello.*CUTLASS_SK_NVCC"),
        (f"echo '{VERSION.format('12.2', '12.2')}'", r"is CUDA 12\.2, and 12\.3 or later is needed.*pip install"),
        (f"echo '{VERSION.format('11.8', '11.8')}'", r"is CUDA 11\.8, and 12\.3 or later is needed.*pip install"),
    ],
)
def test_wrong_nvcc(body: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MINIMUM_RELEASE == (12, 3)
    monkeypatch.setenv(env.NVCC.name, str(script(tmp_path / "nvcc", body)))
    with pytest.raises(ToolchainError, match=message):
        find_toolchain()


def test_missing_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.NVCC.name, str(tmp_path / "nvcc"))
    with pytest.raises(ToolchainError, match=r"nvcc \(from CUTLASS_SK_NVCC\) does not run: .*No such file.*pip install"):
        find_toolchain()


def test_missing_host_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVCC_CCBIN", "no-such-compiler")
    with pytest.raises(ToolchainError, match="no-such-compiler was not found: install g\\+\\+, or set NVCC_CCBIN"):
        find_toolchain()


def test_missing_cutlass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("CUDA_PATH", "changed: look again")
    with pytest.raises(ToolchainError, match="pip install 'nvidia-cutlass"):
        find_toolchain()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("CUTLASS_SK_NVCC", "bin/nvcc", "must be an absolute path"),
        ("CUTLASS_SK_CACHE_DIR", "cache", "must be an absolute path"),
        ("CUTLASS_SK_JOBS", "0", "must be a positive whole number"),
        ("CUTLASS_SK_JOBS", "two", "must be a positive whole number"),
        ("CUTLASS_SK_DEBUG", "maybe", "must be 1, true or yes, or else 0, false or no"),
    ],
)
def test_wrong_environment_variable(name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = next(variable for variable in env.VARIABLES if variable.name == name)
    monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentVariableError, match=f"{name}='{value}' cannot be used: .*{message}"):
        variable.get()
    monkeypatch.setenv(name, "")
    assert variable.get() == variable.default


def test_variables_are_read_in_one_place() -> None:
    """``build`` hands the environment to nvcc; PATH and CONDA_PREFIX say where others look."""
    allowed = {"env.py": 2, "jit/build.py": 1, "jit/toolchain.py": 2}
    root = Path(env.__file__).parent
    found = {
        str(path.relative_to(root)): path.read_text(encoding="utf-8").count("os.environ") + path.read_text().count("getenv")
        for path in root.rglob("*.py")
    }
    assert {name: count for name, count in found.items() if count} == allowed


def test_unknown_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.unknown() == {}
    monkeypatch.setenv("CUTLASS_SK_DEBGU", "1")
    monkeypatch.setenv("CUTLASS_SK_COLOUR", "red")
    assert env.unknown() == {"CUTLASS_SK_DEBGU": "CUTLASS_SK_DEBUG", "CUTLASS_SK_COLOUR": ""}


def test_key_changes_with_each_field(toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    include = tmp_path / "include"
    include.mkdir()
    (include / "a.h").write_text("1")
    base = replace(toolchain, own_include=include)
    keys = [
        kernel_key("text", ("-O3",), base, "90a"),
        kernel_key("text2", ("-O3",), base, "90a"),
        kernel_key("text", ("-O2",), base, "90a"),
        kernel_key("text", ("-O3", "-g"), base, "90a"),
        kernel_key("text", ("-O3",), base, "90"),
        kernel_key("text", ("-O3",), replace(base, nvcc_version="other"), "90a"),
        kernel_key("text", ("-O3",), replace(base, host_version="other"), "90a"),
        kernel_key("text", ("-O3",), replace(base, cutlass_version="4.2.1"), "90a"),
        kernel_key("text", ("-O3",), replace(base, cutlass_digest="other"), "90a"),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(abi, "ABI_VERSION", abi.ABI_VERSION + 1)
        keys.append(kernel_key("text", ("-O3",), base, "90a"))
    with monkeypatch.context() as patch:
        patch.setattr(key_module, "SCHEMA", key_module.SCHEMA + 1)
        keys.append(kernel_key("text", ("-O3",), base, "90a"))
    (include / "a.h").write_text("2")
    keys.append(kernel_key("text", ("-O3",), base, "90a"))
    assert len(set(keys)) == len(keys)


def test_key_is_the_same_wherever_the_tools_are(toolchain: Toolchain) -> None:
    moved = replace(toolchain, nvcc=Path("/elsewhere/nvcc"), host_compiler=Path("/elsewhere/g++"), cutlass_include=())
    assert kernel_key("text", (), moved, "90a") == kernel_key("text", (), toolchain, "90a")


def test_headers_are_remembered_until_one_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    include, root = tmp_path / "include", tmp_path / "cache"
    monkeypatch.setenv(env.CACHE_DIR.name, str(root))
    monkeypatch.setattr(digest, "SETTLED_SECONDS", -1.0)
    include.mkdir()
    read: list[Path] = []
    monkeypatch.setattr(digest, "headers_digest", lambda *includes: read.append(include) or headers_digest(*includes))

    def remembered(text: str | None = None) -> str:
        if text is not None:
            (include / "a.h").write_text(text)
            os.utime(include / "a.h", (1000, 1000))
        found = digest.remembered_headers_digest(include)
        assert found == headers_digest(include)
        return found

    first = remembered("1")
    assert not root.exists(), "a lookup makes no cache"
    root.mkdir(0o700)
    assert remembered() == remembered() == first and len(read) == 2
    assert remembered("2") != first == remembered("1"), "same size, same time of modification"
    assert len(read) == 4
    for damage in ("", "short", "x" * 64 + "\n", "\xe9" * 65):
        for memo in (root / "headers").iterdir():
            memo.write_text(damage, encoding="latin-1")
        assert remembered() == first
    root.chmod(0o777)
    assert remembered() == remembered() == first and len(read) == 10, "nothing is believed that others may have written"
    root.chmod(0o700)
    monkeypatch.setattr(digest, "SETTLED_SECONDS", 10.0)
    remembered("3"), remembered()
    assert len(read) == 12, "what has just changed may do so again, unseen"


def test_headers_digest_sees_names_and_boundaries(tmp_path: Path) -> None:
    digests = []
    for number, files in enumerate([{"a.h": "xy", "b.h": ""}, {"a.h": "x", "b.h": "y"}, {"a.h": "xy", "c.h": ""}, {"a.h": "xy"}]):
        include = tmp_path / str(number)
        include.mkdir()
        for name, text in files.items():
            (include / name).write_text(text)
        digests.append(headers_digest(include))
    assert len(set(digests)) == len(digests)
