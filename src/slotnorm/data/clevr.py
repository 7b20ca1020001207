"""CLEVR with masks -> Scenes: crop, resize, split by file order, all properties kept.

The published file has 100,000 scenes of 240 x 320 pixels in one gzip TFRecord; each has 11 entries, the background
first. Codes of properties are the file's own; their names, as the pictures show them, go to the manifest.
"""

import itertools
import json
import logging
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from slotnorm.config import SPLITS, Protocol
from slotnorm.data.builder import Builder
from slotnorm.data.cache import set_folder
from slotnorm.data.conversion import check_space, identity, in_threads, number_of_workers, stack
from slotnorm.data.resize import Method, method_of, nearest_positions, resize
from slotnorm.data.scenes import Scenes
from slotnorm.data.tfrecord import Example, RecordError, records
from slotnorm.errors import UserError, nearest
from slotnorm.experiments import TEST_SCENES, evaluation_sets
from slotnorm.runtime.progress import Progress
from slotnorm.storage import files

_log = logging.getLogger(__name__)

Crop = Literal["centre", "slot-attention-2020"]

SIZES = (70_000, 15_000, 15_000)  # of train, val and test, in file order
PROPERTIES = {
    "shape": ("cube", "cylinder", "sphere"),
    "size": ("small", "large"),
    "material": ("rubber", "metal"),
    "color": ("red", "blue", "green", "brown", "gray", "cyan", "purple", "yellow"),
}

_ENTRIES, _HEIGHT, _WIDTH = 11, 240, 320
_NUMBERS = ("x", "y", "z", "rotation")
_TOP = {"centre": 24, "slot-attention-2020": 29}  # first row of the window
_LEFT, _WINDOW, _SIZE = 64, 192, 128
_CHUNK = 16
_SCENE_BYTES, _PACKED_SCENE_BYTES = 3_226_296, 75_000  # of a record, unpacked and (about) packed
_LARGEST_RECORD = 4 << 20  # 17 wait for 8 threads, so one may not be much larger than a scene


def labels_of(masks: NDArray[np.uint8], where: str) -> NDArray[np.uint8]:
    """(11, h, w) masks of 0 and 255, background first -> (h, w) number of the first that covers the pixel, else 0."""
    covered = masks != 0
    if not (covered == (masks == 255)).all():
        raise RecordError(f"{where}: 'mask' has other values than 0 and 255: another dataset?")
    labels = np.zeros(masks.shape[1:], np.uint8)
    for entry in reversed(range(_ENTRIES)):
        np.copyto(labels, entry, where=covered[entry])
    return labels


def read_properties(example: Example, where: str) -> dict[str, NDArray[Any]]:
    """What a scene says of its objects, entry j for label j + 1; `counts` are all objects, also those out of sight."""
    visibility = example.floats("visibility", _ENTRIES)
    if not np.isin(visibility, (0, 1)).all():
        raise RecordError(f"{where}: 'visibility' is not 0 or 1 throughout: another dataset?")
    properties: dict[str, NDArray[Any]] = {"counts": np.asarray(int(visibility[1:].sum())), "visibility": visibility}
    for name, values in PROPERTIES.items():
        codes = example.single_bytes(name, _ENTRIES)
        if codes.max() > len(values):
            raise RecordError(f"{where}: {name!r} has the code {codes.max()}, and {len(values)} are known")
        properties[name] = codes[1:]
    for name in _NUMBERS:
        properties[name] = example.floats(name, _ENTRIES)[1:]
    properties["pixel_coords"] = example.floats("pixel_coords", _ENTRIES * 3).reshape(_ENTRIES, 3)[1:]
    return properties


def convert(
    source: str | Path,
    out: str | Path | None = None,
    protocol: Protocol = "paper",
    crop: Crop = "centre",
    splits: tuple[int, int, int] = SIZES,
    workers: int | None = None,
) -> dict[str, Scenes]:
    """Convert the file into sets train, val and test below `out`; an interrupted conversion continues where it was.

    `splits` are the numbers of scenes of each, in file order; a shorter file fills the first ones, and the empty ones
    are left out of the result.
    """
    source = Path(source)
    for word, known in ((protocol, get_args(Protocol)), (crop, _TOP)):
        if word not in known:
            raise UserError(f"{word!r} is neither a protocol nor a crop of CLEVR; {nearest(word, known)}")
    if min(splits) < 0 or not any(splits):
        raise UserError(f"splits {splits} must be numbers of scenes, not all of them 0")
    folder = set_folder("clevr", "train", protocol).parent if out is None else Path(out)
    provenance = {"dataset": "clevr", "source": identity(source), "crop": crop, "splits": list(splits)}
    scenes: dict[str, Scenes] = {}
    position = 0
    prepare = _Preparation(method_of("clevr", protocol), _TOP[crop])
    with _Stream(source, prepare, folder, sum(splits), workers) as stream:
        for name, size in zip(SPLITS, splits, strict=True):
            if size == 0:
                continue
            about = {**provenance, "split": name}
            with Builder(folder / name, _fields(), None, about, protocol, PROPERTIES) as builder:
                while not builder.finished and builder.done < size:
                    chunk = stream.take(position + builder.done, min(_CHUNK, size - builder.done))
                    if not chunk:
                        break
                    builder.append(**stack(chunk))
                position += builder.done
                if builder.done:
                    scenes[name] = builder.finish()
            if builder.done == 0:  # the file ended before this split: a set without scenes is not a set
                shutil.rmtree(builder.directory)
            if builder.done < size:
                break
        stream.check_end()
    if "test" in scenes:
        write_test_sets(scenes["test"], folder)
    return scenes


def write_test_sets(test: Scenes, folder: Path) -> None:
    """`clevr6.json` and `clevr10.json` in `folder`: the test scenes with so many objects that evaluation uses."""
    for known in evaluation_sets().values():
        most = known.objects[1]
        if known.dataset == "clevr" and (test.counts <= most).any():
            chosen = test.filter(max_objects=most).sample(TEST_SCENES)
            manifest = {
                "dataset": known.name, "split": "test", "max_objects": most, "order": "SHA-256 of the scene's index",
                "fingerprint": test.fingerprint, "scenes": len(chosen), "indices": chosen.index.tolist(),
            }  # fmt: skip
            files.write(folder / f"{known.name}.json", json.dumps(manifest).encode() + b"\n")


class _Preparation:
    """(where, record) -> one scene as it goes into a set: cut to the window, scaled to 128 x 128, with properties."""

    def __init__(self, method: Method, top: int) -> None:
        self._method = method
        self._window = (slice(top, top + _WINDOW), slice(_LEFT, _LEFT + _WINDOW))
        self._rows = top + nearest_positions(_WINDOW, _SIZE)
        self._columns = _LEFT + nearest_positions(_WINDOW, _SIZE)

    def __call__(self, numbered: tuple[str, bytes]) -> dict[str, NDArray[Any]]:
        where, record = numbered
        example = Example(record, where)
        return {
            "images": resize(np.ascontiguousarray(_image(example)[self._window]), _SIZE, self._method),
            "labels": labels_of(_masks(example)[:, self._rows][:, :, self._columns], where),
            **read_properties(example, where),
        }


class _Stream:
    """The scenes of a file, prepared on several threads, with a bar; `take` begins anywhere and then goes on."""

    def __init__(self, source: Path, prepare: _Preparation, folder: Path, most: int, workers: int | None) -> None:
        self._source, self._prepare, self._folder, self._most, self._workers = source, prepare, folder, most, workers
        self._scenes: Generator[dict[str, NDArray[Any]], None, None] | None = None
        self._progress = Progress("scenes", 0)

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)
        if self._scenes is not None:
            self._scenes.close()

    def take(self, position: int, count: int) -> list[dict[str, NDArray[Any]]]:
        """The `count` scenes from `position` on, fewer at the file's end; positions after the first go without gaps."""
        if self._scenes is None:
            expected = max(position, min(self._most, _estimate(self._source)))
            check_space(self._folder, (expected - position) * _SIZE * _SIZE * 4)
            self._scenes = in_threads(self._prepare, self._numbered(position), number_of_workers(self._workers))
            self._progress = Progress("scenes", expected, done=position).__enter__()
        taken = list(itertools.islice(self._scenes, count))
        at_end = len(taken) < count
        if at_end or position + len(taken) > self._progress.total:
            self._progress.expect(position + len(taken))
        self._progress.advance(len(taken))
        return taken

    def check_end(self) -> None:
        """Read on after the last scene: there the file's own checksum is checked, or more scenes come."""
        if self._scenes is not None and next(self._scenes, None) is not None:
            _log.info(f"{self._source} goes on after these scenes; the rest is not used")

    def _numbered(self, start: int) -> Iterator[tuple[str, bytes]]:
        for number, record in enumerate(records(self._source, start, _LARGEST_RECORD), start):
            yield f"{self._source}, record {number}", record


def _estimate(source: Path) -> int:
    """About how many scenes a file has: their number is written nowhere."""
    with files.open_to_read(source) as file:
        packed = file.read(2) == b"\x1f\x8b"
    return source.stat().st_size // (_PACKED_SCENE_BYTES if packed else _SCENE_BYTES)


def _image(example: Example) -> NDArray[np.uint8]:
    return example.single_bytes("image", _HEIGHT * _WIDTH * 3).reshape(_HEIGHT, _WIDTH, 3)


def _masks(example: Example) -> NDArray[np.uint8]:
    return example.single_bytes("mask", _ENTRIES * _HEIGHT * _WIDTH).reshape(_ENTRIES, _HEIGHT, _WIDTH)


def _fields() -> dict[str, tuple[tuple[int, ...], str]]:
    objects = _ENTRIES - 1
    return {
        "images": ((_SIZE, _SIZE, 3), "uint8"),
        "labels": ((_SIZE, _SIZE), "uint8"),
        "visibility": ((_ENTRIES,), "float32"),
        **dict.fromkeys(PROPERTIES, ((objects,), "uint8")),
        **dict.fromkeys(_NUMBERS, ((objects,), "float32")),
        "pixel_coords": ((objects, 3), "float32"),
    }
