"""The rule by which objects are counted (`sn.count_objects`): its two numbers, and what they give.

python benchmarks/count_rule.py            # choose: mean error on validation scenes of the toy study, by both numbers
python benchmarks/count_rule.py --report   # with the numbers as they are fixed: error on test scenes, by K and objects

Errors are |count - objects|, means over scenes, of the bundled models of every normalization at the training K and at
two and three times it. Beside them the trivial guess: the mean number of objects in training, whatever the image.
"""

import sys

import numpy as np
import torch

import slotnorm as sn
from slotnorm.evaluation.validation import decompose
from slotnorm.experiments import studies
from slotnorm.metrics.object_count import MOST_BORDER, SMALLEST, count_objects, holds_object
from slotnorm.models.bundled import bundled_names
from slotnorm.training.experiment_scenes import evaluation_scenes, validation_scenes

SMALLESTS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.04)
BORDERS = (0.02, 0.05, 0.1, 0.2, 0.3)
NAMES = [name for name in bundled_names() if name.startswith("toy-")]
SCENES = 160


def choose() -> None:
    """Print the mean error over models and K for every pair of numbers; the least is fixed."""
    errors = {pair: [] for pair in ((smallest, border) for smallest in SMALLESTS for border in BORDERS)}
    for name in NAMES:
        model = sn.load(name)
        scenes = validation_scenes(model.experiment)[:SCENES]
        for factor in (1, 2, 3):
            masks = decomposed(model, scenes, factor).masks
            for pair, collected in errors.items():
                collected.append(mean_error(holds_object(masks, *pair).sum(dim=1), scenes))
    print("smallest  border  mean error")
    for (smallest, border), collected in errors.items():
        fixed = "  fixed" if (smallest, border) == (SMALLEST, MOST_BORDER) else ""
        print(f"{smallest:8.3f}  {border:6.2f}  {np.mean(collected):10.3f}{fixed}")


def report() -> None:
    """Print the error on the test sets of each model's study, beside the trivial guess."""
    print("model              set     K  error  guess  within one")
    for name in NAMES:
        model = sn.load(name)
        guess = round(sum(model.experiment.scenes.objects) / 2)
        for test in studies()[model.experiment.name].tests:
            scenes = evaluation_scenes(model.experiment, test, SCENES)
            for factor in (1, 2, 3):
                counts = count_objects(decomposed(model, scenes, factor))
                trivial = mean_error(torch.full_like(counts, guess), scenes)
                near = ((counts - true_counts(scenes)).abs() <= 1).double().mean()
                slots = factor * model.experiment.slots
                error = mean_error(counts, scenes)
                print(f"{name:<18} {test.name:<6} {slots:2}  {error:5.2f}  {trivial:5.2f}  {near:.2f}")


def decomposed(model, scenes, factor):
    """What the model makes of scenes at a multiple of the training K."""
    slots = factor * model.experiment.slots
    return decompose(model, scenes, np.arange(len(scenes)), model.experiment, slots)


def true_counts(scenes) -> torch.Tensor:
    return torch.from_numpy(scenes.counts.copy())


def mean_error(counts: torch.Tensor, scenes) -> float:
    return float((counts - true_counts(scenes)).abs().double().mean())


if __name__ == "__main__":
    torch.set_num_threads(1)
    report() if "--report" in sys.argv else choose()
