"""A watchdog for work that may never end, such as a kernel that waits for ever: it can act while the process waits for the GPU."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from time import monotonic
from types import TracebackType


class Watchdog:
    """Within a ``with`` block, calls ``expired`` once if it was not fed for ``seconds``, from a thread of its own."""

    def __init__(self, seconds: float, expired: Callable[[], object], clock: Callable[[], float] = monotonic) -> None:
        self._seconds, self._expired, self._clock = seconds, expired, clock
        self._ended, self._fed = Event(), clock()

    def feed(self) -> None:
        self._fed = self._clock()

    def __enter__(self) -> Watchdog:
        self.feed()
        self._thread = Thread(target=self._watch, name="cutlass_sk_watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(max(0.01, min(1.0, self._fed + self._seconds - self._clock()))):
            if self._clock() >= self._fed + self._seconds:
                self._expired()
                return
