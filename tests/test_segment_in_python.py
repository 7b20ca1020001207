"""`sn.segment`: every kind of picture in, labels, soft masks and a count out; many and large ones in bounded memory."""

import dataclasses
import json
import math
import re
import types

import numpy as np
import pytest
import torch
from PIL import Image

import slotnorm as sn
import tiny
from own_pictures import draw, write_pictures
from slotnorm.cli.verbs import main
from slotnorm.errors import UserError
from slotnorm.evaluation.label_maps import labels_in_tiles, scaled_labels
from slotnorm.evaluation.out_of_distribution import validation_error
from slotnorm.metrics.object_count import MOST_BORDER, SMALLEST, needed
from slotnorm.models import parts, weights
from slotnorm.models.building import build
from slotnorm.report.safe_names import folder_name
from slotnorm.report.segmentation import count_in_words
from slotnorm.report.segmenter import Segmenter, save, segment_files
from slotnorm.runtime.randomness import slot_noise
from slotnorm.training.loop import train

PICTURE = np.asarray(draw(3)[0])


@pytest.fixture(scope="module")
def model():
    return build(tiny.experiment())


def kinds(folder) -> dict:
    image, path = Image.fromarray(PICTURE), folder / "a.png"
    image.save(path)
    shares = PICTURE / 255
    tensor = torch.from_numpy(PICTURE.copy()).permute(2, 0, 1)
    return {
        "path": path, "text": str(path), "PIL": image, "RGBA": image.convert("RGBA"), "bytes": PICTURE,
        "floats": shares, "float32": shares.astype(np.float32), "signed": 2 * shares - 1, "tensor": tensor,
        "float tensor": tensor / 255, "as models take it": tensor / 127.5 - 1, "channels first": tensor.numpy(),
        "four channels": np.asarray(image.convert("RGBA")),
    }  # fmt: skip


def test_every_kind_of_picture_gives_the_same_labels(model, tmp_path):
    expected = sn.segment(PICTURE, model, slots=6)
    assert expected.labels.shape == PICTURE.shape[:2]
    for kind, picture in kinds(tmp_path).items():
        assert np.array_equal(sn.segment(picture, model, slots=6).labels, expected.labels), kind


def test_a_result_has_labels_soft_masks_a_count_and_a_figure(model):
    segmentation = sn.segment(PICTURE, model, slots=6)
    assert segmentation.masks.shape == (6, 8, 8)
    assert np.allclose(segmentation.masks.sum(axis=0), 1, atol=1e-5)
    assert segmentation.count == int(sn.count_objects(torch.from_numpy(segmentation.masks)[None])[0])
    assert [slot["slot"] for slot in segmentation.slots()] == list(range(6))
    assert len(segmentation.plot().axes) >= 8
    assert repr(segmentation) == f"Segmentation of 48 x 40 pixels: {count_in_words(segmentation.count)}, 6 slots"
    assert segmentation._repr_html_().startswith(f'<figure><img alt="{segmentation!r}" src="data:image/png;base64,')
    assert segmentation.overlay(20).size == (20, 17)


def test_grey_and_boolean_arrays_are_pictures(model):
    for picture in (PICTURE[..., 0], PICTURE[..., :1], PICTURE[..., 0] > 100):
        assert sn.segment(picture, model).labels.shape == (40, 48)


def test_several_pictures_are_made_when_they_are_asked_for(model, tmp_path):
    paths = sorted(write_pictures(tmp_path / "photos").glob("Foto*"))
    several = sn.segment(paths, model, slots=4)
    assert len(several) == 12
    assert several[3].labels.shape == (40, 48)
    assert len(several[2:5]) == 3
    assert [segmentation.labels.shape[1] for segmentation in several] == [48 + number % 3 for number in range(12)]
    batch = torch.from_numpy(np.stack([PICTURE] * 2)).permute(0, 3, 1, 2)
    first, second = sn.segment(batch, model)
    assert np.array_equal(first.labels, second.labels)
    with pytest.raises(UserError, match=r"there is no file .*none.png; all pictures must be there"):
        sn.segment([*paths, tmp_path / "none.png"], model)


@pytest.mark.parametrize(
    ("picture", "sentence"),
    [
        (PICTURE.astype(np.float32), r"goes from 20 to \d+, but must lie in \[0, 1\] or \[-1, 1\]"),
        (PICTURE.astype(np.int32), "a picture of int32 has no known range"),
        (np.full((4, 4), np.nan), "goes from nan to nan"),
        (np.zeros((2, 3, 4, 5, 6)), "is not a picture: give"),
        (np.zeros((0, 4, 3), np.uint8), "is not a picture"),
        (7, "int is not a picture: give a path, a PIL image"),
        (Image.new("F", (4, 4)), "has real numbers"),
    ],
)
def test_what_is_not_a_picture_is_one_sentence(model, picture, sentence):
    with pytest.raises(UserError, match=sentence):
        sn.segment(picture, model)


def test_a_number_of_slots_is_a_number_or_auto(model, capsys, tmp_path):
    for slots in ("many", 2.5, [3]):
        with pytest.raises(
            UserError, match=rf"slots is {re.escape(repr(slots))}, but must be a whole number or 'auto'"
        ):
            sn.segment(PICTURE, model, slots=slots)
    assert len(sn.segment(PICTURE, model, slots=np.int64(3)).masks) == 3
    Image.fromarray(PICTURE).save(tmp_path / "a.png")
    with pytest.raises(SystemExit):
        main(["segment", str(tmp_path / "a.png"), "--run", "x", "--slots", "few"])
    assert "--slots is 'few', but must be a whole number" in capsys.readouterr().err


def test_learned_slots_of_another_number_are_one_sentence():
    recipe = dataclasses.replace(tiny.experiment().recipe, initialization="learned")
    model = build(dataclasses.replace(tiny.experiment(), recipe=recipe))
    model.experiment = tiny.experiment()
    with pytest.raises(UserError, match="num_slots is 9, but this model has a learned start of 4 slots: ask for 4"):
        sn.segment(PICTURE, model, slots=9)
    assert len(sn.segment(PICTURE, model, slots="auto").masks) <= 5, "four slots and the background"


def test_what_is_not_a_model_is_one_sentence():
    with pytest.raises(
        UserError, match="Linear is not a model of slotnorm; a model is a run's folder, .* bundled name"
    ):
        sn.segment(PICTURE, torch.nn.Linear(2, 2))


# ---------------------------------------------------------------------------------------------------- large pictures


@pytest.mark.parametrize(("height", "width"), [(40, 56), (9, 7), (5, 300), (64, 64), (1, 1)])
def test_labels_in_tiles_are_those_of_scaled_masks(height, width):
    masks = torch.rand(30, 9, 7, generator=torch.Generator().manual_seed(0)).mul(6).softmax(dim=0)
    expected = scaled_labels(masks[None], height, width)[0]
    assert (labels_in_tiles(masks, height, width) == expected).float().mean() > 0.995


def test_a_large_picture_with_many_slots_is_labelled_in_tiles(model, monkeypatch):
    from slotnorm.report import segmenter

    picture = Image.fromarray(PICTURE).resize((700, 500))
    plain = Segmenter(model, 256)(picture)
    monkeypatch.setattr(segmenter, "_LARGE", 1)
    tiled = Segmenter(model, 256)(picture)
    assert (plain.labels == tiled.labels).mean() > 0.999
    areas = [slot["area"] for slot in tiled.slots()]
    assert areas == np.bincount(tiled.labels.ravel(), minlength=256).tolist()


# ---------------------------------------------------------------------------------------------------- counting


def square_masks(*squares: tuple[int, int, int], background: bool = True) -> torch.Tensor:
    """Masks (1, 6, 20, 20): a slot per square (top, left, side); one has the background, or the others share it."""
    slots = 6
    masks = torch.zeros(slots, 20, 20)
    for slot, (top, left, length) in enumerate(squares):
        masks[slot, top : top + length, left : left + length] = 1
    free = masks.sum(0) == 0
    if background:
        masks[len(squares), free] = 1
    else:
        masks[len(squares) :, free] = 1 / (slots - len(squares))
    return masks[None]


@pytest.mark.parametrize("background", [True, False])
def test_objects_are_slots_that_hold_something_other_than_background(background):
    masks = square_masks((2, 2, 6), (11, 11, 5), background=background)
    assert sn.count_objects(masks).tolist() == [2]
    assert sn.count_objects(masks.flatten(2)).tolist() == [2]
    assert int(needed(masks).sum()) == 3, "the two, and one for the background"


def test_crumbs_and_borders_are_no_objects():
    crumb = math.ceil((SMALLEST * 400) ** 0.5) - 1
    assert crumb > 0
    assert sn.count_objects(square_masks((2, 2, 6), (12, 12, crumb))).tolist() == [1]
    corner = square_masks((0, 0, 8), background=True)
    assert MOST_BORDER > 15 / 76
    assert sn.count_objects(corner).tolist() == [1], "an object may touch the border"


def test_slots_are_interchangeable_in_counting():
    masks = square_masks((2, 2, 6), (11, 11, 5), background=False)
    assert sn.count_objects(masks[:, torch.randperm(6)]).tolist() == [2]


def test_what_has_no_masks_cannot_be_counted():
    with pytest.raises(UserError, match=r"objects are counted of masks .*, not of \(2, 3\)"):
        sn.count_objects(torch.zeros(2, 3))
    with pytest.raises(UserError, match="masks over 7 tokens are not a square map"):
        sn.count_objects(torch.zeros(1, 2, 7))


def test_auto_starts_from_three_times_the_slots_and_says_how_many_are_background(model, tmp_path, capsys):
    exported = tmp_path / "model.safetensors"
    weights.export(weights.Weights(model.state_dict(), model.experiment, 12, {}), exported, "card")
    Image.fromarray(PICTURE).save(tmp_path / "中国.png")
    main(
        ["segment", str(tmp_path / "中国.png"), "--run", str(exported), "--slots", "auto", "--out", str(tmp_path / "o")]
    )
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "o" / "中国" / "slots.json").read_text())
    assert record["num_slots"] == 12
    held = 12 - record["objects"]
    assert f"{count_in_words(record['objects'])}; {held} of 12 slots are background" in printed
    segmentation = sn.segment(PICTURE, model, slots="auto")
    assert len(segmentation.masks) == len(segmentation.numbers) == len(record["slots"]) == record["objects"] + 1
    assert int(segmentation.labels.max()) < len(segmentation.masks)


def decomposing_into(model, masks, monkeypatch):
    """A model that explains every picture by these masks (1, K, h, w)."""
    made = types.SimpleNamespace(masks=masks, attention=masks.flatten(2))
    monkeypatch.setattr(model, "decompose", lambda *given, **settings: made)


@pytest.mark.parametrize("background", [True, False])
def test_what_no_object_explains_is_background(model, background, monkeypatch, tmp_path):
    squares = square_masks((2, 2, 6), (11, 11, 5), background=background)[:, [4, 1, 5, 0, 2, 3]]
    decomposing_into(model, squares, monkeypatch)
    segmenter = Segmenter(model, "auto")
    segmentation = segmenter(np.zeros((20, 20, 3), np.uint8))
    expected = np.zeros((20, 20), int)
    expected[11:16, 11:16], expected[2:8, 2:8] = 1, 2
    assert (segmentation.background, segmentation.count) == (0, 2)
    assert np.array_equal(segmentation.labels, expected)
    assert np.allclose(segmentation.masks, [expected == label for label in range(3)])
    assert segmentation.numbers == ((0, 2, 4, 5), (1,), (3,))
    slots = segmentation.slots()
    assert [(slot["slot"], slot["background"], slot["numbers"], slot["area"]) for slot in slots] == [
        (0, True, [0, 2, 4, 5], 339), (1, False, [1], 25), (2, False, [3], 36),
    ]  # fmt: skip
    assert sum(slot["attention_mass"] for slot in slots) == pytest.approx(400)
    titles = [axis.get_title() for axis in segmentation.plot().axes]
    assert titles[1:5] == ["2 objects", "background", "slot 1", "slot 2"]
    assert repr(segmentation) == "Segmentation of 20 x 20 pixels: 2 objects and background"
    save(segmentation, tmp_path / "a", {})
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        "labels.png", "overlay.png", "slots.json", "background.png", "slot-001.png", "slot-002.png",
    }  # fmt: skip
    assert json.loads((tmp_path / "a" / "slots.json").read_text())["slots"][0]["file"] == "background.png"
    save(Segmenter(model, 6)(np.zeros((20, 20, 3), np.uint8)), tmp_path / "a", {})
    assert not (tmp_path / "a" / "background.png").exists()


def test_with_a_number_of_slots_each_is_a_label_and_none_is_called_background(model):
    segmentation = sn.segment(PICTURE, model, slots=6)
    assert segmentation.background is None
    assert segmentation.numbers == tuple((slot,) for slot in range(6))
    assert not any(slot["background"] for slot in segmentation.slots())


def test_names_keep_the_letters_of_every_script_and_nothing_that_harms():
    assert folder_name("中国") == "中国"
    assert folder_name("हिन्दी x") == "हिन्दी-x"
    assert folder_name("u\u0308ber") == "über"
    assert folder_name("a\"b'c\nd/e\\f") == "a-b-c-d-e-f"
    assert folder_name("../..") == "unnamed"


# ------------------------------------------------------------------------------------------------ out of distribution


def trained_with(error: float | None):
    """A model whose file says this squared error of its validation."""
    model = build(tiny.experiment())
    model.trained = 10, {"validation": {} if error is None else {f"l2@{model.experiment.slots}": error, "ari@4": 0.5}}
    return model


def rebuilding_error(model) -> float:
    with torch.inference_mode():
        inputs = model.prepare(torch.from_numpy(Segmenter(model)._prepared(Image.fromarray(PICTURE)).copy())[None])
        noise = torch.from_numpy(slot_noise(0, "segment", [(model.experiment.slots,)], model.experiment.slots, 8))
        return float((model(inputs, noise=noise).reconstruction - inputs).square().mean())


def test_every_file_far_from_training_is_named_on_a_line_of_its_own(tmp_path, caplog):
    (tmp_path / "pictures").mkdir()
    for name in ("a.png", "ü b.png"):
        Image.fromarray(PICTURE).save(tmp_path / "pictures" / name)
    far = trained_with(rebuilding_error(trained_with(None)) / 20)
    lines = list(segment_files(tmp_path / "pictures", Segmenter(far, 6), tmp_path / "masks"))
    assert len(lines) == 2
    record = json.loads((tmp_path / "masks" / "a" / "slots.json").read_text())
    assert record["times_validation"] == pytest.approx(20, rel=0.01)
    messages = [record.message for record in caplog.records if "rebuilt" in record.message]
    assert messages == [
        f"note: {tmp_path / 'pictures' / 'a.png'} is rebuilt with 20 times the error of the model's validation, so it "
        "is far from what the model was trained on and its masks may mean little: train on pictures of its kind "
        "(docs/your-images.md)",
        f"note: {tmp_path / 'pictures' / 'ü b.png'} is rebuilt with 20 times the error of the model's validation",
    ]
    caplog.clear()
    near = sn.segment([tmp_path / "pictures" / "a.png"] * 2, trained_with(None), slots=6)
    assert [segmentation.times_validation for segmentation in near] == [None, None]
    assert not caplog.records


def test_a_segmenter_takes_every_name_of_a_model():
    segmentation = sn.Segmenter("toy-weighted_sum", "auto", device="cpu")(PICTURE)
    assert np.array_equal(segmentation.labels, sn.segment(PICTURE, "toy-weighted_sum", slots="auto").labels)
    with pytest.raises(UserError, match="Linear is not a model of slotnorm; a model is a run's folder"):
        sn.Segmenter(torch.nn.Linear(2, 2))


def test_a_picture_that_is_rebuilt_far_worse_than_in_validation_is_warned_of_once(caplog):
    error = rebuilding_error(trained_with(None))
    far = trained_with(error / 20)
    segmentations = list(sn.segment([PICTURE, PICTURE], far, slots=6))
    assert len(segmentations) == 2
    assert [record.message for record in caplog.records] == [
        "note: a picture is rebuilt with 20 times the error of the model's validation, so it is far from what the "
        "model was trained on and its masks may mean little: train on pictures of its kind (docs/your-images.md); this "
        "is said once"
    ]
    caplog.clear()
    for error_of_validation in (error, error / 10, None, 0.0):
        sn.segment(PICTURE, trained_with(error_of_validation), slots=6)
    assert not caplog.records


def test_masks_do_not_depend_on_what_the_model_is_known_to_rebuild(model):
    other = trained_with(1e-9)
    other.load_state_dict(model.state_dict())
    assert np.array_equal(sn.segment(PICTURE, other, slots=6).masks, sn.segment(PICTURE, model, slots=6).masks)


def test_a_run_knows_its_error_in_validation_also_from_its_folder(tmp_path):
    scenes = tiny.build_scenes(tmp_path / "data", 24)
    run = train(tiny.experiment(steps=4), tmp_path / "runs", data=scenes.directory)
    model = sn.load(run.path)
    assert validation_error(model) == run.validation()[f"l2@{run.experiment.slots}"]
    assert validation_error(sn.load(run.export(tmp_path / "a.safetensors"))) == validation_error(model)


def test_values_a_little_outside_the_range_of_training_are_mentioned_once(model, caplog):
    parts._mention_range.cache_clear()
    images, model = torch.linspace(0, 1, 192).view(1, 3, 8, 8), model.eval()
    model(2 * images - 1, num_slots=3)
    assert not caplog.records
    for _ in range(2):
        model(3 * images - 1, num_slots=3)
    assert [record.message for record in caplog.records] == [
        "note: images have values outside [-1, 1], the range that models are trained on: scale them, as by 2 * images "
        "- 1 where they lie in [0, 1]; this is said once"
    ]
