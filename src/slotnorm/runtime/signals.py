"""Signals that ask a process to end, as a flag that is read once per step, so that no step is lost.

Those of `runtime.unix.ENDING`; one that the process was started to ignore (`nohup`, a shell's background job) stays
ignored.
"""

import signal
import threading
from types import FrameType, TracebackType

from slotnorm.runtime.unix import ENDING


class Stop:
    """`with Stop() as stop:` sets `stop.signal` when one of them comes; a second Ctrl-C interrupts at once.

    Only the main thread may watch signals; in another one the flag simply never comes.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._note) for number in heard}
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
