"""Jobs on a SLURM cluster, through submitit: a job array per submission, requeued at preemption and time limit."""

import contextlib
import dataclasses
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from slotnorm.errors import UserError
from slotnorm.runtime import unix
from slotnorm.storage.seals import parse_json
from slotnorm.studies.launchers import Job, Launcher, State
from slotnorm.studies.relays import (
    Relay,
    jobs_folder,
    last_line,
    make_private,
    make_relays,
    read_receipt,
    receipt_path,
    require_shared,
    say_how_to_watch,
)

_log = logging.getLogger(__name__)

_LONGEST_ARRAY = 1000  # SLURM's MaxArraySize is 1001 unless its administrator says otherwise
_SHORTEST = 3  # minutes: SLURM warns a job 90 seconds before its end, or 60 earlier, and it must have begun by then
_TIME_LIMITS = 10_000  # how often a job may go on after its time was over: as often as it needs
_SECONDS_BETWEEN_QUESTIONS = 5.0  # the controller serves everybody; ends are read from receipts meanwhile
_SECONDS_FOR_AN_ANSWER = 60.0
_JOB = re.compile("[0-9]{1,20}(_[0-9]{1,20})?")  # of an array; anything else in a file could be an option of scancel
_NOT_LITERAL = re.compile(r"[%\\\x00-\x1f\x7f]")  # in paths: a number for %j, and what breaks a line of its script
_STARTED = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")


@dataclasses.dataclass
class Slurm(Launcher):
    """Jobs of a SLURM cluster."""

    name: ClassVar[str] = "slurm"

    partition: str | None = None
    """Where jobs queue (default: the cluster's own)"""
    gpus: int = 0
    """GPUs of each node; with more than one, torchrun starts a process for each"""
    nodes: int = 1
    """Nodes that train one run together"""
    hours: float = 24.0
    """The time limit of a job; one that needs more is saved, requeued and goes on"""
    sbatch: tuple[str, ...] = ()
    """More that sbatch is told, as account=lab mem=32G"""

    def __post_init__(self) -> None:
        for option, value, least in (("gpus", self.gpus, 0), ("nodes", self.nodes, 1)):
            if value < least:
                raise UserError(f"--{option} is {value}, but must be at least {least}")
        if not self.hours * 60 >= _SHORTEST:
            raise UserError(f"--hours is {self.hours:g}, but a job needs {_SHORTEST} minutes or more: 0.05")
        if self.partition is not None and not self.partition.isprintable():
            raise UserError(
                f"--partition is {self.partition!r}, but must be a name; `sinfo` shows those of the cluster"
            )
        for word in self.sbatch:
            if not re.fullmatch(r"[a-z][a-z-]*(=.+)?", word) or not word.isprintable():
                raise UserError(f"--sbatch {word} is not one of sbatch's options; give them as account=lab mem=32G")
        self._queue: dict[str, State] | None = None
        self._asked: float | None = None

    def check(self, folders: Sequence[Path]) -> None:
        folder = jobs_folder(folders).parent
        if odd := _NOT_LITERAL.search(str(folder)):
            raise UserError(
                f"the folder {str(folder)!r} has {odd[0]!r} in its name, which SLURM reads as something else; choose "
                "another folder"
            )
        _submitit()
        for program in ("sbatch", "srun", "squeue", "scancel"):
            if shutil.which(program) is None:
                raise UserError(
                    f"--on slurm needs SLURM's commands, and {program} is not on this machine; give the command on a "
                    "machine from which jobs are submitted, or leave out --on"
                )
        hosts = _hosts(self.partition)
        if hosts and self.nodes > len(hosts):  # SLURM would have it wait forever; of no partition it says so itself
            where = "SLURM" if self.partition is None else f"partition {self.partition}"
            raise UserError(f"--nodes is {self.nodes}, but {where} has only {len(hosts)}; `sinfo` shows them")
        require_shared(folder, hosts.values())

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        executor = self._executor(make_private(jobs_folder([job.folder for job in jobs])))
        tickets: list[str] = []
        for start in range(0, len(jobs), _LONGEST_ARRAY):
            relays = make_relays(jobs[start : start + _LONGEST_ARRAY], max(self.gpus, 1), self.nodes)
            try:
                with contextlib.redirect_stderr(io.StringIO()):  # submitit also prints what it raises
                    submitted = executor.submit_array([SlurmRelay(**dataclasses.asdict(relay)) for relay in relays])
            except _submitit().core.utils.FailedJobError as error:
                self.cancel(tickets)  # of arrays before this one
                raise UserError(f"SLURM refuses the jobs: {_words_of_slurm(str(error))}") from None
            for job, relay in zip(submitted, relays, strict=True):
                tickets.append(json.dumps({"job": job.job_id, "receipt": relay.receipt}))
        self._asked = None
        return tickets

    def watch(self, tickets: Sequence[str]) -> list[State]:
        return [self._look(*_read(ticket)) for ticket in tickets]

    def explain(self, ticket: str) -> str:
        job, receipt = _read(ticket)
        if job is None or read_receipt(receipt) is not None:
            return ""
        reason = last_line(receipt.parent / f"{job}_0_log.err")
        return reason or f"job {job} ended before it could write to {receipt.parent}, which nodes may not share"

    def cancel(self, tickets: Sequence[str], number: signal.Signals = signal.SIGTERM) -> None:
        jobs = [job for job, _ in map(_read, tickets) if job is not None]
        for start in range(0, len(jobs), _LONGEST_ARRAY):
            if number == unix.KILL:
                _ask("scancel", "--quiet", "--signal=KILL", *jobs[start : start + _LONGEST_ARRAY])
            _ask("scancel", "--quiet", *jobs[start : start + _LONGEST_ARRAY])

    def goes_on(self, ticket: str) -> bool:
        return True

    def for_one_process(self) -> Launcher:
        return dataclasses.replace(self, gpus=min(self.gpus, 1), nodes=1)

    def leave(self, tickets: Sequence[str], number: signal.Signals) -> str:
        return say_how_to_watch([receipt for _, receipt in map(_read, tickets)])

    def script(self, folders: Sequence[Path]) -> str:
        self.check(folders)
        executor = self._executor(jobs_folder(folders))
        if len(folders) > 1:
            executor.parameters["map_count"] = min(len(folders), _LONGEST_ARRAY)
        return str(executor._make_submission_file_text(executor._submitit_command_str, "plan"))

    def _executor(self, folder: Path) -> Any:
        executor = _submitit().SlurmExecutor(folder, max_num_timeout=_TIME_LIMITS)
        options = dict(word.partition("=")[::2] for word in self.sbatch)
        executor.update_parameters(
            job_name="slotnorm", time=int(self.hours * 60), nodes=self.nodes, ntasks_per_node=1,
            array_parallelism=_LONGEST_ARRAY,
            additional_parameters={"requeue": True, **{name: value or True for name, value in options.items()}},
            **({} if self.partition is None else {"partition": self.partition}),
            **({"gpus_per_node": self.gpus} if self.gpus else {}),
        )  # fmt: skip
        return executor

    def _look(self, job: str | None, receipt: Path) -> State:
        if job is None:
            return "lost"
        outcome = read_receipt(receipt)
        if outcome is not None and isinstance(outcome.state, int):
            return outcome.state
        queued = self._queued()
        return "waiting" if queued is None else queued.get(job, "lost")

    def _queued(self) -> dict[str, State] | None:
        """Every job of this user that waits or runs; None when the controller does not answer."""
        if self._asked is None or time.monotonic() - self._asked > _SECONDS_BETWEEN_QUESTIONS:
            answer = _ask("squeue", "--me", "--noheader", "--array", "--format=%i %T")
            self._asked = time.monotonic()
            self._queue = None if answer is None else dict(map(_state_in_queue, answer.splitlines()))
        return self._queue


class SlurmRelay(Relay):
    """A relay as submitit runs it: called in the job, and told by SIGUSR2 that its time is nearly over."""

    def __call__(self) -> None:
        environment = _submitit().JobEnvironment()
        # srun starts the tasks from the first node; a node's name in SLURM need not be one that the network knows
        first_host = os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or environment.hostnames[0]
        self.start(environment.node, first_host, environment.job_id)
        self.wait(environment.node)

    def checkpoint(self) -> Any:
        """Have the command save; submitit puts the job back into the queue."""
        self.stop(unix.NEARLY_OVER)
        return _submitit().helpers.DelayedSubmission(SlurmRelay(**dataclasses.asdict(self)))


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise UserError("--on slurm needs submitit; install it by pip install 'slotnorm[slurm]'") from None
    return submitit


def _read(ticket: str) -> tuple[str | None, Path]:
    """The job and its receipt; a ticket that is not ours names no job."""
    try:
        known = parse_json(ticket.encode(), "a ticket")
        job, receipt = str(known["job"]), receipt_path(known["receipt"])
    except (ValueError, TypeError, KeyError):
        return None, Path()
    return (job, receipt) if _JOB.fullmatch(job) else (None, Path())


def _state_in_queue(line: str) -> tuple[str, State]:
    job, _, state = line.strip().partition(" ")
    return job, "running" if state in _STARTED else "waiting"


def _ask(*command: str) -> str | None:
    """What a command of SLURM answers; None, with a warning, when it fails."""
    done = _run(*command)
    if done.returncode:
        _log.warning(f"warning: {command[0]} fails: {_words_of_slurm(done.stderr)}; it is asked again")
        return None
    return done.stdout


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    """A command of SLURM, to its end; one that cannot be started, or does not end, has failed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_FOR_AN_ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _words_of_slurm(message: str) -> str:
    """The scheduler's own words, each sentence once, without the name of the program."""
    lines = [re.sub(r"^(\w+: )?(error: )?", "", line.strip()) for line in message.splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines))) or "without a word"


def _hosts(partition: str | None) -> dict[str, str]:
    """The machine of each node of the cluster, or of a partition, by the node's name; none of one that is not there."""
    place = [] if partition is None else [f"--partition={partition}"]
    done = _run("sinfo", "--noheader", "--Node", "--format=%N %o", *place)
    if done.returncode:
        raise UserError(f"SLURM does not answer: {_words_of_slurm(done.stderr)}")
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
