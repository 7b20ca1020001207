"""What the library says through `logging`, shown on stderr as plain sentences while a command runs."""

import contextlib
import logging
import sys
from collections.abc import Iterator


class _Stderr(logging.Handler):
    """Writes to whatever `sys.stderr` is at that moment."""

    reader_left = False

    def emit(self, record: logging.LogRecord) -> None:
        if self.reader_left:
            return
        try:
            print(record.getMessage(), file=sys.stderr, flush=True)
        except BrokenPipeError:  # `slotnorm train toy 2>&1 | head`: the reader has left, but the work goes on
            self.reader_left = True


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Show notes and warnings of the library; afterwards its logger is as it was."""
    logger, handler = logging.getLogger("slotnorm"), _Stderr()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
