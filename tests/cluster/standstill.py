"""A plugin that has runs wait after their first checkpoint, so that there is time to interrupt them on any machine."""

import select
import signal
import socket
from typing import ClassVar

from slotnorm.training.observers import Observer
from slotnorm.training.runs import Run

SIGN = "stand-still"  # a file beside the folder of runs: while it is there, runs wait
_SECONDS_BETWEEN_LOOKS = 0.2


class Standstill(Observer):
    """Waits after a checkpoint was saved, until the sign is gone or the run is told to stop."""

    name: ClassVar[str] = "standstill"

    def on_start(self, run: Run, step: int) -> None:
        self._run, self._sign = run, run.path.absolute().parents[1] / SIGN
        self._signals, told = socket.socketpair()
        told.setblocking(False)
        self._told = told  # Python writes each signal's number to it
        signal.set_wakeup_fd(told.fileno())

    def on_step(self, step: int, numbers: dict[str, float]) -> None:
        while self._sign.exists() and self._has_saved() and not self._is_told_to_stop():
            pass

    def on_end(self, step: int, finished: bool) -> None:
        signal.set_wakeup_fd(-1)
        self._signals.close()
        self._told.close()

    def _has_saved(self) -> bool:
        return any(self._run.checkpoints.glob("step-*.json"))

    def _is_told_to_stop(self) -> bool:
        return bool(select.select([self._signals], [], [], _SECONDS_BETWEEN_LOOKS)[0])
