"""Arrays of other libraries, as far as a protocol shows them."""

from __future__ import annotations

from typing import Any


class OfDLPack:
    """As CuPy's and JAX's: DLPack and nothing else, which alone says whether an array is read-only."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()
