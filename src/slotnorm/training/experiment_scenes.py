"""The scenes of an experiment: made and cached when the registry says how, else read from where they were built."""

import dataclasses
import functools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from slotnorm.config import Experiment, GeneratedScenes, SceneSpec
from slotnorm.data import load
from slotnorm.data.backbones import FrozenBackbone, encoder_backbone
from slotnorm.data.cache import cache_folder, set_folder
from slotnorm.data.features import compute, described
from slotnorm.data.generator import cached, provenance
from slotnorm.data.manifest import MANIFEST
from slotnorm.data.picture_folder import is_pictures, open_pictures
from slotnorm.data.prefix_cache import open_or_build
from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError
from slotnorm.experiments import ANY_NUMBER, OWN, EvaluationSet, GeneratedFeatures, feature_sets
from slotnorm.models.bundled import bundled_file
from slotnorm.storage.seals import digest
from slotnorm.training.loading import load as load_model

# What builds the sets of the experiments that are not generated.
_FEATURES = "slotnorm data features --from {images} --backbone vit_base_patch8_224.dino --weights hub"
_COMMANDS = {
    "clevr": "slotnorm data clevr --from clevr_with_masks_train.tfrecords --protocol {protocol}",
    "clevr-mini": "slotnorm data folder --from clevr-mini/{split} --size 32 --out {folder}",
    "movi-c-features": _FEATURES,
    "movi-d-features": _FEATURES,
}


def training_scenes(
    experiment: Experiment,
    directory: str | Path | None = None,
    num: int | None = None,
    device: str | torch.device = "auto",
) -> Scenes:
    """What it is trained on; of generated scenes `num`, or as many as the recipe needs: at most steps x batch.

    `device`, here and below, is where features of generated scenes are computed, if they are not in the cache.
    """
    steps_times_batch = experiment.recipe.steps * experiment.recipe.batch_size
    if experiment.scenes is not None and directory is None:
        _require_size(experiment.scenes, experiment)
        needed = num or min(experiment.scenes.num, steps_times_batch)
        return _checked(_generate(experiment.scenes, "train", experiment.scenes.objects, needed), experiment)
    if (features := _features_of(experiment.dataset, directory)) is not None:
        # runs with few objects see those scenes of the same set that have few, as the paper restricts MOVi-C
        scenes = make_features(
            features, "train", features.scenes.objects, min(features.scenes.num, steps_times_batch), device
        )
        return _checked(scenes.filter(max_objects=experiment.max_objects)[:num], experiment)
    scenes = _load(experiment, experiment.dataset, "train", directory).filter(max_objects=experiment.max_objects)
    if not _has_validation(experiment, directory):
        held_out = scenes.sample(experiment.recipe.validation_scenes).index
        scenes = scenes[~np.isin(scenes.index, held_out)]
    return _checked(scenes, experiment)


def validation_scenes(
    experiment: Experiment, directory: str | Path | None = None, device: str | torch.device = "auto"
) -> Scenes:
    """What its validation looks at: of the validation split; where there is none, scenes that training leaves out."""
    num = experiment.recipe.validation_scenes
    if experiment.scenes is not None and directory is None:
        return _generate(experiment.scenes, "val", experiment.scenes.objects, num)
    if (features := _features_of(experiment.dataset, directory)) is not None:
        fewest, most = features.scenes.objects
        return make_features(features, "val", (fewest, min(most, experiment.max_objects or most)), num, device)
    split = "val" if _has_validation(experiment, directory) else "train"
    scenes = _load(experiment, experiment.dataset, split, directory)
    return scenes.filter(max_objects=experiment.max_objects).sample(num)


def evaluation_scenes(
    experiment: Experiment,
    test: EvaluationSet,
    num: int,
    directory: str | Path | None = None,
    device: str | torch.device = "auto",
) -> Scenes:
    """`num` scenes of a test set; made when it is known how."""
    if experiment.scenes is not None and directory is None and test.dataset == experiment.dataset:
        spec = experiment.scenes.spec("test", test.objects)
        return cached(dataclasses.replace(spec, radius=test.radius or spec.radius), num)
    if (features := _features_of(test.dataset, directory)) is not None:
        return make_features(features, "test", test.objects, num, device)
    scenes = _load(experiment, test.dataset, "test", directory)
    return (scenes if test.objects == ANY_NUMBER else scenes.filter(*test.objects)).sample(num)


def open_training_set(experiment: Experiment, directory: str | Path) -> Scenes:
    """All scenes of a folder that an experiment may learn from: those of its training split, or of all of it."""
    return _load(experiment, experiment.dataset, "train", directory)


def require_built(experiment: Experiment, tests: Iterable[EvaluationSet], directory: str | Path | None = None) -> None:
    """Refuse, before hours of training, when a set that it is trained or tested on must be built and is not."""
    needed = [(experiment.dataset, "train"), *((test.dataset, "test") for test in tests)]
    for dataset, split in dict.fromkeys(needed):
        generated = experiment.scenes is not None and dataset == experiment.dataset
        if directory is not None or not (generated or dataset in feature_sets()):
            _load(experiment, dataset, split, directory)


def make_features(
    features: GeneratedFeatures, split: str, objects: tuple[int, int], num: int, device: str | torch.device = "auto"
) -> Scenes:
    """The first `num` scenes of a split with `objects` (fewest, most), with features; computed once and cached."""
    spec = features.scenes.spec(split, objects)
    backbone = _bundled_backbone(bundled_file(features.encoder))
    folder = cache_folder() / "data" / "generated-features" / _fingerprint(spec, backbone)[:16]
    return open_or_build(folder, num, lambda directory, _: compute(cached(spec, num), backbone, directory, device))


def require_features_of(experiment: Experiment, data: str) -> None:
    """Refuse to evaluate what was trained on the set `data` (its fingerprint) on features of another encoder."""
    if (features := feature_sets().get(experiment.dataset)) is None:
        return
    spec = features.scenes.spec("train", features.scenes.objects)
    if data != _fingerprint(spec, _bundled_backbone(bundled_file(features.encoder))):
        raise UserError(
            f"{experiment.run_name} was trained on other features than those that this slotnorm makes for "
            f"{experiment.dataset} (of another encoder or other scenes); train it again, or give its features with "
            "--data"
        )


def _fingerprint(spec: SceneSpec, backbone: FrozenBackbone) -> str:
    """What `data_fingerprint` says of the features of generated scenes."""
    return digest(described({"provenance": provenance(spec)}, backbone))


@functools.cache
def _bundled_backbone(path: Path) -> FrozenBackbone:
    """Named after the run that it is of, not after its file, so that features stay the same when a file is renamed."""
    model = load_model(path)
    assert model.experiment is not None  # a bundled file says it
    return encoder_backbone(model, f"{model.experiment.name}-{model.experiment.norm}", norm="after")


def _features_of(dataset: str, directory: str | Path | None) -> GeneratedFeatures | None:
    """How the set's features are made, unless a folder is given or it is a set that must be built."""
    return feature_sets().get(dataset) if directory is None else None


def _generate(scenes: GeneratedScenes, split: str, objects: tuple[int, int], num: int) -> Scenes:
    return cached(scenes.spec(split, objects), num)


def _load(experiment: Experiment, dataset: str, split: str, directory: str | Path | None) -> Scenes:
    """A split of a set that was built, as the experiment's protocol has it."""
    if directory is not None and is_pictures(Path(directory)):
        return _open_pictures(experiment, Path(directory))
    if directory is None and dataset == OWN:
        raise UserError("own pictures are learned from where they are: give their folder with --data FOLDER")
    protocol = experiment.recipe.protocol
    folder = set_folder(dataset, split, protocol)
    if directory is None and not (folder / MANIFEST).exists() and dataset in _COMMANDS:
        images = set_folder(dataset.removesuffix("-features"), split, protocol)
        words = {"split": split, "protocol": protocol, "folder": folder, "images": images}
        raise UserError(
            f"{dataset} ({split}, {protocol}) is not built: {folder} holds no {MANIFEST}; "
            f"make it with `{_COMMANDS[dataset].format(**words)}`, or give its folder with --data"
        )
    return load(dataset, split, protocol=protocol, directory=directory)


def _open_pictures(experiment: Experiment, directory: Path) -> Scenes:
    """A folder of pictures at the size that the experiment's model takes."""
    model = experiment.recipe.model
    if model.input != "images":
        raise UserError(
            f"{directory} holds pictures, and the {model.kind} learns from features: give --features BACKBONE with "
            "`slotnorm train own`, or build a set with `slotnorm data features`"
        )
    return open_pictures(directory, model.input_shape[0])


def _has_validation(experiment: Experiment, directory: str | Path | None) -> bool:
    if directory is None:
        return (set_folder(experiment.dataset, "val", experiment.recipe.protocol) / MANIFEST).exists()
    return not (Path(directory) / MANIFEST).exists() and (Path(directory) / "val" / MANIFEST).exists()


def _require_size(scenes: GeneratedScenes, experiment: Experiment) -> None:
    """Refuse scenes that are not as large as the model's pictures, before they are made."""
    model = experiment.recipe.model
    if model.input == "images" and model.input_shape[0] != scenes.size:
        size = model.input_shape[0]
        raise UserError(
            f"scenes.size is {scenes.size}, but the model takes pictures of {size} x {size}: give --scenes.size {size} "
            f"or --recipe.model.size {scenes.size}"
        )


def _checked(scenes: Scenes, experiment: Experiment) -> Scenes:
    """Refuse scenes that the experiment's model cannot take, before anything is written."""
    model = experiment.recipe.model
    rows = scenes.features if model.input == "features" else scenes.images
    if rows is None:
        raise UserError(
            f"{scenes.directory} has no {model.input}, which the {model.kind} learns from; "
            f"it has {', '.join(scenes.fields)}"
        )
    if rows.shape[1:] != model.input_shape:
        raise UserError(
            f"{scenes.directory} holds {model.input} of shape {rows.shape[1:]}, but the model takes "
            f"{model.input_shape}: build the set with that size, or change recipe.model"
        )
    if not len(scenes):
        raise UserError(f"no scene of {scenes.directory} is left to train on; lower --recipe.validation-scenes")
    return scenes
