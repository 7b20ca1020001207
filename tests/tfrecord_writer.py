"""TFRecord files and tf.Examples for tests: what a writer does, so that the reader has something of known content."""

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import google_crc32c
import numpy as np


def masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc(packed))


def frame(data: bytes) -> bytes:
    return header(len(data)) + data + struct.pack("<I", masked_crc(data))


def gzip_like_tensorflow(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(content) + packer.flush()


def write_records(path: Path, records: Iterable[bytes], compressed: bool = False) -> Path:
    content = b"".join(frame(record) for record in records)
    path.write_bytes(gzip_like_tensorflow(content) if compressed else content)
    return path


def varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def strings_feature(values: Sequence[bytes]) -> bytes:
    return field(1, b"".join(field(1, value) for value in values))


def single_bytes_feature(values: bytes) -> bytes:
    strings = np.full((len(values), 3), (10, 1, 0), np.uint8)
    strings[:, 2] = np.frombuffer(values, np.uint8)
    return field(1, strings.tobytes())


def floats_feature(values: Sequence[float], packed: bool = True) -> bytes:
    if packed:
        return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
    return field(2, b"".join(b"\x0d" + struct.pack("<f", value) for value in values))


def integers_feature(values: Sequence[int], packed: bool = True) -> bytes:
    if packed:
        return field(3, field(1, b"".join(varint(value) for value in values)))
    return field(3, b"".join(b"\x08" + varint(value) for value in values))


def example(features: Mapping[str, bytes]) -> bytes:
    entries = (field(1, field(1, name.encode()) + field(2, feature)) for name, feature in features.items())
    return field(1, b"".join(entries))
