"""Segmentation and property scores against scikit-learn, torchmetrics and plain loops, on one thread.

    python benchmarks/metrics.py [--rounds 9] [--default-allocator]

Medians of interleaved rounds in one process, in processor time, which other programs on the machine disturb less.
Ratios above 1 say that slotnorm is faster. The allocator keeps freed memory for all sides alike, as on the command
line, or with --default-allocator for none.
"""

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from slotnorm.metrics import adjusted_rand_index, average_precision, labels_from_masks, mean_best_overlap, mean_iou
from slotnorm.runtime.allocator import keep_freed_memory


def label_maps(images: int, size: int, labels: int, seed: int) -> Tensor:
    """Piecewise constant label maps of nearest centres, as segmentations are: (images, size, size) uint8."""
    draws = torch.Generator().manual_seed(seed)
    centres = torch.rand(images, labels, 2, generator=draws) * size
    axis = torch.arange(size).float()
    pixels = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1).view(1, -1, 2)
    return torch.cdist(pixels, centres).argmin(dim=2).view(images, size, size).to(torch.uint8)


def scikit_learn_loop(true: Tensor, predicted: Tensor) -> Tensor:
    scores = []
    for truth, guess in zip(true.numpy(), predicted.numpy(), strict=True):
        seen = truth != 0
        scores.append(adjusted_rand_score(truth[seen], guess[seen]))
    return torch.tensor(scores, dtype=torch.float64)


def torchmetrics_loop(true: Tensor, predicted: Tensor) -> Tensor:
    from torchmetrics.functional.clustering import adjusted_rand_score as torchmetrics_score

    scores = []
    for truth, guess in zip(true.long(), predicted.long(), strict=True):
        seen = truth != 0
        scores.append(torchmetrics_score(guess[seen], truth[seen]))
    return torch.stack(scores).double()


def let_torchmetrics_import() -> None:
    """torchmetrics imports torchvision where it finds one; beside a CPU build of torch that lacks two operators."""
    try:
        importlib.import_module("torchmetrics")
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith(("torchmetrics", "torchvision"))]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")


def measure(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each way; every round runs all of them, so that a busy machine is busy for all."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, run in ways.items():
            start = time.process_time()
            run()
            if number:  # the first round warms up
                times[name].append((time.process_time() - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def compare_rand_index(maps: tuple[Tensor, Tensor], kinds: tuple[torch.dtype, torch.dtype], rounds: int) -> None:
    """F-ARI of true and predicted labels of these integer types."""
    true, predicted = maps[0].to(kinds[0]), maps[1].to(kinds[1])
    ours = adjusted_rand_index(true, predicted)
    assert (ours - scikit_learn_loop(true, predicted)).abs().max() < 1e-12
    assert (ours - torchmetrics_loop(true, predicted)).abs().max() < 1e-5  # torchmetrics counts in float32
    times = measure(
        {
            "slotnorm": lambda: adjusted_rand_index(true, predicted),
            "scikit-learn": lambda: scikit_learn_loop(true, predicted),
            "torchmetrics": lambda: torchmetrics_loop(true, predicted),
        },
        rounds,
    )
    names = " and ".join(str(kind).removeprefix("torch.") for kind in kinds)
    print(f"F-ARI of {len(true)} images of 128x128, 11 true and 21 predicted labels, {names}")
    print_ratios(times)


def print_ratios(times: dict[str, float]) -> None:
    for name, value in times.items():
        print(f"  {name:<28}{value:9.2f} ms   ratio {value / times['slotnorm']:6.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--default-allocator", action="store_true", help="without the command line's setting of glibc")
    arguments = parser.parse_args()
    rounds = arguments.rounds
    torch.set_num_threads(1)
    if not arguments.default_allocator:
        keep_freed_memory()
    let_torchmetrics_import()

    true, predicted = label_maps(64, 128, 11, 1), label_maps(64, 128, 21, 2)
    narrow, wide = torch.uint8, torch.int64
    for kinds in ((narrow, narrow), (torch.int32, torch.int32), (narrow, wide), (wide, wide)):
        compare_rand_index((true, predicted), kinds, rounds)

    masks = torch.rand(64, 21, 128, 128, generator=torch.Generator().manual_seed(3))
    times = measure({"slotnorm": lambda: labels_from_masks(masks), "argmax": lambda: masks.argmax(dim=1)}, rounds)
    print("labels from masks, 64 images of 128x128, 21 slots")
    print_ratios(times)

    draws = np.random.default_rng(4)
    predictions, targets = torch.as_tensor(draws.random((1280, 24, 19))), torch.as_tensor(draws.random((1280, 10, 19)))
    times = measure(
        {
            "mean_best_overlap, 64 images": lambda: mean_best_overlap(true, predicted),
            "mean_iou, 64 images": lambda: mean_iou(true, predicted),
            "average_precision, 1280 x 24": lambda: average_precision(predictions, targets),
        },
        rounds,
    )
    print("the others")
    for name, value in times.items():
        print(f"  {name:<28}{value:9.2f} ms")


if __name__ == "__main__":
    main()
