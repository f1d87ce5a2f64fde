"""Operands are packed as lines that are contiguous in both places, in one launch; everything else goes through torch."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cutlass_sk import packing
from cutlass_sk.device import PRESETS
from cutlass_sk.errors import CacheError, CompileError, KernelError, ToolchainError
from cutlass_sk.generator import abi


def target(rows: int, columns: int, dtype: torch.dtype = torch.float16, padding: int = 0) -> torch.Tensor:
    """Row-major memory whose lines start on 16 bytes."""
    step = 16 // dtype.itemsize
    return torch.full((rows, -(-columns // step) * step + padding), 7.0, dtype=dtype)[:, :columns]


def copied_as(lines: abi.PackMatrixStruct) -> bytes:
    """What the kernel is to write, line by line, as C would."""
    data = b""
    for line in range(lines.lines):
        data += ctypes.string_at(lines.from_ + line * lines.from_leading, lines.line_bytes)
    return data


@pytest.mark.parametrize(
    "source",
    [
        lambda: torch.randn(5, 13).half(),
        lambda: torch.randn(5, 40).half()[:, 3:16],
        lambda: torch.randn(13, 5).half().t(),
        lambda: torch.randn(20, 9).half()[4:17, 2:7].t(),
        lambda: torch.randn(1, 13).half().expand(5, 13),
        lambda: torch.randn(64).half().as_strided((5, 13), (2, 1)),
    ],
)
def test_matrices_are_copied_line_by_line(source: Callable[[], torch.Tensor]) -> None:
    x = source()
    y = target(5, 13) if x.stride(1) == 1 else target(13, 5).t()
    lines = packing.as_lines(x, y)
    assert lines is not None and lines.line_bytes == 2 * (13 if x.stride(1) == 1 else 5)
    packing.copy([(x, y)])  # through torch, on the CPU
    assert torch.equal(x, y)
    assert copied_as(lines) == (x if x.stride(1) == 1 else x.t()).contiguous().numpy().tobytes()
    assert lines.to == y.data_ptr() and lines.to_leading % 16 == 0


def test_what_has_no_lines_is_left_to_torch() -> None:
    x = torch.randn(4, 6).half()
    for source, memory in (
        (torch.randn(4, 12).half()[:, ::2], target(4, 6)),
        (torch._neg_view(x), target(4, 6)),
        (x, target(6, 4).t()),  # transposed on the way
        (x, torch.empty(4, 6).half()),  # lines of 12 bytes
        (x, target(4, 6, torch.float32)),
        (torch.ones(4, 6, dtype=torch.int8), torch.empty(4, 16, dtype=torch.int8)[:, :6]),
    ):
        assert packing.as_lines(source, memory) is None
    y = target(4, 6)
    packing.copy([(torch._neg_view(x), y)])
    assert torch.equal(y, -x)
    packing.copy([])


@pytest.mark.compiles
def test_the_library_is_built_and_refuses_what_it_does_not_pack() -> None:
    library = packing.build(PRESETS["h200"])
    pack = packing.load(library)
    size, result = ctypes.sizeof(abi.PackStruct), abi.ResultStruct()
    assert pack(abi.PackStruct(struct_bytes=size), result) == abi.Status.OK  # nothing to do, and no GPU asked
    assert pack(abi.PackStruct(struct_bytes=size - 8), result) == abi.Status.BAD_ABI
    good = {"from_": 1002, "to": 1600, "lines": 3, "line_bytes": 26, "from_leading": 26, "to_leading": 32}
    for name, value in {"from_": 1001, "to": 1608, "to_leading": 24, "from_leading": 27, "line_bytes": 25, "lines": -1}.items():
        given = abi.PackStruct(struct_bytes=size)
        given.matrices[1] = abi.PackMatrixStruct(**{**good, name: value})
        assert pack(given, result) == abi.Status.MISALIGNED and b"not packed" in result.message, name
    assert library.stat().st_size < 1 << 20
    with pytest.raises(KernelError, match="cannot be loaded"):
        packing.load(library.with_name("kernel.cu"))


def test_a_library_that_came_compiled_for_the_gpu_s_own_target_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    a10 = dataclasses.replace(PRESETS["a100"], name="A10", capability=(8, 6))
    has: set[str] = set()

    def find(target: str) -> Path | None:
        return Path(f"{target}.so") if target in has else None

    monkeypatch.setattr(packing.prebuilt, "find_packing", find)
    for device, there, found in (
        (a10, {"86"}, "86.so"),
        (a10, {"90a", "80"}, "80.so"),
        (PRESETS["h200"], {"90"}, "90.so"),
        (PRESETS["h200"], {"90", "90a"}, "90a.so"),
        (PRESETS["h200"], {"80", "86"}, None),
    ):
        has = there
        assert packing._prebuilt(device) == (None if found is None else Path(found))


SAID = "it cannot be built"
FAILED = CompileError(SAID, command="nvcc", log="", source=Path("kernel.cu"))


@pytest.mark.parametrize("error", [ToolchainError(SAID), FAILED, CacheError(SAID)], ids=lambda error: type(error).__name__)
def test_where_the_kernel_cannot_be_had_torch_packs(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> Path:
        raise error

    monkeypatch.setattr(packing, "_functions", {})
    monkeypatch.setattr(packing, "_prebuilt", lambda _: None)
    monkeypatch.setattr(packing, "build", missing)
    with pytest.warns(UserWarning, match="packed by torch, a copy each; the kernel cannot be had: it cannot be built"):
        assert packing._function(PRESETS["h200"]) is None
    assert packing._function(PRESETS["h200"]) is None  # and asks no more
