"""What the library says goes through `logging`; the command line shows it on stderr, word for word."""

import ast
import logging
from pathlib import Path

import pytest

import slotnorm
import tiny
from slotnorm.cli import messages, verbs
from slotnorm.training.experiment_file import write_experiment
from slotnorm.training.loop import train

SOURCE = Path(slotnorm.__file__).parent


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data"), crowded=True).directory


def train_twice(folder: Path, data: Path) -> None:
    for steps in (4, 6):
        train(tiny.experiment(steps=steps), folder, data=data)


def test_a_caller_gets_messages_by_logger_and_level(
    tmp_path: Path, data: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, logger="slotnorm")
    train_twice(tmp_path, data)
    levels = {record.getMessage().split()[0]: record.levelno for record in caplog.records}
    assert (levels["WARNING:"], levels["resuming"]) == (logging.WARNING, logging.INFO)
    assert {record.name.split(".")[0] for record in caplog.records} == {"slotnorm"}
    assert capfd.readouterr().err == ""


def test_a_caller_can_silence_the_library(
    tmp_path: Path, data: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.ERROR, logger="slotnorm")
    train_twice(tmp_path, data)
    assert caplog.messages == []
    assert capfd.readouterr().err == ""


def test_the_command_line_shows_them_on_stderr_as_plain_sentences(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (logging.getLogger("slotnorm").level, list(logging.getLogger("slotnorm").handlers))
    for steps in (4, 6):
        file = tmp_path / "asked.json"
        write_experiment(file, tiny.experiment(steps=steps))
        verbs.main(["train", "--experiment", str(file), "--into", str(tmp_path), "--data", str(data)])
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("WARNING: 56 of 56 training scenes have 4 or more objects")]
    assert f"resuming {tmp_path / 'toy-weighted_sum-1'} at step 4 of 6" in lines
    assert [line for line in lines if line.startswith("toy-weighted_sum-1 6/6")]
    assert (logging.getLogger("slotnorm").level, logging.getLogger("slotnorm").handlers) == before


def test_matplotlibs_advice_on_its_own_cache_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    plots = logging.getLogger("matplotlib")
    with messages.shown():
        plots.warning("Matplotlib created a temporary cache directory")
    assert caplog.messages == []
    plots.warning("afterwards")
    assert caplog.messages == ["afterwards"]


def test_no_room_but_the_command_line_prints_to_stderr() -> None:
    for path in SOURCE.rglob("*.py"):
        if "cli" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                words = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "file"]
                assert "sys.stderr" not in words, f"{path}:{node.lineno}"
