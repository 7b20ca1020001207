"""MOVi: exactly the frames that TensorFlow reads, scaled as PyTorch would, clips whole and named when damaged."""

import hashlib
import io
import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn.functional import interpolate

from left_out import needs
from slotnorm.cli.verbs import main
from slotnorm.data import Scenes, movi
from slotnorm.data.tfrecord import Example, RecordError, records
from slotnorm.errors import UserError
from tfrecord_writer import example, integers_feature, strings_feature, write_records

pytestmark = needs("tests/fixtures/movi_c")

FIXTURES = Path(__file__).parent / "fixtures"
FOLDER = FIXTURES / "movi_c"
SHARD = FOLDER / "movi_c-test.tfrecord-00000-of-00001"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())["movi_c"]


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def png(array, **options):
    content = io.BytesIO()
    Image.fromarray(array).save(content, "png", **options)
    return content.getvalue()


def pictures(frames, size=8, seed=0):
    generator = np.random.default_rng(seed)
    video = generator.integers(0, 256, (frames, size, size, 3), dtype=np.uint8)
    return video, generator.integers(0, 3, (frames, size, size), dtype=np.uint8)


def clip_record(video, segmentations, objects=2):
    return example(
        {
            "video": strings_feature([frame if isinstance(frame, bytes) else png(frame) for frame in video]),
            "segmentations": strings_feature(
                [frame if isinstance(frame, bytes) else png(frame) for frame in segmentations]
            ),
            "metadata/num_instances": integers_feature([objects]),
        }
    )


def write_shards(folder, clips, shards=1, split="test", variant="c"):
    """`clips` records, dealt out to `shards` files."""
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(len(clips)), shards)):
        path = folder / f"movi_{variant}-{split}.tfrecord-{number:05}-of-{shards:05}"
        write_records(path, [clips[position] for position in part])
    return folder


@pytest.fixture(scope="module")
def decoded():
    clips = []
    for record in records(SHARD):
        read = Example(record, "here")
        video = np.stack([movi.decode_png(bytes(frame), "RGB", "here") for frame in read.strings("video", 99)])
        segmentations = np.stack(
            [movi.decode_png(bytes(frame), "L", "here") for frame in read.strings("segmentations", 99)]
        )
        clips.append((video, segmentations))
    return clips


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    return movi.convert(FOLDER, "c", "test", tmp_path_factory.mktemp("movi") / "test", workers=2)


def test_frames_are_exactly_what_tensorflow_reads(decoded):
    for (video, segmentations), expected in zip(decoded, EXPECTED, strict=True):
        assert video.shape == (24, 256, 256, 3)
        assert digest(video) == expected["video"]
        assert digest(segmentations) == expected["segmentations"]


def test_every_frame_is_a_scene_and_clips_stay_together(converted):
    assert len(converted) == 48
    assert converted.counts.tolist() == [clip["num_instances"] for clip in EXPECTED for _ in range(24)]
    assert converted.properties["clip"].tolist() == [0] * 24 + [1] * 24
    assert converted.properties["frame"].tolist() == [*range(24)] * 2
    six = converted.filter(max_objects=6)
    assert np.unique(six.properties["clip"]).tolist() == [1]
    assert len(six) == 24


def test_frames_are_scaled_bicubically_and_segmentations_by_the_nearest_pixel(converted, decoded):
    for clip, (video, segmentations) in enumerate(decoded):
        for frame in (0, 11, 23):
            picture = torch.from_numpy(video[frame]).permute(2, 0, 1)[None].double()
            exact = interpolate(picture, size=(224, 224), mode="bicubic", align_corners=False, antialias=False)[0]
            exact = exact.permute(1, 2, 0).clamp(0, 255).numpy()
            assert np.abs(converted.images[24 * clip + frame] - exact).max() < 0.5 + 1e-4
            labels = interpolate(
                torch.from_numpy(segmentations[frame])[None, None], size=(224, 224), mode="nearest-exact"
            )
            assert np.array_equal(converted.labels[24 * clip + frame], labels[0, 0].numpy())


def test_at_the_published_size_frames_stay_as_they_are(decoded, tmp_path):
    scenes = movi.convert(FOLDER, "c", "test", tmp_path / "out", size=256, workers=1)
    assert np.array_equal(scenes.images[:24], decoded[0][0])
    assert np.array_equal(scenes.labels[24:], decoded[1][1])


def test_shards_are_read_in_their_order(tmp_path):
    clips = [clip_record(*pictures(2, seed=number), objects=number) for number in range(5)]
    folder = write_shards(tmp_path / "shards", clips, shards=3, split="validation", variant="e")
    scenes = movi.convert(folder, "e", "val", tmp_path / "out", size=8, workers=1)
    assert scenes.counts.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert np.array_equal(scenes.images[6:8], pictures(2, seed=3)[0])
    assert scenes.manifest["provenance"]["dataset"] == "movi-e"


def test_the_folder_above_the_version_is_found_too(tmp_path):
    folder = tmp_path / "movi_c" / "256x256"
    folder.mkdir(parents=True)
    write_shards(folder / "1.0.0", [clip_record(*pictures(1))])
    assert movi.find_shards(tmp_path, "c", "test")[0].parent == folder / "1.0.0"


def test_missing_shards_are_named(tmp_path):
    folder = write_shards(tmp_path / "shards", [clip_record(*pictures(1))] * 4, shards=4)
    (folder / "movi_c-test.tfrecord-00001-of-00004").unlink()
    (folder / "movi_c-test.tfrecord-00003-of-00004").unlink()
    with pytest.raises(UserError, match="misses 2 of 4 shards: .*-00001-of-00004, .*-00003-of-00004; download them"):
        movi.convert(folder, "c", "test", tmp_path / "out", workers=1)
    write_shards(folder, [clip_record(*pictures(1))])
    with pytest.raises(UserError, match="mixes shards of 00001 and 00004 files"):
        movi.convert(folder, "c", "test", tmp_path / "out", workers=1)
    with pytest.raises(UserError, match="holds no movi_d-test.tfrecord-NNNNN-of-NNNNN; give the folder of MOVi-D"):
        movi.convert(folder, "d", "test", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_shard_with_fewer_clips_than_published_is_noticed(tmp_path):
    """A file cut exactly between two records has no other sign of it."""
    folder = write_shards(tmp_path / "shards", [clip_record(*pictures(1))] * 4, shards=2)
    description = {"splits": [{"name": "test", "shardLengths": ["2", "3"]}]}
    (folder / "dataset_info.json").write_text(json.dumps(description))
    with pytest.raises(RecordError, match="00001-of-00002 holds 2 clips, and dataset_info.json beside it says 3"):
        movi.convert(folder, "c", "test", tmp_path / "out", workers=1)
    assert not (tmp_path / "out" / "manifest.json").exists()
    (folder / "dataset_info.json").write_text("{}")
    with pytest.raises(UserError, match="does not list the shards"):
        movi.convert(folder, "c", "test", tmp_path / "out", workers=1)


class Stopped(Exception):
    pass


def test_an_interrupted_conversion_continues_to_the_same_bytes(tmp_path, monkeypatch):
    clips = [clip_record(*pictures(3, seed=number), objects=number) for number in range(6)]
    folder = write_shards(tmp_path / "shards", clips, shards=2)
    whole = movi.convert(folder, "c", "test", tmp_path / "whole", size=8, workers=1)
    read = []

    def stopping(path, start=0):
        for record in records(path, start):
            read.append(path)
            if len(read) == 6:  # the first clip is also looked at before
                raise Stopped
            yield record

    monkeypatch.setattr(movi, "records", stopping)
    with pytest.raises(Stopped):
        movi.convert(folder, "c", "test", tmp_path / "stopped", size=8, workers=1)
    monkeypatch.setattr(movi, "records", records)
    half_built = json.loads((tmp_path / "stopped" / "building.json").read_text())
    assert 0 < half_built["done"] < 18
    assert movi.convert(folder, "c", "test", tmp_path / "stopped", size=8, workers=1).fingerprint == whole.fingerprint


def damaged_idat(content):
    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 1
    return bytes(damaged)


def with_right_checksums(content):
    """A PNG whose pixels cannot be unpacked, though every chunk's checksum is right."""
    at = content.index(b"IDAT")
    (length,) = struct.unpack_from(">I", content, at - 4)
    chunk = b"IDAT" + bytes(length)
    return content[:at] + chunk + struct.pack(">I", zlib.crc32(chunk)) + content[at + 8 + length :]


def claiming(width, height):
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(300))), (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + chunks


GOOD = png(pictures(1)[0][0])


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (damaged_idat(GOOD), "is damaged: a checksum is wrong"),
        (GOOD[:-20], "is cut short"),
        (GOOD + b"\0", "is cut short"),
        (GOOD[:40], "is cut short"),
        (b"", "does not begin like one"),
        (b"GIF89a" + bytes(50), "does not begin like one"),
        (with_right_checksums(GOOD), "cannot be decoded"),
        (claiming(9000, 9000), "claims 9000 x 9000 pixels"),
        (claiming(0, 0), "claims 0 x 0 pixels"),
        (claiming(512, 512), "cannot be decoded"),
        (png(np.zeros((8, 8), np.uint8)), "has colours of mode L, not RGB"),
    ],
)
def test_a_corrupt_frame_is_named_by_clip_and_frame(tmp_path, frame, sentence):
    video, segmentations = pictures(3)
    good = clip_record(video, segmentations)
    folder = write_shards(tmp_path / "shards", [good, clip_record([video[0], frame, video[2]], segmentations)])
    with pytest.raises(RecordError, match=f"record 1: clip 1, frame 1: the PNG {sentence}"):
        movi.convert(folder, "c", "test", tmp_path / "out", size=8, workers=1)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_corrupt_frame_is_named_by_other_processes_too(tmp_path):
    video, segmentations = pictures(2)
    folder = write_shards(tmp_path / "shards", [clip_record([video[0], GOOD[:-20]], segmentations)] * 3)
    with pytest.raises(RecordError, match="record 0: clip 0, frame 1: the PNG is cut short"):
        movi.convert(folder, "c", "test", tmp_path / "out", size=8, workers=2)


def reading(content, mode):
    try:
        array = movi.decode_png(content, mode, "here")
    except RecordError as error:
        assert str(error).startswith("here: the PNG ")  # noqa: PT017
    else:
        assert array.dtype == np.uint8


def with_checksums_set_right(content):
    """Make all chunk checksums of a damaged PNG right, so that the damage reaches the decoder."""
    fixed, at = bytearray(content), 8
    while len(fixed) - at >= 12:
        (length,) = struct.unpack_from(">I", fixed, at)
        if at + 12 + length > len(fixed):
            break
        crc = zlib.crc32(bytes(fixed[at + 4 : at + 8 + length]))
        struct.pack_into(">I", fixed, at + 8 + length, crc)
        at += 12 + length
    return bytes(fixed)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255), st.integers(0, len(GOOD)), st.sampled_from(["RGB", "L"]))
def test_damaged_pictures_give_our_own_exception_or_a_picture(at, change, length, mode):
    damaged = bytearray(GOOD)
    damaged[at] ^= change
    for content in (bytes(damaged), bytes(damaged[:length]), bytes(damaged[length:])):
        reading(content, mode)
        reading(with_checksums_set_right(content), mode)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes_as_a_picture_give_our_own_exception(content):
    reading(content, "RGB")
    reading(with_checksums_set_right(GOOD[:33] + content), "RGB")


def test_clips_that_do_not_fit_are_refused(tmp_path):
    video, segmentations = pictures(3)
    good = clip_record(video, segmentations)
    for number, (clip, sentence) in enumerate(
        [
            (clip_record(video[:2], segmentations), "record 1: 'video' has 2 frames, and the first clip has 3"),
            (clip_record(video, segmentations[:1]), "record 1: 'segmentations' has 1 frames"),
            (
                clip_record(video, pictures(3, size=9)[1]),
                "frame 0: the segmentation has 9 x 9 pixels, the picture 8 x 8",
            ),
            (clip_record([], []), "record 1: 'video' has no frames"),
            (clip_record(video, segmentations, objects=-1), "'metadata/num_instances' is -1"),
            (example({"video": strings_feature([])}), "has no 'metadata/num_instances', it holds 'video'"),
        ]
    ):
        folder = write_shards(tmp_path / f"shards{number}", [good, clip])
        with pytest.raises(RecordError, match=sentence):
            movi.convert(folder, "c", "test", tmp_path / f"out{number}", size=8, workers=1)


def test_misspelt_choices_are_refused(tmp_path):
    with pytest.raises(UserError, match="MOVi has no split 'tset'; did you mean 'test'"):
        movi.convert(FOLDER, "c", "tset", tmp_path)
    with pytest.raises(UserError, match="size 0 cannot be made"):
        movi.convert(FOLDER, "c", "test", tmp_path, size=0)
    with pytest.raises(UserError, match="holds no movi_c-test"):
        movi.convert(tmp_path / "nowhere", "c", "test", tmp_path)


def test_conversion_does_not_import_torch_and_needs_no_guarded_script(tmp_path):
    folder = write_shards(tmp_path / "shards", [clip_record(*pictures(2))] * 3)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom slotnorm.data import movi\n"
        f"scenes = movi.convert({str(folder)!r}, 'c', 'test', {str(tmp_path / 'out')!r}, size=8, workers=2)\n"
        "print(len(scenes), 'torch' in sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["6", "False"]


def test_the_command_says_what_it_made_and_where(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path))
    folder = write_shards(tmp_path / "shards", [clip_record(*pictures(2))], variant="d")
    main(
        [
            "data",
            "movi",
            "--variant",
            "d",
            "--split",
            "test",
            "--from",
            str(folder),
            "--protocol",
            "authors",
            "--size",
            "8",
        ]
    )
    built = tmp_path / "data" / "movi-d" / "authors" / "test"
    assert capsys.readouterr().out == f"test: 2 frames in {built}\n"
    assert len(Scenes.open(built)) == 2


@pytest.mark.parametrize("frames", [257, 100_000])
def test_a_clip_of_very_many_frames_is_refused(tmp_path, frames):
    dot, label = png(np.zeros((1, 1, 3), np.uint8)), png(np.zeros((1, 1), np.uint8))
    write_records(tmp_path / SHARD.name, [clip_record([dot] * frames, [label] * frames)])
    with pytest.raises(RecordError, match="record 0: 'video' is broken: it has more than 256 entries"):
        movi.convert(tmp_path, "c", "test", tmp_path / "out", workers=1)


def test_clips_that_would_fill_the_memory_are_refused(tmp_path):
    dot, label = png(np.zeros((1, 1, 3), np.uint8)), png(np.zeros((1, 1), np.uint8))
    write_records(tmp_path / SHARD.name, [clip_record([dot] * 200, [label] * 200)])
    with pytest.raises(UserError, match="clips of 200 frames at size 1024 take over 256 MiB; lower --size"):
        movi.convert(tmp_path, "c", "test", tmp_path / "out", size=1024, workers=1)
