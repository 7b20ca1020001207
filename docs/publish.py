"""Publish finished runs, or make what is published smaller:

    python docs/publish.py runs/toy --into results/toy     # of each finished run in it: what results/ holds
    python docs/publish.py results                         # published before: the same, packed as small as it gets

What results/ holds of a run: experiment.json, metrics.jsonl, rows, what the report's pictures and diagnostics are drawn
from, and its weights in half precision with a model card; no checkpoints, no state of the optimizer. Rows were made
with the weights before they were rounded, and stay equal to the last bit.
"""

import argparse
import shutil
from collections.abc import Iterable
from pathlib import Path

from slotnorm.errors import UserError
from slotnorm.models import weights
from slotnorm.report.reading import find_folders
from slotnorm.storage import archives
from slotnorm.training.runs import Run

KEPT = ("experiment.json", "metrics.jsonl", "rows", "diagnosis", "examples")


def publish(runs: Iterable[Path], into: Path) -> list[Path]:
    """Write what is published of each run into INTO/RUN; a run that is not finished or has no rows is refused."""
    folders = find_folders(runs)
    for folder in folders:
        if not (standing := Run.open(folder).standing()).finished:
            raise UserError(f"{folder} is {standing}; only finished runs are published: go on with it, or leave it out")
        if not list((folder / "rows").glob("*.npz")):
            raise UserError(f"{folder} has no rows; make them with `slotnorm eval {folder}`")
    return [_publish_run(folder, into / folder.name) for folder in folders]


def _publish_run(folder: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in KEPT:
        if (folder / name).is_dir():
            shutil.copytree(folder / name, target / name, ignore=shutil.ignore_patterns("*.lock", ".*"))
        elif (folder / name).is_file():
            shutil.copy(folder / name, target / name)
    Run.open(folder).export(target / f"{folder.name}.safetensors", half=True)
    shrink(target)
    return target


def shrink(folder: Path) -> None:
    """Pack all arrays in a folder as small as they get, and round weights to half precision; doing so twice is once."""
    for path in sorted(folder.rglob("*.npz")):
        archives.pack_tightly(path)
    for path in sorted(folder.rglob("*.safetensors")):
        whole = weights.unpack(path)
        rounded = weights.halve(whole)
        if rounded is not whole:
            card = path.with_suffix(".md").read_text(encoding="utf-8").rpartition("\nSHA-256 of")[0]
            weights.export(rounded, path, "\n".join([card, *weights.describe_rounding(rounded), ""]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--into", type=Path)
    asked = parser.parse_args()
    if asked.into is None:
        for folder in asked.folders:
            shrink(folder)
    else:
        print("\n".join(map(str, publish(asked.folders, asked.into))))


if __name__ == "__main__":
    main()
