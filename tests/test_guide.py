"""docs/your-images.md: every command of the guide is run, in its order, on a folder that the test makes."""

import re
import shlex
from pathlib import Path

import pytest

from own_pictures import write_pictures
from slotnorm.cli.verbs import main

GUIDE = Path(__file__).parents[1] / "docs" / "your-images.md"
QUICK = {
    "train": ["--steps", "8", "--batch-size", "2", "--recipe.validate-every", "2", "--recipe.model.channels", "4",
              "--recipe.model.dim", "8", "--recipe.model.hidden", "8", "--recipe.model.decoder-channels", "4"],
    "eval": ["--slots", "8"],
}  # fmt: skip


def test_every_command_of_the_guide_works_on_a_folder_of_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path / "cache"))
    write_pictures(tmp_path / "photos")
    commands = re.findall(r"^\$ slotnorm (.+)$", GUIDE.read_text(), flags=re.MULTILINE)
    assert len(commands) == 7
    printed = {}
    for command in commands:
        verb, *words = shlex.split(command)
        main([verb, *words, *QUICK.get(verb, [])])
        printed[verb] = capsys.readouterr()
    assert "moving@8" in printed["train"].out
    assert "slots do not follow what is in the images (" in printed["train"].err
    assert "own-weighted_sum-1 on 2 scenes of own: slots do not follow what is in the images: " in printed["judge"].out
    assert "try: " in printed["judge"].out
    assert " of 24 slots are background" in printed["segment"].out
    assert (tmp_path / "masks" / "Foto-00-中国" / "labels.png").is_file()
    assert (tmp_path / "set" / "contact-sheet.png").is_file()
    assert (tmp_path / "report" / "index.html").is_file()


def test_a_run_with_one_scene_cannot_be_judged(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path / "cache"))
    photos = write_pictures(tmp_path / "photos", num=4)
    words = ["train", "own", "--data", str(photos), "--into", str(tmp_path / "runs"), *QUICK["train"]]
    main([*words, "--recipe.validation-scenes", "1"])
    with pytest.raises(SystemExit):
        main(["judge", str(tmp_path / "runs" / "own-weighted_sum-1")])
    assert "has 1 scene to judge by, and two are needed" in capsys.readouterr().err
