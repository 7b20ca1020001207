"""`slotnorm judge`: any pictures can be judged, and the answer says which and how many were."""

import numpy as np
import pytest

import tiny
from own_pictures import write_pictures
from slotnorm.data import Builder
from slotnorm.errors import UserError
from slotnorm.studies.judging import judge_model
from slotnorm.training.loop import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Of scenes with 1 to 3 objects that have a test split beside the training split."""
    folder = tmp_path_factory.mktemp("data")
    tiny.build_scenes(folder / "train", 24)
    tiny.build_scenes(folder / "test", 24, seed=1)
    return train(tiny.experiment(steps=4), tmp_path_factory.mktemp("runs"), data=folder)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path / "cache"))


def judged_on(run, data) -> str:
    return judge_model(run.path, data, "cpu").partition(" on ")[2].partition(": slots ")[0]


def test_pictures_without_masks_are_judged(run, tmp_path):
    photos = write_pictures(tmp_path / "photos", num=6)
    assert judged_on(run, photos) == f"6 of 6 scenes of {photos}"


def test_more_slots_than_fit_in_memory_are_refused_before_they_take_it(run, tmp_path, monkeypatch):
    photos = write_pictures(tmp_path / "photos", num=6)
    judged_on(run, photos)  # as long as there is room
    monkeypatch.setattr("slotnorm.evaluation.decomposer._free_bytes", lambda device: 1 << 14)
    with pytest.raises(UserError, match="4 slots need about .* GiB and .* GiB are free"):
        judge_model(run.path, photos, "cpu")


def test_another_set_is_named_and_all_of_it_is_judged(run, tmp_path):
    other = tiny.build_scenes(tmp_path / "other", 30, seed=2)
    assert judged_on(run, other.directory) == f"30 of 30 scenes of {tmp_path / 'other'}"
    crowded = tiny.build_scenes(tmp_path / "crowded", 140, crowded=True)
    assert judged_on(run, crowded.directory) == f"128 of 140 scenes of {tmp_path / 'crowded'}"
    tiny.build_scenes(tmp_path / "splits" / "test", 20, seed=3)
    assert judged_on(run, tmp_path / "splits") == f"20 of 20 scenes of {tmp_path / 'splits'}"


def test_the_test_scenes_of_its_own_set_have_as_many_objects_as_its_study_says(run):
    scenes = tiny.Scenes.open(run.source / "test")
    kept = int(((scenes.counts >= 2) & (scenes.counts <= 4)).sum())
    assert 0 < kept < 24
    assert judged_on(run, run.source) == f"{kept} of 24 scenes of {run.source} with 2 to 4 objects"


def test_what_training_left_out_is_judged_where_there_is_no_test_split(tmp_path):
    scenes = tiny.build_scenes(tmp_path / "data", 24)
    run = train(tiny.experiment(steps=4), tmp_path / "runs", data=scenes.directory)
    assert judged_on(run, scenes.directory) == f"8 of 8 scenes of {scenes.directory}"


def test_a_test_split_that_nobody_counted_is_judged_whole(tmp_path):
    for split, seed in (("train", 0), ("test", 1)):
        counted = tiny.build_scenes(tmp_path / "counted" / split, 16, seed=seed)
        fields = {"images": ((tiny.SIZE, tiny.SIZE, 3), "uint8")}
        with Builder(tmp_path / "data" / split, fields, 16, {"made for": "tests", "seed": seed}) as builder:
            builder.append(counts=np.zeros(16, int), images=counted.read("images", range(16)))
            builder.finish()
    run = train(tiny.experiment(steps=4), tmp_path / "runs", data=tmp_path / "data")
    assert judged_on(run, tmp_path / "data") == f"16 of 16 scenes of {tmp_path / 'data'}"
