"""Progress on stderr where there is no terminal."""

from slotnorm.runtime import progress
from slotnorm.runtime.progress import Progress


def test_lines_tell_how_much_is_done_and_left(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with Progress("scenes", 100, done=20) as bar:
        clock[0] = 11
        bar.advance(0, note="still waiting")
        clock[0] = 40
        bar.advance(40, note="loss 0.1")
        bar.advance(40)
    assert capsys.readouterr().err.splitlines() == [
        "scenes 20/100  0/s  unknown time left  still waiting",
        "scenes 60/100  1/s  0:00:40 left  loss 0.1",
        "scenes 100/100  2/s  0:00:00 left",
    ]


def test_nothing_is_said_when_nothing_was_done(capsys):
    with Progress("scenes", 10, done=10):
        pass
    assert capsys.readouterr().err == ""
