"""The format of a set of scenes on disk: one .npy file per field, and `manifest.json`, whose writing is the commit.

Every file is a plain .npy array with a header of fixed length, so that rows lie at known places while the number of
scenes is still open. Rows are grouped into blocks of about a mebibyte, each with a CRC-32C, which detects any change
within 32 neighbouring bits and so any single byte.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from slotnorm.errors import DamagedFile, UserError
from slotnorm.storage import seals
from slotnorm.storage.schemas import LARGEST, check_document, require_between, require_counts, require_hash
from slotnorm.storage.seals import read_sealed
from slotnorm.storage.serialization import newer

FORMAT = "slotnorm scenes 1"
MANIFEST = "manifest.json"
STATE = "building.json"  # beside the files while they are built
HEADER = 128  # bytes before the first row of every file

_DTYPES = {"uint8": "|u1", "uint16": "<u2", "int32": "<i4", "float16": "<f2", "float32": "<f4"}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")  # a field's name is its file's name: no separators, no dots
_BLOCK_BYTES = 1 << 20  # a random batch of 64 then reads 64 MB when all its blocks are new, 6 ms for the CRC
_MAX_ROWS_PER_BLOCK = 1 << 16


@dataclass(frozen=True)
class Field:
    """One field of the scenes: `shape` of a single scene and numpy dtype by name."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UserError(f"{self.name[:80]!r} cannot name a field: use at most 32 small letters, digits and _")
        if self.dtype not in _DTYPES:
            raise UserError(f"field {self.name} has dtype {self.dtype[:40]!r}; stored are {', '.join(_DTYPES)}")
        if len(self.shape) > 4 or not all(0 < length < 1 << 24 for length in self.shape):
            raise UserError(
                f"field {self.name} has shape {self.shape} for a scene; lengths must be 1 to {(1 << 24) - 1}"
            )
        if problem := _contradiction(self):
            raise UserError(problem)

    @property
    def file(self) -> str:
        return f"{self.name}.npy"

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def rows_per_block(self) -> int:
        """The power of two of scenes that come nearest below `_BLOCK_BYTES`, at least one."""
        rows = max(1, _BLOCK_BYTES // self.row_bytes)
        return int(min(1 << (rows.bit_length() - 1), _MAX_ROWS_PER_BLOCK))

    def num_blocks(self, num: int) -> int:
        return -(-num // self.rows_per_block)

    def header(self, num: int) -> bytes:
        """The .npy header for `num` scenes, exactly `HEADER` bytes."""
        shape = ", ".join(str(length) for length in (num, *self.shape)) + ("," if not self.shape else "")
        text = f"{{'descr': '{_DTYPES[self.dtype]}', 'fortran_order': False, 'shape': ({shape}), }}"
        prefix = b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little")
        return prefix + text.ljust(HEADER - 11).encode("ascii") + b"\n"


def _contradiction(field: Field) -> str | None:
    """Why a field of a reserved name cannot have this shape or dtype; None when it can."""
    reserved = {
        "images": (3, "uint8", "(H, W, 3)"), "labels": (2, "uint8", "(H, W)"), "features": (2, "float16", "(N, F)"),
        "counts": (0, "uint16", "()"),
    }  # fmt: skip
    if field.name not in reserved:
        return None
    axes, dtype, shape = reserved[field.name]
    if len(field.shape) == axes and field.dtype == dtype and (field.name != "images" or field.shape[2] == 3):
        return None
    return f"{field.name} are {shape} {dtype} per scene, not {field.shape} {field.dtype}"


COUNTS = Field("counts", (), "uint16")  # the one field that every set has


def checksum(content: NDArray[Any] | bytes, start: int = 0) -> int:
    """CRC-32C of bytes or of a C-contiguous array, continuing from `start`."""
    if not isinstance(content, bytes):
        content = content.view()
        content.flags.writeable = False  # the extension takes read-only buffers without copying
    return int(google_crc32c.extend(start, content))


def pack(checksums: list[int]) -> str:
    """Checksums as one string, 8 hexadecimal digits each: a long list would make the manifest slow to open."""
    return np.asarray(checksums, dtype=">u4").tobytes().hex()


def unpack(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(bytes.fromhex(text), dtype=">u4").astype(np.uint32)


def read_manifest(path: Path) -> dict[str, Any]:
    """A sealed manifest, or the state of a build, as it was written."""
    try:
        return read_sealed(path, seals.MANIFEST)
    except DamagedFile as damage:
        raise DamagedFile(f"{damage}; delete {path.parent} and build the set again") from None


def load_manifest(directory: Path) -> tuple[dict[str, Any], list[Field]]:
    """Read and validate `manifest.json`; every value that opening relies on has the right type and range afterwards."""
    path = directory / MANIFEST
    manifest = read_manifest(path)

    if manifest.get("format") != FORMAT:
        given = str(manifest.get("format"))[:40]
        raise DamagedFile(
            f"{path} has format {given!r}, this version reads {FORMAT!r}; delete its folder and build the set again"
        )
    checked = check_document(
        _Manifest, manifest, path, "the manifest of a set", "delete its folder and build the set again"
    )
    return manifest, [file.field(name, checked.scenes) for name, file in checked.files.items()]


@dataclass(frozen=True)
class _File:
    """What a manifest says of a file."""

    file: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str
    scenes_per_block: int
    checksums: str

    def field(self, name: str, num: int) -> Field:
        """The field of `num` scenes that the file has; refused is what does not fit together."""
        field = Field(name, self.shape[1:], self.dtype)
        fits = {
            "the number of scenes": self.shape[:1] == (num,),
            "the name of the file": self.file == field.file,
            "the block size": self.scenes_per_block == field.rows_per_block,
            "the checksums": bool(re.fullmatch(f"[0-9a-f]{{{8 * field.num_blocks(num)}}}", self.checksums)),
        }
        for what, is_right in fits.items():
            if not is_right:
                raise UserError(f"{what} of {name!r} is wrong")
        require_hash(self.sha256)
        return field


@dataclass(frozen=True)
class _Manifest:
    """What manifest.json says."""

    format: str
    library: str
    protocol: str
    provenance: dict[str, Any]
    properties: dict[str, tuple[str, ...]]
    scenes: int
    objects: dict[str, int]
    """How many scenes have so many objects."""
    files: dict[str, _File]
    requested: int | None = newer(None)

    def __post_init__(self) -> None:
        require_between("scenes", self.scenes, 1, LARGEST)
        require_counts("objects", self.objects, self.scenes)
        if COUNTS.name not in self.files:
            raise UserError("its list of files has no counts")
        for name, file in self.files.items():
            file.field(name, self.scenes)
