"""Everything for one figure or table: train what is missing, evaluate, report."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from slotnorm import experiments
from slotnorm.commands import Training
from slotnorm.config import Experiment
from slotnorm.errors import UserError
from slotnorm.report.contents import Report
from slotnorm.report.writing import write_report
from slotnorm.run_rows import plan as plan_evaluation
from slotnorm.sweep import plan as plan_training
from slotnorm.sweep import require_success, sweep


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """What is asked for; None is what the study says."""

    name: str
    out: Path
    norms: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    steps: int | None = None
    scenes: int | None = None
    slots: Sequence[int] | None = None
    jobs: int | None = None
    data: Path | None = None

    @property
    def runs(self) -> Path:
        """Where the runs are trained."""
        return self.out / "runs"

    def trainings(self) -> list[Training]:
        """Every run that the figure or table shows."""
        return [
            Training(self._shortened(dataclasses.replace(study.experiment, norm=norm, seed=seed)), self.runs, self.data)
            for study in studies_of(self.name)
            for seed in self.seeds or study.seeds
            for norm in self.norms or study.norms
        ]

    def _shortened(self, experiment: Experiment) -> Experiment:
        if self.steps is None:
            return experiment
        return dataclasses.replace(experiment, recipe=dataclasses.replace(experiment.recipe, steps=self.steps))


def studies_of(name: str) -> list[experiments.Study]:
    """The studies whose runs a figure or table shows: its own, those beside it, or those that are transferred."""
    if name in experiments.transfers():
        return [experiments.study(one) for one in experiments.transfers()[name].studies]
    own = experiments.study(name)
    return [own] if own.beside is None else [experiments.study(own.beside), own]


def reproduce(asked: Reproduction) -> Report:
    """Train what is missing, score what is not scored, write the report to `out/report`; continues where it stopped."""
    if asked.seeds is not None and len(set(asked.seeds)) < len(asked.seeds):
        raise UserError(f"--seeds are {' '.join(map(str, asked.seeds))}; name each seed once")
    jobs = plan_training(asked.trainings())
    sweep(jobs, asked.jobs or os.cpu_count() or 1)
    require_success(jobs)
    paths = [job.path for job in jobs]
    transfer = experiments.transfers().get(asked.name)
    slots = asked.slots if asked.slots or transfer is None else [transfer.slots]
    dataset = None if transfer is None else transfer.test.name
    for evaluation in plan_evaluation(paths, dataset, slots=slots, scenes=asked.scenes, data=asked.data):
        evaluation.evaluate()
    return write_report(paths, asked.out / "report", data=asked.data)
