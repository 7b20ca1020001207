"""The data that a run remembers: what it is evaluated on, and a refusal rather than another set in its place."""

import dataclasses
import logging
from pathlib import Path

import torch

from slotnorm.config import Experiment
from slotnorm.data.generator import provenance
from slotnorm.data.manifest import MANIFEST
from slotnorm.data.scenes import Scenes, data_fingerprint
from slotnorm.errors import UserError
from slotnorm.experiments import OWN, OWN_TEST, EvaluationSet
from slotnorm.storage.seals import digest
from slotnorm.training.experiment_scenes import (
    evaluation_scenes,
    open_training_set,
    require_features_of,
    validation_scenes,
)
from slotnorm.training.runs import Run

_log = logging.getLogger(__name__)


def remembered(run: Run) -> Path | None:
    """The folder of the run's data, as long as it holds what the run was trained on; None where none was given.

    A run of before folders were remembered is known by the fingerprint: generated scenes have that of their recipe.
    """
    if run.source is None:
        require_features_of(run.experiment, run.data)
        if (generated := _generated(run.experiment)) is not None and run.data != generated:
            raise UserError(
                f"{run.path} was trained on other scenes than those that {run.experiment.name} makes (the data "
                f"{run.data[:12]}, not {generated[:12]}); give its data with --data"
            )
        return None
    if not run.source.is_dir():
        raise UserError(f"{run.path} was trained on {run.source}, which is not there any more; give it with --data")
    if not _is_of(run, run.source):
        raise UserError(
            f"{run.source} has changed since {run.path} was trained on it; give the data of then, or other data to "
            "score it on, with --data"
        )
    return run.source


def is_own(run: Run, directory: Path | None) -> bool:
    """Whether the run is evaluated on what training left out of a folder: one that has no test scenes."""
    if directory is None:
        return False
    return run.experiment.dataset == OWN or not (directory / "test" / MANIFEST).exists()


def own_scenes(run: Run, directory: Path, num: int) -> Scenes:
    """`num` scenes of a folder for a run: test scenes, or what training left out; of other data than its own, all."""
    experiment = run.experiment
    if (directory / "test" / MANIFEST).exists():
        return evaluation_scenes(experiment, dataclasses.replace(OWN_TEST, dataset=experiment.dataset), num, directory)
    if _is_of(run, directory):
        return validation_scenes(experiment, directory).sample(num)
    _log.info(f"note: {directory} is not the data that {run.path} was trained on; all of it is looked at")
    return open_training_set(experiment, directory).sample(num)


def has_tests_of(run: Run, directory: Path) -> bool:
    """Whether a folder has test scenes beside those that the run was trained on."""
    return all((directory / split / MANIFEST).exists() for split in ("train", "test")) and _is_of(run, directory)


def scenes_of(
    run: Run, test: EvaluationSet, num: int, data: str | Path | None = None, device: str | torch.device = "auto"
) -> Scenes:
    """`num` scenes of a test set for a run: from `data`, from the folder that it remembers, made, or as built.

    Features that must be made are computed on `device`.
    """
    directory = remembered(run) if data is None else Path(data)
    if test == OWN_TEST and directory is not None:
        return own_scenes(run, directory, num)
    if data is None and (is_own(run, directory) or test.dataset != run.experiment.dataset):
        directory = None  # another set is asked for by its name
    return evaluation_scenes(run.experiment, test, num, directory, device)


def _is_of(run: Run, directory: Path) -> bool:
    return data_fingerprint(open_training_set(run.experiment, directory)) == run.data


def _generated(experiment: Experiment) -> str | None:
    """The fingerprint of the scenes that an experiment makes, if it makes any."""
    if experiment.scenes is None:
        return None
    return digest(provenance(experiment.scenes.spec("train", experiment.scenes.objects)))
