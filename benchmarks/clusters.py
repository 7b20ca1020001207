"""The overhead of an engine: 40 tiny jobs from submission to all finished, against local processes with as many slots.

python benchmarks/clusters.py: starts SLURM's daemons and Ray's nodes on this machine, as the tests in tests/cluster do,
and prints a table for docs/clusters.md. Local processes have their turn before and after the engines, so that a machine
that is busy with something else shows in the table.
"""

import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "cluster")]

import ray_nodes  # noqa: E402
import slurm_daemons  # noqa: E402

import clusters  # noqa: E402
import tiny  # noqa: E402

JOBS, SLOTS, STEPS = 40, 2, 4


def measure(folder: Path, data: Path, words: list[str], environment: dict[str, str]) -> float:
    """Seconds from the command to its end, when all runs are finished."""
    started = time.monotonic()
    runs = ["--norms", "weighted_sum", "--seeds", f"1:{JOBS}"]
    sweep = clusters.Sweep(folder, data, [*runs, *words], environment, steps=STEPS)
    assert sweep.process.wait() == 0, sweep.said
    return time.monotonic() - started


def main(engines: list[str]) -> None:
    seconds: list[tuple[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="slotnorm-") as name:
        folder = Path(name)
        data = tiny.build_scenes(folder / "data").directory
        for number, engine in enumerate(engines):
            with contextlib.ExitStack() as stack:
                words, environment = ["--jobs", str(SLOTS)], dict(os.environ)
                if engine == "slurm":
                    words, environment = [], stack.enter_context(slurm_daemons.running(folder / f"slurm-{number}"))
                elif engine == "ray":
                    nodes = stack.enter_context(ray_nodes.running())
                    words, environment = ["--address", nodes.address], nodes.environment
                total = measure(folder / f"sweep-{number}", data, ["--on", engine, *words], environment)
            seconds.append((engine, total))
            print(f"{engine}: {total:.1f} s", file=sys.stderr, flush=True)
    local = statistics.mean(total for engine, total in seconds if engine == "local")
    print("| engine | seconds for 40 jobs, 2 at a time | overhead per job, seconds |\n|---|---|---|")
    for engine, total in seconds:
        print(f"| {engine} | {total:.0f} | {'' if engine == 'local' else f'{(total - local) / JOBS:.2f}'} |")


if __name__ == "__main__":
    main(sys.argv[1:] or ["local", "slurm", "ray", "local"])
