"""Everything for one figure, from nothing: trains, evaluates and reports, and continues where it stopped."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slotnorm.errors import UserError
from slotnorm.experiments import study
from slotnorm.reproduction import Reproduction, reproduce, studies_of


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
    with pytest.raises(UserError, match="--seeds are 1 1; name each seed once"):
        reproduce(Reproduction("toy", tmp_path, seeds=(1, 1)))
    assert not list(tmp_path.iterdir())
