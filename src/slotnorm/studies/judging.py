"""`slotnorm judge MODEL`: do slots follow what is in the images, told from the masks alone."""

import sys
from pathlib import Path

import torch

from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError
from slotnorm.evaluation.failed_runs import SCENES
from slotnorm.evaluation.label_free import describe, measure, require_memory
from slotnorm.experiments import ANY_NUMBER
from slotnorm.models import SlotModel
from slotnorm.runtime.devices import choose_device
from slotnorm.studies.test_sets import find_tests
from slotnorm.training.loading import load
from slotnorm.training.run_data import has_tests_of, own_scenes, scenes_of
from slotnorm.training.runs import Run, is_run


def judge_model(source: str | Path, data: str | Path | None = None, device: str | torch.device = "auto") -> str:
    """The judgement of a model on its own test scenes with few objects, or on any pictures `data`, for people."""
    chosen = choose_device(device)
    model = load(source, chosen)
    run = Run.open(source) if is_run(Path(source)) else _run_that_made(model, Path(source))
    scenes, which = _scenes(run, chosen) if data is None else _given(run, Path(data))
    if len(scenes) < 2:
        raise UserError(f"{scenes.directory} has {len(scenes)} scene to judge by, and two are needed: give more")
    require_memory(model, scenes, run.experiment.slots)
    judgement, in_use = measure(model, scenes, run.experiment)
    return f"{run.name} on {which}: {describe(judgement, in_use, run.experiment.slots)}"


def _scenes(run: Run, device: torch.device) -> tuple[Scenes, str]:
    """The test scenes with few objects that a run's study names, and which they are."""
    test = find_tests(run, None, None, None)[0]
    scenes = scenes_of(run, test, SCENES, device=device)
    return scenes, f"{len(scenes)} scenes of {test.name}"


def _given(run: Run, directory: Path) -> tuple[Scenes, str]:
    """The scenes of a folder, and which they are: of the run's own test split, those with few objects."""
    every, words = own_scenes(run, directory, sys.maxsize), ""
    chosen = every
    if has_tests_of(run, directory) and every.are_counted:
        objects = find_tests(run, None, None, directory)[0].objects
        if objects != ANY_NUMBER:
            chosen, words = every.filter(*objects), f" with {objects[0]} to {objects[1]} objects"
    scenes = chosen.sample(SCENES)
    return scenes, f"{len(scenes)} of {len(every)} scenes of {directory}{words}"


def _run_that_made(model: SlotModel, source: Path) -> Run:
    """What a file of weights remembers of its run: the experiment and which data it was, but not where they are."""
    assert model.experiment is not None  # what is loaded says it
    _, facts = model.trained or (0, {})
    return Run(source, model.experiment, scenes=0, data=str(facts.get("data")))
