"""Whether a picture is of the kind that a model was trained on, without labels: how well the model rebuilds it.

A model's file says its squared error on validation scenes. Among the published runs of images, scenes as in training
have at most 7 times that, and of those with twice as many objects a few have 15 times and more; black, white, noise,
waves and a horizon have 18 to 130 times that of the toy study's models (docs/segment.md).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from slotnorm.metrics import squared_error
from slotnorm.models import SlotModel
from slotnorm.runtime import randomness

FAR = 15.0
"""Times the error of validation from which on a picture is far from those of training."""


def validation_error(model: SlotModel) -> float | None:
    """The model's squared error in its last validation, at the training number of slots; None where it is not known."""
    if model.experiment is None or model.trained is None or model.predicts != "reconstruction":
        return None
    scores = model.trained[1].get("validation")
    error = scores.get(f"l2@{model.experiment.slots}") if isinstance(scores, Mapping) else None
    return float(error) if isinstance(error, int | float) and error > 0 else None


def times_validation(model: SlotModel, inputs: Tensor, tokens: Tensor, seed: int = 0) -> float | None:
    """How many times its error in validation a model makes in rebuilding one picture; None where that is not known.

    `inputs` (1, ...) are the picture as the model takes it, `tokens` (1, N, channels) what it encoded it to.
    """
    known = validation_error(model)
    if known is None or model.experiment is None:
        return None
    number = model.experiment.slots
    keys: list[tuple[int, ...]] = [(number,)]
    noise = torch.from_numpy(randomness.slot_noise(seed, "segment", keys, number, model.slot_attention.dim))
    rebuilt = model.decompose(tokens, noise=noise.to(tokens.device)).reconstruction
    return None if rebuilt is None else float(squared_error(rebuilt, inputs)[0]) / known
