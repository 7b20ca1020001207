"""Time of opening a set, of its checksums, and of training batches, as ratios to the usual ways, on one thread.

    python benchmarks/data.py [--rounds 30] [--scenes 4000] [--size 128] [--batch 64]

A batch is uint8 images, mirrored at random, from a warm cache. Against it stand, on the same images: a DataLoader that
decodes PNG files with pillow, and a DataLoader over an array in memory whose samples are mirrored pixel by pixel and
collated. All of them run in every round, back to back; times are the processor's, medians over the rounds, and a ratio
above 1 says that slotnorm is faster.
"""

import argparse
import hashlib
import itertools
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler

from slotnorm.data import Builder, Scenes
from slotnorm.data.batches import batches, to_images
from slotnorm.data.manifest import checksum


def build(directory: Path, num: int, size: int) -> Scenes:
    """Smooth colour gradients with some noise: they compress about as well as rendered scenes do."""
    random = np.random.default_rng(0)
    ramp = np.linspace(0, 200, size)
    fields = {"images": ((size, size, 3), "uint8"), "labels": ((size, size), "uint8")}
    with Builder(directory, fields, num=num) as builder:
        while builder.done < num:
            many = min(100, num - builder.done)
            slopes = random.uniform(0.2, 1, (2, many, 1, 1, 3))
            images = ramp[:, None, None] * slopes[0] / 2 + ramp[None, :, None] * slopes[1] / 2
            images = images + random.integers(0, 6, (many, size, size, 1))
            labels = random.integers(0, 7, (many, size, size), dtype=np.uint8)
            builder.append(images=images.astype(np.uint8), labels=labels, counts=np.full(many, 6))
        return builder.finish()


class PngFiles(Dataset[torch.Tensor]):
    """Decodes on the fly."""

    def __init__(self, scenes: Scenes, folder: Path) -> None:
        folder.mkdir()
        self.paths = [folder / f"{number}.png" for number in range(min(len(scenes), 1000))]
        for path, image in zip(self.paths, scenes.images, strict=False):
            Image.fromarray(image).save(path)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> torch.Tensor:
        image = torch.from_numpy(np.array(Image.open(self.paths[number])))
        return image.flip(1) if torch.rand(()) < 0.5 else image


class InMemory(Dataset[torch.Tensor]):
    """Holds all images as one array."""

    def __init__(self, scenes: Scenes) -> None:
        self.images = torch.from_numpy(np.asarray(scenes.images))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> torch.Tensor:
        image = self.images[number]
        return image.flip(1) if torch.rand(()) < 0.5 else image


def loader(dataset: Dataset[torch.Tensor], batch: int) -> Iterator[torch.Tensor]:
    endless = RandomSampler(dataset, replacement=True, num_samples=10**9)
    return iter(DataLoader(dataset, batch_size=batch, sampler=endless))


def milliseconds(work: Callable[[], object]) -> float:
    """Processor time of this thread: on a shared machine the clock on the wall also counts what others do."""
    start = time.thread_time()
    work()
    return 1e3 * (time.thread_time() - start)


def measure(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, all of them in every round."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            times[name].append(milliseconds(work))
    return {name: statistics.median(values) for name, values in times.items()}


def show(title: str, medians: dict[str, float]) -> None:
    ours = next(iter(medians.values()))
    print(f"\n{title}\n" + "-" * len(title))
    for name, value in medians.items():
        print(f"{name:<44} {value:9.3f} ms   ratio {value / ours:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--scenes", type=int, default=4000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        scenes = build(root / "set", options.scenes, options.size)
        small = build(root / "small", max(1, options.scenes // 40), options.size)
        for field in scenes.fields:
            scenes.verify(field)

        opening = {
            f"open {len(part)} scenes": (lambda part=part: Scenes.open(part.directory)) for part in (scenes, small)
        }
        show("Opening", measure(opening, options.rounds))

        block = np.asarray(scenes.images[:16]).reshape(-1)
        show(
            f"Checksum of {block.nbytes / 1e6:.1f} MB",
            measure(
                {
                    "CRC-32C (a block's first read)": lambda: checksum(block),
                    "zlib.crc32": lambda: zlib.crc32(block),
                    "SHA-256 (data check)": lambda: hashlib.sha256(block).digest(),
                },
                options.rounds,
            ),
        )

        ours = batches(scenes, seed=0, batch_size=options.batch, flip=True)
        masked = batches(scenes, seed=0, batch_size=options.batch, flip=True, fields=("images", "labels"))
        plain = batches(scenes, seed=0, batch_size=options.batch)
        memory = loader(InMemory(scenes), options.batch)
        files = loader(PngFiles(scenes, root / "png"), options.batch)
        contestants = {
            "slotnorm": lambda: next(ours),
            "slotnorm, with labels": lambda: next(masked),
            "slotnorm, not mirrored": lambda: next(plain),
            "DataLoader, array in memory": lambda: next(memory),
            "DataLoader, PNG files": lambda: next(files),
        }
        for work in itertools.chain(contestants.values(), contestants.values()):
            work()
        show(
            f"A batch of {options.batch} images, {options.size} x {options.size}", measure(contestants, options.rounds)
        )

        images = next(ours).images
        assert images is not None
        show("uint8 to float in [-1, 1], on the CPU", measure({"to_images": lambda: to_images(images)}, options.rounds))


if __name__ == "__main__":
    main()
