"""``cutlass-sk doctor`` says what works, what is missing and the remedy, and ends with status 1 if the main job cannot be done."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from command_line import CommandLine

from cutlass_sk import env, extension, prebuilt
from cutlass_sk.cli import driver as driver_module
from cutlass_sk.cli.driver import Driver, find_driver
from cutlass_sk.device import PRESETS
from cutlass_sk.generator import abi
from cutlass_sk.jit.toolchain import find_toolchain

module = importlib.import_module("cutlass_sk.cli.doctor")  # the package has a function of that name
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU says")


class Doctor:
    """``cutlass-sk doctor`` on a machine that is made up: by default an H200 whose driver serves CUDA 13.0."""

    def __init__(self, cutlass_sk: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cutlass_sk, self.monkeypatch = cutlass_sk, monkeypatch
        self.driver, self.capability, self.torch_cuda, self.torch_finds = Driver((13, 0), "580.1", 1), (9, 0), "13.0", True

    def __call__(self) -> tuple[int, dict[str, Any]]:
        device = replace(PRESETS["h200"], capability=self.capability)
        patch = self.monkeypatch.setattr
        patch(torch.cuda, "is_available", lambda: self.torch_finds)
        patch(torch.cuda, "current_device", lambda: 0)
        patch(torch.version, "cuda", self.torch_cuda)
        patch(module, "real", lambda index: device)
        patch(module, "resolve", lambda name: device)
        patch(module, "find_driver", lambda: self.driver)
        status, text, _ = self.cutlass_sk("doctor", "--json")
        return status, {finding["name"]: finding for finding in json.loads(text)}


@pytest.fixture
def doctor(cutlass_sk: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Doctor:
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(tmp_path / "cache"))
    (libraries := tmp_path / "libraries").mkdir()  # none, though some may have come with the sources
    monkeypatch.setenv("CUTLASS_SK_PREBUILT_DIR", str(libraries))
    return Doctor(cutlass_sk, monkeypatch)


@without_gpu
def test_doctor_without_gpu_says_what_works(cutlass_sk: CommandLine) -> None:
    status, text, _ = cutlass_sk("doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(text)}
    assert status == 0
    assert findings["compiler"]["works"] and "nvcc V" in findings["compiler"]["value"]
    assert findings["plan"]["works"] and findings["build"]["works"]
    assert not findings["GPU"]["works"] and not findings["run"]["works"] and findings["GPU"]["remedy"]
    assert cutlass_sk("doctor")[0] == 0


def test_doctor_without_compiler_gives_the_remedy(cutlass_sk: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTLASS_SK_NVCC", str(tmp_path / "nvcc"))
    status, text, _ = cutlass_sk("doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(text)}
    assert status == 1
    assert not findings["compiler"]["works"] and "cutlass-sk[nvcc]" in findings["compiler"]["remedy"]
    assert findings["plan"]["works"] and not findings["build"]["works"]


def test_doctor_says_how_calls_are_repeated(cutlass_sk: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def finding() -> dict[str, object]:
        status, text, _ = cutlass_sk("doctor", "--json")
        assert status == 0
        return next(finding for finding in json.loads(text) if finding["name"] == "repeated calls")

    monkeypatch.setattr(extension, "native", extension)
    assert finding()["works"] and not finding()["remedy"]
    monkeypatch.setattr(extension, "native", None)
    monkeypatch.setattr(extension, "missing", "it was not built (no such file)")
    assert not finding()["works"] and "it was not built (no such file)" in str(finding()["value"]) and finding()["remedy"]


def test_all_is_well(doctor: Doctor) -> None:
    status, findings = doctor()
    assert status == 0 and findings["run"]["works"]
    assert "compute capability 9.0, 132 SMs; runs sm90a kernels, compiled for sm_90a (run on an H200)" in findings["GPU"]["value"]
    assert findings["proved"]["value"].endswith("compiled, never run: sm_80, sm_86, sm_89, sm_100a")
    assert findings["driver"]["value"] == "580.1, CUDA 13.0"
    assert not any(finding["remedy"] for name, finding in findings.items() if name != "repeated calls")


@pytest.mark.parametrize("capability", [(7, 5), (8, 7), (10, 0), (12, 0)])
def test_a_gpu_without_kernels(capability: tuple[int, int], doctor: Doctor) -> None:
    doctor.capability = capability
    status, findings = doctor()
    assert status == 1 and findings["GPU"]["works"] is False and findings["build"]["works"] and not findings["run"]["works"]
    assert "{}.{}".format(*capability) in findings["GPU"]["remedy"]
    assert ("those for 10.0 are compiled, never run" in findings["GPU"]["remedy"]) == (capability >= (10, 0))


def library(folder: Path, **changes: str) -> Path:
    path = folder / "float16_float16_90a.so"
    path.write_bytes(b"kernels")
    described = prebuilt.Library(
        file=path.name,
        architecture="90a",
        dtype="float16",
        out_dtype="float16",
        kernels=("one", "two"),
        bytes=7,
        sha256=hashlib.sha256(b"kernels").hexdigest(),
        abi=abi.ABI_VERSION,
        sources=prebuilt.sources_digest(),
        versions={},
    )
    path.with_suffix(".json").write_text(replace(described, **changes).to_json())  # type: ignore[arg-type]
    forget()
    return path


def forget() -> None:
    for cached in (prebuilt._libraries, prebuilt._by_kernel, prebuilt._check):
        cached.cache_clear()


def test_kernels_that_came_compiled_need_no_compiler(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTLASS_SK_PREBUILT_DIR", str(tmp_path))
    monkeypatch.setenv("CUTLASS_SK_NVCC", str(tmp_path / "nvcc"))
    assert doctor()[0] == 1
    library(tmp_path)
    status, findings = doctor()
    assert status == 0 and findings["run"]["works"] and not findings["build"]["works"]
    assert findings["compiled kernels"]["value"] == "2 of float16 -> float16 for sm_90a"
    doctor.capability = (8, 0)
    status, findings = doctor()
    assert status == 1 and findings["compiled kernels"]["works"] is None and not findings["run"]["works"]
    doctor.capability = (9, 0)
    library(tmp_path, sources="others")
    status, findings = doctor()
    assert status == 1 and findings["compiled kernels"]["value"] == f"none for these sources in {tmp_path}"


def test_a_damaged_description_of_compiled_kernels(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTLASS_SK_PREBUILT_DIR", str(tmp_path))
    (tmp_path / "float16_float16_90a.json").write_text("{")
    forget()
    for doctor.torch_finds, doctor.driver in ((True, Driver((13, 0), "", 1)), (False, Driver())):
        status, findings = doctor()
        assert status == 1 and not findings["run"]["works"] and "cannot be used" in findings["run"]["value"]
        assert "install cutlass_sk again" in findings["compiled kernels"]["remedy"]


def test_a_damaged_library(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTLASS_SK_PREBUILT_DIR", str(tmp_path))
    with library(tmp_path).open("ab") as file:
        file.write(b".")
    status, findings = doctor()
    assert status == 1 and not findings["run"]["works"]
    assert "float16_float16_90a.so is damaged" in findings["compiled kernels"]["remedy"]


def test_a_folder_of_compiled_kernels_that_is_not_there(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTLASS_SK_PREBUILT_DIR", str(tmp_path / "absent"))
    status, findings = doctor()
    assert status == 1 and "there is no such folder" in findings["environment"]["remedy"]
    assert "there is no such folder" in findings["compiled kernels"]["remedy"]


def test_compiled_kernels_without_a_gpu_and_a_compiler(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTLASS_SK_PREBUILT_DIR", str(tmp_path))
    monkeypatch.setenv("CUTLASS_SK_NVCC", str(tmp_path / "nvcc"))
    doctor.torch_finds, doctor.driver = False, Driver()
    library(tmp_path, sources="others")
    assert doctor()[1]["run"]["value"] == "needs a GPU and a compiler"
    library(tmp_path)
    status, findings = doctor()
    assert status == 1 and findings["run"]["value"] == "needs a GPU; kernels came compiled for sm_90a"


def test_a_driver_older_than_nvcc(doctor: Doctor) -> None:
    """A minor release does not matter: kernels are machine code."""
    major, minor = find_toolchain().nvcc_release
    doctor.driver = Driver((major, max(minor - 1, 0)), "", 1)
    assert doctor()[0] == 0
    doctor.driver = Driver((major - 1, 9), "", 1)
    status, findings = doctor()
    assert status == 1 and f"the driver serves CUDA {major - 1}.9, nothing later" in findings["compiler"]["remedy"]


@pytest.mark.parametrize(
    ("torch_cuda", "driver", "remedy"),
    [
        (None, Driver((13, 0), "", 1), "this build of torch is without CUDA"),
        ("13.0", Driver((12, 4), "", 1), "the driver serves CUDA 12.4: install a newer driver, or torch for that CUDA"),
        ("12.8", Driver((13, 0), "", 1), "torch.cuda.init()'` says why"),
    ],
)
def test_a_gpu_that_torch_does_not_find(torch_cuda: str | None, driver: Driver, remedy: str, doctor: Doctor) -> None:
    doctor.torch_cuda, doctor.driver, doctor.torch_finds = torch_cuda, driver, False
    status, findings = doctor()
    assert status == 1 and findings["torch"]["works"] is False and remedy in findings["torch"]["remedy"]


def test_a_driver_that_does_not_work(doctor: Doctor) -> None:
    doctor.torch_finds, doctor.driver = False, Driver(None, "580.1", 1, "cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: restart")
    status, findings = doctor()
    assert status == 1 and findings["driver"] == {
        "name": "driver",
        "works": False,
        "value": "580.1",
        "remedy": "cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: restart",
    }


def test_another_cutlass(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(find_toolchain(), cutlass_version="4.3.0")
    monkeypatch.setattr(module, "find_toolchain", lambda: found)
    status, findings = doctor()
    assert status == 1 and "`pip install 'nvidia-cutlass==4.2.*'`" in findings["CUTLASS"]["remedy"]


def test_variables(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLASS_SK_CACHDIR", "/tmp")
    status, findings = doctor()
    assert status == 0 and findings["unknown variable"]["value"] == "CUTLASS_SK_CACHDIR"
    assert "did you mean CUTLASS_SK_CACHE_DIR?" in findings["unknown variable"]["remedy"]
    monkeypatch.setenv("CUTLASS_SK_PDL", "on")
    assert "it must be 1, true or yes, or else 0, false or no" in doctor()[1]["environment"]["remedy"]
    monkeypatch.delenv("CUTLASS_SK_PDL")
    monkeypatch.setenv("CUTLASS_SK_JOBS", "none")
    status, findings = doctor()
    assert status == 1 and "CUTLASS_SK_JOBS='none' cannot be used" in findings["environment"]["remedy"]


@pytest.mark.parametrize(
    ("name", "similar"), [("FOO", ""), ("JOB", "JOBS"), ("DEBGU", "DEBUG"), ("PREBUILD_DIR", "PREBUILT_DIR"), ("NOTHING", "")]
)
def test_a_name_is_like_another_by_its_own_part(name: str, similar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"CUTLASS_SK_{name}", "1")
    assert env.unknown()[f"CUTLASS_SK_{name}"] == (similar and f"CUTLASS_SK_{similar}")


def test_a_cache_that_others_can_write_to(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o775)
    status, findings = doctor()
    assert status == 1 and "`chmod go-w" in findings["cache"]["remedy"]


@pytest.mark.parametrize("root", ["/proc/nothing", "/dev/null/nothing"])
def test_a_cache_that_cannot_be_written(root: str, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even by root, to whom modes say nothing."""
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", root)
    status, findings = doctor()
    assert status == 1 and not findings["cache"]["works"] and "cannot be" in findings["cache"]["value"]
    assert "set CUTLASS_SK_CACHE_DIR" in findings["cache"]["remedy"]


def test_a_cache_that_nothing_can_be_loaded_from(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    status, findings = doctor()
    assert status == 1 and "noexec" in findings["cache"]["value"] and findings["cache"]["remedy"]


def test_doctor_counts_the_cache_and_writes_nothing(
    cutlass_sk: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "cache"
    monkeypatch.setenv("CUTLASS_SK_CACHE_DIR", str(root))
    assert f"{root}: 0 kernels, 0 bytes" in cutlass_sk("doctor", "--json")[1]
    assert not list(tmp_path.iterdir())


def test_without_a_user_entry(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    def nobody(uid: int) -> object:
        raise KeyError(uid)

    for name in ("CUTLASS_SK_CACHE_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    status, findings = doctor()
    assert status == 1 and "set CUTLASS_SK_CACHE_DIR" in findings["cache"]["remedy"]


class FakeCuda:
    """``cuda.bindings.driver``, as far as it is asked."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_NO_DEVICE=100)

    def __init__(self, initialised: object) -> None:
        self.initialised = initialised

    def cuDriverGetVersion(self) -> tuple[int, int]:
        return 0, 12080

    def cuInit(self, flags: int) -> tuple[object]:
        return (self.initialised,)

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, 2


def test_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.bindings

    monkeypatch.setattr(driver_module, "_nodes", lambda: 3)
    monkeypatch.setattr(driver_module, "_module", lambda: "570.1")
    for status, expected in (
        (0, Driver((12, 8), "570.1", 2)),
        (100, Driver((12, 8), "570.1", 0)),
        (SimpleNamespace(name="BROKEN"), None),
    ):
        fake = FakeCuda(status)
        monkeypatch.setattr(cuda.bindings, "driver", fake, raising=False)
        monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake)
        found = find_driver()
        assert found == expected or (expected is None and found.gpus == 3 and "cuInit says BROKEN" in found.problem)
    monkeypatch.setattr(FakeCuda, "cuDriverGetVersion", lambda self: (_ for _ in ()).throw(RuntimeError("no libcuda")))
    assert "libcuda cannot be loaded (no libcuda): install NVIDIA's driver" in find_driver().problem
    monkeypatch.setattr(driver_module, "_nodes", lambda: 0)
    assert find_driver() == Driver(module="570.1")


def test_minor_releases_are_served() -> None:
    assert Driver((12, 4)).serves((12, 9)) and Driver((13, 0)).serves((12, 9)) and Driver().serves((13, 0))
    assert not Driver((12, 9)).serves((13, 0))
