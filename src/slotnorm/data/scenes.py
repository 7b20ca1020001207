"""Scenes: the one memory-mapped container that every dataset becomes (see `builder.py` for how one is written).

Opening takes milliseconds at any size; slicing and filtering copy no pixels; a block of scenes is checked against its
checksum when this process first reads from it.
"""

import errno
import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slotnorm.data.manifest import HEADER, MANIFEST, STATE, Field, checksum, load_manifest, unpack
from slotnorm.errors import DamagedFile, UserError, nearest
from slotnorm.storage.archives import frozen
from slotnorm.storage.files import open_to_read
from slotnorm.storage.seals import digest

if TYPE_CHECKING:
    import torch

# What the codes of CLEVR's properties mean, in the order of CLEVR's generator: code 1 is the first name, 0 is padding.
CLEVR_PROPERTIES: dict[str, tuple[str, ...]] = {
    "shape": ("cube", "sphere", "cylinder"),
    "size": ("large", "small"),
    "material": ("rubber", "metal"),
    "color": ("gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow"),
}

BACKBONE = "backbone.safetensors"  # in the folder of a set whose features are computed when they are read
_NOT_DAMAGED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM}  # what is no reason to delete it
_NOT_PROPERTIES = ("images", "features", "labels", "counts")


class Column:
    """One field's file, mapped into memory; every read goes through `read`, which verifies new blocks first."""

    def __init__(self, path: Path, field: Field, num: int, checksums: str) -> None:
        expected = HEADER + num * field.row_bytes
        try:
            size = path.stat().st_size
            if size != expected:
                raise DamagedFile(
                    f"{path} has {size} bytes and should have {expected}; delete its folder and build the set again"
                )
            with open_to_read(path) as file:
                if file.read(HEADER) != field.header(num):
                    raise DamagedFile(
                        f"{path} does not start as it was written; delete its folder and build the set again"
                    )
            mapped = np.memmap(path, mode="r", offset=HEADER, shape=(num, *field.shape), dtype=field.dtype)
        except OSError as error:
            if error.errno in _NOT_DAMAGED:
                raise
            raise DamagedFile(
                f"cannot read {path}: {error.strerror or error}; delete its folder and build the set again"
            ) from error
        self.path, self.field = path, field
        self.rows: NDArray[Any] = mapped.view(np.ndarray)
        self._checksums = unpack(checksums)
        self._new = np.ones(len(self._checksums), dtype=bool)  # blocks that this process has not verified yet

    def read(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """A copy of the rows `index` (m,) -> (m, ...)."""
        self.verify(index)
        return self.rows[index]

    def verify(self, index: NDArray[np.int64]) -> None:
        """Check the blocks of these rows that were not read before."""
        touched = np.zeros_like(self._new)
        touched[index // self.field.rows_per_block] = True
        for block in np.flatnonzero(touched & self._new).tolist():
            first = block * self.field.rows_per_block
            # copied, which other threads need not wait for, as they would for a checksum that reads from the disk
            rows = self.rows[first : first + self.field.rows_per_block].copy()
            if checksum(rows) != self._checksums[block]:
                place = f"block {block} (scenes {first} to {first + len(rows) - 1})"
                raise DamagedFile(f"{self.path} is damaged in {place}; delete its folder and build the set again")
            self._new[block] = False

    def compute_on(self, device: "torch.device | str") -> None:
        """Where rows are computed, if no file holds them (computed_features.py); files hold these."""


class LazyArray:
    """One field of some scenes as a read-only array (n, ...) whose rows are read, and verified, when they are indexed.

    Takes an integer, a slice, or an array of integers or booleans, then integers and slices for the other axes;
    `numpy.asarray` reads everything.
    """

    def __init__(self, column: Column, index: NDArray[np.int64]) -> None:
        self._column, self._index = column, index
        self.shape: tuple[int, ...] = (len(index), *column.field.shape)
        self.dtype = column.rows.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, key: Any) -> Any:
        first, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
        if first is None or first is Ellipsis or not all(isinstance(part, int | np.integer | slice) for part in rest):
            return np.asarray(self)[key]
        rows = self._index[first]
        if rows.ndim == 0:
            return self._column.read(rows[None])[(0, *rest)]
        picked = self._column.read(rows.reshape(-1)).reshape(*rows.shape, *self.shape[1:])
        return picked[(*(slice(None) for _ in range(rows.ndim)), *rest)] if rest else picked

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self[position] for position in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("scenes are read from disk: an array without a copy cannot be given")
        return self._column.read(self._index).astype(dtype or self.dtype, copy=False)

    def __repr__(self) -> str:
        return f"LazyArray(shape={self.shape}, dtype={self.dtype}, file={self._column.path.name})"


class Scenes:
    """Images or features, label maps (0 is background), object counts and properties of n scenes; see `open`."""

    def __init__(
        self, directory: Path, manifest: dict[str, Any], columns: dict[str, Column], index: NDArray[np.int64]
    ) -> None:
        self.directory, self.manifest, self._columns = directory, manifest, columns
        self.index = frozen(index)
        self.counts: NDArray[np.int64] = frozen(columns["counts"].read(index).astype(np.int64))

    @classmethod
    def open(cls, directory: str | Path) -> "Scenes":
        """Open a built set: its manifest and all file sizes are checked now, its scenes when they are first read."""
        directory = Path(directory)
        if not (directory / MANIFEST).is_file():
            half_built = (directory / STATE).exists()
            way_out = (
                "it is half-built: run the command that builds it again" if half_built else "build it, or name another"
            )
            raise UserError(f"{directory} holds no finished set of scenes (no {MANIFEST}); {way_out}")
        if (directory / BACKBONE).is_file():
            from slotnorm.data.computed_features import (
                open_feature_set,  # imports torch: only this kind of set needs it
            )

            return open_feature_set(directory)
        manifest, fields = load_manifest(directory)
        num, files = manifest["scenes"], manifest["files"]
        columns = {f.name: Column(directory / f.file, f, num, files[f.name]["checksums"]) for f in fields}
        return cls(directory, manifest, columns, np.arange(num, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: slice | ArrayLike) -> "Scenes":
        """The scenes of a slice, or of an array of positions or booleans; no pixels are read."""
        index = self.index[key] if isinstance(key, slice) else self.index[np.asarray(key)]
        if index.ndim != 1:
            raise TypeError("scenes are taken by a slice or an array of positions; scenes.images[i] is one image")
        return Scenes(self.directory, self.manifest, self._columns, index)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name} {column.field.shape}" for name, column in self._columns.items() if name != "counts")
        return f"Scenes({len(self)} of {self.manifest['scenes']} in {self.directory}: {fields})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes open the files themselves instead of being sent the pixels."""
        return _reopen, (self.directory, self.fingerprint, self.index)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all fields, counts among them."""
        return tuple(self._columns)

    @property
    def columns(self) -> dict[str, Column]:
        """The files behind the fields, by name."""
        return dict(self._columns)

    @property
    def are_counted(self) -> bool:
        """Whether `counts` tells anything: where there are neither masks nor properties, nobody knows the objects."""
        return bool(self.manifest["objects"])

    @property
    def images(self) -> LazyArray | None:
        """(n, H, W, 3) uint8, or None."""
        return self._rows("images")

    @property
    def features(self) -> LazyArray | None:
        """(n, N, F) float16, or None."""
        return self._rows("features")

    @property
    def labels(self) -> LazyArray | None:
        """(n, H, W) uint8, 0 is background; or None."""
        return self._rows("labels")

    @cached_property
    def properties(self) -> dict[str, NDArray[Any]]:
        """Name -> (n, O, ...), read into memory: entry j belongs to the object with label j + 1, padding is 0."""
        names = [name for name in self._columns if name not in _NOT_PROPERTIES]
        return {name: frozen(self._columns[name].read(self.index)) for name in names}

    @cached_property
    def fingerprint(self) -> str:
        """One hash over the SHA-256 of every file of the container, whatever part of it these scenes are."""
        files = self.manifest["files"]
        lines = "".join(f"{name}:{files[name]['sha256']}\n" for name in sorted(files))
        return hashlib.sha256(lines.encode()).hexdigest()

    def read(self, field: str, positions: ArrayLike) -> NDArray[Any]:
        """A copy of one field at `positions` (m,) of these scenes: (m, ...)."""
        if field not in self._columns:
            raise UserError(f"{self.directory} has no field {field!r}; {nearest(field, self._columns)}")
        return self._columns[field].read(self.index[np.asarray(positions, dtype=np.int64)])

    def verify(self, field: str) -> None:
        """Check every block of one field that this process has not read yet."""
        self._columns[field].verify(np.arange(self.manifest["scenes"], dtype=np.int64))

    def compute_on(self, device: "torch.device | str") -> "Scenes":
        """These scenes, whose features are computed on `device` where no file holds them, for all who share them."""
        for column in self._columns.values():
            column.compute_on(device)
        return self

    def filter(self, min_objects: int | None = None, max_objects: int | None = None) -> "Scenes":
        """The scenes with at least `min_objects` and at most `max_objects` objects."""
        if min_objects is None and max_objects is None:
            return self
        if not self.are_counted:
            raise UserError(
                f"{self.directory} has neither masks nor properties: its objects cannot be counted or filtered; leave "
                "out --objects, and train with --max-objects None"
            )
        low, high = min_objects or 0, np.inf if max_objects is None else max_objects
        kept = (self.counts >= low) & (self.counts <= high)
        if not kept.any():
            span = f"{self.counts.min()} to {self.counts.max()}" if len(self) else "none"
            raise UserError(f"no scene of {self.directory} has {low} to {high} objects; its counts are {span}")
        return self[kept]

    def sample(self, num: int) -> "Scenes":
        """The first `num` scenes in the order of SHA-256 of the scene's index, the same for everyone; all if fewer."""
        order = sorted(range(len(self)), key=lambda position: hashlib.sha256(b"%d" % self.index[position]).digest())
        return self[np.asarray(order[:num], dtype=np.int64)]

    def _rows(self, name: str) -> LazyArray | None:
        return LazyArray(self._columns[name], self.index) if name in self._columns else None


def _reopen(directory: Path, fingerprint: str, index: NDArray[np.int64]) -> Scenes:
    scenes = Scenes.open(directory)
    if scenes.fingerprint != fingerprint:
        raise DamagedFile(f"{directory} was built again while it was in use; start anew")
    return scenes[index]


def data_fingerprint(scenes: Scenes) -> str:
    """What identifies the content: of generated scenes, and of stored features of such, what they were made from.

    Sets of any length share it. Of features it says the network by the hash of its weights.
    """
    provenance = scenes.manifest["provenance"]
    if scenes.features is None:
        return digest(provenance) if "generator" in provenance else scenes.fingerprint
    source = provenance.get("source")
    stored = isinstance(source, dict) and "generator" in source.get("provenance", ()) and "scenes" not in source
    return digest(provenance) if stored else scenes.fingerprint
