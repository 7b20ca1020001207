"""One way from a path or a name to a model, and everything takes it."""

import inspect
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import slotnorm
import tiny
from slotnorm.cli.data_verbs import open_backbone
from slotnorm.cli.verbs import main
from slotnorm.errors import DamagedFile, UserError
from slotnorm.models.bundled import bundled_file, bundled_names
from slotnorm.models.parts import SlotModel
from slotnorm.storage.fingerprints import fingerprint
from slotnorm.training.loop import train
from slotnorm.training.runs import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    data = tiny.build_scenes(tmp_path_factory.mktemp("data")).directory
    return train(tiny.experiment(), tmp_path_factory.mktemp("runs"), data=data)


def weights_of(model: SlotModel) -> str:
    return fingerprint(model.state_dict())


def test_a_folder_and_an_exported_file_give_the_same_model(run: Run, tmp_path: Path) -> None:
    from_folder = slotnorm.load(run.path)
    from_file = slotnorm.load(str(run.export(tmp_path / "model.safetensors")))
    assert weights_of(from_folder) == weights_of(from_file) == weights_of(run.model())
    assert from_folder.experiment == from_file.experiment == run.experiment
    assert not from_folder.training
    assert not from_file.training


def test_a_published_run_without_checkpoints_has_the_model_exported_into_it(run: Run, tmp_path: Path) -> None:
    published = shutil.copytree(run.path, tmp_path / "published", ignore=shutil.ignore_patterns("checkpoints"))
    run.export(published / "model.safetensors")
    assert weights_of(slotnorm.load(published)) == weights_of(run.model())


@pytest.mark.parametrize("name", bundled_names())
def test_a_bundled_model_is_loaded_by_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()  # a folder that is not a run is not in the way
    assert weights_of(slotnorm.load(name)) == weights_of(slotnorm.load(bundled_file(name)))


def test_a_run_that_still_trains_is_loaded_with_a_note(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unfinished = Path(shutil.copytree(run.path, tmp_path / "unfinished"))
    for path in (unfinished / "checkpoints").glob("step-12.*"):
        path.unlink()
    with caplog.at_level(logging.INFO, logger="slotnorm"):
        slotnorm.load(unfinished)
    assert caplog.messages == [
        f"note: {unfinished} is still training, at step 8 of 12; its newest whole checkpoint is used"
    ]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("none.safetensors", "there is no none.safetensors; a model is a run's folder, a .safetensors file"),
        ("no/run", "there is no no/run; a model is a run's folder"),
        ("toy-batchnorm", "there is no toy-batchnorm; .* or a hub id as .*; did you mean 'toy-batch_norm'?"),
        ("empty", "empty is not a run: it has no experiment.json; a model is"),
    ],
)
def test_what_is_no_model_is_refused_with_what_one_is(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=sentence):
        slotnorm.load(name)


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(DamagedFile, match="model.safetensors is damaged or"):
        slotnorm.load(tmp_path / "model.safetensors")


def test_every_verb_that_takes_a_model_takes_a_bundled_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.zeros((24, 24, 3), np.uint8)).save("black.png")
    main(["segment", "black.png", "--run", "toy-batch_norm"])
    assert capsys.readouterr().out.startswith("black.png: 24x24, scaled to 32x32 for the model; ")
    main(["theory", "--run", "toy-batch_norm"])
    assert "toy-batch_norm" in capsys.readouterr().out
    assert open_backbone("toy-batch_norm", None).size == open_backbone("run:toy-batch_norm", None).size == 32


def test_loading_gives_a_model_with_slots() -> None:
    for function in (slotnorm.load, Run.model):
        assert inspect.signature(function).return_annotation is SlotModel
