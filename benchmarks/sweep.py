"""Time of a sweep over 22 numbers of slots (3 to 24), as ratios, on one thread.

    python benchmarks/sweep.py [--rounds 5] [--scenes 16] [--only small]

`one each` is `score` called for each number of slots by itself: it reads and encodes the scenes 22 times. `plain` is
the evaluation that is usually written, once for each number of slots: a batch of scenes through the plain version of
the model (tests/plain_models.py: keys and values formed, all slots decoded at once), F-ARI and ARI by scikit-learn for
each image, l2; no mBO, no mIoU, nothing from attention. `attention alone` is the sweep without decoding against one
evaluation each with it. All run in every round, with the same allocator settings, and processor time is taken, which
other programs on the machine disturb less. A ratio above 1 says that the sweep is faster.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

import slotnorm as sn
from models import NARROW
from slotnorm.config import ImageModel
from slotnorm.data import Builder, Scenes
from slotnorm.data.batches import to_images
from slotnorm.evaluation.scoring import SLOTS
from slotnorm.models import ImageAutoencoder
from slotnorm.runtime.allocator import keep_freed_memory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from plain_models import PlainAutoencoder, plain_images

MODELS = {
    "narrow, 64x64": NARROW,
    "paper's layers at 64x64": ImageModel(size=64, decoder_strides=(2, 2, 2, 1)),
    "toy": sn.experiment("toy").recipe.model,
}
OURS_ALONE = ("positions", "position_scale", "recompute")  # what the plain model has no choice of, and takes no time


def build(folder: str, num: int, size: int) -> Scenes:
    """Scenes of random pixels with a few squares as objects: what they show does not change the time."""
    random = np.random.default_rng(0)
    labels = np.zeros((num, size, size), np.uint8)
    for scene in labels:
        for label in range(1, 6):
            row, column = random.integers(0, size - size // 4, 2)
            scene[row : row + size // 4, column : column + size // 4] = label
    images = random.integers(0, 256, (num, size, size, 3), dtype=np.uint8)
    fields = {"images": ((size, size, 3), "uint8"), "labels": ((size, size), "uint8")}
    with Builder(folder, fields, num, {"made for": "benchmarks"}) as builder:
        builder.append(images=images, labels=labels, counts=np.full(num, 5))
        return builder.finish()


@torch.inference_mode()
def evaluate_plainly(model: PlainAutoencoder, scenes: Scenes, dim: int) -> list[float]:
    """F-ARI, ARI and l2 with every number of slots, each a full evaluation."""
    means = []
    for number in SLOTS:
        images = to_images(torch.from_numpy(np.asarray(scenes.images)))
        labels = np.asarray(scenes.labels).reshape(len(scenes), -1)
        _, _, masks, reconstruction = model(images, torch.randn(len(images), number, dim), 5)
        predicted = masks.argmax(1).flatten(1).numpy()
        for true, predicted_labels in zip(labels, predicted, strict=True):
            means.append(adjusted_rand_score(true[true > 0], predicted_labels[true > 0]))
            means.append(adjusted_rand_score(true, predicted_labels))
        means += (reconstruction - images).square().flatten(1).mean(1).tolist()
    return means


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scenes", type=int, default=16)
    parser.add_argument("--only", default="", help="a part of a model's name")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    print(f"{'model':<26}{'seconds':>10}{'one each':>11}{'plain':>9}{'attention alone':>18}")
    for name, recipe in MODELS.items():
        if arguments.only not in name:
            continue
        sizes = dataclasses.asdict(recipe)
        model = ImageAutoencoder(**sizes, iterations=5)
        plain = plain_images(**{field: value for field, value in sizes.items() if field not in OURS_ALONE})
        with tempfile.TemporaryDirectory() as folder:
            scenes = build(folder, arguments.scenes, model.size)
            ways = {
                "sweep": lambda m=model, s=scenes: sn.score(m, s),
                "one each": lambda m=model, s=scenes: [sn.score(m, s, [number]) for number in SLOTS],
                "plain": lambda p=plain, m=model, s=scenes: evaluate_plainly(p, s, m.slot_attention.dim),
                "attention alone": lambda m=model, s=scenes: sn.score(m, s, source="attention"),
            }
            sn.score(model, scenes, [3])
            rounds = [{way: seconds(work) for way, work in ways.items()} for _ in range(arguments.rounds)]
        took = statistics.median(times["sweep"] for times in rounds)
        ratios = {way: statistics.median(times[way] / times["sweep"] for times in rounds) for way in ways}
        alone = statistics.median(times["one each"] / times["attention alone"] for times in rounds)
        print(f"{name:<26}{took:>10.2f}{ratios['one each']:>11.2f}{ratios['plain']:>9.2f}{alone:>18.1f}", flush=True)


if __name__ == "__main__":
    main()
