"""Device memory that a launch needs beside its operands: partial sums, and the flags that announce them."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from . import extension
from .errors import LaunchError

MIN_BARRIER_BYTES = 1 << 16

PER_THREAD_STREAM = 2
"""cudaStreamPerThread: one handle for as many streams as there are threads."""


@dataclass(frozen=True)
class Workspace:
    """partials   uninitialised bytes
    barriers      zeroed flags; every launch leaves its flags at zero
    """

    partials: torch.Tensor
    barriers: torch.Tensor

    def holds(self, partials_bytes: int, barrier_bytes: int) -> bool:
        return self.partials.numel() >= partials_bytes and self.barriers.numel() >= barrier_bytes


_kept: dict[tuple[int, int], Workspace] = {}
_captured: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}
_guard = threading.Lock()


def workspace(partials_bytes: int, barrier_bytes: int, device: torch.device, stream: int) -> Workspace:
    """Memory for one launch on the current stream, whose handle is ``stream``; hold it until the launch is enqueued.

    A stream's launches run one after the other, so that they share one workspace; no two streams do. It is kept, grows to the
    largest launch, and its flags are zeroed once. What is outgrown goes back to the allocator, which reuses it on this stream only:
    behind the launches that use it. A destroyed stream leaves its workspace to the next stream of the same handle, as torch's
    allocator leaves its blocks.

    A graph that is being captured must own its memory, because it may be replayed beside anything else: it gets partials of its own
    pool a launch, and flags a stream, zeroed once a replay. cudaStreamPerThread is no one stream; its launches share nothing.
    """
    if torch.cuda.is_current_stream_capturing():
        partials = torch.empty(partials_bytes, dtype=torch.uint8, device=device)
        return Workspace(partials, _captured_barriers(barrier_bytes, device, stream))
    if _captured:
        _forget_ended_captures()
    if stream == PER_THREAD_STREAM:
        return _new(partials_bytes, barrier_bytes, device)
    key = (device.index, stream)
    found = _kept.get(key)
    if found is None or not found.holds(partials_bytes, barrier_bytes):
        with _guard:
            found = _kept.get(key)
            if found is None or not found.holds(partials_bytes, barrier_bytes):
                kept = (found.partials.numel(), found.barriers.numel()) if found else (0, 0)
                found = _kept[key] = _apart(max(partials_bytes, kept[0]), max(barrier_bytes, kept[1]), device)
    if extension.native is not None and not _captured:  # else the next call is to come here, too
        partials, barriers = found.partials, found.barriers
        extension.native.set_workspace(*key, partials.data_ptr(), partials.numel(), barriers.data_ptr(), barriers.numel(), found)
    return found


def _new(partials_bytes: int, barrier_bytes: int, device: torch.device) -> Workspace:
    return Workspace(torch.empty(partials_bytes, dtype=torch.uint8, device=device), _zeros(barrier_bytes, device))


def _apart(partials_bytes: int, barrier_bytes: int, device: torch.device) -> Workspace:
    """For the current stream, from a thread of its own: this one may allocate from a pool that must not own what is kept, as
    torch.compile does while it warms CUDA graphs up."""
    if device.type != "cuda":
        return _new(partials_bytes, barrier_bytes, device)
    stream = torch.cuda.current_stream(device)

    def make() -> Workspace:
        with torch.cuda.stream(stream):
            return _new(partials_bytes, barrier_bytes, device)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def _zeros(nbytes: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(max(nbytes, MIN_BARRIER_BYTES), dtype=torch.uint8, device=device)


def _captured_barriers(nbytes: int, device: torch.device, stream: int) -> torch.Tensor:
    """Flags of the graph that the current stream is captured into.

    One buffer serves the capture, on torch's own streams. These live as long as the process, so that each can be asked whether its
    capture has ended. A stream of the user's may be gone by then: there every launch has flags of its own. So it has where
    torch.compile records, which refuses memory of its pool that is neither freed nor an output.
    """
    # torch numbers its own streams otherwise
    if torch.cuda.current_stream(device).stream_id == stream or _compiler_records(device, stream):
        return _zeros(nbytes, device)
    key, capture = (device.index, stream), _capture_id(stream)
    known, buffer = _captured.get(key, (0, None))
    if buffer is None or known != capture or buffer.numel() < nbytes:
        buffer = _zeros(nbytes, device)
        _captured[key] = capture, buffer
        if extension.native is not None:
            extension.native.forget_workspaces()
    return buffer


def _compiler_records(device: torch.device, stream: int) -> bool:
    """Whether ``stream`` is the one that torch.compile captures its graphs on."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    try:
        manager = None if trees is None else trees.get_manager(device.index, create_if_none_exists=False)
    except (AssertionError, RuntimeError):  # torch 2.11, in a thread that never ran compiled code
        return False
    return manager is not None and manager.stream.cuda_stream == stream


def _forget_ended_captures() -> None:
    """A graph keeps its own memory; a tensor of ours beyond the capture would keep the graph's memory pool from being freed."""
    for key, (capture, _) in list(_captured.items()):
        try:
            if _capture_id(key[1]) == capture:
                continue
        except LaunchError:  # what is wrong, the launch says
            pass
        _captured.pop(key, None)


def _capture_id(stream: int) -> int:
    from cuda.bindings import runtime

    error, status, capture, *_ = runtime.cudaStreamGetCaptureInfo(stream)
    if error != runtime.cudaError_t.cudaSuccess:
        raise LaunchError(f"cudaStreamGetCaptureInfo failed: {error.name}")
    return int(capture) if status == runtime.cudaStreamCaptureStatus.cudaStreamCaptureStatusActive else 0
