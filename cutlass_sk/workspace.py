"""Device memory that a launch needs beside its operands: partial sums, and the flags that announce them."""

from __future__ import annotations

import threading

import torch

from .errors import LaunchError

MIN_BARRIER_BYTES = 1 << 16

_barriers: dict[tuple[int, int], torch.Tensor] = {}
_captured: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}
_guard = threading.Lock()


def partials(nbytes: int, device: torch.device) -> torch.Tensor:
    """Uninitialised memory from torch's allocator on the current stream; it may be dropped once the launch is enqueued."""
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def barriers(nbytes: int, device: torch.device, stream: int) -> torch.Tensor:
    """Zeroed flags of the current stream, whose handle is ``stream``.

    Every launch leaves its flags at zero, so one buffer serves all launches of a stream, which run one after the other; no two
    streams share one. It is zeroed once. A graph that is being captured gets a buffer of its own for each of its streams, zeroed
    once a replay, because it may be replayed beside anything else.
    """
    key = (device.index, stream)
    if torch.cuda.is_current_stream_capturing():
        capture = _capture_id(stream)
        known, buffer = _captured.get(key, (0, None))
        if buffer is None or known != capture or buffer.numel() < nbytes:
            buffer = _zeros(nbytes, device)
            _captured[key] = capture, buffer
        return buffer
    if _captured:
        _forget_ended_captures()
    found = _barriers.get(key)
    if found is None or found.numel() < nbytes:
        with _guard:
            found = _barriers.get(key)
            if found is None or found.numel() < nbytes:
                # A buffer that is outgrown goes back to the allocator, which reuses it on this stream only.
                found = _barriers[key] = _zeros(nbytes, device)
    return found


def _zeros(nbytes: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(max(nbytes, MIN_BARRIER_BYTES), dtype=torch.uint8, device=device)


def _forget_ended_captures() -> None:
    """A graph keeps its own memory; a tensor of ours beyond the capture would keep the graph's memory pool from being freed."""
    for key, (capture, _) in list(_captured.items()):
        try:
            if _capture_id(key[1]) == capture:
                continue
        except LaunchError:  # the stream is gone
            pass
        _captured.pop(key, None)


def _capture_id(stream: int) -> int:
    from cuda.bindings import runtime

    error, status, capture, *_ = runtime.cudaStreamGetCaptureInfo(stream)
    if error != runtime.cudaError_t.cudaSuccess:
        raise LaunchError(f"cudaStreamGetCaptureInfo failed: {error.name}")
    return int(capture) if status == runtime.cudaStreamCaptureStatus.cudaStreamCaptureStatusActive else 0
