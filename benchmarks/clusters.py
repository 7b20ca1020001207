"""The overhead of an engine: 40 tiny jobs from submission to all finished, against local processes with as many slots.

python benchmarks/clusters.py [--trainings]: starts SLURM's daemons and Ray's nodes on this machine, as the tests in
tests/cluster do, and prints a table for docs/clusters.md. Jobs only make a file, so that nothing but the engine takes
time, or with --trainings train a tiny model for four steps. Local processes have their turn before and after the
engines, so that a machine that is busy with something else shows in the table.
"""

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "cluster")]

import ray_nodes  # noqa: E402
import slurm_daemons  # noqa: E402

import clusters  # noqa: E402
import tiny  # noqa: E402
from slotnorm.studies.jobs import Task, complete  # noqa: E402
from slotnorm.studies.launchers import Job, Launcher, Local  # noqa: E402
from slotnorm.studies.ray import Ray  # noqa: E402
from slotnorm.studies.slurm import Slurm  # noqa: E402

JOBS, SLOTS, STEPS = 40, 2, 4
ENGINES = ("local", "slurm", "ray", "local")


class Touch(Task):
    """Makes one file."""

    size = 1

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def prepare(self) -> Job:
        self.path.mkdir(parents=True, exist_ok=True)
        return Job(("touch", str(self.path / "made")), self.path)

    @property
    def is_done(self) -> bool:
        return (self.path / "made").exists()

    @property
    def progress(self) -> int:
        return int(self.is_done)


def touch(folder: Path, launcher: Launcher) -> None:
    """Run jobs that only make a file."""
    tasks = [Touch(folder / f"job-{number}") for number in range(JOBS)]
    complete(tasks, launcher, "jobs")
    assert all(task.state == "finished" for task in tasks), [task.reason for task in tasks]


def train(folder: Path, launcher: Launcher) -> None:
    """Run a sweep of trainings of a few steps."""
    data = tiny.build_scenes(folder / "data").directory
    words = ["--norms", "weighted_sum", "--seeds", f"1:{JOBS}", "--on", launcher.name]
    if isinstance(launcher, Local):
        words += ["--jobs", str(SLOTS)]
    if isinstance(launcher, Ray):
        words += ["--address", str(launcher.address)]
    sweep = clusters.Sweep(folder / "sweep", data, words, steps=STEPS)
    assert sweep.process.wait() == 0, sweep.said


def main(work: Callable[[Path, Launcher], None]) -> None:
    seconds: list[tuple[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="slotnorm-") as name:
        for number, engine in enumerate(ENGINES):
            folder = Path(name) / str(number)
            with contextlib.ExitStack() as stack:
                launcher: Launcher = Local(SLOTS)
                if engine == "slurm":
                    environment = stack.enter_context(slurm_daemons.running(folder / "daemons"))
                    stack.enter_context(mock.patch.dict(os.environ, environment))
                    launcher = Slurm()
                elif engine == "ray":
                    launcher = Ray(address=stack.enter_context(ray_nodes.running()).address)
                started = time.monotonic()
                work(folder / "jobs", launcher)
                seconds.append((engine, time.monotonic() - started))
            print(f"{engine}: {seconds[-1][1]:.1f} s", file=sys.stderr, flush=True)
    local = statistics.mean(total for engine, total in seconds if engine == "local")
    print(f"| engine | seconds for {JOBS} jobs, {SLOTS} at a time | overhead per job, seconds |\n|---|---|---|")
    for engine, total in seconds:
        print(f"| {engine} | {total:.1f} | {'' if engine == 'local' else f'{(total - local) / JOBS:.2f}'} |")


if __name__ == "__main__":
    main(train if sys.argv[1:] == ["--trainings"] else touch)
