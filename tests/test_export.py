import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import slotnorm as sn
import tiny
from slotnorm.errors import DamagedFile, NonFinite, UserError
from slotnorm.experiments import command_line
from slotnorm.models.weights import Weights, pack, unpack
from slotnorm.normalization import Aggregate, Normalization, normalizations
from slotnorm.training.loop import train
from slotnorm.training.runs import Run


@pytest.fixture(scope="module", params=["batch_norm", "weighted_sum"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs")
    tiny.build_scenes(folder / "data")
    return train(tiny.experiment(request.param), folder, data=folder / "data")


def test_an_exported_model_comes_back_with_its_experiment(run: Run, tmp_path: Path) -> None:
    path = run.export(tmp_path / "model.safetensors")
    model, original = sn.load(path), run.model()
    assert model.experiment == run.experiment
    assert not model.training
    images, noise = torch.rand(2, 3, 8, 8) * 2 - 1, torch.randn(2, 9, 8)
    ours, theirs = (network(images, num_slots=9, noise=noise) for network in (model, original))
    assert torch.equal(ours.masks, theirs.masks)
    assert torch.equal(ours.reconstruction, theirs.reconstruction)


def test_the_model_card_says_what_it_is(run: Run, tmp_path: Path) -> None:
    run.export(tmp_path / "model.safetensors")
    card = (tmp_path / "model.md").read_text()
    assert card.startswith(f"# {run.name}\n")
    assert f"normalized by `{run.experiment.norm}`, after 12 of 12 training steps" in card
    assert f"fingerprint `{run.data}`" in card
    assert "slotnorm train toy" in card
    assert "| learning_rate | 0.01 |" in card
    assert f"| f_ari@4 | {run.validation()['f_ari@4']:.4g} |" in card
    import hashlib

    assert hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest() in card
    assert str(tmp_path) not in card
    assert str(run.path.parent) not in card
    assert f"slotnorm train {' '.join(command_line(run.experiment))}`" in card
    run.export(tmp_path / "other.safetensors")
    assert 'sn.load("other.safetensors")' in (tmp_path / "other.md").read_text()


def test_a_checkpoint_loads_like_an_export(run: Run) -> None:
    model = sn.load(run.checkpoints / "step-8.safetensors")
    assert model.experiment == run.experiment


def test_exports_go_to_safetensors_files(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not end in .safetensors"):
        run.export(tmp_path / "model.pt")


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="holds tensors but no experiment"):
        sn.load(tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="there is no .*none.safetensors; a model is"):
        sn.load(tmp_path / "none.safetensors")
    (tmp_path / "pickle.safetensors").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(DamagedFile, match="damaged or not a safetensors file"):
        sn.load(tmp_path / "pickle.safetensors")
    (tmp_path / "huge.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    with pytest.raises(DamagedFile, match="damaged or not a safetensors file"):
        sn.load(tmp_path / "huge.safetensors")


def test_weights_of_another_model_are_refused(run: Run, tmp_path: Path) -> None:
    weights = unpack(run.export(tmp_path / "model.safetensors"))
    larger = dataclasses.replace(
        tiny.experiment(run.experiment.norm), recipe=tiny.recipe(model=dataclasses.replace(tiny.IMAGES, dim=16))
    )
    (tmp_path / "wrong.safetensors").write_bytes(pack(dataclasses.replace(weights, experiment=larger)))
    with pytest.raises(UserError, match="does not fit the model of its experiment: .* is .*, not .*16"):
        sn.load(tmp_path / "wrong.safetensors")


def test_weights_that_are_not_finite_are_not_packed() -> None:
    with pytest.raises(NonFinite, match="weight is not finite"):
        pack(Weights({"weight": torch.tensor([1.0, float("inf")])}, tiny.experiment(), 1, {}))


def test_a_plugin_that_is_missing_on_load_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Halved(Normalization):
        """u = ũ / 2N: of someone's own."""

        name, label, where, keeps_mass = "halved", "Halved", "-", True

        def forward(self, aggregate: Aggregate, carry: None = None) -> tuple[torch.Tensor, None]:
            return aggregate.sums / (2 * aggregate.num_tokens), None

    known = normalizations()
    try:
        scenes = tiny.build_scenes(tmp_path / "data")
        mine = train(tiny.experiment("halved", steps=2), tmp_path, data=scenes.directory)
        path = mine.export(tmp_path / "mine.safetensors")
        assert sn.load(path).experiment.norm == "halved"
    finally:
        from slotnorm import normalization

        normalization._registry.pop("halved")
    assert "halved" not in normalizations()
    assert set(known) - {"halved"} == set(normalizations())
    with pytest.raises(UserError, match="there is no normalization 'halved'.*--plugin FILE"):
        sn.load(path)
    shutil.rmtree(mine.path)
