"""Launchers: one class each, and an engine that loses, repeats and delays jobs still ends with everything made."""

import dataclasses
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import processes
from slotnorm.cli import verbs
from slotnorm.errors import Locked, UserError
from slotnorm.runtime.signals import Stop
from slotnorm.studies import jobs
from slotnorm.studies.jobs import Task, complete, read_note
from slotnorm.studies.launchers import Job, Launcher, Local, State, launchers

STEPS = 5


class Clock:
    """Stands for `time`: seconds pass when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(jobs, "time", clock)
    return clock


class Work(Task):
    """Appends a line to its file at every step, up to `STEPS`; another process's lock stops it."""

    size = STEPS

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def prepare(self) -> Job:
        self.path.mkdir(parents=True, exist_ok=True)
        return Job((str(self.path),), self.path)

    @property
    def is_done(self) -> bool:
        return self.progress >= STEPS

    @property
    def progress(self) -> int:
        file = self.path / "made"
        return len(file.read_text().splitlines()) if file.exists() else 0


@dataclasses.dataclass
class Process:
    """One start of a job in the made-up engine."""

    job: Job
    delay: int
    dies_at: int
    """The step at which its machine is lost."""
    code: int | None = None
    lost: bool = False

    def advance(self) -> None:
        """One step of work, if it is there yet and nobody else writes the folder."""
        if self.code is not None or self.lost:
            return
        self.delay -= 1
        result, lock = self.job.folder / "made", self.job.folder / "lock"
        done = len(result.read_text().splitlines()) if result.exists() else 0
        if self.delay >= 0:
            return
        if lock.exists() and lock.read_text() != str(id(self)):
            self.code = Locked.exit_code
        elif done >= STEPS:
            self.code = 0
            lock.unlink(missing_ok=True)
        elif self.dies_at == done:
            self.lost = True
            lock.unlink(missing_ok=True)  # the kernel's lock goes with the process
        else:
            lock.write_text(str(id(self)))
            with open(result, "a") as file:
                file.write(f"{done}\n")


class Engine:
    """A cluster that loses jobs and machines, starts jobs twice, and says everything late; all by a seed."""

    def __init__(self, seed: int, trouble: float) -> None:
        self.random, self.trouble = random.Random(seed), trouble
        self.processes: dict[str, list[Process]] = {}
        self.said_late: dict[str, int] = {}
        self.submitted = 0

    def accept(self, job: Job) -> str:
        ticket = f"ticket-{self.submitted}"
        self.submitted += 1
        count = 0 if self._happens() else 2 if self._happens() else 1
        self.processes[ticket] = [
            Process(job, self.random.randrange(4), self.random.randrange(STEPS) if self._happens() else -1)
            for _ in range(count)
        ]
        self.said_late[ticket] = self.random.randrange(30) if self._happens() else 0
        return ticket

    def advance(self) -> None:
        for started in self.processes.values():
            for process in started:
                process.advance()

    def state(self, ticket: str) -> State:
        started = self.processes.get(ticket, [])
        if not started:
            return "lost"
        if any(process.code is None and not process.lost for process in started):
            return "running" if started[0].delay < 0 else "waiting"
        if self.said_late[ticket] > 0:
            self.said_late[ticket] -= 1
            return "running"
        codes = [process.code for process in started if process.code is not None]
        return self.random.choice(codes) if codes else "lost"

    def _happens(self) -> bool:
        return self.random.random() < self.trouble


@dataclasses.dataclass
class Unreliable(Launcher, registered=False):
    name: ClassVar[str] = "unreliable"
    engine: Engine

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        return [self.engine.accept(job) for job in jobs]

    def watch(self, tickets: Sequence[str]) -> list[State]:
        self.engine.advance()
        return [self.engine.state(ticket) for ticket in tickets]

    def cancel(self, tickets: Sequence[str], number: signal.Signals = signal.SIGTERM) -> None:
        for ticket in tickets:
            for process in self.engine.processes[ticket]:
                process.lost = True
                (process.job.folder / "lock").unlink(missing_ok=True)


def made(tasks: Sequence[Task]) -> list[str]:
    return [(task.path / "made").read_text() for task in tasks]


WHOLE = "".join(f"{number}\n" for number in range(STEPS))


@pytest.mark.parametrize("seed", range(40))
def test_an_engine_that_loses_repeats_and_delays_jobs_ends_right(tmp_path: Path, seed: int) -> None:
    tasks = [Work(tmp_path / f"work-{number}") for number in range(8)]
    complete(tasks, Unreliable(Engine(seed, trouble=0.4)), "steps", retries=50)
    assert {task.state for task in tasks} == {"finished"}
    assert made(tasks) == [WHOLE] * 8
    assert not list(tmp_path.rglob("job.json"))


def test_a_job_that_is_lost_again_and_again_fails_after_the_retries(tmp_path: Path) -> None:
    tasks = [Work(tmp_path / "work")]
    engine = Engine(0, trouble=1.0)  # every job is lost
    complete(tasks, Unreliable(engine), "steps", retries=3)
    assert (tasks[0].state, engine.submitted) == ("failed", 4)
    assert tasks[0].reason == "it was lost 4 times by unreliable"
    note = read_note(tasks[0].path)
    assert note is not None
    assert (note.state, note.reason) == ("failed", tasks[0].reason)


def test_an_engine_that_never_says_the_end_is_not_waited_for_forever(tmp_path: Path, clock: Clock) -> None:
    class Silent(Unreliable, registered=False):
        def watch(self, tickets: Sequence[str]) -> list[State]:
            super().watch(tickets)
            return ["running" for _ in tickets]

    tasks = [Work(tmp_path / "work")]
    complete(tasks, Silent(Engine(0, trouble=0.0)), "steps")
    assert tasks[0].state == "finished"
    assert 60 < clock.now < 120


def test_an_exit_code_of_zero_without_a_result_is_not_believed(tmp_path: Path) -> None:
    class Liar(Unreliable, registered=False):
        def watch(self, tickets: Sequence[str]) -> list[State]:
            states = super().watch(tickets)
            return [0 if ticket == "ticket-0" else state for ticket, state in zip(tickets, states, strict=True)]

    engine = Engine(0, trouble=0.0)
    tasks = [Work(tmp_path / "work")]
    complete(tasks, Liar(engine), "steps")
    assert (tasks[0].state, made(tasks)) == ("finished", [WHOLE])
    assert engine.submitted > 1


@pytest.mark.parametrize(
    ("submitted", "watched", "sentence"),
    [
        (
            RuntimeError("queue\nis full"),
            None,
            r"careless fails at submit with RuntimeError: queue\\nis full \(test_laun",
        ),
        (["a"], None, r"careless gave \['a'\] for 2 jobs; submit must give a list with a text for each"),
        ([1, 2], None, r"careless gave \[1, 2\] for 2 jobs"),
        (None, None, "careless gave None for 2 jobs"),
        (
            ["a", "b"],
            RuntimeError("gone"),
            r"careless fails at watch with RuntimeError: gone \(test_launchers.py, line",
        ),
        (
            ["a", "b"],
            ["running"],
            r"careless said \['running'\] of 2 jobs; watch must say waiting, running, lost or an",
        ),
        (["a", "b"], ["done", "done"], r"careless said \['done', 'done'\] of 2 jobs"),
    ],
)
def test_a_launcher_that_raises_or_says_what_it_may_not_is_one_sentence(
    tmp_path: Path, submitted: Any, watched: Any, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Careless(Launcher, registered=False):
        name = "careless"

        def submit(self, jobs: Sequence[Job]) -> list[str]:
            return answer(submitted)

        def watch(self, tickets: Sequence[str]) -> list[State]:
            return answer(watched)

        def cancel(self, tickets: Sequence[str], number: signal.Signals = signal.SIGTERM) -> None:
            raise RuntimeError("not that either")

    def answer(given: Any) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    tasks = [Work(tmp_path / name) for name in ("one", "two")]
    with pytest.raises(UserError, match=sentence) as refusal:
        complete(tasks, Careless(), "steps")
    assert "\n" not in str(refusal.value)
    assert "the launcher careless cannot cancel its jobs: RuntimeError: not that either" in caplog.text
    engine = Engine(0, trouble=0.0)
    again = [Work(task.path) for task in tasks]
    complete(again, Unreliable(engine), "steps")  # nothing stands in the way of a better one
    assert made(again) == [WHOLE, WHOLE]


def test_a_job_that_fails_of_itself_is_not_tried_again(tmp_path: Path) -> None:
    class Failing(Unreliable, registered=False):
        def watch(self, tickets: Sequence[str]) -> list[State]:
            return [2 for _ in tickets]

    task = Work(tmp_path / "work")
    task.path.mkdir()
    (task.path / "log.txt").write_text("a line\nslotnorm: the data is missing\n")
    engine = Engine(0, trouble=0.0)
    complete([task], Failing(engine), "steps")
    assert (task.state, task.reason, engine.submitted) == ("failed", "exit code 2: slotnorm: the data is missing", 1)


def test_a_second_process_watches_the_jobs_of_the_first_instead_of_submitting_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lasting(Unreliable, registered=False):
        def leave(self, tickets: Sequence[str], number: signal.Signals) -> str:
            return "the jobs go on"

    engine = Engine(0, trouble=0.0)
    tasks = [Work(tmp_path / f"work-{number}") for number in range(3)]
    with monkeypatch.context() as patch:
        looks = iter([None, None, None, signal.SIGTERM, *[signal.SIGTERM] * 20])
        patch.setattr(Stop, "signal", property(lambda self: next(looks), lambda self, number: None), raising=False)
        with pytest.raises(UserError, match="stopped by SIGTERM; the jobs go on") as stopped:
            complete(tasks, Lasting(engine), "steps")
    assert stopped.value.exit_code == 143
    assert engine.submitted == 3
    again = [Work(task.path) for task in tasks]
    complete(again, Lasting(engine), "steps")
    assert {task.state for task in again} == {"finished"}
    assert engine.submitted == 3


@pytest.mark.parametrize("seed", range(10))
def test_two_launchers_on_one_folder_make_nothing_twice(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each knows nothing of the other's engine; while one looks, the other works."""
    engines = Engine(seed, trouble=0.3), Engine(seed + 100, trouble=0.3)
    first = [Work(tmp_path / f"work-{number}") for number in range(6)]
    second = [Work(task.path) for task in first]
    dispatchers = [
        jobs._Dispatcher([jobs._Entry(task, 0) for task in tasks], Unreliable(engine), 50)
        for tasks, engine in zip((first, second), engines, strict=True)
    ]
    while any(dispatcher.open_entries for dispatcher in dispatchers):
        for dispatcher in dispatchers:
            dispatcher.submit()
            jobs.time.sleep(0.5)
            dispatcher.look()
    assert {task.state for task in [*first, *second]} == {"finished"}
    assert made(first) == [WHOLE] * 6


def test_a_cancelled_job_is_not_submitted_again(tmp_path: Path) -> None:
    class Cancelled(Unreliable, registered=False):
        def watch(self, tickets: Sequence[str]) -> list[State]:
            note = read_note(tmp_path / "work")
            assert note is not None
            jobs.write_note(tmp_path / "work", dataclasses.replace(note, state="cancelled"))
            return ["lost" for _ in tickets]

    task, engine = Work(tmp_path / "work"), Engine(0, trouble=0.0)
    complete([task], Cancelled(engine), "steps")
    assert (task.state, task.reason, engine.submitted) == ("failed", "cancelled by `slotnorm status --cancel`", 1)


def test_a_damaged_note_of_a_job_costs_nothing_but_a_submission(tmp_path: Path) -> None:
    task = Work(tmp_path / "work")
    task.path.mkdir()
    (task.path / "job.json").write_text('{"on": "unreliable"}')
    complete([task], Unreliable(Engine(0, trouble=0.0)), "steps")
    assert task.state == "finished"


def test_negative_retries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--retries is -1, but must not be negative"):
        complete([Work(tmp_path)], Local(), "steps", retries=-1)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("pass", "launcher Mine has the name None; each says its own"),
        ("name = 'Mine'\n    '''Somewhere.'''", "has the name 'Mine'"),
        ("name = 'mine'", "launcher Mine has no docstring"),
        (
            "'''Here.'''\n    name = 'local'",
            "'local' of Mine is taken by slotnorm.studies.launchers.Local",
        ),
    ],
)
def test_a_launcher_that_does_not_say_what_it_is_is_refused(body: str, sentence: str) -> None:
    before = launchers()
    with pytest.raises(TypeError, match=sentence):
        exec(f"class Mine(Launcher):\n    {body}\n", {"Launcher": Launcher})
    assert launchers() == before


def test_an_unknown_launcher_is_refused_with_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for words, sentence in (
        (["--on", "locl"], "there is no launcher 'locl'; did you mean 'local'?"),
        (["--on"], "--on needs a launcher: local"),
    ):
        with pytest.raises(SystemExit) as ended:
            verbs.main(["sweep", "toy", *words])
        assert ended.value.code == 2
        assert sentence in capsys.readouterr().err


PLUGIN = '''
import dataclasses
from typing import ClassVar

from slotnorm.studies.launchers import Launcher


@dataclasses.dataclass
class Careless(Launcher):
    """Takes an option's name."""

    name: ClassVar[str] = "careless"
    data: str = "none"
'''


def test_a_plugin_whose_option_is_taken_is_told_to_rename_it(tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text(PLUGIN)
    words = ["sweep", "toy", "--on", "careless", "--plugin", str(tmp_path / "careless.py")]
    sentence = "launcher careless has the field data, but --data is an option of every sweep; rename the field"
    assert processes.run_command(tmp_path, *words) == (2, f"slotnorm: {sentence}\n")
