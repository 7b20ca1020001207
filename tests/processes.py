"""`slotnorm` in processes of its own, started in a fraction of a second: a server has imported everything and forks."""

import atexit
import contextlib
import ctypes
import multiprocessing
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from slotnorm.config import Experiment
from slotnorm.studies import options
from slotnorm.training import checkpoints
from slotnorm.training.experiment_file import write_experiment

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([
    "slotnorm.training.loop", "slotnorm.training.pictures", "slotnorm.studies.sweep", "processes",
    # what every process would import for itself: faults are functions of test modules, and a training draws pictures
    "pytest", "numpy.ma", "numpy.ctypeslib", "PIL.BmpImagePlugin", "PIL.GifImagePlugin", "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin", "PIL.PpmImagePlugin", "torch.utils._device",
])  # fmt: skip

_STARTED: list[ForkServerProcess] = []


@atexit.register  # before multiprocessing's own, which waits for them: a failed test leaves a training without end
def _kill_all() -> None:
    for process in _STARTED:
        process.kill()


class Command:
    """`slotnorm ARGUMENTS` running in another process; what it says goes to a file."""

    def __init__(
        self,
        arguments: list[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        fault: Callable[..., None] | None = None,
        *fault_arguments: Any,
    ) -> None:
        self.log = log
        wanted = (arguments, log, dict(environment or {}), fault, fault_arguments)
        self.process: ForkServerProcess = _CONTEXT.Process(target=_run, args=wanted)
        self.process.start()
        _STARTED.append(self.process)
        assert self.process.pid is not None
        self.pid: int = self.process.pid

    def wait(self, seconds: float = 120) -> int:
        """Its exit code, negative for the signal that killed it."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"still running after {seconds} s: {self.said}"
        return self.process.exitcode

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def until(self, happened: Callable[[], bool], seconds: float = 120) -> None:
        """Wait for something to happen while the process runs."""
        deadline = time.monotonic() + seconds
        while not happened():
            assert self.process.is_alive(), self.said
            assert time.monotonic() < deadline, f"not within {seconds} s: {self.said}"
            time.sleep(0.005)

    def until_it_writes(self, run: Path) -> None:
        """Wait until it holds a run's lock, or has ended: it may be done in a moment."""
        own = f"process {self.pid} on "
        while self.process.is_alive():
            with contextlib.suppress(OSError):
                if (run / ".lock").read_text().startswith(own):
                    return
            time.sleep(0.005)

    def until_saved(self, run: Path, step: int = 1) -> None:
        """Wait for a checkpoint of a run at `step` or later: the first ones are removed while others are made."""
        folder = run / "checkpoints"
        self.until(lambda: any(int(path.stem[5:]) >= step for path in folder.glob("step-*.json")))


def train(experiment: Experiment, into: Path, data: Path, **how: Any) -> Command:
    """`slotnorm train` of an experiment on built scenes; `log`, `environment` and `fault` as for `Command`."""
    file = into.parent / f"{experiment.run_name}-{time.monotonic_ns()}.json"
    write_experiment(file, experiment)
    words = options.words(options.Training(experiment, into=into, data=data), file)
    log = how.pop("log", into.parent / f"log-{time.monotonic_ns()}.txt")
    fault, *arguments = how.pop("fault", (None,))
    return Command(["train", *words], log, how.get("environment"), fault, *arguments)


class JobProcess:
    """Stands for the process of a local launcher's job: the same command in a process that needs no imports."""

    def __init__(self, command: tuple[str, ...], **how: Any) -> None:
        log = Path(os.readlink(f"/proc/self/fd/{how['stdout'].fileno()}"))
        assert command[:3] == (sys.executable, "-m", "slotnorm")
        self.command = Command(list(command[3:]), log, how["env"])

    def poll(self) -> int | None:
        return self.command.process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        self.command.send(number)


def run_command(folder: Path, *arguments: str) -> tuple[int, str]:
    """`slotnorm ARGUMENTS` to its end: the exit code, and all it says; `folder` is where that is written meanwhile."""
    command = Command(list(arguments), folder / f"log-{time.monotonic_ns()}.txt")
    return command.wait(), command.said


def call(function: Callable[..., None], *arguments: Any, environment: Mapping[str, str]) -> Command:
    """A function of a test module in another process; its last argument is a folder, where it may write."""
    log = arguments[-1] / f"log-{time.monotonic_ns()}.txt"
    return Command([], log, environment, function, *arguments)


def rank_environments(number: int) -> list[dict[str, str]]:
    """What torchrun tells each of `number` processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number)]


def ranks(experiment: Experiment, into: Path, data: Path, number: int) -> list[Command]:
    """The same as torchrun starts it: `number` processes that make one training."""
    return [train(experiment, into, data, environment=environment) for environment in rank_environments(number)]


def _run(
    arguments: list[str],
    log: Path,
    environment: dict[str, str],
    fault: Callable[..., None] | None,
    fault_arguments: tuple[Any, ...],
) -> None:
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import torch

    from slotnorm.cli.verbs import main

    torch.set_num_threads(1)
    if fault:
        fault(*fault_arguments)
    if arguments:
        main(arguments)


def die_inside_save(save: int, call: int) -> None:
    """Make this process die by SIGKILL right after the `call`-th system call of its `save`-th checkpoint."""
    state = {"saves": 0, "calls": 0, "inside": False}
    original_save = checkpoints.save

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **keywords: Any) -> Any:
            result = function(*arguments, **keywords)
            if state["inside"]:
                state["calls"] += 1
                if state["calls"] == call:
                    os.kill(os.getpid(), signal.SIGKILL)
            return result

        return run

    def watched_save(*arguments: Any, **keywords: Any) -> None:
        state["saves"] += 1
        state["inside"] = state["saves"] == save
        original_save(*arguments, **keywords)
        state["inside"] = False
        if state["saves"] == save:  # the call was beyond the last one
            print("the save has", state["calls"], "calls", flush=True)

    for name in ("open", "pwrite", "fsync", "replace", "close", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    checkpoints.save = watched_save


def limit_file_size(size: int) -> None:
    """A disk that is full: no file may become longer than `size` bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def obey_permissions() -> None:
    """Root may read everything; without two of its capabilities it is asked as anybody else."""
    libc, numbers = ctypes.CDLL(None, use_errno=True), ctypes.c_uint32
    header, sets = (numbers * 2)(0x20080522, 0), (numbers * 6)()  # version 3, this process: effective, permitted, ...
    assert libc.capget(header, sets) == 0
    sets[0] &= ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0


def spoil_loss(step: int) -> None:
    """Make the loss NaN at one step."""
    from slotnorm.training.learner import Learner

    original = Learner.loss

    def spoiled(self: Learner, batch: Any) -> Any:
        loss = original(self, batch)
        return loss * float("nan") if batch.step == step else loss

    Learner.loss = spoiled  # type: ignore[method-assign]
