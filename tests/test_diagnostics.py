"""What is measured inside models, against the layer's own trace; and the drawing of it."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from slotnorm.data.scenes import Scenes
from slotnorm.evaluation.decomposer import Decomposer, evaluating
from slotnorm.evaluation.diagnosis import OCCUPIED, SOURCE, diagnose
from slotnorm.evaluation.rows import Rows
from slotnorm.models import SlotModel, build
from slotnorm.normalization import BatchNorm, normalizations
from slotnorm.report.diagnostics import diagnostics
from slotnorm.report.drawing.diagnostics_figure import draw_diagnostics
from slotnorm.slot_attention import Iteration

TRAIN_SLOTS = 4


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return tiny.build_scenes(tmp_path_factory.mktemp("scenes") / "set", 10)


def model_of(norm: str, trained: bool = True) -> SlotModel:
    """A model whose LayerNorm has a shift, as training gives it one; batch_norm's statistics as well."""
    model = build(tiny.experiment(norm))
    if trained:
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            model.slot_attention.norm_input.bias.normal_(generator=generator)
            if isinstance(scheme := model.slot_attention.normalization, BatchNorm):
                scheme.running_mean.fill_(0.4)
                scheme.running_var.fill_(9.0)
    return model


def measured(model: SlotModel, scenes: Scenes, slots: Any = (2, 8)) -> Rows:
    norm = model.slot_attention.normalization.name
    return diagnose(model, scenes, slots, TRAIN_SLOTS, run=f"toy-{norm}-1", norm=norm, seed=1, dataset="toy4")


def traces(model: SlotModel, scenes: Scenes, slots: int) -> list[tuple[int, list[Iteration]]]:
    """Every scene by itself: its number and the layer's trace with the noise of the evaluation."""
    decomposer, traces = Decomposer(model, scenes), []
    with evaluating(model):
        for group in decomposer.groups(np.arange(len(scenes))):
            _, tokens = decomposer.encode(group)
            noise = decomposer.scene_noise(0, group, slots)
            for place in np.flatnonzero(group >= 0):
                trace = model.slot_attention.trace(
                    tokens[place : place + 1], noise=noise[place : place + 1], iterations=decomposer.iterations
                )
                traces.append((int(scenes.index[group[place]]), trace))
    return traces


@pytest.mark.parametrize("norm", list(normalizations()))
def test_measurements_are_those_of_the_layers_trace(scenes: Scenes, norm: str) -> None:
    model = model_of(norm)
    rows = measured(model, scenes)
    assert set(rows.where(metric=("occupied", "sums_mean")).unique("slots")) == {2, TRAIN_SLOTS, 8}
    assert rows.unique("source") == [SOURCE]
    by_image = {metric: {} for metric in ("update_norm", "occupied", "occupancy")}
    for metric, values in by_image.items():
        some = rows.where(metric=metric, slots=8)
        values.update(zip(some["image"].tolist(), some["value"].tolist(), strict=True))
    sums = []
    for scene, trace in traces(model, scenes, 8):
        last = trace[-1]
        assert by_image["update_norm"][scene] == pytest.approx(float(last.updates.norm(dim=-1).mean()), rel=1e-5)
        occupied = int((last.attention.double().mean(dim=-1) >= OCCUPIED).sum())
        assert by_image["occupied"][scene] == occupied
        assert by_image["occupancy"][scene] == occupied / 8
        sums.append(trace[0].aggregate.sums.double())
    assert len(by_image["occupied"]) == len(scenes)
    variance = rows.where(metric="sums_variance", slots=8)["value"][0]
    assert variance == pytest.approx(float(torch.cat(sums).var(correction=0)), rel=1e-5)


def test_code_lengths_are_relative_to_the_training_number_of_slots(scenes: Scenes) -> None:
    rows = measured(model_of("weighted_sum"), scenes)
    at_training = rows.where(metric="update_norm_ratio", slots=TRAIN_SLOTS)["value"]
    assert at_training.mean() == pytest.approx(1.0)
    lengths = {k: rows.where(metric="update_norm", slots=k)["value"].mean() for k in (2, 8)}
    ratios = {k: rows.where(metric="update_norm_ratio", slots=k)["value"].mean() for k in (2, 8)}
    assert ratios[8] / ratios[2] == pytest.approx(lengths[8] / lengths[2])


def test_the_drift_is_seen_from_the_statistics_that_the_model_normalizes_with(scenes: Scenes) -> None:
    rows = measured(model_of("batch_norm"), scenes)
    for k in (2, TRAIN_SLOTS, 8):
        mean, variance, mean_drift, variance_drift = (
            float(rows.where(metric=metric, slots=k)["value"][0])
            for metric in ("sums_mean", "sums_variance", "mean_drift", "variance_drift")
        )
        assert variance_drift == pytest.approx(variance / 9.0)
        assert mean_drift == pytest.approx((mean - np.float32(0.4)) / 3.0, rel=1e-5)
    others = measured(model_of("weighted_mean"), scenes)
    assert others.where(metric="variance_drift", slots=TRAIN_SLOTS)["value"].tolist() == [1.0]
    assert others.where(metric="mean_drift", slots=TRAIN_SLOTS)["value"].tolist() == [0.0]


@pytest.mark.parametrize("norm", list(normalizations()))
def test_the_mass_is_read_off_the_codes_where_they_keep_it(scenes: Scenes, norm: str) -> None:
    rows = measured(model_of(norm), scenes)
    mass = rows.header["mass"]
    assert mass["keeps"] == normalizations()[norm].keeps_mass
    assert mass["refused"] == ""
    errors = rows.where(metric="mass_error")["value"]
    true, read = np.asarray([pair for pairs in mass["pairs"].values() for pair in pairs]).T
    assert (true > 0).all()
    if mass["keeps"]:
        assert errors.max() < 1e-4
        np.testing.assert_allclose(read, true, atol=1e-4)
    else:
        assert np.isnan(errors).all()
        assert np.abs(read - true).max() > 0.2  # the same formula does not give the mass
    if norm == "weighted_mean":
        np.testing.assert_allclose(read, 1.0, atol=1e-3)  # whatever the mass


def test_before_training_it_is_said_why_no_mass_can_be_read_off(scenes: Scenes) -> None:
    rows = measured(model_of("weighted_sum", trained=False), scenes)
    assert "norm_input.bias is 0, as it is before training" in rows.header["mass"]["refused"]
    assert rows.header["mass"]["pairs"]["8"] == []
    assert np.isnan(rows.where(metric="mass_error")["value"]).all()
    summary = diagnostics("toy", [rows])
    assert "norm_input.bias" in summary.refused["weighted_sum"]
    ElementTree.fromstring(draw_diagnostics(summary)["svg"])


def test_measuring_leaves_the_model_as_it_was(scenes: Scenes) -> None:
    model = model_of("batch_norm").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    measured(model, scenes)
    assert model.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_rows_of_several_runs_become_curves_and_one_drawing(scenes: Scenes, tmp_path: Path) -> None:
    parts = [measured(model_of(norm), scenes) for norm in ("batch_norm", "weighted_mean")]
    tripled = parts[0]["value"] * np.where(parts[0]["metric"] == "visible", 1, 3)
    second = parts[0].with_columns(run="toy-batch_norm-2", seed=2, value=tripled)
    summary = diagnostics("toy", [*parts, second])
    assert list(summary.curves["occupied"]) == ["weighted_mean", "batch_norm"]
    assert summary.counts == {"weighted_mean": "1 run", "batch_norm": "2 runs"}
    curve = summary.curves["update_norm"]["batch_norm"]
    assert curve.x.tolist() == [2, TRAIN_SLOTS, 8]
    np.testing.assert_allclose(curve.median, 2 * curve.low)  # of x and 3 x
    assert set(summary.mass_errors) == {"batch_norm"}
    files = draw_diagnostics(summary)
    svg = files["svg"].decode()
    ElementTree.fromstring(svg)
    for words in ("mass read off the codes", "variance of", "Batch Norm (2 runs)", "trained"):
        assert words in svg
    assert files["png"][:4] == b"\x89PNG"
