"""What cutlass_sk/native/native.cpp exports."""

from collections.abc import Callable
from typing import Any

import torch

ABI_VERSION: int
MOST_KERNELS: int
PROFILE_BYTES: int

class Calls:
    def __init__(self, capacity: int, dtype: torch.dtype | None) -> None: ...
    def __len__(self) -> int: ...
    def repeat(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float, /
    ) -> torch.Tensor | None: ...
    def add(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        enqueue: int,
        prepared: int,
        owner: object,
        partials_bytes: int,
        barrier_bytes: int,
        programmatic: bool,
        pack: int = 0,
        given: bytes = b"",
        /,
    ) -> None: ...

def decide(
    profiles: bytes, m: int, n: int, k: int, bytes_moved: int, row_bytes_a: int, row_bytes_b: int, chained: bool, /
) -> tuple[float, int, int, int, int, bool]: ...
def bind(
    tensor_type: type[torch.Tensor],
    dlpack: Any,
    increment_version: Callable[[Any], None],
    inference_mode: Callable[[], bool],
    current_device: Callable[[], int] | None,
    is_capturing: Callable[[], bool] | None,
    /,
) -> None: ...
def unbind() -> None: ...
def set_workspace(
    device: int, stream: int, partials: int, partials_bytes: int, barriers: int, barrier_bytes: int, owner: object, /
) -> None: ...
def forget_workspaces() -> None: ...
