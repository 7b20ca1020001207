"""Everything for one figure or table: train what is missing, evaluate, report."""

import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from slotnorm import experiments
from slotnorm.cli.launching import device_here
from slotnorm.config import Experiment
from slotnorm.errors import UserError
from slotnorm.report.contents import Report
from slotnorm.report.writing import require_folder, write_report
from slotnorm.studies.costs import cost_of
from slotnorm.studies.evaluation_jobs import evaluate_on, plan_jobs
from slotnorm.studies.jobs import require_success, with_script
from slotnorm.studies.launchers import RETRIES, Launcher, Local
from slotnorm.studies.options import Training, chosen_norms, evaluation_words, require_seeds
from slotnorm.studies.run_evaluation import evaluate_all, plan_evaluations
from slotnorm.studies.sweep import RunTask, sweep
from slotnorm.studies.sweep import describe_plan as plan_of_sweep
from slotnorm.studies.sweep import plan as plan_training
from slotnorm.training.experiment_scenes import require_built
from slotnorm.training.runs import Objection, require_none_damaged


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
    data: Path | None = None
    device: str = "auto"
    launcher: Launcher = dataclasses.field(default_factory=Local)
    """Where runs are trained and, unless in this process, evaluated."""
    retries: int = RETRIES
    quick: bool = False

    @property
    def runs(self) -> Path:
        """Where the runs are trained."""
        return self.out / "runs"

    @property
    def report(self) -> Path:
        """Where the report goes."""
        return self.out / "report"

    def trainings(self) -> list[Training]:
        """Every run that the figure or table shows."""
        return [
            Training(self._shortened(study, norm, seed), self.runs, self.data, device=self.device)
            for study in studies_of(self.name)
            for seed in self.seeds or study.seeds
            for norm in self._norms(study)
        ]

    def _norms(self, study: experiments.Study) -> Sequence[str]:
        return study.norms if self.norms is None else chosen_norms(self.norms)

    def check(self) -> None:
        """Refuse what cannot be, before hours are spent: numbers, devices, a folder of other things."""
        if self.name == experiments.OWN:
            raise UserError(
                "own pictures are not a figure of the paper; train them by `slotnorm train own --data FOLDER`"
            )
        if self.seeds is not None:
            require_seeds(self.seeds)
        for option, number in (("steps", self.steps), ("scenes", self.scenes)):
            if number is not None and number < 1:
                raise UserError(f"--{option} is {number}, but must be at least 1")
        if self.slots is not None and (not self.slots or min(self.slots) < 1):
            raise UserError("--slots needs FIRST:LAST with at least one slot, and the first not above the last")
        device_here(self.device, self.launcher)
        for study in studies_of(self.name) if self.quick else ():
            if study.quick_steps is None or self.steps is not None:
                why = "--steps says them" if self.steps is not None else f"{study.name} has no number of quick steps"
                raise UserError(f"--quick cannot choose the steps: {why}; give --steps N alone")
        require_folder(self.report)

    def require_sets(self) -> None:
        """Refuse sets that are not built, before hours are spent; a plan needs none."""
        transfer = experiments.transfers().get(self.name)
        for study in studies_of(self.name):
            require_built(study.experiment, study.tests if transfer is None else [transfer.test], self.data)

    def _shortened(self, study: experiments.Study, norm: str, seed: int) -> Experiment:
        experiment = dataclasses.replace(study.experiment, norm=norm, seed=seed)
        steps = study.quick_steps if self.quick else self.steps
        if steps is None:
            return experiment
        return dataclasses.replace(experiment, recipe=dataclasses.replace(experiment.recipe, steps=steps))

    def estimate(self, tasks: Sequence[RunTask]) -> str:
        """How long the trainings that are left will take, from what a run of each study is known to take."""
        hours = [cost_of(task.training.experiment).hours or 0.0 for task in tasks if task.state == "waiting"]
        if not hours:
            return f"runs to train: none of {len(tasks)}; then evaluation"
        at_once = self.launcher.jobs if isinstance(self.launcher, Local) else len(hours)
        total = max(sum(hours) / at_once, *hours)
        spoken = f"{total:.1f} hours" if total > 1.5 else f"{math.ceil(60 * total)} minutes"
        skipped = f"; trained already: {len(tasks) - len(hours)}" if len(hours) < len(tasks) else ""
        return f"runs to train: {len(hours)}, {at_once} at a time, about {spoken}{skipped}; then evaluation"


def studies_of(name: str) -> list[experiments.Study]:
    """The studies whose runs a figure or table shows: its own, those beside it, or those that are transferred."""
    if name in experiments.transfers():
        return [experiments.study(study) for study in experiments.transfers()[name].studies]
    own = experiments.study(name)
    return [own] if own.shown_with is None else [experiments.study(own.shown_with), own]


def reproduce(asked: Reproduction) -> Report:
    """Train what is missing, score what is not scored, write the report to `out/report`; continues where it stopped."""
    asked.check()
    asked.require_sets()
    tasks = plan_training(asked.trainings())
    print(asked.estimate(tasks), file=sys.stderr, flush=True)
    sweep(tasks, asked.launcher, asked.retries)
    require_success(tasks, "runs")
    paths = [task.path for task in tasks]
    device = device_here(asked.device, asked.launcher)
    transfer = experiments.transfers().get(asked.name)
    slots = asked.slots if asked.slots or transfer is None else [transfer.slots]
    dataset = None if transfer is None else transfer.test.name
    planned = plan_evaluations(
        paths, dataset, slots=slots, scenes=asked.scenes, data=asked.data, device=device
    )  # fmt: skip
    if not isinstance(asked.launcher, Local):
        words = evaluation_words(dataset, slots, None, asked.scenes, asked.data, device=asked.device)
        evaluate_on(asked.launcher, plan_jobs(planned, words), asked.retries)
    left_out: list[Objection] = []
    for _ in evaluate_all(planned, left_out):
        pass
    require_none_damaged(left_out)
    return write_report(paths, asked.report, data=asked.data, device=device)


def describe_plan(asked: Reproduction) -> str:
    """What would be trained, its hours and its disk, and what the launcher would submit; nothing is done."""
    asked.check()
    tasks = plan_training(asked.trainings())
    costs = [cost_of(task.training.experiment) for task in tasks if task.state == "waiting"]
    hours = sum(cost.hours or 0.0 for cost in costs)
    disk = sum(cost.disk for cost in costs) / 1e9
    basis = "; ".join(dict.fromkeys(cost.basis for cost in costs if cost.basis))
    cost = f"about {hours:.3g} hours ({basis or 'not measured'}) and {disk:.2g} GB for runs, without rows"
    return with_script(f"{plan_of_sweep(tasks)}\n{cost}", tasks, asked.launcher)
