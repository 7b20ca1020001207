"""Progress on stderr: a bar with rate and time left on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType

_SECONDS_BETWEEN_LINES = 10.0  # a log file should stay readable


class Progress:
    """`with Progress("scenes", total) as progress: progress.advance(n, note="loss 0.1")`."""

    def __init__(self, what: str, total: int, done: int = 0) -> None:
        self.what, self.total, self.done = what, total, done
        self._at_start = done
        self._started = self._spoken = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=Console(stderr=True),
            )  # fmt: skip
            self._task = self._bar.add_task(what, total=total, completed=done, rate="", note="")

    def __enter__(self) -> "Progress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()
        elif kind is None and self.done > self._at_start:
            self._say("")

    @property
    def rate(self) -> float:
        """Things a second since this process started on them."""
        return (self.done - self._at_start) / max(time.monotonic() - self._started, 1e-9)

    def expect(self, total: int) -> None:
        """Correct the total: it was an estimate, and something better is known."""
        self.total = total
        if self._bar:
            self._bar.update(self._task, total=total)

    def advance(self, count: int = 1, note: str = "") -> None:
        """Say that `count` more are done."""
        self.done += count
        if self._bar:
            self._bar.update(self._task, completed=self.done, rate=f"{self.rate:.4g}/s", note=note)
        elif time.monotonic() - self._spoken > _SECONDS_BETWEEN_LINES:
            self._say(note)

    def _say(self, note: str) -> None:
        self._spoken = time.monotonic()
        left = _clock((self.total - self.done) / self.rate) if self.rate else "unknown time"
        line = f"{self.what} {self.done}/{self.total}  {self.rate:.4g}/s  {left} left"
        print(f"{line}  {note}".rstrip(), file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
