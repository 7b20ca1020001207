"""The paper's effect in a minute: the bundled checkpoints, one per normalization, with more and more slots.

They are evaluated on scenes that are generated on the spot, in a temporary folder; nothing is downloaded or cached.
"""

import dataclasses
import os
import tempfile
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slotnorm.config import SLOTS_FACTOR
from slotnorm.data.generator import build
from slotnorm.data.scenes import Scenes, data_fingerprint
from slotnorm.errors import UserError
from slotnorm.evaluation.examples import make_examples
from slotnorm.evaluation.failed_runs import judge
from slotnorm.evaluation.rows import Rows
from slotnorm.evaluation.scoring import score
from slotnorm.experiments import EvaluationSet, studies
from slotnorm.models import SlotModel
from slotnorm.models.bundled import bundled_files
from slotnorm.report.contents import Report, compose
from slotnorm.report.curves import Panel
from slotnorm.report.page import page
from slotnorm.report.pictures import illustrate
from slotnorm.report.reading import RunCollection
from slotnorm.report.scores import RunScores, summarize
from slotnorm.report.sections import Section, divide
from slotnorm.report.tables import at_slots
from slotnorm.report.terminal import characters, chart, console, legend, table
from slotnorm.runtime.progress import Progress
from slotnorm.storage import files
from slotnorm.storage.serialization import to_document
from slotnorm.training.loading import load

TITLE = "slotnorm demo"
STUDY = "toy"  # whose models are shown; others are bundled for other uses
METRICS = ("f_ari", "ari", "l2")
CHARTED = ("f_ari", "ari")
LARGEST_PAGE = 4_000_000  # bytes: four models, sent by mail
_FEWEST_SLOTS = 2
_PICTURED = 12


@dataclasses.dataclass(frozen=True)
class Demo:
    """What the demo found."""

    report: Report
    slots: tuple[int, ...]
    """Those of the table: the training K, twice and three times it."""

    @property
    def section(self) -> Section:
        return self.report.sections[0].section

    def values(self, dataset: str) -> Mapping[str, Mapping[str, Sequence[float]]]:
        """Normalization -> metric -> its value at each of `slots`."""
        section = self.section
        return {
            norm: {
                metric: [at_slots(section, norm, metric, dataset, k).median for k in self.slots] for metric in METRICS
            }
            for norm in section.norms
        }

    def panels(self) -> list[Panel]:
        """The curves that are drawn on the terminal: on the set with few objects."""
        drawn = [panel for figure in self.report.sections[0].results.figures for row in figure.rows for panel in row]
        few = self.section.sets[0]
        return [
            panel
            for panel in drawn
            if panel.metric in CHARTED and panel.against == "slots" and panel.datasets == (few,)
        ]


def run_demo(num: int, folder: Path | None = None, device: str = "auto") -> Demo:
    """Evaluate the models of `folder` (None: the bundled ones) on `num` new scenes of each of their test sets."""
    if num < 2:
        raise UserError(f"--scenes {num} is too few: ask for 2 or more")
    models = [load(path, device) for path in bundled_files(folder) if path.stem.startswith(f"{STUDY}-")]
    experiment = models[0].experiment
    assert experiment is not None
    trained = experiment.slots
    slots = range(min(_FEWEST_SLOTS, trained), SLOTS_FACTOR * trained + 1)
    tests = studies()[experiment.name].tests
    with temporary_folder() as place:
        sets = {test.name: _generate(models[0], test, num, place / test.name) for test in tests}
        runs, examples = [], []
        pictured = tests[0].name
        with Progress("scenes", len(models) * sum(map(len, sets.values()))) as progress:
            for model in models:
                runs.append(_evaluate(model, sets, slots, progress))
                few = sets[pictured][:_PICTURED]
                named: dict[str, Any] = {"run": runs[-1].name, "norm": runs[-1].norm, "dataset": pictured}
                examples.append(make_examples(model, few, slots, (), **named))
    collection = RunCollection(tuple(divide(runs)), (), ())
    report = compose(collection, lambda section: (illustrate(examples, section.train_slots), ()), with_theory=False)
    return Demo(report, tuple(trained * factor for factor in range(1, SLOTS_FACTOR + 1)))


def _evaluate(model: SlotModel, sets: Mapping[str, Scenes], slots: Sequence[int], progress: Progress) -> RunScores:
    experiment = model.experiment
    assert experiment is not None
    parts = [
        score(model, scenes, slots, source="masks", dataset=name, run=experiment.run_name, advance=progress.advance)
        for name, scenes in sets.items()
    ]
    (run,) = summarize(Rows.concat(parts))
    judged = judge(model, next(iter(sets.values())))
    facts = {
        "experiment": to_document(experiment), "weights": parts[0].header["weights"],
        "versions": parts[0].header["versions"], "noise_seed": parts[0].header["noise_seed"],
        "scenes": {
            name: {"scenes": data_fingerprint(scenes), "num_scenes": len(scenes)} for name, scenes in sets.items()
        },
        "binding": {"failed": judged.failed, "reason": judged.reason, **dataclasses.asdict(judged)},
    }  # fmt: skip
    return dataclasses.replace(run, failed=judged.failed, facts=facts)


def _generate(model: SlotModel, test: EvaluationSet, num: int, folder: Path) -> Scenes:
    """New scenes of a test set: those of the study's test split, which no run was trained on."""
    assert model.experiment is not None
    scenes = model.experiment.scenes
    if scenes is None:
        raise UserError(f"{model.experiment.run_name} was not trained on generated scenes; the demo needs one that was")
    return build(scenes.spec("test", test.objects), num, folder, jobs=1)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed afterwards; refused in one sentence where none can be made."""
    try:
        temporary = tempfile.TemporaryDirectory(prefix="slotnorm-demo-")
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"no temporary folder can be made ({reason}); name one that is writable in TMPDIR") from error
    with temporary as name:
        yield Path(name)


def prepare(out: Path) -> None:
    """Make the folder of the page, or refuse it, before a minute is spent."""
    path = out / page.NAME
    try:
        out.mkdir(parents=True, exist_ok=True)
        foreign = os.path.lexists(path) and f"<title>{TITLE}</title>".encode() not in _beginning(path)
    except OSError as error:
        raise UserError(f"--out {out} cannot be used: {error.strerror or error}; name another folder") from error
    if foreign:
        raise UserError(f"{path} is there and was not made by the demo; give --out another folder")


def _beginning(path: Path) -> bytes:
    with files.open_to_read(path) as file:
        return file.read(1 << 16)


def write_demo_page(demo: Demo, out: Path) -> Path:
    """The HTML page."""
    section = demo.section
    lead = (
        f"One model of each normalization, trained with {section.train_slots} slots, looks at new scenes with up to "
        f"{SLOTS_FACTOR * section.train_slots}."
    )
    path = out / page.NAME
    files.write(path, page.render(demo.report, TITLE, lead, LARGEST_PAGE).encode())
    return path


def show_demo(demo: Demo) -> None:
    """The table of each test set and the charts, on stdout."""
    screen, drawn_with, section = console(), characters(), demo.section
    for test in studies()[section.study].tests:
        number = section.runs[0].facts["scenes"][test.name]["num_scenes"]
        inside = "as in training" if test.objects[1] <= section.train_objects else "more than in training"
        screen.print(f"{test.name}: {number} new scenes with {test.objects[0]} to {test.objects[1]} objects, {inside}")
        for line in table(demo.values(test.name), demo.slots, drawn_with):
            screen.print(line)
        screen.print()
    for panel in demo.panels():
        for line in chart(panel, drawn_with):
            screen.print(line)
    screen.print(legend(section.norms, drawn_with))


def open_page(path: Path) -> bool:
    """Show the page in a browser; False when there is none."""
    try:
        return webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        return False
