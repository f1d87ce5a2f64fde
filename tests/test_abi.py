"""generator/abi.py is abi.h, field for field, and a kernel that speaks it is loaded, asked and launched through it."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import cutlass_sk.kernel as kernel_module
from cutlass_sk.errors import KernelError, LaunchError
from cutlass_sk.generator import abi
from cutlass_sk.generator.spec import KernelSpec
from cutlass_sk.jit.toolchain import find_toolchain
from cutlass_sk.kernel import Kernel, QueryResult, load_kernel, plan_struct, problem_struct
from cutlass_sk.plan import Plan

STRUCTS = {
    "CutlassSkDescription": abi.DescriptionStruct,
    "CutlassSkProblem": abi.ProblemStruct,
    "CutlassSkPlan": abi.PlanStruct,
    "CutlassSkQuery": abi.QueryStruct,
    "CutlassSkAddresses": abi.AddressesStruct,
    "CutlassSkLaunch": abi.LaunchStruct,
    "CutlassSkResult": abi.ResultStruct,
}

SPEC = KernelSpec("sm90a", "3x", "float16", "float16", (128, 128, 64))

PLAN = Plan(
    m=11,
    n=12,
    k=13,
    kernel=SPEC,
    device="test",
    decomposition="stream_k",
    requested_grid=99,
    grid=20,
    tiles_m=21,
    tiles_n=22,
    iters_per_tile=23,
    dp_tiles=24,
    sk_tiles=25,
    sk_units=26,
    splits=27,
    peers=2,
    fixup="cluster",
    waves=1.0,
    efficiency=1.0,
    data_parallel_efficiency=1.0,
    partials_bytes=1,
    barrier_bytes=1,
    reduction_mode="deterministic",
    reduction_ctas=28,
    raster_order="along_m",
    raster_swizzle=29,
    promotion=128,
    predicted_time_us=1.0,
)

# A kernel without a GPU: it answers what it was given, and fails with the status that plan.grid, launch.device or
# addresses.programmatic names.
FAKE = """
#include <cutlass_sk/abi.h>
#include <cstdio>
#ifndef VERSION
#define VERSION CUTLASS_SK_ABI_VERSION
#endif
static int32_t answer(int32_t status, CutlassSkResult* result) {
  result->status = status; result->cutlass_status = 7; result->cuda_error = 700;
  std::snprintf(result->message, sizeof result->message, "grid is too large");
  return status;
}
CUTLASS_SK_EXPORT int32_t cutlass_sk_describe(CutlassSkDescription* d) {
  d->abi_version = VERSION;
  if (d->struct_bytes != sizeof *d || VERSION != CUTLASS_SK_ABI_VERSION) return CUTLASS_SK_BAD_ABI;
  d->tile_m = 1; d->tile_n = 2; d->tile_k = 3; d->narrowest = 13; d->cluster_m = 4; d->cluster_n = 5; d->threads = 6; d->stages = 7;
  d->shared_memory_bytes = 8; d->alignment_a = 9; d->alignment_b = 10; d->alignment_c = 11; d->accumulator_fragments = 12;
  d->partial_bytes = int64_t(1) << 40; d->prepared_bytes = sizeof(int64_t); d->prepared_alignment = 64;
  std::snprintf(d->name, sizeof d->name, "fake");
  return CUTLASS_SK_OK;
}
CUTLASS_SK_EXPORT int32_t cutlass_sk_query(
    CutlassSkProblem const* s, CutlassSkPlan const* p, CutlassSkQuery* q, CutlassSkResult* r) {
  if (p->struct_bytes != sizeof *p || q->struct_bytes != sizeof *q) return answer(CUTLASS_SK_BAD_ABI, r);
  if (p->grid < 10) return answer(p->grid, r);
  q->grid = p->grid; q->sk_tiles = p->sk_tiles; q->sk_units = p->sk_units;
  q->partials_bytes = s->m * s->n * s->k; q->barrier_bytes = s->lda * s->ldb * s->ldc;
  return CUTLASS_SK_OK;
}
CUTLASS_SK_EXPORT int32_t cutlass_sk_prepare(CutlassSkLaunch const* l, void* p, int64_t bytes, CutlassSkResult* r) {
  if (bytes != sizeof(int64_t) || uint64_t(p) % 64 != 0) return answer(CUTLASS_SK_BAD_PLAN, r);
  *static_cast<int64_t*>(p) = l->problem.m;
  return answer(l->struct_bytes == sizeof *l ? l->device : int32_t(CUTLASS_SK_BAD_ABI), r);
}
#ifndef NO_ENQUEUE
CUTLASS_SK_EXPORT int32_t cutlass_sk_enqueue(void const* p, CutlassSkAddresses const* x, CutlassSkResult* r) {
  return answer(*static_cast<int64_t const*>(p) == int64_t(x->a) ? x->programmatic : int32_t(CUTLASS_SK_BAD_PROBLEM), r);
}
#endif
"""


def compile_host(source: str, output: Path, *flags: str) -> Path:
    code = output.with_suffix(".cpp")
    code.write_text(source)
    toolchain = find_toolchain()
    include = f"-I{toolchain.own_include}"
    subprocess.run([str(toolchain.host_compiler), "-std=c++17", include, *flags, "-o", str(output), str(code)], check=True)
    return output


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def compile_fake(*flags: str) -> Path:
        return compile_host(FAKE, tmp_path_factory.mktemp("fake") / "kernel.so", "-shared", "-fPIC", *flags)

    return compile_fake


@pytest.fixture(scope="module")
def kernel(library: Callable[..., Path]) -> Kernel:
    return Kernel(library())


def field_names(struct: type[ctypes.Structure]) -> list[str]:
    return [field[0] for field in struct._fields_]


def test_sizes_and_offsets_match(tmp_path: Path) -> None:
    """Every field of every struct: where it lies and how large it is, by the C++ compiler and by ctypes."""
    lines, expected = [], []
    for name, struct in STRUCTS.items():
        lines.append(f'std::printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        for field in field_names(struct):
            member = getattr(struct, field)
            lines.append(f'std::printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof({name}::{field}));')
            expected.append(f"{name}.{field} {member.offset} {member.size}")
    source = f"#include <cutlass_sk/abi.h>\n#include <cstddef>\n#include <cstdio>\nint main() {{ {' '.join(lines)} }}\n"
    printed = subprocess.run([compile_host(source, tmp_path / "sizes")], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == expected


def test_names_statuses_and_version_match() -> None:
    header = (find_toolchain().own_include / "cutlass_sk/abi.h").read_text()
    for name, struct in STRUCTS.items():
        body = re.sub(r"///.*", "", re.search(rf"struct {name} {{(.*?)}};", header, re.DOTALL)[1])  # type: ignore[index]
        declared = re.findall(r"(\w+)(?:\[\d+\])?\s*[,;]", body)
        assert declared == field_names(struct), name
    statuses = {name: int(value) for name, value in re.findall(r"CUTLASS_SK_(\w+) = (\d+),", header)}
    assert statuses == {status.name: status.value for status in abi.Status}
    assert re.search(rf"#define CUTLASS_SK_ABI_VERSION {abi.ABI_VERSION}\n", header)


def test_description(kernel: Kernel) -> None:
    description = kernel.description
    assert (description.name, description.tile, description.narrowest, description.cluster) == ("fake", (1, 2, 3), 13, (4, 5))
    assert (description.threads, description.stages, description.shared_memory_bytes) == (6, 7, 8)
    assert (description.alignment_a, description.alignment_b, description.alignment_c) == (9, 10, 11)
    assert (description.accumulator_fragments, description.partial_bytes) == (12, 1 << 40)
    assert "fake" in repr(kernel)


def test_query(kernel: Kernel) -> None:
    problem = problem_struct(2, 3, 5, 7, 11, 1 << 33)
    assert kernel.query(problem, plan_struct(PLAN)) == QueryResult(20, 25, 26, 30, 77 << 33)


def test_plan_struct_carries_every_field() -> None:
    struct = plan_struct(PLAN)
    values = {name: getattr(struct, name) for name in field_names(abi.PlanStruct)}
    same_name = {name: getattr(PLAN, name) for name in values if hasattr(PLAN, name)}
    own = {
        "struct_bytes": ctypes.sizeof(abi.PlanStruct),
        "nondeterministic": 0,
        "raster_along_n": 0,
        "promotion_iters": 2,
        "in_clusters": 1,
        "tile_n": PLAN.kernel.tile[1],
    }
    assert values == same_name | own
    other = plan_struct(replace(PLAN, reduction_mode="nondeterministic", raster_order="along_n", fixup="tree"))
    assert (other.nondeterministic, other.raster_along_n, other.in_clusters) == (1, 1, 0)
    wide = replace(SPEC, tile=(64, 256, 64), schedule="pingpong", narrowest=32, widest=256)
    assert [plan_struct(replace(PLAN, kernel=spec)).tile_n for spec in wide.variants] == list(wide.widths)


def test_refused_query_is_named(kernel: Kernel) -> None:
    message = r"query of fake failed with CUTLASS_SK_BAD_PLAN: grid is too large \(CUTLASS status 7, CUDA error 700\)"
    with pytest.raises(LaunchError, match=message):
        kernel.query(problem_struct(1, 1, 1, 1, 1, 1), plan_struct(replace(PLAN, grid=abi.Status.BAD_PLAN)))


def test_a_launch_is_prepared_and_enqueued(kernel: Kernel) -> None:
    size = ctypes.sizeof(abi.LaunchStruct)
    prepared = kernel.prepare(abi.LaunchStruct(struct_bytes=size, problem=problem_struct(77, 1, 1, 1, 1, 1)))
    assert prepared.address % 64 == 0
    kernel.enqueue(prepared, abi.AddressesStruct(a=77))
    with pytest.raises(LaunchError, match="launch of fake failed with CUTLASS_SK_BAD_PROBLEM"):
        kernel.enqueue(prepared, abi.AddressesStruct(a=78))
    with pytest.raises(LaunchError, match="launch of fake failed with CUTLASS_SK_CAPTURING"):
        kernel.enqueue(prepared, abi.AddressesStruct(a=77, programmatic=abi.Status.CAPTURING))
    with pytest.raises(LaunchError, match="launch of fake failed with CUTLASS_SK_MISALIGNED"):
        kernel.prepare(abi.LaunchStruct(struct_bytes=size, device=4))
    with pytest.raises(LaunchError, match="CUTLASS_SK_BAD_ABI"):
        kernel.prepare(abi.LaunchStruct(device=0))
    with pytest.raises(LaunchError, match="unknown status 99"):
        kernel.prepare(abi.LaunchStruct(struct_bytes=size, device=99))
    assert kernel.enqueue_address


def test_wrong_library(library: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"version 99 of the kernel ABI and answers CUTLASS_SK_BAD_ABI.*speaks version 3"):
        Kernel(library("-DVERSION=99"))
    with pytest.raises(KernelError, match="cutlass_sk_enqueue"):
        Kernel(library("-DNO_ENQUEUE"))
    with pytest.raises(KernelError, match=r"absent\.so cannot be loaded"):
        Kernel(tmp_path / "absent.so")
    (tmp_path / "text.so").write_text("no shared object")
    with pytest.raises(KernelError, match=r"text\.so cannot be loaded"):
        Kernel(tmp_path / "text.so")


def test_struct_of_another_size_is_refused(library: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Longer(ctypes.Structure):
        _fields_ = (*abi.DescriptionStruct._fields_, ("more", ctypes.c_int64))

    path = library()
    monkeypatch.setattr(abi, "DescriptionStruct", Longer)
    with pytest.raises(KernelError, match="CUTLASS_SK_BAD_ABI"):
        Kernel(path)


class FakeEntry:
    def __init__(self, library: Path) -> None:
        self.library = library


def test_threads_share_one_kernel_and_different_kernels_build_side_by_side(
    library: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, built = library(), []
    everyone, side_by_side = threading.Barrier(8, timeout=20), threading.Barrier(2, timeout=20)

    def build_one(spec: KernelSpec, architecture: str) -> FakeEntry:
        built.append((spec, architecture))
        side_by_side.wait()  # passed only if both specs are being built at once
        time.sleep(0.2)  # the other threads come to wait for this one
        return FakeEntry(path)

    monkeypatch.setattr(kernel_module, "build_one", build_one)
    monkeypatch.setattr(kernel_module, "_kernels", {})
    specs = [SPEC, SPEC.with_layouts("n", "t")]
    loaded: list[tuple[KernelSpec, Kernel]] = []

    def load(spec: KernelSpec) -> None:
        everyone.wait()
        loaded.append((spec, load_kernel(spec, "90a")))

    threads = [threading.Thread(target=load, args=(spec,)) for spec in specs * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(loaded) == 8 and len(built) == 2
    for spec in specs:
        assert {kernel for of, kernel in loaded if of == spec} == {load_kernel(spec, "90a")}


def test_a_binary_is_loaded_once_for_all_of_its_widths(library: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[KernelSpec] = []

    def build_one(spec: KernelSpec, architecture: str) -> FakeEntry:
        built.append(spec)
        return FakeEntry(library())

    monkeypatch.setattr(kernel_module, "build_one", build_one)
    monkeypatch.setattr(kernel_module, "_kernels", {})
    wide = replace(SPEC, tile=(64, 256, 64), schedule="pingpong", narrowest=32, widest=256)
    assert len({load_kernel(spec, "90a") for spec in wide.variants}) == 1 and built == [wide]


def test_failed_build_is_tried_again(library: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[KernelError | FakeEntry] = [KernelError("first"), FakeEntry(library())]

    def build_one(spec: KernelSpec, architecture: str) -> FakeEntry:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(kernel_module, "build_one", build_one)
    monkeypatch.setattr(kernel_module, "_kernels", {})
    with pytest.raises(KernelError, match="first"):
        load_kernel(SPEC, "90a")
    assert load_kernel(SPEC, "90a").description.name == "fake"


def test_a_library_that_is_removed_before_it_is_loaded_is_built_again(
    library: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [FakeEntry(tmp_path / "cleared.so"), FakeEntry(library())]
    monkeypatch.setattr(kernel_module, "build_one", lambda spec, architecture: outcomes.pop(0))
    monkeypatch.setattr(kernel_module, "_kernels", {})
    assert load_kernel(SPEC, "90a").description.name == "fake"


def test_a_filesystem_without_execution_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kernel.so"
    path.write_bytes(b"not a library")
    with pytest.raises(KernelError, match="cannot be loaded as a kernel") as caught:
        Kernel(path)
    assert "noexec" not in str(caught.value) and "another machine built it, set CUTLASS_SK_CACHE_DIR" in str(caught.value)
    with pytest.raises(KernelError) as caught:  # of a library of several, which came compiled
        Kernel(path, "_0")
    assert "CUTLASS_SK_CACHE_DIR" not in str(caught.value)
    monkeypatch.setattr(os, "statvfs", lambda path: type("Status", (), {"f_flag": os.ST_NOEXEC}))
    with pytest.raises(KernelError, match="its filesystem is mounted noexec: set CUTLASS_SK_CACHE_DIR"):
        Kernel(path)


def test_a_fork_while_a_kernel_is_loading_leaves_no_lock_behind() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with kernel_module._locks_guard:
            held.set()
            done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if kernel_module._locks_guard.acquire(timeout=5) else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 0
