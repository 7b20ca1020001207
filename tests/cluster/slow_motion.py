"""A plugin that trains in slow motion, so that there is time to interrupt a run on however quick a machine."""

import time
from pathlib import Path
from typing import ClassVar

from slotnorm.training.observers import Observer
from slotnorm.training.runs import Run

SIGN = "slowly"  # a file beside the folder of runs: while it is there, everything takes long
SECONDS = 2.0  # for each few steps; far below what an engine grants a job that it tells to stop


class SlowMotion(Observer):
    """Waits whenever it is told of a step, as long as the sign is there."""

    name: ClassVar[str] = "slow_motion"
    _sign = Path()

    def on_start(self, run: Run, step: int) -> None:
        self._sign = run.path.absolute().parents[1] / SIGN

    def on_step(self, step: int, numbers: dict[str, float]) -> None:
        if self._sign.exists():
            time.sleep(SECONDS)
