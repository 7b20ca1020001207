"""Evaluation, features and reproduction on both engines: the files are those of one process, byte for byte."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import clusters
import tiny
from slotnorm.training.loop import train

pytestmark = pytest.mark.cluster

Engine = tuple[list[str], dict[str, str]]


@pytest.fixture(params=["slurm", "ray"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The words that name an engine, and the environment in which it is found."""
    if request.param == "slurm":
        return ["--on", "slurm"], request.getfixturevalue("slurm")
    nodes = request.getfixturevalue("ray")
    return ["--on", "ray", "--address", nodes.address], nodes.environment


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    for seed in (1, 2):
        train(tiny.experiment(seed=seed), folder, data=data)
    return folder


def run(words: list[str], engine: Engine | None = None, **more: str) -> str:
    on, environment = engine or ([], dict(os.environ))
    command = [sys.executable, "-m", "slotnorm", *words, *on]
    alike = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **more}  # as jobs have it
    done = subprocess.run(command, env={**environment, **alike}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(folder: Path, pattern: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob(pattern))}


def test_rows_of_shards_have_the_bytes_of_one_process(
    tmp_path: Path, data: Path, trained: Path, engine: Engine
) -> None:
    shutil.copytree(trained, tmp_path / "one")
    shutil.copytree(trained, tmp_path / "many")
    words = ["--data", str(data), "--dataset", "toy4", "--slots", "3:4", "--scenes", "24", "--batch-size", "4"]
    shown = run(["eval", str(tmp_path / "one"), *words])
    assert run(["eval", str(tmp_path / "many"), *words, "--shards", "2"], engine) == shown
    rows = files(tmp_path / "one", "*/rows/*.npz")
    assert len(rows) == 2
    assert files(tmp_path / "many", "*/rows/*.npz") == rows
    assert len(list((tmp_path / "many" / ".jobs").glob("*.json"))) == 4, "two jobs for each run"


def test_features_of_shards_have_the_bytes_of_one_process(
    tmp_path: Path, data: Path, trained: Path, engine: Engine
) -> None:
    words = ["data", "features", "--from", str(data), "--backbone", f"run:{trained / 'toy-weighted_sum-1'}"]
    run([*words, "--out", str(tmp_path / "one")])
    run([*words, "--out", str(tmp_path / "many"), "--shards", "2"], engine)
    assert "features.npy" in files(tmp_path / "one", "*")
    assert files(tmp_path / "many", "*") == files(tmp_path / "one", "*")


def test_a_figure_has_the_weights_and_rows_of_one_machine(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, engine: Engine
) -> None:
    cache = tmp_path_factory.getbasetemp() / "cache"  # the scenes are made once
    words = ["reproduce", "toy", "--norms", "weighted_sum", "--seeds", "1", "--steps", "4", "--scenes", "8"]
    words += ["--slots", "4:5"]
    run([*words, "--out", str(tmp_path / "one")], SLOTNORM_CACHE=str(cache))
    shown = run([*words, "--out", str(tmp_path / "many")], engine, SLOTNORM_CACHE=str(cache))
    assert f"page: {tmp_path / 'many' / 'report' / 'index.html'}" in shown
    assert clusters.weights(tmp_path / "many" / "runs") == clusters.weights(tmp_path / "one" / "runs")
    rows = files(tmp_path / "one" / "runs", "*/rows/*.npz")
    assert rows
    assert files(tmp_path / "many" / "runs", "*/rows/*.npz") == rows
