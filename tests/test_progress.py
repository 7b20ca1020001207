"""Progress where there is no terminal: lines through `logging`; a caller silences them, and the bar."""

import logging
import sys

import pytest

from slotnorm.runtime import progress
from slotnorm.runtime.progress import Progress


def test_lines_tell_how_much_is_done_and_left(monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="slotnorm")
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with Progress("scenes", 100, done=20) as bar:
        clock[0] = 11
        bar.advance(0, note="still waiting")
        clock[0] = 40
        bar.advance(40, note="loss 0.1")
        bar.advance(40)
    assert caplog.messages == [
        "scenes 20/100  0/s  unknown time left  still waiting",
        "scenes 60/100  1/s  0:00:40 left  loss 0.1",
        "scenes 100/100  2/s  0:00:00 left",
    ]


def test_nothing_is_said_when_nothing_was_done(caplog):
    caplog.set_level(logging.INFO, logger="slotnorm")
    with Progress("scenes", 10, done=10):
        pass
    assert caplog.messages == []


class Terminal:
    """Stands for a terminal as stderr."""

    def __init__(self):
        self.written = ""

    def isatty(self):
        return True

    def write(self, text):
        self.written += text

    def flush(self):
        pass


@pytest.mark.parametrize("room", ["slotnorm", "slotnorm.runtime.progress"])
@pytest.mark.parametrize(
    ("level", "shown"), [(logging.NOTSET, True), (logging.INFO, True), (logging.WARNING, False), (logging.ERROR, False)]
)
def test_a_caller_silences_the_bar_with_the_loggers_level(level, shown, room, monkeypatch, caplog):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    caplog.set_level(level, logger=room)
    with Progress("scenes", 10) as bar:
        bar.advance(10)
    assert ("scenes" in terminal.written) == shown
