"""Real kernels, compiled for every architecture and loaded without a GPU: they are what their spec says, agree with the planner
about every plan, refuse what they cannot run, and use the tensor cores."""

from __future__ import annotations

import ctypes
import json
import random
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cutlass_sk.device import preset
from cutlass_sk.errors import CompileError, LaunchError, PlanError
from cutlass_sk.generator import abi, families
from cutlass_sk.generator.emit import emit
from cutlass_sk.generator.spec import ELEMENT_BYTES, KernelSpec
from cutlass_sk.jit.build import Source, build_one, compile_sources
from cutlass_sk.kernel import Kernel, QueryResult, load_kernel, plan_struct, problem_struct
from cutlass_sk.options import INT_MAX, Options
from cutlass_sk.plan import CLUSTER_SPLITS, DECOMPOSITIONS, RASTER_ORDERS, REDUCTION_MODES, Plan
from cutlass_sk.planner import make_plan

pytestmark = pytest.mark.compiles

HALVES = families("float16", "float16", "sm90a")
FIRST = HALVES[0]
CLUSTERED = next(spec for spec in HALVES if spec.cluster_fixup)
COOPERATIVE = next(spec for spec in HALVES if spec.schedule == "cooperative")
PROMOTABLE = next(spec for spec in families("float16", "float32", "sm90a") if spec.promotable)
DOUBLE, *_, DOUBLE_OF_ANY_SIZE = families("float64", "float64", "sm90a")
(AMPERE,) = families("float16", "float16", "sm80")
(AMPERE_DOUBLE,) = families("float64", "float64", "sm80")
HOPPER = (FIRST, CLUSTERED, COOPERATIVE, PROMOTABLE, DOUBLE, DOUBLE_OF_ANY_SIZE)
"""One kernel of each kind: each takes 10 to 15 s of nvcc."""
HOST_SIDE = [*((spec, "90a") for spec in HOPPER), (AMPERE, "80"), (AMPERE_DOUBLE, "80")]
"""One build of each kernel: host code is the same for all architectures."""
BUILT = [*HOST_SIDE, (AMPERE, "86"), (AMPERE, "89")]

SHARED_MEMORY_BYTES = {"80": 163 << 10, "86": 99 << 10, "89": 99 << 10, "90a": 227 << 10}
"""The most that a CTA may have, by the CUDA programming guide."""


def tensor_cores(spec: KernelSpec) -> str:
    """The one instruction that a kernel's machine code is to multiply with."""
    if spec.dtype == "float64":
        return r"DMMA\.16x8x4" if spec.generation == "sm90a" else r"DMMA\.8x8x4|DMMA\.884"
    return rf"HGMMA\.64x({'|'.join(map(str, spec.widths))})x16\.F32" if spec.api == "3x" else r"HMMA\.16816\.F32"


every_build = pytest.mark.parametrize(("spec", "architecture"), BUILT, ids=str)
every_kernel = pytest.mark.parametrize(("spec", "architecture"), HOST_SIDE, ids=str)


@pytest.fixture(autouse=True, scope="module")
def built_side_by_side() -> None:
    """What the tests build one by one, at once. Those that use a kernel that does not compile say so themselves."""
    with suppress(CompileError):
        compile_sources([Source(spec.name, emit(spec), architecture) for spec, architecture in BUILT])


def query(kernel: Kernel, plan: Plan) -> QueryResult:
    return kernel.query(problem_struct(plan.m, plan.n, plan.k, plan.k, plan.n, plan.n), plan_struct(plan))


def said_by(plan: Plan) -> QueryResult:
    return QueryResult(plan.grid, plan.sk_tiles, plan.sk_units, plan.partials_bytes, plan.barrier_bytes)


@every_build
def test_a_kernel_is_what_its_spec_says(spec: KernelSpec, architecture: str) -> None:
    description = load_kernel(spec, architecture).description
    assert description.name == spec.name
    assert (description.tile, description.narrowest, description.cluster) == (spec.tile, spec.widths[0], spec.cluster)
    assert (description.alignment_a, description.alignment_b) == (spec.alignment, spec.alignment)
    assert description.alignment_c == spec.alignment_c
    assert description.partial_bytes == spec.partial_bytes
    assert description.accumulator_fragments == spec.accumulator_fragments
    tile_m, tile_n, tile_k = spec.tile
    stage_bytes = (tile_m + tile_n) * tile_k * ELEMENT_BYTES[spec.dtype]
    assert description.stages * stage_bytes <= description.shared_memory_bytes <= SHARED_MEMORY_BYTES[architecture]
    assert description.cluster_fixup == spec.cluster_fixup
    if spec.persistent:
        assert description.threads == 128 * (2 if spec.schedule == "single" else 3)
        assert description.stages == spec.stages if spec.stages else description.stages >= 3
    else:
        assert (description.threads, description.stages) == (32 * spec.warps[0] * spec.warps[1], spec.stages)


def random_plan(spec: KernelSpec, chance: random.Random) -> Plan | None:
    """Any problem up to the largest, on any device, under any options; None where the planner has no plan."""
    most = chance.choice([8, 12, 16, 31])
    m, n, k = (int(2 ** chance.uniform(0, most)) for _ in range(3))
    device = preset(chance.choice(["h200", "a100", f"toy:{chance.randint(1, 200)}"]))
    forced: dict[str, Any] = {"decomposition": chance.choice([None, *DECOMPOSITIONS])}
    if forced["decomposition"] == "split_k":
        forced["splits"] = chance.choice([None, chance.randint(1, 100)])
    if forced["decomposition"] == "stream_k":
        forced["sk_tiles"] = chance.choice([None, chance.randint(1, 500)])
        forced["sk_units"] = chance.choice([None, chance.randint(1, 5000)])
    forced["sms"] = chance.choice([None, chance.randint(1, device.sms)])
    forced["reduction_mode"] = chance.choice(REDUCTION_MODES)
    if spec.persistent:
        forced["raster_order"] = chance.choice([None, *RASTER_ORDERS])
        forced["raster_swizzle"] = chance.choice([None, chance.randint(1, 9), INT_MAX])
    forced["tile_n"] = chance.choice([None, *spec.widths])
    try:
        return make_plan(m, n, k, spec.variants, device, Options(**forced))
    except PlanError:
        return None


@every_kernel
def test_the_kernel_and_the_planner_agree_about_every_plan(spec: KernelSpec, architecture: str) -> None:
    kernel, chance = load_kernel(spec, architecture), random.Random(2301_03598)
    plans = [plan for _ in range(2600) if (plan := random_plan(spec, chance)) is not None][:2000]
    assert len(plans) == 2000
    for plan in plans:
        assert query(kernel, plan) == said_by(plan), plan
    kinds = {(plan.decomposition, plan.peers > 1, plan.reduction_ctas > 0) for plan in plans}
    assert len(kinds) >= (4 if spec.persistent else 6)
    assert ("cluster" in {plan.fixup for plan in plans}) == spec.cluster_fixup
    assert (len({plan.promotion for plan in plans} - {0}) > 0) == spec.promotable
    assert {plan.kernel for plan in plans} == set(spec.variants)


@every_kernel
@pytest.mark.parametrize(
    ("size", "forced"),
    [
        ((1, 1, INT_MAX), {}),
        ((1, 1, INT_MAX), {"decomposition": "stream_k", "sk_units": INT_MAX}),
        ((1, 1, INT_MAX), {"decomposition": "split_k", "splits": INT_MAX}),
        ((1, 1, 2**24), {"decomposition": "stream_k", "sk_units": INT_MAX}),
        ((1, 1, 2**25), {"decomposition": "stream_k", "sk_units": 2**20 - 1}),
        ((1000, 1000, 2**20), {"decomposition": "stream_k", "sk_units": INT_MAX}),
        ((INT_MAX, 1, 1), {}),
        ((1, INT_MAX, 1), {"decomposition": "stream_k"}),
        ((INT_MAX, 4096, 1), {}),
    ],
    ids=str,
)
def test_the_kernel_takes_the_largest_plans(spec: KernelSpec, architecture: str, size: Any, forced: Any) -> None:
    for used in spec.variants:
        with suppress(PlanError):
            plan = make_plan(*size, [used], preset("h200"), Options(**forced))
            assert query(load_kernel(spec, architecture), plan) == said_by(plan)


# What is refused. In another process: a kernel that dies is a failure, and not the end of the tests.

CORRUPTIONS = """
import ctypes, json, sys
from cutlass_sk.device import preset
from cutlass_sk.errors import LaunchError
from cutlass_sk.generator import abi, find
from cutlass_sk.kernel import load_kernel, plan_struct, problem_struct
from cutlass_sk.options import Options
from cutlass_sk.planner import Scored, build, make_plan
from cutlass_sk.work import Choice, cut_up

spec, architecture = find(sys.argv[1]), sys.argv[2]
kernel = load_kernel(spec, architecture)
INT_MAX = 2**31 - 1

def refusal(action):
    try:
        action()
    except LaunchError as error:
        return str(error).partition(" failed with ")[2].partition(":")[0]
    return "accepted"

def launched(problem, plan, **changes):
    launch = abi.LaunchStruct(struct_bytes=ctypes.sizeof(abi.LaunchStruct), problem=problem, plan=plan)
    launch.addresses = abi.AddressesStruct(a=1 << 20, b=1 << 21, c=1 << 22, alpha=1.0, partials=1 << 23, barriers=1 << 24)
    for name, value in changes.items():
        setattr(launch if name in ("struct_bytes", "device") else launch.addresses, name, value)
    return refusal(lambda: kernel.prepare(launch))

def values(value):
    return sorted({0, 1, -1, 2, value - 1, value + 1, 2 * value, -value, INT_MAX, INT_MAX - 1, -INT_MAX - 1, 1 << 30} - {value})

report = {"plans": [], "problems": [], "operands": []}
for forced in json.loads(sys.argv[3]):
    m, n, k = 1024, 2048, 4096
    if "in_clusters" in forced:
        work, splits = cut_up(m, n, k, spec, preset("h200")), forced["in_clusters"]
        plan = build(Scored(1.0, work, Choice(work.work_tiles, work.work_tiles * splits, splits, True)), Options())
    else:
        plan = make_plan(m, n, k, spec.variants, preset("h200"), Options(**forced))
    problem = problem_struct(m, n, k, k, n, n)
    fields = [name for name, _ in abi.PlanStruct._fields_]
    good = {name: getattr(plan_struct(plan), name) for name in fields}
    assert refusal(lambda: kernel.query(problem, plan_struct(plan))) == "accepted"
    changes = [{name: value} for name in fields for value in values(good[name])]
    moved = (1, -1, 2, -2, INT_MAX // 2, -(INT_MAX // 2))
    changes += [{"dp_tiles": good["dp_tiles"] + d, "sk_tiles": good["sk_tiles"] - d} for d in moved]
    changes += [{"tiles_m": good["tiles_n"], "tiles_n": good["tiles_m"]}]
    changes += [{"tiles_m": -good["tiles_m"], "tiles_n": -good["tiles_n"]}]
    changes += [{"sk_units": 0, "sk_tiles": 0}, {"sk_units": 0, "sk_tiles": 0, "dp_tiles": good["dp_tiles"] + good["sk_tiles"]}]
    changes += [{"splits": s, "sk_units": u} for s in (2, 3, INT_MAX) for u in (good["sk_units"], s, INT_MAX)]
    for change in changes:
        corrupted = good | change
        struct = abi.PlanStruct(**corrupted)
        asked = refusal(lambda: kernel.query(problem, struct))
        # A plan that is accepted may be right; it is not launched here.
        report["plans"].append([corrupted, asked, asked if asked == "accepted" else launched(problem, struct)])
    for name in ("m", "n", "k"):
        size = getattr(problem, name)
        for value in (0, -1, -size, size + spec.tile[2] * spec.tile[0] * 2, 2**31, 2**32 + size, 2**63 - 1, -(2**63)):
            other = problem_struct(m, n, k, k, n, n)
            setattr(other, name, value)
            asked = refusal(lambda: kernel.query(other, plan_struct(plan)))
            report["problems"].append([{name: value}, asked, launched(other, plan_struct(plan))])
    wrong = [("lda", v) for v in (0, -1, k - 1, -k)] + [("ldb", v) for v in (0, n - 1)] + [("ldc", v) for v in (0, n - 1, -n)]
    for name, value in wrong:
        other = problem_struct(m, n, k, k, n, n)
        setattr(other, name, value)
        report["operands"].append([{name: value}, launched(other, plan_struct(plan)), "CUTLASS_SK_BAD_PROBLEM"])
    for name, alignment in (("lda", spec.alignment), ("ldb", spec.alignment), ("ldc", spec.alignment_c)):
        if alignment > 1:
            other = problem_struct(m, n, k, k, n, n)
            setattr(other, name, getattr(other, name) + 1)
            report["operands"].append([{name: "+1"}, launched(other, plan_struct(plan)), "CUTLASS_SK_MISALIGNED"])
    for name in ("a", "b", "c"):
        report["operands"].append([{name: 1025}, launched(problem, plan_struct(plan), **{name: 1025}), "CUTLASS_SK_MISALIGNED"])
    if plan.workspace_bytes:
        for change in ({"partials": None}, {"barriers": None}, {"partials": 64}):
            report["operands"].append([change, launched(problem, plan_struct(plan), **change), "CUTLASS_SK_BAD_PLAN"])
    report["operands"].append([{"struct_bytes": 1}, launched(problem, plan_struct(plan), struct_bytes=1), "CUTLASS_SK_BAD_ABI"])
    for device in (-1, INT_MAX, -INT_MAX - 1, 1000):
        answer = launched(problem, plan_struct(plan), device=device)
        report["operands"].append([{"device": device}, answer, "CUTLASS_SK_CUDA_ERROR"])
print(json.dumps(report))
"""

FORCED: list[dict[str, Any]] = [
    {"decomposition": "data_parallel"},
    {"decomposition": "split_k", "splits": 3},
    {"decomposition": "stream_k", "sk_tiles": 12, "sk_units": 8},
    {"decomposition": "stream_k", "sk_tiles": 12, "sk_units": 60},
]


def is_legal(spec: KernelSpec, plan: dict[str, int]) -> bool:
    """The conditions on a plan for 1024 x 2048 x 4096, once more and in words of Python."""
    if plan["tile_n"] not in spec.widths:
        return False
    spec, size = spec.at(plan["tile_n"]), spec.cluster_size
    rows, columns = (2048, 1024) if spec.swapped else (1024, 2048)
    work_m, work_n = -(-rows // (spec.tile[0] * spec.cluster[0])), -(-columns // (spec.tile[1] * spec.cluster[1]))
    if plan["struct_bytes"] != 4 * len(plan) or plan["iters_per_tile"] != -(-4096 // spec.tile[2]):
        return False
    if (plan["tiles_m"], plan["tiles_n"]) != (work_m * spec.cluster[0], work_n * spec.cluster[1]):
        return False
    shared, units, splits = plan["sk_tiles"] // size, plan["sk_units"], plan["splits"]
    if plan["dp_tiles"] + plan["sk_tiles"] != work_m * work_n * size or plan["dp_tiles"] < 0 or plan["sk_tiles"] % size:
        return False
    if not 0 <= units <= shared * plan["iters_per_tile"] or (units == 0) != (shared == 0) or splits < 1:
        return False
    if splits > 1 and (splits > plan["iters_per_tile"] or units != shared * splits):
        return False
    if plan["in_clusters"] and not (
        spec.cluster_fixup and splits in CLUSTER_SPLITS and plan["dp_tiles"] == 0 and units == plan["grid"]
    ):
        return False
    if plan["promotion_iters"] < 0 or (plan["promotion_iters"] and not spec.takes_promotion):
        return False
    if spec.persistent:
        workers, rest = divmod(plan["grid"], size)
        counts = workers + units + work_m * work_n
        return (
            rest == 0
            and max(units, 1) <= workers
            and counts <= INT_MAX
            and plan["reduction_ctas"] == 0
            and plan["raster_swizzle"] >= 1
        )
    return (
        plan["grid"] == units + plan["dp_tiles"] + plan["reduction_ctas"]
        and plan["reduction_ctas"] in (0, shared * spec.accumulator_fragments)
        and plan["nondeterministic"] == 0
        and bool(plan["raster_along_n"]) == (work_m >= work_n)
        and plan["raster_swizzle"] == 1
    )


@every_kernel
def test_corrupted_plans_and_operands_are_refused(spec: KernelSpec, architecture: str) -> None:
    load_kernel(spec, architecture)  # built here, with its progress and errors
    forced = [*FORCED, *({"in_clusters": splits} for splits in (2, 8) if spec.cluster_fixup)]
    forced += [{**one, "tile_n": spec.narrowest} for one in FORCED[1:3] if spec.narrowest]
    command = [sys.executable, "-c", CORRUPTIONS, spec.name, architecture, json.dumps(forced)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"the process ended with {done.returncode}: {done.stderr[-2000:]}"
    report = json.loads(done.stdout)
    for plan, asked, launched in report["plans"]:
        if is_legal(spec, plan):
            assert asked == "accepted", plan
        else:
            expected = "CUTLASS_SK_BAD_ABI" if plan["struct_bytes"] != 4 * len(plan) else "CUTLASS_SK_BAD_PLAN"
            assert (asked, launched) == (expected, expected), plan
    refused = [asked for _, asked, _ in report["plans"] if asked != "accepted"]
    assert len(refused) > 400 and len(refused) < len(report["plans"])
    for change, asked, launched in report["problems"]:
        (value,) = change.values()
        expected = "CUTLASS_SK_BAD_PLAN" if 1 <= value <= INT_MAX else "CUTLASS_SK_BAD_PROBLEM"
        assert (asked, launched) == (expected, expected), change
    for change, launched, expected in report["operands"]:
        assert launched == expected, change


@every_kernel
def test_a_launch_without_a_gpu_names_the_cuda_error(spec: KernelSpec, architecture: str) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("a machine without a GPU is needed.")
    plan = make_plan(64, 64, 64, [spec], preset("h200"))
    launch = abi.LaunchStruct(struct_bytes=ctypes.sizeof(abi.LaunchStruct))
    launch.problem, launch.plan = problem_struct(64, 64, 64, 64, 64, 64), plan_struct(plan)
    launch.addresses = abi.AddressesStruct(a=1 << 20, b=1 << 21, c=1 << 22, partials=1 << 23, barriers=1 << 24)
    with pytest.raises(
        LaunchError,
        match=rf"launch of {spec.name} failed with CUTLASS_SK_CUDA_ERROR: cudaSetDevice: cudaError\w+ \(.*CUDA error [1-9]",
    ):
        load_kernel(spec, architecture).prepare(launch)


# The binaries.


def cuda_tool(name: str) -> str:
    from cuda.pathfinder import find_nvidia_binary_utility

    found = find_nvidia_binary_utility(name)
    assert found, f"{name} is needed: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    return str(found)


def cuobjdump(*arguments: str) -> str:
    """cuobjdump disassembles through nvdisasm, which it finds beside itself or in PATH."""
    path = f"{Path(cuda_tool('nvdisasm')).parent}:/usr/bin:/bin"
    command = [cuda_tool("cuobjdump"), *arguments]
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=True).stdout


@every_build
def test_the_tensor_cores_are_used(spec: KernelSpec, architecture: str) -> None:
    code = cuobjdump("-sass", str(build_one(spec, architecture).library))
    used = re.findall(r"\b((?:HG|H|D|I|QG)MMA\.[\w.]*)", code)
    assert len(used) >= 4
    assert all(re.match(tensor_cores(spec), instruction) for instruction in used), set(used)
    assert set(re.findall(r"arch = (sm_\w+)", code)) == {f"sm_{architecture}"}
    if spec.api == "3x":
        assert "UTMALDG" in code
    else:
        assert "LDGSTS" in code


@pytest.mark.parametrize("spec", (FIRST, CLUSTERED, COOPERATIVE, PROMOTABLE), ids=str)
def test_wgmma_instructions_do_not_wait_for_each_other(spec: KernelSpec) -> None:
    """Where ptxas cannot keep sums in one place it commits and waits for every instruction (C7510 to C7515). Each width has a loop,
    two with promotion, whose instructions for a k-tile are committed together."""
    found = re.findall(r"HGMMA\.64x(\d+)x16\.F32.*?(gsb0)?\s*;", cuobjdump("-sass", str(build_one(spec, "90a").library)))
    for width, variant in zip(spec.widths, spec.variants, strict=True):
        committed = [bool(last) for n, last in found if int(n) == width]
        each = 4 * spec.tile[0] // (64 * spec.tile_warpgroups)
        assert committed == ([False] * (each - 1) + [True]) * (1 + variant.takes_promotion), (width, committed)


@every_build
def test_a_library_holds_its_target_only_and_exports_four_names(spec: KernelSpec, architecture: str) -> None:
    library = str(build_one(spec, architecture).library)
    assert set(re.findall(r"\.(sm_\w+)\.cubin", cuobjdump("-lelf", library))) == {f"sm_{architecture}"}
    assert ".ptx" not in cuobjdump("-lptx", library)
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    kinds = {name: kind for _, kind, name in map(str.split, symbols.splitlines())}
    # Other kernels have templates of the same names: what is exported, or unique, could be merged with theirs.
    assert {name for name, kind in kinds.items() if kind == "T"} == {abi.DESCRIBE, abi.QUERY, abi.PREPARE, abi.ENQUEUE}
    assert not [name for name, kind in kinds.items() if kind == "u" or ("cutlass" in name and kind != "T")]


APART = """
import ctypes, json, sys
from cutlass_sk.kernel import Kernel
kernels = [Kernel(path) for path in sys.argv[1:]]
addresses = [[ctypes.cast(f, ctypes.c_void_p).value for f in (k._describe, k._query, k._prepare, k._enqueue)] for k in kernels]
print(json.dumps([[k.description.name, k._read_description().name, k.description.partial_bytes] for k in kernels]))
print(len({address for four in addresses for address in four}))
"""


def test_kernels_in_one_process_keep_apart() -> None:
    """Two of one tile, and one kernel for three architectures, whose C++ names are all the same; loaded in either order."""
    for order in (BUILT, BUILT[::-1]):
        libraries = [str(build_one(spec, architecture).library) for spec, architecture in order]
        done = subprocess.run([sys.executable, "-c", APART, *libraries], capture_output=True, text=True, check=True)
        described, addresses = done.stdout.splitlines()
        assert json.loads(described) == [[spec.name, spec.name, spec.partial_bytes] for spec, _ in order]
        assert int(addresses) == 4 * len(order)


def test_one_kernel_for_two_architectures_is_two_entries() -> None:
    entries = [build_one(AMPERE, architecture) for architecture in ("80", "86", "89")]
    assert len({entry.key for entry in entries}) == 3
    assert [entry.architecture for entry in entries] == ["80", "86", "89"]
    assert len({entry.source.read_text() for entry in entries}) == 1
    assert load_kernel(AMPERE, "80") is load_kernel(AMPERE, "80") is not load_kernel(AMPERE, "86")


def test_a_float64_stage_is_given_back_after_its_last_reads() -> None:
    """ptxas sees no harm in an arrival that overtakes ld.shared; TMA then writes what is still to be read. Only a fence keeps them
    apart: between the last read and an arrival at a stage's barrier there is one."""
    code = cuobjdump("-sass", str(build_one(DOUBLE, "90a").library))
    kept = re.findall(r"LDS\.|FENCE\.VIEW\.ASYNC|@!P\d SYNCS\.ARRIVE\.TRANS64\.A1T0", code)
    releases = [number for number, name in enumerate(kept) if "SYNCS" in name and "LDS." in kept[:number]]
    assert len(releases) >= 2, "one in the loop, one after it"
    assert all("FENCE" in kept[number - 1] for number in releases)
