"""A run's folder on storage like NFS: no flock, what others did is seen late, machines that sleep."""

import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import processes
import tiny
from slotnorm.storage import locks
from slotnorm.training.loop import train
from slotnorm.training.runs import Run
from test_faults import assert_same

_SECONDS_CACHED = 3.0  # as an NFS client keeps a file's attributes


def shared(host: str, seconds: float = 0.0) -> None:
    """This process on a machine of its own: without flock, and with attributes that are seen late.

    Opening a file asks the server, as NFS promises (close-to-open); its attributes by name come from a cache.
    """
    locks.try_flock = lambda descriptor: "not supported"
    locks._boot = lambda: host.ljust(36, "0")
    socket.gethostname = lambda: host
    known: dict[Any, tuple[float, os.stat_result]] = {}
    stat = os.stat

    def cached(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
        if not str(path).endswith(".lock"):
            return stat(path, *arguments, **named)
        since, answer = known.get(path, (0.0, None))
        if answer is None or time.monotonic() - since > _SECONDS_CACHED:
            since, answer = time.monotonic(), stat(path, *arguments, **named)
            known[path] = since, answer
        return answer

    os.stat = cached  # type: ignore[assignment]
    if seconds:
        from slotnorm.training.learner import Learner

        learn = Learner.learn

        def slowly(self: Learner, *arguments: Any) -> Any:
            time.sleep(seconds)
            return learn(self, *arguments)

        Learner.learn = slowly  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data")).directory


def test_a_holder_that_slept_beyond_its_lease_writes_nothing_more_and_the_other_ends_with_the_same_bits(
    tmp_path: Path, data: Path, record_property: Callable[..., None]
) -> None:
    experiment = tiny.experiment(steps=40, validate_every=20)
    unbroken = train(experiment, tmp_path / "unbroken", data=data)
    path = tmp_path / "runs" / experiment.run_name
    asleep = processes.train(experiment, tmp_path / "runs", data, fault=(shared, "node-1", 0.05))
    asleep.until_saved(path)
    asleep.send(signal.SIGSTOP)
    refused = processes.train(experiment, tmp_path / "runs", data, fault=(shared, "node-2"))
    assert refused.wait() == 6, "its lease still runs"
    os.utime(path / ".lock", (time.time() - locks.LEASE - 10,) * 2)
    other = processes.train(experiment, tmp_path / "runs", data, fault=(shared, "node-2"))
    assert other.wait() == 0, other.said
    assert f"was left by process {asleep.pid} on node-1" in other.said
    asleep.send(signal.SIGCONT)
    assert asleep.wait() == 8, asleep.said
    assert "nothing more is written" in asleep.said
    run = Run.open(path)
    assert run.finished
    assert_same(run, unbroken, but=("files",))
    record_property("fault", ("a machine that sleeps beyond its lease, without flock, attributes seen late", 1, 1))


@pytest.mark.slow
def test_ten_machines_that_fall_asleep_in_turn_end_with_the_same_bits(
    tmp_path: Path, data: Path, record_property: Callable[..., None]
) -> None:
    """Each is stopped at some moment after it has saved, its lease runs out, and the next takes over; then all wake."""
    experiment = tiny.experiment(steps=160, validate_every=80)
    unbroken = train(experiment, tmp_path / "unbroken", data=data)
    path, chance, saved = tmp_path / "runs" / experiment.run_name, random.Random(0), 0
    asleep = []
    for number in range(10):
        machine = processes.train(experiment, tmp_path / "runs", data, fault=(shared, f"node-{number}", 0.02))
        machine.until_saved(path, saved + 1)
        time.sleep(chance.uniform(0, 0.1))
        machine.send(signal.SIGSTOP)
        saved = Run.open(path).step
        assert saved < 160, "it must not end before it is stopped"
        os.utime(path / ".lock", (time.time() - locks.LEASE - 10,) * 2)
        asleep.append(machine)
    last = processes.train(experiment, tmp_path / "runs", data, fault=(shared, "node-last"))
    assert last.wait() == 0, last.said
    for machine in asleep:
        machine.send(signal.SIGCONT)
    for machine in asleep:
        assert machine.wait() == 8, machine.said
    assert_same(Run.open(path), unbroken, but=("files",))
    record_property("fault", ("machines that fall asleep in turn at any moment, and wake when the run is done", 10, 10))


def test_a_folder_removed_on_another_machine_is_noticed_at_the_next_save_at_the_latest(
    tmp_path: Path, data: Path
) -> None:
    endless = tiny.experiment(steps=100_000, checkpoint_every=10)
    command = processes.train(endless, tmp_path / "runs", data, fault=(shared, "node-1"))
    path = tmp_path / "runs" / endless.run_name
    command.until_saved(path)
    path.rename(tmp_path / "moved")
    assert command.wait(60) == 8, command.said
    assert not path.exists()
