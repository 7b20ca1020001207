"""Many runs of one study: planned, what is finished skipped, the rest trained as jobs of a launcher."""

import os
from collections.abc import Sequence

from slotnorm.errors import UserError
from slotnorm.studies.jobs import Task, complete, skip_done, slotnorm_job
from slotnorm.studies.launchers import LOG, RETRIES, Job, Launcher
from slotnorm.studies.options import Training, words
from slotnorm.training.experiment_file import write_experiment
from slotnorm.training.runs import Run

ASKED = "asked.json"  # the experiment that a run's job is started with; its experiment.json is its own to write


class RunTask(Task):
    """One run of a sweep; its size and progress are steps."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training, self.path = training, training.path
        self.size = training.experiment.recipe.steps

    @property
    def name(self) -> str:
        return self.path.name

    def prepare(self) -> Job:
        """Write the experiment's file, from which the run is started."""
        training = self.training.absolute()  # a launcher may start it in another folder
        file = training.path / ASKED
        write_experiment(file, training.experiment)
        return slotnorm_job(["train", *words(training, file)], training.path)

    @property
    def is_done(self) -> bool:
        """Whether the run is trained to its last step."""
        run = self._open()
        try:
            return run is not None and run.finished and run.experiment == self.training.experiment
        except OSError:  # nobody may look into it: its own job says so
            return False

    @property
    def saved_step(self) -> int:
        """Where its training would go on from."""
        run = self._open()
        try:
            return 0 if run is None else run.standing().step
        except OSError:
            return 0

    @property
    def progress(self) -> int:
        """How far the run has come, as its metrics say."""
        run = self._open()
        return 0 if run is None else run.logged_step

    def conclude(self) -> None:
        (self.path / ASKED).unlink(missing_ok=True)

    def withdraw(self) -> None:
        if [file.name for file in self.path.iterdir()] == [ASKED]:  # else it has begun, or somebody else has the job
            self.conclude()
            self.path.rmdir()

    def _open(self) -> Run | None:
        """The run, if it has begun; one that is damaged has not: its own job says what is wrong with it."""
        try:
            return Run.open(self.path) if (self.path / "experiment.json").is_file() else None
        except (UserError, OSError):
            return None


def plan(trainings: Sequence[Training]) -> list[RunTask]:
    """A task for each training; those that are trained to their last step are marked as skipped."""
    tasks = [RunTask(training) for training in trainings]
    skip_done(tasks)
    return tasks


def sweep(tasks: Sequence[RunTask], launcher: Launcher, retries: int = RETRIES) -> None:
    """Train every waiting run with `slotnorm train` where the launcher runs it; their states tell the outcome.

    Each writes to log.txt in its folder. When this process dies without a word the runs go on, and the next sweep waits
    for them.
    """
    complete(tasks, launcher, "steps", retries)


def describe_plan(tasks: Sequence[RunTask]) -> str:
    """What a sweep would do with each run, one line each, and how much there is to train."""
    lines, left = [], 0
    for task in tasks:
        steps, done = task.size, task.saved_step
        if task.state == "skipped":
            lines.append(f"{task.path}: finished, {steps} steps")
            continue
        left += steps - min(done, steps)
        lines.append(f"{task.path}: to train, {f'from step {done} to {steps}' if done else f'{steps} steps'}")
    waiting = sum(task.state == "waiting" for task in tasks)
    return "\n".join([*lines, f"{waiting} of {len(tasks)} runs to train, {left} steps"])


def report(tasks: Sequence[RunTask]) -> str:
    """What became of each run, one line each."""
    lines = []
    for task in tasks:
        if task.state in ("finished", "skipped"):
            note = " (was finished already)" if task.state == "skipped" else ""
            lines.append(f"{_summary(task)}{note}")
        else:
            log = task.path / LOG
            more = f"; {log} tells more" if os.path.isfile(log) else ""  # also where nobody may look into the folder
            lines.append(f"{task.path}: {task.state}, {task.reason}{more}")
    return "\n".join(lines)


def _summary(task: RunTask) -> str:
    """A run's own line; one that was removed or damaged since hides no other."""
    try:
        return Run.open(task.path).summary()
    except (UserError, OSError) as error:
        return f"{task.path}: {task.state}, but {error}"
