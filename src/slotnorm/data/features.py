"""Features of a frozen network for a set of scenes, computed once: half precision, memory-mapped, resumable.

The new set holds the features and, at the size that the network sees, the images and label maps; counts and properties
are the source's. Features are float32 until they are stored.
"""

import hashlib
import logging
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

_log = logging.getLogger(__name__)

SUFFIX = "-features"  # NAME-features is the set of features of the set NAME


def compute(
    scenes: Scenes,
    backbone: FrozenBackbone,
    out: str | Path | None = None,
    device: str | torch.device = "auto",
    batch_size: int = 32,
) -> Scenes:
    """Build the set of `backbone`'s features of all `scenes` in `out` (default: NAME-features beside the set NAME).

    How much it will be is said first. An interrupted computation continues with the batch it was in.
    """
    if scenes.images is None:
        raise UserError(f"{scenes.directory} holds no images to compute features of")
    if batch_size < 1:
        raise UserError(f"batch size {batch_size} must be positive")
    directory = default_folder(scenes) if out is None else Path(out)
    chosen = choose_device(device)
    fields = _fields(scenes, backbone)
    _log.info(f"{estimate(len(scenes), fields)} in {directory}")
    provenance = described(_source(scenes), backbone)
    protocol, names = scenes.manifest["protocol"], scenes.manifest["properties"]
    with Builder(directory, fields, len(scenes), provenance, protocol, names) as builder:
        if not builder.finished:
            backbone.to(chosen)
            with Progress("scenes", len(scenes), done=builder.done) as progress:
                for start in range(builder.done, len(scenes), batch_size):
                    positions = np.arange(start, min(start + batch_size, len(scenes)))
                    builder.append(**_chunk(scenes, backbone, positions))
                    progress.advance(len(positions))
        return builder.finish()


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
