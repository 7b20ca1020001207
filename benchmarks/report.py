"""Processor time and memory of `slotnorm report --no-models` as the number of runs grows, on made-up rows.

    python benchmarks/report.py [--runs 10 84 200] [--scenes 320]

Runs are of the four normalizations, with 15 numbers of slots on the toy study's sets, of so many scenes each, and
three metrics; each number of runs is reported by a process of its own, whose time (user and system) and largest memory
are printed, with what one more run costs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slotnorm.evaluation.rows import Rows
from slotnorm.experiments import MAIN, study

METRICS = ("f_ari", "ari", "l2", "visible")
SLOTS = range(2, 17)


class Cost(NamedTuple):
    """Of one report."""

    seconds: float
    megabytes: float


def make_run(folder: Path, norm: str, seed: int, scenes: int) -> None:
    """A folder with rows as `slotnorm eval` leaves them; scores are random."""
    random = np.random.default_rng([seed, len(norm)])
    shape = (len(SLOTS), len(METRICS), scenes)
    slots, metrics, images = (grid.reshape(-1) for grid in np.indices(shape))
    toy = study("toy")
    name = f"toy-{norm}-{seed}"
    for test in toy.tests:
        objects = test.objects[0] + images % (test.objects[1] - test.objects[0] + 1)
        values = random.uniform(size=shape)
        values[:, METRICS.index("visible")] = 3
        rows = Rows(
            run=name, norm=norm, seed=seed, train_objects=toy.experiment.max_objects, train_slots=toy.experiment.slots,
            dataset=test.name, protocol="paper", image=images, objects=objects, slots=np.asarray(SLOTS)[slots],
            iterations=3, source="masks", metric=np.asarray(METRICS)[metrics], value=values.reshape(-1),
        )  # fmt: skip
        header = {"weights": name, "scenes": test.name, "images": "all", "num_scenes": scenes}
        rows.with_header(header).save(folder / name / "rows" / f"{test.name}.npz")


def report(runs: Path, out: Path) -> Cost:
    """Report the runs in a process of its own."""
    command = [sys.executable, "-m", "slotnorm", "report", str(runs), "--no-models", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", type=int, default=[10, 84, 200])
    parser.add_argument("--scenes", type=int, default=320)
    asked = parser.parse_args()
    print("| runs | rows | CPU s | per further run, s | MB |\n|---|---|---|---|---|")
    before: tuple[int, Cost] | None = None
    with tempfile.TemporaryDirectory() as place:
        made = 0
        for number in sorted(asked.runs):
            while made < number:
                make_run(Path(place) / "runs", MAIN[made % len(MAIN)], 1 + made // len(MAIN), asked.scenes)
                made += 1
            cost = report(Path(place) / "runs", Path(place) / f"report-{number}")
            further = ""
            if before is not None:
                further = f"{(cost.seconds - before[1].seconds) / (number - before[0]):.2f}"
            rows = number * len(study("toy").tests) * len(SLOTS) * len(METRICS) * asked.scenes
            print(f"| {number} | {rows:,} | {cost.seconds:.1f} | {further} | {cost.megabytes:.0f} |", flush=True)
            before = (number, cost)


if __name__ == "__main__":
    main()
