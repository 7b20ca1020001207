"""Scores on a few hundred scenes while training: at the training number of slots, and at three times it."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slotnorm.config import SLOTS_FACTOR, Experiment
from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError
from slotnorm.evaluation.decomposer import evaluating
from slotnorm.evaluation.measurement import Measurement
from slotnorm.metrics import all_metrics
from slotnorm.models import SlotModel
from slotnorm.models.parts import Decomposition
from slotnorm.runtime import randomness
from slotnorm.runtime.ranks import Ranks


def validated_slots(model: SlotModel, experiment: Experiment) -> tuple[int, ...]:
    """The numbers of slots that training is watched at unless others are asked for, as far as the model takes them."""
    return tuple(k for k in (experiment.slots, SLOTS_FACTOR * experiment.slots) if model.takes(k))


def validate(
    model: SlotModel, scenes: Scenes, experiment: Experiment, ranks: Ranks, numbers: Sequence[int] | None = None
) -> dict[str, float]:
    """The mean over the scenes of every metric that is watched in training, as `f_ari@K`; every rank returns them.

    `numbers` are the K that are scored; None is `validated_slots`.

    Slot noise is keyed by (seed, K, scene), so the scores depend on the weights alone. Scenes without foreground have
    no F-ARI and are left out of its mean; what cannot be scored (no masks, no foreground at all) is left out.
    """
    watched = {name: metric for name, metric in all_metrics().items() if metric.validated_as}
    iterations = experiment.recipe.evaluation_iterations
    measurement = Measurement(model, scenes, model.sources[:1], watched.values(), iterations, visible=False)
    numbers = tuple(numbers or validated_slots(model, experiment))
    values, predictions = _measure_all(measurement, experiment, ranks, numbers)
    scores: dict[str, float] = {}
    for k in numbers:
        means = {name: float(row.nanmean()) for (_, name), row in zip(measurement.columns, values[k], strict=True)}
        if k in predictions:
            means |= measurement.score_set(predictions[k].cpu(), np.arange(len(scenes)))
        scores |= {f"{watched[name].validated_as}@{k}": mean for name, mean in means.items()}
    return {name: score for name, score in scores.items() if not math.isnan(score)}


def decompose(
    model: SlotModel, scenes: Scenes, positions: NDArray[np.int64], experiment: Experiment, slots: int
) -> Decomposition:
    """What the model makes of the scenes at `positions` in validation."""
    with evaluating(model):
        inputs = model.prepare(torch.from_numpy(scenes.read(model.input, positions)))
        noise = _draw_noise(model, scenes, positions, experiment, slots)
        iterations = experiment.recipe.evaluation_iterations
        decomposition: Decomposition = model(inputs, iterations=iterations, noise=noise)
    return decomposition


def _measure_all(
    measurement: Measurement, experiment: Experiment, ranks: Ranks, numbers: Sequence[int]
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """By K, each column of each scene (columns, n), and predictions (n, K, outputs) where a set's metrics need them.

    Every rank measures its share, and has everything in the end.
    """
    model, scenes = measurement.model, measurement.scenes
    if len(scenes) < ranks.world_size:
        raise UserError(
            f"{len(scenes)} validation scenes cannot be shared by {ranks.world_size} processes; raise "
            "--recipe.validation-scenes"
        )
    device = ranks.device if ranks.world_size > 1 else torch.device("cpu")  # where they are exchanged
    shape = (len(measurement.columns), len(scenes))
    values = {k: torch.zeros(shape, dtype=torch.float64, device=device) for k in numbers}
    predictions: dict[int, Tensor] = {}
    mine, size = np.arange(len(scenes))[ranks.rank :: ranks.world_size], experiment.recipe.batch_size
    with evaluating(model):
        for positions in np.split(mine, range(size, len(mine), size)):
            inputs = model.prepare(torch.from_numpy(scenes.read(model.input, positions)))
            labels = None
            if scenes.labels is not None:
                labels = torch.from_numpy(scenes.read("labels", positions)).to(model.device)
            objects = torch.from_numpy(scenes.counts[positions]).to(model.device)
            tokens = model.encode(inputs)
            for k in numbers:
                noise = _draw_noise(model, scenes, positions, experiment, k)
                measured = measurement.measure(inputs, tokens, labels, objects, noise)
                for row, column in zip(values[k], measurement.columns, strict=True):
                    row[positions] = _as(row, measured.values[column])
                if measured.predictions is not None:
                    if k not in predictions:
                        predictions[k] = values[k].new_zeros(len(scenes), *measured.predictions.shape[1:])
                    predictions[k][positions] = _as(predictions[k], measured.predictions)
    ranks.sum_([*values.values(), *predictions.values()])  # the others' places are zero
    return values, predictions


def _as(wanted: Tensor, values: Tensor) -> Tensor:
    """Values of the device and type that are wanted; moved first, since not every device has float64."""
    return values.to(wanted.device).to(wanted.dtype)


def _draw_noise(
    model: SlotModel, scenes: Scenes, positions: NDArray[np.int64], experiment: Experiment, slots: int
) -> Tensor:
    """Standard normal (n, K, D), each scene's own: keyed by (seed, K, its number in the container)."""
    keys: list[tuple[int, ...]] = [(slots, scene) for scene in scenes.index[positions].tolist()]
    noise = randomness.slot_noise(experiment.seed, "validation", keys, slots, model.slot_attention.dim)
    return torch.from_numpy(noise).to(model.device)
