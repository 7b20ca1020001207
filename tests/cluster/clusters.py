"""What the tests of both engines share: tiny runs, the command line in a process, and weights to the last bit."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import standstill

import tiny
from slotnorm.studies.jobs import read_note
from slotnorm.training.experiment_file import write_experiment
from slotnorm.training.runs import Run

STEPS = 300
PATIENCE = 1200.0  # seconds; the machine may be busy


class Sweep:
    """`slotnorm sweep` of tiny runs in a process of its own."""

    started: ClassVar[list["Sweep"]] = []

    def __init__(
        self,
        folder: Path,
        data: Path,
        words: Sequence[str],
        environment: Mapping[str, str] = os.environ,
        steps: int = STEPS,
        waiting: bool = False,
    ) -> None:
        """`waiting`: runs wait after their first checkpoint until `go_on` is called."""
        folder.mkdir(parents=True, exist_ok=True)
        self.runs, self.log = folder / "runs", folder / f"sweep-{time.monotonic_ns()}.txt"
        asked = folder / "asked.json"
        write_experiment(asked, tiny.experiment(steps=steps, checkpoint_every=25, log_every=5, validate_every=steps))
        command = [sys.executable, "-m", "slotnorm", "sweep", "--experiment", str(asked), "--data", str(data)]
        self._sign = folder / standstill.SIGN
        if waiting:
            self._sign.touch()
            command += ["--plugin", standstill.__file__, "--log", standstill.Standstill.name]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*command, "--into", str(self.runs), *words], stdout=log, stderr=log, env={**environment},
                preexec_fn=_hear_ctrl_c,
            )  # fmt: skip

        self.started.append(self)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def until_saved(self, run: str = "*") -> str:
        """Until this run, or any, of a sweep whose runs wait has a checkpoint; its name."""
        assert self._sign.exists(), "else it may be finished before it is interrupted"
        self.until(lambda: any(self.runs.glob(f"{run}/checkpoints/step-*.json")))
        return next(self.runs.glob(f"{run}/checkpoints/step-*.json")).parents[1].name

    def until_logged(self, run: str, sentence: str) -> None:
        """Until a run's job has said this."""
        self.until(lambda: sentence in (self.runs / run / "log.txt").read_text())

    def go_on(self) -> None:
        """Let runs go on, those of this sweep and of whoever has taken them over."""
        self._sign.unlink()

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def ticket(self, run: str) -> str:
        note = read_note(self.runs / run)
        assert note is not None
        return note.ticket


def _hear_ctrl_c() -> None:
    """Also where the tests run in a shell's background, whose processes are started to ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ancestry(process: int) -> Iterator[int]:
    """A process of this machine, its parent, that one's, and so on."""
    while process > 1:
        yield process
        try:
            stat = Path(f"/proc/{process}/stat").read_text()
        except OSError:  # it has ended
            return
        process = int(stat.rpartition(")")[2].split()[1])


def weights(runs: Path) -> dict[str, str]:
    """By run, the SHA-256 of its last checkpoint's weights."""
    hashes = {}
    for path in sorted(runs.glob("toy-*")):
        run = Run.open(path)
        assert run.finished, path
        digest = hashlib.sha256()
        for name, tensor in sorted(run.weights().tensors.items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        hashes[path.name] = digest.hexdigest()
    return hashes
