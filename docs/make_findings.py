"""Why some of the paper's claims come out otherwise on CLEVR-like scenes: the computed tables of a study's page.

    python docs/make_findings.py small-6-7        # or clevr-mini-6-7; needs the published rows and weights, minutes

Two questions. Does F-ARI fall with the number of objects when no slot is spare, as with the 11 slots of the paper's
figure only scenes with 10 objects have none? And where does the loss grow when slots are added: on the objects, whose
pixels their own slot then holds less of, or on the background?
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from computed_tables import ROOT, markdown, published_models, published_runs, put
from numpy.typing import NDArray

from slotnorm.data.scenes import Scenes
from slotnorm.evaluation.decomposer import Decomposer, evaluating
from slotnorm.evaluation.rows import Rows
from slotnorm.experiments import MAIN, Study, studies
from slotnorm.models import SlotModel
from slotnorm.normalization import normalizations
from slotnorm.training.experiment_scenes import evaluation_scenes

PAGES = {"small-6-7": "small.md", "clevr-mini-6-7": "clevr-renders.md"}
AT = 11  # slots, as in the paper's figures over the number of objects
FACTORS = (1, 3)  # of the training K


def main() -> None:
    """Compute both tables of a study and write them into its page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("study", choices=PAGES)
    study = studies()[options.parse_args().study]
    torch.set_num_threads(1)
    tables = {"by objects": over_objects(study), "where the loss grows": over_places(study)}
    print("\n\n".join(tables.values()))
    put(ROOT / "docs" / "results" / PAGES[study.name], tables)


def over_objects(study: Study) -> str:
    """F-ARI by the number of objects, at AT slots and with as many slots as objects and a background."""
    test = study.tests[1]
    counts = range(test.objects[0], test.objects[1] + 1)
    lines = []
    for norm in MAIN:
        runs = [by_objects(run, test.name) for run in published_runs(study.name, norm)]
        for slots, wanted in (("objects + 1", [(n, n + 1) for n in counts]), (str(AT), [(n, AT) for n in counts])):
            medians = np.median([[scores[pair] for pair in wanted] for scores in runs], axis=0)
            lines.append([normalizations()[norm].label, str(len(runs)), slots, *(f"{value:.2f}" for value in medians)])
    return markdown([f"{test.name}, F-ARI", "runs", "slots", *(f"{n} objects" for n in counts)], lines)


def by_objects(run: Path, dataset: str) -> dict[tuple[int, int], float]:
    """The mean F-ARI of a run's masks over the scenes with some number of objects, by (objects, slots)."""
    rows = Rows.load(run / "rows" / f"{dataset}.npz").where(metric="f_ari", source="masks")
    objects, slots, values = rows["objects"], rows["slots"], rows["value"]
    pairs = {(int(n), int(k)) for n, k in zip(objects, slots, strict=True)}
    return {(n, k): float(np.nanmean(values[(objects == n) & (slots == k)])) for n, k in pairs}


def over_places(study: Study) -> str:
    """The loss on pixels of objects and of the background, and how many slots share these, while slots are added."""
    test, trained = study.tests[0], study.experiment.slots
    scenes = evaluation_scenes(study.experiment, test, study.test_scenes)
    numbers = [factor * trained for factor in FACTORS]
    titles = ("ℓ² on objects", "ℓ² on background", "own slot's share of an object", "slots that share the background")
    head = [test.name, "runs", *(f"{title}, K {number}" for title in titles for number in numbers)]
    lines = []
    for norm in MAIN:
        models = published_models(study.name, norm)
        measured = np.array([measure(model, scenes, numbers) for model in models])  # (runs, numbers, 4)
        medians = np.median(measured, axis=0).T.ravel()
        decimals = [places for places in (4, 4, 2, 1) for _ in numbers]
        texts = [f"{value:.{places}f}" for value, places in zip(medians, decimals, strict=True)]
        lines.append([normalizations()[norm].label, str(len(models)), *texts])
    return markdown(head, lines)


def measure(model: SlotModel, scenes: Scenes, numbers: Sequence[int]) -> NDArray[np.float64]:
    """For each number of slots (numbers, 4): the loss on objects and background, an object's share, sharing slots."""
    assert model.experiment is not None
    decomposer = Decomposer(model, scenes, model.experiment.recipe.evaluation_iterations)
    sums = np.zeros((len(numbers), 4))
    groups = decomposer.groups(np.arange(len(scenes)))
    with evaluating(model):
        for group in groups:
            images, tokens = decomposer.encode(group)
            true = decomposer.read("labels", group).long()
            present = torch.from_numpy(group >= 0)
            for place, number in enumerate(numbers):
                made = decomposer.decompose(tokens, decomposer.scene_noise(0, group, number), reconstruct=True)
                assert made.masks is not None
                assert made.reconstruction is not None
                error = (made.reconstruction - images).square().mean(dim=1)
                sums[place] += per_image(error, made.masks, true)[present].sum(dim=0).numpy()
    return sums / len(scenes)


def per_image(error: torch.Tensor, masks: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    """(B, 4): means over an image's pixels of objects, and of its background.

    The own slot of an object is the one with the most of its pixels' masks; slots share the background as many as would
    with equal parts, 1 / Σ share².
    """
    background = (true == 0).float()
    inside = 1 - background
    owned = torch.zeros(len(true))
    for label in range(1, int(true.max()) + 1):
        held = (masks * (true == label)[:, None]).sum(dim=(2, 3))  # (B, K)
        owned += held.amax(dim=1)
    shares = (masks * background[:, None]).sum(dim=(2, 3))
    shares = shares / shares.sum(dim=1, keepdim=True)
    pixels = inside.sum(dim=(1, 2)).clamp(min=1)
    return torch.stack([
        (error * inside).sum(dim=(1, 2)) / pixels,
        (error * background).sum(dim=(1, 2)) / background.sum(dim=(1, 2)).clamp(min=1),
        owned / pixels,
        1 / shares.square().sum(dim=1),
    ], dim=1).double()  # fmt: skip


if __name__ == "__main__":
    main()
