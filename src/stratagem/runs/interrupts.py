"""Ctrl-C that loses nothing: the first signal asks for an end, the second one ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopRequest"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether SIGINT or SIGTERM asked this process to stop; a context manager that installs the handlers.

    Outside the main thread, where Python allows no handlers, it only holds the flag.
    """

    def __init__(self, on_request: Callable[[], None] | None = None) -> None:
        """Make a request that was not made yet.

        Args:
            on_request: called at the first signal, to tell the user what happens now.
        """
        self.requested = False
        self.on_request = on_request
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put back the handlers that were there."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if self.on_request is not None:
            self.on_request()
