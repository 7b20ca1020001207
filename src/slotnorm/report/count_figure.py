"""How many objects are counted, without labels, against K and against the number there is, beside the trivial guess.

The rule is metrics/object_count.py. Who guesses says the mean number of objects in training, whatever the image.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from slotnorm.evaluation.rows import MISSING
from slotnorm.metrics import CountError
from slotnorm.report.appearance import GUESS, looks
from slotnorm.report.curves import Curve, Figure, Panel, metric_panel, metric_row, runs_of
from slotnorm.report.reading import experiment_of
from slotnorm.report.scores import Spread, Tally
from slotnorm.report.sections import Section
from slotnorm.report.tables import Cell, Line, Part, Table, at_slots, mark

TITLE = "How many objects?"
WORDS = (
    "Objects are counted from the masks alone: a slot is one if it explains more than half of at least 0.5 % of the "
    "pixels, and less than 20 % of the image's border. Shown is how far the count is from the number of objects, the "
    "mean over scenes. Beside it what a guess is worth that ignores the image: it always says the mean number of "
    "objects in training."
)
_METRIC = CountError.name


@dataclass(frozen=True)
class Counting:
    """The figure of a section and its numbers as a table."""

    figure: Figure
    table: Table


def counting(section: Section, leave_out_failed: bool = False) -> Counting | None:
    """The count's error on each set against K, and against the number of objects; None where nothing was counted."""
    shown = section.without_failed() if leave_out_failed else section
    if _METRIC not in shown.metrics():
        return None
    always = guessed_number(section)
    numbers = sorted({section.train_slots, section.object_slots, section.high_slots})
    against_objects = [metric_panel(shown, _METRIC, section.sets, number) for number in numbers]
    rows = [
        [panel for panel in metric_row(shown, _METRIC) if panel.against == "slots"],
        [panel for panel in against_objects if panel.curves],
    ]
    counts = {norm: runs_of(section, norm, leave_out_failed) for norm in section.norms}
    name = f"{section.title}{' without failed runs' * leave_out_failed}"
    figure = Figure(
        f"{name} count",
        f"{section.title} {section.factors}: {TITLE}",
        f"Count error against slots and objects. Trained with {section.train_slots} slots.",
        tuple(tuple(_with_guess(shown, panel, always) for panel in row if panel.curves) for row in rows if row),
        {**counts, GUESS: f"always {always:.3g}"},
    )
    return Counting(figure, _table(name, section, shown, always, leave_out_failed))


def guessed_number(section: Section) -> float:
    """The mean number of objects in training.

    Generated scenes say it. Of others it is that of test scenes with no more objects than in training, those of the
    section's first set that has so many.
    """
    experiment = next((known for run in section.all_runs if (known := experiment_of(run)) is not None), None)
    if experiment is not None and experiment.scenes is not None:
        fewest, most = experiment.scenes.objects
        return (fewest + min(most, experiment.max_objects or most)) / 2
    tallies = [tally for dataset in section.sets for tally in _tallies(section, dataset)]
    tally = next((tally for tally in tallies if tally.objects.max() >= section.train_objects), tallies[-1])
    known = (tally.slots == tally.slots[0]) & (tally.objects != MISSING)
    as_in_training = known & (tally.objects <= section.train_objects)
    kept = as_in_training if as_in_training.any() else known
    scenes = tally.scored[kept]
    return float((tally.objects[kept] * scenes).sum() / scenes.sum())


def _tallies(section: Section, dataset: str) -> list[Tally]:
    """Of the runs that were counted on a set."""
    key = dataset, section.source(_METRIC), _METRIC
    return [run.tallies[key] for run in section.all_runs if key in run.tallies]


def _error_of_guess(section: Section, dataset: str, slots: int, always: float) -> float:
    """Its mean over the scenes behind the numbers of a run: those with two or more visible objects."""
    tally = next(tally for tally in _tallies(section, dataset) if slots in tally.all_slots)
    kept = (tally.slots == slots) & ~tally.few
    scenes = tally.scored[kept]
    errors = np.abs(tally.objects[kept] - always)
    return float((errors * scenes).sum() / scenes.sum()) if scenes.sum() else float("nan")


def _with_guess(section: Section, panel: Panel, always: float) -> Panel:
    points = sorted({int(x) for drawn in panel.curves.values() for x in drawn.x})
    if panel.against == "objects":
        errors = [abs(point - always) for point in points]
    else:
        errors = [_error_of_guess(section, panel.datasets[-1], point, always) for point in points]
    values, positions = np.asarray(errors), np.asarray(points, dtype=np.int64)
    guess = Curve(positions, values, values, values, np.zeros_like(values), np.zeros_like(positions), {})
    return dataclasses.replace(panel, curves={**panel.curves, GUESS: guess})


def _table(name: str, section: Section, shown: Section, always: float, leave_out: bool) -> Table:
    parts = []
    for dataset in section.sets:
        known = {number for run in shown.all_runs for number in run.slots(dataset, _METRIC, section.source(_METRIC))}
        for slots in sorted({section.train_slots, section.object_slots, section.high_slots} & known):
            lines = [
                Line(norm, look.label, runs_of(section, norm, leave_out), (Cell(spread),))
                for norm, look in looks(section.norms).items()
                if (spread := at_slots(shown, norm, _METRIC, dataset, slots)).runs
            ]
            error = _error_of_guess(shown, dataset, slots, always)
            guess = Line(GUESS, looks([GUESS])[GUESS].label, f"always {always:.3g}", (Cell(_alone(error)),))
            trained = " (training K)" if slots == section.train_slots else ""
            parts.append(Part(f"{dataset}, {slots} slots{trained}", (*lines, guess)))
    caption = (
        f"{section.title} {section.factors}, how far the label-free count of objects is from their number, beside a "
        "guess of the mean number in training. Median ± maximal deviation over runs."
    )
    return mark(Table(f"{name} count", caption, (_METRIC,), tuple(parts), bold=False))


def _alone(value: float) -> Spread:
    """A number that no run has."""
    return Spread(value, 0.0, value, value, 1)
