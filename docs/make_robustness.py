"""Tables of docs/robustness.md: published runs with other numbers of iterations, and at another image size.

    python docs/make_robustness.py               # both tables of the toy study, about ten minutes of one core
    python docs/make_robustness.py --scenes 64   # the same with fewer scenes, to look at; writes nothing

A model's weights do not depend on the image's size: the encoder's and the decoder's position embeddings are functions
of the place, so the same weights make a model for larger images, which has more tokens and a larger decoder grid.
"""

import argparse
import dataclasses

import numpy as np
import torch
from computed_tables import ROOT, markdown, published_models, put

import slotnorm as sn
from slotnorm.config import SLOTS_FACTOR, ImageModel
from slotnorm.data.scenes import Scenes
from slotnorm.experiments import MAIN, studies
from slotnorm.models import SlotModel
from slotnorm.models.building import build
from slotnorm.normalization import normalizations
from slotnorm.training.experiment_scenes import evaluation_scenes

STUDY = studies()["toy"]
ITERATIONS = range(1, 11)
SIZE = 48


def main() -> None:
    """Score every published run of the main normalizations and write the tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--scenes", type=int, default=STUDY.test_scenes)
    num = options.parse_args().scenes
    torch.set_num_threads(1)
    models = {norm: published_models(STUDY.name, norm) for norm in MAIN}
    tables = {"iterations": over_iterations(models, num), "size": over_sizes(models, num)}
    print("\n\n".join(tables.values()))
    if num == STUDY.test_scenes:
        put(ROOT / "docs" / "robustness.md", tables)


def over_iterations(models: dict[str, list[SlotModel]], num: int) -> str:
    """F-ARI on the first set against the iterations of Slot Attention, at the training K and at three times it."""
    scenes = evaluation_scenes(STUDY.experiment, STUDY.tests[0], num)
    head = [f"{STUDY.tests[0].name}, F-ARI", "runs", "K", *map(str, ITERATIONS)]
    lines = []
    for norm, runs in models.items():
        scores = [[means_of(run, scenes, iterations) for iterations in ITERATIONS] for run in runs]
        medians = np.median(scores, axis=0)  # (iterations, numbers of slots)
        for slots, column in zip(numbers_of_slots(), medians.T, strict=True):
            cells = [f"{value:.3f}" for value in column]
            lines.append([normalizations()[norm].label, str(len(runs)), str(slots), *cells])
    return markdown(head, lines)


def over_sizes(models: dict[str, list[SlotModel]], num: int) -> str:
    """F-ARI of the same scenes at the training size and at SIZE, at the training K and at three times it."""
    trained, larger = STUDY.tests[0], dataclasses.replace(STUDY.tests[0], name=f"{STUDY.tests[0].name}@{SIZE}")
    head = ["F-ARI", "runs"]
    head += [f"{test.name}, K {slots}" for test in (trained, larger) for slots in numbers_of_slots()]
    lines = []
    for norm, runs in models.items():
        scores = []
        for run in runs:
            resized = at_size(run, SIZE)
            scores.append([
                *means_of(run, evaluation_scenes(STUDY.experiment, trained, num)),
                *means_of(resized, evaluation_scenes(resized.experiment, larger, num)),
            ])  # fmt: skip
        cells = [f"{value:.3f}" for value in np.median(scores, axis=0)]
        lines.append([normalizations()[norm].label, str(len(runs)), *cells])
    return markdown(head, lines)


def numbers_of_slots() -> tuple[int, int]:
    return STUDY.experiment.slots, SLOTS_FACTOR * STUDY.experiment.slots


def means_of(model: SlotModel, scenes: Scenes, iterations: int | None = None) -> list[float]:
    """The mean F-ARI over scenes, by number of slots."""
    rows = sn.score(model, scenes, numbers_of_slots(), iterations, source="masks").where(metric="f_ari")
    return [float(np.nanmean(part["value"])) for _, part in rows.groups("slots")]


def at_size(model: SlotModel, size: int) -> SlotModel:
    """The model for images of another size, with the same weights."""
    experiment = model.experiment
    assert experiment is not None
    assert experiment.scenes is not None
    assert isinstance(experiment.recipe.model, ImageModel)
    recipe = dataclasses.replace(experiment.recipe, model=dataclasses.replace(experiment.recipe.model, size=size))
    scenes = dataclasses.replace(experiment.scenes, size=size)
    resized = build(dataclasses.replace(experiment, recipe=recipe, scenes=scenes))
    resized.load_state_dict(model.state_dict())
    return resized.eval()


if __name__ == "__main__":
    main()
