"""`slotnorm judge RUN`: do slots follow what is in the images, told from the masks alone."""

from pathlib import Path

import torch

from slotnorm.errors import UserError
from slotnorm.evaluation.failed_runs import SCENES
from slotnorm.evaluation.label_free import describe, measure
from slotnorm.runtime.devices import choose_device
from slotnorm.studies.test_sets import find_tests
from slotnorm.training.loading import load
from slotnorm.training.run_data import scenes_of
from slotnorm.training.runs import Run


def judge_run(path: str | Path, data: str | Path | None = None, device: str | torch.device = "auto") -> str:
    """The judgement of a run on its own test scenes with few objects, or on those of `data`, for people."""
    run, chosen = Run.open(path), choose_device(device)
    test = find_tests(run, None, None, data)[0]
    scenes = scenes_of(run, test, SCENES, data, chosen)
    if len(scenes) < 2:
        raise UserError(f"{scenes.directory} has {len(scenes)} scene to judge by, and two are needed: give more")
    model = load(path, chosen)
    judgement, in_use = measure(model, scenes, run.experiment)
    return f"{run.name} on {len(scenes)} scenes of {test.name}: {describe(judgement, in_use, run.experiment.slots)}"
