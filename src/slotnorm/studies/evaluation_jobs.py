"""Evaluations as jobs of a launcher: one per run, or several that each score a range of its scenes.

A range is kept beside the others in RUN/rows/.unfinished, where an evaluation looks before it computes: when all are
there, putting them together computes nothing, and gives the rows of one process to the last bit.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slotnorm.runtime.shards import Shard
from slotnorm.storage.files import make_subfolder
from slotnorm.storage.locks import Lock
from slotnorm.studies.jobs import Task, complete, require_success, skip_done, slotnorm_job
from slotnorm.studies.launchers import RETRIES, Job, Launcher
from slotnorm.studies.run_evaluation import RunEvaluation


class EvaluationTask(Task):
    """The rows of one run on its sets, or a range of the scenes of each; size and progress count sets."""

    def __init__(self, evaluations: Sequence[RunEvaluation], words: Sequence[str], shard: Shard | None) -> None:
        super().__init__()
        self.evaluations, self.words, self.shard = evaluations, words, shard
        rows = evaluations[0].folder
        self.path = rows if shard is None else rows / ".unfinished" / str(shard)
        self.size = len(evaluations)
        self._seen: dict[Path, tuple[tuple[int, int], bool]] = {}

    def prepare(self) -> Job:
        run = self.evaluations[0].run.path.absolute()
        _make_folders(self.evaluations[0], self.path)
        return slotnorm_job(["eval", str(run), *self.words], self.path.absolute())

    @property
    def is_done(self) -> bool:
        return all(map(self._is_made, self.evaluations))

    @property
    def progress(self) -> int:
        return sum(map(self._seems_made, self.evaluations))

    def conclude(self) -> None:
        if self.shard is not None:
            shutil.rmtree(self.path, ignore_errors=True)

    def _is_made(self, evaluation: RunEvaluation) -> bool:
        if evaluation.made() is not None:
            return True
        return self.shard is not None and not evaluation.lacking(*_share(evaluation, self.shard))

    def _seems_made(self, evaluation: RunEvaluation) -> bool:
        """The same, looked at again only when the files have changed: it reads them."""
        parts = [] if self.shard is None else list(_share(evaluation, self.shard)[1].glob("*.npz"))
        rows = evaluation.path.stat().st_mtime_ns if evaluation.path.is_file() else 0
        files = rows, len(parts)
        if self._seen.get(evaluation.path, (None, False))[0] != files:
            self._seen[evaluation.path] = files, self._is_made(evaluation)
        return self._seen[evaluation.path][1]


def score_shard(evaluations: Sequence[RunEvaluation], shard: Shard) -> None:
    """Score one range of scenes of each evaluation, unless its rows are there; what is kept is gone on with."""
    for evaluation in evaluations:
        if evaluation.made() is None:
            positions, folder = _share(evaluation, shard)
            _make_folders(evaluation, folder)
            with Lock(folder):
                evaluation.score_part(positions, folder)


def plan_jobs(evaluations: Sequence[RunEvaluation], words: Sequence[str], shards: int = 1) -> list[EvaluationTask]:
    """A task for each run, or for each shard of it; `words` are what `slotnorm eval` is told besides the run.

    Those whose rows are there are marked as skipped.
    """
    by_run: dict[Path, list[RunEvaluation]] = {}
    for evaluation in evaluations:
        by_run.setdefault(evaluation.run.path, []).append(evaluation)
    parts = [None] if shards == 1 else [Shard(number, shards) for number in range(shards)]
    tasks = []
    for planned in by_run.values():
        for part in parts:
            more = [] if part is None else ["--shards", str(part.of), "--shard", str(part.number)]
            tasks.append(EvaluationTask(planned, [*words, *more], part))
    skip_done(tasks)
    return tasks


def evaluate_on(launcher: Launcher, tasks: Sequence[EvaluationTask], retries: int = RETRIES) -> None:
    """Have the launcher make the rows of all tasks."""
    complete(tasks, launcher.for_one_process(), "sets", retries)
    require_success(tasks, "jobs")


def _share(evaluation: RunEvaluation, shard: Shard) -> tuple[NDArray[np.int64], Path]:
    """The scenes of a shard, and where it keeps them."""
    return shard.positions(len(evaluation.scenes)), evaluation.parts_folder / str(shard)


def _make_folders(evaluation: RunEvaluation, folder: Path) -> None:
    """Make a folder in a run, and those above it."""
    for parent in reversed([folder, *folder.parents]):
        if parent.is_relative_to(evaluation.folder):
            make_subfolder(parent)
