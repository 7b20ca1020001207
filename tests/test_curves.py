"""Curves compared as data; their drawings parsed, and the same bytes every time."""

import csv
import dataclasses
import io
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from made_up_rows import made_up
from slotnorm import normalization
from slotnorm.errors import UserError
from slotnorm.evaluation.rows import Rows
from slotnorm.experiments import ABLATED, MAIN
from slotnorm.normalization import Normalization, normalizations
from slotnorm.report import curves
from slotnorm.report.appearance import looks, measure, ordered
from slotnorm.report.curves import Curve, Figure, curve, figures, shared_limits, to_csv
from slotnorm.report.drawing.curve_figures import draw
from slotnorm.report.scores import RunScores, summarize
from slotnorm.report.sections import Section, divide

pytestmark = pytest.mark.usefixtures("few_resamples")

SLOTS = (3, 7, 11, 21)


@pytest.fixture(scope="module")
def rows() -> Rows:
    return made_up("clevr-6-7", slots=SLOTS, images=24)


@pytest.fixture(scope="module")
def section(rows: Rows) -> Section:
    runs = [dataclasses.replace(run, failed=run.name == "clevr-6-7-batch_norm-2") for run in summarize(rows)]
    return divide(runs)[0]


def slow_mean(rows: Rows, run: str, dataset: str, metric: str, slots: int, objects: int | None = None) -> float:
    """The mean over images as one would write it down first."""
    visible = {}
    for i in range(len(rows)):
        if (rows["run"][i], rows["dataset"][i], rows["metric"][i]) == (run, dataset, "visible"):
            visible[rows["image"][i]] = rows["value"][i]
    total, count = 0.0, 0
    for i in range(len(rows)):
        if (rows["run"][i], rows["dataset"][i], rows["metric"][i], rows["slots"][i]) != (run, dataset, metric, slots):
            continue
        wanted = objects is None or rows["objects"][i] == objects
        if wanted and visible[rows["image"][i]] >= 2 and not math.isnan(rows["value"][i]):
            total, count = total + rows["value"][i], count + 1
    return total / count if count else math.nan


def test_a_curve_holds_median_range_and_every_run() -> None:
    values = {1: [0.9, 0.5], 2: [0.7, 0.6], 3: [0.8, 0.1]}
    parts = [
        Rows(run=f"r{seed}", norm="batch_norm", seed=seed, train_objects=6, train_slots=7, dataset="d", image=[0, 1],
             objects=3, slots=k, iterations=3, source="masks", metric="f_ari", value=[value, value])
        for seed, both in values.items() for k, value in zip((7, 11), both, strict=True)
    ]  # fmt: skip
    drawn = curve(summarize(Rows.concat(parts)), "f_ari", "d")
    assert drawn.x.tolist() == [7, 11]
    assert drawn.median.tolist() == [0.8, 0.5]
    assert drawn.low.tolist() == [0.7, 0.1]
    assert drawn.high.tolist() == [0.9, 0.6]
    assert drawn.deviation.tolist() == pytest.approx([0.1, 0.4])
    assert drawn.count.tolist() == [3, 3]
    assert {name: list(values) for name, values in drawn.runs.items()} == {
        "r1": [0.9, 0.5],
        "r2": [0.7, 0.6],
        "r3": [0.8, 0.1],
    }


def test_a_run_that_was_evaluated_at_fewer_slots_leaves_a_gap_and_not_a_zero(rows: Rows) -> None:
    short = rows.where(run="clevr-6-7-weighted_sum-1", slots=(3, 7))
    rest = rows.where(run="clevr-6-7-weighted_sum-2")
    drawn = curve(summarize(Rows.concat([short, rest])), "f_ari", "clevr6")
    assert drawn.x.tolist() == list(SLOTS)
    assert drawn.count.tolist() == [2, 2, 1, 1]
    assert np.isnan(drawn.runs["clevr-6-7-weighted_sum-1"][2:]).all()
    assert drawn.median[2] == drawn.runs["clevr-6-7-weighted_sum-2"][2]


def test_grouping_by_objects_agrees_with_a_slow_loop(rows: Rows) -> None:
    some = Rows.concat([rows.where(run="clevr-6-7-layer_norm-1", slots=11, metric=("f_ari", "visible"))])
    seen = np.where(some["metric"] == "visible", np.where(some["image"] % 5 == 0, 1.0, some["value"]), some["value"])
    seen[(some["metric"] == "f_ari") & (some["image"] % 7 == 0)] = np.nan
    some = some.with_columns(value=seen)
    drawn = curve(summarize(some), "f_ari", ("clevr6", "clevr10"), "objects", slots=11)
    assert len(drawn.x) > 4
    for count, value in zip(drawn.x.tolist(), drawn.median, strict=True):
        slow = slow_mean(some, "clevr-6-7-layer_norm-1", "clevr10", "f_ari", 11, count)
        assert value == pytest.approx(slow, abs=1e-12)
    against_slots = curve(summarize(some), "f_ari", "clevr6")
    assert against_slots.median[0] == pytest.approx(
        slow_mean(some, "clevr-6-7-layer_norm-1", "clevr6", "f_ari", 11), abs=1e-12
    )


def test_object_counts_come_from_the_last_set_that_has_them() -> None:
    def run(dataset: str, counts: list[int], value: float) -> Rows:
        return Rows(
            run="r", norm="batch_norm", seed=1, train_slots=5, dataset=dataset, protocol="paper",
            image=np.arange(len(counts)), objects=counts, slots=8, iterations=3, source="masks", metric="f_ari",
            value=np.full(len(counts), value),
        )  # fmt: skip

    rows = Rows.concat([run("toy4", [2, 3, 4], 0.9), run("toy7", [4, 5, 7], 0.5)])
    drawn = curve(summarize(rows), "f_ari", ("toy4", "toy7"), "objects", slots=8)
    assert dict(zip(drawn.x.tolist(), drawn.median.tolist(), strict=True)) == {2: 0.9, 3: 0.9, 4: 0.5, 5: 0.5, 7: 0.5}


def test_the_figures_are_the_papers_six_panels_and_three_of_l2(section: Section) -> None:
    segmentation, reconstruction = figures(section)
    titles = [[panel.title for panel in row] for row in segmentation.rows]
    assert titles == [
        ["F-ARI (↑) on clevr6", "F-ARI (↑) on clevr10", "F-ARI (↑) with 11 slots on clevr10"],
        ["ARI (↑) on clevr6", "ARI (↑) on clevr10", "ARI (↑) with 11 slots on clevr10"],
    ]
    assert [[panel.title for panel in row] for row in reconstruction.rows] == [
        ["ℓ² loss (↓) on clevr6", "ℓ² loss (↓) on clevr10", "ℓ² loss (↓) with 11 slots on clevr10"]
    ]
    panel = segmentation.rows[0][0]
    assert list(panel.curves) == list(MAIN)
    assert (panel.train_slots, panel.train_objects, panel.against) == (7, 6, "slots")
    assert segmentation.rows[0][2].curves["batch_norm"].x.tolist() == list(range(3, 11))


def test_failed_runs_are_left_out_on_request_and_counted(section: Section) -> None:
    everything, kept = figures(section)[0], figures(section, section.without_failed())[0]
    assert everything.counts["batch_norm"] == "3 runs"
    assert kept.counts == {**everything.counts, "batch_norm": "2 of 3 runs"}
    assert len(everything.rows[0][0].curves["batch_norm"].runs) == 3
    assert set(kept.rows[0][0].curves["batch_norm"].runs) == {"clevr-6-7-batch_norm-1", "clevr-6-7-batch_norm-3"}
    assert everything.name != kept.name


def test_attention_is_drawn_apart_where_both_were_scored() -> None:
    rows = made_up("clevr-6-7", ["batch_norm"], [1], (7, 11), images=6, sources=("masks", "attention"))
    by_name = {figure.name: figure for figure in figures(divide(summarize(rows))[0])}
    assert [name.split()[-1] for name in by_name] == ["segmentation", "attention", "reconstruction"]
    kinds = ("segmentation", "attention")
    masks, attention = (by_name[f"clevr-6-7 {kind}"].rows[0][0].curves["batch_norm"] for kind in kinds)
    assert (masks.median - attention.median).tolist() == pytest.approx([0.05, 0.05])


def precision_rows(study: str, norms: tuple[str, ...]) -> Rows:
    parts = []
    for norm in norms:
        for k in (5, 10):
            for place, metric in enumerate(("ap@inf", "ap@1", "ap@0.5", "ap@0.25", "ap@0.125")):
                parts.append(Rows(
                    run=f"{study}-{norm}-1", norm=norm, seed=1, train_objects=4, train_slots=5, slots=k,
                    dataset="toy-properties4", iterations=3, source="attention", metric=metric, value=0.9 - 0.1 * place,
                ))  # fmt: skip
            parts.append(Rows(
                run=f"{study}-{norm}-1", norm=norm, seed=1, train_objects=4, train_slots=5, dataset="toy-properties4",
                image=[0, 1], objects=[2, 3], slots=k, iterations=3, source="attention", metric="f_ari",
                value=[0.5, 0.7],
            ))  # fmt: skip
    return Rows.concat(parts)


def test_property_figures_are_f_ari_and_five_distances_with_the_main_variants_beside_the_ablation() -> None:
    rows = Rows.concat([precision_rows("toy-properties", MAIN), precision_rows("toy-ablation", ABLATED)])
    properties, ablation = divide(summarize(rows))
    segmentation, precision = figures(properties)
    assert segmentation.rows[0][0].source == "attention"
    shown = [[panel.metric for panel in row] for row in precision.rows]
    assert shown == [["ap@inf", "ap@1", "ap@0.5"], ["ap@0.25", "ap@0.125"]]
    assert precision.rows[0][1].title == "mAP@1.0 (↑) on toy-properties4"
    assert precision.rows[0][1].curves["batch_norm"].median.tolist() == [0.8, 0.8]
    assert list(figures(ablation)[0].rows[0][0].curves) == [*MAIN, *ABLATED]
    assert {run.norm for run in ablation.runs} == set(ABLATED)


def test_colours_order_and_labels_come_from_the_registry() -> None:
    by_norm = looks(normalizations())
    assert list(by_norm) == list(normalizations())
    assert [look.label for look in by_norm.values()] == [scheme.label for scheme in normalizations().values()]
    assert (
        len({look.color for look in by_norm.values()})
        == len({look.marker for look in by_norm.values()})
        == len(by_norm)
    )
    assert [look.dashed for look in by_norm.values()] == [not scheme.keeps_mass for scheme in normalizations().values()]
    assert looks(["batch_norm"])["batch_norm"] == by_norm["batch_norm"]  # whoever else is drawn
    assert ordered(["zz", "batch_norm", "aa", "weighted_mean"]) == ["weighted_mean", "batch_norm", "aa", "zz"]


@pytest.fixture
def new_normalization() -> Iterator[type[Normalization]]:
    class Drawn(Normalization):
        """u = 0: for this test alone."""

        name, label, where, keeps_mass = "drawn_in_a_test", "Drawn", "tests", False

    yield Drawn
    del normalization._registry["drawn_in_a_test"]


def test_a_new_normalization_is_drawn_without_another_change(new_normalization: type[Normalization]) -> None:
    look = looks(["drawn_in_a_test"])["drawn_in_a_test"]
    assert (look.label, look.dashed) == ("Drawn", True)


def test_metrics_say_which_way_is_better() -> None:
    assert measure("l2").arrow == "↓"
    assert measure("f_ari").arrow == measure("something new").arrow == "↑"


@pytest.fixture(scope="module")
def drawn(section: Section) -> tuple[Figure, dict[str, bytes]]:
    figure = figures(section, section.without_failed())[0]
    return figure, draw(figure)


def test_a_figure_is_drawn_as_svg_pdf_and_png_with_one_legend(drawn: tuple[Figure, dict[str, bytes]]) -> None:
    _, files = drawn
    svg = files["svg"].decode()
    ElementTree.fromstring(svg)
    texts = [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"Batch Norm (2 of 3 runs)", "Baseline (3 runs)", "slots K in evaluation", "trained"} <= set(texts)
    assert sum("Batch Norm" in text for text in texts) == 1
    with Image.open(io.BytesIO(files["png"])) as image:
        assert image.size[0] > 1500
        corner = np.asarray(image.convert("RGB"))[0, 0]
    assert corner.tolist() == [255, 255, 255]
    assert files["pdf"].startswith(b"%PDF-1.5")


def test_the_same_figure_has_the_same_bytes_and_no_date(drawn: tuple[Figure, dict[str, bytes]]) -> None:
    import matplotlib

    figure, files = drawn
    before = dict(matplotlib.rcParams)
    small = dataclasses.replace(figure, rows=(figure.rows[0][:1],))
    assert draw(small) == draw(small)
    assert not any(word in files[kind] for kind in ("svg", "pdf") for word in (b"date", b"Date"))
    assert dict(matplotlib.rcParams) == before


def test_one_run_with_gaps_and_markup_in_its_set_is_drawn() -> None:
    rows = made_up("clevr-6-7", ["batch_norm"], [1], (7, 9, 11), images=4).where(dataset="clevr6")
    value = np.where((rows["slots"] == 9) & (rows["metric"] != "visible"), np.nan, rows["value"])
    rows = rows.with_columns(value=value, dataset="<b>$x_1$</b>")
    (run,) = summarize(rows.where(image=range(4)).take(rows["dataset"] != ""))
    section = divide([run])[0]
    svg = draw(figures(section)[0])["svg"].decode()
    ElementTree.fromstring(svg)
    assert "<b>" not in svg


@pytest.mark.parametrize(
    ("metric", "few", "inside"), [("f_ari", 0.9, True), ("f_ari", 0.1, False), ("l2", 0.1, True), ("l2", 0.9, False)]
)
def test_fewer_slots_than_in_training_leave_the_frame_only_when_they_score_worse(
    metric: str, few: float, inside: bool
) -> None:
    rows = made_up("clevr-6-7", ["batch_norm"], [1], (3, 7, 11), images=4).where(metric=("visible", metric))
    value = np.where(rows["metric"] == "visible", rows["value"], np.where(rows["slots"] == 3, few, 0.5))
    (section,) = divide(summarize(rows.with_columns(value=value)))
    panels = next(row for figure in figures(section) for row in figure.rows if row[0].metric == metric)
    low, high = shared_limits(panels)[0]
    assert low < 0.5 < high
    assert (low < few < high) is inside


def test_a_long_title_stays_on_the_paper() -> None:
    rows = made_up("clevr-6-7", ["batch_norm"], [1], (7, 11), images=4).where(dataset="clevr6")
    (run,) = summarize(rows.with_columns(dataset="a-set-whose-name-is-wider-than-the-panel-it-is-shown-in"))
    drawn = draw(figures(divide([run])[0])[0])["png"]
    with Image.open(io.BytesIO(drawn)) as image:
        edge = np.asarray(image.convert("L"))[:, -3:]
    assert edge.min() == 255


def test_the_data_of_all_curves_is_written_as_csv(section: Section) -> None:
    figure = figures(section)[0]
    lines = list(csv.DictReader(io.StringIO(to_csv([("a section", "all", figure)]))))
    points = sum(len(curve.x) for row in figure.rows for panel in row for curve in panel.curves.values())
    assert len(lines) == points
    wanted = {"norm": "layer_norm", "metric": "ari", "datasets": "clevr6", "against": "slots", "x": "11"}
    line = next(line for line in lines if wanted.items() <= line.items())
    drawn = figure.rows[1][0].curves["layer_norm"]
    place = drawn.x.tolist().index(11)
    assert float(line["median"]) == pytest.approx(drawn.median[place], rel=1e-5)
    assert [float(value) for value in line["values"].split()] == pytest.approx(
        [float(values[place]) for values in drawn.runs.values()], rel=1e-5
    )
    assert (line["section"], line["runs"], line["count"]) == ("a section", "all", "3")


def run_scores(**changes: Any) -> RunScores:
    rows = made_up("clevr-6-7", ["batch_norm"], [1], (7,), images=3)
    (run,) = summarize(rows)
    return dataclasses.replace(run, **changes)


def test_runs_that_differ_in_more_than_normalization_and_seed_are_put_in_sections() -> None:
    document = {"name": "toy", "norm": "batch_norm", "seed": 1, "slots": 5, "recipe": {"steps": 6000, "clip": 1.0}}
    longer = run_scores(facts={"experiment": document})
    shorter = run_scores(name="b", facts={"experiment": {**document, "recipe": {"steps": 20, "clip": 1.0}}})
    other = run_scores(name="c", facts={"experiment": {**document, "name": "own"}})
    assert [section.title for section in divide([other, longer, shorter])] == [
        "toy (recipe.steps 6000)", "toy (recipe.steps 20)", "own",
    ]  # fmt: skip


def test_the_same_run_twice_is_refused() -> None:
    first, second = run_scores(facts={"path": "a/x"}), run_scores(facts={"path": "b/x"})
    with pytest.raises(UserError, match="a/x and b/x are both clevr-6-7 with batch_norm and seed 1; give one of them"):
        divide([first, second])


def test_rows_of_two_runs_under_one_name_are_refused() -> None:
    rows = made_up("clevr-6-7", ["batch_norm"], [1, 2], (7,), images=3).with_columns(run="x")
    with pytest.raises(UserError, match="the rows of x have seed 1 and 2, but a run has one"):
        summarize(rows)


def test_a_section_says_what_is_not_as_registered() -> None:
    from slotnorm.experiments import experiment
    from slotnorm.storage.serialization import to_document

    document = to_document(experiment("toy", norm="batch_norm"))
    document["recipe"]["steps"] = 20
    (section,) = divide([run_scores(facts={"experiment": document})])
    assert section.changes == (f"recipe.steps 20 instead of {experiment('toy').recipe.steps}",)


def test_a_field_that_documents_leave_out_at_its_default_is_said_where_sections_differ() -> None:
    from slotnorm.experiments import experiment
    from slotnorm.storage.serialization import to_document

    registered = experiment("toy")
    learned = dataclasses.replace(registered, recipe=dataclasses.replace(registered.recipe, initialization="learned"))
    runs = [
        run_scores(name=name, facts={"experiment": to_document(asked)})
        for name, asked in (("a", registered), ("b", learned))
    ]
    gaussian, other = divide(runs)
    assert gaussian.changes == ()
    assert gaussian.title == "toy (recipe.initialization gaussian)"
    assert other.title == "toy (recipe.initialization learned)"
    assert other.changes == ("recipe.initialization learned instead of gaussian",)


def test_an_empty_curve_has_no_points() -> None:
    assert curve([], "f_ari", "clevr6").x.size == 0
    drawn: Curve = curve([run_scores()], "ap@1", "clevr6")
    assert not drawn.count.any()


def test_a_figure_that_fails_or_takes_a_name_is_one_sentence(section: Section, monkeypatch: pytest.MonkeyPatch) -> None:
    panels = [figures(section)[0].rows[0]]
    for given, sentence in (
        (
            lambda: 1 / 0,
            r"the figure mine fails with ZeroDivisionError: division by zero \(test_curves.py, line \d+\); mend",
        ),
        (lambda: "no figure", "the figure mine fails with ValueError: too many values to unpack"),
        (lambda: ("mine", "A caption.", [["no panel"]]), "the figure mine must give its name, its caption and rows of"),
        (
            lambda: ("segmentation", "A caption.", panels),
            "two figures are called 'segmentation'; give the metric's `figure`",
        ),
        (lambda: ("diagnostics", "A caption.", panels), "two figures are called 'diagnostics'"),
    ):

        def mine(section: Section, given: Any = given) -> Any:
            return given()

        monkeypatch.setattr(curves, "_section_figures", {"mine": mine})
        with pytest.raises(UserError, match=sentence):
            figures(section)
    monkeypatch.setattr(curves, "_section_figures", {"mine": lambda section: ("mine", "A caption.", panels)})
    assert figures(section)[-1].caption == "A caption."
