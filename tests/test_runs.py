import dataclasses
import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from slotnorm.cli.verbs import main
from slotnorm.config import Experiment
from slotnorm.errors import DamagedFile, UserError
from slotnorm.report.reading import find_folders
from slotnorm.runtime.source import source_commit
from slotnorm.storage.seals import read_sealed, write_sealed
from slotnorm.training import runs
from slotnorm.training.loop import train
from slotnorm.training.runs import Run, find


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data")).directory


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Run:
    return train(tiny.experiment(), tmp_path_factory.mktemp("runs"), data=data)


@pytest.fixture
def run(tmp_path: Path, finished: Run) -> Run:
    shutil.copytree(finished.path, tmp_path / finished.name)
    return Run.open(tmp_path / finished.name)


def test_a_run_knows_its_experiment_its_step_and_its_scores(run: Run) -> None:
    assert run.experiment == tiny.experiment()
    assert (run.name, run.step, run.finished) == ("toy-weighted_sum-1", 12, True)
    assert run.record().threads == torch.get_num_threads()
    assert run.record().world_size == 1
    assert run.record().data == run.data
    assert run.validation() == run.metrics()[-1]["validation"]
    assert run.summary().startswith(f"{run.path}: step 12 of 12  f_ari@4 ")


def test_the_newest_two_checkpoints_are_kept(run: Run) -> None:
    names = {path.name for path in run.checkpoints.iterdir()}
    endings = ("safetensors", "optimizer.safetensors", "json")
    assert names == {f"step-{step}.{ending}" for step in (8, 12) for ending in endings}


def test_a_runs_model_is_in_evaluation_mode_and_knows_its_experiment(run: Run) -> None:
    model = run.model()
    assert not model.training
    assert model.experiment == run.experiment
    assert model(torch.zeros(2, 3, 8, 8), num_slots=6).masks.shape == (2, 6, 8, 8)


def test_a_finished_run_is_not_trained_again(run: Run, data: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    assert train(run.experiment, run.path.parent, data=data / "not there").step == 12
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch_size": 8}, "was started with recipe.batch_size 4, not 8"),
        ({"learning_rate": 0.5}, "was started with recipe.learning_rate 0.01, not 0.5"),
        ({"checkpoint_every": 5}, "was started with recipe.checkpoint_every 4, not 5"),
        ({"model": dataclasses.replace(tiny.IMAGES, dim=4)}, "was started with recipe.model.dim 8, not 4"),
        ({"steps": 11}, "was started with recipe.steps 12, and 11 are fewer: steps may only grow; give 12 or more"),
    ],
)
def test_another_recipe_is_refused_by_the_field(run: Run, data: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        train(tiny.experiment(**changes), run.path.parent, data=data)
    assert Run.open(run.path).experiment == run.experiment


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--recipe.model.kernel 4", "kernel is 4; it must be odd"),
        ("--recipe.model.strides 0", "strides are (0,); there must be at least one, each 1 or 2"),
        ("--recipe.model.dim 20000000", "model.dim is 20000000, but must be at most"),
        ("--recipe.initialization learned --validate-slots 9", "num_slots is 9, but this model has a learned start"),
        ("--scenes.size 33", "scenes.size is 33, but the model takes pictures of 32 x 32"),
    ],
)
def test_a_model_that_cannot_be_is_refused_before_scenes_are_made_and_claims_no_folder(
    words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slotnorm.training.experiment_scenes.cached", None)
    with pytest.raises(SystemExit) as ended:
        main(["train", "toy", *words.split(), "--into", str(tmp_path / "runs")])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.*"))


def test_a_run_that_has_saved_nothing_may_be_deleted_and_its_refusal_says_so(
    run: Run, data: Path, tmp_path: Path
) -> None:
    """It may have been started with what no machine can do, and then to give that value again is no way out."""
    with pytest.raises(UserError, match=r"with --into$"):
        train(tiny.experiment(batch_size=8), run.path.parent, data=data)
    begun = shutil.copytree(run.path, tmp_path / "begun" / run.name, ignore=shutil.ignore_patterns("step-*"))
    with pytest.raises(UserError, match=f"with --into, or delete {begun}, which has saved nothing yet$"):
        train(tiny.experiment(batch_size=8), begun.parent, data=data)


def test_steps_may_grow_and_a_cosine_says_so(run: Run, data: Path, caplog: pytest.LogCaptureFixture) -> None:
    longer = train(tiny.experiment(steps=14), run.path.parent, data=data)
    assert longer.step == 14
    assert Run.open(run.path).experiment.recipe.steps == 14
    assert "the cosine schedule now ends at step 14 instead of 12" in caplog.text


def test_other_data_is_refused(run: Run, tmp_path: Path) -> None:
    fewer = tiny.build_scenes(tmp_path / "fewer", num=20)
    with pytest.raises(UserError, match="was started on 56 scenes of the data .*, but now there are 12 of"):
        train(tiny.experiment(steps=14), run.path.parent, data=fewer.directory)
    others = tiny.build_scenes(tmp_path / "others", seed=1)
    with pytest.raises(UserError, match="give the same data, or train into another folder"):
        train(tiny.experiment(steps=14), run.path.parent, data=others.directory)


def test_another_environment_is_said(run: Run, data: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (8, 12):
        record = read_sealed(run.checkpoints / f"step-{step}.json")
        write_sealed(run.checkpoints / f"step-{step}.json", {**record, "threads": 64})
    train(tiny.experiment(steps=13), run.path.parent, data=data)
    assert f"note: threads was 64 and is {torch.get_num_threads()}" in caplog.text


def damaged_metrics(content: bytes) -> Iterator[bytes]:
    """Fifty flipped bits and twenty lengths, none of them what was written."""
    chance = random.Random(0)
    for place in chance.sample(range(8 * len(content)), 50):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        yield bytes(flipped)
    for part in range(20):
        yield content[: len(content) * part // 20]


def test_damaged_metrics_of_a_finished_run_are_never_used(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    path = run.path / "metrics.jsonl"
    content, scores = path.read_bytes(), run.validation()
    assert scores["l2@4"] > 0
    for damaged in damaged_metrics(content):
        path.write_bytes(damaged)
        assert run.metrics() == []
        assert run.validation() == {}
        assert "f_ari" not in run.summary()
    assert "| none yet | |" in run.export(run.path / "model.safetensors").with_suffix(".md").read_text()
    assert caplog.text.count(f"{path} is not what was written up to step 12; none of it is used") == 1  # once
    path.write_bytes(content + b'{"step": 12, "validation": {"l2@4": 99.0}}\n')
    assert run.validation() == scores, "what was added after the last checkpoint is not its"


def test_lines_since_the_newest_checkpoint_are_read_as_far_as_they_are_whole(run: Run) -> None:
    path = run.path / "metrics.jsonl"
    saved = run.metrics()
    path.write_bytes(path.read_bytes() + b'{"step": 13, "loss": 1.0}\n{"step": 14, "loss": 2.0}\n{"step": 15, "lo')
    assert run.metrics() == [*saved, {"step": 13, "loss": 1.0}, {"step": 14, "loss": 2.0}]
    assert run.logged_step == 14


@pytest.mark.parametrize(
    "line", [b"[]", b"7", b'{"loss": 1}', b'{"step": "12"}', b'{"step": true}', b"\xff", b"[" * 9999]
)
def test_a_line_that_is_none_of_metrics_is_no_step(run: Run, line: bytes) -> None:
    path = run.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n")
    assert run.logged_step == 12
    assert len(run.metrics()) == 8


def test_a_run_goes_on_whatever_its_metrics_say(run: Run, data: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = run.path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], b"\x00" + lines[-1][1:]]))
    train(tiny.experiment(steps=14), run.path.parent, data=data)
    assert run.step == 14
    assert "is not what was written up to step 12; it is kept as metrics.damaged-12.jsonl; metrics begin" in caplog.text
    assert run.logged_step == 14


def test_what_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run: it has no experiment.json"):
        Run.open(tmp_path)
    with pytest.raises(UserError, match="is not a run and holds none"):
        runs.find([tmp_path])


def test_runs_are_found_in_folders_of_folders_as_a_report_finds_them(run: Run) -> None:
    deeper = run.path.parent / "of a study" / "of a seed"
    deeper.mkdir(parents=True)
    moved = run.path.rename(deeper / run.name)
    assert [folder.path for folder in runs.find([run.path.parent])] == [moved] == find_folders([run.path.parent])


def test_a_damaged_experiment_is_noticed(run: Run, data: Path) -> None:
    path = run.path / "experiment.json"
    path.write_bytes(path.read_bytes().replace(b'"seed": 1', b'"seed": 2'))
    with pytest.raises(DamagedFile, match="its seal does not match"):
        Run.open(run.path)
    path.unlink()
    assert train(run.experiment, run.path.parent, data=data).step == 12, "the checkpoints know the run they belong to"


def test_a_run_of_a_newer_format_is_refused(run: Run) -> None:
    content = read_sealed(run.path / "experiment.json")
    write_sealed(run.path / "experiment.json", {**content, "format": 2})
    with pytest.raises(UserError, match="has format 2, this slotnorm reads 1"):
        Run.open(run.path)


def test_a_run_without_checkpoint_says_how_to_continue(tmp_path: Path) -> None:
    started = runs.start(tmp_path / "toy-weighted_sum-1", tiny.experiment(), 56, "data")
    assert not started.finished
    with pytest.raises(UserError, match="has no checkpoint yet; continue it with `slotnorm train toy "):
        started.model()


def test_runs_are_found_by_name_in_folders_of_runs(tmp_path: Path, data: Path) -> None:
    experiments: list[Experiment] = [tiny.experiment(seed=seed, steps=1) for seed in (1, 2, 3)]
    trained = [train(experiment, tmp_path, data=data) for experiment in experiments]
    assert [run.name for run in runs.find([tmp_path])] == [run.name for run in trained]
    assert [run.name for run in runs.find([trained[1].path, tmp_path])] == [trained[n].name for n in (1, 0, 2)]


def test_where_no_run_can_be_opened_each_is_named(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.json").touch()
    with pytest.raises(
        UserError, match="none of the 2 runs can be used: .*first/experiment.json is .*second/experiment"
    ):
        find([tmp_path])


def test_a_run_that_lost_its_experiment_gets_it_back_on_its_own_data_alone(
    tmp_path: Path, run: Run, data: Path
) -> None:
    """The command that trained it writes it again; on other data, or with another recipe, it belongs to another run."""
    written = (run.path / "experiment.json").read_bytes()
    (run.path / "experiment.json").unlink()
    others = tiny.build_scenes(tmp_path / "others", num=40, seed=9).directory
    with pytest.raises(UserError, match=r"step-12.json was trained on other data \(.*\): move that checkpoint away"):
        train(run.experiment, run.path.parent, data=others)
    with pytest.raises(UserError, match="step-12.json belongs to another run, toy-weighted_sum-1: move that"):
        train(tiny.experiment(batch_size=2), run.path.parent, data=data)
    assert not (run.path / "experiment.json").exists()
    assert train(run.experiment, run.path.parent, data=data).finished
    assert (run.path / "experiment.json").read_bytes() == written


def test_a_run_says_which_commit_began_it(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        names = ["-c", "user.name=n", "-c", "user.email=e"]
        done = subprocess.run(["git", *names, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    assert source_commit(tmp_path) is None
    git("init", "-q")
    assert source_commit(tmp_path) is None, "no commit yet"
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    assert source_commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("2")
    assert source_commit(tmp_path) == git("rev-parse", "HEAD") + "+"
    experiment = tiny.experiment()
    Run(tmp_path / "run", experiment, 1, 64 * "0").write()
    assert json.loads((tmp_path / "run" / "experiment.json").read_text())["commit"] == source_commit()
    assert Run.open(tmp_path / "run").experiment == experiment


def test_a_run_that_cannot_be_opened_is_named_and_the_others_are_found(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(run.path, run.path.parent / "bad"))
    (folder / "experiment.json").write_bytes(b"{}")
    assert [other.path for other in find([run.path.parent])] == [run.path]
    assert f"{folder / 'experiment.json'} is not what was written" in caplog.text
    assert "that run is left out" in caplog.text
    with pytest.raises(UserError, match="is not what was written"):
        find([folder])
