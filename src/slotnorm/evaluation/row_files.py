"""Rows on disk: one file per run and set, RUN/rows/SET.npz. Files of the first form, one per set and K, are read too.

The header of a file says, in `scenes_of_slots`, which scenes each K was scored on, where evaluations of some K asked
for more of them than others. A file without it is of the first form, and its header speaks of its one K.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slotnorm.errors import DamagedFile
from slotnorm.evaluation.rows import MISSING, Rows
from slotnorm.metrics import all_metrics

FOLDER = "rows"
"""Where a run has them."""
_BY_SLOTS = "scenes_of_slots"
_OF_SCENES = ("num_scenes", "images")
_LEAST = {"train_objects": 0, "train_slots": 1, "seed": 0, "image": 0, "objects": 0, "slots": 1, "iterations": 1}
_ROUNDING, _LARGEST = 1e-5, float(np.finfo(np.float32).max)  # scores are computed in single precision


def row_files(folder: Path) -> list[Path]:
    """The files of rows in RUN/rows, by name; a folder that nobody may look into is an OSError, and not empty."""
    names = os.listdir(folder) if folder.is_dir() else ()
    return sorted(folder / name for name in names if name.endswith(".npz"))


def load_rows(folder: Path) -> list[Rows]:
    """The rows of every file in RUN/rows, each file read once.

    A file of the first form whose rows are in one of the new form is left out: whoever put them together was
    interrupted before the old file was removed.
    """
    parts = [load_file(path) for path in row_files(folder)]
    together = {key for part in parts if is_together(part) for key in _contents(part)}
    return [part for part in parts if is_together(part) or not _contents(part) <= together]


def load_file(path: Path) -> Rows:
    """The rows of one file; numbers that no evaluation gives, 0 slots or an F-ARI of 2, make it a DamagedFile."""
    rows = Rows.load(path)
    for name, least in _LEAST.items():
        numbers = rows.codes(name)
        if (wrong := numbers[(numbers < least) & (numbers != MISSING)]).size:
            raise _out_of_range(path, f"{name} {wrong[0]}, and the least is {least}")
    metrics, places = rows.places("metric")
    for place, name in enumerate(metrics):
        if (metric := all_metrics().get(name)) is not None:  # of one that is not known, any value
            low, high = metric.bounds[0] - _ROUNDING, min(metric.bounds[1] + _ROUNDING, _LARGEST)
            values = rows["value"][places == place]
            if (wrong := values[(values < low) | (values > high)]).size:
                raise _out_of_range(path, f"{name} {wrong[0]:g}, and it lies from {low:.3g} to {high:.3g}")
    return rows


def _out_of_range(path: Path, reason: str) -> DamagedFile:
    return DamagedFile(f"{path} is sealed but holds {reason}; evaluate the run again")


def is_together(rows: Rows) -> bool:
    """Whether these are the rows of a file of the new form."""
    return _BY_SLOTS in rows.header


def split_by_slots(rows: Rows) -> Iterator[tuple[int, Rows]]:
    """The rows of each K with a header of their own: how many scenes they have, and a hash of which."""
    by_slots = rows.header.get(_BY_SLOTS) or {}
    shared = {name: value for name, value in rows.header.items() if name != _BY_SLOTS}
    for (number,), part in rows.groups("slots"):
        yield number, part.with_header({**shared, **by_slots.get(str(number), {})})


def put_together(parts: Mapping[int, Rows], header: Mapping[str, Any]) -> Rows:
    """The rows of several K, in their order, as one file holds them; each has a header as `split_by_slots` gives."""
    of_slots = {str(k): {name: rows.header.get(name) for name in _OF_SCENES} for k, rows in sorted(parts.items())}
    return Rows.concat([rows for _, rows in sorted(parts.items())], {**header, _BY_SLOTS: of_slots})


def scenes_of(rows: Rows) -> list[dict[str, Any]]:
    """What a header says of the scenes of each K: how many, and a hash of which; different ones once each."""
    descriptions = (rows.header.get(_BY_SLOTS) or {}).values() or [{name: rows.header.get(name) for name in _OF_SCENES}]
    different: list[dict[str, Any]] = []
    for description in descriptions:
        if description not in different:
            different.append(description)
    return different


def _contents(rows: Rows) -> set[tuple[Any, Any]]:
    return {(dataset, number) for dataset in rows.unique("dataset") for number in rows.unique("slots")}
