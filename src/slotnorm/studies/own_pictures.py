"""`train own --data FOLDER`: the experiment that fits anyone's pictures, chosen by what is in their folder."""

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from slotnorm.config import Experiment, FeatureModel, ImageModel
from slotnorm.data.cache import cache_folder
from slotnorm.data.folder import survey
from slotnorm.data.manifest import MANIFEST
from slotnorm.data.picture_folder import is_pictures, middle_side, open_pictures
from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError
from slotnorm.experiments import OWN_SIZES, own_model
from slotnorm.storage.seals import digest

if TYPE_CHECKING:
    from slotnorm.data.backbones import FrozenBackbone

_log = logging.getLogger(__name__)

_FEWEST = 4  # pictures: two to learn from, and two that masks are compared between
_HELD_OUT = 5  # one of so many pictures is held out for validation


def fit_to_images(experiment: Experiment, data: Path, size: int | None = None) -> Experiment:
    """The experiment with the size of model, and the number of validation scenes, that fit a folder of images.

    The folder is one of pictures, a built set, or one of built splits. Of pictures the size is the largest of
    `OWN_SIZES` that their shorter side has, unless it is given; what is chosen is said.
    """
    if size is not None and size not in OWN_SIZES:
        raise UserError(f"--size is {size}, but own pictures are learned at {', '.join(map(str, OWN_SIZES))} pixels")
    if not data.is_dir():
        raise UserError(f"{data} is not a folder; give the folder that your pictures are in")
    if not is_pictures(data):
        return _fit_to_set(experiment, data, size)
    surveyed = survey(data)
    num = len(surveyed.items)
    if num < _FEWEST:
        raise UserError(
            f"{data} holds {num} image{'s' * (num != 1)} that can be used, and training needs {_FEWEST} or more"
            + (f": {surveyed.problems[0]}" if surveyed.problems else "; add some")
        )
    side = middle_side(surveyed)
    chosen = size or max((fitting for fitting in OWN_SIZES if fitting <= side), default=OWN_SIZES[0])
    fitted = _with(experiment, own_model(chosen), num, has_validation=False)
    masks = "with masks" if surveyed.items[0].mask is not None else "without masks, which are not needed"
    others = ", ".join(str(other) for other in OWN_SIZES if other != chosen)
    enlarged = ", which enlarges most of them" if side < chosen else ""
    _log.info(
        f"{data}: {num} images {masks}, their shorter side {side} pixels in the middle; learned at {chosen}x{chosen}"
        f"{enlarged} (--size {others} for another), {fitted.recipe.validation_scenes} of them held out for validation"
    )
    return fitted


def fit_to_features(experiment: Experiment, data: Path, backbone: "FrozenBackbone") -> tuple[Experiment, Path]:
    """The experiment of the feature autoencoder for pictures, and the folder of their features in the cache."""
    if not is_pictures(data):
        raise UserError(f"{data} is a set already: make its features with `slotnorm data features --from {data} ...`")
    scenes = open_pictures(data, backbone.size)
    from slotnorm.data.features import compute, described

    made_of = described({"scenes": scenes.fingerprint}, backbone)
    features = compute(scenes, backbone, cache_folder() / "data" / "own" / f"{digest(made_of)[:16]}-features")
    sizes = FeatureModel(tokens=backbone.tokens, features=backbone.features)
    return _with(experiment, sizes, len(features), has_validation=False), features.directory


def _fit_to_set(experiment: Experiment, data: Path, size: int | None) -> Experiment:
    split = data / "train"
    scenes = Scenes.open(split if (split / MANIFEST).exists() else data)
    has_validation = split == scenes.directory and (data / "val" / MANIFEST).exists()
    if scenes.features is not None:
        _, tokens, features = scenes.features.shape
        return _with(experiment, FeatureModel(tokens=tokens, features=features), len(scenes), has_validation)
    if scenes.images is None:
        raise UserError(f"{data} has neither images nor features to learn from; it has {', '.join(scenes.fields)}")
    _, height, width, _ = scenes.images.shape
    if height != width or height not in OWN_SIZES or size not in (None, height):
        raise UserError(
            f"{data} holds images of {width} x {height} pixels, and own pictures are learned as squares of "
            f"{size or ', '.join(map(str, OWN_SIZES))}: build the set with that --size"
        )
    return _with(experiment, own_model(height), len(scenes), has_validation)


def _with(experiment: Experiment, model: ImageModel | FeatureModel, num: int, has_validation: bool) -> Experiment:
    held_out = min(experiment.recipe.validation_scenes, max(2, num // _HELD_OUT))
    recipe = dataclasses.replace(
        experiment.recipe,
        model=model,
        flip=model.input == "images",
        validation_scenes=experiment.recipe.validation_scenes if has_validation else held_out,
    )
    return dataclasses.replace(experiment, recipe=recipe)
