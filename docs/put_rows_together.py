"""Put the published rows of the first form, a file per set and K, together: python docs/put_rows_together.py results.

Every run's rows stay the same to the last bit; a set whose files were not all made alike is left as it is and named.
"""

import sys
from pathlib import Path

from slotnorm.evaluation import row_files
from slotnorm.evaluation.rows import Rows

_OF_SCENES = ("num_scenes", "images")


def put_together(folder: Path) -> None:
    """Do so in one RUN/rows."""
    sets: dict[str, dict[Path, Rows]] = {}
    for path in row_files.row_files(folder):
        rows = Rows.load(path)
        if not row_files.is_together(rows):
            (dataset,) = rows.unique("dataset")
            sets.setdefault(dataset, {})[path] = rows
    for dataset, parts in sets.items():
        headers = [{k: v for k, v in rows.header.items() if k not in _OF_SCENES} for rows in parts.values()]
        by_slots = {number: part for rows in parts.values() for number, part in row_files.split_by_slots(rows)}
        if any(header != headers[0] for header in headers) or (folder / f"{dataset}.npz").exists():
            print(f"{folder}: the files of {dataset} were not all made alike, and stay")
            continue
        whole = row_files.put_together(by_slots, next(iter(parts.values())).header)
        whole.save(folder / f"{dataset}.npz")
        again = Rows.load(folder / f"{dataset}.npz")
        assert again.equals(Rows.concat([rows for _, rows in sorted(by_slots.items())]))
        for path in parts:
            path.unlink()


if __name__ == "__main__":
    for root in map(Path, sys.argv[1:]):
        for folder in sorted(root.rglob("rows")):
            put_together(folder)
