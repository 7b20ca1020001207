"""Tasks whose jobs a launcher runs, until each is done or has failed, whatever the launcher loses, repeats or delays.

What a launcher says is a hint; what a task's folder holds decides. RUN/job.json keeps who was given the job.
"""

import contextlib
import dataclasses
import logging
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from slotnorm.errors import Locked, UserError, blaming, describe, printable, refused
from slotnorm.runtime.plugins import loaded_plugins, plugin_words
from slotnorm.runtime.progress import Progress
from slotnorm.runtime.ranks import RankLost
from slotnorm.runtime.signals import Stop
from slotnorm.storage.schemas import read_document
from slotnorm.storage.seals import write_sealed
from slotnorm.storage.serialization import to_document
from slotnorm.studies.launchers import LOG, RETRIES, Job, Launcher, State
from slotnorm.studies.relays import last_line

_log = logging.getLogger(__name__)

CANCELLED = "cancelled by `slotnorm status --cancel`"
NOTE = "job.json"
_STATES = ("waiting", "running", "lost")
_SMALLEST_ROOM = 1 << 16  # bytes below which a disk is full
_SECONDS_BETWEEN_LOOKS = 0.5
_REST = 4.0  # times as long as a look took: looking at thousands of runs must not be what keeps a file system busy
_SECONDS_BEFORE_RETRY = 10.0  # a folder that another process writes is looked at again after this
_SECONDS_OF_GRACE = 60.0  # after it was made, a launcher should say that the job has ended


class JobsFailed(UserError):
    """Some of the jobs of one command failed."""

    exit_code = 1


class Task:
    """What one job makes in its folder, and what became of it."""

    path: Path
    """The folder."""
    size: int
    """Of the whole work, in units that the tasks of one command share."""

    def __init__(self) -> None:
        self.state: Literal["waiting", "running", "finished", "skipped", "failed"] = "waiting"
        """skipped is what was finished already."""
        self.reason = ""
        """Why it failed."""

    @property
    def name(self) -> str:
        """What a message calls it."""
        return str(self.path)

    def prepare(self) -> Job:
        """Write what the command reads; the job."""
        raise TypeError(f"task {type(self).__name__} defines no prepare()")

    @property
    def is_done(self) -> bool:
        """Whether the folder holds all that the job was to make."""
        raise TypeError(f"task {type(self).__name__} defines no is_done")

    @property
    def progress(self) -> int:
        """How much of `size` the folder holds."""
        raise TypeError(f"task {type(self).__name__} defines no progress")

    def conclude(self) -> None:
        """Remove what only the job needed."""

    def withdraw(self) -> None:
        """Remove what `prepare` has written, where the job was refused and has begun nothing."""


def slotnorm_job(words: Sequence[str], folder: Path) -> Job:
    """`slotnorm` with these words and the plugins of this process, in a folder."""
    return Job((sys.executable, "-m", "slotnorm", *words, *plugin_words(loaded_plugins())), folder)


def skip_done(tasks: Sequence[Task]) -> None:
    """Mark what is finished already."""
    for task in tasks:
        if task.is_done:
            task.state = "skipped"


def require_success(tasks: Sequence[Task], kind: str) -> None:
    """Raise `JobsFailed` with the number of tasks that failed and the first one's reason, if any did."""
    if failed := [task for task in tasks if task.state == "failed"]:
        first = f"{failed[0].name} with {failed[0].reason}"
        raise JobsFailed(f"{len(failed)} of {len(tasks)} {kind} failed, {first}; the same command tries them again")


def complete(tasks: Sequence[Task], launcher: Launcher, what: str, retries: int = RETRIES) -> None:
    """Have the launcher run every waiting task until it is finished or has failed; their states tell the outcome.

    `what` is counted by the bar. A signal ends this as the launcher says (`Launcher.leave`).
    """
    if retries < 0:
        raise UserError(f"--retries is {retries}, but must not be negative")
    tasks = _waiting(tasks)
    if tasks:
        launcher.check([task.path for task in tasks])
    dispatcher = _Dispatcher([_Entry(task, task.progress) for task in tasks], launcher, retries)
    sentence = ""
    with Stop() as stop, Progress(what, sum(task.size for task in tasks), dispatcher.progress) as progress:
        try:
            dispatcher.take_over()
            pause = _SECONDS_BETWEEN_LOOKS
            while dispatcher.open_entries and not stop.signal:
                dispatcher.submit()
                time.sleep(pause)
                began = time.monotonic()
                dispatcher.look()
                pause = max(_SECONDS_BETWEEN_LOOKS, _REST * (time.monotonic() - began))
                progress.advance(max(dispatcher.progress - progress.done, 0), note=dispatcher.counted)
        except BaseException:
            dispatcher.give_up(stop.signal or signal.SIGTERM)
            raise
        if stop.signal:
            sentence = dispatcher.leave(stop.signal)
    if stop.signal and dispatcher.open_entries:
        error = UserError(f"stopped by {stop.signal.name}; {sentence}")
        error.exit_code = 128 + stop.signal
        raise error


def describe_jobs(tasks: Sequence[Task]) -> str:
    """What is planned, a line for each job, and how many are to be submitted."""
    lines = [f"{task.path}: {'made already' if task.state == 'skipped' else 'to make'}" for task in tasks]
    return "\n".join([*lines, f"{len(_waiting(tasks))} of {len(tasks)} jobs to submit"])


def with_script(plan: str, tasks: Sequence[Task], launcher: Launcher) -> str:
    """A plan in words and, where something waits, what the launcher would hand over for it."""
    waiting = _waiting(tasks)
    script = launcher.script([task.path for task in waiting]) if waiting else ""
    return f"{plan}\n\n{script.rstrip()}" if script else plan


def _waiting(tasks: Sequence[Task]) -> list[Task]:
    return [task for task in tasks if task.state == "waiting"]


@dataclasses.dataclass
class _Entry:
    """A task that is not finished yet, and where its job is."""

    task: Task
    progress: int
    ticket: str | None = None
    """None while it is not submitted."""
    state: State = "waiting"
    attempts: int = 0
    """How often it was submitted, not counting those that found the folder locked."""
    not_before: float = 0.0
    done_since: float | None = None


class _Dispatcher:
    """Gives jobs to a launcher and takes back what became of them."""

    def __init__(self, entries: Sequence[_Entry], launcher: Launcher, retries: int) -> None:
        self.entries, self.launcher, self.retries = entries, launcher, retries

    @property
    def open_entries(self) -> list[_Entry]:
        """Neither finished nor failed."""
        return [entry for entry in self.entries if entry.task.state in ("waiting", "running")]

    @property
    def progress(self) -> int:
        """How much of all work is done."""
        return sum(entry.progress for entry in self.entries)

    @property
    def counted(self) -> str:
        """How many run and wait, in words."""
        running = sum(entry.state == "running" for entry in self.open_entries)
        return f"{running} running, {len(self.open_entries) - running} waiting"

    def take_over(self) -> None:
        """Watch the jobs that another process has given to this launcher, if the launcher still knows them."""
        known = [(entry, read_note(entry.task.path)) for entry in self.entries]
        given = [(entry, note) for entry, note in known if note is not None and self._is_ours(note)]
        states = self._watch([note.ticket for _, note in given])
        for (entry, note), state in zip(given, states, strict=True):
            if state in ("waiting", "running"):
                entry.ticket, entry.state, entry.attempts = note.ticket, state, note.attempts
                entry.task.state = "running"

    def submit(self) -> None:
        """Submit what has no ticket and is due; what somebody else has finished meanwhile is taken instead."""
        due = []
        for entry in self.open_entries:
            if entry.ticket is not None or entry.not_before > time.monotonic():
                continue
            if entry.not_before and entry.task.is_done:
                self._finish(entry)
                continue
            try:
                due.append((entry, entry.task.prepare()))
            except UserError as error:  # one folder that cannot be written does not keep the others waiting
                self._fail(entry, str(error))
            except OSError as error:
                self._fail(entry, refused(error))
        try:
            tickets = self._submit([job for _, job in due])
        except UserError:
            for entry, _ in due:
                with contextlib.suppress(OSError):  # the refusal is what is told
                    entry.task.withdraw()
            raise
        for (entry, _), ticket in zip(due, tickets, strict=True):
            entry.ticket, entry.state, entry.attempts = ticket, "waiting", entry.attempts + 1
            entry.task.state = "running"
            self._note(entry, "submitted")

    def look(self) -> None:
        """Ask the launcher how the jobs stand, and conclude those that have ended."""
        submitted = [(entry, entry.ticket) for entry in self.open_entries if entry.ticket is not None]
        states = self._watch([ticket for _, ticket in submitted])
        for (entry, _), state in zip(submitted, states, strict=True):
            entry.state, entry.progress = state, entry.task.progress
            if state not in ("waiting", "running"):
                self._conclude(entry, state)
            elif self._is_overdue(entry):
                self._finish(entry)

    def _submit(self, jobs: Sequence[Job]) -> list[str]:
        """The launcher's tickets for jobs; a launcher that gives none is refused."""
        tickets = self._ask("submit", jobs) if jobs else []
        if not _is_list(tickets, len(jobs), lambda ticket: isinstance(ticket, str)):
            raise UserError(
                f"the launcher {self.launcher.name} gave {tickets!r} for {len(jobs)} jobs; submit must give a list "
                "with a text for each"
            )
        return list(tickets)

    def _watch(self, tickets: Sequence[str]) -> list[State]:
        """How jobs stand, as the launcher says; a launcher that says something else is refused."""
        states = self._ask("watch", tickets) if tickets else []
        if not _is_list(states, len(tickets), lambda state: state in _STATES or isinstance(state, int)):
            raise UserError(
                f"the launcher {self.launcher.name} said {states!r} of {len(tickets)} jobs; watch must say "
                f"{', '.join(_STATES)} or an exit code of each"
            )
        return list(states)

    def _ask(self, method: str, asked: Any) -> Any:
        """Call a launcher's method; a launcher that raises is named. What its jobs have made stays."""
        with blaming(
            f"the launcher {self.launcher.name} fails at {method} with",
            "nothing that was made is lost, and the same command continues",
        ):
            return getattr(self.launcher, method)(asked)

    def give_up(self, number: signal.Signals) -> None:
        """Leave after an error, which is told; one more, of the launcher, is noted and does not take its place."""
        try:
            self.leave(number)
        except Exception as error:
            _log.warning(
                printable(f"warning: the launcher {self.launcher.name} cannot cancel its jobs: {describe(error)}")
            )

    def leave(self, number: signal.Signals) -> str:
        """What becomes of the jobs when this process ends, in words."""
        tickets = [entry.ticket for entry in self.open_entries if entry.ticket is not None]
        sentence = self.launcher.leave(tickets, number)
        for entry in self.open_entries:
            if entry.task.is_done:
                self._finish(entry)
        return sentence

    def _conclude(self, entry: _Entry, state: State) -> None:
        """Read what a job that ended has left."""
        reason = self._ask("explain", entry.ticket or "")
        note = read_note(entry.task.path)
        is_cancelled = note is not None and note.state == "cancelled" and note.ticket == entry.ticket
        entry.ticket, entry.state = None, "waiting"
        if state == Locked.exit_code:
            entry.task.state, entry.not_before = "waiting", time.monotonic() + _SECONDS_BEFORE_RETRY
            entry.attempts -= 1
        elif entry.task.is_done:
            self._finish(entry)
        elif is_cancelled:
            entry.task.state, entry.task.reason = "failed", CANCELLED
        elif state not in (0, "lost", RankLost.exit_code):
            self._fail(entry, reason or f"exit code {state}: {_last_line(entry.task.path / LOG)}")
        elif entry.attempts > self.retries:
            times = "once" if entry.attempts == 1 else f"{entry.attempts} times"
            lost = f"it was lost {times} by {self.launcher.name}"
            self._fail(entry, f"{lost}: {reason}" if reason else lost)
        else:
            entry.task.state = "waiting"

    def _is_overdue(self, entry: _Entry) -> bool:
        """Whether all was made long ago, but the launcher still does not say that the job has ended."""
        if entry.progress < entry.task.size or not entry.task.is_done:
            return False
        entry.done_since = entry.done_since or time.monotonic()
        return time.monotonic() - entry.done_since > _SECONDS_OF_GRACE

    def _finish(self, entry: _Entry) -> None:
        entry.task.state = "finished"
        with contextlib.suppress(OSError):  # what is left behind does no harm to what was made
            entry.task.conclude()
            (entry.task.path / NOTE).unlink(missing_ok=True)

    def _fail(self, entry: _Entry, reason: str) -> None:
        entry.task.state, entry.task.reason = "failed", reason
        self._note(entry, "failed", reason)

    def _note(self, entry: _Entry, state: Literal["submitted", "failed"], reason: str = "") -> None:
        if entry.task.path.is_dir():  # else it could not even be made
            note = JobNote(self.launcher.name, entry.ticket or "", entry.attempts, state, reason)
            try:
                write_note(entry.task.path, note)
            except UserError as error:  # without it the job may be submitted twice, and its lock keeps one of them out
                _log.warning(f"warning: {error}; the others go on")

    def _is_ours(self, note: "JobNote") -> bool:
        return note.on == self.launcher.name and note.state == "submitted"


def _is_list(given: Any, length: int, is_right: Callable[[Any], bool]) -> bool:
    return isinstance(given, list | tuple) and len(given) == length and all(map(is_right, given))


@dataclasses.dataclass(frozen=True)
class JobNote:
    """What job.json says of a folder's job."""

    on: str
    """The launcher's name."""
    ticket: str
    attempts: int
    state: Literal["submitted", "failed", "cancelled"]
    reason: str
    """Why it failed."""


def write_note(folder: Path, note: JobNote) -> None:
    """Note who was given a folder's job, and what became of it."""
    write_sealed(folder / NOTE, to_document(note))


def read_note(folder: Path) -> JobNote | None:
    """What is noted of a folder's job.

    None where no launcher was given one, or where the note is damaged: then it is submitted again, and no more is lost.
    """
    try:
        return read_document(JobNote, folder / NOTE, "a note of a job")
    except UserError:
        return None


def folders_with_notes(path: Path) -> list[Path]:
    """The folders at and below `path` whose job is noted: of runs, of their evaluations, of shards."""
    return sorted(note.parent for note in path.rglob(NOTE))


def _last_line(log: Path) -> str:
    """The last line that a job said, for people."""
    if line := last_line(log):
        return line
    full = log.parent.is_dir() and shutil.disk_usage(log.parent).free < _SMALLEST_ROOM
    return f"it could not even write {log}: the disk is full" if full else f"it said nothing in {log}"
