"""How long a user waits before something is seen: from pressing return to the first step, picture and row.

    python benchmarks/waiting.py [--rounds 7] [--before OTHER/src]

Each moment is a process of its own that ends when it is reached: `slotnorm train toy` after its first training step,
`slotnorm segment` when a photo's files are written, `slotnorm eval` when the rows of the first group of scenes are
scored. The scenes are in the cache (the first round, which is not counted, makes them if they are not), and imports are
compiled. With `--before`, another checkout's sources take turns with these. Processor time of the whole process, its
start included, is taken, which other programs on the machine disturb less than a clock's; the table has medians.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

# run the command line, and end the process when the function of this class or module returns for the first time; it is
# replaced when the verb has imported its module, so that imports are those of the command
_CHILD = """
import importlib.abc, importlib.util, os, sys
module, owner, name, *command = sys.argv[1:]
class Reach(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, asked, path, target=None):
        if asked == module:
            sys.meta_path.remove(self)
            self.spec = importlib.util.find_spec(asked)
            return importlib.util.spec_from_loader(asked, self, origin=self.spec.origin)
    def exec_module(self, loaded):
        self.spec.loader.exec_module(loaded)
        holder = getattr(loaded, owner) if owner else loaded
        function = getattr(holder, name)
        def reach(*arguments):
            function(*arguments)
            os._exit(0)
        setattr(holder, name, reach)
sys.meta_path.insert(0, Reach())
from slotnorm.cli.verbs import main
main(command)
raise SystemExit("the command ended before the moment was reached")
"""

Command = Callable[[Path], list[str]]
"""A folder for what is written -> what is waited for, as module, class and function, and the command's words."""

MOMENTS: dict[str, Command] = {
    "`train toy`: first step": lambda folder: [
        "slotnorm.training.learner", "Learner", "learn", "train", "toy", "--into", str(folder / "new"),
    ],
    "`segment`: picture": lambda folder: [
        "slotnorm.report.segmenter", "", "save",
        "segment", str(folder / "photo.png"), "--run", "toy-batch_norm", "--out", str(folder / "masks"),
    ],
    "`eval`: first rows": lambda folder: [
        "slotnorm.evaluation.scoring", "Evaluation", "_score_group", "eval", str(folder / "runs"),
    ],
}  # fmt: skip


def wait(source: Path, words: list[str]) -> float:
    """Seconds of processor time until the moment, with the package of this folder of sources."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(words[3:])} ended with {child.returncode}; run it by itself to see why")
    return usage.ru_utime + usage.ru_stime


def prepare(folder: Path) -> None:
    """A photo, and a run that has a checkpoint."""
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)).save(folder / "photo.png")
    words = ["train", "toy", "--into", str(folder / "runs"), "--recipe.steps", "1"]
    subprocess.run([sys.executable, "-m", "slotnorm", *words], check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--before", type=Path, help="the folder src of another checkout, to compare with")
    arguments = parser.parse_args()
    sources = {"now": Path(__file__).parents[1] / "src"}
    if arguments.before:
        sources["before"] = arguments.before.resolve()
    seconds: dict[tuple[str, str], list[float]] = {(moment, who): [] for moment in MOMENTS for who in sources}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for number in range(arguments.rounds + 1):
            for moment, who in random.sample(list(seconds), len(seconds)):
                waited = wait(sources[who], MOMENTS[moment](folder))
                shutil.rmtree(folder / "new", ignore_errors=True)
                if number:
                    seconds[moment, who].append(waited)
    print(f"| from return to | {' | '.join(f'{who}, s' for who in reversed(sources))} | before / now |")
    print(f"|---|{'---|' * len(sources)}---|")
    for moment in MOMENTS:
        medians = {who: statistics.median(seconds[moment, who]) for who in sources}
        ratio = f"{medians['before'] / medians['now']:.2f}" if "before" in medians else "–"
        print(f"| {moment} | {' | '.join(f'{medians[who]:.2f}' for who in reversed(sources))} | {ratio} |")


if __name__ == "__main__":
    main()
