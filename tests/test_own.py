"""Own pictures, from a folder to scores: one path without masks, and never scores of another set in silence."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tiny
from own_pictures import draw, write_masked, write_pictures
from slotnorm import experiments
from slotnorm.cli.verbs import main
from slotnorm.data import Scenes
from slotnorm.data.folder import convert
from slotnorm.errors import UserError
from slotnorm.evaluation.rows import Rows
from slotnorm.models import weights
from slotnorm.models.building import build
from slotnorm.report.reading import read
from slotnorm.studies.own_pictures import fit_to_features, fit_to_images
from slotnorm.studies.run_evaluation import plan_evaluations, read_judgement
from slotnorm.training.experiment_scenes import training_scenes, validation_scenes
from slotnorm.training.loop import train
from slotnorm.training.run_data import remembered
from slotnorm.training.runs import Run

SMALL = [
    "--slots", "3", "--steps", "4", "--batch-size", "2", "--recipe.model.channels", "4", "--recipe.model.dim", "8",
    "--recipe.model.hidden", "8", "--recipe.model.decoder-channels", "4", "--recipe.warmup-steps", "2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path / "cache"))


def train_own(folder: Path, into: Path, *more: str) -> Run:
    main(["train", "own", "--data", str(folder), "--into", str(into), *SMALL, *more])
    return Run.open(into / "own-weighted_sum-1")


def test_a_folder_of_pictures_is_learned_evaluated_and_reported_without_masks(tmp_path, capsys):
    photos = write_pictures(tmp_path / "photos")
    run = train_own(photos, tmp_path / "runs")
    printed = capsys.readouterr().err
    assert "12 images without masks, which are not needed" in printed
    assert "learned at 32x32 (--size 64, 128 for another), 2 of them held out for validation" in printed
    assert (run.source, run.scenes, run.experiment.recipe.model.size) == (photos.resolve(), 10, 32)
    assert f"--data {photos.resolve()}" in run.command

    main(["eval", str(run.path), "--slots", "3,4,6"])
    assert capsys.readouterr().out.startswith("own-weighted_sum-1 on own: 2 scenes")
    (rows,) = [Rows.load(path) for path in (run.path / "rows").glob("*.npz")]
    assert "l2" in rows.unique("metric")
    assert "f_ari" not in rows.unique("metric")
    main(["report", str(run.path), "--out", str(tmp_path / "report")])
    text = (tmp_path / "report" / "report.md").read_text() + (tmp_path / "report" / "index.html").read_text()
    assert "-1 objects" not in text
    assert "at most 0 objects" not in text
    for words in ("0 to 255 objects", "In the paper: your pictures", "stand-in: your pictures", "Not as registered",
                  "other settings", "no runs of weighted", "(?", "visible objects", "slots and objects",
                  "own, 4 slots"):  # fmt: skip
        assert words not in text, words
    assert "## own (3 slots)" in text
    assert "*own, 3 slots (training K)*" in text
    judged, used = read_judgement(run.path), run.validation()["in_use@3"]
    numbers = [f"{judged[name]:.2f}" for name in ("moving", "sharing", "coherence")]
    assert f"{' | '.join(numbers)} | {used:.2f} of 3 |" in text
    assert f"<td>{'</td><td>'.join(numbers)}</td><td>{used:.2f} of 3</td>" in text
    assert text.count("Is it working?") >= 2
    assert ("try: " in text) == judged["failed"]
    assert "No study was tested both" not in text


def test_pictures_with_masks_are_scored_by_them(tmp_path, capsys):
    run = train_own(write_masked(tmp_path / "photos"), tmp_path / "runs")
    main(["eval", str(run.path), "--slots", "3"])
    assert "f_ari (masks)" in capsys.readouterr().out


def test_what_training_leaves_out_is_what_is_evaluated(tmp_path):
    run = train_own(write_masked(tmp_path / "photos"), tmp_path / "runs")
    (evaluation,) = plan_evaluations([run.path], slots=[3])
    learned = training_scenes(run.experiment, run.source)
    assert evaluation.scenes.index.tolist() == validation_scenes(run.experiment, run.source).index.tolist()
    assert not set(evaluation.scenes.index) & set(learned.index)
    assert len(evaluation.scenes) + len(learned) == 12


def test_changed_pictures_are_noticed_when_a_run_goes_on_and_when_it_is_scored(tmp_path, capsys):
    photos = write_pictures(tmp_path / "photos")
    run = train_own(photos, tmp_path / "runs")
    draw(99)[0].save(photos / "Foto 05 中国.jpg")
    for command in (["eval", str(run.path)], ["train", "own", "--data", str(photos), "--into", str(run.path.parent),
                                              *SMALL]):  # fmt: skip
        with pytest.raises(SystemExit) as left:
            main(command)
        assert left.value.code == 2
        assert "has changed" in capsys.readouterr().err
    shutil.rmtree(photos)
    with pytest.raises(UserError, match=r"which is not there any more; give it with --data"):
        plan_evaluations([run.path])


def test_a_run_of_the_same_name_on_other_pictures_is_refused_also_when_it_is_finished(tmp_path, capsys):
    train_own(write_pictures(tmp_path / "photos"), tmp_path / "runs")
    other = write_pictures(tmp_path / "other")
    draw(77)[0].save(other / "Foto 05 中国.jpg")
    with pytest.raises(SystemExit):
        train_own(other, tmp_path / "runs")
    assert f"in {other}, not in {tmp_path / 'photos'}" in capsys.readouterr().err


def test_moved_pictures_are_the_same_data(tmp_path):
    photos = write_pictures(tmp_path / "photos")
    run = train_own(photos, tmp_path / "runs")
    moved = photos.rename(tmp_path / "photos elsewhere")
    assert train_own(moved, tmp_path / "runs", "--steps", "6").source == moved.resolve()
    assert remembered(Run.open(run.path)) == moved.resolve()


def test_other_data_is_scored_only_when_it_is_asked_for_and_said(tmp_path, capsys):
    run = train_own(write_masked(tmp_path / "photos"), tmp_path / "runs")
    other = tmp_path / "other"
    write_masked(other, num=5)
    main(["eval", str(run.path), "--slots", "3"])
    assert read([run.path]).notes == ()
    capsys.readouterr()
    main(["eval", str(run.path), "--data", str(other), "--slots", "3"])
    printed = capsys.readouterr()
    assert "is not the data that" in printed.err
    assert "on own: 5 scenes" in printed.out
    (note,) = read([run.path]).notes
    assert note.startswith("own-weighted_sum-1: scored on other data (")
    assert note.endswith(f"than it was trained on ({run.data[:12]}).")


def test_a_run_on_a_folder_is_never_scored_on_the_scenes_that_its_experiment_makes(tmp_path):
    folder = tmp_path / "set"
    tiny.build_scenes(folder)
    run = train(tiny.experiment(), tmp_path / "runs", data=folder)
    (evaluation,) = plan_evaluations([run.path], slots=[3])
    assert (evaluation.test.name, evaluation.scenes.directory) == ("own", folder)
    Run(run.path, run.experiment, run.scenes, run.data).write()  # as a version that did not remember wrote it
    with pytest.raises(UserError, match="was trained on other scenes than those that toy makes .* give its data with"):
        plan_evaluations([run.path], slots=[3])


def test_python_takes_a_folder_of_pictures_at_the_size_of_the_model(tmp_path):
    experiment = experiments.experiment("own", slots=3, recipe=tiny.recipe(validation_scenes=2))
    run = train(experiment, tmp_path / "runs", data=write_pictures(tmp_path / "photos"))
    assert run.finished
    assert training_scenes(experiment, run.source).images.shape == (10, 8, 8, 3)


def test_features_of_a_network_are_learned_where_one_is_named(tmp_path):
    from slotnorm.data.backbones import encoder_backbone
    from slotnorm.models.building import build

    own = experiments.experiment("own")
    backbone = encoder_backbone(build(tiny.experiment()), "tiny")
    experiment, folder = fit_to_features(own, write_pictures(tmp_path / "photos"), backbone)
    assert (experiment.recipe.model.kind, experiment.recipe.flip) == ("feature_autoencoder", False)
    assert training_scenes(experiment, folder).features.shape == (10, 64, 8)
    with pytest.raises(UserError, match="is a set already: make its features with"):
        fit_to_features(own, folder, backbone)


def test_the_size_is_the_largest_that_the_pictures_have_unless_it_is_given(tmp_path, caplog):
    caplog.set_level("INFO", "slotnorm")
    own, folder = experiments.experiment("own"), tmp_path / "photos"
    folder.mkdir()
    for number in range(5):
        Image.new("RGB", (300, 70 + number)).save(folder / f"{number}.png")
    assert fit_to_images(own, folder).recipe.model == experiments.own_model(64)
    assert "learned at 64x64 (--size 32, 128 for another)" in caplog.text
    assert fit_to_images(own, folder, 128).recipe.model.size == 128
    assert "learned at 128x128, which enlarges most of them (--size" in caplog.text
    with pytest.raises(UserError, match="--size is 48, but own pictures are learned at 32, 64, 128 pixels"):
        fit_to_images(own, folder, 48)
    convert(folder, tmp_path / "set", size=32)
    assert fit_to_images(own, tmp_path / "set").recipe.model.size == 32
    convert(folder, tmp_path / "odd", size=40)
    with pytest.raises(UserError, match="holds images of 40 x 40 pixels, and own pictures are learned as squares of"):
        fit_to_images(own, tmp_path / "odd")


@pytest.mark.parametrize("size", experiments.OWN_SIZES)
def test_every_size_of_own_model_has_16_times_16_tokens(size):
    from slotnorm.models import ImageAutoencoder

    model = experiments.own_model(size)
    autoencoder = ImageAutoencoder(size, 4, 8, 8, strides=model.strides, decoder_channels=4,
                            decoder_strides=model.decoder_strides)  # fmt: skip
    assert autoencoder.num_tokens == 256
    assert autoencoder.decoder.position.size == 8


# ---------------------------------------------------------------------------------------------------- bad input


def refusal(capsys, *words: object) -> str:
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    assert left.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("slotnorm: ")]
    assert len(lines) == 1
    return lines[0]


def test_an_empty_folder_one_image_and_no_folder_are_one_sentence_and_leave_nothing(tmp_path, capsys):
    runs, empty, single = tmp_path / "runs", tmp_path / "empty", tmp_path / "single"
    empty.mkdir()
    write_pictures(single, num=1)
    train_words = ("--into", runs, *SMALL)
    assert "empty holds no images" in refusal(capsys, "train", "own", "--data", empty, *train_words)
    assert "holds 1 image that can be used, and training needs 4 or more; add some" in refusal(
        capsys, "train", "own", "--data", single, *train_words
    )
    assert "is not a folder" in refusal(capsys, "train", "own", "--data", tmp_path / "none", *train_words)
    assert "needs --data FOLDER" in refusal(capsys, "train", "own", *train_words)
    assert "are not a figure of the paper" in refusal(capsys, "reproduce", "own")
    write_pictures(tmp_path / "outer" / "inner")
    assert f"there are some in {tmp_path / 'outer' / 'inner'}: give that folder" in refusal(
        capsys, "train", "own", "--data", tmp_path / "outer", *train_words
    )
    assert not runs.exists()


def spoil(folder: Path) -> None:
    """Three files that cannot be used."""
    (folder / "claims.png").write_bytes(b"I am an image")
    frames = [Image.new("L", (8, 8), value) for value in (0, 255)]
    frames[0].save(folder / "animated.gif", save_all=True, append_images=frames[1:])
    frames[0].save(folder / "pages.tiff", save_all=True, append_images=frames[1:])


def test_all_bad_files_are_named_at_once_and_left_out_when_asked(tmp_path, capsys):
    photos, out = write_pictures(tmp_path / "photos"), tmp_path / "set"
    spoil(photos)
    command = ("data", "folder", "--from", photos, "--size", "16", "--out", out)
    sentence = refusal(capsys, *command)
    assert sentence.startswith(f"slotnorm: 3 things are wrong in {photos}: ")
    for words in ("claims.png cannot be decoded as PNG or JPEG", "animated.gif is an image that is not read",
                  "pages.tiff holds 2 pictures", "--skip-bad leaves out what cannot be used"):  # fmt: skip
        assert words in sentence
    assert not out.exists()
    main([*map(str, command), "--skip-bad"])  # the advice works when it is followed
    printed = capsys.readouterr()
    assert printed.out.startswith(f"12 scenes in {out}")
    assert printed.err.count("left out: ") == 3
    sentence = refusal(capsys, "train", "own", "--data", photos, "--into", tmp_path / "runs", *SMALL)
    assert "--skip-bad --out SET` leaves out what cannot be used; give --data SET then" in sentence
    assert not list((tmp_path / "runs").glob("*"))
    for path in photos.iterdir():
        if path.suffix not in (".gif", ".txt") and path.name not in ("claims.png", "pages.tiff"):
            path.unlink()
    assert "--skip-bad" not in refusal(capsys, *command[:-1], tmp_path / "none", "--skip-bad")
    assert not (tmp_path / "none").exists()


def test_images_of_several_sizes_are_one_sentence_and_the_advice_works(tmp_path, capsys):
    photos, out = write_pictures(tmp_path / "photos"), tmp_path / "set"
    command = ("data", "folder", "--from", photos, "--out", out)
    sizes = f"{photos} holds images of 3 sizes, as 48 x 40 (Foto 00 中国.jpg) and 49 x 40 (Foto 01 中国.png) pixels"
    sentence = f"slotnorm: {sizes}; give --size to bring all to one size"
    assert refusal(capsys, *command) == sentence
    assert refusal(capsys, *command, "--skip-bad") == sentence  # images are not left out for their size
    spoil(photos)
    assert "4 things are wrong" in refusal(capsys, *command)
    assert not out.exists()
    main([*map(str, command), "--size", "16", "--skip-bad"])
    assert Scenes.open(out).images.shape == (12, 16, 16, 3)


def test_crop_pad_and_stretch_make_squares(tmp_path):
    folder = tmp_path / "in"
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, :10], pixels[:, 10:30], pixels[:, 30:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    Image.fromarray(pixels).save(folder / "images" / "a.png")
    Image.fromarray(pixels[..., 1] // 255).save(folder / "masks" / "a.png")
    sets = {fit: convert(folder, tmp_path / fit, size=20, fit=fit) for fit in ("crop", "pad", "stretch")}
    images = {fit: np.asarray(scenes.images)[0] for fit, scenes in sets.items()}
    labels = {fit: np.asarray(scenes.labels)[0] for fit, scenes in sets.items()}
    assert (images["crop"] == (0, 255, 0)).all()
    assert labels["crop"].all()
    assert not images["pad"][:5].any()
    assert not images["pad"][15:].any()
    assert images["pad"][5:15].any(axis=2).all()
    assert labels["pad"].sum() == 10 * 10
    assert images["stretch"].any(axis=2).all()
    assert labels["stretch"].sum() == 20 * 10
    assert "fit" not in sets["stretch"].manifest["provenance"]
    with pytest.raises(UserError, match="--fit pad says how a picture becomes a square, and needs its side"):
        convert(folder, tmp_path / "none", fit="pad")


def test_an_experiment_of_before_sources_were_remembered_is_still_read(tmp_path):
    folder = tmp_path / "set"
    tiny.build_scenes(folder)
    run = train(tiny.experiment(), tmp_path / "runs", data=folder)
    Run(run.path, run.experiment, run.scenes, run.data).write()
    assert "source" not in json.loads((run.path / "experiment.json").read_text())
    assert Run.open(run.path).source is None
    assert train(tiny.experiment(steps=14), tmp_path / "runs", data=folder).source == folder


# ------------------------------------------------------------------------------------------------ a messy folder

ODD_NAMES = ('it\'s "quoted".png', "two\nlines.png", "<b>&amp;.png", "-rf.png", "$(x) `y`.png", "\x1b[31mred.png")


def write_messy(folder: Path) -> Path:
    """Pictures that can be used, of every odd kind and name, in a folder with an odd name."""
    folder.mkdir()
    for number in range(4):
        draw(number)[0].save(folder / f"{number}.png")
    picture = draw(20)[0]
    for name in ODD_NAMES:
        picture.save(folder / name)
    picture.resize((9, 7)).save(folder / "smaller than the model.png")
    picture.resize((1, 1)).save(folder / "one pixel.png")
    picture.resize((300, 3)).save(folder / "long.png")
    Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257).save(folder / "sixteen bits.png")
    picture.convert("CMYK").save(folder / "cmyk.jpg")
    exif = Image.Exif()
    exif[0x112] = 6  # turned by a quarter
    picture.save(folder / "rotated.jpg", exif=exif)
    for mode in ("P", "1", "RGBA"):
        picture.convert(mode).save(folder / f"{mode}.png")
    return folder


def test_odd_pictures_and_names_go_all_the_way(tmp_path, capsys):
    photos, masks = write_messy(tmp_path / 'it\'s "my\nown" | `x` <b>'), tmp_path / "masks"
    num = len(list(photos.iterdir()))
    run = train_own(photos, tmp_path / "runs")
    assert run.scenes + run.experiment.recipe.validation_scenes == num
    main(["data", "folder", "--from", str(photos), "--size", "16", "--out", str(tmp_path / "set")])
    assert len(Scenes.open(tmp_path / "set")) == num
    capsys.readouterr()
    main(["segment", str(photos), "--run", str(run.path), "--out", str(masks)])
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == num
    assert "\x1b" not in printed.out + printed.err
    assert "two\nlines" not in printed.out + printed.err
    assert len(list(masks.iterdir())) == num
    assert "rotated.jpg: 40x48" in printed.out
    record = json.loads((masks / "two-lines" / "slots.json").read_text())
    assert record["image"] == "two\nlines.png"
    main(["eval", str(run.path), "--slots", "3"])
    main(["report", str(run.path), "--out", str(tmp_path / "report"), "--no-models"])
    (line,) = [
        line for line in (tmp_path / "report" / "report.md").read_text().splitlines() if "slotnorm train" in line
    ]
    assert line.startswith("| own-weighted")
    assert line.endswith("` |")


def test_pictures_that_cannot_be_segmented_are_named_and_the_others_are_done(tmp_path, capsys):
    photos = write_pictures(tmp_path / "photos", num=2)
    spoil(photos)
    (photos / 'evil\nname".png').write_bytes(b"I am an image")
    run = build_and_export(tmp_path)
    sentence = refusal(capsys, "segment", photos, "--run", run, "--out", tmp_path / "masks")
    assert sentence.startswith("slotnorm: 4 of 6 images could not be segmented: ")
    for words in ("animated.gif is a GIF file, which is not read; save it as PNG or JPEG (of an animation, the frame",
                  "claims.png cannot be decoded", "pages.tiff holds 2 pictures", 'evil\\nname".png can'):  # fmt: skip
        assert words in sentence
    assert len(list((tmp_path / "masks").iterdir())) == 2


def build_and_export(folder: Path) -> Path:
    """The file of a small model that was never trained."""
    experiment = tiny.experiment()
    untrained = weights.Weights(dict(build(experiment).state_dict()), experiment, 0, {})
    (folder / "model.safetensors").write_bytes(weights.pack(untrained))
    return folder / "model.safetensors"


def test_masks_of_another_size_are_one_sentence_and_leave_nothing(tmp_path, capsys):
    photos = write_masked(tmp_path / "photos", num=6)
    Image.new("L", (7, 9)).save(photos / "masks" / "03.png")
    sentence = refusal(capsys, "train", "own", "--data", photos, "--into", tmp_path / "runs", *SMALL)
    assert "03.png" in sentence
    assert not (tmp_path / "runs" / "own-weighted_sum-1").exists()
    assert "03.png" in refusal(capsys, "data", "folder", "--from", photos, "--size", "16", "--out", tmp_path / "set")
    assert not (tmp_path / "set").exists()
