"""From an experiment to its model, with the initial weights of its seed."""

import dataclasses
from typing import Any

import torch

from slotnorm.config import Experiment, FeatureModel, ImageModel, SetModel
from slotnorm.errors import UserError
from slotnorm.initialization import initializations
from slotnorm.models.feature_autoencoder import FeatureAutoencoder
from slotnorm.models.image_autoencoder import ImageAutoencoder
from slotnorm.models.parts import SlotModel
from slotnorm.models.set_predictor import SetPredictor
from slotnorm.normalization import normalizations
from slotnorm.runtime import randomness
from slotnorm.runtime.registry import require_known

_MODELS: dict[type, Any] = {ImageModel: ImageAutoencoder, FeatureModel: FeatureAutoencoder, SetModel: SetPredictor}


def build(experiment: Experiment) -> SlotModel:
    """The experiment's model with the initial weights of its seed; `model.experiment` remembers what it is for."""
    require_parts(experiment)
    recipe = experiment.recipe
    sizes = {field.name: getattr(recipe.model, field.name) for field in dataclasses.fields(recipe.model)}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(randomness.generator(experiment.seed, "weights").integers(1 << 62)))
        model: SlotModel = _MODELS[type(recipe.model)](
            **sizes, normalization=experiment.norm, iterations=recipe.evaluation_iterations, protocol=recipe.protocol,
            initialization=recipe.initialization, num_slots=experiment.slots,
        )  # fmt: skip
    model.experiment = experiment
    return model


def outline(experiment: Experiment) -> SlotModel:
    """The model that the experiment would have, with shapes and types but without memory for numbers."""
    try:
        with torch.device("meta"):
            return build(experiment)
    except (RuntimeError, OverflowError) as error:  # more numbers than can be counted
        raise UserError(f"no machine holds a model of these sizes: {str(error)[:200]}") from error


def require_parts(experiment: Experiment) -> None:
    """Refuse an experiment whose normalization or initialization nobody registered."""
    require_normalization(experiment.norm)
    require_known("initialization", experiment.recipe.initialization, initializations())


def require_normalization(name: str) -> None:
    """Refuse a normalization that nobody registered."""
    require_known("normalization", name, normalizations())
