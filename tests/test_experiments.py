import dataclasses
import inspect
import subprocess
import sys
from typing import Any

import pytest

import tiny
from slotnorm.cli import verbs
from slotnorm.cli.training_options import parse_sweep, parse_training
from slotnorm.config import FeatureModel, ImageModel, SetModel
from slotnorm.errors import UserError
from slotnorm.experiments import command_line, experiment, listing, studies, study, transfers
from slotnorm.models import FeatureAutoencoder, ImageAutoencoder, SetPredictor
from slotnorm.normalization import normalizations
from slotnorm.studies.launchers import Local
from slotnorm.studies.options import Training
from slotnorm.training.schedule import adam_epsilon, learning_rate

PAPER = ["clevr-6-7", "clevr-6-11", "movi-10-11", "movi-6-7", "movi-6-11", "properties", "ablation"]
SMALL = ["toy", "toy-properties", "toy-ablation", "toy-features-4-5", "toy-features-2-3", "toy-features-2-5",
         "small-6-7", "small-6-11", "clevr-mini-6-7", "own"]  # fmt: skip


def test_the_experiments_of_the_paper_and_the_small_ones_are_there() -> None:
    assert list(studies()) == [*PAPER, *SMALL]
    assert transfers()["movi-d"].slots == 24
    assert set(transfers()["movi-d"].studies) <= set(PAPER)


def test_every_study_uses_registered_normalizations_and_the_paper_uses_all_six() -> None:
    used = {norm for entry in studies().values() for norm in entry.norms}
    assert used == {"weighted_mean", "layer_norm", "weighted_sum", "batch_norm", "unnormalized", "kd_layer_norm"}
    assert used <= set(normalizations())
    assert all(entry.experiment.norm in entry.norms for entry in studies().values())


@pytest.mark.parametrize(
    ("name", "objects", "slots", "seeds", "batch", "iterations", "rate", "warmup_from", "clip", "flip"),
    [
        ("clevr-6-7", 6, 7, 5, 64, (3, 5), 3.73213e-4, 1e-3, None, True),
        ("clevr-6-11", 6, 11, 3, 64, (3, 5), 3.73213e-4, 1e-3, None, True),
        ("movi-10-11", 10, 11, 5, 64, (3, 3), 4e-4, 1e-8, 1.0, False),
        ("movi-6-7", 6, 7, 3, 64, (3, 3), 4e-4, 1e-8, 1.0, False),
        ("movi-6-11", 6, 11, 3, 64, (3, 3), 4e-4, 1e-8, 1.0, False),
        ("properties", 10, 10, 3, 512, (3, 3), 3.73213e-4, 1e-3, None, False),
        ("ablation", 10, 10, 3, 512, (3, 3), 3.73213e-4, 1e-3, None, False),
    ],
)
def test_the_papers_recipes_are_the_protocols(
    name: str, objects: int, slots: int, seeds: int, batch: int, iterations: Any, rate: float, warmup_from: float,
    clip: float | None, flip: bool,
) -> None:  # fmt: skip
    factors, recipe = study(name).experiment, study(name).experiment.recipe
    assert (factors.max_objects, factors.slots, len(study(name).seeds)) == (objects, slots, seeds)
    assert (recipe.steps, recipe.batch_size, recipe.warmup_steps, recipe.half_life) == (500_000, batch, 10_000, 100_000)
    assert (recipe.iterations, recipe.evaluation_iterations) == iterations
    assert recipe.learning_rate == pytest.approx(rate, rel=1e-5)
    assert (recipe.warmup_from, recipe.clip, recipe.flip) == (warmup_from, clip, flip)
    assert learning_rate(recipe, 0) == pytest.approx(rate * warmup_from, rel=1e-5)
    assert learning_rate(recipe, 10_000) == pytest.approx(rate, rel=1e-5)
    assert learning_rate(recipe, 110_000) == pytest.approx(rate / 2, rel=1e-5)


def test_the_schedules_at_hand_computed_steps() -> None:
    cosine = tiny.recipe(steps=104, learning_rate=1.0, warmup_steps=4, warmup_from=0.2, cosine_to=0.1)
    assert [round(learning_rate(cosine, step), 6) for step in (0, 1, 2, 3, 4)] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert learning_rate(cosine, 54) == pytest.approx(0.55)
    assert learning_rate(cosine, 104) == pytest.approx(0.1)
    half = tiny.recipe(learning_rate=8.0, warmup_steps=0, half_life=10, cosine_to=None)
    assert [learning_rate(half, step) for step in (0, 10, 20, 30)] == [8.0, 4.0, 2.0, 1.0]


def test_the_authors_epsilon_is_tensorflows_for_images_alone() -> None:
    clevr, movi = study("clevr-6-7").experiment.recipe, study("movi-6-7").experiment.recipe
    assert adam_epsilon(clevr, 0) == 1e-8
    authors = dataclasses.replace(clevr, protocol="authors")
    assert adam_epsilon(authors, 0) == pytest.approx(1e-8 / (1 - 0.999) ** 0.5)
    assert adam_epsilon(authors, 10**6) == pytest.approx(1e-8)
    assert adam_epsilon(dataclasses.replace(movi, protocol="authors"), 0) == 1e-8


@pytest.mark.parametrize(
    ("config", "model"), [(ImageModel, ImageAutoencoder), (FeatureModel, FeatureAutoencoder), (SetModel, SetPredictor)]
)
def test_model_configurations_have_the_arguments_and_defaults_of_the_models(config: type, model: type) -> None:
    arguments = inspect.signature(model).parameters
    for field in dataclasses.fields(config):
        assert field.default == arguments[field.name].default, field.name
    others = {"normalization", "iterations", "protocol", "outputs", "initialization", "num_slots"}
    assert set(arguments) - others == {field.name for field in dataclasses.fields(config)}


def test_factors_are_changed_by_name_and_a_typo_is_refused() -> None:
    changed = experiment("clevr-6-7", norm="batch_norm", seed=3)
    assert (changed.norm, changed.seed, changed.slots, changed.run_name) == (
        "batch_norm",
        3,
        7,
        "clevr-6-7-batch_norm-3",
    )
    with pytest.raises(UserError, match="there is no experiment 'clever-6-7'; did you mean 'clevr-6-7'?"):
        experiment("clever-6-7")
    with pytest.raises(UserError, match="an experiment has no field 'nrm'; did you mean 'norm'?"):
        experiment("clevr-6-7", nrm="batch_norm")
    with pytest.raises(
        UserError, match="movi-d is not trained: it evaluates the runs of movi-10-11, movi-6-11, movi-6-7"
    ):
        experiment("movi-d")


def test_the_listing_names_every_experiment_with_its_numbers() -> None:
    lines = listing().splitlines()
    assert len(lines) == 1 + len(studies()) + len(transfers())
    for line, entry in zip(lines[1:], studies().values(), strict=False):
        assert line.startswith(entry.name)
        assert f"({entry.experiment.max_objects or '-'}, {entry.experiment.slots})" in line
        assert f"{entry.experiment.recipe.steps:,}" in line
        assert f"{entry.hours:g} ({entry.basis})" in line


VARIED = [
    tiny.experiment("batch_norm", seed=7),
    tiny.experiment(half_life=100, cosine_to=None, clip=None, precision="bfloat16"),
    dataclasses.replace(tiny.experiment(), name="mine", max_objects=3),
    experiment("movi-6-7", seed=2),
    dataclasses.replace(experiment("small-6-11"), slots=9),
]


@pytest.mark.parametrize("varied", VARIED, ids=lambda varied: varied.run_name)
def test_the_command_line_of_an_experiment_makes_it_again(varied: Any) -> None:
    parsed = parse_training(command_line(varied), "slotnorm train")
    assert parsed is not None
    assert parsed.experiment == varied


def test_every_field_is_an_option() -> None:
    words = (
        "toy --norm layer_norm --seed 4 --slots 6 --recipe.steps 9 --recipe.checkpoint-every 3 "
        "--recipe.model.decoder-hidden 8 16 --scenes.objects 1 2 --recipe.clip None"
    )
    parsed = parse_training(words.split(), "slotnorm train")
    assert isinstance(parsed, Training)
    factors, recipe = parsed.experiment, parsed.experiment.recipe
    assert (factors.norm, factors.seed, factors.slots, recipe.steps, recipe.checkpoint_every) == (
        "layer_norm",
        4,
        6,
        9,
        3,
    )
    assert factors.scenes is not None
    assert isinstance(recipe.model, ImageModel)
    assert (recipe.model.decoder_hidden, factors.scenes.objects, recipe.clip) == ((8, 16), (1, 2), None)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "tyo"], "there is no experiment 'tyo'; did you mean 'toy'?"),
        (["train", "toy", "--recipe.stpes", "3"], "has no option --recipe.stpes; did you mean '--recipe.steps'?"),
        (["train", "toy", "--recipe.stpes=3"], "has no option --recipe.stpes; did you mean '--recipe.steps'?"),
        (["train", "toy", "--nrom", "x"], "has no option --nrom; did you mean '--norm'?"),
        (["train", "toy", "--norm", "batchnorm"], "there is no normalization 'batchnorm'; did you mean 'batch_norm'?"),
        (["sweep", "toy", "--norms", "batchnorm"], "there is no normalization 'batchnorm'; did you mean 'batch_norm'?"),
        (["sweep", "toy", "--norm", "batch_norm"], "a sweep takes --norms"),
        (["sweep", "toy", "--job", "2"], "has no option --job"),
        (["train", "movi-d"], "movi-d is not trained"),
    ],
)
def test_a_typo_on_the_command_line_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        verbs.main(arguments)
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert sentence in printed
    assert printed.startswith("slotnorm: ")
    assert printed.count("\n") == 1


def test_a_value_that_makes_no_sense_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        verbs.main(["train", "toy", "--recipe.steps", "0"])
    assert ended.value.code == 2
    assert "recipe.steps is 0" in capsys.readouterr().err


def test_a_sweep_has_a_run_for_every_normalization_and_seed() -> None:
    sweep = parse_sweep(
        ["toy", "--norms", "all", "--seeds", "1", "2", "--jobs", "2", "--recipe.steps", "7"], "slotnorm sweep"
    )
    assert sweep is not None
    names = [training.experiment.run_name for training in sweep.trainings]
    assert len(set(names)) == len(names) == 2 * len(normalizations())
    assert {training.experiment.recipe.steps for training in sweep.trainings} == {7}
    assert sweep.launcher == Local(jobs=2)
    default = parse_sweep(["toy-ablation"], "slotnorm sweep")
    assert default is not None
    assert [training.experiment.norm for training in default.trainings[:2]] == ["unnormalized", "kd_layer_norm"]
    assert len(default.trainings) == 6


def test_help_without_an_experiment_has_the_defaults_that_are_those_of_every_experiment(capsys) -> None:
    verbs.main(["train", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "NAME-NORM-SEED (default: runs)" in printed
    assert "cuda or mps (default: auto)" in printed
    assert "--slots INT K in training --max-objects" in printed  # of each experiment its own


def test_help_lists_and_configuration_do_not_import_torch() -> None:
    script = """
import sys
import slotnorm, slotnorm.config, slotnorm.experiments, slotnorm.cli.verbs
from slotnorm.cli.verbs import main
slotnorm.experiment("toy")
for arguments in (["experiments"], ["train"], ["train", "toy", "--help"], ["sweep", "toy", "--help"]):
    try:
        main(arguments)
    except SystemExit as ended:
        assert ended.code in (0, None), ended.code
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
