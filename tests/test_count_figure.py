"""How many objects: the count's error beside the trivial guess, as figure, table, files and page."""

import csv
import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest

from made_up_rows import made_up, save
from slotnorm.evaluation.rows import Rows
from slotnorm.experiments import experiment
from slotnorm.report.appearance import GUESS
from slotnorm.report.contents import Report, compose
from slotnorm.report.count_figure import WORDS, Counting, counting, guessed_number
from slotnorm.report.curves import to_csv
from slotnorm.report.drawing.choice import Choice
from slotnorm.report.page import page
from slotnorm.report.prose import report_page
from slotnorm.report.reading import read
from slotnorm.report.scores import summarize
from slotnorm.report.sections import Section, divide
from slotnorm.report.tables import to_markdown
from slotnorm.storage.serialization import to_document

pytestmark = pytest.mark.usefixtures("few_resamples")

NORMS = ("weighted_mean", "batch_norm")
SLOTS = (5, 11, 15)


def with_counts(rows: Rows) -> Rows:
    """The same, and counts that are off by one, with batch norm, or by two."""
    scored = rows.where(metric="f_ari")
    return Rows.concat(
        [rows, scored.with_columns(metric="count", value=np.where(scored["norm"] == NORMS[1], 1.0, 2.0))]
    )


@pytest.fixture(scope="module")
def rows() -> Rows:
    return with_counts(made_up("toy", NORMS, (1, 2), SLOTS, images=30))


@pytest.fixture(scope="module")
def section(rows: Rows) -> Section:
    facts = {"experiment": to_document(experiment("toy"))}
    runs = [dataclasses.replace(run, failed=run.name == "toy-batch_norm-2", facts=facts) for run in summarize(rows)]
    return divide(runs)[0]


def counted(section: Section, leave_out_failed: bool = False) -> Counting:
    shown = counting(section, leave_out_failed)
    assert shown is not None
    return shown


def objects_on(rows: Rows, dataset: str) -> np.ndarray:
    """Numbers of objects of the scenes that are scored: all have two or more."""
    return rows.where(run="toy-weighted_mean-1", dataset=dataset, metric="count", slots=5)["objects"]


def test_the_guess_is_the_middle_of_the_generated_scenes_or_the_mean_of_test_scenes_as_in_training(rows, section):
    assert guessed_number(section) == 3.0  # 2 to 4 objects
    (bare,) = divide(summarize(rows))  # rows that do not say their experiment
    assert guessed_number(bare) == pytest.approx(objects_on(rows, "toy4").mean())
    (of_more,) = divide(summarize(rows.with_columns(train_objects=7)))  # of which the first set has too few
    assert guessed_number(of_more) == pytest.approx(objects_on(rows, "toy7").mean())


def test_errors_are_drawn_against_slots_and_objects_with_the_guess_beside_them(rows, section):
    against_slots, against_objects = counted(section).figure.rows
    assert [panel.datasets for panel in against_slots] == [("toy4",), ("toy7",), ("toy10",)]
    assert [panel.slots for panel in against_objects] == list(SLOTS)
    for panel in (*against_slots, *against_objects):
        assert list(panel.curves) == [*NORMS, GUESS]
        assert set(panel.curves["weighted_mean"].median) == {2.0}
        assert set(panel.curves["batch_norm"].median) == {1.0}
    for panel in against_slots:
        mean = np.abs(objects_on(rows, panel.datasets[0]) - 3).mean()
        assert panel.curves[GUESS].median == pytest.approx([mean] * 3)
    for panel in against_objects:
        assert panel.curves[GUESS].median.tolist() == [abs(x - 3) for x in panel.curves[GUESS].x.tolist()]


def test_the_table_compares_normalizations_with_the_guess(rows, section):
    table = counted(section).table
    assert [part.title for part in table.parts][:3] == [
        "toy4, 5 slots (training K)",
        "toy4, 11 slots",
        "toy4, 15 slots",
    ]
    assert len(table.parts) == 9
    few = np.abs(objects_on(rows, "toy4") - 3).mean()
    many = np.abs(objects_on(rows, "toy10") - 3).mean()
    for part, error, best in ((table.parts[0], few, "Guess"), (table.parts[-1], many, "Batch Norm")):
        assert [line.cells[0].spread.median for line in part.lines] == pytest.approx([2, 1, error])
        assert [line.label for line in part.lines if line.cells[0].best_in_section] == [best]
    assert few < 1, "a guess may be best, and is marked so"
    text = to_markdown(table)
    assert "| | runs | count error ↓ |" in text
    assert f"| Guess | always 3 | {many:.3f} |" in text


def test_failed_runs_are_left_out_of_it(section):
    kept = counted(section, leave_out_failed=True)
    assert kept.figure.counts["batch_norm"] == "1 of 2 runs"
    assert list(kept.figure.rows[0][0].curves["batch_norm"].runs) == ["toy-batch_norm-1"]
    assert kept.table.parts[0].lines[1].runs == "1 of 2 runs"


def test_rows_without_counts_have_neither(rows):
    (section,) = divide(summarize(rows.where(metric=["visible", "f_ari"])))
    assert counting(section) is None


def test_runs_that_were_counted_on_fewer_sets_and_slots_are_shown_as_far_as_they_go(rows):
    first = rows.where(run="toy-weighted_mean-1")
    kept = first.where(metric="count", dataset="toy7", slots=[5, 15])
    (section,) = divide(summarize(Rows.concat([first.where(metric=["visible", "f_ari"]), kept])))
    shown = counted(section)
    assert [panel.datasets for row in shown.figure.rows for panel in row] == [("toy7",)] * 3
    assert [part.title for part in shown.table.parts] == ["toy7, 5 slots (training K)", "toy7, 15 slots"]


def test_a_choice_of_normalizations_keeps_the_guess_but_never_alone(section):
    figure = counted(section).figure
    chosen = Choice(norms=("batch_norm",)).of(figure).figure
    assert chosen is not None
    assert list(chosen.rows[0][0].curves) == ["batch_norm", GUESS]
    assert list(chosen.counts) == ["batch_norm", GUESS]
    assert Choice(norms=("layer_norm",)).of(figure).figure is None
    assert Choice(metrics=("f_ari",)).of(figure).figure is None


@pytest.fixture(scope="module")
def report(rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder: Path = tmp_path_factory.mktemp("runs")
    save(rows, folder)
    return compose(read([folder]), with_theory=False)


def test_a_report_has_it_in_its_words_its_data_and_its_page(report):
    text = report_page(report)
    assert "### How many objects?" in text
    assert "](figures/toy-count.svg)" in text
    assert "| Guess | always 3 |" in text
    study = report.sections[0].results.table
    assert study is not None
    assert "count" not in study.metrics, "it has a table of its own"
    figures = [("toy", which, figure) for which, figure in report.sections[0].results.all_figures()]
    lines = [line for line in csv.DictReader(io.StringIO(to_csv(figures))) if line["metric"] == "count"]
    assert {line["norm"] for line in lines} == {*NORMS, GUESS}
    html = page.render(report)
    assert WORDS.split(":")[0] in html
    assert '"label":"Guess"' in html.replace('": "', '":"')
