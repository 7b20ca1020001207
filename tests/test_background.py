"""Who holds the background: masks whose numbers are known by hand, models against evaluation, the figure as data."""

import csv
import dataclasses
import io
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch.nn.functional import interpolate

import tiny
from made_up_page import HELD, HELD_METRICS, made_up_diagnosis, made_up_report
from made_up_rows import made_up
from slotnorm.data import Builder, Scenes
from slotnorm.evaluation import label_maps
from slotnorm.evaluation.background import DIVISORS, measure_background
from slotnorm.evaluation.diagnosis import SOURCE, VERSION, diagnose
from slotnorm.evaluation.rows import Rows
from slotnorm.evaluation.scoring import score
from slotnorm.experiments import MAIN
from slotnorm.models import SlotModel, build
from slotnorm.report import curves, latex
from slotnorm.report.background_figure import ON_PATHS, ON_SLOTS, background
from slotnorm.report.contents import Report
from slotnorm.report.curves import PathPanel
from slotnorm.report.drawing.curve_figures import draw
from slotnorm.report.prose import report_page
from slotnorm.report.scores import summarize
from slotnorm.report.sections import Section, divide
from slotnorm.report.tables import to_csv, to_markdown

pytestmark = pytest.mark.usefixtures("few_resamples")

TRUE = [[0, 0, 1, 1], [0, 0, 2, 2]]


def by_hand(held: float = 0.9) -> torch.Tensor:
    """Masks (1, 3, 2, 4): slot 0 has `held` of the background and wins a pixel of each object, one more closely."""
    background = [held, 0.6 * (1 - held), 0.4 * (1 - held)]
    places = {
        (0, 2): [0.5, 0.4, 0.1], (0, 3): [0.1, 0.8, 0.1],
        (1, 2): [0.6, 0.15, 0.25], (1, 3): [0.1, 0.1, 0.8],
    }  # fmt: skip
    rows = [[places.get((row, column), background) for column in range(4)] for row in range(2)]
    return torch.tensor(rows).permute(2, 0, 1)[None]


def test_the_numbers_are_those_worked_out_by_hand() -> None:
    values = {name: float(value) for name, value in measure_background(by_hand(), torch.tensor([TRUE])).items()}
    assert list(values) == list(HELD_METRICS)
    assert values["background_share"] == pytest.approx(0.9)
    assert values["foreground_taken"] == 0.5
    # slots of the four foreground pixels: 0 1 0 2, then 1 1 0 2, then 1 1 2 2; the truth is 1 1 2 2
    assert values["f_ari/1"] == pytest.approx(-2 / 7)
    assert values["f_ari/2"] == pytest.approx(4 / 7)
    assert values["f_ari/3"] == 1.0
    assert values["f_ari/10"] == 1.0


def test_each_image_has_its_own_slot_of_the_background() -> None:
    other = by_hand(0.5)[:, [2, 0, 1]]
    both = torch.cat([by_hand(), other])
    measured = measure_background(both, torch.tensor([TRUE, TRUE]))
    assert measured["background_share"].tolist() == pytest.approx([0.9, 0.5])
    assert measured["foreground_taken"].tolist() == [0.5, 0.5]
    for divisor in DIVISORS:
        assert len(set(measured[f"f_ari/{divisor}"].tolist())) == 1
    assert torch.equal(both[1:], other), "masks are left as they were"


def test_what_an_image_does_not_have_is_not_a_number() -> None:
    nothing, everything = torch.zeros(1, 2, 4, dtype=torch.int64), torch.ones(1, 2, 4, dtype=torch.int64)
    bare = measure_background(by_hand(), nothing)
    assert math.isnan(bare["foreground_taken"])
    assert math.isnan(bare["f_ari/3"])
    assert float(bare["background_share"]) > 0.5
    full = measure_background(by_hand(), everything)
    assert math.isnan(full["background_share"])
    assert not math.isnan(full["foreground_taken"])


def test_masks_over_tokens_are_scaled_and_small_maps_are_not() -> None:
    generator = torch.Generator().manual_seed(1)
    masks = torch.rand(5, 4, 16, generator=generator).softmax(1)
    true = torch.randint(0, 4, (5, 8, 8), generator=generator)
    large = interpolate(masks.reshape(5, 4, 4, 4), (8, 8), mode="bilinear", align_corners=False)
    scaled, maps = measure_background(masks, true), measure_background(masks.reshape(5, 4, 4, 4), true)
    for measured, whole, compared in (
        (scaled, large, true),
        (maps, masks.reshape(5, 4, 4, 4), true[:, ::2, ::2]),
    ):
        for image in range(5):
            empty, labels = (compared[image] == 0).numpy(), compared[image].numpy()
            mass = whole[image].numpy()[:, empty].sum(1)
            slot = int(mass.argmax())
            assert float(measured["background_share"][image]) == pytest.approx(mass.max() / mass.sum(), rel=1e-5)
            won = (whole[image].argmax(0).numpy()[~empty] == slot).mean()
            assert float(measured["foreground_taken"][image]) == pytest.approx(won)
            for divisor in DIVISORS:
                weaker = whole[image].clone()
                weaker[slot] /= divisor
                expected = adjusted_rand_score(labels[~empty], weaker.argmax(0).numpy()[~empty])
                assert float(measured[f"f_ari/{divisor}"][image]) == pytest.approx(expected)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return tiny.build_scenes(tmp_path_factory.mktemp("scenes") / "set", 10)


def diagnosed(model: SlotModel, scenes: Scenes) -> Rows:
    return diagnose(model, scenes, (2, 4), 4, run="r", norm="weighted_sum", seed=1, dataset="toy4")


@pytest.mark.parametrize(
    ("kind", "source"), [(tiny.IMAGES, "masks"), (tiny.FEATURES, "masks"), (tiny.PROPERTIES, "attention")]
)
def test_a_diagnosis_measures_it_on_what_evaluation_scores(scenes: Scenes, kind: Any, source: str) -> None:
    model = build(tiny.experiment(model=kind))
    rows, scored = diagnosed(model, scenes), score(model, scenes, (4, 12), source=source)
    assert rows.header["version"] == VERSION
    for ours, theirs in (("f_ari/1", "f_ari"), ("visible", "visible")):
        mine, other = rows.where(metric=ours), scored.where(metric=theirs)
        assert mine.unique("slots") == [4, 12], "the training K and three times it"
        assert mine.unique("source") == [SOURCE]
        for k in (4, 12):
            pairs = [
                dict(zip(rows["image"].tolist(), rows["value"].tolist(), strict=True))
                for rows in (mine.where(slots=k), other.where(slots=k))
            ]
            assert len(pairs[0]) == len(scenes)
            assert pairs[0] == pytest.approx(pairs[1], nan_ok=True)
    shares = rows.where(metric="background_share", slots=12)["value"]
    assert (shares >= 1 / 12 - 1e-6).all()
    assert (shares <= 1).all()


def test_scenes_without_masks_have_no_background_to_measure(tmp_path: Path) -> None:
    images = np.zeros((4, tiny.SIZE, tiny.SIZE, 3), np.uint8)
    with Builder(tmp_path / "set", {"images": (images.shape[1:], "uint8")}, 4, {"made for": "tests"}) as builder:
        builder.append(counts=np.full(4, 2), images=images)
        bare = builder.finish()
    rows = diagnosed(build(tiny.experiment()), bare)
    assert not len(rows.where(metric=HELD_METRICS))
    assert len(rows.where(metric="occupied")) == 2 * 4


@pytest.fixture(scope="module")
def report() -> Report:
    return made_up_report(scenes=1)  # weighted_sum's second seed failed


@pytest.fixture(scope="module")
def section(report: Report) -> Section:
    return report.sections[0].section


def test_paths_are_the_curves_of_both_scores_from_the_training_k_on(report: Report, section: Section) -> None:
    held = report.sections[0].results.background
    assert held is not None
    assert held.words == (ON_PATHS, ON_SLOTS)
    few, many, most = held.figure.rows[0]
    assert isinstance(few, PathPanel)
    assert [panel.datasets for panel in (few, many, most)] == [("toy4",), ("toy7",), ("toy10",)]
    assert few.marked == (5, 10, 15)
    assert list(few.curves) == list(few.across) == list(MAIN)
    for metric, shown in (("f_ari", few.curves), ("ari", few.across)):
        for norm, curve in shown.items():
            whole = curves.curve(section.of(norm), metric, "toy4")
            kept = (whole.x >= 5) & (whole.x <= 15)
            assert curve.x.tolist() == list(range(5, 16))
            for name in ("median", "low", "high", "deviation", "count"):
                np.testing.assert_array_equal(getattr(curve, name), getattr(whole, name)[kept])
    assert curves.path_axis(few) == "ARI (hollow: 5 slots; filled: 10, 15)"


def test_slots_and_divisors_are_what_the_diagnosis_says(report: Report) -> None:
    held = report.sections[0].results.background
    assert held is not None
    share, taken = held.figure.rows[1]
    for place, panel in enumerate((share, taken)):
        for norm, curve in panel.curves.items():
            assert curve.x.tolist() == [5, 15]
            assert curve.high.tolist() == pytest.approx([values[place] for values in HELD[norm]])  # seed 1
            assert curve.median.tolist() == pytest.approx([0.99 * values[place] for values in HELD[norm]])
    for at, panel in enumerate(held.figure.rows[2]):
        assert panel.slots == (5, 15)[at]
        for norm, curve in panel.curves.items():
            assert curve.x.tolist() == list(DIVISORS)
            assert curve.high.tolist() == pytest.approx(HELD[norm][at][2:])
            assert curve.count.tolist() == [3, 3, 3, 3]


def test_failed_runs_are_left_out_of_all_of_it(report: Report) -> None:
    kept = report.sections[0].results.background_without_failed
    assert kept is not None
    names = {name for row in kept.figure.rows for panel in row for name in panel.curves["weighted_sum"].runs}
    assert names == {"toy-weighted_sum-1", "toy-weighted_sum-3"}
    assert kept.figure.counts["weighted_sum"] == "2 of 3 runs"
    assert kept.table is not None
    line = kept.table.parts[0].lines[2]
    assert line.runs == "2 of 3 runs"
    assert line.cells[2].spread.median == pytest.approx(0.95 * 0.99)  # of seeds 1 and 3: the mean of 1 and 0.98


def test_the_table_has_the_scores_and_what_was_measured(report: Report) -> None:
    both = report.sections[0].results
    assert both.background is not None
    table = both.background.table
    assert table is not None
    assert table.metrics == ("f_ari", "ari", *HELD_METRICS)
    assert [part.title for part in table.parts] == ["toy4, 5 slots (training K)", "toy4, 15 slots"]
    scores = next(part for part in both.table.parts if part.title == "toy4, 15 slots")  # type: ignore[union-attr]
    for at, part in enumerate(table.parts):
        for line in part.lines:
            medians = [cell.spread.median for cell in line.cells[2:]]
            assert medians == pytest.approx([0.99 * value for value in HELD[line.norm][at]])
    for line, other in zip(table.parts[1].lines, scores.lines, strict=True):
        assert [cell.spread for cell in line.cells[:2]] == [cell.spread for cell in other.cells[:2]]
    best = [line.norm for line in table.parts[1].lines if line.cells[3].best_in_section]
    assert best == ["batch_norm"], "the less foreground is taken the better"
    assert "| F-ARI ÷10 ↑ |" in to_markdown(table)
    assert "<u>0.059 ± 0.001</u>" in to_markdown(table)
    assert r"F-ARI $\div$10 ($\uparrow$)" in latex.table("tables/toy-background", table)
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    wanted = {"section": "toy4, 15 slots", "norm": "batch_norm", "metric": "f_ari/3"}
    (cell,) = [line for line in lines if wanted.items() <= line.items()]
    assert float(cell["high"]) == pytest.approx(0.95)


def test_a_small_share_keeps_three_decimals(section: Section) -> None:
    diagnosis = made_up_diagnosis(section)
    tiny_shares = {norm: dataclasses.replace(curve, runs={name: values / 1e4 for name, values in curve.runs.items()})
                   for norm, curve in diagnosis.curves["foreground_taken"].items()}  # fmt: skip
    diagnosis = dataclasses.replace(diagnosis, curves={**diagnosis.curves, "foreground_taken": tiny_shares})
    held = background(section, diagnosis)
    assert held is not None
    assert "<u>0.000 ± 0.000</u>" in to_markdown(held.table)  # type: ignore[arg-type]


def test_without_a_diagnosis_the_paths_are_shown_alone(section: Section) -> None:
    held = background(section, None)
    assert held is not None
    assert [len(row) for row in held.figure.rows] == [3]
    assert held.table is None
    assert held.words == (ON_PATHS,)
    ElementTree.fromstring(draw(held.figure)["svg"])


def test_without_ari_only_what_was_measured_is_shown(section: Section) -> None:
    rows = made_up("toy", slots=(5, 15), images=4).where(metric=("f_ari", "visible"))
    alone = divide(summarize(rows))[0]
    assert background(alone, None) is None
    held = background(alone, made_up_diagnosis(alone))
    assert held is not None
    assert [len(row) for row in held.figure.rows] == [2, 2]
    assert held.words == (ON_SLOTS,)


def test_k_that_were_not_evaluated_are_not_marked() -> None:
    rows = made_up("clevr-6-11", ["batch_norm", "weighted_mean"], [1], (7, 11, 22, 24), images=6)
    held = background(divide(summarize(rows))[0], None)
    assert held is not None
    panel = held.figure.rows[0][0]
    assert isinstance(panel, PathPanel)
    assert panel.curves["batch_norm"].x.tolist() == [11, 22, 24]
    assert curves.path_axis(panel) == "ARI (hollow: 11 slots; filled: 22)"
    assert b"filled: 22" in draw(held.figure)["svg"]


def test_the_figure_is_drawn_and_gives_the_same_bytes(report: Report) -> None:
    held = report.sections[0].results.background
    assert held is not None
    files = draw(held.figure)
    assert files == draw(held.figure)
    svg = files["svg"].decode()
    ElementTree.fromstring(svg)
    for words in ("F-ARI against ARI on toy7", "that slot's mask divided, 15 slots", "Weighted Sum (3 runs)"):
        assert words in svg
    assert files["png"][:4] == b"\x89PNG"


def test_curves_as_csv_have_shares_and_divisors(report: Report) -> None:
    held = report.sections[0].results.background
    assert held is not None
    lines = list(csv.DictReader(io.StringIO(curves.to_csv([("toy", "all", held.figure)]))))
    (line,) = [
        line for line in lines
        if (line["norm"], line["against"], line["slots"], line["x"]) == ("weighted_sum", "divisor", "15", "3")
    ]  # fmt: skip
    assert float(line["median"]) == pytest.approx(0.99 * 0.93)
    assert {line["source"] for line in lines} == {"diagnosis"}, "paths are in the other figures' lines"


def test_the_markdown_page_explains_it_once_and_shows_it_twice(report: Report) -> None:
    page = report_page(report)
    assert page.count("### F-ARI and the background\n") == 1
    assert page.count("### F-ARI and the background (without failed runs)\n") == 1
    assert page.count("F-ARI looks at the pixels of objects alone") == 1
    assert "](figures/toy-background.svg)" in page
    assert "](figures/toy-without-failed-runs-background.svg)" in page
    assert page.count("| F-ARI ÷3 ↑ |") == 2


def test_scenes_are_counted_as_visible_by_what_can_be_seen() -> None:
    labels = torch.tensor([TRUE, [[0, 0, 0, 0], [0, 0, 0, 9]]], dtype=torch.uint8)
    assert label_maps.count_visible(labels).tolist() == [2, 1]
