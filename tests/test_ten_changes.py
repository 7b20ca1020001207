"""Kinds of change that are one class: those of CONTRIBUTING.md, made as plugins and seen at work end to end."""

import csv
import re
from pathlib import Path

import pytest

import processes
import tiny
from slotnorm.report import curves
from slotnorm.report.sections import Section
from slotnorm.studies.options import Training, words
from slotnorm.training.experiment_file import write_experiment
from slotnorm.training.runs import Run

ROOT = Path(__file__).parents[1]

OF_THE_MODEL = '''
import torch
from torch import nn

from slotnorm.initialization import Initialization
from slotnorm.metrics import Metric
from slotnorm.normalization import Normalization


class RootMass(Normalization):
    """u_k = ũ_k / √(Σ_n γ_nk)."""

    name, label, where, keeps_mass = "root_mass", "Root Mass", "tests", True

    def forward(self, aggregate, carry):
        return aggregate.sums / (aggregate.mass + 1e-8).sqrt(), None


class Scaled(Initialization):
    """slot_k = s ε_k with a learned scale s."""

    name, label, where, interchangeable = "scaled", "Scaled", "tests", True

    def make_parameters(self):
        return {"slots_scale": nn.Parameter(torch.empty(1))}

    def draw(self, layer, protocol):
        nn.init.ones_(layer.get_parameter("slots_scale"))

    def start(self, layer, noise):
        return layer.slots_scale * noise


class Sharpness(Metric):
    """Mean over pixels of the largest mask."""

    name, label, direction, needs, bounds = "sharpness", "Sharpness", "higher", "nothing", (0.0, 1.0)
    validated_as = "sharp"

    def score(self, comparison):
        return comparison.masks.flatten(2).amax(dim=1).mean(dim=1)
'''

OF_THE_STUDY = '''
import dataclasses
import subprocess
from typing import ClassVar

from slotnorm.report.claims.vocabulary import Decision, claim
from slotnorm.report.curves import metric_row, section_figure
from slotnorm.studies.launchers import Launcher
from slotnorm.training.observers import Observer


class Sharpest(Observer):
    """RUN/sharpest.txt: the sharpest masks of all validations."""

    name = "sharpest"

    def on_start(self, run, step):
        self.file, self.values = run.path / "sharpest.txt", []

    def on_validation(self, step, scores):
        self.values += [value for name, value in scores.items() if name.startswith("sharp@")]

    def on_end(self, step, finished):
        self.file.write_text(f"{max(self.values)!r} {finished}")


@dataclasses.dataclass
class OneByOne(Launcher):
    """One job after the other, while it is submitted; the first start of each is lost."""

    name: ClassVar[str] = "one_by_one"

    greeting: str = ""
    """Said before every job"""

    def __post_init__(self):
        self.codes = {}
        self.seen = set()

    def submit(self, jobs):
        for job in jobs:
            self.codes[job.folder.name] = "lost"
            if job.folder in self.seen:
                with open(job.log, "a") as log:
                    print(self.greeting, file=log, flush=True)
                    self.codes[job.folder.name] = subprocess.run(job.command, stdout=log, stderr=log).returncode
            self.seen.add(job.folder)
        return [job.folder.name for job in jobs]

    def watch(self, tickets):
        return [self.codes.get(ticket, "lost") for ticket in tickets]

    def cancel(self, tickets, number):
        pass


@claim(31, "clevr-6-7", "sharper masks", sentence="it is said", rule="At the training K, of every normalization.")
def sharper(scores):
    yield "masks are sharp", lambda: Decision(None, "nobody has looked")


@section_figure
def sharpness_again(section):
    """A figure like one of ours, under another name."""
    return "again", "Sharpness, drawn by a plugin.", [metric_row(section, "sharpness")]
'''


def test_seven_kinds_of_change_work_together_from_plugins(tmp_path: Path) -> None:
    """A normalization, a start of slots, a metric, an observer, a launcher, a figure and a claim, in two files."""
    data = tiny.build_scenes(tmp_path / "data", 24).directory
    (tmp_path / "of_the_model.py").write_text(OF_THE_MODEL)
    (tmp_path / "of_the_study.py").write_text(OF_THE_STUDY)
    plugins = [word for name in ("model", "study") for word in ("--plugin", str(tmp_path / f"of_the_{name}.py"))]
    write_experiment(tmp_path / "asked.json", tiny.experiment(steps=4))
    training = Training(tiny.experiment(), tmp_path / "runs", data, log=("sharpest",))
    asked = [*words(training, tmp_path / "asked.json"), "--norms", "root_mass", "--seeds", "1"]
    asked += ["--recipe.initialization", "scaled", "--on", "one_by_one", "--greeting", "hello"]
    runs, out = str(tmp_path / "runs"), tmp_path / "report"
    scored = ["--dataset", "toy4", "--data", str(data), "--slots", "4:5", "--scenes", "16"]
    for number, command in enumerate((
        ["sweep", *asked],
        ["eval", runs, *scored, "--csv", str(tmp_path / "rows.csv")],
        ["report", runs, "--out", str(out), "--no-models"],
    )):  # fmt: skip
        process = processes.Command([*command, *plugins], tmp_path / f"log-{number}")
        assert process.wait() == 0, process.said
    folder = tmp_path / "runs" / "toy-root_mass-1"
    run = Run.open(folder)
    assert run.finished
    assert "slot_attention.slots_scale" in run.weights().tensors
    assert (folder / "log.txt").read_text().startswith("hello\n")
    assert not (folder / "job.json").exists()
    assert not (folder / "asked.json").exists()
    value, finished = (folder / "sharpest.txt").read_text().split()
    best = max(score for name, score in run.validation().items() if name.startswith("sharp@"))
    assert (float(value), finished) == (best, "True")
    with open(tmp_path / "rows.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "sharpness"]
    assert {(row["norm"], row["slots"]) for row in rows} == {("root_mass", "4"), ("root_mass", "5")}
    assert all(0 < float(row["value"]) <= 1 for row in rows)
    assert len(list((out / "figures").glob("*-again.svg"))) == 1
    assert "Sharpness, drawn by a plugin." in (out / "report.md").read_text()
    assert "Sharpness, drawn by a plugin." in (out / "index.html").read_text()
    assert "| 31 | clevr-6-7 | sharper masks |" in (out / "claims.md").read_text()


def test_the_table_of_ten_changes_names_files_that_exist_and_at_most_two() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| an? [^|]+\|[^|]+\|([^|]+)\|[^|]*\|$", page, flags=re.MULTILINE)
    assert len(rows) == 10
    for cell in rows:
        for alternative in cell.split(" or "):
            files = re.findall("`([^`]+)`", alternative)
            assert 1 <= len(files) <= 2
            for name in files:
                assert "NAME" in name or (ROOT / "src" / "slotnorm" / name).is_file(), name


def test_a_figure_whose_name_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "_section_figures", {})

    def mine(section: Section) -> None:
        return None

    assert curves.section_figure(mine) is mine
    with pytest.raises(TypeError, match="figure name 'mine' of test_ten_changes is taken by test_ten_changes"):
        curves.section_figure(mine)
