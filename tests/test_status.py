"""`slotnorm status`: how runs stand, read from their folders alone."""

import os
import re
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

import processes
import tiny
from slotnorm.cli import verbs
from slotnorm.errors import UserError
from slotnorm.storage.locks import Lock, lock_holder
from slotnorm.storage.seals import write_sealed
from slotnorm.storage.serialization import to_document
from slotnorm.studies import status
from slotnorm.studies.jobs import JobNote, write_note
from slotnorm.studies.launchers import Launcher
from slotnorm.studies.status import RunStatus, describe, read_status
from slotnorm.training.experiment_file import write_experiment
from slotnorm.training.loop import train


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data")).directory


def only(path: Path) -> RunStatus:
    (status,) = read_status([path])
    return status


def ask(folder: Path, state: str = "submitted", reason: str = "", steps: int = 12) -> Path:
    """What a sweep leaves in the folder of a run that it gives to a launcher."""
    write_experiment(folder / "asked.json", tiny.experiment(steps=steps))
    write_sealed(folder / "job.json", to_document(JobNote("somewhere", "17", 1, state, reason)))  # type: ignore[arg-type]
    return folder


def test_a_run_waits_runs_and_is_finished(tmp_path: Path, data: Path) -> None:
    waiting = only(ask(tmp_path / "toy-weighted_sum-1"))
    assert (waiting.state, waiting.step, waiting.steps, waiting.note) == ("waits", 0, 12, "given to somewhere")
    run = train(tiny.experiment(), tmp_path, data=data)
    assert only(run.path) == RunStatus(run.path, "finished", 12, 12)
    (run.path / "asked.json").unlink()
    assert only(run.path).state == "finished"
    ask(run.path, steps=40)  # more steps were asked for since
    longer = only(run.path)
    assert (longer.state, longer.step, longer.left) == ("waits", 12, 28)


def test_a_run_in_another_process_is_shown_with_rate_and_time_left(tmp_path: Path, data: Path) -> None:
    experiment = tiny.experiment(steps=100_000)
    command = processes.train(experiment, tmp_path, data)
    path = tmp_path / experiment.run_name
    command.until((path / "checkpoints").exists)
    seen: list[RunStatus] = []
    command.until(lambda: seen.append(only(path)) or seen[-1].rate is not None)  # type: ignore[func-returns-value]
    status = seen[-1]
    assert {status.state for status in seen} == {"runs"}
    assert status.note == f"process {command.pid} on {socket.gethostname()}"
    assert status.rate is not None
    assert status.rate > 0
    line, total = describe([status]).splitlines()[1:]
    assert re.search(rf"runs +\d+/100000 +{re.escape(f'{status.rate:.3g}')} +\d+:\d\d:\d\d +process", line)
    assert total.startswith("0 waits, 1 runs, 0 stopped, 0 finished, 0 failed; ")
    assert "steps left, about " in total
    command.process.kill()
    command.process.join()
    after = only(path)  # its lock file is still there, but nobody holds it
    assert (path / ".lock").exists()
    assert (after.state, after.rate) == ("stopped", None)
    assert describe([after]).splitlines()[-1].startswith("0 waits, 0 runs, 1 stopped, 0 finished, 0 failed; ")


def test_a_submitted_run_waits_until_its_job_speaks_and_has_stopped_when_nobody_works_on_it(tmp_path: Path) -> None:
    folder = ask(tmp_path / "toy-weighted_sum-1")
    (folder / "log.txt").write_text("of the job before\n")
    os.utime(folder / "log.txt", (1000, 1000))
    assert only(folder).state == "waits"
    os.utime(folder / "job.json", (900, 900))
    assert only(folder).state == "stopped"
    assert only(ask(tmp_path / "cancelled", "cancelled", "by hand")).state == "stopped"


def test_the_rate_is_that_of_the_newest_checkpoint_and_before_it_that_of_the_metrics(
    tmp_path: Path, data: Path
) -> None:
    run = train(tiny.experiment(), tmp_path, data=data)
    ask(run.path, steps=36)
    with Lock(run.path):
        assert only(run.path).rate == pytest.approx(12 / run.record().seconds)
        for file in run.checkpoints.iterdir():
            file.unlink()
        os.utime(run.path / "experiment.json", (1000, 1000))
        os.utime(run.path / "metrics.jsonl", (1006, 1006))
        status = only(run.path)
    assert status.rate == pytest.approx(2.0)
    assert "0:00:12" in describe([status])
    assert "last word" in status.note


def test_a_failed_run_says_why_and_a_damaged_one_hides_no_other(tmp_path: Path, data: Path) -> None:
    ask(tmp_path / "a", "failed", "exit code 2: slotnorm: no space left")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "experiment.json").write_text("{}")
    ask(tmp_path / "c")
    failed, damaged, waiting = read_status([tmp_path])
    assert (failed.state, failed.note) == ("failed", "exit code 2: slotnorm: no space left")
    assert damaged.state == "failed"
    assert "its seal does not match" in damaged.note
    assert waiting.state == "waits"
    assert describe([failed, damaged, waiting]).splitlines()[-1] == (
        "1 waits, 0 runs, 0 stopped, 0 finished, 2 failed; 12 steps left"
    )


def test_the_name_of_a_folder_cannot_command_the_terminal(tmp_path: Path, data: Path) -> None:
    run = train(tiny.experiment(), tmp_path / "\x1b[31mred\nblue", data=data)
    for shown in (describe(read_status([tmp_path])), run.summary()):
        assert "\x1b" not in shown
        assert "\\x1b[31mred\\nblue" in shown


def test_a_lock_is_read_without_being_taken(tmp_path: Path) -> None:
    assert lock_holder(tmp_path) is None
    with Lock(tmp_path):
        assert lock_holder(tmp_path) == f"process {os.getpid()} on {socket.gethostname()}"
    assert lock_holder(tmp_path) is None
    (tmp_path / ".lock").write_text("process 4194304 on another-machine")
    assert lock_holder(tmp_path) == "process 4194304 on another-machine"
    (tmp_path / ".lock").write_text(f"process 4194305 on {socket.gethostname()}")  # above the most that Linux has
    assert lock_holder(tmp_path) is None


def test_the_verb_prints_a_table_and_refuses_a_folder_without_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(tmp_path / "runs" / "toy-weighted_sum-1")
    verbs.main(["status", str(tmp_path / "runs")])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["run", "state", "step", "steps/s", "left"]
    assert printed[1].split() == [
        str(tmp_path / "runs" / "toy-weighted_sum-1"),
        "waits",
        "0/12",
        "given",
        "to",
        "somewhere",
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty is not a run and holds none"):
        read_status([tmp_path / "empty"])


def test_status_writes_nothing(tmp_path: Path, data: Path) -> None:
    run = train(tiny.experiment(), tmp_path, data=data)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    time.sleep(0.01)
    read_status([tmp_path])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert run.finished


def test_cancel_asks_the_launcher_that_has_the_jobs_and_notes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Queue(Launcher, registered=False):
        """Remembers what it is told."""

        name = "somewhere"
        outlives = True
        cancelled: ClassVar[list[str]] = []

        def goes_on(self, ticket: str) -> bool:
            return self.outlives

        def cancel(self, tickets: Sequence[str], number: signal.Signals = signal.SIGTERM) -> None:
            self.cancelled.extend(tickets)

    ask(tmp_path / "waits")
    ask(tmp_path / "failed", "failed", "exit code 2: no data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status, "find_launcher", lambda name: {"somewhere": Queue}[name])
        verbs.main(["status", str(tmp_path), "--cancel"])
        assert capsys.readouterr().out.endswith("1 job of somewhere cancelled; what ran saves first\n")
        assert Queue.cancelled == ["17"]
        assert only(tmp_path / "waits").note == "cancelled by `slotnorm status --cancel`"
        verbs.main(["status", str(tmp_path), "--cancel"])
        assert capsys.readouterr().out.endswith("no job waits or runs\n")
        Queue.outlives = False
        ask(tmp_path / "waits")
        verbs.main(["status", str(tmp_path), "--cancel"])
        sentence = "1 run belongs to a command that runs on somewhere; Ctrl-C in its terminal stops it\n"
        assert capsys.readouterr().out.endswith(sentence)


def test_jobs_that_evaluate_runs_and_shards_are_shown_and_cancelled_too(tmp_path: Path, data: Path) -> None:
    class Queue(Launcher, registered=False):
        """Remembers what it is told."""

        name = "somewhere"
        cancelled: ClassVar[list[str]] = []

        def goes_on(self, ticket: str) -> bool:
            return True

        def cancel(self, tickets: Sequence[str], number: signal.Signals = signal.SIGTERM) -> None:
            self.cancelled.extend(tickets)

    run = train(tiny.experiment(), tmp_path / "runs", data=data)
    shard = run.path / "rows" / ".unfinished" / "shard-0000-of-0002"
    for number, folder in enumerate((run.path / "rows", shard, tmp_path / "set.shards" / "shard-0000-of-0001")):
        folder.mkdir(parents=True, exist_ok=True)
        write_note(folder, JobNote("somewhere", str(number), 1, "submitted", ""))
    (shard / "log.txt").write_text("begun\n")
    finished, *jobs = read_status([tmp_path / "runs"])
    assert finished.state == "finished"
    assert [(job.path, job.state, job.note) for job in jobs] == [
        (run.path / "rows", "waits", "given to somewhere"),
        (shard, "runs", "given to somewhere"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status, "find_launcher", lambda name: Queue)
        verbs.main(["status", str(tmp_path / "runs"), str(tmp_path / "set.shards"), "--cancel"])
    assert Queue.cancelled == ["0", "1", "2"]
    assert only(tmp_path / "set.shards").note == "cancelled by `slotnorm status --cancel`"
