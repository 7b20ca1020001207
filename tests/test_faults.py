"""What may happen to a run, and that nothing is lost; the long forms run with `pytest -m slow tests/test_faults.py`."""

import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import processes
import tiny
from slotnorm.config import Experiment
from slotnorm.errors import DamagedFile, LostFolder, NoUsableCheckpoint, UserError
from slotnorm.evaluation.rows import Rows
from slotnorm.models.weights import unpack
from slotnorm.report.reading import read
from slotnorm.runtime.signals import Stop
from slotnorm.runtime.unix import ENDING
from slotnorm.storage import files
from slotnorm.storage.locks import Lock
from slotnorm.storage.seals import read_sealed, write_sealed
from slotnorm.studies import sweep
from slotnorm.studies.options import Training
from slotnorm.studies.run_evaluation import plan_evaluations
from slotnorm.studies.status import read_status
from slotnorm.training import checkpoints
from slotnorm.training.loop import train
from slotnorm.training.observers import Observer
from slotnorm.training.runs import Run, find


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    tiny.build_scenes(folder)
    return folder


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Run:
    """A run of the tiny experiment that nothing happened to."""
    return train(tiny.experiment(), tmp_path_factory.mktemp("unbroken"), data=data)


def final(run: Run) -> dict[str, bytes]:
    """Everything that a broken and an unbroken run must share, bit for bit."""
    weights, optimizer = checkpoints.load(run.checkpoints, run.experiment.recipe.steps)
    tensors = {**weights.tensors, **optimizer}
    files = [path for path in run.path.rglob("*") if "pictures" not in path.parts]  # only the command line draws
    return {
        "metrics": (run.path / "metrics.jsonl").read_bytes(),
        "experiment": (run.path / "experiment.json").read_bytes(),
        "files": "\n".join(sorted(str(path.relative_to(run.path)) for path in files)).encode(),
        **{name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
    }


def assert_same(run: Run, unbroken: Run, but: tuple[str, ...] = ()) -> None:
    ours, theirs = final(run), final(unbroken)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name] and name not in but] == []


def copy(run: Run, folder: Path) -> Run:
    shutil.copytree(run.path, folder / run.name)
    return Run.open(folder / run.name)


def kill_inside_saves(folder: Path, data: Path, calls: range) -> int:
    """One run, killed after each of these system calls of its next save, until a save has no more; how often it was."""
    experiment = tiny.experiment(steps=20, checkpoint_every=1, validate_every=100)
    reference = train(experiment, folder / "unbroken", data=data)
    for deaths, call in enumerate(calls):
        command = processes.train(experiment, folder / "runs", data, fault=(processes.die_inside_save, 1, call))
        if (code := command.wait()) == 0:
            assert_same(Run.open(folder / "runs" / experiment.run_name), reference)
            return deaths
        assert code == -signal.SIGKILL, command.said
    raise AssertionError("a save without end")


def test_a_run_killed_after_some_system_calls_of_a_save_resumes_to_the_same_bits(tmp_path: Path, data: Path) -> None:
    assert kill_inside_saves(tmp_path, data, range(1, 100, 4)) > 6


@pytest.mark.slow
def test_a_run_killed_after_any_system_call_of_a_save_resumes_to_the_same_bits(
    tmp_path: Path, data: Path, record_property: Callable[..., None]
) -> None:
    deaths = kill_inside_saves(tmp_path, data, range(1, 100))
    assert deaths > 25
    record_property("fault", ("kill -9 after every system call of a save", deaths, deaths))


def kill_at_random(experiment: Experiment, folder: Path, data: Path, kills: int, seed: int) -> Iterator[Run]:
    """Kill trainings so often, half of the times inside a save; yields every run that came to its end."""
    chance = random.Random(seed)
    killed, runs = 0, folder / "0"
    while True:
        if killed == kills:
            command = processes.train(experiment, runs, data)
        elif killed % 2:
            fault = (processes.die_inside_save, chance.randint(1, 3), chance.randint(1, 30))
            command = processes.train(experiment, runs, data, fault=fault)
        else:
            command = processes.train(experiment, runs, data)
            command.until_it_writes(runs / experiment.run_name)
            time.sleep(chance.uniform(0, 0.4))
            command.process.kill()
        if (code := command.wait(3600)) == -signal.SIGKILL:  # the last one has all that is left to do
            killed += 1
            continue
        assert code == 0, command.said
        yield Run.open(runs / experiment.run_name)
        if killed == kills:
            return
        runs = folder / str(int(runs.name) + 1)  # it ended before it could be killed: the next one


def require_same_after_kills(folder: Path, data: Path, experiment: Experiment, kills: int, seed: int) -> list[Any]:
    """Kill a training so often and compare what ends with a run that nothing happened to; what was tried."""
    reference = train(experiment, folder / "unbroken", data=data)
    for run in kill_at_random(experiment, folder / "runs", data, kills, seed):
        assert_same(run, reference)
    return ["kill -9 of a training, half of the times inside a save", kills, kills]


def test_a_run_killed_at_random_moments_ends_with_the_same_bits(tmp_path: Path, data: Path) -> None:
    require_same_after_kills(tmp_path, data, tiny.experiment("batch_norm", steps=60, checkpoint_every=3), 6, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["weighted_mean", "weighted_sum", "batch_norm"])
def test_a_run_killed_a_hundred_times_ends_with_the_same_bits(
    tmp_path: Path, data: Path, norm: str, record_property: Callable[..., None]
) -> None:
    experiment = tiny.experiment(norm, steps=600, checkpoint_every=3)
    record_property("fault", require_same_after_kills(tmp_path, data, experiment, 100, seed=1))


EXIT_CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129, "SIGUSR1": 138, "SIGUSR2": 140, "SIGXCPU": 152}


@pytest.mark.parametrize(("number", "code"), [(signal.Signals[name], code) for name, code in EXIT_CODES.items()])
def test_a_signal_saves_the_step_in_progress_and_the_run_resumes_to_the_same_bits(
    tmp_path: Path, data: Path, unbroken: Run, number: signal.Signals, code: int
) -> None:
    experiment = tiny.experiment()
    command = processes.train(experiment, tmp_path / "runs", data, fault=(slow_steps, 0.4))
    metrics = tmp_path / "runs" / experiment.run_name / "metrics.jsonl"
    command.until(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > 1)
    command.send(number)
    assert command.wait() == code, command.said
    run = Run.open(tmp_path / "runs" / experiment.run_name)
    assert f"stopped by {number.name} and saved at step {run.step} in" in command.said
    assert 4 < run.step < 8, "the step in progress, not the last regular checkpoint"
    assert_same(train(experiment, tmp_path / "runs", data=data), unbroken)


def ignore(number: signal.Signals, seconds: float) -> None:
    """Start as `nohup` or a shell's background job does; slowly, so that the signal comes in the middle."""
    signal.signal(number, signal.SIG_IGN)
    slow_steps(seconds)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGUSR2])
def test_a_signal_that_was_ignored_at_the_start_stays_ignored(
    tmp_path: Path, data: Path, unbroken: Run, number: signal.Signals
) -> None:
    command = processes.train(tiny.experiment(), tmp_path / "runs", data, fault=(ignore, number, 0.1))
    metrics = tmp_path / "runs" / unbroken.name / "metrics.jsonl"
    command.until(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > 1)
    for _ in range(3):
        command.send(number)
        time.sleep(0.1)
    assert command.wait() == 0, command.said
    assert_same(Run.open(tmp_path / "runs" / unbroken.name), unbroken)


def test_handlers_are_put_back_and_ignored_signals_are_not_touched() -> None:
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Stop() as stop:
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signal is None
            os.kill(os.getpid(), signal.SIGUSR1)
            assert stop.signal == signal.SIGUSR1
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
    assert {number: signal.getsignal(number) for number in ENDING} == before


def test_a_second_ctrl_c_exits_at_once_and_the_last_checkpoint_stands(tmp_path: Path, data: Path) -> None:
    command = processes.train(tiny.experiment(steps=100_000), tmp_path / "runs", data, fault=(hang_in_step, 9))
    command.until(lambda: "hanging" in command.said)
    while command.process.is_alive():  # two that come at once may arrive as one
        command.send(signal.SIGINT)
        time.sleep(0.2)
    assert command.wait() == 130, command.said
    assert Run.open(tmp_path / "runs" / "toy-weighted_sum-1").record().step == 8


def slow_steps(seconds: float) -> None:
    """Make every step last at least so long."""
    from slotnorm.training.learner import Learner

    original = Learner.loss

    def slow(self: Learner, batch: Any) -> torch.Tensor:
        time.sleep(seconds)
        return original(self, batch)

    Learner.loss = slow  # type: ignore[method-assign]


def hang_in_step(step: int) -> None:
    """Make one step last very long, as a huge model's would."""
    from slotnorm.training.learner import Learner

    original = Learner.loss

    def slow(self: Learner, batch: Any) -> torch.Tensor:
        if batch.step == step:
            print("hanging", flush=True)
            for _ in range(10_000):
                time.sleep(0.01)
        return original(self, batch)

    Learner.loss = slow  # type: ignore[method-assign]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_truncated_newest_checkpoint_is_named_and_passed_over(
    tmp_path: Path, data: Path, unbroken: Run, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    run = copy(unbroken, tmp_path)
    path = run.checkpoints / "step-12.safetensors"
    os.truncate(path, int(share * path.stat().st_size))
    again = train(run.experiment, tmp_path, data=data)
    assert "damaged checkpoint" in (messages := caplog.text)
    assert str(path) in messages
    assert "going on from step 8" in messages
    assert_same(again, unbroken)


def test_twenty_truncations_and_two_hundred_flipped_bits_are_all_noticed(
    tmp_path: Path, unbroken: Run, record_property: Callable[..., None]
) -> None:
    record_property("fault", ("a checkpoint that is cut, or has one bit flipped", 220, 220))
    chance = random.Random(0)
    folder = copy(unbroken, tmp_path).checkpoints
    newest = sorted(folder.glob("step-12.*"))
    assert len(newest) == 3
    for trial in range(220):
        path = newest[trial % 3]
        content = path.read_bytes()
        if trial < 20:
            damaged = content[: len(content) * trial // 20]
        else:
            place = chance.randrange(len(content) * 8)
            damaged = bytearray(content)
            damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(DamagedFile, match=path.name):
            checkpoints.read_record(folder, 12)
        record = checkpoints.newest(folder)
        assert record is not None
        assert record.step == 8
        path.write_bytes(content)
    assert checkpoints.read_record(folder, 12).step == 12


def damage_last(run: Run) -> Path:
    """Flip a bit of a finished run's last weights."""
    path = run.checkpoints / f"step-{run.experiment.recipe.steps}.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)
    return path


def test_a_damaged_last_checkpoint_is_finished_for_nobody(tmp_path: Path, data: Path, unbroken: Run) -> None:
    """One definition of finished: of a run, of sweeps, of evaluations, of reports and of the status."""
    run = copy(unbroken, tmp_path)
    evaluate = {"dataset": "mine", "data": data, "scenes": 4, "slots": [3]}
    for job in plan_evaluations([run.path], **evaluate):
        job.evaluate()
    training = Training(run.experiment, tmp_path, data)
    assert run.finished
    assert [task.state for task in sweep.plan([training])] == ["skipped"]
    path = damage_last(run)
    assert not run.finished
    reason = f"{path} is not what was written: its SHA-256 differs"
    assert str(run.standing()) == f"damaged ({reason}), whole at step 8 of 12"
    (task,) = sweep.plan([training])
    assert task.state == "waiting"
    assert "from step 8 to 12\n" in sweep.describe_plan([task])
    with pytest.raises(UserError) as refused:
        plan_evaluations([run.path], **evaluate)
    assert f"the only run cannot be evaluated: {run.path}: damaged ({path} is not what" in str(refused.value)
    assert str(refused.value).endswith("` repairs it"), "rows of a later step would be lost with --unfinished"
    rows = (run.path / "rows").rename(tmp_path / "aside")
    with pytest.raises(UserError, match="` repairs it, or evaluate its newest whole checkpoint with --unfinished$"):
        plan_evaluations([run.path], **evaluate)
    rows.rename(run.path / "rows")
    noted = f"{run.name} is damaged ({reason}), whole at step 8 of 12, and its rows of step 12 were made before; `slot"
    assert read([tmp_path]).notes[0].startswith(noted)
    (status,) = read_status([run.path])
    assert (status.state, status.step, status.left) == ("stopped", 8, 4)  # whatever metrics.jsonl says
    assert "damaged" in status.note
    assert_same(train(run.experiment, tmp_path, data=data), unbroken, but=("files",))  # rows are beside it
    assert run.finished


def test_a_run_whose_last_checkpoint_is_damaged_is_left_out_and_the_others_are_evaluated(
    tmp_path: Path, data: Path, unbroken: Run
) -> None:
    damage_last(copy(unbroken, tmp_path / "damaged"))
    whole = copy(unbroken, tmp_path / "whole")
    evaluate = {"dataset": "mine", "data": data, "scenes": 4, "slots": [3]}
    assert [job.run.path for job in plan_evaluations([tmp_path], **evaluate)] == [whole.path]


def test_a_checkpoint_that_a_failing_disk_does_not_give_is_passed_over(
    tmp_path: Path, unbroken: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = copy(unbroken, tmp_path)
    path, read = run.checkpoints / "step-12.safetensors", files.open_to_read

    def failing(asked: Path) -> Any:
        if asked == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(asked))
        return read(asked)

    with monkeypatch.context() as patch:
        patch.setattr(files, "open_to_read", failing)
        assert str(run.standing()) == f"damaged ({path} cannot be read: Input/output error), whole at step 8 of 12"
        assert checkpoints.newest(run.checkpoints).step == 8  # type: ignore[union-attr]
    assert f"passing over a damaged checkpoint: {path} cannot be read: Input/output error" in caplog.text


def test_a_run_that_nobody_may_look_into_stops_no_sweep_and_hides_no_other(
    tmp_path: Path, data: Path, unbroken: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoints' folder of one run, and another run's whole folder."""
    closed, shut = copy(unbroken, tmp_path / "closed"), copy(unbroken, tmp_path / "shut")
    whole = copy(unbroken, tmp_path / "whole")
    iterdir, is_file = Path.iterdir, Path.is_file

    def refuse(path: Path, call: Callable[[Path], Any]) -> Any:
        if path == closed.checkpoints or shut.path in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return call(path)

    monkeypatch.setattr(Path, "iterdir", lambda path: refuse(path, iterdir))
    monkeypatch.setattr(Path, "is_file", lambda path: refuse(path, is_file))
    trainings = [Training(unbroken.experiment, run.path.parent, data) for run in (closed, shut, whole)]
    assert [task.state for task in sweep.plan(trainings)] == ["waiting", "waiting", "skipped"]
    statuses = {status.path: status for status in read_status([tmp_path])}
    assert statuses[whole.path].state == "finished"
    assert statuses[closed.path].note == f"cannot read {closed.checkpoints}: Permission denied"
    assert statuses[shut.path].note == f"cannot read {shut.path / 'experiment.json'}: Permission denied"
    assert [run.path for run in find([tmp_path / "shut", tmp_path / "whole"])] == [whole.path]
    assert f"cannot read {shut.path}: Permission denied; that run is left out" in caplog.text


def test_a_run_without_its_experiment_is_named_and_not_passed_over(
    tmp_path: Path, unbroken: Run, caplog: pytest.LogCaptureFixture
) -> None:
    lost, whole = copy(unbroken, tmp_path / "lost"), copy(unbroken, tmp_path / "whole")
    (lost.path / "experiment.json").unlink()
    assert [run.path for run in find([tmp_path])] == [whole.path]
    assert f"{lost.path} is not a run: it has no experiment.json" in caplog.text
    assert {status.path: status.state for status in read_status([tmp_path])}[lost.path] == "failed"
    with pytest.raises(UserError, match=r"lost\S* is not a run: it has no experiment\.json any more; put that back"):
        read([tmp_path])


def test_one_flipped_bit_in_an_exported_file_is_noticed(
    tmp_path: Path, unbroken: Run, record_property: Callable[..., None]
) -> None:
    record_property("fault", ("one bit flipped in an exported model", 100, 100))
    path = unbroken.export(tmp_path / "model.safetensors")
    content, chance = path.read_bytes(), random.Random(0)
    for _ in range(100):
        place = chance.randrange(len(content) * 8)
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=path.name):
            unpack(path)


def test_when_all_checkpoints_are_damaged_each_is_listed_and_nothing_deleted(
    tmp_path: Path, data: Path, unbroken: Run
) -> None:
    run = copy(unbroken, tmp_path)
    for path in run.checkpoints.glob("*.optimizer.safetensors"):
        path.write_bytes(b"not tensors")
    before = sorted(run.path.rglob("*"))
    with pytest.raises(NoUsableCheckpoint) as refused:
        train(run.experiment, tmp_path, data=data)
    assert refused.value.exit_code == 4
    assert "step-12.optimizer.safetensors has 11 bytes instead of" in str(refused.value)
    assert "step-8.optimizer.safetensors has 11 bytes instead of" in str(refused.value)
    with pytest.raises(UserError, match="and no checkpoint can be used; restore one of them from a copy") as evaluated:
        plan_evaluations([run.path], "mine", data=data, scenes=4, slots=[3])
    assert evaluated.value.exit_code == 4
    assert "repairs it" not in str(evaluated.value)  # no command does
    (status,) = read_status([run.path])
    assert (status.state, status.step) == ("failed", 0)
    assert "restore one of them from a copy" in status.note
    assert sorted(run.path.rglob("*")) == before


def test_a_checkpoint_of_another_run_is_refused_by_its_name(tmp_path: Path, data: Path, unbroken: Run) -> None:
    other = train(tiny.experiment(seed=2, steps=16), tmp_path, data=data)
    run = copy(unbroken, tmp_path)
    for path in other.checkpoints.glob("step-16.*"):
        shutil.copy(path, run.checkpoints)
    with pytest.raises(UserError, match="belongs to another run, toy-weighted_sum-2"):
        train(tiny.experiment(steps=20), tmp_path, data=data)


def test_a_record_under_another_step_is_noticed(tmp_path: Path, unbroken: Run) -> None:
    folder = copy(unbroken, tmp_path).checkpoints
    shutil.copy(folder / "step-8.json", folder / "step-12.json")
    with pytest.raises(DamagedFile, match="is the record of step 8"):
        checkpoints.read_record(folder, 12)


def test_a_pickle_named_as_a_checkpoint_runs_nothing(tmp_path: Path, unbroken: Run) -> None:
    run, proof = copy(unbroken, tmp_path), tmp_path / "executed"
    pickle = b"cos\nsystem\n(S'touch " + str(proof).encode() + b"'\ntR."
    for step in (8, 12):
        path = run.checkpoints / f"step-{step}.safetensors"
        path.write_bytes(pickle)
        record = read_sealed(run.checkpoints / f"step-{step}.json")
        record["files"][path.name] = {"sha256": checkpoints.files.sha256(path), "size": len(pickle)}
        write_sealed(run.checkpoints / f"step-{step}.json", record)
    with pytest.raises(NoUsableCheckpoint, match="not a safetensors file"):
        run.model()
    assert not proof.exists()


def test_damaged_metrics_are_named_and_the_weights_go_on(
    tmp_path: Path, data: Path, unbroken: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run = copy(unbroken, tmp_path)
    metrics = run.path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().replace(b"loss", b"lost", 1))
    longer = dataclasses.replace(run.experiment, recipe=dataclasses.replace(run.experiment.recipe, steps=14))
    assert train(longer, tmp_path, data=data).step == 14
    sentence = f"{metrics} is not what was written up to step 12; it is kept as metrics.damaged-12.jsonl"
    assert caplog.text.count(sentence) == 1
    assert b"lost" in (run.path / "metrics.damaged-12.jsonl").read_bytes()
    assert [row["step"] for row in run.metrics()] == [14, 14]


def test_metrics_that_a_failing_disk_does_not_give_are_damaged_ones(
    tmp_path: Path, data: Path, unbroken: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = copy(unbroken, tmp_path)
    path, read = run.path / "metrics.jsonl", files.open_to_read

    def failing(asked: Path) -> Any:
        if asked == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(asked))
        return read(asked)

    monkeypatch.setattr(files, "open_to_read", failing)
    assert run.summary().startswith(f"{run.path}: step 12 of 12")
    longer = dataclasses.replace(run.experiment, recipe=dataclasses.replace(run.experiment.recipe, steps=14))
    assert train(longer, tmp_path, data=data).step == 14
    sentence = f"cannot read {path}: Input/output error; put a copy in its place"
    assert f"{sentence}; none of it is used, and the weights are not concerned" in caplog.text
    assert f"{sentence}; it is kept as metrics.damaged-12.jsonl; metrics begin anew" in caplog.text
    assert path.read_bytes()


@pytest.mark.parametrize("how", ["removed", "replaced", "emptied", "appended to"])
def test_metrics_that_are_lost_while_they_are_written_end_the_training(
    tmp_path: Path, data: Path, unbroken: Run, how: str
) -> None:
    path = tmp_path / unbroken.name / "metrics.jsonl"

    class Meddler(Observer, registered=False):
        name = "meddler"

        def on_step(self, step: int, numbers: dict[str, float]) -> None:
            if step == 6 and how == "emptied":
                os.truncate(path, 0)
            elif step == 6 and how == "appended to":
                with open(path, "ab") as file:
                    file.write(b"{}\n" * 1000)
            elif step == 6:
                path.unlink()
                if how == "replaced":
                    path.mkdir()

    with pytest.raises(LostFolder, match=f"{path} was removed, replaced or changed while it was written; nothing"):
        train(unbroken.experiment, tmp_path, data=data, observers=[Meddler()])
    run = Run.open(path.parent)
    assert run.step == 4
    assert_same(train(unbroken.experiment, tmp_path, data=data), unbroken, but=("metrics", "files"))
    assert run.metrics()[-1]["step"] == 12


@pytest.mark.parametrize("what", ["file", "link"])
def test_something_else_in_the_place_of_the_checkpoints_is_damage_and_not_a_start(
    tmp_path: Path, data: Path, unbroken: Run, what: str
) -> None:
    run = copy(unbroken, tmp_path)
    shutil.rmtree(run.checkpoints)
    run.checkpoints.touch() if what == "file" else run.checkpoints.symlink_to("/nowhere")
    reason = "is not a folder" if what == "file" else "is a link, and links are not written through"
    assert str(run.standing()).startswith(f"damaged ({run.checkpoints} {reason}")
    assert str(run.standing()).endswith("), and no checkpoint can be used")
    with pytest.raises(NoUsableCheckpoint, match=f"{run.checkpoints} {reason}.*; nothing was deleted"):
        train(run.experiment, tmp_path, data=data)
    (status,) = read_status([run.path])
    assert reason in status.note


def test_something_else_in_the_place_of_a_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "rows").touch()
    with pytest.raises(UserError, match="rows: there is something else of that name; move it away"):
        files.make_subfolder(tmp_path / "rows")


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path: Path, data: Path, unbroken: Run) -> None:
    run = copy(unbroken, tmp_path)
    for path in run.checkpoints.glob("step-12.*"):
        path.unlink()
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"step": 12, "loss": 99}\n{"step": 14, "lo')
    assert_same(train(run.experiment, tmp_path, data=data), unbroken)


def test_folders_whose_names_are_not_text_hold_runs_that_go_on(tmp_path: Path, data: Path, unbroken: Run) -> None:
    """In processes of their own: what is captured here must be text. Only the data's folder needs a name that is."""
    odd = tmp_path / os.fsdecode(b"\xff")
    shutil.copytree(unbroken.path, odd / unbroken.name)
    own = odd / os.fsdecode(b"r\xff")
    shutil.copytree(unbroken.path, own)
    for path in (odd / unbroken.name / "checkpoints").glob("step-12.*"):
        path.unlink()
    training = processes.train(unbroken.experiment, odd, data)
    assert training.wait() == 0, training.said
    assert_same(Run.open(odd / unbroken.name), unbroken)
    evaluation = f"eval {odd} --dataset mine --data {data} --scenes 4 --csv {odd}/rows.csv --slots"
    for words in (f"{evaluation} 3", f"{evaluation} 4", f"report {own} --out {odd}/report --no-models"):
        code, said = processes.run_command(tmp_path, *words.split())
        assert code == 0, said
        assert "\\udcff" in said
    rows = Rows.load(own / "rows" / "mine.npz")
    assert (rows.unique("run"), rows.unique("slots")) == (["r\\udcff"], [3, 4])
    listed = {line.partition(",")[0] for line in (odd / "report" / "scores.csv").read_text().splitlines()[1:]}
    assert listed == {"r\\udcff"}
    assert (odd / "report" / "index.html").is_file()
    shutil.copytree(data, odd / "data")
    with pytest.raises(UserError, match="cannot be read again"):
        train(unbroken.experiment, tmp_path / "runs", data=odd / "data")
    assert not list((tmp_path / "runs").iterdir())


def test_a_full_disk_leaves_the_old_checkpoints_and_no_partial_file(tmp_path: Path, data: Path) -> None:
    run = train(tiny.experiment(half_life=50, cosine_to=None), tmp_path, data=data)
    before = {path: path.read_bytes() for path in run.checkpoints.iterdir()}
    longer = tiny.experiment(half_life=50, cosine_to=None, steps=16)
    size = min(len(content) for content in before.values()) + 8000
    command = processes.train(longer, tmp_path, data, fault=(processes.limit_file_size, size))
    assert command.wait() == 2, command.said
    assert "cannot write" in command.said
    assert "File too large; free some space" in command.said
    assert "Traceback" not in command.said
    assert {path: path.read_bytes() for path in run.checkpoints.iterdir()} == before
    assert_same(train(longer, tmp_path, data=data), train(longer, tmp_path / "unbroken", data=data))


def test_a_disk_full_of_metrics_says_so(tmp_path: Path, data: Path) -> None:
    experiment = tiny.experiment(steps=1000, log_every=1, checkpoint_every=1000, validate_every=1000)
    command = processes.train(experiment, tmp_path / "runs", data, fault=(processes.limit_file_size, 6000))
    assert command.wait() == 2, command.said
    assert "metrics.jsonl: File too large; free some space, then the same command continues" in command.said


@pytest.mark.parametrize(
    ("number", "way_out"), [(errno.EACCES, "let this user write there"), (errno.ENOSPC, "free some space")]
)
def test_what_may_not_be_written_is_not_said_to_need_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, way_out: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    for call, write in (
        ("os.replace", lambda: files.write(tmp_path / "rows", b"1")),
        ("pathlib.Path.mkdir", lambda: files.make_subfolder(tmp_path / "rows")),
    ):
        with monkeypatch.context() as broken:
            broken.setattr(call, refuse)
            with pytest.raises(UserError) as refusal:
                write()
        assert str(refusal.value).endswith(f"rows: {os.strerror(number)}; {way_out}, or choose another folder")
        assert list(tmp_path.iterdir()) == []


def test_a_read_only_folder_is_one_sentence(tmp_path: Path, data: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot write to .*file.*Not a directory"):
        train(tiny.experiment(), tmp_path / "file", data=data)


def test_a_second_process_on_one_run_is_refused_and_a_dead_ones_lock_is_taken_over(tmp_path: Path, data: Path) -> None:
    endless = tiny.experiment(steps=100_000)
    first = processes.train(endless, tmp_path / "runs", data)
    path = tmp_path / "runs" / endless.run_name
    first.until_saved(path)
    second = processes.train(endless, tmp_path / "runs", data)
    assert second.wait() == 6
    assert f"{path} is being written by process {first.pid} on" in second.said
    first.process.kill()
    assert first.wait() == -signal.SIGKILL
    third = processes.train(endless, tmp_path / "runs", data)
    third.until(lambda: "resuming" in third.said)
    assert f"{path} was left by process {first.pid} on" in third.said
    third.send(signal.SIGTERM)
    assert third.wait() == 143
    assert not (path / ".lock").exists()


def test_a_loss_that_is_not_finite_never_reaches_the_weights(tmp_path: Path, data: Path) -> None:
    experiment = tiny.experiment("batch_norm")
    command = processes.train(experiment, tmp_path / "runs", data, fault=(processes.spoil_loss, 9))
    assert command.wait() == 5, command.said
    assert "the loss is nan at step 9" in command.said
    run = Run.open(tmp_path / "runs" / experiment.run_name)
    assert run.record().step == 8
    assert all(tensor.isfinite().all() for tensor in run.weights().tensors.values())


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotnorm.config._LARGEST", 1e39)  # such a rate is refused; here it stands for any other cause
    experiment = tiny.experiment(learning_rate=1e38, warmup_steps=0, clip=None, steps=1)
    with pytest.raises(UserError, match="is not finite and is not saved"):
        train(experiment, tmp_path, data=data)
    assert checkpoints.committed(tmp_path / experiment.run_name / "checkpoints") == []


def test_files_that_a_crash_left_behind_are_removed_by_the_next_save(tmp_path: Path, data: Path, unbroken: Run) -> None:
    run = copy(unbroken, tmp_path)
    for path in run.checkpoints.glob("step-12.*"):
        path.unlink()
    (run.checkpoints / ".step-12.safetensors.4711.tmp").write_bytes(b"half")
    (run.checkpoints / "step-11.safetensors").write_bytes(b"no record")
    assert_same(train(run.experiment, tmp_path, data=data), unbroken)


def test_what_a_process_left_that_died_after_its_last_commit_is_removed(
    tmp_path: Path, data: Path, unbroken: Run
) -> None:
    """Old checkpoints that it had no time to remove, and its lock; the run itself is finished."""
    run = copy(unbroken, tmp_path)
    for path in train(tiny.experiment(steps=4), tmp_path / "shorter", data=data).checkpoints.iterdir():
        shutil.copy(path, run.checkpoints)
    (run.checkpoints / ".step-12.json.4711.tmp").write_bytes(b"half")
    (run.path / ".experiment.json.4711.tmp").write_bytes(b"half")
    (run.path / ".lock").write_text("process 4711 on another-machine\n")
    os.utime(run.path / ".lock", (0, 0))
    before = (run.checkpoints / "step-12.json").read_bytes()
    assert_same(train(run.experiment, tmp_path, data=data), unbroken)
    assert (run.checkpoints / "step-12.json").read_bytes() == before


def test_what_a_finished_run_holds_besides_is_left_to_a_process_that_lives(
    tmp_path: Path, data: Path, unbroken: Run
) -> None:
    run = copy(unbroken, tmp_path)
    half = run.checkpoints / ".step-12.json.4711.tmp"
    half.write_bytes(b"half")
    with Lock(run.path):
        assert train(run.experiment, tmp_path, data=data).finished
        assert half.exists()


def test_metrics_lines_are_json_and_do_not_depend_on_time(unbroken: Run) -> None:
    lines = (unbroken.path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == [2, 4, 6, 6, 8, 10, 12, 12]
    assert set(rows[0]) == {"step", "loss", "gradient_norm", "learning_rate"}
    assert set(rows[-1]["validation"]) == {f"{name}@{slots}" for name in ("f_ari", "ari", "l2") for slots in (4, 12)}
