"""Features of a frozen network for a set of scenes, computed once: half precision, memory-mapped, resumable.

The new set holds the features and, at the size that the network sees, the images and label maps; counts and properties
are the source's. Features are float32 until they are stored.
"""

import hashlib
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slotnorm.data.backbones import FrozenBackbone
from slotnorm.data.builder import Builder
from slotnorm.data.cache import cache_folder, set_folder
from slotnorm.data.resize import resize
from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError
from slotnorm.runtime.devices import choose_device
from slotnorm.runtime.progress import Progress
from slotnorm.runtime.shards import Shard

_log = logging.getLogger(__name__)

SHARD = "set"  # below a shard's folder, which also has its log
_SHARDS = ".shards"
SUFFIX = "-features"  # NAME-features is the set of features of the set NAME


def compute(
    scenes: Scenes,
    backbone: FrozenBackbone,
    out: str | Path | None = None,
    device: str | torch.device = "auto",
    batch_size: int = 32,
    shard: Shard | None = None,
) -> Scenes:
    """Build the set of `backbone`'s features of all `scenes` in `out` (default: NAME-features beside the set NAME).

    Of a `shard` only, it is a set of its own beside it (`join_shards`).

    How much it will be is said first. An interrupted computation continues with the batch it was in.
    """
    if scenes.images is None:
        raise UserError(f"{scenes.directory} holds no images to compute features of")
    if batch_size < 1:
        raise UserError(f"batch size {batch_size} must be positive")
    directory = default_folder(scenes) if out is None else Path(out)
    chosen = choose_device(device)
    fields = _fields(scenes, backbone)
    positions, provenance = np.arange(len(scenes)), described(_source(scenes), backbone)
    if shard is not None:
        directory, provenance = shard_folder(directory, shard) / SHARD, {**provenance, "shard": str(shard)}
        positions = shard.positions(len(scenes), batch_size)
        require_scenes(len(scenes), shard.of, batch_size)
    _log.info(f"{estimate(len(positions), fields)} in {directory}")
    protocol, names = scenes.manifest["protocol"], scenes.manifest["properties"]
    with Builder(directory, fields, len(positions), provenance, protocol, names) as builder:
        if not builder.finished:
            backbone.to(chosen)
            with Progress("scenes", len(positions), done=builder.done) as progress:
                for start in range(builder.done, len(positions), batch_size):
                    batch = positions[start : start + batch_size]
                    builder.append(**_chunk(scenes, backbone, batch))
                    progress.advance(len(batch))
        return builder.finish()


def join_shards(
    scenes: Scenes, backbone: FrozenBackbone, shards: int, out: str | Path | None = None, batch_size: int = 32
) -> Scenes:
    """Put the shards of a set together, with the bytes that one process would have written, and remove them."""
    directory = default_folder(scenes) if out is None else Path(out)
    fields, provenance = _fields(scenes, backbone), described(_source(scenes), backbone)
    protocol, names = scenes.manifest["protocol"], scenes.manifest["properties"]
    with Builder(directory, fields, len(scenes), provenance, protocol, names) as builder:
        first = 0
        for number in range(0 if builder.finished else shards):
            part = Scenes.open(shard_folder(directory, Shard(number, shards)) / SHARD)
            for start in range(max(builder.done - first, 0), len(part), batch_size):
                rows = np.arange(start, min(start + batch_size, len(part)))
                chunk = {name: part.read(name, rows) for name in fields if name != "counts"}
                builder.append(**chunk, counts=part.counts[rows])
            first += len(part)
        joined = builder.finish()
    shutil.rmtree(directory.with_name(f"{directory.name}{_SHARDS}"), ignore_errors=True)
    return joined


def shard_folder(directory: Path, shard: Shard) -> Path:
    """Where a shard of the set in `directory` is computed; its own set is in SHARD below it."""
    return directory.with_name(f"{directory.name}{_SHARDS}") / str(shard)


def require_scenes(num: int, shards: int, batch_size: int) -> None:
    """Refuse more shards than there are batches: one of them would be empty."""
    if shards > (batches := -(-num // batch_size)):
        raise UserError(f"--shards is {shards}, but {num} scenes are {batches} batches of {batch_size}; give fewer")


def estimate(num: int, fields: dict[str, tuple[tuple[int, ...], str]]) -> str:
    """What a set of `num` scenes will take, in words."""
    (tokens, width), dtype = fields["features"]
    total = num * sum(int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in fields.values())
    return f"features of {num} scenes, {tokens} x {width} {dtype} each: {total / 1e9:.2f} GB"


def described(source: dict[str, Any], backbone: FrozenBackbone) -> dict[str, Any]:
    """The provenance of a network's features of a source."""
    return {"dataset": "features", "source": source, **backbone.provenance}


def default_folder(scenes: Scenes) -> Path:
    """data/NAME-features/PROTOCOL/SPLIT in the cache folder, for a set that lies at data/NAME/PROTOCOL/SPLIT."""
    root = (cache_folder() / "data").resolve()
    directory = scenes.directory.resolve()
    if len(directory.parts) != len(root.parts) + 3 or not directory.is_relative_to(root):
        raise UserError(f"{scenes.directory} does not lie in the cache folder: say with --out where the features go")
    name, protocol, split = directory.parts[-3:]
    return set_folder(name + SUFFIX, split, protocol)


def _source(scenes: Scenes) -> dict[str, Any]:
    """What the features are computed from; the first of generated scenes are known by how they were made."""
    provenance = scenes.manifest["provenance"]
    if "generator" in provenance and np.array_equal(scenes.index, np.arange(len(scenes))):
        return {"provenance": provenance}
    return {"scenes": _identity(scenes), "provenance": provenance}


def _identity(scenes: Scenes) -> str:
    """The container's fingerprint, and which of its scenes these are, unless they are all."""
    if np.array_equal(scenes.index, np.arange(scenes.manifest["scenes"])):
        return scenes.fingerprint
    return f"{scenes.fingerprint}, scenes {hashlib.sha256(scenes.index.tobytes()).hexdigest()}"


def _fields(scenes: Scenes, backbone: FrozenBackbone) -> dict[str, tuple[tuple[int, ...], str]]:
    size = backbone.size
    fields: dict[str, tuple[tuple[int, ...], str]] = {
        "features": ((backbone.tokens, backbone.features), "float16"),
        "images": ((size, size, 3), "uint8"),
    }
    if scenes.labels is not None:
        fields["labels"] = ((size, size), "uint8")
    for name, values in scenes.properties.items():
        fields[name] = (values.shape[1:], values.dtype.name)
    return fields


def _chunk(scenes: Scenes, backbone: FrozenBackbone, positions: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    images = scenes.read("images", positions)
    chunk = {
        "features": backbone(torch.from_numpy(images)).cpu().numpy(),
        "images": np.stack([resize(image, backbone.size, "bicubic") for image in images]),
        "counts": scenes.counts[positions],
        **{name: values[positions] for name, values in scenes.properties.items()},
    }
    if scenes.labels is not None:
        chunk["labels"] = np.stack(
            [resize(labels, backbone.size, "nearest") for labels in scenes.read("labels", positions)]
        )
    return chunk
