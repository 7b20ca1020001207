"""What runs cost before they are trained: hours and bytes on disk, for `--plan` and for docs/clusters.md."""

import dataclasses

from slotnorm.config import Experiment
from slotnorm.experiments import studies
from slotnorm.models.building import build

_BYTES_PER_NUMBER = 4
_COPIES = 3  # a weight, and Adam's two moments of it
_BYTES_PER_LINE = 150  # of metrics.jsonl, measured: 134
_BYTES_PER_PICTURE = 60_000  # measured on toy: 6 to 60 kB


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one run."""

    hours: float | None
    """As the study says; None where nobody has measured or estimated them."""
    basis: str | None
    """How the hours are known, and of what machine they are."""
    checkpoint: int
    """Bytes of one, with the optimizer's state."""
    disk: int
    """Bytes that stay when it is finished: checkpoints, metrics and pictures, without rows of evaluations."""


def cost_of(experiment: Experiment) -> Cost:
    """What a run of an experiment costs; hours in proportion to its steps."""
    recipe, study = experiment.recipe, studies().get(experiment.name)
    numbers = sum(parameter.numel() for parameter in build(experiment).state_dict().values())
    checkpoint = numbers * _BYTES_PER_NUMBER * _COPIES
    lines = recipe.steps // recipe.log_every
    pictures = recipe.steps // recipe.validate_every * _BYTES_PER_PICTURE
    hours, basis = None, None
    if study is not None:
        hours, basis = study.hours * recipe.steps / study.experiment.recipe.steps, study.basis
    return Cost(hours, basis, checkpoint, recipe.keep_checkpoints * checkpoint + lines * _BYTES_PER_LINE + pictures)
