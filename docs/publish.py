"""Publish finished runs, or make what is published smaller:

    python docs/publish.py runs/toy --into results/toy     # of each finished run in it: what results/ holds
    python docs/publish.py results                         # published before: the same, packed as small as it gets

What results/ holds of a run: experiment.json, metrics.jsonl, rows, what the report's pictures and diagnostics are drawn
from, and its weights in half precision with a model card; no checkpoints, no state of the optimizer. Rows were made
with the weights before they were rounded; scores are kept to 14 binary digits, and a metric that no figure shows (mBO,
mIoU) has rows where the tables show it. Pictures are kept of the runs that the page shows, as closely as it shows them.
"""

import argparse
import dataclasses
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slotnorm.errors import UserError
from slotnorm.evaluation.diagnosis import OCCUPANCY, RATIO
from slotnorm.evaluation.examples import Examples
from slotnorm.evaluation.row_files import FOLDER, row_files
from slotnorm.evaluation.rows import Rows
from slotnorm.metrics import all_metrics
from slotnorm.models import weights
from slotnorm.report.model_views import DIAGNOSIS, EXAMPLES, Inspector, spaced
from slotnorm.report.reading import find_folders, read
from slotnorm.report.sections import Section
from slotnorm.storage import archives
from slotnorm.training.runs import Run

KEPT = ("experiment.json", "metrics.jsonl", "rows", "diagnosis", "examples")
STEP_OF_SHARES, STEP_OF_PIXELS = 17, 5  # of 255: what a mixture of colours, and a reconstruction, are kept to
SCORE_DIGITS = 14  # binary ones: 1/32,000 of a score, far below the third decimal that is shown
SMALL_SIDE, FEW = 32, 8  # pictures of more pixels than that are kept at about so many K besides


def publish(runs: Iterable[Path], into: Path) -> list[Path]:
    """Write what is published of each run into INTO/RUN; a run that is not finished or has no rows is refused."""
    folders = find_folders(runs)
    for folder in folders:
        if not (standing := Run.open(folder).standing()).finished:
            raise UserError(f"{folder} is {standing}; only finished runs are published: go on with it, or leave it out")
        if not list((folder / "rows").glob("*.npz")):
            raise UserError(f"{folder} has no rows; make them with `slotnorm eval {folder}`")
    published = [_publish_run(folder, into / folder.name) for folder in folders]
    leave_out_pictures(into)
    return published


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
    """Make the runs in a folder as small as they get; doing so twice is doing so once."""
    runs = [rows.parent for rows in sorted(folder.rglob(FOLDER))]
    for run in runs:
        leave_out(run)
    if runs:
        leave_out_pictures(folder)
    for path in sorted(folder.rglob("*.npz")):
        archives.pack_tightly(path)
    for path in sorted(folder.rglob("*.safetensors")):
        whole = weights.unpack(path)
        rounded = weights.halve(whole)
        if rounded is not whole:
            card = path.with_suffix(".md").read_text(encoding="utf-8").rpartition("\nSHA-256 of")[0]
            weights.export(rounded, path, "\n".join([card, *weights.describe_rounding(rounded), ""]))


def leave_out(folder: Path) -> None:
    """Leave out of a run what no table or figure shows, and what no eye can see in its pictures."""
    (section,) = read([folder]).sections
    shown = {section.train_slots, section.object_slots, section.high_slots}
    for path in (*row_files(folder / FOLDER), *row_files(folder / DIAGNOSIS)):
        rows = Rows.load(path)
        kept = rows.take(is_shown(rows, section, shown) & ~np.isin(rows["metric"], (RATIO, OCCUPANCY)))
        if path.parent.name == FOLDER:
            kept = kept.with_columns(value=rounded(kept["value"]))
        if not kept.equals(rows):
            kept.save(path)
    for path in sorted((folder / EXAMPLES).glob("*.npz")):
        coarsen(Examples.load(path), shown).save(path)


def leave_out_pictures(folder: Path) -> None:
    """Leave out the pictures of runs that the page does not show: runs that were in the middle before others came."""
    shown: set[Path] = set()
    for section in read([folder]).sections:
        illustration, notes = Inspector(run_models=False).illustrate(section)
        if illustration is None or notes:
            return
        drawn = {examples.run for examples in illustration.examples.values()}
        folders = [Path(run.facts["path"]) for run in section.all_runs if run.name in drawn]
        shown |= {run / EXAMPLES / f"{illustration.dataset}.npz" for run in folders}
    for path in folder.rglob(f"{EXAMPLES}/*.npz"):
        if path not in shown:
            path.unlink()
            if not list(path.parent.iterdir()):
                path.parent.rmdir()


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values to `SCORE_DIGITS` binary digits; whole numbers below 16,384 stay what they are."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(fraction, SCORE_DIGITS)), exponent - SCORE_DIGITS)


def is_shown(rows: Rows, section: Section, slots: Collection[int]) -> NDArray[np.bool_]:
    """Which rows are in a figure, or in a table, which has the K of `slots`; of a set with none of these, all K."""
    in_tables = np.isin(rows["slots"], list(slots))
    if not in_tables.any():
        in_tables[:] = True
    kept = np.ones(len(rows), dtype=bool)
    for name, metric in all_metrics().items():
        if metric.figure is None and metric.in_study_table:
            kept &= (rows["metric"] != name) | (in_tables & (rows["source"] == section.source(name)))
    return kept


def coarsen(examples: Examples, looked_into: Collection[int]) -> Examples:
    """Examples at their full steps only at the K that are looked into slot by slot; reconstructions at these alone.

    At the other K a pixel's slots are seen as one mixture of their colours; of large images not every K is kept.
    """
    side = max(examples.masks[examples.slots[0]].shape[-2:])
    others = [k for k in examples.slots if k not in looked_into]
    left_out = set() if side <= SMALL_SIDE else set(others).difference(spaced(others, FEW))
    masks = {
        k: part if k in looked_into else _in_steps(part) for k, part in examples.masks.items() if k not in left_out
    }
    pixels = {k: _in_pixels(part) for k, part in examples.reconstructions.items() if k in looked_into}
    return dataclasses.replace(examples, masks=masks, reconstructions=pixels)


def _in_steps(masks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Shares (n, K, h, w) in whole steps that still add to 255 at every pixel: the largest remainders are rounded up.

    Rounded each by itself, the shares of a pixel that many slots hold would all vanish.
    """
    steps = 255 // STEP_OF_SHARES
    exact = masks * (steps / np.maximum(masks.sum(axis=1, keepdims=True), 1))
    whole = np.floor(exact)
    rank = np.argsort(np.argsort(whole - exact, axis=1, kind="stable"), axis=1, kind="stable")
    stepped = whole + (rank < steps - whole.sum(axis=1, keepdims=True))
    return (stepped * STEP_OF_SHARES).astype(np.uint8)


def _in_pixels(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return (np.rint(pixels / STEP_OF_PIXELS) * STEP_OF_PIXELS).astype(np.uint8)


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
