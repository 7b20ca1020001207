"""`slotnorm report` on runs that lack something or are called something odd: files that say so, never an exception."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from made_up_page import NASTY
from made_up_rows import made_up, save
from parsed_page import Parsed
from slotnorm.cli import verbs
from slotnorm.evaluation.rows import Rows
from slotnorm.report.reading import read

pytestmark = pytest.mark.usefixtures("few_resamples")

NORMS = ("weighted_mean", "batch_norm")
SLOTS = (3, 5, 10, 15)


def reported(rows: Rows, folder: Path, **options: object) -> Parsed:
    """The page of the rows, reported by the verb without models; every other file of the report is there, too."""
    save(rows, folder / "runs", **options)
    return page_of(folder)


def page_of(folder: Path) -> Parsed:
    verbs.main(["report", str(folder / "runs"), "--no-models", "--out", str(folder / "out")])
    listed = json.loads((folder / "out" / "report.json").read_text())["files"]
    assert {"report.md", "index.html", "claims.md", "curves.csv", "effect.csv", "scores.csv", "rows.csv.gz"} <= set(
        listed
    )
    assert all((folder / "out" / name).is_file() for name in listed)
    return Parsed((folder / "out" / "index.html").read_text(encoding="utf-8"))


def test_one_run(tmp_path: Path) -> None:
    parsed = reported(made_up("toy", ["batch_norm"], [1], SLOTS, images=4), tmp_path)
    assert "toy has Batch Norm alone: there is nothing to compare it with." in parsed.text
    assert "There are no pictures of toy." in parsed.text


def test_one_number_of_slots(tmp_path: Path) -> None:
    parsed = reported(made_up("toy", NORMS, [1, 2], [5], images=4), tmp_path)
    assert "toy was tested with 5 slots alone: its curves are points." in parsed.text
    assert (tmp_path / "out" / "effect.csv").read_text().count("\n") == 1, "names of columns, and no effect"


def test_no_models(tmp_path: Path) -> None:
    parsed = reported(made_up("toy", NORMS, [1, 2], SLOTS, images=4), tmp_path)
    assert "There are no pictures of toy." in parsed.text
    assert "was not made yet, and models are not run" in parsed.text


def test_no_masks(tmp_path: Path) -> None:
    rows = made_up("toy", NORMS, [1, 2], SLOTS, images=4)
    parsed = reported(rows.where(metric="l2"), tmp_path)
    assert "There is no F-ARI of toy: its scenes have no true masks, or it was not scored." in parsed.text


def test_missing_sets(tmp_path: Path) -> None:
    rows = made_up("toy", NORMS, [1, 2], SLOTS, images=4)
    missing = (rows["dataset"] == "toy7") | ((rows["dataset"] == "toy4") & (rows["norm"] == "batch_norm"))
    parsed = reported(rows.take(~missing), tmp_path)
    assert "toy was not tested on toy7 (5 to 7 objects, more than in training)." in parsed.text
    assert "Batch Norm of toy was not tested on toy4." in parsed.text


def test_names_with_markup(tmp_path: Path) -> None:
    rows = made_up("toy", NORMS, [1], SLOTS, images=4).where(dataset="toy4").with_columns(dataset=NASTY)
    for folder in save(rows.with_columns(dataset="toy4"), tmp_path / "runs"):
        for path in (folder / "rows").glob("*.npz"):
            part = Rows.load(path)
            part.with_columns(dataset=NASTY).save(path)
        folder.rename(folder.with_name(f"=cmd|'c'!A1 <b>{folder.name} $x_1$ \\input"))
    parsed = page_of(tmp_path)
    assert len(parsed.all("script")) == 2
    assert not parsed.all("b", class_="")
    assert NASTY in parsed.text
    for path in (tmp_path / "out").rglob("*"):
        if path.suffix in (".md", ".svg"):
            assert "<script>alert" not in path.read_text(encoding="utf-8"), path.name


def with_odd_scores(value: float) -> Rows:
    """Made-up rows in which every score of batch norm is `value`."""
    rows = made_up("toy", NORMS, [1, 2], SLOTS, images=4).where(dataset="toy4")
    odd = (rows["metric"] != "visible") & (rows["norm"] == "batch_norm")
    return rows.with_columns(value=np.where(odd, value, rows["value"]))


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e30], ids=str)
def test_scores_that_no_evaluation_gives_leave_their_runs_out(tmp_path: Path, value: float) -> None:
    save(with_odd_scores(value), tmp_path / "runs")
    collection = read([tmp_path / "runs"])
    assert {run.norm for run in collection.runs} == set(NORMS) - {"batch_norm"}
    assert len(collection.left_out) == 2
    for run in collection.left_out:
        assert "is sealed but holds" in run.reason
        assert run.is_damaged


def test_scores_that_are_not_defined(tmp_path: Path) -> None:
    reported(with_odd_scores(np.nan), tmp_path)
    with open(tmp_path / "out" / "scores.csv", encoding="utf-8", newline="") as file:
        assert {line["norm"] for line in csv.DictReader(file)} == set(NORMS)


def test_rows_of_a_model_that_nobody_knows(tmp_path: Path) -> None:
    rows = made_up("toy", ["batch_norm"], [1], SLOTS, images=4).where(dataset="toy4")
    unknown = rows.with_columns(norm="mine", train_slots=-1, train_objects=-1, seed=-1, objects=-1)
    for folder in save(unknown.with_columns(norm="batch_norm", seed=1), tmp_path / "runs"):
        for path in (folder / "rows").glob("*.npz"):
            part = Rows.load(path)
            named = part.with_columns(norm="mine", seed=-1)
            named.save(path, {name: told for name, told in part.header.items() if name != "experiment"})
    parsed = page_of(tmp_path)
    assert "mine" in parsed.text


def test_one_scene_without_objects(tmp_path: Path) -> None:
    rows = made_up("toy", NORMS, [1], SLOTS, images=1)
    empty = rows.with_columns(
        objects=0,
        value=np.where(rows["metric"] == "visible", 0, np.where(rows["metric"] == "f_ari", np.nan, rows["value"])),
    )
    reported(empty, tmp_path)


def test_files_without_a_row_are_named_and_left_out(tmp_path: Path) -> None:
    empty, _ = save(made_up("toy", NORMS, [1], SLOTS, images=4), tmp_path / "runs")
    for path in (empty / "rows").glob("*.npz"):
        rows = Rows.load(path)
        rows.take(np.zeros(len(rows), dtype=bool)).save(path)
    parsed = page_of(tmp_path)
    assert f"Left out: {empty}: its files hold no rows; `slotnorm eval {empty}` makes them again" in parsed.text


def test_names_that_are_too_long_for_a_file(tmp_path: Path) -> None:
    for folder in save(made_up("toy", NORMS, [1], SLOTS, images=4), tmp_path / "runs"):
        for path in (folder / "rows").glob("*.npz"):
            rows = Rows.load(path)
            document = {**rows.header["experiment"], "name": 500 * "x"}
            rows.save(path, {**rows.header, "experiment": document})
    page_of(tmp_path)
    figures = sorted(path.name for path in (tmp_path / "out" / "figures").glob("x*-segmentation.svg"))
    assert [len(name) for name in figures] == [80 + len("-01234567-segmentation.svg")]
