"""Many runs of one study: planned, what is finished skipped, the rest side by side in single-threaded processes."""

import collections
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from slotnorm.errors import Locked, UserError
from slotnorm.runtime.plugins import loaded_plugins
from slotnorm.runtime.progress import Progress
from slotnorm.runtime.signals import Stop
from slotnorm.studies.options import Training, words
from slotnorm.training.experiment_file import write_experiment
from slotnorm.training.runs import Run

_ASKED = "asked.json"  # the experiment that a run's process is started with; its experiment.json is its own to write
_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BEFORE_RETRY = 10.0  # a run that another process trains is looked at again after this


class SweepFailed(UserError):
    """Some runs of a sweep failed."""

    exit_code = 1


@dataclasses.dataclass
class Job:
    """One run of a sweep and what became of it."""

    training: Training
    state: str = "waiting"
    """waiting, running, finished, skipped (was finished already) or failed."""
    reason: str = ""
    process: subprocess.Popen[bytes] | None = None
    not_before: float = 0.0

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.training.path

    @property
    def trained_steps(self) -> int:
        """How far the run has come, as its metrics say."""
        if not (self.path / "experiment.json").is_file():
            return 0
        return Run.open(self.path).logged_step


def plan(trainings: Sequence[Training]) -> list[Job]:
    """One job a training; those that are trained to their last step are marked as skipped."""
    jobs = [Job(training) for training in trainings]
    for job in jobs:
        if (job.path / "experiment.json").is_file():
            run = Run.open(job.path)
            if run.finished and run.experiment == job.training.experiment:
                job.state = "skipped"
    return jobs


def sweep(jobs: list[Job], side_by_side: int) -> None:
    """Train every waiting job with `slotnorm train`; their states tell the outcome.

    Each process has one thread and writes to log.txt in its run's folder. A signal is passed on to the processes, which
    save and stop. When this process dies without a word they go on, and the next sweep waits for them.
    """
    if side_by_side < 1:
        raise UserError(f"--jobs is {side_by_side}, but must be at least 1")
    waiting = collections.deque(job for job in jobs if job.state == "waiting")
    running: list[Job] = []
    total = sum(job.training.experiment.recipe.steps for job in waiting)
    with Stop() as stop, Progress("steps", total, sum(job.trained_steps for job in waiting)) as progress:
        considered = list(waiting)
        try:
            while (waiting or running) and not stop.signal:
                while waiting and len(running) < side_by_side and waiting[0].not_before <= time.monotonic():
                    running.append(_start(waiting.popleft()))
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                for job in [job for job in running if job.process and job.process.poll() is not None]:
                    running.remove(job)
                    _conclude(job)
                    if job.state == "waiting":
                        waiting.append(job)
                done = sum(job.trained_steps for job in considered)
                progress.advance(max(done - progress.done, 0), note=f"{len(running)} running, {len(waiting)} waiting")
        finally:
            _end(running, stop)
    if stop.signal:
        error = UserError(f"stopped by {stop.signal.name}; the runs were saved, and the same command continues")
        error.exit_code = 128 + stop.signal
        raise error


def describe_plan(jobs: Sequence[Job]) -> str:
    """What a sweep would do with each run, one line each, and how much there is to train."""
    lines, left = [], 0
    for job in jobs:
        steps, done = job.training.experiment.recipe.steps, job.trained_steps
        if job.state == "skipped":
            lines.append(f"{job.path}: finished, {steps} steps")
            continue
        left += steps - min(done, steps)
        lines.append(f"{job.path}: to train, {f'from step {done} to {steps}' if done else f'{steps} steps'}")
    waiting = sum(job.state == "waiting" for job in jobs)
    return "\n".join([*lines, f"{waiting} of {len(jobs)} runs to train, {left} steps"])


def report(jobs: Sequence[Job]) -> str:
    """What became of each run, one line each."""
    lines = []
    for job in jobs:
        if job.state in ("finished", "skipped"):
            again = " (was finished already)" if job.state == "skipped" else ""
            lines.append(f"{Run.open(job.path).summary()}{again}")
        else:
            lines.append(f"{job.path}: {job.state}, {job.reason}; {job.path / 'log.txt'} tells more")
    return "\n".join(lines)


def require_success(jobs: Sequence[Job]) -> None:
    """Raise `SweepFailed` with the number of runs that failed and the first one's reason, if any did."""
    if failed := [job for job in jobs if job.state == "failed"]:
        first = f"{failed[0].path.name} with {failed[0].reason}"
        raise SweepFailed(f"{len(failed)} of {len(jobs)} runs failed, {first}; the same command tries them again")


def _start(job: Job) -> Job:
    plugins = [word for path in loaded_plugins() for word in ("--plugin", str(path))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    file = job.path / _ASKED
    write_experiment(file, job.training.experiment)
    command = [sys.executable, "-m", "slotnorm", "train", *words(job.training, file), *plugins]
    with open(job.path / "log.txt", "ab") as log:
        # a session of its own: Ctrl-C reaches this process alone, which passes it on
        job.process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
    job.state = "running"
    return job


def _conclude(job: Job) -> None:
    """Read what a process that ended has left."""
    assert job.process is not None
    code = job.process.returncode
    if code == 0:
        job.state = "finished"
        (job.path / _ASKED).unlink(missing_ok=True)
    elif code == Locked.exit_code:
        job.state, job.not_before = "waiting", time.monotonic() + _SECONDS_BEFORE_RETRY
    else:
        lines = (job.path / "log.txt").read_text(errors="replace").strip().splitlines()
        job.state, job.reason = "failed", f"exit code {code}: {lines[-1] if lines else 'no word'}"


def _end(running: list[Job], stop: Stop) -> None:
    """Pass a signal on to the processes and wait for them; a second Ctrl-C, which interrupts the wait, too."""
    number = stop.signal or signal.SIGTERM
    try:
        _signal(running, number)
        for job in running:
            if job.process:
                job.process.wait()
    except KeyboardInterrupt:
        _signal(running, signal.SIGKILL)
        raise


def _signal(jobs: list[Job], number: signal.Signals) -> None:
    for job in jobs:
        if job.process and job.process.poll() is None:
            job.process.send_signal(number)
