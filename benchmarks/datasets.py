"""From the published files to sets of scenes: python benchmarks/datasets.py [--scenes 400] [--clips 60].

Larger files are made by repeating the small ones of the tests; conversion runs from file to finished set on all cores.
Stages are given in processor time of one core, which other work on the machine does not change much.
"""

import argparse
import contextlib
import io
import os
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

from slotnorm.data import clevr, movi, tfrecord

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
CLEVR = FIXTURES / "clevr_with_masks_8.tfrecords"
MOVI = FIXTURES / "movi_c" / "movi_c-test.tfrecord-00000-of-00001"


def repeat_clevr(path: Path, times: int) -> Path:
    """One gzip stream with the 8 scenes of the fixture `times` over."""
    content = zlib.decompress(CLEVR.read_bytes(), wbits=31)
    packer = zlib.compressobj(wbits=31)
    with open(path, "wb") as file:
        for _ in range(times):
            file.write(packer.compress(content))
        file.write(packer.flush())
    return path


def measure(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock, and of processor time with that of child processes."""
    before, started = os.times(), time.perf_counter()
    with contextlib.redirect_stderr(io.StringIO()):
        action()
    seconds, after = time.perf_counter() - started, os.times()
    return seconds, sum(after[:4]) - sum(before[:4])


def say(what: str, count: int, unit: str, measured: tuple[float, float]) -> None:
    seconds, processor = measured
    print(f"{what:<58} {count / seconds:8.0f} {unit}/s  {1000 * processor / count:6.2f} ms processor time each")


def consume(records: Iterator[bytes]) -> None:
    for _ in records:
        pass


def parse_in(kind: type[ThreadPoolExecutor] | type[ProcessPoolExecutor], path: Path, workers: int) -> None:
    """What `clevr.convert` does before it writes, on any kind of pool."""
    prepare = clevr._Preparation("bilinear", 24)
    waiting = deque()
    with kind(workers) as pool:
        for record in tfrecord.records(path):
            waiting.append(pool.submit(prepare, ("here", record)))
            if len(waiting) > 2 * workers:
                waiting.popleft().result()
        while waiting:
            waiting.popleft().result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=400, help="of CLEVR, a multiple of 8")
    parser.add_argument("--clips", type=int, default=60, help="of MOVi, a multiple of 2")
    options = parser.parse_args()
    workers = min(8, os.cpu_count() or 1)
    print(f"{workers} workers on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        scenes = options.scenes // 8 * 8
        path = repeat_clevr(root / "clevr.tfrecords", scenes // 8)
        fast, standard = tfrecord.inflate_library, zlib
        for name, library in ((fast.__name__, fast), ("zlib", standard)):
            tfrecord.inflate_library = library
            say(
                f"CLEVR: unpack and check with {name}",
                scenes,
                "scenes",
                measure(lambda: consume(tfrecord.records(path))),
            )
        tfrecord.inflate_library = fast
        for name, kind in (("threads", ThreadPoolExecutor), ("processes", ProcessPoolExecutor)):
            measured = measure(lambda: parse_in(kind, path, workers))  # noqa: B023
            say(f"CLEVR: read and parse on {name}", scenes, "scenes", measured)
        say("CLEVR: file to finished set", scenes, "scenes", measure(lambda: clevr.convert(path, root / "clevr")))

        shards = root / "shards"
        shards.mkdir()
        (shards / MOVI.name).write_bytes(MOVI.read_bytes() * (options.clips // 2))
        frames = options.clips // 2 * 2 * 24
        for number in sorted({1, workers}):
            out = root / f"movi{number}"
            measured = measure(lambda: movi.convert(shards, "c", "test", out, workers=number))  # noqa: B023
            say(f"MOVi: files to finished set, {number} processes", frames, "frames", measured)


if __name__ == "__main__":
    main()
