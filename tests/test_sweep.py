import dataclasses
import json
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import processes
import tiny
from slotnorm import normalization
from slotnorm.cli import verbs
from slotnorm.errors import UserError
from slotnorm.storage.fingerprints import fingerprint
from slotnorm.storage.seals import write_sealed
from slotnorm.studies import jobs, launchers, options, sweep
from slotnorm.studies.launchers import Local
from slotnorm.studies.sweep import RunTask
from slotnorm.training.experiment_file import write_experiment
from slotnorm.training.loop import train
from slotnorm.training.runs import Run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data")).directory


def arguments(into: Path, data: Path, *more: str) -> list[str]:
    """`sweep` of the tiny experiment, from its file."""
    file = into.parent / f"{into.name}.json"
    write_experiment(file, tiny.experiment())
    return ["sweep", *options.words(options.Training(tiny.experiment(), into=into, data=data), file), *more]


@pytest.mark.usefixtures("quick_jobs")
def test_a_sweep_trains_what_is_missing_and_a_second_one_skips_it(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny.experiment("layer_norm"), tmp_path, data=data)
    command = arguments(tmp_path, data, "--norms", "layer_norm", "batch_norm", "--seeds", "1", "2", "--jobs", "2")
    verbs.main(command)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4
    assert printed[0].startswith(f"{tmp_path / 'toy-layer_norm-1'}: step 12 of 12")
    assert printed[0].endswith("(was finished already)")
    assert all(Run.open(path).finished for path in tmp_path.iterdir())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    verbs.main(command)
    assert capsys.readouterr().out.count("was finished already") == 4
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    swept = Run.open(tmp_path / "toy-batch_norm-1")
    plain = train(tiny.experiment("batch_norm"), tmp_path / "plain", data=data)
    assert fingerprint(swept.weights().tensors) == fingerprint(plain.weights().tensors)


@pytest.mark.usefixtures("quick_jobs")
def test_a_failed_run_is_counted_and_shown_and_the_others_go_on(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tiny.experiment("layer_norm", batch_size=2, steps=1)
    train(other, tmp_path, data=data)  # in the way: another recipe under the same name
    with pytest.raises(SystemExit) as ended:
        verbs.main(arguments(tmp_path, data, "--norms", "layer_norm", "batch_norm", "--seeds", "1"))
    printed, sentence = capsys.readouterr()
    assert ended.value.code == 1
    assert "slotnorm: 1 of 2 runs failed, toy-layer_norm-1 with exit code 2: slotnorm: " in sentence
    assert "toy-layer_norm-1: failed, exit code 2: slotnorm: " in printed
    assert "was started with recipe.batch_size 2, not 4" in printed
    assert "toy-batch_norm-1: step 12 of 12" in printed


@pytest.mark.usefixtures("quick_jobs")
def test_a_run_that_another_process_trains_is_waited_for(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a sweep that comes after one that was killed finds its orphans at work, and takes what they finish."""
    monkeypatch.setattr(jobs, "_SECONDS_BEFORE_RETRY", 0.1)
    experiment = tiny.experiment(steps=40)
    orphan = processes.train(experiment, tmp_path / "runs", data)
    orphan.until((tmp_path / "runs" / experiment.run_name / "experiment.json").exists)
    task = RunTask(options.Training(experiment, into=tmp_path / "runs", data=data))
    sweep.sweep([task], Local())
    assert task.state == "finished"
    assert orphan.wait() == 0, orphan.said


def test_a_sweep_passes_a_signal_on_and_continues_when_called_again(tmp_path: Path, data: Path) -> None:
    """With real processes: they have sessions of their own, one thread each, and save before the sweep ends."""
    experiment = tiny.experiment(steps=100_000)
    write_experiment(tmp_path / "asked.json", experiment)
    words = options.words(options.Training(experiment, into=tmp_path / "runs", data=data), tmp_path / "asked.json")
    more = ["--norms", "weighted_sum", "layer_norm", "--seeds", "1", "--jobs", "2"]
    command = processes.Command(["sweep", *words, *more], tmp_path / "log")
    paths = [tmp_path / "runs" / f"toy-{norm}-1" for norm in ("weighted_sum", "layer_norm")]
    command.until(lambda: all((path / "metrics.jsonl").exists() for path in paths))
    command.until(lambda: all((path / "metrics.jsonl").stat().st_size for path in paths))
    command.send(signal.SIGTERM)
    assert command.wait() == 143, command.said
    assert "stopped by SIGTERM; the runs were saved, and the same command continues" in command.said
    for path in paths:
        run = Run.open(path)
        assert run.record().threads == 1
        assert run.step == run.metrics()[-1]["step"] or run.step % experiment.recipe.log_every
        assert "stopped by SIGTERM and saved at step" in (path / "log.txt").read_text()
        assert not (path / ".lock").exists()


class Refusing(launchers.Launcher, registered=False):
    """Takes no job."""

    name = "refusing"

    def submit(self, jobs: Sequence[launchers.Job]) -> list[str]:
        assert all((job.folder / sweep.ASKED).is_file() for job in jobs)
        raise UserError("no such partition")

    def cancel(self, tickets: Sequence[str], number: signal.Signals = signal.SIGTERM) -> None:
        assert not tickets


def test_runs_whose_jobs_are_refused_leave_nothing_that_seems_to_wait(tmp_path: Path) -> None:
    runs = [options.Training(tiny.experiment(seed=seed), into=tmp_path) for seed in (1, 2, 3)]
    begun, others = runs[0].path, runs[1].path
    for folder, file in ((begun, "experiment.json"), (others, "job.json")):
        folder.mkdir()
        (folder / file).write_text("{}")
    with pytest.raises(UserError, match="no such partition"):
        sweep.sweep(sweep.plan(runs), Refusing())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([begun.name, others.name])
    assert (begun / sweep.ASKED).is_file()
    assert (others / sweep.ASKED).is_file()


def test_no_jobs_at_once_is_refused() -> None:
    with pytest.raises(UserError, match="--jobs is 0"):
        Local(jobs=0)


def test_progress_is_read_from_the_metrics(tmp_path: Path, data: Path) -> None:
    task = RunTask(options.Training(tiny.experiment(), into=tmp_path, data=data))
    assert task.progress == 0
    train(tiny.experiment(), tmp_path, data=data)
    assert task.progress == 12
    longer = dataclasses.replace(task.training, experiment=tiny.experiment(steps=20))
    assert [planned.state for planned in sweep.plan([task.training, longer])] == ["skipped", "waiting"]


@pytest.mark.usefixtures("quick_jobs")
def test_a_run_that_cannot_be_written_fails_alone(tmp_path: Path, data: Path) -> None:
    (tmp_path / "toy-layer_norm-1").write_text("a file where the run's folder would be")
    trainings = [options.Training(tiny.experiment(norm), tmp_path, data) for norm in ("layer_norm", "batch_norm")]
    tasks = sweep.plan(trainings)
    sweep.sweep(tasks, Local())
    assert [task.state for task in tasks] == ["failed", "finished"]
    assert "toy-layer_norm-1" in tasks[0].reason
    assert "cannot write" in tasks[0].reason


@pytest.mark.usefixtures("quick_jobs")
def test_a_damaged_run_fails_alone_and_says_why(tmp_path: Path, data: Path) -> None:
    trainings = [options.Training(tiny.experiment(norm), tmp_path, data) for norm in ("layer_norm", "batch_norm")]
    train(trainings[0].experiment, tmp_path, data=data)
    (trainings[0].path / "experiment.json").write_text("{}")
    tasks = sweep.plan(trainings)
    sweep.sweep(tasks, Local(jobs=2))
    assert [task.state for task in tasks] == ["failed", "finished"]
    assert "its seal does not match" in tasks[0].reason


def test_one_bad_run_does_not_keep_the_others_from_training(
    tmp_path: Path, data: Path, quick_jobs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of these stopped a sweep once: a folder in the place of a file, a line without a step, a forged document."""
    norms = ("weighted_mean", "layer_norm", "weighted_sum", "batch_norm")
    log, note, forged, last = (tmp_path / f"toy-{norm}-1" for norm in norms)
    (log / "log.txt").mkdir(parents=True)
    (note / "job.json").mkdir(parents=True)
    forged.mkdir()
    write_sealed(forged / "experiment.json", {"format": 1})
    (forged / "metrics.jsonl").write_text('{"loss": 1}\n')
    with pytest.raises(SystemExit) as ended:
        verbs.main(arguments(tmp_path, data, "--norms", *norms, "--seeds", "1", "--jobs", "2"))
    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert (
        f"{log}: failed, it cannot be started: cannot write {log.absolute() / 'log.txt'}: it is not a file; move it"
        in printed.out
    )
    reason = f"slotnorm: {forged / 'experiment.json'} is sealed but is not an experiment of a run: run lacks the field"
    assert f"{forged}: failed, exit code 2: {reason}" in printed.out
    assert f"{note}: step 12 of 12" in printed.out
    assert f"{last}: step 12 of 12" in printed.out
    assert "slotnorm: 2 of 4 runs failed, toy-weighted_mean-1 with it cannot be started" in printed.err
    assert "Traceback" not in printed.err


def test_a_run_that_is_removed_after_it_was_finished_is_named(tmp_path: Path, data: Path) -> None:
    train(tiny.experiment(), tmp_path, data=data)
    tasks = sweep.plan([options.Training(tiny.experiment(), tmp_path, data)])
    shutil.rmtree(tasks[0].path)
    assert "toy-weighted_sum-1: skipped, but " in sweep.report(tasks)


PLUGIN = '''
from slotnorm import Normalization


class Doubled(Normalization):
    """u_k = 2 ũ_k / N"""

    name, label, where, keeps_mass = "doubled", "Doubled", "mine", True

    def forward(self, aggregate, carry=None):
        return 2 * aggregate.sums / aggregate.num_tokens, None
'''


@pytest.mark.usefixtures("quick_jobs")
def test_plugins_reach_the_processes_of_a_sweep(tmp_path: Path, data: Path) -> None:
    """A process that did not get the plugin would refuse its normalization."""
    (tmp_path / "my norm.py").write_text(PLUGIN)
    try:
        command = arguments(tmp_path / "runs", data, "--norms", "doubled", "--seeds", "1")
        verbs.main([*command, "--plugin", str(tmp_path / "my norm.py")])
    finally:
        normalization._registry.pop("doubled", None)
        sys.modules.pop("slotnorm_plugin_my norm", None)
    document = json.loads((tmp_path / "runs" / "toy-doubled-1" / "experiment.json").read_text())
    assert document["experiment"]["norm"] == "doubled"
    assert (tmp_path / "runs" / "toy-doubled-1" / "checkpoints" / "step-12.json").exists()
    assert "doubled" not in normalization.normalizations()
