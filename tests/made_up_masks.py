"""Masks as failed and as good runs make them, made up: for the failed-run rule."""

import functools

import numpy as np
import torch

from slotnorm.config import SceneSpec
from slotnorm.data.generator import render


def stripes(num: int, size: int, slots: int, jitter: float = 0.0, across: bool = False, seed: int = 0) -> np.ndarray:
    """Label maps (num, size, size): stripes whose boundaries tremble by `jitter` (a share of the side)."""
    random = np.random.default_rng(seed)
    edges = np.arange(1, slots) * size / slots + random.normal(0, jitter * size, (num, slots - 1))
    lines = np.stack([np.searchsorted(np.sort(edge), np.arange(size) + 0.5) for edge in edges])
    maps = np.broadcast_to(lines[:, None], (num, size, size))
    return maps.transpose(0, 2, 1) if across else maps


def blocks(num: int, size: int, slots: int, jitter: float = 0.0, seed: int = 0) -> np.ndarray:
    """Label maps (num, size, size): every pixel belongs to the nearest of `slots` centres, which tremble."""
    random = np.random.default_rng(seed)
    centres = random.random((slots, 2)) * size + random.normal(0, jitter * size, (num, slots, 2))
    place = np.stack(np.mgrid[:size, :size], axis=-1) + 0.5
    return ((place[:, :, None] - centres[:, None, None]) ** 2).sum(-1).argmin(-1)


def objects(num: int, size: int, fewest: int, most: int, style: str = "clevr", parts: int = 1) -> np.ndarray:
    """The true label maps of generated scenes, with the background in `parts` blocks that stay where they are."""
    true = _true_labels(num, size, fewest, most, style)
    return np.where(true > 0, true - 1 + parts, blocks(1, size, parts, seed=5))


@functools.cache
def _true_labels(num: int, size: int, fewest: int, most: int, style: str) -> np.ndarray:
    return render(SceneSpec(objects=(fewest, most), size=size, style=style, seed=9), range(num))["labels"].astype(int)


def permuted(labels: np.ndarray, slots: int, seed: int = 0) -> np.ndarray:
    """The same segments under other numbers in every image."""
    random = np.random.default_rng(seed)
    return np.stack([random.permutation(slots)[image] for image in labels])


def soft(labels: np.ndarray, slots: int, confidence: float = 0.9) -> torch.Tensor:
    """Masks (num, slots, size, size): `confidence` for the labelled slot, the rest shared by all."""
    hard = torch.nn.functional.one_hot(torch.as_tensor(labels), slots).permute(0, 3, 1, 2).float()
    return confidence * hard + (1 - confidence) / slots


def bent(maps: np.ndarray, size: int, fewest: int, most: int) -> np.ndarray:
    """Label maps whose boundaries bend around objects: each goes as a whole to the segment that holds most of it."""
    true = _true_labels(len(maps), size, fewest, most, "clevr")
    result = maps.copy()
    for image, objects_here in enumerate(true):
        for label in range(1, most + 1):
            if (there := objects_here == label).any():
                result[image][there] = np.bincount(maps[image][there]).argmax()
    return result


def main() -> None:
    """Print the table of docs/failed-runs.md."""
    from slotnorm.evaluation.failed_runs import SCENES as num
    from slotnorm.evaluation.failed_runs import judge_masks

    noise = np.random.default_rng(0).integers(0, 7, (num, 64, 64))
    cases = [
        *((f"{size}x{size}, K = {slots}: {name}, places tremble by {jitter:.0%} of the side",
           make(num, size, slots, jitter), slots, 0.9)
          for size, slots in ((16, 5), (64, 7), (64, 11)) for name, make in (("stripes", stripes), ("blocks", blocks))
          for jitter in (0, 0.02, 0.04)),
        ("64x64, K = 7: stripes that bend around objects", bent(stripes(num, 64, 7), 64, 3, 6), 7, 0.9),
        ("64x64, K = 7: noise", noise, 7, 0.9),
        *((f"64x64, K = 7: true objects, masks {share:.0%} their own and the rest shared",
           objects(num, 64, 3, 6), 7, share) for share in (0.1, 0.3, 0.5, 0.9)),
        *((f"{size}x{size}: true objects, {fewest} to {most}, background in {parts}",
           objects(num, size, fewest, most, style, parts), most + parts, 0.9)
          for style, size, fewest, most in (
              ("flat", 16, 2, 4), ("flat", 16, 5, 7), ("clevr", 64, 3, 6), ("clevr", 64, 10, 10))
          for parts in (1, 4, 8)),
        ("64x64: every other object found", np.where(objects(num, 64, 3, 6) % 2, objects(num, 64, 3, 6), 0), 7, 0.9),
    ]  # fmt: skip
    print("| masks | moving | sharing | coherence | the rule says |\n|---|---|---|---|---|")
    for name, labels, slots, confidence in cases:
        judgement = judge_masks(soft(permuted(labels, slots), slots, confidence))
        numbers = f"{judgement.moving:.2f} | {judgement.sharing:.2f} | {judgement.coherence:.2f}"
        print(f"| {name} | {numbers} | {judgement.reason or 'follows objects'} |")


if __name__ == "__main__":
    main()
