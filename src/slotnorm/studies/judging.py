"""`slotnorm judge MODEL`: do slots follow what is in the images, told from the masks alone."""

from pathlib import Path

import torch

from slotnorm.errors import UserError
from slotnorm.evaluation.failed_runs import SCENES
from slotnorm.evaluation.label_free import describe, measure
from slotnorm.models import SlotModel
from slotnorm.runtime.devices import choose_device
from slotnorm.studies.test_sets import find_tests
from slotnorm.training.loading import load
from slotnorm.training.run_data import scenes_of
from slotnorm.training.runs import Run, is_run


def judge_model(source: str | Path, data: str | Path | None = None, device: str | torch.device = "auto") -> str:
    """The judgement of a model on its own test scenes with few objects, or on those of `data`, for people."""
    chosen = choose_device(device)
    model = load(source, chosen)
    run = Run.open(source) if is_run(Path(source)) else _run_that_made(model, Path(source))
    test = find_tests(run, None, None, data)[0]
    scenes = scenes_of(run, test, SCENES, data, chosen)
    if len(scenes) < 2:
        raise UserError(f"{scenes.directory} has {len(scenes)} scene to judge by, and two are needed: give more")
    judgement, in_use = measure(model, scenes, run.experiment)
    return f"{run.name} on {len(scenes)} scenes of {test.name}: {describe(judgement, in_use, run.experiment.slots)}"


def _run_that_made(model: SlotModel, source: Path) -> Run:
    """What a file of weights remembers of its run: the experiment and which data it was, but not where they are."""
    assert model.experiment is not None  # what is loaded says it
    _, facts = model.trained or (0, {})
    return Run(source, model.experiment, scenes=0, data=str(facts.get("data")))
