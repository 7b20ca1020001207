"""Count the objects of published runs whose rows were made before counts were:

    python docs/publish_counts.py results/toy

Of every run and set it writes RUN/rows/SET-count.npz: rows of the metric `count` alone, at the training K, twice and
three times it and one slot more than the most objects of its sets; on a set that was not evaluated at the training K
(a transfer's), at all K of its rows. They are made with the published weights, which are in half precision; the header
says so (`half_precision`), and names the weights that they were rounded from, as the other rows do, which stay as they
are. Rows that have the metric, or have their file, are passed over; --slots counts at other K, and --data says where
scenes are that are neither generated nor in the cache.
"""

import argparse
from pathlib import Path

import numpy as np

import slotnorm as sn
from slotnorm.config import SLOTS_FACTOR
from slotnorm.errors import UserError
from slotnorm.evaluation import row_files
from slotnorm.evaluation.rows import Rows
from slotnorm.evaluation.scoring import Evaluation, Scores
from slotnorm.experiments import evaluation_set
from slotnorm.metrics import CountError
from slotnorm.report.reading import find_folders
from slotnorm.storage import archives
from slotnorm.training.run_data import scenes_of
from slotnorm.training.runs import Run


def count_published(folder: Path, slots: list[int] | None = None, data: Path | None = None) -> list[Path]:
    """Write what is lacking of one run."""
    files = {path: Rows.load(path) for path in row_files.row_files(folder / "rows")}
    trained = Run.open(folder).experiment.slots
    studied = [rows for rows in files.values() if trained in rows.unique("slots")]
    most = max((int(rows["objects"].max()) for rows in studied), default=0)
    wanted = slots or [*(trained * factor for factor in range(1, SLOTS_FACTOR + 1)), most + 1]
    written = []
    for path, rows in files.items():
        (dataset,) = rows.unique("dataset")
        target = path.with_name(f"{dataset}-count.npz")
        if CountError.name not in rows.unique("metric") and not target.exists():
            count(folder, rows, dataset, wanted, data).save(target)
            archives.pack_tightly(target)
            written.append(target)
    return written


def count(folder: Path, rows: Rows, dataset: str, slots: list[int], data: Path | None) -> Rows:
    """The rows of the count on the scenes of `rows`, at those K of `slots` that these have, or at all of theirs."""
    model, run, header = sn.load(folder), Run.open(folder), rows.header
    scenes = scenes_of(run, evaluation_set(dataset), header["num_scenes"], data)
    evaluated = set(rows.unique("slots"))
    numbers = sorted(evaluated.intersection(slots) or evaluated)
    evaluation = Evaluation(model, scenes, numbers, source=model.sources[0], metrics=[CountError])
    made = evaluation.header
    for name in ("scenes", "images", "iterations", "noise_seed"):
        if made[name] != header[name]:
            raise UserError(f"{folder}: {name} of {dataset} is {made[name]}, but its rows have {header[name]}")
    if (model.rounded_from or made["weights"]) != header["weights"]:
        raise UserError(f"{folder}: its rows are not of the weights beside them; evaluate the run again")
    scores = Scores.concat(list(evaluation.parts(np.arange(len(scenes)), evaluation.slots)))
    counted = evaluation.rows(scores, dataset, folder.name).where(metric=CountError.name)
    told = {**made, "weights": header["weights"], "half_precision": model.rounded_from is not None}
    return row_files.put_together(dict(row_files.split_by_slots(counted.with_header(made))), told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--slots", nargs="+", type=int)
    parser.add_argument("--data", type=Path)
    asked = parser.parse_args()
    for folder in find_folders(asked.folders):
        for path in count_published(folder, asked.slots, asked.data):
            print(path)


if __name__ == "__main__":
    main()
