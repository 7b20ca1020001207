"""TFRecord files and tf.Example messages without TensorFlow: every checksum checked, memory bounded.

A TFRecord file is a chain of frames (length, masked CRC32C of the length, data, masked CRC32C of the data), plain or
in one gzip stream. A tf.Example is a protobuf message: a map from names to lists of strings, floats or integers.
Nothing in a file is trusted: whatever it holds, reading ends with the records or with a `RecordError`.
"""

import contextlib
import importlib
import struct
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from slotnorm.errors import DamagedFile, UserError
from slotnorm.storage.files import open_to_read

inflate_library: ModuleType
try:
    inflate_library = importlib.import_module("isal.isal_zlib")  # 2 to 3 times as fast as zlib on these files
except ImportError:
    inflate_library = zlib

# The largest published records are MOVi clips: 24 frames of 256 x 256 with flow, normals, coordinates and depth come to
# less than 50 MB even if no picture in them were compressed at all.
MAX_RECORD_BYTES = 64 << 20
_BLOCK = 1 << 20  # of uncompressed content; a gzip bomb is never unpacked further than this ahead of the checks
_COMPRESSED_BLOCK = 1 << 18
_GZIP_MAGIC = b"\x1f\x8b"
_TENSORFLOW_GZIP_HEADER = bytes.fromhex("1f8b0800000000000003")
# position in that header -> what other writers put there: compression level (best, fastest), unknown system
_OTHER_WRITERS = {8: (2, 4), 9: (255,)}
_AGAIN = "the file is damaged or cut short; delete it and download it again"


class RecordError(DamagedFile):
    """A TFRecord file or a tf.Example in it is not what it should be; the sentence names the file and the record."""


class _Broken(Exception):
    """The reason alone; `records` and `Example` add where it happened."""


def records(path: Path, start: int = 0, largest: int = MAX_RECORD_BYTES) -> Iterator[bytes]:
    """The records of a file, plain or gzip, from number `start` on (counted from 0); skipped ones are checked too.

    `largest` is the most bytes that one has: a file may claim more, and a reader may hold many at once.
    """
    number = 0
    try:
        with open_to_read(path) as file:
            content = _Content(_blocks(file))
            while (record := _next_record(content, largest)) is not None:
                if number >= start:
                    yield record
                number += 1
            if number == 0:
                raise _Broken(f"the file holds no record: {_AGAIN}")
    except _Broken as reason:
        raise RecordError(f"{path}, record {number} (counted from 0): {reason}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; give a TFRecord file") from error


def _next_record(content: "_Content", largest: int) -> bytes | None:
    header = content.take(12)
    if not header:
        return None
    if len(header) < 12:
        raise _Broken(f"only {len(header)} bytes where a record's header has 12: {_AGAIN}")
    if not _is_header(header):
        raise _Broken(f"the checksum of its length is wrong: {_AGAIN} (or it is not a TFRecord file)")
    (length,) = struct.unpack_from("<Q", header)
    if length > largest:
        raise _Broken(f"claims {length} bytes, and no record of this dataset has more than {largest}")
    data = content.take(length)
    footer = content.take(4)
    if len(data) < length or len(footer) < 4:
        raise _Broken(f"ends after {len(data) + len(footer)} of {length + 4} bytes: {_AGAIN}")
    if _masked_crc(data) != struct.unpack("<I", footer)[0]:
        raise _Broken(f"the checksum of its data is wrong: {_AGAIN}")
    return data


def _masked_crc(data: bytes) -> int:
    """CRC32C rotated and shifted by a constant, as the format wants it: data may hold checksums themselves."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _is_header(header: bytes) -> bool:
    return len(header) == 12 and _masked_crc(header[:8]) == struct.unpack_from("<I", header, 8)[0]


def begins_like_records(beginning: bytes) -> bool:
    """Whether a file with these first bytes, 12 or more, is of records: by the checksum of the first one's length.

    A gzip file counts, since only unpacking would tell.
    """
    return _is_header(beginning[:12]) or beginning.startswith(_GZIP_MAGIC)


class _Content:
    """The uncompressed bytes of a file, taken from front to end."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._block = memoryview(b"")

    def take(self, count: int) -> bytes:
        """The next `count` bytes; fewer only where the content ends."""
        parts = []
        while count:
            if not self._block:
                self._block = memoryview(next(self._blocks, b""))
                if not self._block:
                    break
            parts.append(self._block[:count])
            self._block = self._block[count:]
            count -= len(parts[-1])
        return b"".join(parts)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    head = file.read(12)
    file.seek(0)
    # a plain file may begin with gzip's two bytes by chance (a record of 35,615 bytes): its checksum tells
    if head.startswith(_GZIP_MAGIC) and not _is_header(head):
        _check_gzip_header(head[:10])
        yield from _gunzip(file)
    else:
        while block := file.read(_BLOCK):
            yield block


def _check_gzip_header(header: bytes) -> None:
    """Refuse a header one byte away from TensorFlow's: gzip has no checksum for it, so this is how a flip is seen."""
    differing = [i for i, (a, b) in enumerate(zip(header, _TENSORFLOW_GZIP_HEADER, strict=False)) if a != b]
    if len(differing) == 1 and header[differing[0]] not in _OTHER_WRITERS.get(differing[0], ()):
        raise _Broken(f"byte {differing[0]} of the gzip header is wrong: {_AGAIN} (an unpacked file is read too)")


def _gunzip(file: IO[bytes]) -> Iterator[bytes]:
    """The content of all members of a gzip file, in blocks; checksum and length of each are checked at its end."""
    compressed = file.read(_COMPRESSED_BLOCK)
    while compressed:
        if not compressed.startswith(_GZIP_MAGIC):
            raise _Broken(f"the gzip stream is followed by bytes that do not belong there: {_AGAIN}")
        member = inflate_library.decompressobj(wbits=31)
        while not member.eof:
            try:
                block = member.decompress(compressed, _BLOCK)
            except (zlib.error, inflate_library.error, EOFError) as error:
                raise _Broken(f"the gzip stream cannot be unpacked ({error}): {_AGAIN}") from None
            if block:
                yield block
            compressed = member.unconsumed_tail
            if not compressed and not member.eof:
                compressed = file.read(_COMPRESSED_BLOCK)
                if not compressed and not block:
                    raise _Broken(f"the gzip stream stops before its end: {_AGAIN}")
        compressed = member.unused_data or file.read(_COMPRESSED_BLOCK)
        if len(compressed) < len(_GZIP_MAGIC):
            compressed += file.read(_COMPRESSED_BLOCK)


_LIST_KINDS = {1: "strings", 2: "floats", 3: "integers"}
# Whatever a record claims is counted before it is kept: a list of empty strings takes 2 bytes each in the file and a
# hundred times that in memory.
_MOST_LISTS = 1000  # of an example; MOVi's have 60
_MOST_NUMBERS = 1 << 20  # of a list whose length the caller does not know
_FEW = 16  # fields of an entry of the map, which has two
_LONGEST_NAME = 1000  # bytes; a text can take four times as much memory, and is part of sentences


class Example:
    """One tf.Example: lists by name. `where` begins its error sentences, as in "train.tfrecords, record 7"."""

    def __init__(self, record: bytes, where: str) -> None:
        self._where = where
        self._lists: dict[str, tuple[str, memoryview]] = {}
        with self._telling("is not a tf.Example"):
            for number, features in _fields(memoryview(record), _FEW):
                if number == 1 and isinstance(features, memoryview):
                    for entry_number, entry in _fields(features, _MOST_LISTS):
                        if entry_number == 1 and isinstance(entry, memoryview):
                            self._read_entry(entry)

    @property
    def names(self) -> list[str]:
        """The names of all lists, in the file's order."""
        return list(self._lists)

    def strings(self, name: str, most: int) -> list[memoryview]:
        """A list of up to `most` byte strings, as views of the record; a longer one is refused before it is kept."""
        payload = self._payload(name, "strings")
        with self._telling(f"{name!r} is broken"):
            return [value for number, value in _fields(payload, most) if number == 1 and isinstance(value, memoryview)]

    def single_bytes(self, name: str, count: int) -> NDArray[np.uint8]:
        """(count,) the bytes of a list of `count` ONE-byte strings, as a strided view of the record: no copy."""
        payload = np.frombuffer(self._payload(name, "strings"), dtype=np.uint8)
        if payload.size != 3 * count or not _all_tagged(payload):
            raise RecordError(f"{self._where}: {name!r} is not a list of {count} one-byte strings: another dataset?")
        return payload[2::3]

    def floats(self, name: str, count: int | None = None) -> NDArray[np.float32]:
        """(count,) a list of floats, packed or not."""
        payload, most = self._payload(name, "floats"), _MOST_NUMBERS if count is None else count
        content = bytearray()
        with self._telling(f"{name!r} is broken"):
            for number, value in _fields(payload, most):
                if number == 1 and isinstance(value, memoryview):
                    if len(value) % 4:
                        raise _Broken("a list of floats has a length that 4 does not divide")
                    if len(content) + len(value) > 4 * most:
                        raise _Broken(f"it has more than {most} numbers: another dataset?")
                    content += value
        return np.asarray(self._counted(name, np.frombuffer(content, dtype="<f4"), count), dtype=np.float32)

    def integers(self, name: str, count: int | None = None) -> NDArray[np.int64]:
        """(count,) a list of integers, packed or not."""
        payload, most = self._payload(name, "integers"), _MOST_NUMBERS if count is None else count
        values = array("Q")
        with self._telling(f"{name!r} is broken"):
            for number, value in _fields(payload, most):
                if number == 1:
                    for integer in [value] if isinstance(value, int) else _varints(value):
                        if len(values) == most:
                            raise _Broken(f"it has more than {most} numbers: another dataset?")
                        values.append(integer)
        # protobuf writes a negative integer as its 64-bit two's complement
        return self._counted(name, np.frombuffer(values, dtype=np.uint64).astype(np.int64), count)

    def _read_entry(self, entry: memoryview) -> None:
        name, kind, payload = "", "", memoryview(b"")
        for number, value in _fields(entry, _FEW):
            if number == 1 and isinstance(value, memoryview):
                if len(value) > _LONGEST_NAME:
                    raise _Broken(f"a feature's name has {len(value)} bytes")
                try:
                    name = str(value, "utf-8")
                except UnicodeDecodeError:
                    raise _Broken("a feature's name is not text") from None
            elif number == 2 and isinstance(value, memoryview):
                for list_number, values in _fields(value, _FEW):
                    if list_number in _LIST_KINDS and isinstance(values, memoryview):
                        kind, payload = _LIST_KINDS[list_number], values
        self._lists[name] = (kind, payload)

    def _payload(self, name: str, kind: str) -> memoryview:
        if name not in self._lists:
            have = ", ".join(repr(known[:40]) for known in self.names[:12]) or "nothing"
            raise RecordError(f"{self._where}: has no {name!r}, it holds {have}: another dataset?")
        actual, payload = self._lists[name]
        if actual not in (kind, ""):  # an empty list is written without its kind
            raise RecordError(f"{self._where}: {name!r} is a list of {actual}, not of {kind}: another dataset?")
        return payload

    def _counted(self, name: str, values: NDArray[Any], count: int | None) -> NDArray[Any]:
        if count is not None and values.size != count:
            raise RecordError(f"{self._where}: {name!r} has {values.size} numbers, not {count}: another dataset?")
        return values

    @contextlib.contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Turn a bare reason into a RecordError that says where."""
        try:
            yield
        except _Broken as reason:
            raise RecordError(f"{self._where}: {what}: {reason}") from None


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """An integer of 7 bits per byte, low ones first, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise _Broken("it ends inside an integer")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise _Broken("it holds an integer of more than 10 bytes")


def _varints(data: memoryview) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _fields(message: memoryview, most: int) -> Iterator[tuple[int, memoryview | int]]:
    """The fields of a protobuf message, `most` of them: number, and an integer or a view of the bytes."""
    at = count = 0
    while at < len(message):
        count += 1
        if count > most:
            raise _Broken(f"it has more than {most} entries")
        tag, at = _varint(message, at)
        wire_type = tag & 7
        if wire_type == 0:
            integer, at = _varint(message, at)
            yield tag >> 3, integer
            continue
        if wire_type == 2:
            size, at = _varint(message, at)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise _Broken(f"it holds a field of the unknown type {wire_type}")
        if size > len(message) - at:
            raise _Broken(f"it holds a field of {size} bytes where {len(message) - at} are left")
        yield tag >> 3, message[at : at + size]
        at += size


_TAG_SELECTOR = np.tile(np.array([255, 255, 0], np.uint8), 1 << 13)  # pieces of 24 KB stay in the processor's cache
_TAGS = bytes([10, 1, 0]) * (1 << 13)


def _all_tagged(payload: NDArray[np.uint8]) -> bool:
    """Whether every three bytes are (tag 10, length 1, any)."""
    for at in range(0, payload.size, _TAG_SELECTOR.size):
        piece = payload[at : at + _TAG_SELECTOR.size]
        if (piece & _TAG_SELECTOR[: piece.size]).tobytes() != _TAGS[: piece.size]:
            return False
    return True
