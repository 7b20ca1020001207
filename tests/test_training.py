import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from slotnorm.cli import verbs
from slotnorm.config import Experiment
from slotnorm.data import Builder, Scenes
from slotnorm.data.batches import batches, to_images
from slotnorm.errors import UserError
from slotnorm.evaluation.label_maps import comparable_labels
from slotnorm.evaluation.scoring import score
from slotnorm.evaluation.validation import validate
from slotnorm.metrics import adjusted_rand_index
from slotnorm.models.building import build
from slotnorm.models.set_predictor import property_targets
from slotnorm.normalization import normalizations
from slotnorm.runtime import randomness
from slotnorm.runtime.ranks import Ranks
from slotnorm.training.experiment_file import write_experiment
from slotnorm.training.experiment_scenes import training_scenes, validation_scenes
from slotnorm.training.learner import Learner
from slotnorm.training.loop import train
from slotnorm.training.optimizer import Adam
from slotnorm.training.pictures import Picture, slot_colors, soft_segmentation
from slotnorm.training.runs import Run

ALONE = Ranks(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return tiny.build_scenes(tmp_path_factory.mktemp("data"))


def state(run: Run) -> dict[str, torch.Tensor]:
    return run.weights().tensors


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def grown(experiment: Experiment, steps: int) -> Experiment:
    return dataclasses.replace(experiment, recipe=dataclasses.replace(experiment.recipe, steps=steps))


MODELS = {
    "images": {},
    "features": {"model": tiny.FEATURES, "flip": False},
    "properties": {"model": tiny.PROPERTIES, "flip": False},
    "bfloat16": {"precision": "bfloat16"},
    "float16": {"precision": "float16"},
    "authors": {"protocol": "authors"},
}


@pytest.mark.parametrize("kind", MODELS)
def test_training_in_two_parts_gives_the_same_bits_as_in_one(tmp_path: Path, scenes: Scenes, kind: str) -> None:
    """With a schedule that does not know the last step, a run that grew is one that was so long from the start."""
    experiment = tiny.experiment(half_life=10, cosine_to=None, **MODELS[kind])
    whole = train(grown(experiment, 9), tmp_path / "whole", data=scenes.directory)
    train(grown(experiment, 5), tmp_path / "parts", data=scenes.directory)
    parts = train(grown(experiment, 9), tmp_path / "parts", data=scenes.directory)
    assert parts.finished
    assert_equal(state(parts), state(whole))


@pytest.mark.parametrize("norm", normalizations())
def test_every_normalization_trains_and_learns(tmp_path: Path, scenes: Scenes, norm: str) -> None:
    experiment = tiny.experiment(norm, steps=60, checkpoint_every=60, validate_every=60)
    run = train(experiment, tmp_path, data=scenes.directory)
    losses = [row["loss"] for row in run.metrics() if "loss" in row]
    assert np.mean(losses[-5:]) < 0.8 * losses[0]


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path: Path, scenes: Scenes) -> None:
    run, same = (train(tiny.experiment(seed=3), tmp_path / name, data=scenes.directory) for name in "ab")
    other = train(tiny.experiment(seed=4), tmp_path, data=scenes.directory)
    assert_equal(state(run), state(same))
    assert not torch.equal(state(run)["slot_attention.key.weight"], state(other)["slot_attention.key.weight"])


@pytest.mark.parametrize("workers", [1, 4])
def test_any_number_of_workers_gives_the_same_bits(tmp_path: Path, scenes: Scenes, workers: int) -> None:
    alone = train(tiny.experiment(), tmp_path / "alone", data=scenes.directory)
    helped = train(tiny.experiment(), tmp_path / "helped", data=scenes.directory, workers=workers)
    assert_equal(state(helped), state(alone))


def test_building_a_model_leaves_the_random_state_alone_and_depends_on_the_seed_only() -> None:
    torch.manual_seed(5)
    first = torch.randn(3)
    torch.manual_seed(5)
    weights = build(tiny.experiment(seed=1)).state_dict()
    assert torch.equal(torch.randn(3), first)
    torch.manual_seed(6)
    assert_equal(build(tiny.experiment(seed=1)).state_dict(), weights)
    assert build(tiny.experiment(seed=1)).experiment == tiny.experiment(seed=1)


def test_a_step_is_the_plain_formula(scenes: Scenes) -> None:
    """Loss, clipping and update of two steps against a loop written with torch's own parts."""
    experiment = tiny.experiment(clip=0.05, learning_rate=0.01, warmup_steps=0)
    learner, plain = Learner(experiment, ALONE), build(experiment).train()
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.01, eps=1e-8, fused=True)
    for batch in batches(scenes, seed=1, batch_size=4, stop=2, flip=True):
        assert batch.images is not None
        outcome = learner.learn(batch)
        images = to_images(batch.images)
        noise = [randomness.slot_noise(1, "slots", [(batch.step, sample)], 4, 8)[0] for sample in batch.sample.tolist()]
        decomposition = plain(images, num_slots=4, iterations=3, noise=torch.from_numpy(np.stack(noise)))
        loss = ((decomposition.reconstruction - images) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
        for group in optimizer.param_groups:
            group["lr"] = outcome.learning_rate
        optimizer.step()
        assert outcome.loss == pytest.approx(float(loss.detach()), rel=1e-6)
        assert outcome.gradient_norm == pytest.approx(float(norm), rel=1e-5)
    for ours, theirs in zip(learner.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_adam_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    ours = {name: torch.randn(5, 3, generator=generator).requires_grad_() for name in "ab"}
    theirs = {name: value.detach().clone().requires_grad_() for name, value in ours.items()}
    adam, reference = Adam(ours), torch.optim.Adam(theirs.values(), fused=True)
    for step in range(4):
        for name in ours:
            ours[name].grad = torch.randn(5, 3, generator=generator)
            theirs[name].grad = ours[name].grad
        if step == 2:
            ours["b"].grad = theirs["b"].grad = None
        reference.param_groups[0]["lr"] = 0.1 / (step + 1)
        adam.step(0.1 / (step + 1), 1e-8)
        reference.step()
    for name in ours:
        assert torch.equal(ours[name], theirs[name])
        assert torch.equal(adam.state[f"exp_avg_sq/{name}"], reference.state[theirs[name]]["exp_avg_sq"])


def test_an_overflow_in_half_precision_skips_the_step_and_halves_the_scale(scenes: Scenes) -> None:
    learner = Learner(tiny.experiment(precision="float16"), ALONE)
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    first, second = batches(scenes, seed=1, batch_size=4, stop=2)
    learner.scaler.load_state_dict({**learner.scaler.state_dict(), "scale": 2.0**120})
    assert not np.isfinite(learner.learn(first).gradient_norm)
    assert_equal(learner.model.state_dict(), before)
    assert learner.scaler.get_scale() == 2.0**119
    learner.scaler.load_state_dict({**learner.scaler.state_dict(), "scale": 2.0**10})
    assert np.isfinite(learner.learn(second).gradient_norm)
    assert not torch.equal(learner.model.state_dict()["encoder.mlp.0.weight"], before["encoder.mlp.0.weight"])


def test_validation_scores_are_those_of_a_plain_loop_and_do_not_depend_on_the_batch(scenes: Scenes) -> None:
    experiment, model = tiny.experiment(), build(tiny.experiment())
    scores = validate(model, scenes[:10], experiment, ALONE)
    assert model.training
    other = validate(model, scenes[:10], tiny.experiment(batch_size=3), ALONE)
    assert scores == pytest.approx(other, rel=1e-5)
    model.eval()
    f_ari, errors = [], []
    for position in range(10):
        assert scenes.images is not None
        assert scenes.labels is not None
        image = torch.from_numpy(scenes.images[position]).permute(2, 0, 1)[None] / 127.5 - 1
        noise = randomness.slot_noise(1, "validation", [(12, position)], 12, 8)
        with torch.no_grad():
            decomposition = model(image, num_slots=12, iterations=3, noise=torch.from_numpy(noise))
        predicted = decomposition.masks.argmax(1)
        f_ari.append(float(adjusted_rand_index(torch.from_numpy(scenes.labels[position])[None], predicted)))
        errors.append(float(((decomposition.reconstruction - image) ** 2).mean()))
    assert scores["f_ari@12"] == pytest.approx(np.nanmean(f_ari), abs=1e-9)
    assert scores["l2@12"] == pytest.approx(np.mean(errors), rel=1e-5)


@pytest.mark.parametrize("model", [tiny.IMAGES, tiny.FEATURES, tiny.PROPERTIES], ids=lambda model: model.kind)
def test_validation_and_evaluation_measure_the_same_with_the_same_noise(
    scenes: Scenes, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noise(seed: int, purpose: str, keys: list[Any], slots: int, dim: int) -> np.ndarray:
        return np.tile(np.random.default_rng(slots).standard_normal((1, slots, dim), np.float32), (len(keys), 1, 1))

    monkeypatch.setattr(randomness, "slot_noise", noise)
    experiment = tiny.experiment(model=model, batch_size=16)
    built = build(experiment).eval()
    scores = validate(built, scenes[:16], experiment, ALONE)
    rows = score(built, scenes[:16], slots=(4, 12))
    for name, value in scores.items():
        watched, slots = name.split("@")
        metric = {"average_precision": "ap@0.25"}.get(watched, watched)
        values = rows.where(metric=metric, slots=int(slots), source=rows.unique("source")[0])["value"]
        assert value == pytest.approx(np.nanmean(values), rel=1e-6)


def test_fewer_validation_scenes_than_processes_are_refused(scenes: Scenes) -> None:
    experiment = tiny.experiment()
    several: Any = SimpleNamespace(rank=0, world_size=4, device=torch.device("cpu"))
    with pytest.raises(UserError, match="3 validation scenes cannot be shared by 4 processes; raise --recipe.valid"):
        validate(build(experiment), scenes[:3], experiment, several)


def test_scenes_without_any_foreground_have_no_score_for_it(tmp_path: Path) -> None:
    columns = {"images": np.zeros((4, 8, 8, 3), np.uint8), "labels": np.zeros((4, 8, 8), np.uint8)}
    with Builder(tmp_path, {name: (column.shape[1:], "uint8") for name, column in columns.items()}, 4) as builder:
        builder.append(counts=np.zeros(4, int), **columns)
        empty = builder.finish()
    experiment = tiny.experiment()
    scores = validate(build(experiment), empty, experiment, ALONE)
    assert set(scores) == {f"{name}@{slots}" for name in ("ari", "l2") for slots in (4, 12)}


def test_a_search_can_keep_other_numbers_of_slots_out_of_sight(scenes: Scenes, tmp_path: Path) -> None:
    """Scored at the K that was asked for alone, and the weights are those of a training that looked at both."""
    experiment = tiny.experiment(steps=4, validate_every=2)
    blind = train(experiment, tmp_path / "blind", data=scenes.directory, validate_slots=(4,))
    usual = train(experiment, tmp_path / "usual", data=scenes.directory)
    assert {name.split("@")[1] for row in blind.metrics() for name in row.get("validation", ())} == {"4"}
    assert {name.split("@")[1] for row in usual.metrics() for name in row.get("validation", ())} == {"4", "12"}
    for name, tensor in usual.weights().tensors.items():
        assert torch.equal(tensor, blind.weights().tensors[name])
    with pytest.raises(UserError, match="--validate-slots has 0, but a model needs one slot or more"):
        train(experiment, tmp_path, data=scenes.directory, validate_slots=(4, 0))


def test_a_set_predictors_validation_has_average_precision(scenes: Scenes) -> None:
    experiment = tiny.experiment(model=tiny.PROPERTIES)
    scores = validate(build(experiment), scenes[:6], experiment, ALONE)
    assert set(scores) == {f"{name}@{slots}" for name in ("f_ari", "ari", "average_precision") for slots in (4, 12)}


def test_masks_are_compared_at_the_protocols_resolution() -> None:
    true = torch.arange(64).view(1, 8, 8) % 5
    over_pixels = torch.nn.functional.one_hot(true, 5).movedim(-1, 1).float()
    assert torch.equal(comparable_labels(over_pixels, true)[1], true.to(torch.uint8))
    every_fourth, predicted = comparable_labels(torch.rand(1, 3, 2, 2), true)
    assert torch.equal(every_fourth, true[:, ::4, ::4])
    assert predicted.shape == (1, 2, 2)
    halves = torch.zeros(1, 2, 16)
    halves[:, 0, :8], halves[:, 1, 8:] = 1.0, 1.0  # tokens in row-major order: the upper and the lower half
    _, upscaled = comparable_labels(halves, true)
    assert (upscaled[:, :4] == 0).all()
    assert (upscaled[:, 4:] == 1).all()
    with pytest.raises(UserError, match="7 tokens are not a square map"):
        comparable_labels(torch.rand(1, 2, 7), true)
    with pytest.raises(UserError, match="must be a multiple of the masks'"):
        comparable_labels(torch.rand(1, 2, 3, 3), true)


def test_property_targets_by_protocol() -> None:
    properties = {
        "shape": torch.tensor([[2, 0]]), "size": torch.tensor([[1, 0]]), "material": torch.tensor([[2, 0]]),
        "color": torch.tensor([[8, 0]]), "x": torch.tensor([[-3.0, 0]]), "y": torch.tensor([[0.0, 0]]),
        "z": torch.tensor([[0.7, 0]]),
    }  # fmt: skip
    expected = [0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    paper = property_targets(properties, "paper", at_least=3)
    assert paper.shape == (1, 3, 19)
    assert paper[0, 0].tolist() == pytest.approx([*expected, 0.0, 0.5, 3.7 / 6, 1.0])
    assert paper[0, 1:].abs().sum() == 0
    authors = property_targets(properties, "authors")
    assert authors[0, 0].tolist() == pytest.approx([*expected, 0.0, 0.5, 1.0, 1.0])
    assert authors[0, 1].tolist() == pytest.approx([0.0] * 15 + [0.5, 0.5, -1.0, 0.0])
    with pytest.raises(UserError, match="no property 'color'"):
        property_targets({name: value for name, value in properties.items() if name != "color"})


def test_an_autoencoder_with_as_many_objects_as_slots_is_warned_of(
    tmp_path: Path, scenes: Scenes, caplog: pytest.LogCaptureFixture
) -> None:
    crowded = tiny.build_scenes(tmp_path / "crowded", crowded=True)
    train(tiny.experiment(steps=1), tmp_path, data=crowded.directory)
    assert "WARNING: 56 of 56 training scenes have 4 or more objects (up to 8), but there are only 4 slots" in (
        caplog.text
    )
    caplog.clear()
    train(tiny.experiment(steps=1, model=tiny.PROPERTIES, flip=False), tmp_path / "sets", data=crowded.directory)
    train(tiny.experiment(steps=1), tmp_path / "few", data=scenes.directory)
    assert "WARNING: " not in caplog.text


def test_a_warm_up_that_training_does_not_finish_is_noted(
    tmp_path: Path, scenes: Scenes, caplog: pytest.LogCaptureFixture
) -> None:
    train(tiny.experiment(steps=12, warmup_steps=20), tmp_path / "short", data=scenes.directory)
    assert "note: training ends at step 12, before the warm-up of 20 steps does" in caplog.text
    assert "--recipe.warmup-steps 1\n" in caplog.text
    caplog.clear()
    train(tiny.experiment(steps=4, warmup_steps=4), tmp_path / "enough", data=scenes.directory)
    assert "warm-up" not in caplog.text


def test_validation_scenes_are_left_out_of_training_when_there_is_no_split_for_them(scenes: Scenes) -> None:
    experiment = tiny.experiment()
    trained = set(training_scenes(experiment, scenes.directory).index.tolist())
    validated = set(validation_scenes(experiment, scenes.directory).index.tolist())
    assert len(validated) == 8
    assert trained | validated == set(range(64))
    assert not trained & validated


def test_a_validation_split_is_used_when_there_is_one(tmp_path: Path) -> None:
    tiny.build_scenes(tmp_path / "train", num=20)
    tiny.build_scenes(tmp_path / "val", num=10, seed=1)
    assert len(training_scenes(tiny.experiment(), tmp_path)) == 20
    validated = validation_scenes(tiny.experiment(), tmp_path)
    assert validated.directory == tmp_path / "val"
    assert len(validated) == 8


def test_generated_scenes_are_cached_and_no_more_than_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path))
    from slotnorm.experiments import experiment

    toy = experiment("toy")
    few = dataclasses.replace(toy, recipe=dataclasses.replace(toy.recipe, steps=2, batch_size=5, validation_scenes=3))
    trained, validated = training_scenes(few), validation_scenes(few)
    assert len(trained) == 10
    assert set(trained.counts.tolist()) <= {2, 3, 4}
    assert not np.array_equal(trained.read("images", [0]), validated.read("images", [0]))
    assert training_scenes(few).directory == trained.directory


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"model": dataclasses.replace(tiny.IMAGES, size=16)},
            r"holds images of shape \(8, 8, 3\), but the model takes \(16",
        ),
        ({"model": dataclasses.replace(tiny.FEATURES, tokens=9), "flip": False}, r"features of shape \(16, 6\)"),
        ({"validation_scenes": 64}, "lower --recipe.validation-scenes"),
    ],
)
def test_scenes_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, scenes: Scenes, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        train(tiny.experiment(**changes), tmp_path / "runs", data=scenes.directory)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_name_is_no_experiment() -> None:
    with pytest.raises(UserError, match="an experiment is needed, not 'toy'; slotnorm.experiment"):
        train("toy")  # type: ignore[arg-type]


def test_scenes_without_what_the_model_learns_from_are_refused(tmp_path: Path) -> None:
    with Builder(tmp_path / "bare", {"images": ((8, 8, 3), "uint8")}, 10) as builder:
        builder.append(images=np.zeros((10, 8, 8, 3), np.uint8), counts=np.ones(10, int))
        builder.finish()
    with pytest.raises(UserError, match="has no features, which the feature_autoencoder learns from"):
        train(tiny.experiment(model=tiny.FEATURES, flip=False), tmp_path, data=tmp_path / "bare")


def test_scenes_without_masks_train_and_have_no_segmentation_scores(tmp_path: Path) -> None:
    with Builder(tmp_path / "bare", {"images": ((8, 8, 3), "uint8")}, 20) as builder:
        builder.append(images=np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3)), counts=np.ones(20, int))
        builder.finish()
    run = train(tiny.experiment(), tmp_path, data=tmp_path / "bare")
    assert set(run.validation()) == {"l2@4", "l2@12", "moving@4", "sharing@4", "coherence@4", "in_use@4"}


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("clevr-6-7", "`slotnorm data clevr --from clevr_with_masks_train.tfrecords --protocol paper`"),
        ("movi-6-7", "movi-c/paper/train --backbone vit_base_patch8_224.dino --weights hub`"),
        ("clevr-mini-6-7", "`slotnorm data folder --from clevr-mini/train --size 32 --out "),
    ],
)
def test_data_that_is_not_there_is_one_sentence_with_the_command_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, command: str
) -> None:
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SystemExit) as ended:
        verbs.main(["train", name, "--into", str(tmp_path / "runs")])
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert command in printed
    assert printed.count("\n") == 1
    assert list((tmp_path / "runs").iterdir()) == []


def test_the_command_line_trains_draws_and_says_where(
    tmp_path: Path, scenes: Scenes, capsys: pytest.CaptureFixture[str]
) -> None:
    write_experiment(tmp_path / "asked.json", tiny.experiment())
    arguments = ["--experiment", str(tmp_path / "asked.json"), "--into", str(tmp_path), "--data", str(scenes.directory)]
    verbs.main(["train", *arguments])
    printed = capsys.readouterr().out
    assert printed.startswith(f"{tmp_path / 'toy-weighted_sum-1'}: step 12 of 12  f_ari@4")
    pictures = sorted((tmp_path / "toy-weighted_sum-1" / "pictures").iterdir())
    assert [path.name for path in pictures] == ["step-12.png", "step-6.png"]
    with Image.open(pictures[0]) as picture:
        assert picture.size == (3 * 96 + 4 * 4, 6 * 96 + 7 * 4)
    verbs.main(["train", *arguments])
    assert capsys.readouterr().out == printed


def test_a_picture_shows_image_reconstruction_and_soft_masks() -> None:
    images = np.full((1, 96, 96, 3), 200, np.uint8)
    masks = np.zeros((1, 2, 96, 96), np.float32)
    masks[:, 0, :48], masks[:, 1, 48:] = 1, 1
    pixels = np.asarray(Picture(images, masks, np.zeros((1, 3, 96, 96), np.float32)).sheet())
    colors = np.rint(slot_colors(2) * 255)
    assert pixels[50, 50].tolist() == [200] * 3
    assert pixels[50, 150].tolist() == [128] * 3
    assert np.abs(pixels[10, 250] - colors[0]).max() <= 1
    assert np.abs(pixels[90, 250] - colors[1]).max() <= 1
    assert soft_segmentation(np.full((2, 3, 16), 1 / 3, np.float32)).shape == (2, 4, 4, 3)
    assert len({tuple(color) for color in slot_colors(24).round(3).tolist()}) == 24
