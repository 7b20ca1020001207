"""MOVi-A to MOVi-E -> Scenes: every frame of every clip is a scene, clips stay together and in the order of the shards.

The published files are TFRecord shards as TensorFlow Datasets writes them; a record is a clip: `video` and
`segmentations` are lists of PNG files, `metadata/num_instances` counts the objects of the clip, seen or not. The fields
`clip` and `frame` number the clips of the split and the frames of a clip.
"""

import io
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from slotnorm.config import Protocol
from slotnorm.data.builder import Builder
from slotnorm.data.cache import set_folder
from slotnorm.data.conversion import check_space, identity, in_processes
from slotnorm.data.resize import method_of, resize
from slotnorm.data.scenes import Scenes
from slotnorm.data.tfrecord import Example, RecordError, records
from slotnorm.data.web import whole_number
from slotnorm.errors import UserError, nearest
from slotnorm.runtime.progress import Progress
from slotnorm.storage.seals import read_json

Variant = Literal["a", "b", "c", "d", "e"]
Split = Literal["train", "val", "test"]

SIZE = 224  # what the ViT takes
MAX_DESCRIPTION = 1 << 24  # bytes of dataset_info.json
PUBLISHED_SPLITS = {"train": "train", "val": "validation", "test": "test"}  # our name -> that of the files

_MOST_FRAMES = 256  # of a clip; MOVi's have 24
_MOST_CLIP_BYTES = 1 << 28  # of a clip's frames at the size that was asked for
_LARGEST_FRAME = 1024  # pixels; MOVi is published at 128, 256 and 512
_METHOD = method_of("movi-c", "paper")  # of every variant and protocol
_PNG = b"\x89PNG\r\n\x1a\n"
_SHARD = re.compile(r"(?P<set>.+)\.tfrecord-(?P<number>\d{5})-of-(?P<total>\d{5})")


@dataclass(frozen=True)
class Clip:
    """One record, as far as it is used: views of a record would keep all of its 20 MB alive."""

    where: str
    number: int
    objects: int
    video: list[bytes]
    segmentations: list[bytes]
    record_bytes: int


def convert(
    source: str | Path,
    variant: Variant,
    split: Split,
    out: str | Path | None = None,
    protocol: Protocol = "paper",
    size: int = SIZE,
    workers: int | None = None,
) -> Scenes:
    """Convert the shards of a split in the folder `source` into a set; an interrupted conversion continues.

    Images are scaled to `size` bicubically and rounded, segmentations by the nearest pixel (see `resize`). With the
    size of the files (256) images stay as they are: `data features` can then normalise before scaling, as the authors.
    """
    if split not in PUBLISHED_SPLITS:
        raise UserError(f"MOVi has no split {split!r}; {nearest(split, PUBLISHED_SPLITS)}")
    if not 1 <= size <= _LARGEST_FRAME:
        raise UserError(f"size {size} cannot be made: choose 1 to {_LARGEST_FRAME} pixels")
    shards = find_shards(Path(source), variant, split)
    directory = set_folder(f"movi-{variant}", split, protocol) if out is None else Path(out)
    lengths = _published_lengths(shards, split)
    first = next(_clips(shards[:1], None, 0))
    frames = len(first.video)
    if frames * size * size * 4 > _MOST_CLIP_BYTES:
        raise UserError(f"clips of {frames} frames at size {size} take over {_MOST_CLIP_BYTES >> 20} MiB; lower --size")
    fields: dict[str, tuple[tuple[int, ...], str]] = {
        "images": ((size, size, 3), "uint8"), "labels": ((size, size), "uint8"),
        "clip": ((), "int32"), "frame": ((), "uint16"),
    }  # fmt: skip
    provenance = {"dataset": f"movi-{variant}", "split": split, "frames": frames, "source": identity(*shards)}
    packed = sum(shard.stat().st_size for shard in shards)
    expected = frames * (sum(lengths) if lengths else max(1, packed // first.record_bytes))
    with Builder(directory, fields, None, provenance, protocol) as builder:
        if not builder.finished:
            check_space(directory, (expected - builder.done) * size * size * 4)
            clips = _clips(shards, lengths, builder.done // frames)
            with Progress("frames", expected, done=builder.done) as progress:
                for chunk in in_processes(partial(prepare, frames=frames, size=size), clips, workers):
                    builder.append(**chunk)
                    if builder.done > progress.total:
                        progress.expect(builder.done)
                    progress.advance(frames)
                progress.expect(builder.done)
        return builder.finish()


def find_shards(source: Path, variant: str, split: str) -> list[Path]:
    """All shards of a split, in order, from the folder or the version folder below it; missing ones are named."""
    name = f"movi_{variant}-{PUBLISHED_SPLITS[split]}"
    below = [source, *sorted(path for path in source.glob(f"movi_{variant}/*/*") if path.is_dir())]
    for folder in below:
        shards = {
            match.group(): match for path in folder.glob(f"{name}.tfrecord-*") if (match := _SHARD.fullmatch(path.name))
        }
        if shards:
            break
    else:
        raise UserError(
            f"{source} holds no {name}.tfrecord-NNNNN-of-NNNNN; give the folder of MOVi-{variant.upper()}'s shards"
        )
    totals = {match["total"] for match in shards.values()}
    if len(totals) > 1:
        raise UserError(f"{folder} mixes shards of {' and '.join(sorted(totals))} files; keep those of one set only")
    total = totals.pop()
    wanted = [f"{name}.tfrecord-{number:05}-of-{total}" for number in range(int(total))]
    missing = [file for file in wanted if file not in shards]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise UserError(
            f"{folder} misses {len(missing)} of {int(total)} shards: {', '.join(missing[:5])}{more}; download them"
        )
    return [folder / file for file in wanted]


def prepare(clip: Clip, frames: int, size: int) -> dict[str, NDArray[Any]]:
    """The frames of a clip as a chunk of a set: images (T, size, size, 3), labels (T, size, size), and (T,) numbers."""
    lists = {"video": clip.video, "segmentations": clip.segmentations}
    for name, pictures in lists.items():
        if len(pictures) != frames:
            raise RecordError(f"{clip.where}: {name!r} has {len(pictures)} frames, and the first clip has {frames}")
    images = np.empty((frames, size, size, 3), np.uint8)
    labels = np.empty((frames, size, size), np.uint8)
    for frame, (picture, segmentation) in enumerate(zip(clip.video, clip.segmentations, strict=True)):
        where = f"{clip.where}: clip {clip.number}, frame {frame}"
        image, label_map = decode_png(picture, "RGB", where), decode_png(segmentation, "L", where)
        if image.shape[:2] != label_map.shape:
            sizes = [" x ".join(map(str, array.shape[:2])) for array in (label_map, image)]
            raise RecordError(f"{where}: the segmentation has {sizes[0]} pixels, the picture {sizes[1]}")
        images[frame] = resize(image, size, _METHOD)
        labels[frame] = resize(label_map, size, "nearest")
    return {
        "images": images,
        "labels": labels,
        "clip": np.full(frames, clip.number),
        "frame": np.arange(frames),
        "counts": np.full(frames, clip.objects),
    }


def decode_png(content: bytes, mode: Literal["RGB", "L"], where: str) -> NDArray[np.uint8]:
    """(H, W, 3) for mode RGB, (H, W) for L; size and the checksum of every chunk are looked at before decoding."""
    problem = _png_problem(content)
    if problem is None:
        try:
            with Image.open(io.BytesIO(content)) as picture:
                if picture.mode == mode:
                    return np.asarray(picture)
                problem = f"has colours of mode {picture.mode}, not {mode}"
        except (OSError, SyntaxError, ValueError, EOFError, zlib.error, struct.error) as error:
            problem = f"cannot be decoded ({error})"
    raise RecordError(f"{where}: the PNG {problem}; delete the file and download it again")


def _png_problem(content: bytes) -> str | None:
    """What is wrong with a PNG file before a pixel is decoded, or None."""
    if content[:8] != _PNG or content[12:16] != b"IHDR" or len(content) < 33:
        return "does not begin like one"
    height, width = struct.unpack(">II", content[16:24])
    if not 1 <= max(height, width) <= _LARGEST_FRAME:
        return f"claims {width} x {height} pixels, and no MOVi frame has more than {_LARGEST_FRAME}"
    at = 8
    while at < len(content):
        if len(content) - at < 12:
            return "is cut short"
        (length,) = struct.unpack_from(">I", content, at)
        end = at + 12 + length
        if end > len(content):
            return "is cut short"
        if zlib.crc32(content[at + 4 : end - 4]) != struct.unpack_from(">I", content, end - 4)[0]:
            return "is damaged: a checksum is wrong"
        at = end
    return None


def _clips(shards: list[Path], lengths: list[int] | None, start: int) -> Iterator[Clip]:
    """The clips of all shards from number `start` on; each shard must hold as many as `lengths` says."""
    number = 0
    for shard_number, shard in enumerate(shards):
        in_shard = 0
        for in_shard, record in enumerate(records(shard), 1):
            if number >= start:
                yield _read_clip(record, f"{shard}, record {in_shard - 1}", number)
            number += 1
        if lengths is not None and in_shard != lengths[shard_number]:
            problem = f"{shard} holds {in_shard} clips, and dataset_info.json beside it says {lengths[shard_number]}"
            raise RecordError(f"{problem}: it is cut short; delete it and download it again")


def _read_clip(record: bytes, where: str, number: int) -> Clip:
    example = Example(record, where)
    objects = int(example.integers("metadata/num_instances", 1)[0])
    if not 0 <= objects < 256:
        raise RecordError(f"{where}: 'metadata/num_instances' is {objects}: another dataset?")
    video, segmentations = (
        [bytes(picture) for picture in example.strings(name, _MOST_FRAMES)] for name in ("video", "segmentations")
    )
    if not video:
        raise RecordError(f"{where}: 'video' has no frames: another dataset?")
    return Clip(where, number, objects, video, segmentations, len(record))


def _published_lengths(shards: list[Path], split: str) -> list[int] | None:
    """How many clips each shard has, where TensorFlow Datasets' own description lies beside the shards."""
    path = shards[0].parent / "dataset_info.json"
    if not path.exists():
        return None
    splits = shard_lengths(read_json(path, MAX_DESCRIPTION), path)
    lengths = splits.get(PUBLISHED_SPLITS[split], [])
    return lengths if len(lengths) == len(shards) else None


def shard_lengths(description: Any, path: Path | str) -> dict[str, list[int]]:
    """Split -> clips of each shard, from a dataset_info.json of TensorFlow Datasets."""
    try:
        lengths = {
            str(split["name"]): [whole_number(length) for length in split["shardLengths"]]
            for split in description["splits"]
        }
    except (KeyError, TypeError):
        lengths = {"": [None]}
    known = {name: [length for length in shards if length is not None] for name, shards in lengths.items()}
    if known != lengths:
        raise UserError(f"{path} does not list the shards of splits as TensorFlow Datasets does; fetch it again")
    return known
