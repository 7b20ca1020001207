"""Put models into the package, for `slotnorm demo`: python docs/make_bundled.py RUNS ...

Of the toy study's evaluated runs in the folders RUNS, for each main normalization the one with the median F-ARI at the
training number of slots (not the best) becomes src/slotnorm/models/bundled/toy-NORM.safetensors: matrices in half
precision, which makes files half as large. Its model card says where it comes from and what the file itself scores;
hashes.json lists the SHA-256 of all files.
"""

import json
import sys
from pathlib import Path

import numpy as np

from slotnorm import experiments
from slotnorm.evaluation.scoring import score
from slotnorm.models import weights
from slotnorm.models.bundled import HASHES, bundled_folder
from slotnorm.report.model_views import median_run
from slotnorm.report.reading import read
from slotnorm.report.scores import RunScores
from slotnorm.storage import files
from slotnorm.training.experiment_scenes import evaluation_scenes
from slotnorm.training.loading import load
from slotnorm.training.runs import Run

STUDY = "toy"
_FACTORS = (1, 2, 3)  # times the training K
_METRICS = {"f_ari": "F-ARI", "ari": "ARI", "l2": "ℓ²"}


def bundle(runs: list[Path], folder: Path, data: Path | None = None) -> None:
    """Export the median runs into `folder` and list all that it holds; `data` are test scenes, if not generated."""
    (section,) = (section for section in read(runs).sections if section.study == STUDY)
    for norm in [norm for norm in experiments.MAIN if norm in section.norms]:
        chosen, dataset, slots = median_run(section, norm), section.sets[0], section.train_slots
        among = sorted(run.mean(dataset, "f_ari", slots).value for run in section.of(norm))
        why = (
            f"\nOf {len(among)} seeds the one with the median F-ARI at {slots} slots "
            f"({', '.join(f'{value:.3f}' for value in among)} on the test set `{dataset}`).\n"
        )
        path = _export(Run.open(Path(chosen.facts["path"])), folder, why)
        _add_scores(path, chosen, data)
    listed = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".md"))
    hashes = {path.name: files.sha256(path) for path in listed}
    files.write(folder / HASHES, (json.dumps(hashes, indent=1) + "\n").encode())
    total = sum(path.stat().st_size for path in listed)
    print(f"{len(listed)} files, {total / 1e6:.2f} MB in {folder}")


def _export(run: Run, folder: Path, why: str) -> Path:
    path = run.export(folder / f"{run.experiment.name}-{run.experiment.norm}.safetensors", half=True)
    weights.export(weights.unpack(path), path, f"{_card(path)}{why}")
    return path


def _card(path: Path) -> str:
    """The model card without its last line, the SHA-256 of the file."""
    return path.with_suffix(".md").read_text(encoding="utf-8").rpartition("\nSHA-256 of")[0]


def _add_scores(path: Path, run: RunScores, data: Path | None) -> None:
    """Put into the card what the file scores, on the scenes that the run was scored on."""
    model = load(path)
    assert model.experiment is not None
    slots = [factor * model.experiment.slots for factor in _FACTORS]
    lines = ["", f"| this file on test scenes | {' | '.join(_METRICS.values())} |", "|---|---|---|---|"]
    for dataset in run.datasets:
        test = experiments.evaluation_set(dataset)
        num = run.facts["scenes"][dataset]["num_scenes"]
        scenes = evaluation_scenes(model.experiment, test, num, data)
        rows = score(model, scenes, slots=slots)
        for number in slots:
            scores = [rows.where(slots=number, source="masks", metric=metric)["value"] for metric in _METRICS]
            cells = " | ".join(f"{np.nanmean(values):.4f}" for values in scores)
            lines.append(f"| `{dataset}`, {len(scenes)} scenes, K {number} | {cells} |")
    weights.export(weights.unpack(path), path, "\n".join([_card(path), *lines, ""]))


if __name__ == "__main__":
    bundle([Path(word) for word in sys.argv[1:]], bundled_folder())
