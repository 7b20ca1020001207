"""Features that are made from nothing: a bundled encoder's tokens of generated scenes, and the table they lead to."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import slotnorm
from slotnorm import experiments
from slotnorm.config import FeatureModel, SceneSpec
from slotnorm.data.backbones import encoder_backbone
from slotnorm.data.batches import to_images
from slotnorm.data.computed_features import attach_features
from slotnorm.data.features import compute
from slotnorm.data.generator import cached
from slotnorm.data.scenes import Scenes, data_fingerprint
from slotnorm.errors import UserError
from slotnorm.models import bundled, weights
from slotnorm.models.building import build
from slotnorm.report.claims.checking import check_claims
from slotnorm.report.contents import compose
from slotnorm.report.paper_numbers import printed
from slotnorm.report.reading import read
from slotnorm.report.tables import to_markdown
from slotnorm.storage import files
from slotnorm.studies.run_evaluation import plan_evaluations
from slotnorm.training import experiment_scenes
from slotnorm.training.experiment_scenes import evaluation_scenes, make_features, training_scenes, validation_scenes
from slotnorm.training.loop import train

MADE = experiments.feature_sets()["toy-features"]
STUDIES = ("toy-features-4-5", "toy-features-2-5", "toy-features-2-3")


def export_encoder(folder: Path, seed: int) -> Path:
    """An untrained model of the bundled encoder's kind, as it would be bundled."""
    folder.mkdir()
    trained = weights.unpack(bundled.bundled_file(MADE.encoder)).experiment
    untrained = dataclasses.replace(trained, seed=seed)
    untrained_weights = weights.Weights(build(untrained).state_dict(), untrained, 0, {})
    weights.export(untrained_weights, folder / f"{MADE.encoder}.safetensors", "# card")
    listed = {path.name: files.sha256(path) for path in folder.iterdir()}
    (folder / bundled.HASHES).write_text(json.dumps(listed))
    return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("places")
    for seed in (1, 2):
        export_encoder(folder / f"encoder-{seed}", seed)
    return folder


@pytest.fixture(autouse=True)
def _small_world(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTNORM_CACHE", str(places / "cache"))
    monkeypatch.setattr(bundled, "bundled_folder", lambda: places / "encoder-1")


def short(name: str, norm: str = "weighted_sum") -> experiments.Experiment:
    """Two steps of the study, which needs 64 scenes."""
    whole = experiments.experiment(name, norm=norm)
    return dataclasses.replace(whole, recipe=dataclasses.replace(whole.recipe, steps=2, validation_scenes=8))


def test_features_are_the_encoders_tokens_as_slot_attention_sees_them() -> None:
    scenes = make_features(MADE, "train", (1, 4), 16)
    model = slotnorm.load(bundled.bundled_file(MADE.encoder))
    with torch.no_grad():
        images = to_images(torch.from_numpy(scenes.read("images", np.arange(16))))
        expected = model.slot_attention.norm_input(model.encoder(images))
    assert scenes.features is not None
    assert scenes.features.shape[1:] == short(STUDIES[0]).recipe.model.input_shape
    np.testing.assert_allclose(scenes.features[:16], expected.numpy(), atol=2e-3)
    assert (
        scenes.manifest["provenance"]["sha256_of_tensors"]
        != encoder_backbone(model, "x", norm="before").provenance["sha256_of_tensors"]
    ), "the norm is part of the network"


def test_sets_of_any_length_are_one_set_and_another_encoder_makes_another(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, more = make_features(MADE, "test", (1, 4), 4), make_features(MADE, "test", (1, 4), 9)
    assert few.directory.parent == more.directory.parent
    assert data_fingerprint(few)[:16] == few.directory.parent.name
    assert data_fingerprint(few) == data_fingerprint(more)
    assert few.fingerprint != more.fingerprint
    np.testing.assert_array_equal(few.read("features", range(4)), more.read("features", range(4)))
    assert make_features(MADE, "test", (1, 4), 7).directory == more.directory, "a longer one serves a shorter request"

    monkeypatch.setattr(bundled, "bundled_folder", lambda: places / "encoder-2")
    other = make_features(MADE, "test", (1, 4), 4)
    np.testing.assert_array_equal(other.read("images", range(4)), few.read("images", range(4)))
    assert other.directory.parent != few.directory.parent
    assert data_fingerprint(other) != data_fingerprint(few)
    assert (other.read("features", range(4)) != few.read("features", range(4))).any()


def test_features_that_are_not_the_first_of_a_generated_set_or_not_stored_are_known_by_their_content(
    tmp_path: Path,
) -> None:
    images = cached(SceneSpec((1, 2), 16, style="flat"), 6)
    backbone = encoder_backbone(slotnorm.load(bundled.bundled_file(MADE.encoder)), "x")
    some = compute(images[1:4], backbone, tmp_path / "some")
    first = compute(images[:3], backbone, tmp_path / "first")
    assert data_fingerprint(some) == some.fingerprint
    assert data_fingerprint(first) != first.fingerprint
    flying = attach_features(images, backbone)
    assert data_fingerprint(flying) == flying.fingerprint != data_fingerprint(images)


def test_runs_with_few_objects_learn_from_the_same_scenes_restricted() -> None:
    every, few = training_scenes(short("toy-features-4-5")), training_scenes(short("toy-features-2-3"))
    assert len(every) == 64
    assert set(every.counts.tolist()) == {1, 2, 3, 4}
    assert few.index.tolist() == every.index[every.counts <= 2].tolist()
    assert few.directory == every.directory
    assert training_scenes(short("toy-features-2-3"), num=5).index.tolist() == few.index[:5].tolist()
    assert set(validation_scenes(short("toy-features-2-3")).counts.tolist()) == {1, 2}


def test_a_transfer_has_about_twice_the_objects_and_more_than_twice_the_slots() -> None:
    transfer = experiments.transfers()["toy-features-many"]
    assert transfer.studies == STUDIES
    trained = [experiments.study(name).experiment for name in STUDIES]
    assert [(experiment.max_objects, experiment.slots) for experiment in trained] == [(4, 5), (2, 5), (2, 3)]
    assert len({experiment.recipe for experiment in trained}) == 1
    assert transfer.slots > 2 * max(experiment.slots for experiment in trained)
    counts = evaluation_scenes(trained[0], transfer.test, 16).counts
    assert counts.min() >= 5
    assert counts.max() <= 10


def test_the_table_is_made_from_nothing_with_the_papers_numbers_beside(tmp_path: Path) -> None:
    paths = []
    for name in STUDIES:
        for norm in ("weighted_mean", "batch_norm") if name == STUDIES[0] else ("batch_norm",):
            run = train(short(name, norm), tmp_path)
            assert run.data == data_fingerprint(training_scenes(short(name)))
            paths.append(run.path)
    for job in (
        *plan_evaluations(paths, "toy-features-many", slots=[24], scenes=4),
        *plan_evaluations(paths, slots=[5, 6], scenes=4),
    ):
        job.evaluate()
    report = compose(read(paths), with_theory=False)
    assert {contents.section.study for contents in report.sections} == set(STUDIES)
    assert all(contents.section.sets == ("toy-features2", "toy-features4") for contents in report.sections)
    metrics = {panel.metric for figure in report.sections[0].results.figures for row in figure.rows for panel in row}
    assert {"f_ari", "ari", "l2"} <= metrics

    ((table, _),) = report.zero_shot
    assert [part.title for part in table.parts] == [
        "toy-features-4-5 (4, 5), as the paper's (10, 11)",
        "toy-features-2-5 (2, 5), as the paper's (6, 11)",
        "toy-features-2-3 (2, 3), as the paper's (6, 7)",
    ]
    assert [[line.norm for line in part.lines] for part in table.parts] == [
        ["weighted_mean", "batch_norm"], ["batch_norm"], ["batch_norm"],
    ]  # fmt: skip
    for part, study in zip(table.parts, ("movi-10-11", "movi-6-11", "movi-6-7"), strict=True):
        for line in part.lines:
            assert [cell.paper for cell in line.cells] == [
                printed("movi-d", study, line.norm, metric) for metric in table.metrics
            ]
            assert all(cell.spread.runs == 1 and np.isfinite(cell.spread.median) for cell in line.cells)
    text = to_markdown(table)
    assert "Zero-shot on toy-features-many (5 to 10 objects) with 24 slots" in text
    assert "The paper's table is on movi-d with 24 slots. In brackets the paper's numbers." in text
    bound = [  # as if training had been longer
        dataclasses.replace(section, runs=tuple(dataclasses.replace(run, failed=False) for run in section.runs))
        for section in (contents.section for contents in report.sections)
    ]
    outcomes = [outcome for outcome in check_claims(bound, with_theory=False) if outcome.findings]
    assert {outcome.claim.study for outcome in outcomes} == {"movi-10-11", "movi-6-7", "movi-6-11", "movi-d"}
    assert {outcome.scale for outcome in outcomes} == {"toy"}


def test_a_run_is_not_evaluated_on_the_features_of_another_encoder(
    places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(short("toy-features-2-3"), tmp_path)
    assert plan_evaluations([run.path], slots=[3], scenes=2)
    monkeypatch.setattr(bundled, "bundled_folder", lambda: places / "encoder-2")
    with pytest.raises(UserError, match="toy-features-2-3-weighted_sum-1 was trained on other features"):
        plan_evaluations([run.path], slots=[3], scenes=2)
    longer = dataclasses.replace(run.experiment, recipe=dataclasses.replace(run.experiment.recipe, steps=3))
    with pytest.raises(UserError, match="data"):
        train(longer, tmp_path)


def test_a_model_that_is_not_bundled_is_named() -> None:
    with pytest.raises(UserError, match="checkpoint 'toy-weighted_sun'; did you mean 'toy-weighted_sum'"):
        bundled.bundled_file("toy-weighted_sun")


def test_an_encoder_of_another_width_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    wide = short("toy-features-4-5")
    model = dataclasses.replace(wide.recipe.model, features=64)
    assert isinstance(model, FeatureModel)
    with pytest.raises(UserError, match=r"holds features of shape \(256, 32\), but the model takes \(256, 64\)"):
        train(dataclasses.replace(wide, recipe=dataclasses.replace(wide.recipe, model=model)), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_bundled_encoder_makes_the_features_that_the_studies_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path))
    features_set = experiment_scenes.make_features(MADE, "val", (1, 4), 64)
    assert isinstance(features_set, Scenes)
    features = features_set.read("features", np.arange(64)).astype(float)
    assert features.shape[1:] == short(STUDIES[0]).recipe.model.input_shape
    assert 0.1 < features.var(axis=(0, 1)).mean() < 3, "of a scale that needs no other learning rate"
