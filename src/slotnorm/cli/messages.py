"""What the library says through `logging`, shown on stderr as plain sentences while a command runs."""

import contextlib
import logging
import sys
from collections.abc import Iterator

from slotnorm.errors import printable


class _Stderr(logging.Handler):
    """Writes to whatever `sys.stderr` is at that moment."""

    reader_left = False

    def emit(self, record: logging.LogRecord) -> None:
        if self.reader_left:
            return
        try:
            print(printable(record.getMessage()), file=sys.stderr, flush=True)
        except BrokenPipeError:  # `slotnorm train toy 2>&1 | head`: the reader has left, but the work goes on
            self.reader_left = True


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Show notes and warnings of the library; afterwards its logger is as it was."""
    logger, handler = logging.getLogger("slotnorm"), _Stderr()
    plots = logging.getLogger("matplotlib")  # in a home that is read-only it advises at length, and helps itself
    levels = {logger: logger.level, plots: plots.level}
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    plots.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for changed, level in levels.items():
            changed.setLevel(level)
        logger.removeHandler(handler)
