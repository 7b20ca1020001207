"""This checkout beside another one: has a change of the code made anything slower?

    python benchmarks/versions.py --before OTHER/src [--rounds 31] [--only features]

A process with one thread for each folder of sources; in every round each does every piece of work once, in turns and in
an order drawn anew, and takes its processor time. Only names that the package has always had are used, and both have
the same allocator settings. The table has the median of the rounds' ratios with quartiles, above 1 where this checkout
is faster.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 31)}
REPETITIONS = {"layer, N 256": 5, "labels": 5}
"""How often work is done for one measurement, by the beginning of its name: some takes only milliseconds."""

Work = Callable[[], object]


def make_work(folder: str) -> dict[str, Work]:
    """What is measured, with the package that this process imports."""
    import numpy as np
    import torch

    import slotnorm as sn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    work: dict[str, Work] = {}

    def layer(tokens: int, dim: int, slots: int, batch: int) -> Work:
        attend = sn.SlotAttention(dim, normalization="weighted_mean")
        inputs, noise = torch.randn(batch, tokens, dim, requires_grad=True), torch.randn(batch, slots, dim)
        return lambda: attend(inputs, noise=noise)[0].sum().backward()

    for sizes in ((256, 48, 5, 4), (256, 64, 7, 32), (784, 128, 11, 4), (16384, 64, 7, 2)):
        work["layer, N {}, D {}, K {}, batch {}".format(*sizes)] = layer(*sizes)

    def training_step(model: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> Work:
        optimizer = torch.optim.Adam(model.parameters(), fused=True)

        def step() -> None:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

        return step

    images = sn.models.ImageAutoencoder(32, 16, 32, 64, strides=(2, 1), decoder_strides=(2, 2))
    features = sn.models.FeatureAutoencoder(256, 64, 32, 128, 64)
    properties = sn.models.SetPredictor(32, 16, 32, hidden=64, strides=(2, 1))
    pictures, tokens, targets = torch.rand(8, 3, 32, 32), torch.randn(8, 256, 64), torch.rand(8, 7, 19)
    slots = torch.randn(8, 7, 32)
    work["images, training step"] = training_step(
        images, lambda: (images(pictures, slots=slots).reconstruction - pictures).square().mean()
    )
    work["features, training step"] = training_step(
        features, lambda: (features(tokens, slots=slots).reconstruction - tokens).square().mean()
    )
    work["properties, training step"] = training_step(
        properties, lambda: sn.models.matching_loss(properties(pictures, slots=slots).predictions, targets)
    )

    draws = np.random.default_rng(0)
    labels = draws.integers(0, 4, (64, 4, 4), dtype=np.uint8).repeat(8, 1).repeat(8, 2)
    fields = {"images": ((32, 32, 3), "uint8"), "labels": ((32, 32), "uint8")}
    with sn.data.Builder(folder, fields, 64, {"made for": "benchmarks"}) as builder:
        builder.append(
            images=draws.integers(0, 256, (64, 32, 32, 3), dtype=np.uint8), labels=labels, counts=np.full(64, 3)
        )
        scenes = builder.finish()
    work["evaluation, 64 scenes, K 5, 10, 15"] = lambda: sn.score(images, scenes, [5, 10, 15], 3)

    true = torch.randint(0, 7, (64, 16, 16)).repeat_interleave(8, 1).repeat_interleave(8, 2)
    predicted = true.roll(5, 1)
    masks = torch.nn.functional.one_hot(predicted, 7).movedim(3, 1).float()
    narrow = true.byte(), predicted.byte()
    work["labels: F-ARI, int64"] = lambda: sn.adjusted_rand_index(true, predicted, ignore_background=True)
    work["labels: F-ARI, uint8"] = lambda: sn.adjusted_rand_index(*narrow, ignore_background=True)
    work["labels: mBO"] = lambda: sn.mean_best_overlap(true, predicted)
    work["labels: mIoU"] = lambda: sn.mean_iou(true, predicted)
    work["labels: from masks"] = lambda: sn.labels_from_masks(masks)
    return work


def answer() -> None:
    """In the process of a folder of sources: names of work come in, the seconds that it took go out."""
    with tempfile.TemporaryDirectory() as folder:
        work = make_work(str(Path(folder) / "scenes"))
        print("|".join(work), flush=True)
        for line in sys.stdin:
            name = line.strip()
            started = time.process_time()
            for _ in range(repetitions(name)):
                work[name]()
            print(time.process_time() - started, flush=True)


def repetitions(name: str) -> int:
    return next((number for start, number in REPETITIONS.items() if name.startswith(start)), 1)


class Version:
    """The process of a folder of sources."""

    def __init__(self, source: Path) -> None:
        environment = {**os.environ, **KEEP_FREED_MEMORY, "PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--answer"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.names = self._read().split("|")

    def seconds(self, name: str) -> float:
        """Of processor time that the work takes."""
        assert self.process.stdin
        print(name, file=self.process.stdin, flush=True)
        return float(self._read())

    def _read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the folder src of another checkout")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--only", default="", help="a part of the work's name")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        answer()
        return
    if arguments.before is None:
        parser.error("--before is missing: the folder src of the checkout to compare with")
    versions = {"before": Version(arguments.before), "now": Version(Path(__file__).parents[1] / "src")}
    names = [name for name in versions["now"].names if arguments.only in name]
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for number in range(arguments.rounds + 2):  # two that warm up
        for name in random.sample(names, len(names)):
            seconds = {who: versions[who].seconds(name) for who in random.sample(list(versions), 2)}
            if number > 1:
                ratios[name].append(seconds["before"] / seconds["now"])
    for version in versions.values():
        version.process.communicate()
    print("| work | before / now |\n|---|---|")
    for name in names:
        low, middle, high = statistics.quantiles(ratios[name], n=4)
        print(f"| {name} | {middle:.2f} ({low:.2f}-{high:.2f}) |")


if __name__ == "__main__":
    main()
