"""Device memory that a launch needs beside its operands: partial sums, and the flags that announce them."""

from __future__ import annotations

import threading

import torch

MIN_BARRIER_BYTES = 1 << 16

_barriers: dict[tuple[int, int], torch.Tensor] = {}
_guard = threading.Lock()


def partials(nbytes: int, device: torch.device) -> torch.Tensor:
    """Uninitialised memory from torch's allocator on the current stream; it may be dropped once the launch is enqueued."""
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def barriers(nbytes: int, device: torch.device, stream: int) -> torch.Tensor:
    """Zeroed flags of the current stream, whose handle is ``stream``.

    Every launch leaves its flags at zero, so one buffer serves all launches of a stream, which run one after the other; no two
    streams share one. It is zeroed once. A launch that is being captured gets flags of its own, because its graph may be replayed
    beside anything else.
    """
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(nbytes, dtype=torch.uint8, device=device)
    key = (device.index, stream)
    buffer = _barriers.get(key)
    if buffer is None or buffer.numel() < nbytes:
        with _guard:
            buffer = _barriers.get(key)
            if buffer is None or buffer.numel() < nbytes:
                # A buffer that is outgrown goes back to the allocator, which reuses it on this stream only.
                buffer = torch.zeros(max(nbytes, MIN_BARRIER_BYTES), dtype=torch.uint8, device=device)
                _barriers[key] = buffer
    return buffer
