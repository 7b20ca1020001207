"""Everything for one figure, from nothing: trains, evaluates and reports, and continues where it stopped."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from slotnorm.cli.reproduction import Reproduction, reproduce, studies_of
from slotnorm.errors import UserError
from slotnorm.experiments import study, transfers
from slotnorm.studies.sweep import plan
from slotnorm.training.experiment_scenes import require_built


def test_a_figure_is_made_from_nothing(tmp_path):
    out = tmp_path / "a figure"
    command = [sys.executable, "-m", "slotnorm", "reproduce", "toy", "--steps", "20", "--scenes", "32", "--seeds", "1"]
    environment = {"SLOTNORM_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert f"report: {out}/report/report.md" in done.stdout
    runs = sorted(path.name for path in (out / "runs").iterdir())
    assert runs == sorted(f"toy-{norm}-1" for norm in study("toy").norms)
    for name in ("report.md", "claims.md", "index.html", "rows.csv.gz", "curves.csv", "provenance.json"):
        assert (out / "report" / name).stat().st_size > 0
    assert list((out / "report" / "figures").glob("*.svg"))
    assert len(json.loads((out / "report" / "claims.json").read_text())) >= 30

    # all of it is there: nothing is left to train, and no row to compute
    trained = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/checkpoints/*")}
    rows = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/rows/*.npz")}
    assert len(rows) >= 4 * 2
    again = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, env=environment, check=False)
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    assert {path: path.stat().st_mtime_ns for path in rows} == rows


def test_an_ablation_is_shown_beside_what_it_ablates_and_a_transfer_uses_other_studies():
    assert [one.name for one in studies_of("toy-ablation")] == ["toy-properties", "toy-ablation"]
    assert [one.name for one in studies_of("movi-d")] == ["movi-10-11", "movi-6-11", "movi-6-7"]
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
        ({"jobs": 0}, "--jobs is 0, but must be at least 1"),
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


def test_the_time_of_the_trainings_is_said_before_they_start(tmp_path):
    asked = Reproduction("toy", tmp_path, seeds=(11,), jobs=2)
    jobs = plan(asked.trainings())
    minutes = math.ceil(60 * study("toy").hours * 2)
    assert asked.estimate(jobs) == f"4 runs to train, 2 at a time: about {minutes} minutes; then evaluation"
    jobs[0].state = "skipped"
    assert "3 runs to train" in asked.estimate(jobs)
    assert "1 more are trained already" in asked.estimate(jobs)
    for job in jobs:
        job.state = "skipped"
    assert asked.estimate(jobs) == "all 4 runs are trained"
    week = Reproduction("clevr-6-7", tmp_path, jobs=1)
    assert "about 560.0 hours" in week.estimate(plan(week.trainings()))


def test_quick_takes_the_studys_quick_steps(tmp_path):
    quick = Reproduction("toy", tmp_path, seeds=(11,), quick=True)
    assert {training.experiment.recipe.steps for training in quick.trainings()} == {study("toy").quick_steps}
    with pytest.raises(UserError, match="--quick cannot choose the steps: --steps says them; give --steps N alone"):
        Reproduction("toy", tmp_path, steps=9, quick=True).check()
    with pytest.raises(UserError, match="--quick cannot choose the steps: toy-properties has no number of quick steps"):
        Reproduction("toy-properties", tmp_path, quick=True).check()
