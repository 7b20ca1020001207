"""TFRecord and tf.Example reading: against files that TensorFlow wrote, and against every kind of damage."""

import hashlib
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isal import isal_zlib

from left_out import needs
from slotnorm.data import tfrecord
from slotnorm.data.tfrecord import Example, RecordError, records
from slotnorm.errors import DamagedFile, UserError
from tfrecord_writer import (
    example,
    field,
    floats_feature,
    frame,
    gzip_like_tensorflow,
    header,
    integers_feature,
    single_bytes_feature,
    strings_feature,
    write_records,
)

FIXTURES = Path(__file__).parent / "fixtures"
CLEVR = FIXTURES / "clevr_with_masks_8.tfrecords"
MOVI = FIXTURES / "movi_c" / "movi_c-test.tfrecord-00000-of-00001"
SOURCES = [pytest.param(CLEVR, id="clevr"), pytest.param(MOVI, id="movi", marks=needs("tests/fixtures/movi_c"))]
CONTENT = [np.random.default_rng(0).bytes(1500), b"", b"a", b"slots " * 100]


@pytest.fixture(params=[isal_zlib, zlib], ids=["isal", "zlib"])
def _library(request, monkeypatch):
    monkeypatch.setattr(tfrecord, "inflate_library", request.param)


@pytest.fixture(params=["plain", "gzip"])
def small_file(request, tmp_path):
    return write_records(tmp_path / "small.tfrecords", CONTENT, compressed=request.param == "gzip")


def test_the_fast_library_is_used_where_it_is_installed():
    assert tfrecord.inflate_library is isal_zlib


@pytest.mark.usefixtures("_library")
def test_records_are_read_back_whole(small_file):
    assert list(records(small_file)) == CONTENT
    assert list(records(small_file, start=2)) == CONTENT[2:]


@pytest.mark.usefixtures("_library")
@needs("tests/fixtures/movi_c")
def test_files_written_by_tensorflow_are_read():
    assert [len(record) for record in records(CLEVR)] == [3226280] * 8
    assert len(list(records(MOVI))) == 2


@pytest.mark.usefixtures("_library")
def test_a_gzip_file_of_several_members_is_one_file(tmp_path):
    path = tmp_path / "members.tfrecords"
    path.write_bytes(b"".join(gzip_like_tensorflow(frame(record)) for record in CONTENT))
    assert list(records(path)) == CONTENT


@pytest.mark.parametrize("mtime", [0, 1_700_000_000])
def test_files_packed_by_other_gzip_writers_are_read(tmp_path, mtime):
    import gzip

    path = tmp_path / "other.tfrecords"
    path.write_bytes(gzip.compress(b"".join(map(frame, CONTENT)), mtime=mtime))
    assert list(records(path)) == CONTENT


def test_a_plain_file_that_begins_like_gzip_is_read_as_plain(tmp_path):
    record = bytes(0x088B1F)
    path = write_records(tmp_path / "plain.tfrecords", [record])
    assert path.read_bytes()[:3] == b"\x1f\x8b\x08"
    assert list(records(path)) == [record]


def flip_bytes(source: Path, path: Path, flips: int, seed: int) -> int:
    """Change one byte at a time: each must be noticed, or the content is still exactly what was written.

    The latter happens in gzip alone: where content repeats itself, copying from another place before gives the same
    bytes. Returns how many changes were of that kind.
    """
    content = source.read_bytes()
    digests = [hashlib.sha256(record).digest() for record in records(source)]
    generator = np.random.default_rng(seed)
    harmless = 0
    for _ in range(flips):
        at, change = int(generator.integers(len(content))), int(generator.integers(1, 256))
        damaged = bytearray(content)
        damaged[at] ^= change
        path.write_bytes(damaged)
        try:
            read = [hashlib.sha256(record).digest() for record in records(path)]
        except RecordError as error:
            assert re.search(rf"{path.name}, record \d+", str(error))  # noqa: PT017
        else:
            assert read == digests, f"byte {at} changed by {change} was not noticed"
            harmless += 1
    return harmless


@pytest.mark.usefixtures("_library")
def test_every_one_of_500_flipped_bytes_is_noticed(small_file, tmp_path):
    assert flip_bytes(small_file, tmp_path / "flipped", flips=500, seed=1) == 0


@pytest.mark.parametrize("source", SOURCES)
def test_flipped_bytes_in_tensorflow_files_are_noticed(source, tmp_path):
    assert flip_bytes(source, tmp_path / source.name, flips=30, seed=2) == 0


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_500_flipped_bytes_in_tensorflow_files_are_noticed(source, tmp_path):
    assert flip_bytes(source, tmp_path / source.name, flips=500, seed=3) == 0


@pytest.mark.usefixtures("_library")
def test_every_bit_of_the_gzip_header_that_matters_is_noticed(tmp_path):
    """Compression level (byte 8: bits 1 and 2) is what other writers differ in; nothing else may."""
    path = write_records(tmp_path / "small.tfrecords", CONTENT, compressed=True)
    content = path.read_bytes()
    accepted = []
    for bit in range(80):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert list(records(path)) == CONTENT
            accepted.append(bit)
        except RecordError:
            pass
    assert accepted == [65, 66]


@pytest.mark.usefixtures("_library")
def test_a_file_cut_anywhere_but_between_records_is_noticed(small_file):
    content = small_file.read_bytes()
    plain = content[:2] != b"\x1f\x8b"
    ends = np.cumsum([0, *(len(frame(record)) for record in CONTENT)]).tolist()
    near_ends = {end + step for end in (*ends, len(content)) for step in range(-20, 20)}
    for length in sorted(near_ends | set(range(0, len(content), 7))):
        if length not in range(len(content)) or (plain and length in ends[1:]):
            continue
        small_file.write_bytes(content[:length])
        with pytest.raises(RecordError):
            list(records(small_file))


@pytest.mark.usefixtures("_library")
def test_the_record_number_is_the_damaged_record(tmp_path):
    parts = [bytearray(frame(record)) for record in CONTENT]
    parts[2][12] ^= 1
    (tmp_path / "x").write_bytes(gzip_like_tensorflow(b"".join(parts)))
    with pytest.raises(RecordError, match=r"x, record 2 \(counted from 0\): the checksum of its data is wrong"):
        list(records(tmp_path / "x"))


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("garbage", [b"\0", b"\x1f", b"\x1f\x8b", b"<html>", bytes(12), bytes(5000)])
def test_trailing_bytes_are_noticed(small_file, garbage):
    small_file.write_bytes(small_file.read_bytes() + garbage)
    with pytest.raises(RecordError):
        list(records(small_file))


def test_damage_is_found_in_skipped_records_too(tmp_path):
    parts = [bytearray(frame(record)) for record in CONTENT]
    parts[0][12] ^= 1
    (tmp_path / "x").write_bytes(b"".join(parts))
    with pytest.raises(RecordError, match="record 0"):
        list(records(tmp_path / "x", start=3))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, tfrecord.MAX_RECORD_BYTES + 1])
def test_a_huge_claimed_length_is_refused_before_reading(tmp_path, length):
    (tmp_path / "x").write_bytes(header(length) + bytes(100))
    with pytest.raises(RecordError, match=f"record 0 .* claims {length} bytes"):
        list(records(tmp_path / "x"))


BOMB = """
import resource, sys
from slotnorm.data import tfrecord
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    for record in tfrecord.records(sys.argv[1]):
        pass
except tfrecord.RecordError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, "torch" in sys.modules)
"""


@pytest.mark.parametrize("claimed", [None, tfrecord.MAX_RECORD_BYTES, 2**62])
def test_a_gzip_bomb_is_refused_in_bounded_memory(tmp_path, claimed):
    packer = zlib.compressobj(level=1, wbits=31)
    bomb = packer.compress(header(claimed) if claimed else b"")
    for _ in range(400):
        bomb += packer.compress(bytes(1 << 20))
    path = tmp_path / "bomb.tfrecords"
    path.write_bytes(bomb + packer.flush())
    assert path.stat().st_size < 4 << 20
    ended = subprocess.run([sys.executable, "-c", BOMB, path], capture_output=True, text=True, check=True)
    message, memory = ended.stdout.splitlines()
    megabytes, torch_is_imported = memory.split()
    assert "bomb.tfrecords, record 0" in message
    assert int(megabytes) < 300
    assert torch_is_imported == "False"


def many(values: bytes, room: int = 16 << 20) -> bytes:
    """As many of these bytes as a quarter of the largest record has room for."""
    return values * (room // len(values))


def many_entries(count: int = 700_000) -> bytes:
    """A map from different names of seven digits to nothing."""
    digits = np.arange(count)[:, None] // 10 ** np.arange(7) % 10 + ord("0")
    entry = np.frombuffer(field(1, field(1, b"digits!")), np.uint8)
    entries = np.tile(entry, (count, 1))
    entries[:, -7:] = digits
    return field(1, entries.tobytes())


def with_list(name: str, payload: bytes) -> bytes:
    return example({"metadata/num_instances": integers_feature([1]), name: payload})


# what a record can hold of tiny things; the file is some kilobytes long, and objects for them took a gigabyte
TINY = {
    "empty strings": lambda: with_list("video", field(1, many(b"\x0a\x00"))),
    "unknown fields": lambda: with_list("video", field(1, many(b"\x10\x00"))),
    "integers": lambda: with_list("metadata/num_instances", field(3, field(1, many(b"\x00")))),
    "integers apart": lambda: with_list("metadata/num_instances", field(3, many(b"\x08\x00"))),
    "floats": lambda: with_list("visibility", field(2, field(1, many(bytes(4))))),
    "floats apart": lambda: with_list("visibility", field(2, many(b"\x0d\x00\x00\x00\x00"))),
    "names": many_entries,
    "a long name": lambda: field(1, field(1, field(1, many(b"x") + "\N{ROSE}".encode()))),
}

READ = """
import resource, sys
from slotnorm.data.movi import _read_clip
from slotnorm.data.clevr import read_properties
from slotnorm.data.tfrecord import Example, RecordError, records
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    for record in records(path):
        for read in (lambda: _read_clip(record, path, 0), lambda: read_properties(Example(record, path), path)):
            try:
                read()
            except RecordError as error:
                print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_many_tiny_values_are_counted_before_they_are_kept(tmp_path):
    """Read as MOVi and as CLEVR, in one process: its peak is that of the worst file."""
    paths = [write_records(tmp_path / kind, [make_record()], compressed=True) for kind, make_record in TINY.items()]
    ended = subprocess.run([sys.executable, "-c", READ, *paths], capture_output=True, text=True, check=True)
    *sentences, megabytes = ended.stdout.splitlines()
    for path in paths:
        problem = " and ".join(sentence for sentence in sentences if sentence.startswith(f"{path}: "))
        counted = "has more than (1|11|256|1000) (entries|numbers)|a feature's name has 16777220 bytes"
        assert re.search(counted, problem), f"{path.name}: {problem}"
        assert len(problem) < 1000
    assert int(megabytes) < 300


def test_what_is_no_file_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*nowhere: No such file"):
        list(records(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"cannot read .*Is a directory"):
        list(records(tmp_path))
    (tmp_path / "page").write_text("<!doctype html><title>Not found</title>")
    with pytest.raises(RecordError, match="or it is not a TFRecord file"):
        list(records(tmp_path / "page"))
    (tmp_path / "nothing").write_bytes(gzip_like_tensorflow(b""))
    with pytest.raises(DamagedFile, match="the file holds no record"):
        list(records(tmp_path / "nothing"))
    (tmp_path / "empty").touch()
    with pytest.raises(DamagedFile, match="the file holds no record"):
        list(records(tmp_path / "empty"))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_give_our_own_exception_or_nothing(tmp_path_factory, content, compressed):
    path = tmp_path_factory.getbasetemp() / "random.tfrecords"
    path.write_bytes(gzip_like_tensorflow(content) if compressed else content)
    try:
        list(records(path))
    except RecordError as error:
        assert "random.tfrecords, record" in str(error)  # noqa: PT017
    else:
        pytest.fail("200 random bytes passed two checksums")


# --- tf.Example


def read_all(record: bytes) -> None:
    """Call every reader on every feature: only a RecordError may come out."""
    try:
        read = Example(record, "here")
    except RecordError as error:
        assert str(error).startswith("here: ")  # noqa: PT017
        return
    for name in read.names:
        for reader in (
            lambda name: read.strings(name, 100),
            read.floats,
            read.integers,
            lambda name: read.single_bytes(name, 4),
        ):
            try:
                reader(name)
            except RecordError as error:
                assert str(error).startswith("here: ")  # noqa: PT017


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=120))
def test_random_bytes_as_an_example_give_our_own_exception_or_nothing(record):
    read_all(record)
    read_all(field(1, field(1, field(1, b"name") + field(2, record))))
    for kind in (1, 2, 3):
        read_all(field(1, field(1, field(1, b"name") + field(2, field(kind, record)))))


WHOLE = example(
    {
        "bytes": single_bytes_feature(b"\x00\x0a\x01\xff"),
        "floats": floats_feature([0.5, -1.0, 3.0]),
        "integers": integers_feature([3, -1, 300]),
        "names": strings_feature([b"", b"clip"]),
    }
)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_changed_example_gives_our_own_exception_or_other_values(at, change):
    damaged = bytearray(WHOLE)
    damaged[at] ^= change
    read_all(bytes(damaged))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.binary(max_size=5), max_size=5),
    st.lists(st.floats(width=32, allow_nan=False), max_size=5),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
    st.binary(max_size=20),
    st.booleans(),
)
def test_what_is_written_is_read(texts, floats, integers, single, packed):
    features = {
        "texts": strings_feature(texts),
        "floats": floats_feature(floats, packed),
        "integers": integers_feature(integers, packed),
        "single": single_bytes_feature(single),
    }
    read = Example(example(features), "here")
    assert read.names == list(features)
    assert [bytes(text) for text in read.strings("texts", 100)] == texts
    assert read.floats("floats").tolist() == floats
    assert read.integers("integers").tolist() == integers
    assert read.single_bytes("single", len(single)).tobytes() == single


def test_one_byte_strings_are_a_view_and_long_ones_are_read_in_pieces():
    values = bytes(range(256)) * 1000
    record = example({"image": single_bytes_feature(values)})
    view = Example(record, "here").single_bytes("image", len(values))
    assert view.tobytes() == values
    assert view.base is not None
    assert not view.flags.owndata
    assert view.strides == (3,)


def test_a_list_that_is_not_of_one_byte_strings_is_refused_wherever_it_differs():
    """Strings of 2 and of 0 bytes have together the length of two one-byte strings: every tag must be looked at."""
    for before in (0, 1, 8191, 8192, 20000):
        strings = [b"x"] * before + [b"xy", b""] + [b"x"] * 7
        with pytest.raises(RecordError, match="'image' is not a list of"):
            Example(example({"image": strings_feature(strings)}), "here").single_bytes("image", before + 9)


def test_the_wrong_dataset_is_told_by_what_is_missing_or_different():
    read = Example(WHOLE, "here")
    with pytest.raises(RecordError, match="here: has no 'mask', it holds 'bytes', 'floats', 'integers', 'names'"):
        read.strings("mask", 9)
    with pytest.raises(RecordError, match="here: 'floats' is a list of floats, not of strings"):
        read.strings("floats", 9)
    with pytest.raises(RecordError, match="'floats' has 3 numbers, not 11"):
        read.floats("floats", 11)
    with pytest.raises(RecordError, match="'integers' is broken: it has more than 1 numbers: another dataset?"):
        read.integers("integers", 1)
    with pytest.raises(RecordError, match="'bytes' is not a list of 5 one-byte strings"):
        read.single_bytes("bytes", 5)
    with pytest.raises(RecordError, match=r"is not a tf\.Example"):
        Example(struct.pack("<Q", 2**63), "here")
