"""Which test sets a run is evaluated on, with how many scenes and which numbers of slots: as its study says."""

from collections.abc import Sequence
from pathlib import Path

import torch

from slotnorm.data import load
from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError
from slotnorm.experiments import (
    ANY_NUMBER,
    OWN_TEST,
    TEST_SCENES,
    TEST_SLOTS,
    EvaluationSet,
    Study,
    evaluation_set,
    evaluation_sets,
    studies,
)
from slotnorm.training.run_data import is_own, remembered, scenes_of
from slotnorm.training.runs import Run


def find_tests(
    run: Run, dataset: str | None, objects: tuple[int, int] | None, data: str | Path | None
) -> Sequence[EvaluationSet]:
    """The test sets that a run is evaluated on; arguments as for `plan_evaluations`."""
    if dataset is not None:
        known = {*evaluation_sets(), *(test.dataset for test in evaluation_sets().values())}
        if data is not None and dataset not in known:
            name = f"{dataset}{objects[0]}-{objects[1]}" if objects else dataset
            return [EvaluationSet(name, dataset, objects or ANY_NUMBER)]
        return [evaluation_set(dataset, objects)]
    if objects is None and is_own(run, remembered(run) if data is None else None):
        return [OWN_TEST]
    planned = study_of(run)
    if planned is None:
        raise UserError(f"no study that is registered has test sets of {run.experiment.dataset!r}; give --dataset")
    if objects is not None:
        return [evaluation_set(planned.tests[-1].name, objects)]
    scenes = run.experiment.scenes
    if scenes is None or scenes == planned.experiment.scenes:
        return planned.tests
    # scenes of its own, or of the study as it once was: more objects than it names may find no place in them
    return [test for test in planned.tests if test.objects in (scenes.objects, scenes.test_objects)] or planned.tests


def study_of(run: Run) -> Study | None:
    """The run's study; for an experiment with a name of its own, the first that learns from the same dataset."""
    alike = [study for study in studies().values() if study.experiment.dataset == run.experiment.dataset]
    return studies().get(run.experiment.name) or next(iter(alike), None)


def slots_of(run: Run) -> tuple[int, ...]:
    planned = study_of(run)
    fewest, most = planned.test_slots if planned else TEST_SLOTS
    return tuple(range(fewest, most + 1))


def open_scenes(
    run: Run,
    test: EvaluationSet,
    objects: tuple[int, int] | None,
    num: int | None,
    data: str | Path | None,
    device: torch.device,
) -> Scenes:
    if num is not None and num < 1:
        raise UserError(f"{num} scenes cannot be scored; ask for one or more")
    planned = study_of(run)
    num = num or (planned.test_scenes if planned else TEST_SCENES)
    if test.name not in evaluation_sets() and objects is None:
        return load(test.dataset, "test", protocol=run.experiment.recipe.protocol, directory=data).sample(num)
    return scenes_of(run, test, num, data, device)
