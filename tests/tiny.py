"""A training small enough for fault tests: 8x8 scenes of two squares, a model of a few thousand weights."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from slotnorm import experiments
from slotnorm.config import Experiment, FeatureModel, ImageModel, Recipe, SetModel
from slotnorm.data import Builder, Scenes

SIZE = 8


def build_scenes(folder: Path, num: int = 64, seed: int = 0, crowded: bool = False) -> Scenes:
    """Scenes with one to three bright squares on black, with features, masks and properties."""
    random = np.random.default_rng(seed)
    images = np.zeros((num, SIZE, SIZE, 3), np.uint8)
    labels = np.zeros((num, SIZE, SIZE), np.uint8)
    counts = random.integers(6 if crowded else 1, 9 if crowded else 4, num)
    codes = {name: np.zeros((num, 8), np.uint8) for name in ("shape", "size", "material", "color")}
    places = {name: np.zeros((num, 8), np.float32) for name in ("x", "y", "z")}
    for scene in range(num):
        for number in range(counts[scene]):
            row, column = random.integers(0, SIZE - 2, 2)
            images[scene, row : row + 3, column : column + 3] = random.integers(80, 256, 3)
            labels[scene, row : row + 3, column : column + 3] = number + 1
            for name, most in (("shape", 3), ("size", 2), ("material", 2), ("color", 8)):
                codes[name][scene, number] = random.integers(1, most + 1)
            for name in places:
                places[name][scene, number] = random.uniform(-3, 3)
    features = random.standard_normal((num, 16, 6)).astype(np.float16)
    columns = {"images": images, "labels": labels, "features": features, **codes, **places}
    fields = {name: (column.shape[1:], str(column.dtype)) for name, column in columns.items()}
    with Builder(folder, fields, num, {"made for": "tests", "seed": seed, "crowded": crowded}) as builder:
        if builder.done < num:
            builder.append(counts=counts, **columns)
        return builder.finish()


IMAGES = ImageModel(
    size=SIZE, channels=8, dim=8, hidden=16, kernel=3, strides=(1,), positions="fourier", decoder="dense",
    decoder_hidden=(16,),
)  # fmt: skip
FEATURES = FeatureModel(tokens=16, features=6, dim=8, decoder=16, hidden=16)
PROPERTIES = SetModel(size=SIZE, channels=8, dim=8, hidden=16, kernel=3, strides=(1, 2))


def recipe(**changes: Any) -> Recipe:
    plain = Recipe(
        model=IMAGES, steps=12, batch_size=4, learning_rate=1e-2, warmup_steps=4, half_life=None, cosine_to=0.1,
        clip=1.0, flip=True, checkpoint_every=4, log_every=2, validate_every=6, validation_scenes=8,
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


def experiment(norm: str = "weighted_sum", seed: int = 1, **changes: Any) -> Experiment:
    """Of the recipe above, whose fields may be changed; trained with `data=` the folder of `build_scenes`."""
    return experiments.experiment("toy", slots=4, max_objects=None, norm=norm, seed=seed, recipe=recipe(**changes))
