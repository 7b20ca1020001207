"""Rows as an evaluation would write them, with scores made up to behave as the paper describes."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slotnorm.evaluation.rows import Rows
from slotnorm.experiments import MAIN, experiment, study
from slotnorm.storage.serialization import to_document

# per normalization: F-ARI at the training K, its loss per excess slot, the same for ARI, and l2
SHAPES = {
    "weighted_mean": (0.955, 0.006, 0.75, 0.045, 0.0022, 9e-5),
    "layer_norm": (0.95, 0.008, 0.72, 0.05, 0.0018, 7e-5),
    "weighted_sum": (0.945, 0.0008, 0.92, 0.002, 0.0023, 6e-5),
    "batch_norm": (0.96, 0.0005, 0.93, 0.001, 0.002, 4e-5),
    "unnormalized": (0.25, 0.001, 0.15, 0.001, 0.008, 4e-5),
    "kd_layer_norm": (0.9, 0.012, 0.6, 0.03, 0.003, 8e-5),
}


def made_up(
    name: str = "clevr-6-7",
    norms: Iterable[str] = MAIN,
    seeds: Iterable[int] = (1, 2, 3),
    slots: Sequence[int] = range(3, 25),
    images: int = 40,
    sources: Sequence[str] = ("masks",),
    failed: Iterable[tuple[str, int]] = (),
    shapes: dict[str, Any] = SHAPES,
) -> Rows:
    """Rows of a study's runs on its test sets; `failed` runs (norm, seed) score badly everywhere."""
    experiment = study(name).experiment
    parts = []
    for norm in norms:
        for seed in seeds:
            random = np.random.default_rng([seed, sum(map(ord, norm + name))])
            level = random.normal(0, 0.008) - (0.5 if (norm, seed) in set(failed) else 0)
            for test in study(name).tests:
                counts = random.integers(test.objects[0], test.objects[1] + 1, images)
                for k in slots:
                    columns = _scores(shapes[norm], level, k, experiment.slots, counts, random)
                    for metric, values in columns.items():
                        for source in sources if metric in ("f_ari", "ari") else sources[:1]:
                            parts.append(Rows(
                                run=f"{name}-{norm}-{seed}", norm=norm, train_objects=experiment.max_objects,
                                train_slots=experiment.slots, seed=seed, dataset=test.name, protocol="paper",
                                image=np.arange(images), objects=counts, slots=k, iterations=5, source=source,
                                metric=metric, value=values - 0.05 * (source == "attention"),
                            ))  # fmt: skip
    return Rows.concat(parts)


def _scores(shape: Any, level: float, k: int, train: int, counts: np.ndarray, random: Any) -> dict[str, np.ndarray]:
    at_training, loss, ari, ari_loss, l2, l2_loss = shape
    excess, missing = max(0, k - train), max(0, 6 - k)
    noise = random.normal(0, 0.02, len(counts))
    f_ari = at_training + level - loss * excess - 0.12 * missing - 0.008 * np.maximum(counts - 6, 0) + noise
    return {
        "visible": counts.astype(float),
        "f_ari": np.clip(f_ari, -0.2, 1),
        "ari": np.clip(ari + 4 * level - ari_loss * excess - 0.05 * missing + noise, -0.2, 1),
        "l2": np.abs(l2 + l2_loss * excess + 5e-4 * missing + 2e-4 * counts + noise / 400),
    }


def save(rows: Rows, folder: Path, failed: Iterable[tuple[str, int]] = (), **header: Any) -> list[Path]:
    """Write rows as evaluations of the first form left them: RUN/rows/SET-K.npz and RUN/rows/binding.json."""
    chosen, made = set(failed), []
    for (run, norm, seed), part in rows.groups("run", "norm", "seed"):
        made.append(folder / run)
        for (dataset, slots), some in part.groups("dataset", "slots"):
            name = str(run).removesuffix(f"-{norm}-{seed}")
            content = {
                "weights": f"weights of {run}", "scenes": f"scenes of {dataset}", "images": "all",
                "num_scenes": len(set(some["image"].tolist())), "noise_seed": 0, "versions": {"slotnorm": "0"},
                "experiment": to_document(experiment(name, norm=norm, seed=seed)), **header,
            }  # fmt: skip
            some.save(folder / run / "rows" / f"{dataset}-{slots}.npz", content)
        judged = {"failed": (norm, seed) in chosen, "reason": "splits the image by place", "rule": 1}
        (folder / run / "rows" / "binding.json").write_text(json.dumps(judged))
    return made
