"""Progress: a bar with rate and time left on a terminal, plain lines through `logging` elsewhere.

`logging.getLogger("slotnorm").setLevel(logging.WARNING)` silences both.
"""

import logging
import sys
import time
from types import TracebackType

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 10.0  # a log file should stay readable


class Progress:
    """`with Progress("scenes", total) as progress: progress.advance(n, note="loss 0.1")`.

    The rate is in things per second, or in `unit`s of which every thing is `per`.
    """

    def __init__(self, what: str, total: int, done: int = 0, unit: str = "", per: int = 1) -> None:
        self.what, self.total, self.done, self._unit, self._per = what, total, done, unit, per
        self._note = ""
        self._at_start = self._said = done
        self._started = self._spoken = time.monotonic()
        self._bar = None
        if sys.stderr.isatty() and not _silenced():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar
            from rich.table import Column

            unbroken, also_whole = Column(no_wrap=True), Column(no_wrap=True)  # on a narrow terminal the bar gives way
            self._bar = Bar(
                TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(table_column=unbroken),
                TextColumn("{task.fields[rate]}"), TimeRemainingColumn(table_column=also_whole),
                TextColumn("{task.fields[note]}"), console=Console(stderr=True), expand=True,
            )  # fmt: skip
            self._task = self._bar.add_task(what, total=total, completed=done, rate="", note="")

    def __enter__(self) -> "Progress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        elif kind is None and self.done > self._said:
            self._say()

    @property
    def rate(self) -> float:
        """Things per second since this process started on them."""
        return (self.done - self._at_start) / max(time.monotonic() - self._started, 1e-9)

    def expect(self, total: int) -> None:
        """Correct the total: it was an estimate, and something better is known."""
        self.total = total
        if self._bar:
            self._bar.update(self._task, total=total)

    def advance(self, count: int = 1, note: str = "") -> None:
        """Say that `count` more are done."""
        self.done += count
        self._note = note
        if self._bar:
            self._bar.update(self._task, completed=self.done, rate=self._rate_in_words(), note=note)
        elif time.monotonic() - self._spoken > _SECONDS_BETWEEN_LINES:
            self._say()

    def _rate_in_words(self) -> str:
        return f"{self.rate * self._per:.4g} {self._unit}".rstrip() + "/s"

    def _say(self) -> None:
        self._spoken, self._said = time.monotonic(), self.done
        left = clock((self.total - self.done) / self.rate) if self.rate else "unknown time"
        line = f"{self.what} {self.done}/{self.total}  {self._rate_in_words()}  {left} left"
        _log.info(f"{line}  {self._note}".rstrip())


def _silenced() -> bool:
    """Whether the caller wants less than notes of slotnorm, or of a room of it, whatever other loggers are set to."""
    logger: logging.Logger | None = _log
    while logger is not None and logger is not logging.root:
        if logger.disabled or logger.level != logging.NOTSET:
            return logger.disabled or logger.level > logging.INFO
        logger = logger.parent
    return False


def clock(seconds: float) -> str:
    """Seconds as hours:minutes:seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
