"""Everything for one figure, from nothing: trains, evaluates and reports, and continues where it stopped."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest

from slotnorm import experiments
from slotnorm.cli import verbs
from slotnorm.cli.reproduction import Reproduction, reproduce, studies_of
from slotnorm.errors import UserError
from slotnorm.experiments import study, transfers
from slotnorm.studies.launchers import Local
from slotnorm.studies.slurm import Slurm
from slotnorm.studies.sweep import plan
from slotnorm.training.experiment_scenes import require_built


@pytest.mark.usefixtures("quick_jobs", "few_resamples")
def test_a_figure_is_made_from_nothing(tmp_path, monkeypatch, capsys):
    out = tmp_path / "a figure"
    words = ["reproduce", "toy", "--seeds", "1", "--norms", "weighted_mean,weighted_sum", "--out", str(out)]
    words += ["--steps", "2", "--scenes", "4", "--slots", "5,15"]
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path / "cache"))
    toy = study("toy").experiment  # with few scenes to validate on: to draw them would be most of the time
    few = dataclasses.replace(toy, recipe=dataclasses.replace(toy.recipe, validation_scenes=8))
    known = [
        dataclasses.replace(other, experiment=few) if other.name == "toy" else other
        for other in experiments._SMALL_ONES
    ]
    monkeypatch.setattr(experiments, "_SMALL_ONES", tuple(known))
    verbs.main(words)
    printed = capsys.readouterr().out
    assert f"report: {out}/report/report.md" in printed
    assert f"page: {out}/report/index.html" in printed
    runs = sorted(path.name for path in (out / "runs").iterdir())
    assert runs == ["toy-weighted_mean-1", "toy-weighted_sum-1"]
    for name in ("report.md", "claims.md", "index.html", "rows.csv.gz", "curves.csv", "provenance.json"):
        assert (out / "report" / name).stat().st_size > 0
    assert list((out / "report" / "figures").glob("*.svg"))
    assert len(json.loads((out / "report" / "claims.json").read_text())) >= 30

    # all of it is there: nothing is left to train, and no row to compute
    trained = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/checkpoints/*")}
    rows = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/rows/*.npz")}
    assert len(rows) == 2 * 3
    verbs.main(words)
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    assert {path: path.stat().st_mtime_ns for path in rows} == rows


def test_an_ablation_is_shown_beside_what_it_ablates_and_a_transfer_uses_other_studies():
    assert [study.name for study in studies_of("toy-ablation")] == ["toy-properties", "toy-ablation"]
    assert [study.name for study in studies_of("movi-d")] == ["movi-10-11", "movi-6-11", "movi-6-7"]
    trainings = Reproduction("ablation", Path("x"), seeds=(1,), steps=7).trainings()
    assert [training.experiment.norm for training in trainings] == [
        *study("properties").norms,
        *study("ablation").norms,
    ]
    assert {training.experiment.recipe.steps for training in trainings} == {7}


def test_what_cannot_be_meant_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(UserError, match="there is no experiment 'toi'; did you mean 'toy'"):
        reproduce(Reproduction("toi", tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"seeds": (1, 1)}, "--seeds are 1 1; name one or more, each once"),
        ({"seeds": ()}, "--seeds are missing; name one or more"),
        ({"norms": ("mean",)}, "there is no normalization 'mean'"),
        ({"norms": ()}, "--norms needs one normalization or more"),
        ({"scenes": 0}, "--scenes is 0, but must be at least 1"),
        ({"steps": 0}, "--steps is 0, but must be at least 1"),
        ({"slots": range(5, 4)}, "--slots needs FIRST:LAST"),
        ({"name": "clevr-6-7"}, "clevr .train, paper. is not built: .* make it with `slotnorm data clevr "),
        ({"name": "movi-d"}, "movi-c-features .train, paper. is not built: .* make it with `slotnorm data features "),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_trained(asked, sentence, tmp_path, monkeypatch):
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match=sentence):
        reproduce(Reproduction(**{"name": "toy", "out": tmp_path / "out", **asked}))
    assert not (tmp_path / "out").exists()


def test_a_test_set_that_is_not_built_is_told_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "slotnorm.training.experiment_scenes._COMMANDS", {"movi-d-features": "make {split} in {folder}"}
    )
    run = study("toy-features-4-5").experiment  # its own set is made when it is needed
    tests = [transfers()["movi-d"].test]
    with pytest.raises(UserError, match="movi-d-features .test, paper. is not built: .* make it with `make test in "):
        require_built(run, tests)


def test_a_folder_of_other_things_is_refused_before_anything_is_trained(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="is not empty and holds no report"):
        reproduce(Reproduction("toy", tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_no_jobs_at_once_are_refused_before_anything_is_trained(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        verbs.main(["reproduce", "toy", "--out", str(tmp_path / "out"), "--jobs", "0"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "slotnorm: --jobs is 0, but must be at least 1\n"
    assert not (tmp_path / "out").exists()


def test_a_plan_says_runs_hours_disk_and_what_is_submitted_and_does_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Slurm, "script", lambda self, folders: f"#SBATCH --array=0-{len(folders) - 1}")
    verbs.main(["reproduce", "toy", "--out", str(tmp_path / "out"), "--seeds", "1", "--on", "slurm", "--plan"])
    printed = capsys.readouterr().out
    assert "4 of 4 runs to train, " in printed
    cost = r"about 0\.\d+ hours \(measured, CPU time of one thread\) and 0\.0\d+ GB for runs, without rows"
    assert re.search(cost, printed), printed
    assert printed.endswith("#SBATCH --array=0-3\n")
    assert not (tmp_path / "out").exists()


def test_a_plan_needs_no_data(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path / "cache"))
    verbs.main(["reproduce", "clevr-6-7", "--out", str(tmp_path / "out"), "--seeds", "1", "--plan"])
    printed = capsys.readouterr().out
    assert "4 of 4 runs to train, 2000000 steps\nabout 112 hours (estimated, one GPU at 40 TFLOP/s) and " in printed
    assert not list(tmp_path.iterdir())


def test_the_time_of_the_trainings_is_said_before_they_start(tmp_path):
    asked = Reproduction("toy", tmp_path, seeds=(11,), launcher=Local(2))
    jobs = plan(asked.trainings())
    minutes = math.ceil(60 * study("toy").hours * 2)
    assert asked.estimate(jobs) == f"runs to train: 4, 2 at a time, about {minutes} minutes; then evaluation"
    jobs[0].state = "skipped"
    assert "runs to train: 3," in asked.estimate(jobs)
    assert "trained already: 1;" in asked.estimate(jobs)
    for job in jobs:
        job.state = "skipped"
    assert asked.estimate(jobs) == "runs to train: none of 4; then evaluation"
    week = Reproduction("clevr-6-7", tmp_path)
    assert "about 560.0 hours" in week.estimate(plan(week.trainings()))


def test_quick_takes_the_studys_quick_steps(tmp_path):
    quick = Reproduction("toy", tmp_path, seeds=(11,), quick=True)
    assert {training.experiment.recipe.steps for training in quick.trainings()} == {study("toy").quick_steps}
    with pytest.raises(UserError, match="--quick cannot choose the steps: --steps says them; give --steps N alone"):
        Reproduction("toy", tmp_path, steps=9, quick=True).check()
    with pytest.raises(UserError, match="--quick cannot choose the steps: toy-properties has no number of quick steps"):
        Reproduction("toy-properties", tmp_path, quick=True).check()
