"""`sn.segment` of many pictures, one of them large: time and memory, with the most slots that there are.

python benchmarks/many_pictures.py            # 499 files of 160x120 and one of 8000x8000, 256 slots, toy-batch_norm

The pictures are drawn first, in a temporary folder; that is not counted.
"""

import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import slotnorm as sn

SMALL, NUM, LARGE, SLOTS = (120, 160), 499, 8000, 256


def draw(folder: Path) -> list[Path]:
    """The files: noise in blocks, which compresses as photographs do not, but is decoded as they are."""
    random = np.random.default_rng(0)
    paths = []
    for number in range(NUM):
        paths.append(folder / f"{number:03}.png")
        Image.fromarray(random.integers(0, 256, (*SMALL, 3), dtype=np.uint8)).save(paths[-1])
    blocks = random.integers(0, 256, (100, 100, 3), dtype=np.uint8).repeat(LARGE // 100, 0).repeat(LARGE // 100, 1)
    paths.insert(NUM // 2, folder / "large.png")
    Image.fromarray(blocks).save(paths[NUM // 2], compress_level=1)
    return paths


def peak() -> float:
    """Megabytes of this process at its largest."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = draw(Path(folder))
        first = sn.segment(paths[:1], "toy-batch_norm", slots=SLOTS)
        assert first[0].labels.shape == SMALL
        print(f"one small picture, and drawing all: {peak():.0f} MB", flush=True)
        started = before = time.process_time()
        for made in sn.segment(paths, "toy-batch_norm", slots=SLOTS):
            now = time.process_time()
            if made.labels.shape != SMALL:
                print(f"the large one: {now - before:.0f} s of CPU time, {peak():.0f} MB", flush=True)
            before = now
        print(f"{len(paths)} pictures: {before - started:.0f} s of CPU time, {peak():.0f} MB")
