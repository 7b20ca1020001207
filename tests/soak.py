"""A soak: train, kill, stop, resume, flip bits, cut files, fill the disk, set two writers on one run, in random order.

    python tests/soak.py [--minutes 20] [--seed 0]

Each run must end bit-identical to one that nothing happened to, or say the right sentence with its exit code. Prints
one line per kind of event with its count; exits with 1 at the first event that broke a promise.
"""

import argparse
import collections
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import processes
import tiny
from slotnorm.training.loop import train
from slotnorm.training.runs import Run
from test_faults import final

CHECKPOINT = re.compile(rb"checkpoints/step-\d+\.(json|safetensors|optimizer\.safetensors)")
EXPERIMENT = tiny.experiment(steps=160, checkpoint_every=4, validate_every=40)


class Soak:
    """One run after another, with something happening to each until it is finished."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.data = tiny.build_scenes(folder / "data").directory
        self.unbroken = train(EXPERIMENT, folder / "unbroken", data=self.data)
        self.counts: collections.Counter[str] = collections.Counter()
        self.into = folder / "runs-0"
        self.metrics_damaged = False

    @property
    def run(self) -> Path:
        return self.into / EXPERIMENT.run_name

    def start(self, *fault: object) -> processes.Command:
        return processes.train(EXPERIMENT, self.into, self.data, **({"fault": fault} if fault else {}))

    def require(self, command: processes.Command, *codes: int) -> int:
        code = command.wait(1200)  # a busy machine is not a broken promise
        if code not in codes or "Traceback" in command.said:
            raise AssertionError(f"exit code {code}, not one of {codes}: {command.said}")
        return code

    def kill(self) -> None:
        command = self.start()
        time.sleep(self.chance.uniform(0, 1.2))
        command.process.kill()
        self.require(command, 0, -signal.SIGKILL)

    def kill_in_save(self) -> None:
        command = self.start(processes.die_inside_save, self.chance.randint(1, 3), self.chance.randint(1, 40))
        self.require(command, 0, -signal.SIGKILL)

    def stop(self) -> None:
        number = self.chance.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU])
        command = self.start()
        command.until_it_writes(self.run)
        time.sleep(self.chance.uniform(0.1, 0.5))
        if command.process.is_alive():
            command.send(number)
        self.require(command, 0, 128 + number, -number)  # at once, where it has not begun to train

    def flip_a_bit(self) -> None:
        self.damage(lambda content, place: content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])

    def cut(self) -> None:
        self.damage(lambda content, place: content[:place])

    def damage(self, how) -> None:  # type: ignore[no-untyped-def]
        files = [
            path for path in self.run.rglob("*") if path.is_file() and path.stat().st_size and path.name != ".lock"
        ]
        if not files:
            return
        path = self.chance.choice(sorted(files))
        content = path.read_bytes()
        path.write_bytes(how(content, self.chance.randrange(len(content))))
        self.metrics_damaged |= path.name.startswith("metrics")
        if path.name == "experiment.json":  # nothing tells what it said: refused, and put back by hand
            self.require(self.start(), 2)
            path.write_bytes(content)

    def fill_the_disk(self) -> None:
        self.require(self.start(processes.limit_file_size, self.chance.choice([100, 2000, 9000])), 0, 2)

    def two_writers(self) -> None:
        first, second = self.start(), self.start()
        codes = {self.require(first, 0, 6), self.require(second, 0, 6)}
        if codes == {6}:
            raise AssertionError(f"both were refused: {first.said} {second.said}")

    def remove_the_lock(self) -> None:
        command = self.start()
        command.until_it_writes(self.run)
        time.sleep(self.chance.uniform(0, 0.3))
        (self.run / ".lock").unlink(missing_ok=True)
        self.require(command, 0, 8)

    def finish(self) -> None:
        """Train to the end and compare; then a new run begins."""
        command = self.start()
        code = self.require(command, 0, 4)
        if code == 4:
            assert "every checkpoint in" in command.said, command.said
            self.counts["every checkpoint was damaged, and said so"] += 1
        else:
            ours, theirs = final(Run.open(self.run)), final(self.unbroken)
            left_out = {"metrics", "files"} if self.metrics_damaged else set()
            strays = set(ours["files"].split()) ^ set(theirs["files"].split())
            if all(map(CHECKPOINT.fullmatch, strays)) and ours["files"].count(b"\n") == theirs["files"].count(b"\n"):
                left_out.add("files")  # beside the last one is kept what a signal saved, at whatever step
            unlike = [name for name in theirs if ours.get(name) != theirs[name] and name not in left_out]
            assert not unlike, f"{unlike} differ from the run that nothing happened to; files: {strays or 'the same'}"
            self.counts["ended bit-identical"] += 1
        shutil.rmtree(self.into)
        self.into = self.folder / f"runs-{self.counts.total()}"
        self.metrics_damaged = False

    def events(self) -> list:  # type: ignore[type-arg]
        return [
            self.kill, self.kill, self.kill_in_save, self.stop, self.flip_a_bit, self.cut, self.fill_the_disk,
            self.two_writers, self.remove_the_lock, self.finish,
        ]  # fmt: skip


def soak(minutes: float, seed: int) -> collections.Counter[str]:
    """Let things happen for so long; returns how many of each kind."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        state = Soak(Path(folder), seed)
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            event = state.chance.choice(state.events())
            try:
                event()
            except AssertionError as broken:
                if "exit code 4" in str(broken) and "every checkpoint in" in str(broken):  # the right sentence
                    state.counts["every checkpoint was damaged, and said so"] += 1
                    shutil.rmtree(state.into)
                    state.metrics_damaged = False
                    continue
                raise AssertionError(
                    f"seed {seed}, event {state.counts.total()}, {event.__name__}: {broken}"
                ) from broken
            state.counts[event.__name__.replace("_", " ")] += 1
        state.finish()
        return state.counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    try:
        for what, count in sorted(soak(given.minutes, given.seed).items()):
            print(f"{count:6}  {what}")
    except AssertionError as broken_promise:
        print(broken_promise)
        sys.exit(1)
