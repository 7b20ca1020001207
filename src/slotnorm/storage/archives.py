"""Arrays in a sealed file: an ordinary compressed .npz without pickles, which NumPy alone can open.

Its zip comment is the seal, so that any altered bit is found before anything is parsed.
"""

import functools
import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotnorm.errors import DamagedFile
from slotnorm.storage import files, seals

_MAGIC = b"\x93NUMPY\x01\x00"
_LENGTHS, _LOCAL_HEADER = 26, 30  # where a member's header says how long its name is, and where that begins
_WORTH = 512  # bytes that LZMA must save; it is slower to read
_MOST_PACKED = _MOST_BYTES = 1 << 31  # of a file, and of one once unpacked; more is not a file of ours
# A forged file could ask for a thousand times its own size: one that was small before it is read stays so.
_ALWAYS_READ = 1 << 25  # bytes, however small the file is
_MOST_TIMES = 64  # its own size; those of the published results are up to 40 times, and below a megabyte


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays under their names, whole or not at all; the same arrays give the same bytes."""
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
            archive.comment = seals.open_tail()
        content = seals.close_tail(buffer.getvalue())
        if _unpacked(archive) <= _most_bytes(content):
            break
    files.write(path, content)


def _unpacked(archive: zipfile.ZipFile) -> int:
    """The bytes of all members together, as they say."""
    return sum(member.file_size for member in archive.infolist())


def _most_bytes(written: bytes) -> int:
    """What a file may unpack to."""
    return min(_ALWAYS_READ + _MOST_TIMES * len(written), _MOST_BYTES)


def pack_tightly(path: Path) -> None:
    """Write a file of `write_arrays` anew, its arrays by LZMA where that is smaller: for files that are published.

    That makes rows a fifth smaller, and reading them ten times slower. The file holds the same, and NumPy alone opens
    it; packing it once more gives the same bytes.
    """
    import lzma  # some builds of Python have none, and only published files need it

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in read_arrays(path).items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
            deflated, by_lzma = (len(compress(content.getvalue())) for compress in (zlib.compress, lzma.compress))
            method = zipfile.ZIP_LZMA if by_lzma + _WORTH < deflated else zipfile.ZIP_DEFLATED
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content.getvalue(), method)
        archive.comment = seals.open_tail()
    packed = seals.close_tail(buffer.getvalue())
    if _unpacked(archive) <= _most_bytes(packed):  # else it stays as it is: nobody would read it
        files.write(path, packed)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read a file of `write_arrays`; anything else than what was written is a DamagedFile."""
    try:
        with files.open_to_read(path) as file:  # the end first: what is not ours is not read, of whatever size
            file.seek(-min(file.seek(0, io.SEEK_END), seals.TAIL_BYTES), io.SEEK_END)
            is_ours = seals.is_tail(file.read(seals.TAIL_BYTES)) and file.tell() <= _MOST_PACKED
            file.seek(0)
            written = file.read(_MOST_PACKED) if is_ours else b""
    except OSError as error:
        raise files.unreadable(path, error) from error
    if not seals.has_tail(written):
        raise DamagedFile(f"{path} is not what was written: its seal does not match; delete it and make it again")
    try:
        with zipfile.ZipFile(io.BytesIO(written)) as archive:
            members = archive.infolist()
            size = _unpacked(archive)
            if size <= _most_bytes(written):
                return {
                    member.filename.removesuffix(".npy"): _array(_unpack(archive, written, member))
                    for member in members
                }
    except (ValueError, OSError, EOFError, MemoryError, zlib.error, struct.error, zipfile.BadZipFile) as error:
        raise DamagedFile(f"{path} is sealed but holds no arrays ({error}); delete it and make it again") from error
    raise DamagedFile(f"{path} would unpack to {size} bytes: not a file of slotnorm; delete it")


def _unpack(archive: zipfile.ZipFile, written: bytes, member: zipfile.ZipInfo) -> bytes:
    """A member's bytes. Its checksum need not be looked at: the seal has said that no bit is altered."""
    name, extra = struct.unpack_from("<HH", written, member.header_offset + _LENGTHS)
    start = member.header_offset + _LOCAL_HEADER + name + extra
    packed = written[start : start + member.compress_size]
    if member.compress_type == zipfile.ZIP_STORED:
        return packed
    if member.compress_type == zipfile.ZIP_LZMA:
        return _unpack_lzma(archive, member)
    if member.compress_type != zipfile.ZIP_DEFLATED:
        raise zipfile.BadZipFile(f"{member.filename} is compressed in a way that is not ours")
    content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, member.file_size)
    if len(content) != member.file_size:
        raise zipfile.BadZipFile(f"{member.filename} is not as long as it should be")
    return content


def _unpack_lzma(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    from lzma import LZMAError  # some builds of Python have no lzma, and only published files need it

    try:
        with archive.open(member) as file:
            content = file.read(member.file_size)
    except LZMAError as error:
        raise zipfile.BadZipFile(f"{member.filename} cannot be unpacked: {error}") from error
    if len(content) != member.file_size:
        raise zipfile.BadZipFile(f"{member.filename} is not as long as it should be")
    return content


def _array(content: bytes) -> NDArray[Any]:
    """The array of a .npy file; thousands of files have the same few headers, each of which is parsed once."""
    if content[:8] != _MAGIC:
        return np.asarray(np.lib.format.read_array(io.BytesIO(content), allow_pickle=False))
    end = 10 + int.from_bytes(content[8:10], "little")
    shape, in_columns, dtype = _header(content[:end])
    array = np.frombuffer(content, dtype, math.prod(shape), end).copy()  # of its own: bytes cannot be written to
    return array.reshape(shape, order="F" if in_columns else "C")


@functools.lru_cache(maxsize=1024)
def _header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    shape, in_columns, dtype = np.lib.format.read_array_header_1_0(io.BytesIO(content[8:]))
    if dtype.hasobject:
        raise ValueError("it holds objects, not numbers")
    return shape, in_columns, dtype


def as_text(content: Any) -> NDArray[np.uint8]:
    """Plain JSON values as an array of bytes, for `write_arrays`; what could not be read again is refused."""
    written = json.dumps(content, sort_keys=True, allow_nan=False).encode()
    seals.require_readable(written, "a text of an archive")
    return np.frombuffer(written, dtype=np.uint8)


def from_text(array: NDArray[Any], path: Path) -> Any:
    """The JSON values of `as_text`; `path` is the file they are from, for the refusal."""
    return seals.parse_json(array.tobytes(), path)


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """The array, which cannot be changed by this name."""
    array = array.view()
    array.flags.writeable = False
    return array
