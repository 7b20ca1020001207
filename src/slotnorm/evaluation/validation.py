"""Scores on a few hundred scenes while training: at the training number of slots, and at three times it."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slotnorm.config import Experiment
from slotnorm.data.scenes import Scenes
from slotnorm.evaluation.label_maps import comparable_labels
from slotnorm.metrics import adjusted_rand_index, average_precision, squared_error
from slotnorm.models import SlotModel
from slotnorm.models.parts import Decomposition
from slotnorm.runtime import randomness
from slotnorm.runtime.ranks import Ranks

SLOTS_FACTOR = 3  # how many times the training K is also looked at: the paper's question
_DISTANCE = 0.25  # of the average precision that is watched


def validated_slots(experiment: Experiment) -> tuple[int, int]:
    """The numbers of slots that training is watched at unless others are asked for."""
    return experiment.slots, SLOTS_FACTOR * experiment.slots


def validate(
    model: SlotModel, scenes: Scenes, experiment: Experiment, ranks: Ranks, numbers: Sequence[int] | None = None
) -> dict[str, float]:
    """Mean F-ARI, ARI and l2 (or average precision) over the scenes, as `f_ari@K`; every rank returns them.

    `numbers` are the K that are scored; None is `validated_slots`.

    Slot noise is keyed by (seed, K, scene), so the scores depend on the weights alone. Scenes without foreground have
    no F-ARI and are left out of its mean; what cannot be scored (no masks, no foreground at all) is left out.
    """
    scores: dict[str, float] = {}
    for slots in numbers or validated_slots(experiment):
        results = _score_scenes(model, scenes, experiment, slots, ranks)
        predictions = results.pop("predictions", None)
        scores |= {f"{name}@{slots}": float(values.nanmean()) for name, values in results.items()}  # NaN: no foreground
        if predictions is not None:
            properties = {name: torch.from_numpy(np.array(values)) for name, values in scenes.properties.items()}
            targets = model.targets(properties)
            scores[f"average_precision@{slots}"] = float(average_precision(predictions.cpu(), targets, _DISTANCE))
    return {name: score for name, score in scores.items() if not math.isnan(score)}


@torch.no_grad()
def decompose(
    model: SlotModel, scenes: Scenes, positions: NDArray[np.int64], experiment: Experiment, slots: int
) -> tuple[Tensor, Decomposition]:
    """The model's input for some scenes and what it makes of them in evaluation, with noise of each scene's own."""
    inputs = model.prepare(torch.from_numpy(scenes.read(model.input, positions)))
    keys: list[tuple[int, ...]] = [(slots, scene) for scene in scenes.index[positions].tolist()]
    noise = randomness.slot_noise(experiment.seed, "validation", keys, slots, model.slot_attention.dim)
    iterations = experiment.recipe.evaluation_iterations
    was_training = model.training
    model.eval()
    decomposition = model(
        inputs, num_slots=slots, iterations=iterations, noise=torch.from_numpy(noise).to(model.device)
    )
    model.train(was_training)
    return inputs, decomposition


def _score_scenes(
    model: SlotModel, scenes: Scenes, experiment: Experiment, slots: int, ranks: Ranks
) -> dict[str, Tensor]:
    """Each score of each scene, (n,), and a set predictor's predictions, (n, K, 19); each rank does its share."""
    mine = np.arange(len(scenes))[ranks.rank :: ranks.world_size]
    size = experiment.recipe.batch_size
    results: dict[str, Tensor] = {}
    for positions in np.split(mine, range(size, len(mine), size)):
        inputs, decomposition = decompose(model, scenes, positions, experiment, slots)
        for name, values in _score(scenes, positions, inputs, decomposition).items():
            whole = results.setdefault(name, values.new_zeros(len(scenes), *values.shape[1:]))
            whole[torch.from_numpy(positions).to(whole.device)] = values
    ranks.sum_(results.values())  # the others' places are zero
    return results


def _score(
    scenes: Scenes, positions: NDArray[np.int64], inputs: Tensor, decomposition: Decomposition
) -> dict[str, Tensor]:
    scores: dict[str, Tensor] = {}
    if scenes.labels is not None:
        labels = torch.from_numpy(scenes.read("labels", positions)).to(inputs.device)
        true, predicted = comparable_labels(decomposition.masks, labels)
        scores["f_ari"] = adjusted_rand_index(true, predicted)
        scores["ari"] = adjusted_rand_index(true, predicted, ignore_background=False)
    if decomposition.reconstruction is not None:
        scores["l2"] = squared_error(decomposition.reconstruction, inputs).double()
    if decomposition.predictions is not None:
        scores["predictions"] = decomposition.predictions.double()
    return scores
