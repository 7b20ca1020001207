"""SIGINT, SIGTERM and SIGHUP as a flag that is read once per step, so that no step is lost."""

import signal
import threading
from types import FrameType, TracebackType

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """`with Stop() as stop:` sets `stop.signal` when one of them comes; a second Ctrl-C interrupts at once.

    Only the main thread may watch signals; in another one the flag simply never comes.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in WATCHED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
