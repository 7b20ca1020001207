"""The container: what is appended is read back, parts are taken without reading, damage is never used silently."""

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import slotnorm.data.scenes as scenes_module
from slotnorm.config import SceneSpec
from slotnorm.data import Builder, Scenes, cache_folder, load, set_folder
from slotnorm.data.generator import cached
from slotnorm.data.manifest import FORMAT, Field, checksum
from slotnorm.errors import DamagedFile, NonFinite, UserError
from slotnorm.storage import seals
from small_sets import build, random_arrays


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    return random_arrays()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("pristine") / "set").directory


@pytest.fixture
def scenes(pristine: Path, tmp_path: Path) -> Scenes:
    return Scenes.open(shutil.copytree(pristine, tmp_path / "set"))


def read_everything(directory: Path) -> None:
    scenes = Scenes.open(directory)
    for field in scenes.fields:
        scenes.read(field, range(len(scenes)))


def test_what_was_appended_is_read_back(scenes, arrays):
    assert len(scenes) == 40
    assert np.array_equal(scenes.images, arrays["images"])
    assert np.array_equal(scenes.labels, arrays["labels"])
    assert scenes.features is None
    assert np.array_equal(scenes.counts, arrays["counts"])
    assert scenes.counts.dtype == np.int64
    assert sorted(scenes.properties) == ["shape", "x"]
    assert all(np.array_equal(scenes.properties[name], arrays[name]) for name in ("shape", "x"))
    assert np.array_equal(scenes.index, np.arange(40))
    assert np.array_equal(scenes.read("labels", [3, 1]), arrays["labels"][[3, 1]])


def test_every_file_is_a_plain_npy_array(scenes, arrays):
    for name in ("images", "labels", "counts", "shape", "x"):
        assert np.array_equal(np.load(scenes.directory / f"{name}.npy", mmap_mode="r"), arrays[name])


def test_the_manifest_describes_the_set(scenes, arrays):
    manifest = json.loads((scenes.directory / "manifest.json").read_text())
    assert manifest["format"] == FORMAT
    assert manifest["protocol"] == "paper"
    assert manifest["provenance"] == {"made": "at random"}
    assert manifest["library"].startswith("slotnorm ")
    numbers, many = np.unique(arrays["counts"], return_counts=True)
    assert manifest["objects"] == {str(number): int(m) for number, m in zip(numbers, many, strict=True)}
    assert manifest["files"]["images"]["shape"] == [40, 8, 8, 3]
    for entry in manifest["files"].values():
        content = (scenes.directory / entry["file"]).read_bytes()
        assert entry["sha256"] == hashlib.sha256(content).hexdigest()
    assert sorted(path.name for path in scenes.directory.iterdir()) == sorted(
        ["manifest.json", *(entry["file"] for entry in manifest["files"].values())]
    )


def test_the_bytes_do_not_depend_on_the_chunks(tmp_path, arrays):
    first, other = build(tmp_path / "a", arrays, chunk=1), build(tmp_path / "b", arrays, chunk=40)
    assert first.fingerprint == other.fingerprint
    assert (first.directory / "manifest.json").read_bytes() == (other.directory / "manifest.json").read_bytes()
    assert build(tmp_path / "c", random_arrays(seed=1)).fingerprint != first.fingerprint


KEYS: list[Any] = [
    3, -1, np.int64(5), slice(2, 9, 3), slice(None, None, -1), [4, 4, 0], np.array([[1, 2], [3, 4]]), Ellipsis, (2, 1),
    (slice(1, 4), slice(None), 2), ([5, 1], 3), (7, slice(None), slice(2, 5), 1),
    (np.array([0, 3]), slice(1), np.int64(2)),
    (Ellipsis, 0), (None, 2), ([0, 1], [2, 3]), np.arange(12) % 3 == 0, [], (),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_field_of_a_part_is_indexed_as_an_array(scenes, arrays, key):
    part, expected = scenes[5:17], arrays["images"][5:17]
    assert np.array_equal(part.images[key], expected[key])


def test_a_field_of_a_part_looks_like_an_array(scenes, arrays):
    images, expected = scenes[[3, 9, 1]].images, arrays["images"][[3, 9, 1]]
    assert (images.shape, images.dtype, images.ndim, len(images)) == ((3, 8, 8, 3), np.uint8, 4, 3)
    assert np.array_equal(np.asarray(images), expected)
    assert np.asarray(images, dtype=np.float32).dtype == np.float32
    assert np.array_equal(np.stack(list(images)), expected)
    with pytest.raises(IndexError):
        images[3]
    with pytest.raises(ValueError, match="without a copy"):
        images.__array__(copy=False)


def test_parts_of_parts_keep_their_number_in_the_container(scenes, arrays):
    part = scenes[4:30].filter(max_objects=3)[::2]
    expected = np.flatnonzero(arrays["counts"][4:30] <= 3)[::2] + 4
    assert np.array_equal(part.index, expected)
    assert np.array_equal(part.images, arrays["images"][expected])
    assert np.array_equal(part.properties["x"], arrays["x"][expected])
    assert part.fingerprint == scenes.fingerprint
    assert np.array_equal(scenes[arrays["counts"] == 2].counts, arrays["counts"][arrays["counts"] == 2])


def test_filtering_keeps_scenes_between_both_ends(scenes, arrays):
    kept = scenes.filter(min_objects=2, max_objects=4)
    assert np.array_equal(kept.index, np.flatnonzero((arrays["counts"] >= 2) & (arrays["counts"] <= 4)))
    assert scenes.filter() is scenes
    with pytest.raises(UserError, match=r"no scene .* 7 to inf objects; its counts are 1 to 6"):
        scenes.filter(min_objects=7)


def test_a_set_without_masks_and_properties_cannot_be_filtered(tmp_path, arrays):
    scenes = build(tmp_path / "set", {"images": arrays["images"], "counts": np.zeros(40, dtype=int)})
    assert scenes.manifest["objects"] == {}
    with pytest.raises(UserError, match="neither masks nor properties"):
        scenes.filter(max_objects=6)


def test_the_sample_is_ordered_by_the_hash_of_the_scene_number(scenes):
    part = scenes.filter(max_objects=4)
    expected = sorted(part.index.tolist(), key=lambda number: hashlib.sha256(str(number).encode()).hexdigest())
    assert part.sample(9).index.tolist() == expected[:9]
    assert part.sample(1000).index.tolist() == expected


def test_slicing_and_filtering_read_no_pixels(scenes, monkeypatch):
    read = []
    original = scenes_module.Column.read
    monkeypatch.setattr(
        scenes_module.Column, "read", lambda self, index: (read.append(self.field.name), original(self, index))[1]
    )
    assert len(scenes[3:20].filter(max_objects=3).sample(4)) == 4
    assert set(read) == {"counts"}


def test_a_block_is_verified_when_it_is_first_read_and_not_again(tmp_path, monkeypatch):
    arrays = random_arrays(num=64, size=128)  # 16 scenes a block
    scenes = build(tmp_path / "set", arrays)
    verified = []
    monkeypatch.setattr(scenes_module, "checksum", lambda rows: (verified.append(len(rows)), checksum(rows))[1])
    scenes.read("images", [1, 17, 5])
    assert verified == [16, 16]
    scenes.read("images", [2, 31])
    assert verified == [16, 16]
    scenes[40:].read("images", [0])
    assert verified == [16, 16, 16]


def test_scenes_travel_to_another_process_without_their_pixels(scenes, arrays):
    sent = pickle.dumps(scenes[[7, 2]])
    assert len(sent) < 1000
    assert np.array_equal(pickle.loads(sent).images, arrays["images"][[7, 2]])
    with pytest.raises(DamagedFile, match="was built again while it was in use; start anew"):
        pickle.loads(sent.replace(scenes.fingerprint.encode(), b"0" * 64))


def test_one_scene_is_not_taken_by_a_number(scenes):
    with pytest.raises(TypeError, match="slice or an array"):
        scenes[3]


def test_an_unknown_field_is_refused_with_those_that_exist(scenes):
    with pytest.raises(UserError, match=r"no field 'label'; did you mean 'labels'\?"):
        scenes.read("label", [0])


def test_features_that_are_not_finite_are_refused_with_their_scene(tmp_path):
    features = np.zeros((6, 4, 3), dtype=np.float32)
    features[4, 1, 2] = 1e6  # beyond float16
    with Builder(tmp_path / "set", {"features": ((4, 3), "float16")}, num=6) as builder:
        builder.append(features=features[:3], counts=[1, 2, 3])
        with pytest.raises(NonFinite, match="features of scene 4 are not finite"):
            builder.append(features=features[3:], counts=[1, 2, 3])
        assert builder.done == 3
        features[4, 1, 2] = 7
        builder.append(features=features[3:], counts=[1, 2, 3])
        assert builder.finish().features[4, 1, 2] == 7


# ---------------------------------------------------------------------------------------------------- damage


def test_a_flipped_bit_anywhere_is_found(scenes):
    random = np.random.default_rng(0)
    for path in sorted(scenes.directory.iterdir()):
        original = path.read_bytes()
        for place in random.integers(len(original), size=40):
            content = bytearray(original)
            content[place] ^= 1 << random.integers(8)
            path.write_bytes(content)
            with pytest.raises(DamagedFile, match=path.name) as caught:
                read_everything(scenes.directory)
            assert "\n" not in str(caught.value)
        path.write_bytes(original)
    read_everything(scenes.directory)


def test_damage_names_the_file_and_the_block(tmp_path):
    scenes = build(tmp_path / "set", random_arrays(num=40, size=128))
    path = scenes.directory / "images.npy"
    content = bytearray(path.read_bytes())
    content[128 + 20 * 128 * 128 * 3] ^= 1
    path.write_bytes(content)
    scenes = Scenes.open(scenes.directory)
    assert scenes.read("images", [3]).shape == (1, 128, 128, 3)
    with pytest.raises(DamagedFile, match=r"images.npy is damaged in block 1 \(scenes 16 to 31\)"):
        scenes.read("images", [30])


@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 1000, -1, 10**6])
def test_a_file_of_another_length_is_refused_when_opened(scenes, length):
    path = scenes.directory / "images.npy"
    path.write_bytes((path.read_bytes() + b"\0")[:length] if length > 0 else path.read_bytes()[:length])
    with pytest.raises(DamagedFile, match=r"images.npy has \d+ bytes and should have"):
        Scenes.open(scenes.directory)


def test_a_missing_file_is_refused_when_opened(scenes):
    (scenes.directory / "labels.npy").unlink()
    with pytest.raises(DamagedFile, match=r"cannot read .*labels.npy"):
        Scenes.open(scenes.directory)


# ---------------------------------------------------------------------------------------------------- hostile manifests


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"null", b"[]", b"{}", b"3", b"\xff\xfe\x00", b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000, b'{"format": NaN}', b'{"format": ' + b"9" * 5000 + b"}",
        b'{"scenes": 1e999}', b'{"format": "slotnorm scenes 9"}',
    ],
    ids=lambda content: repr(content[:20]),
)  # fmt: skip
def test_a_manifest_that_is_none_is_one_sentence(scenes, content):
    (scenes.directory / "manifest.json").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"manifest.json") as caught:
        Scenes.open(scenes.directory)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def resealed(directory: Path, change: Any) -> None:
    """Write a changed manifest with a right checksum, as an attacker would."""
    manifest = json.loads((directory / "manifest.json").read_text())
    del manifest["checksum"]
    change(manifest)
    (directory / "manifest.json").write_bytes(seals.MANIFEST.close(manifest))


def renamed(name: str) -> Any:
    def change(manifest: Any) -> None:
        entry = manifest["files"].pop("images")
        manifest["files"][name] = {**entry, "file": f"{name}.npy"}

    return change


def updated(**changes: Any) -> Any:
    return lambda manifest: manifest.update(changes)


def entry_with(**changes: Any) -> Any:
    return lambda manifest: manifest["files"]["images"].update(changes)


@pytest.mark.parametrize(
    "change",
    [
        renamed("../images"), renamed("/etc/passwd"), renamed("a/../../b"), renamed(""), renamed("a" * 100_000),
        renamed("images\0"), entry_with(file="../set/images.npy"), entry_with(file=7),
        entry_with(shape="40"), entry_with(shape=[]), entry_with(shape=[40]), entry_with(shape=[40, 8, 8, -3]),
        entry_with(shape=[40, 8, 8, 10**30]), entry_with(shape=[40.0, 8, 8, 3]), entry_with(shape=[True, 8, 8, 3]),
        entry_with(shape=[40, 0, 8, 3]), entry_with(shape=[40, 8, 8, 3, 1, 1, 1]), entry_with(dtype="object"),
        entry_with(dtype=["u1"]), entry_with(dtype="float32"), entry_with(sha256="g" * 64), entry_with(sha256=None),
        entry_with(checksums=[]), entry_with(checksums="00"), entry_with(scenes_per_block=0),
        entry_with(scenes_per_block=10**12), entry_with(scenes_per_block="a"),
        updated(scenes=10**15), updated(scenes=-1), updated(scenes=0), updated(scenes="40"), updated(files=[]),
        updated(objects=3), updated(provenance="x"), updated(protocol=None),
        lambda manifest: manifest.pop("files"), lambda manifest: manifest["files"].pop("counts"),
        lambda manifest: manifest["files"].update(images=None),
    ],
)  # fmt: skip
def test_a_forged_manifest_is_one_sentence(scenes, change):
    resealed(scenes.directory, change)
    with pytest.raises(UserError) as caught:
        Scenes.open(scenes.directory)
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_changes_of_a_manifest_give_only_our_own_errors(scenes, data):
    path = scenes.directory / "manifest.json"
    original = path.read_bytes()

    def change(manifest: Any) -> None:
        place = manifest
        while True:
            key = data.draw(st.sampled_from(sorted(place)))
            if isinstance(place[key], dict) and place[key] and data.draw(st.booleans()):
                place = place[key]
            else:
                place[key] = data.draw(JSON)
                return

    try:
        resealed(scenes.directory, change)
        opened = Scenes.open(scenes.directory)
        assert len(opened) == 40
        assert opened.images is None or opened.images.shape == (40, 8, 8, 3)
    except UserError:
        pass  # and no other exception
    finally:
        path.write_bytes(original)


@pytest.mark.parametrize(
    ("shape", "dtype", "name"),
    [
        ((8, 8, 4), "uint8", "images"),
        ((8, 8), "uint16", "labels"),
        ((4, 3), "float32", "features"),
        ((0,), "uint8", "x"),
    ],
)
def test_fields_of_reserved_names_have_fixed_kinds(shape, dtype, name):
    with pytest.raises(UserError, match=name):
        Field(name, shape, dtype)


# ---------------------------------------------------------------------------------------------------- by name


def test_a_set_is_loaded_by_name_from_the_cache(tmp_path, monkeypatch, arrays):
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache"
    with pytest.raises(UserError, match=r"toy test \(paper\) is not built.*nothing is built yet"):
        load("toy")
    build(set_folder("toy", "test"), arrays)
    assert len(load("toy")) == 40
    assert load("toy", max_objects=2).counts.max() == 2
    with pytest.raises(UserError, match="built are: toy"):
        load("clevr", split="train")
    with pytest.raises(UserError, match="cannot name a dataset"):
        load("../toy")


def test_a_set_is_loaded_from_a_given_folder_or_its_split(tmp_path, arrays):
    build(tmp_path / "mine" / "test", arrays)
    assert (
        len(load("mine", directory=tmp_path / "mine")) == len(load("mine", directory=tmp_path / "mine" / "test")) == 40
    )
    with pytest.raises(UserError, match="holds no finished set"):
        load("mine", split="train", directory=tmp_path / "mine")


@pytest.mark.parametrize("variable", ["SLOTNORM_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_a_cache_that_cannot_be_written_is_one_sentence(monkeypatch, variable):
    for name in ("SLOTNORM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "/dev/null/no folder")
    sentence = r"^the cache folder /dev/null/no folder\S* cannot be written \(Not a directory\); set SLOTNORM_CACHE"
    with pytest.raises(UserError, match=sentence):
        cached(SceneSpec((1, 2), 16, style="flat"), 2)


def test_a_read_only_cache_serves_what_it_has_and_refuses_to_make_more(monkeypatch, tmp_path):
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path))
    spec = SceneSpec((1, 2), 16, style="flat")
    cached(spec, 3)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # whoever runs the tests may be allowed to do anything
    assert len(cached(spec, 2)) == 2
    with pytest.raises(UserError, match=f"the cache folder {tmp_path} cannot be written .it is read-only.; set SLOTN"):
        cached(spec, 4)


def test_without_a_home_the_cache_must_be_named(monkeypatch, tmp_path):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("SLOTNORM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(UserError, match="^there is no home folder to cache in; set SLOTNORM_CACHE to a folder$"):
        cache_folder()
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path


def test_the_cache_folder_defaults_to_the_users(monkeypatch, tmp_path):
    monkeypatch.delenv("SLOTNORM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / "slotnorm"


def test_opening_scenes_does_not_import_torch(scenes):
    modules = "slotnorm.data, slotnorm.data.folder, slotnorm.data.check, slotnorm.cli.verbs"
    opened = f"slotnorm.data.Scenes.open({str(scenes.directory)!r})"
    code = f"import sys, {modules}; {opened}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONWARNINGS": "error"})
