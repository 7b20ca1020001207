"""One training on several processes, which are real ones and talk over gloo."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import processes
import tiny
from slotnorm.config import Experiment
from slotnorm.data.batches import batches
from slotnorm.data.scenes import Scenes
from slotnorm.runtime.ranks import RankLost, Ranks, joined, lost_rank_named
from slotnorm.studies import options
from slotnorm.training.experiment_file import write_experiment
from slotnorm.training.learner import Learner
from slotnorm.training.loop import train
from slotnorm.training.runs import Run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data")).directory


TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-6}


def compute_gradients(experiment: Experiment, data: Path, out: Path) -> None:
    """Leave the gradients, loss and buffers of this rank's part in one step in a file for each number format."""
    with joined(torch.device("cpu")) as ranks:
        for dtype in TOLERANCES:
            save_gradients(experiment, data, dtype, ranks, out)


def save_gradients(experiment: Experiment, data: Path, dtype: torch.dtype, ranks: Ranks, out: Path) -> None:
    learner = Learner(experiment, ranks)
    learner.model.to(dtype)
    (batch,) = batches(
        Scenes.open(data), seed=1, batch_size=8, stop=1, fields=("images", "properties"), rank=ranks.rank,
        world_size=ranks.world_size,
    )  # fmt: skip
    loss, stop = learner.gradients(batch, signal.SIGHUP if ranks.rank == 1 else None)
    assert stop == (signal.SIGHUP if ranks.world_size > 1 else None), "all ranks learn of one rank's signal"
    tensors = {name: parameter.grad for name, parameter in learner.parameters.items() if parameter.grad is not None}
    tensors |= dict(learner.model.named_buffers())
    save_file(
        {**tensors, "loss": torch.tensor(loss, dtype=torch.float64)},
        out / f"{dtype}-{ranks.world_size}-{ranks.rank}.safetensors",
    )


@pytest.mark.parametrize("norm", ["batch_norm", "weighted_mean"])
def test_two_ranks_have_the_gradients_of_one(tmp_path: Path, data: Path, norm: str) -> None:
    models: dict[str, Any] = {"batch_norm": tiny.IMAGES, "weighted_mean": tiny.PROPERTIES}
    experiment = tiny.experiment(norm, model=models[norm], flip=False, batch_size=8)
    compute_gradients(experiment, data, tmp_path)
    started = [
        processes.call(compute_gradients, experiment, data, tmp_path, environment=environment)
        for environment in processes.rank_environments(2)
    ]
    assert [process.wait() for process in started] == [0, 0], [process.said for process in started]
    for dtype, tolerance in TOLERANCES.items():
        alone, first, second = (load_file(tmp_path / f"{dtype}-{name}.safetensors") for name in ("1-0", "2-0", "2-1"))
        assert alone.keys() == first.keys()
        largest = max(float(gradient.abs().max()) for gradient in alone.values())
        for name, expected in alone.items():
            assert torch.equal(first[name], second[name]), f"{name} differs between the ranks in {dtype}"
            assert float((first[name] - expected).abs().max()) <= tolerance * largest, (name, dtype)


def test_two_ranks_train_a_run_that_one_writes_and_one_rank_can_continue(
    tmp_path: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = tiny.experiment("batch_norm", half_life=20, cosine_to=None)
    alone = train(experiment, tmp_path / "alone", data=data)
    ranks = processes.ranks(experiment, tmp_path / "runs", data, 2)
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.said for rank in ranks]
    run = Run.open(tmp_path / "runs" / experiment.run_name)
    assert run.finished
    assert run.record().world_size == 2
    losses, expected = ([row["loss"] for row in each_run.metrics() if "loss" in row] for each_run in (run, alone))
    assert losses == pytest.approx(expected, rel=1e-4)
    assert run.validation()["l2@4"] == pytest.approx(alone.validation()["l2@4"], rel=1e-3)
    longer = tiny.experiment("batch_norm", half_life=20, cosine_to=None, steps=14)
    assert train(longer, tmp_path / "runs", data=data).step == 14
    assert "note: world_size was 2 and is 1: the weights need not equal an unbroken run's bits" in caplog.text
    longest = tiny.experiment("batch_norm", half_life=20, cosine_to=None, steps=16)
    ranks = processes.ranks(longest, tmp_path / "runs", data, 2)
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.said for rank in ranks]
    assert "note: world_size was 1 and is 2" in ranks[0].said
    assert Run.open(run.path).step == 16


def test_when_a_rank_is_killed_the_others_end_and_the_run_resumes(tmp_path: Path, data: Path) -> None:
    experiment = tiny.experiment("batch_norm", steps=100_000)
    path = tmp_path / "runs" / experiment.run_name
    first, second = processes.ranks(experiment, tmp_path / "runs", data, 2)
    first.until_saved(path, step=8)
    second.process.kill()
    assert second.wait() == -signal.SIGKILL
    assert first.wait(60) == RankLost.exit_code, first.said
    assert "another process of this training ended or fell silent" in first.said
    assert "Traceback" not in first.said
    step = Run.open(path).record().step
    assert step >= 8
    grown = processes.ranks(tiny.experiment("batch_norm", steps=100_001), tmp_path / "runs", data, 2)
    grown[0].until_saved(path, step + 1)
    grown[1].send(signal.SIGTERM)
    assert [rank.wait() for rank in grown] == [143, 143], [rank.said for rank in grown]
    assert Run.open(path).record().step > step


def test_a_refusal_of_the_first_rank_ends_the_others(tmp_path: Path, data: Path) -> None:
    train(tiny.experiment(), tmp_path / "runs", data=data)
    first, second = processes.ranks(tiny.experiment(batch_size=8), tmp_path / "runs", data, 2)
    assert first.wait(60) == 2
    assert "was started with recipe.batch_size 4, not 8" in first.said
    assert second.wait(60) != 0
    assert "Traceback" not in second.said


def test_a_batch_that_ranks_cannot_share_is_refused(tmp_path: Path, data: Path) -> None:
    ranks = processes.ranks(tiny.experiment(batch_size=5), tmp_path / "runs", data, 2)
    assert all(rank.wait(60) == 2 for rank in ranks), [rank.said for rank in ranks]
    assert "a batch of 5 cannot be shared by 2 ranks; choose a multiple of 2" in ranks[0].said


@pytest.mark.slow  # three processes that import everything; what torchrun tells them is told above too
def test_torchrun_starts_a_training(tmp_path: Path, data: Path) -> None:
    training = options.Training(tiny.experiment("batch_norm"), into=tmp_path / "runs", data=data)
    write_experiment(tmp_path / "experiment.json", training.experiment)
    words = options.words(training, tmp_path / "experiment.json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "slotnorm"]
    subprocess.run([*command, "train", *words], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    run = Run.open(tmp_path / "runs" / "toy-batch_norm-1")
    assert run.finished
    assert run.record().world_size == 2


def test_errors_of_other_kinds_are_not_taken_for_a_lost_rank() -> None:
    with pytest.raises(RuntimeError, match="shapes differ"), lost_rank_named():
        raise RuntimeError("shapes differ")
    with pytest.raises(RankLost, match="the same command continues"), lost_rank_named():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234")


def test_alone_every_exchange_is_nothing() -> None:
    ranks, tensor = Ranks(0, 1, torch.device("cpu")), torch.arange(3.0)
    ranks.wait_for_first()
    ranks.sum_([tensor])
    ranks.copy_from_first_([tensor])
    assert tensor.tolist() == [0, 1, 2]
    assert ranks.first
