"""SIGINT (Ctrl-C) and SIGTERM during a training: they wait until a checkpoint can be written."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self


class StopSignals:
    """Inside `with`, the first SIGINT or SIGTERM is only recorded; a second one acts at once, as it would outside.

    Python allows signal handlers in the main thread only: in other threads nothing is recorded.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Start to record."""
        is_main = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM) if is_main else ():
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):  # None: set by C code, and not ours to replace
                self._handlers[number] = handler
                signal.signal(number, self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the handlers. If the block ended without an exception, a recorded signal acts now."""
        self._restore()
        if self.received is not None and kind is None:
            self.act()

    def act(self) -> NoReturn:
        """Let the recorded signal act as it does outside: SIGINT raises KeyboardInterrupt, SIGTERM ends the process."""
        assert self.received is not None
        self._restore()
        signal.raise_signal(self.received)
        raise KeyboardInterrupt  # the handler outside has returned, but the training has to end

    def _record(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None:
            self._restore()
            signal.raise_signal(number)
        self.received = number

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
