"""Reports that lack something: the page says what, and is never an exception."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from made_up_page import NASTY, SLOTS, made_up_examples, made_up_report, renamed
from made_up_rows import made_up
from parsed_page import Parsed
from slotnorm.report.contents import compose
from slotnorm.report.page.lacking import lacking
from slotnorm.report.page.page import LARGEST, render
from slotnorm.report.pictures import illustrate
from slotnorm.report.reading import RunCollection
from slotnorm.report.scores import summarize
from slotnorm.report.sections import divide
from slotnorm.training.runs import Objection

pytestmark = pytest.mark.usefixtures("few_resamples")


def report_of(rows, examples=()):
    """A report of rows, with pictures where there are examples."""
    pictured = illustrate(examples, 5) if examples else None
    material = RunCollection(tuple(divide(summarize(rows))), (), ())
    return compose(material, lambda section: (pictured, ()), with_theory=False)


def whole(report) -> Parsed:
    """The page, whose every part is there whatever the report lacks."""
    parsed = Parsed(render(report))
    headings = {attributes.get("id") for attributes in parsed.all("h2")}
    assert {"what-is-a-slot", "scores", "normalizations", "effect", "failed-runs", "claims", "tables"} <= headings
    assert parsed.all("p", class_="finding")
    return parsed


def test_one_run():
    rows = made_up("toy", ["batch_norm"], (1,), range(2, 17))
    parsed = whole(report_of(rows, [made_up_examples("batch_norm", scenes=1)]))
    assert "toy has Batch Norm alone: there is nothing to compare it with." in parsed.text
    assert "With 15 slots instead of 5, batch norm gains 0.12 F-ARI." in parsed.text
    assert "From one run of batch norm on scenes" in parsed.text
    assert "The study toy has a single run: what another seed would give is not known." in parsed.text
    assert parsed.data["studies"][0]["norms"] == ["batch_norm"]
    assert not any("runs" in curve for panel in parsed.data["panels"].values() for curve in panel["all"]["curves"])


def test_one_run_of_each():
    parsed = whole(report_of(made_up("toy", seeds=(1,), slots=range(2, 17))))
    assert "toy has one run of each normalization: what another seed would give is not known." in parsed.text


def test_one_slot_is_not_called_slots():
    parsed = whole(report_of(made_up("toy", ("weighted_mean", "batch_norm"), slots=[1])))
    assert "toy was tested with 1 slot alone: its curves are points." in parsed.text
    assert "toy was tested with at most 1 slot, no more than in training." in parsed.text


@pytest.mark.parametrize("slots", [[5], [9]])
def test_one_number_of_slots(slots):
    norms = ("weighted_mean", "batch_norm")
    parsed = whole(report_of(made_up("toy", norms, slots=slots), [made_up_examples(n, slots, 2) for n in norms]))
    assert f"toy was tested with {slots[0]} slots alone: its curves are points." in parsed.text
    if slots == [5]:
        assert "toy was tested with at most 5 slots, no more than in training." in parsed.text
    else:
        assert "No run of toy was scored both with 5 slots, as in training, and with more." in parsed.text
    assert "No study was tested both with as many slots as in training and with three times as many." in parsed.text
    (study,) = parsed.data["studies"]
    assert (study["slots"], study["start"], study["looked_into"]) == (slots, 0, slots)


def test_never_more_slots_than_in_training():
    parsed = whole(report_of(made_up("toy", slots=range(2, 6))))
    assert "toy was never tested with more than the 5 slots of training." in parsed.text


def test_without_models_there_are_no_pictures_and_the_page_says_why():
    report = made_up_report(scenes=1)
    reason = "No pictures of toy-batch_norm-1: it was not made yet, and models are not run."
    bare = dataclasses.replace(report.sections[0], illustration=None, diagnostics=None, notes=(reason,))
    parsed = whole(dataclasses.replace(report, sections=(bare,)))
    assert "There are no pictures here: none were kept beside the runs" in parsed.text
    assert "There are no pictures of toy." in parsed.text
    assert reason in parsed.inside["li"]
    assert parsed.data["studies"] == []
    assert not parsed.all("div", class_="into")
    assert not parsed.all("input", type="range")


def test_pictures_of_some_normalizations_only():
    report = made_up_report(scenes=1)
    illustration = illustrate([made_up_examples(norm, scenes=2) for norm in ("weighted_mean", "batch_norm")], 5)
    some = dataclasses.replace(report.sections[0], illustration=illustration)
    parsed = whole(dataclasses.replace(report, sections=(some,)))
    assert "There are no pictures of Layer Norm and Weighted Sum in toy." in parsed.text


@pytest.mark.parametrize("lacking_one", ["images", "labels", "reconstructions", "some reconstructions"])
def test_what_scenes_or_models_lack_is_left_out_of_the_pictures(lacking_one):
    report = made_up_report(scenes=1)
    examples = [made_up_examples(norm, scenes=2) for norm in ("weighted_mean", "weighted_sum")]
    if lacking_one == "some reconstructions":
        changes = {"reconstructions": {7: examples[0].reconstructions[7]}}
    else:
        changes = {lacking_one: {} if lacking_one == "reconstructions" else None}
    illustration = illustrate([dataclasses.replace(example, **changes) for example in examples], 5)
    sections = (dataclasses.replace(report.sections[0], illustration=illustration),)
    parsed = whole(dataclasses.replace(report, sections=sections))
    (study,) = parsed.data["studies"]
    scene, variant = study["scenes"][0], study["scenes"][0]["variants"][0]
    assert ("input" in scene) == (lacking_one != "images")
    assert ("truth" in scene) == ("labels" in scene) == (lacking_one != "labels")
    assert ("reconstruction" in variant) == (lacking_one != "reconstructions")
    kept = {"reconstructions": [], "some reconstructions": [7]}.get(lacking_one, list(SLOTS))
    assert study["reconstructed"] == [kept, kept]
    names = {attributes.get("id") for attributes in parsed.all("div")}
    assert ("into-scores" in names) == (lacking_one != "labels")
    assert ("into-reconstruction" in names) == (lacking_one != "reconstructions")
    sentences = {
        "images": "The scenes of toy come without images: only their segments can be shown.",
        "labels": "The scenes of toy have no true masks, so no picture shows what is right.",
    }
    for name, sentence in sentences.items():
        assert (sentence in parsed.text) == (name == lacking_one)


def test_scenes_without_true_masks_have_no_f_ari():
    rows = made_up("toy", ("weighted_mean", "batch_norm"), slots=range(2, 17))
    unmarked = rows.take(np.isin(rows["metric"], ["l2"]))
    parsed = whole(report_of(unmarked))
    assert "The scenes of toy4 have no true masks, so nothing says how well slots find their objects." in parsed.text
    assert "There is no F-ARI of toy" in parsed.text
    assert {panel["decimals"] for panel in parsed.data["panels"].values()} == {4}, "the squared error alone"


@pytest.mark.slow
def test_two_hundred_runs():
    seeds = range(1, 51)
    report = report_of(made_up("toy", seeds=seeds, slots=(5, 15), images=4))
    parsed = whole(report)
    assert len(render(report).encode()) < LARGEST / 4
    assert "From 50 runs of each normalization" in parsed.text
    assert all(len(curve["runs"]) == 50 for panel in parsed.data["panels"].values() for curve in panel["all"]["curves"])


def test_names_with_markup():
    parsed = whole(renamed(made_up_report(scenes=1, seeds=(1,), failed=()), NASTY))
    assert f"{NASTY} has one run of each normalization" in parsed.text
    assert len(parsed.all("script")) == 2


def test_a_missing_set():
    rows = made_up("toy", slots=range(2, 17))
    parsed = whole(report_of(rows.take(rows["dataset"] == "toy4")))
    assert "toy was not tested on toy7 (5 to 7 objects, more than in training)." in parsed.text


def test_a_set_that_some_normalizations_miss():
    rows = made_up("toy", slots=range(2, 17))
    missing = (rows["dataset"] == "toy7") & np.isin(rows["norm"], ["layer_norm", "batch_norm"])
    parsed = whole(report_of(rows.take(~missing)))
    assert "Layer Norm and Batch Norm of toy were not tested on toy7." in parsed.text


def test_a_set_that_nobody_registered():
    rows = made_up("toy", slots=range(2, 17)).where(dataset="toy7").with_columns(dataset="my scenes")
    parsed = whole(report_of(rows))
    assert "my scenes (5 to 7 objects, more than in training)" in parsed.text


def test_runs_without_any_set():
    section = dataclasses.replace(divide(summarize(made_up("toy", seeds=(1,))))[0], sets=())
    parsed = whole(compose(RunCollection((section,), (), ()), with_theory=False))
    assert "4 runs of toy, none of them tested yet." in parsed.text
    assert "No run of toy was tested on a set of its own." in parsed.text
    assert "No run was scored, so there is no table." in parsed.text


def test_no_run_at_all():
    parsed = whole(compose(RunCollection((), (), ()), with_theory=False))
    assert "There is nothing to report: no run was given." in parsed.text


def test_a_study_whose_every_run_failed():
    norms = ("weighted_mean", "batch_norm")
    every_run = tuple((norm, seed) for norm in norms for seed in (1, 2, 3))
    parsed = whole(made_up_report(failed=every_run, norms=norms, scenes=1))
    assert "Leave out the 6 runs of 6 that failed" in parsed.text
    assert "No run is left to compare." in parsed.text
    assert all(panel["kept"]["curves"] == [] for panel in parsed.data["panels"].values() if "kept" in panel)


def test_runs_left_out_are_counted_and_named():
    report = dataclasses.replace(made_up_report(scenes=1), left_out=(Objection(Path("runs/x"), "still training"),))
    assert lacking(report)[-1] == "1 run could not be used: the appendix on notes says which and why."
    assert "Left out: runs/x: still training" in whole(report).inside["li"]
