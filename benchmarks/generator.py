"""Generated scenes per second on one core, and what bounding boxes are worth: python benchmarks/generator.py.

Interleaved rounds in one process with one thread, in seconds of its own processor time. "whole picture" is the same
tracer testing every object at every sample; both draw the same bits, which is checked.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np

from slotnorm.config import SceneSpec
from slotnorm.data import raytracer
from slotnorm.data.generator import render
from slotnorm.runtime import allocator

CHUNK = 32
SPECS = {
    "clevr 32 px, 1-3 objects": (SceneSpec((1, 3), 32), 500),
    "clevr 64 px, 3-6 objects": (SceneSpec((3, 6), 64), 100),
    "clevr 64 px, 20-25 objects": (SceneSpec((20, 25), 64), None),
    "clevr 128 px, 3-10 objects": (SceneSpec((3, 10), 128), None),
    "flat 16 px, 2-4 discs": (SceneSpec((2, 4), 16, style="flat", shapes=("disc",), min_visible=6), None),
    "flat 64 px, 3-6 objects": (SceneSpec((3, 6), 64, style="flat"), None),
}


@contextmanager
def whole_picture() -> Iterator[None]:
    box = raytracer.box
    raytracer.box = lambda low, high, size: slice(0, size)
    try:
        yield
    finally:
        raytracer.box = box


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    allocator.keep_freed_memory()
    print(f"{'':28}{'scenes/s, best':>16}{'median':>10}{'to reach':>10}{'whole picture / boxes':>24}")
    for name, (spec, goal) in SPECS.items():
        ways = {"boxes": nullcontext, "whole": whole_picture} if spec.style == "clevr" else {"boxes": nullcontext}
        times: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds + 1):
            drawn = []
            for way, entered in ways.items():
                with entered():
                    start = time.process_time()
                    drawn.append(render(spec, range(number * CHUNK, (number + 1) * CHUNK)))
                    taken = time.process_time() - start
                if number:  # the first round warms up
                    times[way].append(taken)
            for other in drawn[1:]:
                assert all(np.array_equal(drawn[0][field], other[field]) for field in other)
        best, median = CHUNK / min(times["boxes"]), CHUNK / statistics.median(times["boxes"])
        ratios = [whole / boxes for whole, boxes in zip(times.get("whole", []), times["boxes"], strict=False)]
        gain = f"{statistics.median(ratios):.2f}" if ratios else "-"
        print(f"{name:28}{best:16.0f}{median:10.0f}{goal or '-':>10}{gain:>24}", flush=True)


if __name__ == "__main__":
    main()
