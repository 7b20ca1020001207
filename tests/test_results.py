"""The published results: every table and every point of every figure is what the rows in results/ give."""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from left_out import needs
from slotnorm import experiments
from slotnorm.models import weights
from slotnorm.report import effects
from slotnorm.report.contents import Report
from slotnorm.report.writing import curves_csv

pytestmark = [needs("results"), needs("docs/images")]

ROOT = Path(__file__).parents[1]


def _maker(name: str) -> ModuleType:
    """A program of docs/, which is not a package; it may import its neighbours."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "docs"))


publishing = _maker("make_results")


@pytest.fixture(scope="module")
def rebuilt() -> Report:
    return publishing.recompute()


def test_the_pages_hold_what_the_rows_give(rebuilt):
    parts = publishing.made(rebuilt)
    for page in publishing.PAGES:
        text = page.read_text(encoding="utf-8")
        assert "<!-- made: " in text
        assert publishing.fill(text, parts) == text, f"run python docs/make_results.py: {page.name} shows other numbers"


def test_every_point_of_every_figure_is_published_and_is_what_the_rows_give(rebuilt):
    published = publishing.CURVES.read_text(encoding="utf-8").splitlines()
    assert len(published) > 1000
    assert published == curves_csv(rebuilt).splitlines()


def test_every_effect_is_published_and_is_what_the_rows_give(rebuilt):
    published = publishing.EFFECT.read_text(encoding="utf-8")
    assert published.count("median of changes") > 100
    assert published == effects.to_csv(rebuilt.effects)


def test_the_pictures_that_the_pages_show_are_there_and_no_others():
    shown = {
        name.split(")")[0]
        for page in publishing.PAGES
        for name in page.read_text(encoding="utf-8").split("images/results/")[1:]
    }
    assert shown == {path.name for path in publishing.PICTURES.iterdir()}


def test_no_run_of_the_toy_study_is_left_out(rebuilt):
    assert not rebuilt.left_out
    toy = experiments.study("toy")
    runs = {(run.norm, run.seed) for run in rebuilt.runs if run.name.rpartition("-")[0].rpartition("-")[0] == "toy"}
    for norm in experiments.MAIN:
        seeds = {seed for name, seed in runs if name == norm}
        assert seeds == set(toy.seeds[: len(seeds)])  # from the first on, none in between missing
        assert len(seeds) >= 3
    (section,) = (contents.section for contents in rebuilt.sections if contents.section.study == "toy")
    assert section.sets == tuple(test.name for test in toy.tests)
    assert section.slots() == list(range(toy.test_slots[0], toy.test_slots[1] + 1))
    assert not section.changes  # the registered recipe, nothing else


STUDIES = (
    "toy-features-4-5",
    "toy-features-2-5",
    "toy-features-2-3",
    "toy-properties",
    "toy-ablation",
    "clevr-mini-6-7",
    "small-6-7",
    "small-6-11",
)
SEEDS_SO_FAR = {"small-6-11": 2}  # of a study whose other seeds are still to be trained


@pytest.mark.parametrize("name", STUDIES)
def test_no_run_of_a_study_is_left_out_and_each_has_its_weights(rebuilt, name):
    study = experiments.study(name)
    (section,) = (contents.section for contents in rebuilt.sections if contents.section.study == name)
    runs = [run for run in section.runs if run.name.startswith(f"{name}-")]  # others are shown beside them
    seeds = study.seeds[: SEEDS_SO_FAR.get(name)]
    assert {(run.norm, run.seed) for run in runs} == {(norm, seed) for norm in study.norms for seed in seeds}
    assert section.sets == tuple(test.name for test in study.tests)
    assert section.slots() == list(range(study.test_slots[0], study.test_slots[1] + 1))
    assert not section.changes
    for run in runs:
        published = weights.unpack(publishing.RESULTS / name / run.name / f"{run.name}.safetensors")
        assert (published.experiment.run_name, published.step) == (run.name, study.experiment.recipe.steps)
        assert published.facts["rounded_from"] == run.facts["weights"]  # half precision of what was evaluated


@pytest.mark.parametrize("name", ["small-6-7", "clevr-mini-6-7"])
def test_what_a_page_says_of_scores_by_objects_is_what_the_rows_give(name):
    findings = _maker("make_findings")
    page = ROOT / "docs" / "results" / findings.PAGES[name]
    assert findings.over_objects(experiments.study(name)) in page.read_text(encoding="utf-8")


def test_the_folder_says_what_each_thing_in_it_is():
    page = (publishing.RESULTS / "README.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")]
    named = {name for cell in cells for name in re.findall("`([^`]+)`", cell)}
    there = {path.name for path in publishing.RESULTS.iterdir() if path.name != "README.md"}
    assert there | {"unfinished"} == named  # which is there only while there is such a run


def test_what_is_published_is_less_than_60_megabytes():
    unfinished = publishing.RESULTS / "unfinished"  # which goes as soon as those runs are published
    files = [path for path in publishing.RESULTS.rglob("*") if path.is_file() and unfinished not in path.parents]
    assert sum(path.stat().st_size for path in files) < 60e6


def test_every_transfer_of_published_runs_has_its_table(rebuilt):
    assert [pair[0].name for pair in rebuilt.zero_shot] == ["toy-features-many zero-shot"]
    assert [len(part.lines) for part in rebuilt.zero_shot[0][0].parts] == [4, 4, 4]
