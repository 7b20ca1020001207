"""Where jobs run, one class each: a class here, or in a plugin, is what `--on NAME` names.

A job is a command that can be given again and goes on where it stopped, and the folder that it writes. Launchers pass
on commands and nothing else; of what an engine pickles, nothing is read back.
"""

import collections
import dataclasses
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from slotnorm.errors import UserError, refused
from slotnorm.runtime import unix
from slotnorm.runtime.registry import Registry
from slotnorm.storage import files

State = Literal["waiting", "running", "lost"] | int
"""How a job stands: lost when it neither ran to its own end nor will, e.g. with its machine; else its exit code."""

LOG = "log.txt"  # in a job's folder: what its command says
RETRIES = 3  # how often a job that was lost is submitted again
_SECONDS_BETWEEN_LOOKS = 0.1  # while processes that were told to stop save

_registry: Registry["Launcher"] = Registry("launcher")


@dataclasses.dataclass(frozen=True)
class Job:
    """A command that goes on where it stopped."""

    command: tuple[str, ...]
    folder: Path
    """What it writes: the command's own files, and log.txt; it exists when the job is submitted."""

    @property
    def log(self) -> Path:
        """Where what the command says is appended."""
        return self.folder / LOG


@dataclasses.dataclass
class Launcher:
    """Runs jobs; subclasses register themselves by `name`, and their fields are options of the command line.

    A launcher need not be reliable. It may lose jobs, start one twice, late or again, and report late: what a job has
    made is looked for in its folder, a lock keeps two from writing it, and what is missing is submitted again.
    """

    name: ClassVar[str]
    """What `--on` calls it."""

    def __init_subclass__(cls, registered: bool = True, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if registered:
            _registry.add(cls)

    def check(self, folders: Sequence[Path]) -> None:
        """Refuse, before anything is written, what cannot work: an engine that is not here, folders it cannot see."""

    def script(self, folders: Sequence[Path]) -> str:
        """What jobs of these folders would be handed over with, for `--plan`; empty where a command says it all."""
        return ""

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        """Hand jobs over, all at once; a ticket for each, by which the launcher knows it from now on.

        Tickets are kept beside the jobs. Where an engine runs on without this process, they must be good in another
        one, which then watches these jobs instead of submitting them again.
        """
        raise TypeError(f"launcher {type(self).__name__} defines no submit(jobs)")

    def watch(self, tickets: Sequence[str]) -> list[State]:
        """How each of these jobs stands now; a ticket that says nothing to this launcher is lost."""
        raise TypeError(f"launcher {type(self).__name__} defines no watch(tickets)")

    def explain(self, ticket: str) -> str:
        """Why a job could not even be started, or was lost; empty where its log tells more, or nothing is known."""
        return ""

    def cancel(self, tickets: Sequence[str], number: signal.Signals = signal.SIGTERM) -> None:
        """Send running jobs a signal, on which commands save and stop, and never start those that wait."""
        raise TypeError(f"launcher {type(self).__name__} defines no cancel(tickets, number)")

    def goes_on(self, ticket: str) -> bool:
        """Whether a job goes on without the process that submitted it, so that any other can watch and cancel it."""
        return False

    def for_one_process(self) -> "Launcher":
        """The same for jobs that are the work of one process, which uses one GPU at most."""
        return self

    def leave(self, tickets: Sequence[str], number: signal.Signals) -> str:
        """This process was told to stop by a signal: what becomes of its jobs is done, and said.

        Here they are cancelled and waited for; a second Ctrl-C kills them. An engine that runs on by itself says how
        its jobs are watched.
        """
        try:
            self.cancel(tickets, number)
            while any(state in ("waiting", "running") for state in self.watch(tickets)):
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        except KeyboardInterrupt:
            self.cancel(tickets, unix.KILL)
            raise
        return "the runs were saved, and the same command continues"


def launchers() -> dict[str, type[Launcher]]:
    """Every launcher by name."""
    return _registry.all()


def find_launcher(name: str) -> type[Launcher]:
    """The launcher of that name; an unknown one is refused."""
    return _registry.find(name)


def describe_launchers() -> str:
    """All launchers in one line, for help."""
    return _registry.described()


@dataclasses.dataclass
class Local(Launcher):
    """Processes on this machine, one thread each."""

    name: ClassVar[str] = "local"

    jobs: int = 1
    """Single-threaded processes side by side"""

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UserError(f"--jobs is {self.jobs}, but must be at least 1")
        self._waiting: collections.deque[tuple[str, Job]] = collections.deque()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._refusals: dict[str, str] = {}

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        tickets = [uuid.uuid4().hex for _ in jobs]  # no process takes another one's for its own
        self._waiting.extend(zip(tickets, jobs, strict=True))
        self._start()
        return tickets

    def watch(self, tickets: Sequence[str]) -> list[State]:
        self._start()
        waiting = {ticket for ticket, _ in self._waiting}
        return ["waiting" if ticket in waiting else self._look(ticket) for ticket in tickets]

    def cancel(self, tickets: Sequence[str], number: signal.Signals = signal.SIGTERM) -> None:
        self._waiting = collections.deque(entry for entry in self._waiting if entry[0] not in tickets)
        for ticket in tickets:
            if self._look(ticket) == "running":
                self._processes[ticket].send_signal(number)

    def explain(self, ticket: str) -> str:
        return self._refusals.get(ticket, "")

    def _look(self, ticket: str) -> State:
        if ticket in self._refusals:
            return UserError.exit_code
        if ticket not in self._processes:
            return "lost"
        code = self._processes[ticket].poll()
        return "running" if code is None else code

    def _start(self) -> None:
        """Start as many waiting jobs as there is room for."""
        running = sum(self._look(ticket) == "running" for ticket in self._processes)
        for _ in range(min(self.jobs - running, len(self._waiting))):
            ticket, job = self._waiting.popleft()
            try:
                self._processes[ticket] = _start_process(job)
            except (OSError, UserError) as error:  # of this job alone: its log, or its command, cannot be opened
                reason = refused(error) if isinstance(error, OSError) else str(error)
                self._refusals[ticket] = f"it cannot be started: {reason}"


def _start_process(job: Job) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with open(files.open_in_place(job.log, os.O_WRONLY | os.O_APPEND), "ab") as log:
        # a session of its own: Ctrl-C reaches this process alone, which passes it on
        return subprocess.Popen(
            job.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
