"""One picture in, masks out: any image, files that other programs read, and what happens to bad input."""

import dataclasses
import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import slotnorm
import tiny
from slotnorm.cli.verbs import main
from slotnorm.data.backbones import encoder_backbone
from slotnorm.data.image_files import read_image
from slotnorm.data.resize import method_of, resize
from slotnorm.errors import DamagedFile, UserError
from slotnorm.models import ImageAutoencoder, weights
from slotnorm.models.building import build
from slotnorm.report.segmenter import Segmenter, segment_files
from slotnorm.runtime.randomness import slot_noise

SLOTS = 6


@pytest.fixture(scope="module")
def model():
    return build(tiny.experiment())


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    weights.export(weights.Weights(model.state_dict(), model.experiment, 12, {}), path, "card")
    return path


@pytest.fixture
def photo(tmp_path):
    """A picture of 37 x 20 pixels with a gradient and two squares."""
    pixels = np.zeros((20, 37, 3), np.uint8)
    pixels[..., 0] = np.arange(37) * 6
    pixels[3:9, 5:12] = (250, 40, 30)
    pixels[10:18, 20:30] = (30, 60, 240)
    path = tmp_path / "photo.png"
    Image.fromarray(pixels).save(path)
    return path


def read(path):
    with Image.open(path) as image:
        image.load()
        return image


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_documented_walk_is_the_way_a_picture_takes(exported, photo, tmp_path, monkeypatch):
    """The picture has left a station when its module returns for the last time."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "docs"))
    walk = importlib.import_module("make_architecture").WALKS["slotnorm segment photo.png --run RUN"]
    source, left = Path(slotnorm.__file__).parent, {}

    def note(frame, event, argument):
        if event == "return":
            left.pop(frame.f_code.co_filename, None)
            left[frame.f_code.co_filename] = None  # a dictionary keeps the order

    sys.setprofile(note)
    try:
        main(["segment", str(photo), "--run", str(exported), "--out", str(tmp_path / "out")])
    finally:
        sys.setprofile(None)
    stations = [str(source / module) for module, _ in walk]
    assert [path for path in left if path in stations] == stations


def test_labels_cover_the_input_and_agree_with_the_model(model, photo, tmp_path):
    (line,) = segment_files(photo, Segmenter(model, SLOTS, seed=3), tmp_path / "out")
    folder = tmp_path / "out" / "photo"
    assert line.startswith("photo.png: 37x20, scaled to 8x8 for the model; ")
    assert line.endswith(str(folder))

    scaled = np.asarray(read(photo).resize((8, 8), Image.Resampling.BILINEAR))
    images = torch.from_numpy(scaled.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
    noise = torch.from_numpy(slot_noise(3, "segment", [(SLOTS,)], SLOTS, 8))
    with torch.no_grad():
        decomposition = model(images, num_slots=SLOTS, iterations=3, noise=noise)
    masks = torch.nn.functional.interpolate(
        decomposition.masks.double(), (20, 37), mode="bilinear", align_corners=False
    )
    labels = read(folder / "labels.png")
    assert labels.mode == "P"
    assert np.mean(np.asarray(labels) != masks[0].argmax(0).numpy()) < 0.01

    record = json.loads((folder / "slots.json").read_text())
    assert (record["width"], record["height"], record["scaled_to"]) == (37, 20, [8, 8])
    assert (record["num_slots"], record["seed"], record["norm"]) == (SLOTS, 3, "weighted_sum")
    assert [slot["attention_mass"] for slot in record["slots"]] == pytest.approx(
        decomposition.attention[0].sum(1).tolist(), rel=1e-4
    )
    assert sum(slot["attention_mass"] for slot in record["slots"]) == pytest.approx(record["tokens"], rel=1e-4)


@pytest.mark.parametrize(("dataset", "protocol"), [("clevr", "paper"), ("clevr", "authors"), ("toy", "paper")])
def test_a_picture_is_scaled_as_the_training_pictures_were(photo, dataset, protocol):
    experiment = dataclasses.replace(tiny.experiment(protocol=protocol), dataset=dataset)
    trained, picture = build(experiment), read_image(photo)
    segmented = Segmenter(trained, SLOTS)(picture)
    prepared = resize(np.asarray(picture), 8, method_of(dataset, protocol))
    expected = Segmenter(trained, SLOTS)(Image.fromarray(prepared))
    assert np.array_equal(segmented.masses, expected.masses)


@pytest.mark.parametrize("protocol", ["paper", "authors"])
def test_a_picture_for_a_backbone_is_scaled_by_the_backbone_as_for_features(model, photo, protocol):
    sizes = tiny.FeatureModel(tokens=64, features=8, dim=8, decoder=16, hidden=16)
    trained = build(dataclasses.replace(tiny.experiment(model=sizes), dataset="movi-c-features"))
    backbone, picture = encoder_backbone(model, "tiny", protocol), read_image(photo)
    segmented = Segmenter(trained, SLOTS, backbone=backbone)(picture)
    features = backbone(torch.from_numpy(np.asarray(picture).copy())[None]).half().float()
    noise = torch.from_numpy(slot_noise(0, "segment", [(SLOTS,)], SLOTS, 8))
    with torch.no_grad():
        expected = trained(features, num_slots=SLOTS, noise=noise).attention[0].double().sum(dim=1)
    assert np.array_equal(segmented.masses, expected.numpy())


def test_area_share_and_box_are_those_of_the_labels(model, photo, tmp_path):
    list(segment_files(photo, Segmenter(model, SLOTS), tmp_path))
    folder = tmp_path / "photo"
    labels = np.asarray(read(folder / "labels.png"))
    record = json.loads((folder / "slots.json").read_text())
    assert [slot["slot"] for slot in record["slots"]] == list(range(SLOTS))
    assert sum(slot["area"] for slot in record["slots"]) == labels.size
    for slot in record["slots"]:
        ys, xs = np.nonzero(labels == slot["slot"])
        assert slot["area"] == len(ys)
        assert slot["share"] == pytest.approx(len(ys) / labels.size)
        assert slot["box"] == ([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1] if len(ys) else None)
    assert any(slot["box"] for slot in record["slots"])


def test_cut_outs_put_back_together_give_the_picture(model, photo, tmp_path):
    list(segment_files(photo, Segmenter(model, SLOTS), tmp_path))
    record = json.loads((tmp_path / "photo" / "slots.json").read_text())
    whole = Image.new("RGBA", (37, 20))
    for slot in record["slots"]:
        if slot["box"]:
            cut = read(tmp_path / "photo" / slot["file"])
            assert cut.mode == "RGBA"
            assert not np.asarray(cut)[np.asarray(cut)[..., 3] == 0].any(), "what is cut away must not be in the file"
            whole.alpha_composite(cut, tuple(slot["box"][:2]))
    assert np.array_equal(np.asarray(whole.convert("RGB")), np.asarray(read(photo)))
    assert np.asarray(whole)[..., 3].min() == 255


def test_the_overlay_is_half_the_picture(model, photo, tmp_path):
    list(segment_files(photo, Segmenter(model, SLOTS), tmp_path))
    overlay = np.asarray(read(tmp_path / "photo" / "overlay.png")).astype(int)
    colors = np.asarray(read(tmp_path / "photo" / "labels.png").convert("RGB")).astype(int)
    assert np.abs(overlay - (colors + np.asarray(read(photo)).astype(int)) / 2).max() <= 1


def test_the_same_seed_gives_the_same_files_and_another_does_not(model, photo, tmp_path):
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        list(segment_files(photo, Segmenter(model, SLOTS, seed), tmp_path / name))
    first, second, third = (files_of(tmp_path / name / "photo") for name in ("one", "two", "three"))
    assert first == second
    assert first["labels.png"] != third["labels.png"]


def test_fewer_slots_in_the_same_folder_leave_no_old_cut_out(model, photo, tmp_path):
    list(segment_files(photo, Segmenter(model, SLOTS), tmp_path))
    (tmp_path / "photo" / "mine.txt").write_text("kept")
    list(segment_files(photo, Segmenter(model, 1), tmp_path))
    assert sorted(files_of(tmp_path / "photo")) == [
        "labels.png",
        "mine.txt",
        "overlay.png",
        "slot-000.png",
        "slots.json",
    ]


def test_the_number_of_slots_is_that_of_training_unless_given(model):
    assert Segmenter(model).num_slots == 4


@pytest.mark.parametrize("mode", ["L", "RGBA", "I;16", "one pixel", "EXIF"])
def test_odd_pictures_have_a_result_of_their_own_size(model, tmp_path, mode):
    path, size = tmp_path / "odd.png", (12, 9)
    if mode == "one pixel":
        size = (1, 1)
        Image.new("RGB", size, "red").save(path)
    elif mode == "EXIF":
        exif = Image.Exif()
        exif[0x0112] = 6  # to be turned by a quarter
        Image.new("RGB", (9, 12), "blue").save(path, exif=exif)
    elif mode == "I;16":
        Image.fromarray(np.arange(108, dtype=np.uint16).reshape(9, 12) * 600).save(path)
    else:
        Image.new(mode, size, 90 if mode == "L" else (9, 99, 200, 100)).save(path)
    list(segment_files(path, Segmenter(model, SLOTS), tmp_path / "out"))
    assert read(tmp_path / "out" / "odd" / "labels.png").size == size


def test_a_bad_image_in_a_folder_is_named_and_the_rest_is_done(model, photo, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a.png", "b.PNG", "b.jpg", "ü <b>.jpeg"):
        read(photo).save(folder / name, "PNG" if name.lower().endswith("png") else "JPEG")
    (folder / "broken.png").write_bytes(photo.read_bytes()[:100])
    (folder / "notes.txt").write_text("no image")
    lines = []
    with pytest.raises(UserError, match="1 of 5 images could not be segmented: .*broken.png cannot be decoded"):
        lines.extend(segment_files(folder, Segmenter(model, SLOTS), tmp_path / "out"))
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["a", "b.PNG", "b.jpg", "ü-b"]
    assert [line.split(":")[0] for line in lines] == ["a.png", "b.PNG", "b.jpg", "ü <b>.jpeg"]
    assert all((tmp_path / "out" / name / "slots.json").exists() for name in names)


def test_a_picture_with_a_broken_exif_block_is_taken_as_it_is(model, photo, tmp_path):
    whole, broken = tmp_path / "whole.jpg", tmp_path / "broken.jpg"
    read(photo).save(whole)
    content = whole.read_bytes()
    broken.write_bytes(content[:2] + b"\xff\xe1\x00\x10Exif\0\0notatiff" + content[2:])
    segmenter = Segmenter(model, SLOTS)
    expected = np.asarray(segmenter(whole).image)
    decoded = segmenter(broken).image
    for given in (broken, read(broken), decoded):
        assert np.array_equal(np.asarray(segmenter(given).image), expected)


def test_a_picture_that_the_decoder_gives_up_halfway_is_one_sentence(model, photo, tmp_path):
    path = tmp_path / "short.jpg"
    read(photo).save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with Image.open(path) as image, pytest.raises(DamagedFile, match="the image cannot be decoded as an image"):
        Segmenter(model, SLOTS)(image)
    odd = read(photo)
    odd.info["transparency"] = "no colour"
    with pytest.raises(DamagedFile, match="the image cannot be decoded as an image"):
        Segmenter(model, SLOTS)(odd)


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take no such names")
def test_a_picture_whose_name_is_not_text_is_segmented(exported, photo, tmp_path, capsys):
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / os.fsdecode(b"\xff.png")).write_bytes(photo.read_bytes())
    main(["segment", str(folder), "--run", str(exported), "--out", str(tmp_path / "out")])
    (record,) = (tmp_path / "out").glob("*/slots.json")
    assert os.fsencode(json.loads(record.read_text(encoding="utf-8"))["image"]) == b"\xff.png"
    assert capsys.readouterr().out.startswith(r"\udcff.png: 37x20")


def test_bad_input_is_one_sentence(model, photo, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no image"):
        list(segment_files(tmp_path / "empty", Segmenter(model, SLOTS), tmp_path))
    with pytest.raises(UserError, match="there is no image or folder"):
        list(segment_files(tmp_path / "none.png", Segmenter(model, SLOTS), tmp_path))
    with pytest.raises(UserError, match="0 slots are not possible: a label map of 8 bits takes 1 to 256"):
        Segmenter(model, 0)
    with pytest.raises(UserError, match="the model has no experiment that says its number of slots; give num_slots"):
        Segmenter(ImageAutoencoder(size=16, channels=8, dim=8, decoder="dense", strides=(1, 1)))
    with pytest.raises(UserError, match="257 slots are not possible"):
        Segmenter(model, 257)
    photo.write_bytes(b"no picture")
    with pytest.raises(DamagedFile, match="photo.png cannot be decoded"):
        list(segment_files(photo, Segmenter(model, SLOTS), tmp_path))


def test_a_picture_that_claims_too_much_is_refused(model, tmp_path):
    import struct
    import zlib

    header = struct.pack(">IIBBBBB", 9000, 9000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    packed = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    (tmp_path / "huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + packed)
    with pytest.raises(UserError, match="claims more than 64000000 pixels"):
        list(segment_files(tmp_path / "huge.png", Segmenter(model, SLOTS), tmp_path))


def test_models_of_features_need_the_backbone_they_were_trained_with(model, photo, tmp_path):
    takes_features = build(tiny.experiment(model=tiny.FEATURES))
    with pytest.raises(UserError, match="takes features, 16 x 6 per image, .* as in --backbone"):
        Segmenter(takes_features, SLOTS)
    backbone = encoder_backbone(model, "tiny")
    with pytest.raises(UserError, match="gives 64 x 8 features and the model takes 16 x 6"):
        Segmenter(takes_features, SLOTS, backbone=backbone)
    with pytest.raises(UserError, match="takes images themselves: leave out --backbone"):
        Segmenter(model, SLOTS, backbone=backbone)
    fitting = build(tiny.experiment(model=tiny.FeatureModel(tokens=64, features=8, dim=8, decoder=16, hidden=16)))
    (line,) = segment_files(photo, Segmenter(fitting, SLOTS, backbone=backbone), tmp_path)
    assert "scaled to 8x8" in line
    assert read(tmp_path / "photo" / "labels.png").size == (37, 20)


def test_set_predictors_segment_by_attention(photo, tmp_path):
    predictor = build(tiny.experiment(model=tiny.PROPERTIES))
    list(segment_files(photo, Segmenter(predictor, SLOTS), tmp_path))
    assert np.asarray(read(tmp_path / "photo" / "labels.png")).max() < SLOTS


def test_the_verb_writes_says_where_and_fails_as_promised(exported, photo, tmp_path, capsys):
    out = tmp_path / "my out"
    main(["segment", str(photo), "--run", str(exported), "--slots", "12", "--out", str(out)])
    printed = capsys.readouterr()
    assert printed.out.startswith("photo.png: 37x20, scaled to 8x8 for the model; ")
    assert printed.err == ""
    assert json.loads((out / "photo" / "slots.json").read_text())["num_slots"] == 12
    photo.with_name("other.png").write_bytes(b"")
    with pytest.raises(SystemExit) as stopped:
        main(["segment", str(photo.parent), "--run", str(exported), "--out", str(out)])
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("photo.png")
    assert "slotnorm: 1 of 2 images could not be segmented: " in printed.err
