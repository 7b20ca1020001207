"""Features that are computed whenever they are read: a set of features that stores a network and no features.

Such a set is a folder with the network's weights (`backbone.safetensors`) and a `manifest.json` that names the set of
images. `Scenes.open` opens it like any other, so training and evaluation need not know.
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from slotnorm.config import Protocol
from slotnorm.data.backbones import FrozenBackbone, Norm, timm_backbone
from slotnorm.data.features import default_folder
from slotnorm.data.manifest import MANIFEST, Field, read_manifest
from slotnorm.data.resize import resize
from slotnorm.data.scenes import BACKBONE, Column, Scenes
from slotnorm.errors import DamagedFile, NonFinite, UserError
from slotnorm.storage import files, seals
from slotnorm.storage.schemas import check_document
from slotnorm.storage.seals import canonical, digest, write_sealed

_FORMAT = "slotnorm features on the fly 1"


def attach_features(scenes: Scenes, backbone: FrozenBackbone, sha256: str | None = None) -> Scenes:
    """The scenes with features computed when they are read, rounded to half precision as stored ones are.

    Images and labels are scaled to the size that the network sees. `sha256` identifies the network in the fingerprint
    (default: a hash of its provenance).
    """
    if scenes.images is None:
        raise UserError(f"{scenes.directory} holds no images to compute features of")
    columns = scenes.columns
    computed = {**columns, "features": _Features(columns["images"], backbone)}
    for name, method in (("images", "bicubic"), ("labels", "nearest")):
        if name in columns and columns[name].field.shape[0] != backbone.size:
            computed[name] = _Scaled(columns[name], backbone.size, method)  # type: ignore[arg-type]
    entry = {
        "file": BACKBONE,
        "shape": [scenes.manifest["scenes"], backbone.tokens, backbone.features],
        "dtype": "float16",
        "sha256": sha256 or digest(backbone.provenance),
    }
    manifest = {**scenes.manifest, "files": {**scenes.manifest["files"], "features": entry}}
    return Scenes(scenes.directory, manifest, computed, scenes.index)


def write_feature_set(scenes: Scenes, backbone: FrozenBackbone, out: str | Path | None = None) -> Path:
    """Make a set in `out` whose features a model of timm computes when they are read; returns the folder.

    Without `out` it goes where stored features would.
    """
    known = backbone.provenance
    if "norm" not in known:
        raise UserError(
            f"--on-the-fly needs a model of timm, not {known['backbone']}; leave it out: its features are small"
        )
    folder = default_folder(scenes) if out is None else Path(out)
    described = {key: known[key] for key in ("backbone", "norm", "protocol", "sha256_of_tensors")}
    source = {"images": str(scenes.directory.resolve()), "fingerprint_of_images": scenes.fingerprint}
    if (folder / MANIFEST).exists():
        content = read_manifest(folder / MANIFEST)
        if any(content.get(key) != value for key, value in {**described, **source}.items()):
            raise UserError(f"{folder} already holds another set; choose another folder or delete this one")
        return folder
    # the description is part of the file, so that its hash identifies more than the weights; one key, since safetensors
    # writes several in any order
    metadata = {"slotnorm": canonical(described).decode()}
    network: Any = backbone.network
    state = {key: tensor.contiguous().cpu() for key, tensor in network.model.state_dict().items()}
    with files.replacing(folder / BACKBONE) as temporary:
        save_file(state, temporary, metadata=metadata)
    content = {"format": _FORMAT, **described, **source, "sha256_of_file": files.sha256(folder / BACKBONE)}
    write_sealed(folder / MANIFEST, content, seals.MANIFEST)
    return folder


@dataclasses.dataclass(frozen=True)
class _Manifest:
    """What the manifest of a set with features on the fly says."""

    format: str
    backbone: str
    norm: Norm
    protocol: Protocol
    sha256_of_tensors: str
    images: str
    """The folder of the images."""
    fingerprint_of_images: str
    sha256_of_file: str


def open_feature_set(folder: Path) -> Scenes:
    """Open a folder of `write_feature_set`; the network is on the CPU until `Scenes.compute_on` moves it."""
    written = read_manifest(folder / MANIFEST)
    if written.get("format") != _FORMAT:
        raise DamagedFile(f"{folder / MANIFEST} was changed after it was written; make the set again")
    content = check_document(_Manifest, written, folder / MANIFEST, "the manifest of a set", "make the set again")
    if not (folder / BACKBONE).is_file() or files.sha256(folder / BACKBONE) != content.sha256_of_file:
        raise DamagedFile(f"{folder / BACKBONE} was changed after it was written; make the set again")
    scenes = Scenes.open(content.images)
    if scenes.fingerprint != content.fingerprint_of_images:
        raise DamagedFile(f"{scenes.directory} is not the set that {folder} was made for; make it again")
    backbone = timm_backbone(content.backbone, folder / BACKBONE, content.norm, content.protocol)
    opened = attach_features(scenes, backbone, content.sha256_of_file)
    opened.manifest["files"]["features"]["file"] = str((folder / BACKBONE).resolve())
    return opened


class _Features(Column):
    """A column that no file holds: the features of another one's images."""

    def __init__(self, images: Column, backbone: FrozenBackbone) -> None:
        self._images, self._backbone = images, backbone
        self.path = images.path
        self.field = Field("features", (backbone.tokens, backbone.features), "float16")
        self.rows = np.empty((0, *self.field.shape), np.float16)

    def read(self, index: NDArray[np.int64]) -> NDArray[Any]:
        features: NDArray[Any] = self._backbone(torch.from_numpy(self._images.read(index))).half().cpu().numpy()
        if not np.isfinite(features).all():
            raise NonFinite(f"features of {self.path.parent} are not finite in half precision; use another backbone")
        return features

    def verify(self, index: NDArray[np.int64]) -> None:
        self._images.verify(index)

    def compute_on(self, device: torch.device | str) -> None:
        self._backbone.to(device)


class _Scaled(Column):
    """Another column's images or label maps, scaled when they are read."""

    def __init__(self, column: Column, size: int, method: Literal["bicubic", "nearest"]) -> None:
        self._column, self._size, self._method = column, size, method
        self.path = column.path
        self.field = Field(column.field.name, (size, size, *column.field.shape[2:]), column.field.dtype)
        self.rows = np.empty((0, *self.field.shape), np.uint8)

    def read(self, index: NDArray[np.int64]) -> NDArray[Any]:
        rows = self._column.read(index)
        scaled = [resize(row, self._size, self._method) for row in rows]
        return np.stack(scaled) if scaled else self.rows

    def verify(self, index: NDArray[np.int64]) -> None:
        self._column.verify(index)
