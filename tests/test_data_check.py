"""`slotnorm data check`: everything is verified, described and shown."""

import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from slotnorm.cli.verbs import main
from slotnorm.data import Scenes
from slotnorm.data.check import background_share, check, contact_sheet, label_colours
from slotnorm.errors import DamagedFile, UserError
from small_sets import build, random_arrays


@pytest.fixture
def arrays():
    return random_arrays()


@pytest.fixture
def directory(tmp_path, arrays):
    return build(tmp_path / "set", arrays).directory


def test_the_table_has_scenes_sizes_objects_and_background(directory, arrays, capsys):
    main(["data", "check", str(directory)])
    table = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert table["scenes"] == "40"
    assert table["images"].startswith("8 x 8 x 3 uint8")
    three = np.count_nonzero(arrays["counts"] == 3)
    assert table["3"].split()[:3] == ["objects", str(three), f"{100 * three / 40:.1f}"]
    assert table["background"].startswith(f"{100 * np.mean(arrays['labels'] == 0):.1f} %")
    assert table["fingerprint"] == Scenes.open(directory).fingerprint
    assert table["from"].split(maxsplit=1) == ["made", "at random"]
    assert (directory / "contact-sheet.png").exists()
    assert background_share(Scenes.open(directory).labels) == pytest.approx(np.mean(arrays["labels"] == 0), abs=1e-12)


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "counts.npy", "x.npy", "manifest.json"])
def test_a_flipped_bit_is_found_without_reading_a_scene(directory, name, capsys):
    content = bytearray((directory / name).read_bytes())
    content[-30] ^= 2
    (directory / name).write_bytes(content)
    with pytest.raises(SystemExit) as left:
        main(["data", "check", str(directory)])
    assert left.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [name in line for line in captured.err.splitlines() if line.startswith("slotnorm: ")] == [True]
    assert not (directory / "contact-sheet.png").exists()


def test_a_file_replaced_with_right_block_checksums_is_still_found(directory, arrays, monkeypatch):
    """The SHA-256 does not rely on the blocks' checksums, which anyone can meet."""
    path = directory / "images.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    scenes_verify = Scenes.verify
    monkeypatch.setattr(Scenes, "verify", lambda self, field: None)
    with pytest.raises(DamagedFile, match=r"images.npy does not have the SHA-256 of its manifest"):
        check(directory)
    monkeypatch.setattr(Scenes, "verify", scenes_verify)
    with pytest.raises(DamagedFile, match=r"images.npy is damaged in block 0"):
        check(directory)


def test_the_contact_sheet_shows_images_above_masks(directory, arrays):
    scenes = Scenes.open(directory)
    sheet = np.asarray(contact_sheet(scenes, num=5, columns=3))
    side, frame = 96, 2  # 8 pixels, each 12 wide
    assert sheet.shape == (2 * (2 * side + 2 * frame), 3 * (side + 2 * frame), 3)
    second = scenes.sample(5).index[1]
    tile = sheet[frame : frame + 2 * side, side + 3 * frame :][:, :side]
    assert np.array_equal(tile[:side][::12, ::12], arrays["images"][second])
    assert np.array_equal(tile[side:][::12, ::12], label_colours()[arrays["labels"][second]])
    assert (sheet[2 * side + 2 * frame :, 2 * (side + 2 * frame) :] == 255).all()  # the sixth place is empty


def test_every_label_has_its_own_colour():
    colours = label_colours()
    assert colours.shape == (256, 3)
    assert len({tuple(colour) for colour in colours.tolist()}) == 256
    assert min(np.abs(colours[i].astype(int) - colours[j]).max() for i in range(12) for j in range(i)) > 40


def test_large_scenes_are_thinned_on_the_sheet(tmp_path):
    images = np.zeros((2, 500, 300, 3), dtype=np.uint8)
    scenes = build(tmp_path / "set", {"images": images, "counts": np.zeros(2, dtype=int)})
    sheet = contact_sheet(scenes)
    assert sheet.width <= 2 * 196
    assert sheet.height <= 196


def test_the_sheet_goes_where_it_is_told(directory, tmp_path, capsys):
    main(["data", "check", str(directory), "--sheet", str(tmp_path / "sheets" / "a.png"), "--num", "3"])
    assert str(tmp_path / "sheets" / "a.png") in capsys.readouterr().out
    with Image.open(tmp_path / "sheets" / "a.png") as sheet:
        assert sheet.size == (3 * 100, 196)
    assert not (directory / "contact-sheet.png").exists()


def test_a_set_of_features_is_checked_without_a_sheet(tmp_path):
    scenes = build(
        tmp_path / "set", {"features": np.ones((4, 3, 2), dtype=np.float16), "counts": np.zeros(4, dtype=int)}
    )
    table = check(scenes.directory)
    assert "none: the set holds features only" in table
    assert "not counted" in table
    with pytest.raises(UserError, match="nothing to show"):
        contact_sheet(scenes)


def test_a_folder_that_is_no_set_is_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["data", "check", str(tmp_path)])
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        f"slotnorm: {tmp_path} holds no finished set of scenes (no manifest.json); build it, or name another\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--num", "0"], "0 scenes cannot be shown; ask for one"),
        (["--sheet", "."], "it is a folder; name a file"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(directory, arguments, sentence, capsys):
    with pytest.raises(SystemExit) as left:
        main(["data", "check", str(directory), *arguments])
    assert left.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_set_in_a_folder_that_cannot_be_written_says_so(directory, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*a.png"):
        check(directory, tmp_path / "file" / "a.png")


def test_the_commands_of_the_page_run(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[1] / "docs" / "data.md").read_text()
    verbs = ("$ slotnorm data folder", "$ slotnorm data check")
    commands = [shlex.split(line[2:]) for line in page.splitlines() if line.startswith(verbs)]
    assert len(commands) == 2
    (tmp_path / "photos" / "images").mkdir(parents=True)
    Image.new("RGB", (90, 70)).save(tmp_path / "photos" / "images" / "a.png")
    monkeypatch.chdir(tmp_path)
    for words in commands:
        main(words[1:])
    assert "64 x 64 x 3 uint8" in capsys.readouterr().out
