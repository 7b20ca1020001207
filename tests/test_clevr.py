"""CLEVR with masks: exactly what TensorFlow reads, cut and scaled as PyTorch would, whole or refused."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from left_out import needs
from slotnorm.cli.verbs import main
from slotnorm.data import Scenes, clevr
from slotnorm.data.tfrecord import Example, RecordError, records
from slotnorm.errors import UserError
from slotnorm.experiments import TEST_SCENES
from tfrecord_writer import example, floats_feature, single_bytes_feature, strings_feature, write_records

FIXTURES = Path(__file__).parent / "fixtures"
FILE = FIXTURES / "clevr_with_masks_8.tfrecords"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())[FILE.name]
OBJECTS = [scene["objects"] for scene in EXPECTED]


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@pytest.fixture(scope="module")
def decoded():
    return [at_full_size(Example(record, "here")) for record in records(FILE)]


def at_full_size(example):
    masks = example.single_bytes("mask", 11 * 240 * 320).reshape(11, 240, 320)
    image = example.single_bytes("image", 240 * 320 * 3).reshape(240, 320, 3).copy()
    return {"image": image, "labels": clevr.labels_of(masks, "here"), **clevr.read_properties(example, "here")}


def made_up_scene(**changes):
    """A scene of two objects, the second left of the window; `changes` replace features, or (None) remove them."""
    masks = np.zeros((11, 240, 320), np.uint8)
    masks[1, 100:120, 150:170] = 255
    masks[2, 100:120, 10:30] = 255
    masks[0] = 255 - masks[1] - masks[2]
    codes = single_bytes_feature(bytes([0, 1, 2, *bytes(8)]))
    features = {
        "image": single_bytes_feature(bytes(240 * 320 * 3)),
        "mask": single_bytes_feature(masks.tobytes()),
        "visibility": floats_feature([1.0] * 3 + [0.0] * 8),
        **dict.fromkeys(("shape", "size", "material", "color"), codes),
        **dict.fromkeys(("x", "y", "z", "rotation"), floats_feature([0.5] * 11)),
        "pixel_coords": floats_feature([1.0] * 33),
        **changes,
    }
    return example({name: feature for name, feature in features.items() if feature is not None})


def test_scenes_are_exactly_what_tensorflow_reads(decoded):
    assert len(decoded) == len(EXPECTED)
    for scene, expected in zip(decoded, EXPECTED, strict=True):
        assert scene["image"].shape == (240, 320, 3)
        assert digest(scene["image"]) == expected["image"]
        assert digest(scene["labels"]) == expected["labels"]
        assert scene["counts"] == expected["objects"]
        assert [0, *scene["shape"].tolist()] == expected["shape"]
        assert [0, *scene["color"].tolist()] == expected["color"]
        np.testing.assert_allclose([0, *scene["x"]], expected["x"], atol=1e-5)


@pytest.mark.parametrize("protocol", ["paper", "authors"])
@pytest.mark.parametrize(("crop", "top"), [("centre", 24), ("slot-attention-2020", 29)])
def test_images_and_labels_are_cut_and_scaled_by_protocol(decoded, tmp_path, protocol, crop, top):
    scenes = clevr.convert(FILE, tmp_path, protocol, crop, splits=(8, 0, 0))["train"]
    for position, scene in enumerate(decoded):
        window = torch.from_numpy(scene["image"][top : top + 192, 64:256]).permute(2, 0, 1)[None].double()
        if protocol == "paper":
            scaled = interpolate(window, size=(128, 128), mode="bilinear", align_corners=False, antialias=False).round()
        else:
            scaled = interpolate(window, size=(128, 128), mode="nearest-exact")
        assert np.array_equal(scenes.images[position], scaled[0].permute(1, 2, 0).numpy())
        labels = torch.from_numpy(scene["labels"][top : top + 192, 64:256])[None, None]
        scaled = interpolate(labels, size=(128, 128), mode="nearest-exact")
        assert np.array_equal(scenes.labels[position], scaled[0, 0].numpy())


def test_all_properties_and_their_names_are_kept(decoded, tmp_path):
    scenes = clevr.convert(FILE, tmp_path, splits=(6, 1, 1))["train"]
    assert scenes.counts.tolist() == OBJECTS[:6]
    names = {"shape", "size", "material", "color", "x", "y", "z", "rotation", "pixel_coords", "visibility"}
    assert set(scenes.properties) == names
    for name in names:
        assert np.array_equal(scenes.properties[name], np.stack([scene[name] for scene in decoded[:6]]))
    # a large object stands higher than a small one, as its name says
    sizes = np.array(["", *scenes.manifest["properties"]["size"]])[scenes.properties["size"]]
    assert np.allclose(scenes.properties["z"][sizes == "large"], 0.7)
    assert np.allclose(scenes.properties["z"][sizes == "small"], 0.35)
    assert scenes.manifest["protocol"] == "paper"
    assert scenes.manifest["provenance"]["source"]["bytes"] == FILE.stat().st_size


def test_colour_names_are_those_of_the_pictures(decoded):
    """The mean tint under the mask of each rubber object is nearest to that of the colour its code names."""
    rgb = {
        "red": (173, 35, 35), "blue": (42, 75, 215), "green": (29, 105, 20), "brown": (129, 74, 25),
        "cyan": (41, 208, 208), "purple": (129, 38, 192), "yellow": (255, 238, 51),
    }  # fmt: skip
    tints = {name: np.array(value) - np.mean(value) for name, value in rgb.items()}
    seen = set()
    for scene in decoded:
        for label in range(1, int(scene["counts"]) + 1):
            pixels = scene["image"][scene["labels"] == label]
            if scene["material"][label - 1] == 1 and len(pixels) > 100:
                tint = pixels.mean(axis=0) - pixels.mean()
                closest = max(tints, key=lambda name: tints[name] @ tint / np.linalg.norm(tints[name]))
                named = clevr.PROPERTIES["color"][scene["color"][label - 1] - 1]
                assert named == ("gray" if np.abs(tint).max() < 12 else closest)
                seen.add(named)
    assert len(seen) >= 5


def test_objects_outside_the_window_are_counted(tmp_path):
    path = write_records(tmp_path / "two.tfrecords", [made_up_scene()] * 2, compressed=True)
    scenes = clevr.convert(path, tmp_path / "out")["train"]
    assert scenes.counts.tolist() == [2, 2]
    assert np.unique(scenes.labels[0]).tolist() == [0, 1]


def test_a_short_file_goes_to_train_and_the_other_sets_do_not_exist(tmp_path):
    scenes = clevr.convert(FILE, tmp_path)
    assert {name: len(part) for name, part in scenes.items()} == {"train": 8}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train"]


def test_splits_follow_the_order_of_the_file(tmp_path):
    scenes = clevr.convert(FILE, tmp_path, splits=(3, 2, 3))
    assert [scenes[name].counts.tolist() for name in ("train", "val", "test")] == [
        OBJECTS[:3],
        OBJECTS[3:5],
        OBJECTS[5:],
    ]


def test_scenes_after_the_last_split_are_not_used_and_that_is_said(tmp_path, caplog):
    scenes = clevr.convert(FILE, tmp_path, splits=(2, 0, 1))
    assert {name: len(part) for name, part in scenes.items()} == {"train": 2, "test": 1}
    assert "goes on after these scenes" in caplog.text


def test_the_test_sets_are_written_as_manifests(tmp_path):
    test = clevr.convert(FILE, tmp_path, splits=(0, 0, 8))["test"]
    for name, most in (("clevr6", 6), ("clevr10", 10)):
        manifest = json.loads((tmp_path / f"{name}.json").read_text())
        by_hash = sorted(range(8), key=lambda index: hashlib.sha256(str(index).encode()).hexdigest())
        assert manifest["indices"] == [index for index in by_hash if OBJECTS[index] <= most]
        assert manifest["fingerprint"] == test.fingerprint
        assert manifest["scenes"] == len(manifest["indices"]) <= TEST_SCENES == 1280


class Stopped(Exception):
    pass


@pytest.mark.parametrize("after", [1, 6])
def test_an_interrupted_conversion_continues_to_the_same_bytes(tmp_path, monkeypatch, after):
    monkeypatch.setattr(clevr, "_CHUNK", 2)
    whole = clevr.convert(FILE, tmp_path / "whole", splits=(5, 1, 2))

    def stopping(path, start, largest):
        for number, record in enumerate(records(path, start, largest), start):
            if number == after:
                raise Stopped
            yield record

    monkeypatch.setattr(clevr, "records", stopping)
    with pytest.raises(Stopped):
        clevr.convert(FILE, tmp_path / "stopped", splits=(5, 1, 2))
    monkeypatch.setattr(clevr, "records", records)
    resumed = clevr.convert(FILE, tmp_path / "stopped", splits=(5, 1, 2))
    assert {name: part.fingerprint for name, part in resumed.items()} == {
        name: part.fingerprint for name, part in whole.items()
    }


@pytest.mark.slow
def test_a_conversion_killed_again_and_again_continues_to_the_same_bytes(tmp_path):
    path = write_records(tmp_path / "many.tfrecords", list(records(FILE)) * 12)
    whole = clevr.convert(path, tmp_path / "whole", splits=(50, 20, 26))
    command = [sys.executable, "-m", "slotnorm", "data", "clevr", "--from", path, "--out", tmp_path / "killed"]
    generator = np.random.default_rng(0)
    kills = 0
    while True:
        process = subprocess.Popen([*command, "--splits", "50", "20", "26"], stderr=subprocess.DEVNULL)
        try:
            assert process.wait(timeout=0.2 + 0.5 * generator.random() * kills) == 0
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
    for name, part in whole.items():
        assert Scenes.open(tmp_path / "killed" / name).fingerprint == part.fingerprint


def test_a_finished_conversion_is_not_done_again(tmp_path, monkeypatch):
    first = clevr.convert(FILE, tmp_path, splits=(5, 1, 2))
    monkeypatch.setattr(clevr, "records", None)
    again = clevr.convert(FILE, tmp_path, splits=(5, 1, 2))
    assert first["val"].fingerprint == again["val"].fingerprint
    with pytest.raises(UserError, match="already holds a set"):
        clevr.convert(FILE, tmp_path, splits=(4, 1, 2))


def test_the_number_of_workers_does_not_matter(tmp_path):
    prints = [clevr.convert(FILE, tmp_path / str(n), workers=n)["train"].fingerprint for n in (1, 3)]
    assert prints[0] == prints[1]
    with pytest.raises(UserError, match="0 workers cannot be used"):
        clevr.convert(FILE, tmp_path / "none", workers=0)


def test_a_damaged_record_is_named_and_no_set_comes_of_it(tmp_path):
    content = bytearray(FILE.read_bytes())
    content[400_000] ^= 4
    (tmp_path / "damaged.tfrecords").write_bytes(content)
    with pytest.raises(RecordError, match=r"damaged.tfrecords, record [2-7] "):
        clevr.convert(tmp_path / "damaged.tfrecords", tmp_path / "out")
    assert not list((tmp_path / "out").rglob("manifest.json"))
    with pytest.raises(UserError, match="half-built"):
        Scenes.open(tmp_path / "out" / "train")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mask": None}, "has no 'mask', it holds 'image', 'visibility'"),
        ({"x": None}, "has no 'x'"),
        ({"image": single_bytes_feature(bytes(240 * 320))}, "'image' is not a list of 230400 one-byte strings"),
        ({"image": strings_feature([bytes(240 * 320 * 3)])}, "'image' is not a list of 230400 one-byte strings"),
        ({"image": floats_feature([0.0])}, "'image' is a list of floats, not of strings"),
        ({"mask": single_bytes_feature(bytes([7]) * 11 * 240 * 320)}, "'mask' has other values than 0 and 255"),
        ({"visibility": floats_feature([1.0] * 10)}, "'visibility' has 10 numbers, not 11"),
        ({"visibility": floats_feature([0.3] * 11)}, "'visibility' is not 0 or 1"),
        ({"visibility": floats_feature([float("nan")] * 11)}, "'visibility' is not 0 or 1"),
        ({"shape": single_bytes_feature(bytes([4] * 11))}, "'shape' has the code 4, and 3 are known"),
        ({"y": floats_feature([float("inf")] * 11)}, "y of scene 0 are not finite"),
    ],
)
def test_another_dataset_is_refused_by_what_differs(tmp_path, changes, sentence):
    path = write_records(tmp_path / "other.tfrecords", [made_up_scene(**changes)])
    with pytest.raises(UserError, match=sentence) as caught:
        clevr.convert(path, tmp_path / "out", workers=1)
    assert "record 0" in str(caught.value) or "scene 0" in str(caught.value)
    assert not (tmp_path / "out" / "train" / "manifest.json").exists()


@needs("tests/fixtures/movi_c")
def test_a_movi_file_is_no_clevr_file(tmp_path):
    with pytest.raises(RecordError, match=r"record 0: has no 'image', it holds 'metadata/num_instances'"):
        clevr.convert(FIXTURES / "movi_c" / "movi_c-test.tfrecord-00000-of-00001", tmp_path)


def test_misspelt_choices_are_refused(tmp_path):
    with pytest.raises(UserError, match="did you mean 'authors'"):
        clevr.convert(FILE, tmp_path, protocol="author")
    with pytest.raises(UserError, match="slot-attention-2020"):
        clevr.convert(FILE, tmp_path, crop="top")
    with pytest.raises(UserError, match="must be numbers of scenes"):
        clevr.convert(FILE, tmp_path, splits=(0, 0, 0))
    with pytest.raises(UserError, match="cannot read"):
        clevr.convert(tmp_path / "nowhere", tmp_path)


def test_a_full_disk_is_told_before_it_begins(tmp_path, monkeypatch):
    from slotnorm.data import conversion

    usage = type("Usage", (), {"free": 10_000})
    monkeypatch.setattr(conversion.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(UserError, match=r"about 0\.0 GB are needed .* use another disk"):
        clevr.convert(FILE, tmp_path / "out")


CONVERSION = """
import resource, sys
from slotnorm.data import clevr
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
clevr.convert(sys.argv[1], sys.argv[2], workers=8)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, "torch" in sys.modules)
"""


def test_conversion_is_bounded_in_memory_and_does_not_import_torch(tmp_path):
    path = write_records(tmp_path / "many.tfrecords", list(records(FILE)) * 5)
    ended = subprocess.run(
        [sys.executable, "-c", CONVERSION, path, tmp_path / "out"], capture_output=True, text=True, check=True
    )
    megabytes, torch_is_imported = ended.stdout.split()
    assert int(megabytes) < 300
    assert torch_is_imported == "False"


def test_a_scene_is_no_larger_than_a_scene(tmp_path):
    """A thousandth of it is in the file where it is packed, and 8 threads have 17 of them waiting."""
    padded = made_up_scene(junk=strings_feature([bytes(1 << 20)]))
    path = write_records(tmp_path / "padded.tfrecords", [padded], compressed=True)
    with pytest.raises(RecordError, match=f"record 0 .* claims {len(padded)} bytes, and no record of this dataset has"):
        clevr.convert(path, tmp_path / "out", workers=1)


def test_the_command_says_what_it_made_and_where(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path))
    main(["data", "clevr", "--from", str(FILE)])
    folder = tmp_path / "data" / "clevr" / "paper"
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"train: 8 scenes in {folder / 'train'}"
    assert out[1:] == ["val: empty, the file ends before it", "test: empty, the file ends before it"]
    assert len(Scenes.open(folder / "train")) == 8


def test_the_command_ends_with_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["data", "clevr", "--from", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("slotnorm: cannot read")
