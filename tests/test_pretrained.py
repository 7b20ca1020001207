"""Models by name, and on a hub that a local folder stands in for: nothing is downloaded unless a hub id asks."""

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import slotnorm as sn
import tiny
from own_pictures import write_pictures
from slotnorm.cli.verbs import main
from slotnorm.errors import UserError
from slotnorm.models import pretrained, weights
from slotnorm.models.building import build
from slotnorm.models.bundled import bundled_file, bundled_names
from slotnorm.storage.fingerprints import fingerprint
from slotnorm.training.runs import Run


class RepositoryNotFoundError(OSError):
    """As the hub's client calls it."""


class EntryNotFoundError(Exception):
    """As the hub's client calls it."""


class LocalEntryNotFoundError(FileNotFoundError, EntryNotFoundError):
    """What the hub's client raises when there is no network, with the reason as its cause."""


class LocalHub:
    """A folder in place of the hub, with the three functions that are used of its client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create_repo(self, repo_id: str, private: bool, exist_ok: bool) -> None:
        (self.folder / repo_id).mkdir(parents=True, exist_ok=exist_ok)

    def upload_folder(self, repo_id: str, folder_path: str, commit_message: str) -> None:
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)

    def hf_hub_download(self, repo_id: str, filename: str) -> str:
        path = self.folder / repo_id / filename
        if not path.is_file():
            raise RepositoryNotFoundError(f"404 {repo_id}")
        return str(path)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    stand_in = LocalHub(tmp_path / "hub")
    monkeypatch.setattr(pretrained, "_hub", lambda: stand_in)
    return stand_in


@pytest.fixture
def no_hub(monkeypatch):
    def refuse():
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(pretrained, "_hub", refuse)


def weights_of(model: sn.SlotModel) -> str:
    return fingerprint(model.state_dict())


def test_a_pushed_model_comes_back_by_its_id(hub):
    model = build(tiny.experiment())
    assert model.push_to_hub("me/tiny") == "https://huggingface.co/me/tiny"
    assert sorted(path.name for path in (hub.folder / "me" / "tiny").iterdir()) == ["README.md", "model.safetensors"]
    card = (hub.folder / "me" / "tiny" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: slotnorm\n")
    assert 'sn.SlotModel.from_pretrained("me/tiny")' in card
    for again in (sn.SlotModel.from_pretrained("me/tiny"), sn.load("hub:me/tiny")):
        assert weights_of(again) == weights_of(model)
        assert again.experiment == model.experiment


def test_bundled_names_and_files_need_no_hub(no_hub):
    name = bundled_names()[0]
    assert weights_of(sn.SlotModel.from_pretrained(name)) == weights_of(
        sn.SlotModel.from_pretrained(bundled_file(name))
    )


def test_a_mistyped_path_downloads_nothing(no_hub):
    with pytest.raises(UserError, match="there is no runs/typo; .* a model on the hub is hub:runs/typo"):
        sn.load("runs/typo")
    with pytest.raises(UserError, match=r"there is no model 'some/model.safetensors'"):
        sn.SlotModel.from_pretrained("some/model.safetensors")


def test_every_verb_that_takes_a_model_takes_its_four_names(hub, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path / "cache"))
    name = "toy-weighted_sum"
    bundled, run = sn.load(name), tmp_path / name
    run.mkdir()
    Run(run, bundled.experiment, scenes=20_000, data=bundled.trained[1]["data"]).write()
    shutil.copy(bundled_file(name), run / "model.safetensors")
    bundled.push_to_hub("me/toy")
    Image.new("RGB", (32, 32)).save(tmp_path / "black.png")
    judgements = set()
    for model in (str(run), name, str(bundled_file(name)), "hub:me/toy"):
        main(["judge", model])
        judgement = capsys.readouterr().out
        assert " on 128 scenes of toy4: slots follow what is in the images" in judgement
        judgements.add(judgement.partition(" on ")[2])
        main(["segment", str(tmp_path / "black.png"), "--run", model, "--out", str(tmp_path / "masks")])
        assert (tmp_path / "masks" / "black" / "labels.png").is_file()
        shutil.rmtree(tmp_path / "masks")
    assert len(judgements) == 1
    main(["theory", "--run", "hub:me/toy"])  # a few seconds for each
    assert "hub:me/toy" in capsys.readouterr().out


@pytest.mark.parametrize("model", ["toy-weighted_sum", "hub:me/toy", "model.safetensors"])
@pytest.mark.parametrize("verb", ["eval", "report", "status"])
def test_a_verb_that_needs_a_folder_says_so_of_a_model_without_one(verb, model, no_hub, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main([verb, model])
    said = capsys.readouterr().err
    assert said.startswith(
        f"slotnorm: {model} names a model without a run's folder, where rows and progress are kept; "
    )
    assert said.count("\n") == 1


def test_pictures_of_ones_own_are_asked_for_where_only_a_run_knows_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path / "cache"))
    photos = write_pictures(tmp_path / "photos", num=6)
    own = sn.experiment(
        "own", recipe=tiny.recipe(model=dataclasses.replace(tiny.IMAGES, size=32), evaluation_iterations=3)
    )
    file = tmp_path / "own.safetensors"
    weights.export(weights.Weights(dict(build(own).state_dict()), own, 1, {"data": "0" * 64}), file, "")
    with pytest.raises(SystemExit):
        main(["judge", str(file)])
    assert "give their folder with --data FOLDER" in capsys.readouterr().err
    main(["judge", str(file), "--data", str(photos)])
    assert f"own.safetensors on 6 of 6 scenes of {photos}: slots " in capsys.readouterr().out


def test_what_is_not_on_the_hub_and_no_network_are_one_sentence(hub, monkeypatch):
    with pytest.raises(UserError, match=r"there is no model me/none with a model.safetensors on the hub that you may"):
        sn.SlotModel.from_pretrained("me/none")
    with pytest.raises(UserError, match="'a b' is not a hub id; one is owner/name"):
        build(tiny.experiment()).push_to_hub("a b")
    with pytest.raises(UserError, match="the model has no experiment to be rebuilt from"):
        sn.models.ImageAutoencoder(size=8, channels=4, dim=4, strides=(1,), decoder="dense").push_to_hub("me/plain")

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("Name or service\nnot known")

    def without_network(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("a page of advice") from ConnectionError("Name or service not known")

    monkeypatch.setattr(hub, "create_repo", unreachable)
    monkeypatch.setattr(hub, "hf_hub_download", without_network)
    with pytest.raises(UserError, match=r"me/none could not be fetched from the hub \(Name or service not known\)"):
        sn.load("hub:me/none")
    monkeypatch.setattr(hub, "hf_hub_download", unreachable)
    with pytest.raises(UserError, match=r"me/none could not be fetched from the hub \(Name or service not known\)"):
        sn.load("hub:me/none")
    with pytest.raises(UserError, match=r"me/tiny could not be pushed to the hub \(Name or service not known\)"):
        build(tiny.experiment()).push_to_hub("me/tiny")


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"need the package huggingface_hub: pip install 'slotnorm\[hub\]'"):
        sn.SlotModel.from_pretrained("me/tiny")


def test_the_verb_lists_what_is_bundled(capsys):
    main(["models"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == bundled_names()
    assert all(line.endswith("MIT") for line in lines[1:])
    assert "F-ARI at K in validation" in lines[0]


def test_values_far_outside_the_range_of_training_get_a_warning():
    model = build(tiny.experiment()).eval()
    images = torch.rand(1, 3, 8, 8)
    model(2 * images - 1, num_slots=3)
    with pytest.warns(UserWarning, match=r"images go from .* to 2\d\d\.?\d*, but the model was trained on \[-1, 1\]"):
        model(images * 255, num_slots=3)
