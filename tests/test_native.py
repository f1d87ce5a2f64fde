"""Repeated calls, natively: on CPU tensors, with a C function that records what it would launch in the kernel's place."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import resource
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cutlass_sk import Gemm, call, extension, packing, workspace
from cutlass_sk.generator import abi

native = extension.native
needs_native = pytest.mark.skipif(native is None, reason=f"the native extension: {extension.missing}")

HOOK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(abi.AddressesStruct), ctypes.c_void_p)

PACK_HOOK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(abi.PackStruct), ctypes.c_void_p)


class Recorder:
    """A kernel's enqueue function: answers ``status``, and keeps the addresses of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, abi.AddressesStruct]] = []
        self.status = 0
        self.function = HOOK(self._enqueue)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value or 0

    def _enqueue(self, prepared: int, addresses: Any, result: int) -> int:
        self.calls.append((prepared, abi.AddressesStruct.from_buffer_copy(addresses.contents)))
        return self.status


class Owner:
    """Something that keeps memory."""


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(autouse=True)
def no_workspaces() -> Iterator[None]:
    yield
    if native is not None:
        native.forget_workspaces()


def operands(m: int = 32, n: int = 48, k: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b, c = (torch.zeros(rows, columns, dtype=torch.float16) for rows, columns in ((m, k), (k, n), (m, n)))
    return a, b, c


def known(recorder: Recorder, *tensors: torch.Tensor, partials: int = 0, barriers: int = 0, programmatic: bool = True) -> Any:
    """A table with one call."""
    out_dtype = tensors[2].dtype
    table = native.Calls(4096, None if out_dtype == tensors[0].dtype else out_dtype)  # type: ignore[union-attr]
    table.add(*tensors, recorder.address, 4711, None, partials, barriers, programmatic)
    return table


@needs_native
def test_a_known_call_is_launched_and_nothing_else(recorder: Recorder) -> None:
    a, b, c = operands()
    table = known(recorder, a, b, c)
    version = c._version
    assert table.repeat(a, b, c, 2.5, -1) is c
    ((prepared, launched),) = recorder.calls
    assert prepared == 4711
    assert (launched.a, launched.b, launched.c) == (a.data_ptr(), b.data_ptr(), c.data_ptr())
    assert (launched.alpha, launched.beta, launched.stream, launched.programmatic) == (2.5, -1.0, None, 1)
    assert (launched.partials, launched.barriers, launched.eager) == (None, None, 0)
    assert c._version == version + 1
    others = [torch.ones_like(x) for x in (a, b, c)]
    assert table.repeat(*others, 1.0, 0.0) is others[2] and recorder.calls[1][1].b == others[1].data_ptr()
    assert table.repeat(*operands(32, 48, 24), 1.0, 0.0) is None and len(recorder.calls) == 2 and len(table) == 1


@needs_native
@pytest.mark.parametrize("out_dtype", [torch.float16, torch.float32])
def test_without_c_a_new_one_is_made(recorder: Recorder, out_dtype: torch.dtype) -> None:
    a, b, c = operands()
    table = known(recorder, a, b, c.to(out_dtype))
    result = table.repeat(a, b, None, 1, 0)
    assert (result.shape, result.dtype, result.is_contiguous(), result._version) == (c.shape, out_dtype, True, 0)
    assert recorder.calls[0][1].c == result.data_ptr()
    assert table.repeat(a, b, None, 1.0, 1.0) is None  # there is no c to scale
    assert table.repeat(a, operands(n=40)[1], None, 1.0, 0.0) is None and len(recorder.calls) == 1


@needs_native
def test_a_view_of_the_same_strides_is_another_call_than_one_of_others(recorder: Recorder) -> None:
    _, b, c = operands()
    wide = torch.zeros(32, 64, dtype=torch.float16)
    table = known(recorder, wide[:, :16], b, c)
    assert table.repeat(wide[:, 16:32], b, c, 1.0, 0.0) is c
    assert table.repeat(wide[:, :16].contiguous(), b, c, 1.0, 0.0) is None
    assert table.repeat(wide[:, 1:17], b, c, 1.0, 0.0) is None  # not aligned
    table.add(wide[:, 1:17], b, c, recorder.address, 815, None, 0, 0, True)
    assert table.repeat(wide[:, 17:33], b, c, 1.0, 0.0) is c and [prepared for prepared, _ in recorder.calls] == [4711, 815]


class Packer:
    """The function that packs operands: copies as it is told, or answers ``status``."""

    def __init__(self) -> None:
        self.given: list[abi.PackStruct] = []
        self.status = 0
        self.function = PACK_HOOK(self._pack)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value or 0

    def _pack(self, given: Any, result: int) -> int:
        self.given.append(abi.PackStruct.from_buffer_copy(given.contents))
        for matrix in given.contents.matrices:
            for line in range(matrix.lines):
                start = matrix.from_ + line * matrix.from_leading
                ctypes.memmove(matrix.to + line * matrix.to_leading, start, matrix.line_bytes)
        return self.status


def packs(*pairs: tuple[torch.Tensor, torch.Tensor] | None) -> bytes:
    """What is given to pack a and b as these pairs are copied."""
    given = abi.PackStruct(struct_bytes=ctypes.sizeof(abi.PackStruct))
    for number, pair in enumerate(pairs):
        if pair is not None:
            lines = packing.as_lines(*pair)
            assert lines is not None
            given.matrices[number] = lines
    return bytes(given)


@needs_native
def test_operands_of_a_known_call_are_packed_into_new_memory(recorder: Recorder) -> None:
    a, b, c = torch.randn(6, 13).half(), torch.randn(13, 48).half(), torch.zeros(6, 48, dtype=torch.float16)
    packer, framed_a, framed_b = Packer(), torch.zeros(6, 16).half()[:, :13], torch.zeros(13, 56).half()[:, :48]
    seen: list[torch.Tensor] = []

    def look(prepared: int, addresses: Any, result: int) -> int:
        """While the launch is enqueued the copies are there."""
        for address, frame in ((addresses.contents.a, framed_a), (addresses.contents.b, framed_b)):
            rows, leading = frame.shape[0], frame.stride(0)
            memory = (ctypes.c_int16 * (rows * leading)).from_address(address)
            seen.append(torch.frombuffer(bytearray(memory), dtype=torch.float16).view(rows, leading)[:, : frame.shape[1]].clone())
        return recorder._enqueue(prepared, addresses, result)

    hook = HOOK(look)
    enqueue = ctypes.cast(hook, ctypes.c_void_p).value
    table = native.Calls(16, None)  # type: ignore[union-attr]
    table.add(a, b, c, enqueue, 4711, None, 0, 0, True, packer.address, packs((a, framed_a), (b, framed_b)))
    for _ in range(2):
        a, b = torch.randn_like(a), torch.randn_like(b)
        assert table.repeat(a, b, c, 1.0, 0.0) is c
        given, (_, launched) = packer.given[-1], recorder.calls[-1]
        assert (given.matrices[0].from_, given.matrices[1].from_) == (a.data_ptr(), b.data_ptr())
        assert (given.matrices[0].to, given.matrices[1].to) == (launched.a, launched.b)
        assert launched.b - launched.a == 256 and launched.a % 16 == 0 and given.programmatic == 1 and given.stream is None
        assert torch.equal(seen.pop(), b) and torch.equal(seen.pop(), a)


@needs_native
def test_an_operand_that_is_not_packed_is_used_as_it_lies(recorder: Recorder) -> None:
    a, b, c = operands()
    packer, framed = Packer(), torch.zeros(16, 56).half()[:, :48]
    table = native.Calls(16, None)  # type: ignore[union-attr]
    table.add(a, b, c, recorder.address, 1, None, 0, 0, False, packer.address, packs(None, (b, framed)))
    assert table.repeat(a, b, c, 1.0, 0.0) is c
    ((_, launched),) = recorder.calls
    assert launched.a == a.data_ptr() and launched.b == packer.given[0].matrices[1].to != b.data_ptr()
    assert packer.given[0].matrices[0].lines == 0 and packer.given[0].programmatic == 0
    packer.status = 5
    assert table.repeat(a, b, c, 1.0, 0.0) is None and len(recorder.calls) == 1
    with pytest.raises(ValueError, match="what is packed takes"):
        table.add(a, b, c, recorder.address, 1, None, 0, 0, False, packer.address, b"short")


@needs_native
@pytest.mark.parametrize(
    ("current", "capturing", "partials", "packs_it"), [(0, True, 0, True), (1, False, 0, False), (0, True, 8, False)]
)
def test_nothing_is_packed_for_a_launch_that_would_be_refused(
    current: int, capturing: bool, partials: int, packs_it: bool, recorder: Recorder
) -> None:
    """On another device than the current one, or in a capture, where a call that shares tiles needs memory of the graph."""
    a, b, c = operands()
    packer = Packer()
    table = native.Calls(16, None)  # type: ignore[union-attr]
    given = packs((a, torch.zeros(32, 24).half()[:, :16]), None)
    table.add(a, b, c, recorder.address, 1, None, partials, 0, True, packer.address, given)
    if partials:
        native.set_workspace(0, 0, 1, partials, 1, 64, None)  # type: ignore[union-attr]
    exchange = torch.Tensor.__dlpack_c_exchange_api__  # type: ignore[attr-defined]
    increment = torch._C._increment_version
    try:
        native.bind(torch.Tensor, exchange, increment, torch.is_inference_mode_enabled, lambda: current, lambda: capturing)  # type: ignore[union-attr]
        assert (table.repeat(a, b, c, 1.0, 0.0) is c) == packs_it
    finally:
        native.bind(torch.Tensor, exchange, increment, torch.is_inference_mode_enabled, *extension.CUDA_STATE)  # type: ignore[union-attr]
    assert len(packer.given) == len(recorder.calls) == int(packs_it)


@needs_native
def test_packing_takes_no_more_memory_than_it_needs(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = torch.zeros(100, 101).double(), torch.zeros(101, 48).double(), torch.zeros(100, 48).double()
    packer, framed = Packer(), torch.zeros(100, 102).double()[:, :101]
    table = native.Calls(16, None)  # type: ignore[union-attr]
    table.add(a, b, c, recorder.address, 1, None, 0, 0, True, packer.address, packs((a, framed), None))
    with torch.profiler.profile(profile_memory=True, record_shapes=True) as profile:
        assert table.repeat(a, b, c, 1.0, 0.0) is c
    (made,) = [event for event in profile.events() if event.name == "aten::new_empty"]
    assert 100 * 102 * 8 <= made.cpu_memory_usage <= 100 * 102 * 8 + 256


def wrapped(table: Any, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, transform: Callable[..., Any]) -> list[Any]:
    answers: list[Any] = []

    def inner(x: torch.Tensor) -> torch.Tensor:
        answers.extend((table.repeat(x, b, c, 1.0, 0.0), table.repeat(a, x.new_zeros(16, 48), x, 1.0, 0.0)))
        return x.sum()

    transform(inner)(a)
    return answers


@needs_native
@pytest.mark.filterwarnings("ignore")
def test_what_is_more_than_its_signature_is_left_to_the_slow_path(recorder: Recorder) -> None:
    a, b, c = operands()
    table = known(recorder, a, b, c)
    gone, fresh = a.clone(), torch.zeros(32 * 16 + 32 * 48, dtype=torch.float16)
    gone.untyped_storage().resize_(0)

    class Subclass(torch.Tensor):
        pass

    strange = [
        a.clone().requires_grad_(),
        torch.nn.Parameter(a),
        a.as_subclass(Subclass),
        torch._neg_view(a),
        a.to_sparse(),
        a.to_sparse_csr(),
        torch.nested.nested_tensor([a]),
        torch._efficientzerotensor(32, 16, dtype=torch.float16),
        a.to("meta"),
        a.float(),
        a.bfloat16(),
        a[None],
        a[0],
        torch.zeros((), dtype=torch.float16),
        gone,
        None,
        3,
        a.numpy(),
    ]
    assert not [x for x in strange if table.repeat(x, b, c, 1.0, 0.0) is not None]
    assert not [x for x in (c.clone().requires_grad_(), torch._neg_view(c), c.t()) if table.repeat(a, b, x, 1.0, 0.0) is not None]
    assert not [x for x in (b.clone().requires_grad_(), torch._neg_view(b)) if table.repeat(a, x, c, 1.0, 0.0) is not None]
    assert not [x for x in (0.0, 0, True, None, "1", torch.ones(()), 10**400) if table.repeat(a, b, c, x, 0.0) is not None]
    assert not [x for x in (True, None, torch.ones(())) if table.repeat(a, b, c, 1.0, x) is not None]
    # c may lie right behind a, and not on it
    after, on = fresh[512:].view(32, 48), fresh[504 : 504 + 1536].view(32, 48)
    assert table.repeat(fresh[:512].view(32, 16), b, on, 1.0, 0.0) is None and not recorder.calls
    assert table.repeat(fresh[:512].view(32, 16), b, after, 1.0, 0.0) is after
    with pytest.raises(TypeError):
        table.repeat(a, b, c)


@needs_native
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: lambda a: torch.vmap(f)(torch.stack([a, a])),
        torch.func.grad,
        lambda f: lambda a: torch.func.jvp(f, (a,), (a,)),
        torch.func.functionalize,
    ],
    ids=["vmap", "grad", "jvp", "functionalize"],
)
def test_what_torch_func_wraps_is_left_to_the_slow_path(recorder: Recorder, transform: Callable[..., Any]) -> None:
    a, b, c = operands()
    answers = wrapped(known(recorder, a, b, c), a, b, c, transform)
    assert answers and not any(answer is not None for answer in answers) and not recorder.calls


OFF = {"a": (1, 0, 0), "b": (0, 1, 0), "c": (0, 0, 1)}


@pytest.mark.parametrize("known_off", OFF)
@pytest.mark.parametrize("later_off", OFF)
def test_each_operand_has_an_alignment_of_its_own(known_off: str, later_off: str, recorder: Recorder) -> None:
    """Kernels store c at any address and load a and b from aligned ones only: which of them is off decides a call."""

    def at(off: str) -> list[torch.Tensor]:
        return [torch.zeros(x.numel() + 8).half()[by:][: x.numel()].view_as(x) for x, by in zip(operands(), OFF[off], strict=True)]

    if native is not None:
        table = known(recorder, *at(known_off))
        assert (table.repeat(*at(later_off), 1.0, 0.0) is None) == (known_off != later_off)
    assert (call.signature(*at(known_off)) == call.signature(*at(later_off))) == (known_off == later_off)


@needs_native
def test_inference_tensors_have_no_version_and_are_taken(recorder: Recorder) -> None:
    a, b, c = operands()
    table = known(recorder, a, b, c)
    with torch.inference_mode():
        made = table.repeat(a, b, None, 1.0, 0.0)
        assert made.is_inference() and table.repeat(a, b, made, 1.0, 0.0) is made
    before = len(recorder.calls)
    assert table.repeat(a, b, made, 1.0, 0.0) is None  # outside of the mode the slow path refuses to write to it
    assert len(recorder.calls) == before


@needs_native
def test_a_factor_that_is_0_in_the_type_of_sums_is_left_to_the_slow_path(recorder: Recorder) -> None:
    a, b, c = operands()
    table = known(recorder, a, b, c)
    assert table.repeat(a, b, c, 1e-46, 0.0) is None and table.repeat(a, b, c, 1e-30, 0.0) is c


@needs_native
def test_a_refused_launch_is_left_to_the_slow_path_without_a_trace(recorder: Recorder) -> None:
    a, b, c = operands()
    table, version = known(recorder, a, b, c), c._version
    for status in (abi.Status.OTHER_DEVICE, abi.Status.CAPTURING, abi.Status.CUDA_ERROR):
        recorder.status = status
        assert table.repeat(a, b, c, 1.0, 0.0) is None and table.repeat(a, b, None, 1.0, 0.0) is None
    assert c._version == version and len(recorder.calls) == 6


FORKS = """
import ctypes, os, torch, cutlass_sk
from cutlass_sk import extension
function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: 0)
a = torch.zeros(16, 16, dtype=torch.float16)
b, c = a.clone(), a.clone()
table = extension.native.Calls(8, None)
table.add(a, b, c, ctypes.cast(function, ctypes.c_void_p).value, 1, None, 0, 0, True)
for used, taken in ((False, True), (True, False)):
    torch.cuda._is_in_bad_fork = lambda: used
    child = os.fork()
    if child == 0:
        os._exit(int(table.repeat(a, b, c, 1.0, 0.0) is c))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == taken, used
assert table.repeat(a, b, c, 1.0, 0.0) is c
"""


@needs_native
def test_a_child_of_a_process_that_used_cuda_launches_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]


@needs_native
def test_calls_that_share_tiles_wait_for_a_workspace(recorder: Recorder) -> None:
    a, b, c = operands()
    table, owner = known(recorder, a, b, c, partials=1000, barriers=64), Owner()
    alive = weakref.ref(owner)
    assert table.repeat(a, b, c, 1.0, 0.0) is None
    for workspace_bytes in ((999, 64), (1000, 63)):
        native.set_workspace(0, 0, 1 << 20, workspace_bytes[0], 1 << 21, workspace_bytes[1], owner)  # type: ignore[union-attr]
        assert table.repeat(a, b, c, 1.0, 0.0) is None
    for key in ((1, 0), (0, 5)):  # another device, another stream
        native.set_workspace(*key, 1 << 20, 1000, 1 << 21, 64, owner)  # type: ignore[union-attr]
        assert table.repeat(a, b, c, 1.0, 0.0) is None
    native.set_workspace(0, 0, 1 << 20, 1000, 1 << 21, 64, owner)  # type: ignore[union-attr]
    assert table.repeat(a, b, c, 1.0, 0.0) is c
    ((_, launched),) = recorder.calls
    assert (launched.partials, launched.barriers, launched.eager) == (1 << 20, 1 << 21, 1)
    del owner
    assert alive() is not None
    native.forget_workspaces()  # type: ignore[union-attr]
    assert alive() is None and table.repeat(a, b, c, 1.0, 0.0) is None


@needs_native
@pytest.mark.parametrize(
    ("text", "launched"),
    [(None, 1), ("", 1), ("1", 1), ("0", 0), ("true", None), ("no", None), ("2", None), ("10", None), ("x", None)],
)
def test_the_switch_for_overlapping_launches_is_read_at_each_call(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, text: str | None, launched: int | None
) -> None:
    """What only env.py reads, or refuses, is left to the slow path."""
    a, b, c = operands()
    table = known(recorder, a, b, c)
    assert table.repeat(a, b, c, 1.0, 0.0) is c
    if text is None:
        monkeypatch.delenv("CUTLASS_SK_PDL", raising=False)
    else:
        monkeypatch.setenv("CUTLASS_SK_PDL", text)
    answer = table.repeat(a, b, c, 1.0, 0.0)
    assert (answer is c) == (launched is not None)
    assert launched is None or recorder.calls[-1][1].programmatic == launched
    older = known(recorder, a, b, c, programmatic=False)
    if older.repeat(a, b, c, 1.0, 0.0) is c:
        assert recorder.calls[-1][1].programmatic == 0


@needs_native
def test_a_full_table_starts_anew_and_lets_its_calls_go(recorder: Recorder) -> None:
    table, owners = native.Calls(3, None), [Owner() for _ in range(5)]  # type: ignore[union-attr]
    alive = [weakref.ref(owner) for owner in owners]
    for size, owner in zip(range(8, 48, 8), owners, strict=True):
        table.add(*operands(k=size), recorder.address, size, owner, 0, 0, True)
    del owners, owner
    gc.collect()
    assert len(table) == 2 and [of() is not None for of in alive] == [False] * 3 + [True] * 2
    replaced = alive[4]
    table.add(*operands(k=40), recorder.address, 1, None, 0, 0, True)
    assert len(table) == 2 and replaced() is None
    del table
    assert not any(of() for of in alive)


@needs_native
@pytest.mark.filterwarnings("ignore")
def test_nothing_leaks_over_many_calls() -> None:
    a, b, c = operands()
    negative, wrong, owners, recorder = torch._neg_view(a), operands(k=8)[0], [Owner()], Recorder()
    refusing = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value  # takes what it is given and answers 1
    alive = weakref.ref(owners[0])

    def memory() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def calls(count: int, table: Any, refused: Any) -> None:
        for _ in range(count):
            table.repeat(a, b, c, 1.0, 0.0)
            table.repeat(a, b, None, 1, 0)
            refused.repeat(a, b, None, 1.0, 0.0)
            for x in (negative, wrong, None):
                table.repeat(x, b, c, 1.0, 0.0)
            recorder.calls.clear()

    def references() -> list[int]:
        return [sys.getrefcount(x) for x in (a, b, c, negative, wrong, *owners, torch.Tensor, None, True)]

    def work() -> None:
        table, refused = native.Calls(4, None), native.Calls(4, None)  # type: ignore[union-attr]
        table.add(a, b, c, recorder.address, 1, owners[0], 100, 100, True)
        refused.add(a, b, c, refusing, 1, owners[0], 0, 0, True)
        native.set_workspace(0, 0, 1, 100, 1, 100, owners[0])  # type: ignore[union-attr]
        calls(1000, table, refused)
        before, before_bytes = references(), memory()
        calls(100_000 // 6, table, refused)
        assert references() == before and memory() - before_bytes < 4096  # KiB

    before = references()
    work()
    for _ in range(10_000):
        table = native.Calls(4, torch.float32)  # type: ignore[union-attr]
        table.add(a, b, c, recorder.address, 1, owners[0], 0, 0, True)
        native.set_workspace(0, 0, 1, 1, 1, 1, owners[0])  # type: ignore[union-attr]
        table = None
    native.forget_workspaces()  # type: ignore[union-attr]
    assert [abs(now - then) <= 8 for now, then in zip(references(), before, strict=True)] == [True] * len(before)
    owners.clear()
    assert alive() is None


@needs_native
def test_threads_share_a_table_that_keeps_starting_anew(recorder: Recorder) -> None:
    table, started, wrong = native.Calls(2, None), threading.Barrier(8), list[str]()  # type: ignore[union-attr]

    def work(number: int) -> None:
        a, b, c = operands(k=8 * (number % 4 + 1))
        started.wait(30)
        for turn in range(2000):
            if turn % 5 == 0:
                table.add(a, b, c, recorder.address, number % 4, Owner(), 10, 10, True)
                native.set_workspace(0, 0, 1, 10, 1, 10, Owner())  # type: ignore[union-attr]
            answer = table.repeat(a, b, c if turn % 2 else None, 1.0, 0.0)
            if answer is not None and ((turn % 2 and answer is not c) or answer.shape != c.shape):
                wrong.append(f"turn {turn} of thread {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads) and not wrong
    assert recorder.calls and {prepared or 0 for prepared, _ in recorder.calls} == {0, 1, 2, 3}


@needs_native
def test_a_gemm_takes_the_table_and_hands_on_what_it_does_not_know(recorder: Recorder) -> None:
    gemm = Gemm("float16")
    assert isinstance(gemm._calls, call.NativeCalls)
    a, b, c = operands()
    gemm._calls._table.add(a, b, c, recorder.address, 0, None, 0, 0, True)
    assert gemm.run(a, b, c) is c and len(recorder.calls) == 1
    assert gemm.run(a, b, alpha=2).shape == c.shape and len(recorder.calls) == 2
    with pytest.warns(UserWarning, match="CPU tensors") if not _said() else _nothing():
        assert torch.equal(gemm.run(a[:8], b), torch.zeros(8, 48, dtype=torch.float16))
    assert len(recorder.calls) == 2


def _said() -> bool:
    import cutlass_sk.gemm as gemm_module

    return bool(gemm_module._said)


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


# Without the extension.


@pytest.mark.filterwarnings("ignore:cutlass_sk. CPU tensors")
def test_without_the_extension_calls_are_repeated_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "native", None)
    gemm = Gemm("float16")
    assert isinstance(gemm._calls, call.PythonCalls)
    a, b = torch.ones(4, 8, dtype=torch.float16), torch.ones(8, 8, dtype=torch.float16)
    assert bool((gemm.run(a, b) == 8).all())


def test_the_table_in_python_takes_and_refuses_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPU tensors that pass for CUDA ones; ``plain`` is tested on a GPU."""
    launched: list[abi.AddressesStruct] = []
    monkeypatch.setattr(call, "plain", lambda tensor: isinstance(tensor, torch.Tensor) and not tensor.requires_grad)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)
    monkeypatch.setattr(call, "addresses_of", lambda plan, device, pdl, a, b, c, x, y: (abi.AddressesStruct(a=a.data_ptr()), None))
    monkeypatch.setattr(call, "enqueue", lambda kernel, prepared, addresses, c: launched.append(addresses))
    a, b, c = operands()
    table, made = call.PythonCalls(torch.float16), call.Call(*[None] * 5)  # type: ignore[arg-type]
    assert table.repeat(a, b, c, 1.0, 0.0) is None
    table.remember(a, b, c, made)
    assert table.repeat(a, b, c, 1, 0) is c and launched[0].a == a.data_ptr()
    new = table.repeat(a, b, None, 1.0, 0.0)
    assert new is not None and new.shape == c.shape
    with torch.inference_mode():
        inner = torch.zeros_like(c)
        assert table.repeat(a, b, inner, 1.0, 0.0) is inner
    for refused in (
        (a, b, None, 1.0, 1.0),
        (a, b, c, 0, 0.0),
        (a, b, c, 1e-46, 0.0),
        (a, b, c, 10**400, 0.0),
        (a, b, c, 1.0, 10**400),
        (a, b, c, True, 0),
        (a, b, inner, 1.0, 0.0),
        (a.clone().requires_grad_(), b, c, 1.0, 0.0),
    ):
        assert table.repeat(*refused) is None
    base = torch.zeros(32 * 48 + 512, dtype=torch.float16)
    assert table.repeat(base[:512].view(32, 16), b, base[256 : 256 + 1536].view(32, 48), 1.0, 0.0) is None
    table.remember(base[:512].view(32, 16), b, c, dataclasses.replace(made, packing=(1, b"")))
    assert len(launched) == 3 and len(table._known) == 1, "calls that pack are left to the slow path"


BLOCKED = """
import json, sys
sys.modules["cutlass_sk._native"] = None
from cutlass_sk import call, extension, Gemm
print(json.dumps([extension.native is None, extension.missing, type(Gemm("float16")._calls).__name__]))
"""


def test_an_extension_that_is_missing_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=True)
    absent, reason, kind = json.loads(done.stdout)
    assert absent and reason.startswith("it was not built") and kind == "PythonCalls"


@needs_native
def test_an_extension_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi, "ABI_VERSION", 99)
    found, reason = extension._load()
    assert found is None and "not 99" in reason
    monkeypatch.undo()
    monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__")
    found, reason = extension._load()
    assert found is None and "no DLPack functions" in reason
    monkeypatch.undo()

    def of_before(*arguments: object) -> None:
        raise TypeError("function takes exactly 5 arguments (6 given)")

    monkeypatch.setattr(native, "bind", of_before)
    found, reason = extension._load()
    assert found is None and "built from other sources (function takes exactly 5" in reason


@needs_native
def test_functions_of_another_version_are_refused() -> None:
    class Table(ctypes.Structure):
        _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("functions", ctypes.c_void_p * 6))

    name, table = b"dlpack_exchange_api", Table(2, 0)
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    with pytest.raises(RuntimeError, match=r"version 2\.0"):
        native.bind(torch.Tensor, make(ctypes.addressof(table), name, None), print, print, None, None)  # type: ignore[union-attr]
    with pytest.raises(ValueError):
        native.bind(torch.Tensor, make(ctypes.addressof(table), b"other", None), print, print, None, None)  # type: ignore[union-attr]


# Workspaces, on the CPU.


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_kept", {})
    monkeypatch.setattr(workspace, "_captured", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@pytest.mark.usefixtures("eager")
def test_a_stream_keeps_its_workspace_and_it_grows() -> None:
    device = torch.device("cpu", 0)
    first = workspace.workspace(1000, 100, device, 16)
    assert workspace.workspace(900, 50, device, 16) is first and int(first.barriers.count_nonzero()) == 0
    other = workspace.workspace(1000, 100, device, 32)
    assert other is not first and other.barriers.data_ptr() != first.barriers.data_ptr()
    grown = workspace.workspace(900, workspace.MIN_BARRIER_BYTES + 4, device, 16)
    assert grown is not first and grown.holds(1000, workspace.MIN_BARRIER_BYTES + 4)
    assert workspace.workspace(2000, 4, device, 16).holds(2000, workspace.MIN_BARRIER_BYTES + 4)


@pytest.mark.usefixtures("eager")
def test_the_per_thread_stream_keeps_nothing() -> None:
    device = torch.device("cpu", 0)
    made = [workspace.workspace(1000, 100, device, workspace.PER_THREAD_STREAM) for _ in range(2)]
    assert made[0].barriers.data_ptr() != made[1].barriers.data_ptr() and not workspace._kept


@needs_native
@pytest.mark.usefixtures("eager")
def test_the_native_table_is_told_of_a_workspace(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = operands()
    table = known(recorder, a, b, c, partials=1000, barriers=100)
    workspace._captured[0, 16] = 7, a  # while a capture is known, every call comes by, to see whether it has ended
    monkeypatch.setattr(workspace, "_capture_id", lambda stream: 7)
    workspace.workspace(1000, 100, torch.device("cpu", 0), 0)
    assert table.repeat(a, b, c, 1.0, 0.0) is None
    monkeypatch.setattr(workspace, "_capture_id", lambda stream: 0)
    made = workspace.workspace(1000, 100, torch.device("cpu", 0), 0)
    assert table.repeat(a, b, c, 1.0, 0.0) is c
    assert recorder.calls[0][1].partials == made.partials.data_ptr()
    assert recorder.calls[0][1].barriers == made.barriers.data_ptr()


@pytest.mark.usefixtures("eager")
def test_a_graph_that_the_compiler_records_keeps_no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = SimpleNamespace(stream=SimpleNamespace(cuda_stream=16))
    trees = SimpleNamespace(get_manager=lambda index, create_if_none_exists: manager)
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(stream_id=3))
    monkeypatch.setattr(workspace, "_capture_id", lambda stream: 7)
    device = torch.device("cpu", 0)
    one, again = (workspace.workspace(1000, 100, device, 16) for _ in range(2))
    assert one.barriers is not again.barriers and not workspace._captured and not workspace._kept
    manager.stream.cuda_stream = 32
    assert workspace.workspace(1000, 100, device, 16).barriers is workspace.workspace(1000, 100, device, 16).barriers


@pytest.mark.usefixtures("eager")
def test_a_thread_that_compiled_nothing_may_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_this_thread(index: int, create_if_none_exists: bool) -> None:
        raise AssertionError  # torch 2.11, in a thread that never ran compiled code

    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", SimpleNamespace(get_manager=of_this_thread))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(stream_id=3))
    monkeypatch.setattr(workspace, "_capture_id", lambda stream: 7)
    assert workspace.workspace(1000, 100, torch.device("cpu", 0), 16).holds(1000, 100) and workspace._captured


@pytest.mark.usefixtures("eager")
def test_a_captured_graph_has_flags_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One buffer a capture on torch's streams, one a launch on a user's, whose handle may not be asked later."""
    captures = {16: 7, 32: 8}
    asked: list[int] = []

    class Stream:
        stream_id = 3

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream)
    monkeypatch.setattr(workspace, "_capture_id", lambda stream: (asked.append(stream), captures.get(stream, 0))[1])
    device = torch.device("cpu", 0)
    one = workspace.workspace(1000, 100, device, 16)
    again = workspace.workspace(1000, 100, device, 16)
    assert again.barriers is one.barriers and again.partials is not one.partials and not workspace._kept
    captures[16] = 9
    assert workspace.workspace(1000, 100, device, 16).barriers is not one.barriers
    Stream.stream_id = 32
    users = [workspace.workspace(1000, 100, device, 32) for _ in range(2)]
    assert users[0].barriers is not users[1].barriers and 32 not in asked
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    captures[16] = 0
    workspace.workspace(1000, 100, device, 48)
    assert not workspace._captured and 32 not in asked
