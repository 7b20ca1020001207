"""The scenes of an experiment: generated and cached when its recipe says how, else read from where they were built."""

from pathlib import Path

import numpy as np

from slotnorm.config import Experiment, GeneratedScenes
from slotnorm.data import load
from slotnorm.data.cache import set_folder
from slotnorm.data.generator import SceneSpec, cached
from slotnorm.data.manifest import MANIFEST
from slotnorm.data.scenes import Scenes
from slotnorm.documents import digest
from slotnorm.errors import UserError

_SPLITS = ("train", "val", "test")

# What builds the sets of the experiments that are not generated.
_COMMANDS = {
    "clevr": "slotnorm data clevr --from clevr_with_masks_train.tfrecords --protocol {protocol}",
    "clevr-mini": "slotnorm data folder --from clevr-mini/{split} --size 64 --out {folder}",
    "movi-c-features": "slotnorm data features --from {images} --backbone vit_base_patch8_224.dino --weights hub",
    "toy-features": "slotnorm data features --from SCENES --backbone run:RUN --out {folder}",
}


def training_scenes(experiment: Experiment, directory: str | Path | None = None, num: int | None = None) -> Scenes:
    """What it is trained on; of generated scenes `num`, or as many as the recipe needs: at most steps x batch."""
    if experiment.scenes is not None and directory is None:
        recipe = experiment.recipe
        needed = num or min(experiment.scenes.num, recipe.steps * recipe.batch_size)
        return _checked(_generate(experiment.scenes, "train", experiment.scenes.objects, needed), experiment)
    scenes = _load(experiment, "train", directory)
    if not _has_validation(experiment, directory):
        held_out = scenes.sample(experiment.recipe.validation_scenes).index
        scenes = scenes[~np.isin(scenes.index, held_out)]
    return _checked(scenes, experiment)


def validation_scenes(experiment: Experiment, directory: str | Path | None = None) -> Scenes:
    """What its validation looks at: of the validation split; where there is none, scenes that training leaves out."""
    num = experiment.recipe.validation_scenes
    if experiment.scenes is not None and directory is None:
        return _generate(experiment.scenes, "val", experiment.scenes.objects, num)
    split = "val" if _has_validation(experiment, directory) else "train"
    return _load(experiment, split, directory).sample(num)


def evaluation_scenes(
    experiment: Experiment,
    dataset: str,
    objects: tuple[int, int],
    num: int,
    directory: str | Path | None = None,
) -> Scenes:
    """`num` scenes with `objects` (fewest, most) of `dataset`'s test split; generated if it is the experiment's."""
    if experiment.scenes is not None and directory is None and dataset == experiment.dataset:
        return _generate(experiment.scenes, "test", objects, num)
    scenes = load(dataset, "test", protocol=experiment.recipe.protocol, directory=directory)
    return scenes.filter(*objects).sample(num)


def data_fingerprint(scenes: Scenes) -> str:
    """What identifies the content: of generated scenes what they were made from, since sets of any length share it."""
    provenance = scenes.manifest["provenance"]
    return digest(provenance) if "generator" in provenance else scenes.fingerprint


def _generate(scenes: GeneratedScenes, split: str, objects: tuple[int, int], num: int) -> Scenes:
    return cached(scene_spec(scenes, split, objects), num)


def scene_spec(scenes: GeneratedScenes, split: str, objects: tuple[int, int]) -> SceneSpec:
    """What the generator is asked for, for a split's scenes with `objects` (fewest, most)."""
    seed = len(_SPLITS) * scenes.seed + _SPLITS.index(split)  # no two splits of any two seeds share a scene
    return SceneSpec(
        objects=objects,
        seed=seed,
        size=scenes.size,
        style=scenes.style,
        shapes=scenes.shapes,
        materials=scenes.materials,
        radius=scenes.radius,
        min_visible=scenes.min_visible,
        sharp=scenes.sharp,
    )


def _load(experiment: Experiment, split: str, directory: str | Path | None) -> Scenes:
    protocol, most = experiment.recipe.protocol, experiment.max_objects
    folder = set_folder(experiment.dataset, split, protocol)
    if directory is None and not (folder / MANIFEST).exists() and experiment.dataset in _COMMANDS:
        images = set_folder(experiment.dataset.removesuffix("-features"), split, protocol)
        words = {"split": split, "protocol": protocol, "folder": folder, "images": images}
        command = _COMMANDS[experiment.dataset].format(**words)
        raise UserError(
            f"{experiment.dataset} ({split}, {protocol}) is not built: {folder} holds no {MANIFEST}; "
            f"make it with `{command}`, or give its folder with --data"
        )
    return load(experiment.dataset, split, max_objects=most, protocol=protocol, directory=directory)


def _has_validation(experiment: Experiment, directory: str | Path | None) -> bool:
    if directory is None:
        return (set_folder(experiment.dataset, "val", experiment.recipe.protocol) / MANIFEST).exists()
    return not (Path(directory) / MANIFEST).exists() and (Path(directory) / "val" / MANIFEST).exists()


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
        raise UserError(f"no scene of {scenes.directory} is left to train on; lower recipe.validation-scenes")
    return scenes
