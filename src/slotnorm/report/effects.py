"""The paper's effect as numbers: how a score changes from the training K to three times it, and how sure that is.

The one place where the change is defined; figures, tables, pages and claims read it from here.
"""

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotnorm.config import SLOTS_FACTOR
from slotnorm.experiments import ABLATED, OTHERS, PROPOSED
from slotnorm.report import resampling
from slotnorm.report.appearance import AVERAGE_PRECISIONS, looks, measure, signed
from slotnorm.report.resampling import Estimate, Interval, MeansOfSome
from slotnorm.report.safe_names import markdown as escaped
from slotnorm.report.scores import RunScores
from slotnorm.report.sections import Section

METRICS = ("f_ari", "ari", *AVERAGE_PRECISIONS)
SHOWN = ("f_ari", "ari", "ap@inf")  # in figures and tables; effect.csv has all
ALL, WITHOUT_FAILED = "all", "without failed"
PROPOSED_LESS_OTHERS = ("proposed", "others")

DEFINITION = (
    "The change of a run is its score at three times the training number of slots K (at the paper's 21 where that is "
    "less) minus its score at the training K, each a mean over the test scenes with two or more visible objects. The "
    "change of a normalization is the median of its runs' changes: a median of differences. The difference of its two "
    "medians can be another number and is given apart. Intervals hold the middle 95 % of 10,000 resamples. Each draws "
    "the scenes anew, the same for all runs, so that normalizations are compared on the same scenes, and then the runs "
    "of each normalization. With one run the interval is over scenes only: it says nothing of other seeds. With fewer "
    "than five runs it is rough. Average precision is a number of a whole set: its interval is over runs only."
)


@dataclass(frozen=True)
class Change:
    """One normalization's change of a score from one K to another."""

    norm: str
    label: str
    runs: Mapping[str, float]
    """Every run's own change, by name; of those that were scored with both K."""
    median: float
    """Of the runs' changes: a median of differences."""
    interval: Interval | None
    """None where neither scenes nor runs could be drawn: average precision of one run."""
    over: str
    """What the interval is over: "scenes and runs", "scenes", "runs", or nothing."""
    rough: bool
    """Whether there are fewer than five runs."""
    before: float
    """Median over runs at the training K."""
    after: float
    """Median over runs at the high K."""

    @property
    def difference_of_medians(self) -> float:
        return self.after - self.before

    @property
    def value(self) -> float:
        """What is shown: the median."""
        return self.median


@dataclass(frozen=True)
class Difference:
    """How much more one normalization's score changes than another's: the first's median change minus the second's."""

    norm: str
    than: str
    label: str
    """"Batch Norm − Baseline", or "Proposed − others": the mean of the two proposed minus the mean of the others."""
    value: float
    """Difference of two medians of differences."""
    interval: Interval | None
    over: str
    rough: bool


@dataclass(frozen=True)
class Effect:
    """One study's changes of one metric on one test set."""

    section: str
    """The section's title."""
    study: str
    factors: str
    """(O, K) of training."""
    which: str
    """Which runs count: "all" or "without failed"."""
    dataset: str
    place: int
    """Of the set among the section's: 0 has as few objects as training."""
    metric: str
    source: str
    slots: tuple[int, int]
    """The training K, and the high one."""
    changes: tuple[Change, ...]
    """In the registry's order."""
    differences: tuple[Difference, ...]
    """The proposed, and normalizations of one's own, minus each of the others; last the groups."""

    def change(self, norm: str) -> Change | None:
        """That of a normalization, where it has runs."""
        return next((change for change in self.changes if change.norm == norm), None)


def effects(sections: Iterable[Section]) -> tuple[Effect, ...]:
    """Every section's effects on each of its sets, for each metric; where runs failed once more without these.

    A section that was not evaluated with more slots than in training has none.
    """
    return tuple(effect for section in sections for effect in _effects(section))


def _effects(section: Section) -> Iterable[Effect]:
    slots = section.train_slots, section.high_slots
    if slots[1] <= slots[0]:
        return
    for which in (ALL, WITHOUT_FAILED) if section.failures else (ALL,):
        shown = section if which == ALL else section.without_failed()
        for place, dataset in enumerate(section.sets):
            for metric in (metric for metric in METRICS if metric in section.metrics()):
                source = section.source(metric)
                runs = [run for run in shown.all_runs if _is_scored(run, dataset, metric, source, slots)]
                if any(run in shown.runs for run in runs):
                    changes, differences = _compared(shown, runs, dataset, metric, source, slots)
                    yield Effect(
                        section.title, section.study, section.factors, which, dataset, place, metric, source, slots,
                        changes, differences,
                    )  # fmt: skip


def _is_scored(run: RunScores, dataset: str, metric: str, source: str, slots: tuple[int, int]) -> bool:
    return all(run.mean(dataset, metric, k, source=source).scored for k in slots)


def _compared(
    section: Section, runs: Sequence[RunScores], dataset: str, metric: str, source: str, slots: tuple[int, int]
) -> tuple[tuple[Change, ...], tuple[Difference, ...]]:
    """The changes of the section's own normalizations, and the differences; runs shown beside are compared with."""
    drawn = _drawn_changes(runs, resampling.run_means(runs, dataset, metric, source, slots))
    estimates, changes = {}, []
    own = {run.norm for run in section.runs}
    for norm, look in looks(drawn).items():
        some = [run for run in runs if run.norm == norm]
        before, after = ([run.mean(dataset, metric, k, source=source).value for run in some] for k in slots)
        values = {run.name: high - low for run, low, high in zip(some, before, after, strict=True)}
        scenes = all(run.scenes[dataset, source, metric].of_scenes for run in some)
        estimate = Estimate(median(values.values()), drawn[norm], len(some), scenes)
        estimates[norm] = estimate
        if norm in own:
            changes.append(
                Change(norm, look.label, values, estimate.value, estimate.interval, estimate.over, estimate.rough,
                       median(before), median(after))
            )  # fmt: skip
    return tuple(changes), _differences(estimates, own)


def _drawn_changes(runs: Sequence[RunScores], means: Iterable[MeansOfSome]) -> dict[str, NDArray[Any]]:
    """Each normalization's median of the runs' changes in all resamples, (RESAMPLES,)."""
    norms = {run.norm for run in runs}
    places = {norm: [place for place, run in enumerate(runs) if run.norm == norm] for norm in norms}
    names = {norm: [runs[place].name for place in places[norm]] for norm in norms}
    drawn = {norm: np.empty(resampling.RESAMPLES) for norm in norms}
    for some, scores in means:
        changes = scores[:, :, 1] - scores[:, :, 0]
        for norm in norms:
            drawn[norm][some] = resampling.median_over_runs(changes[:, places[norm]], names[norm], some)
    return drawn


def _differences(estimates: Mapping[str, Estimate], own: Collection[str]) -> tuple[Difference, ...]:
    labels = looks(estimates)
    upper = [norm for norm in labels if norm in own and norm not in (*OTHERS, *ABLATED)]
    pairs = [
        (norm, than, f"{labels[norm].label} − {labels[than].label}", estimates[norm] - estimates[than])
        for norm in upper
        for than in OTHERS
        if than in estimates
    ]
    if {*PROPOSED, *OTHERS} <= set(estimates).intersection(own):
        groups = [resampling.mean([estimates[norm] for norm in norms]) for norms in (PROPOSED, OTHERS)]
        pairs.append((*PROPOSED_LESS_OTHERS, "Proposed − others", groups[0] - groups[1]))
    return tuple(
        Difference(norm, than, label, estimate.value, estimate.interval, estimate.over, estimate.rough)
        for norm, than, label, estimate in pairs
    )


def as_many(effects: Iterable[Effect]) -> str:
    """How many slots the high K are: "three times" as many as in training, "up to three times" where one is fewer."""
    whole = all(effect.slots[1] == SLOTS_FACTOR * effect.slots[0] for effect in effects)
    return "three times" if whole else "up to three times"


def shown_interval(interval: Interval | None) -> str:
    """ "[−0.110, −0.012]", or nothing."""
    return "" if interval is None else f"[{signed(interval.low)}, {signed(interval.high)}]"


def caveat(entry: Change | Difference) -> str:
    """What its interval says nothing of, in two words at most; of a difference the normalization with fewest runs
    counts."""
    return "" if entry.interval is None else "scenes only" if entry.over == "scenes" else "rough" if entry.rough else ""


def to_markdown(effects: Sequence[Effect]) -> str:
    """The changes and the differences as two tables; all with failed runs, or all without."""
    metrics = [metric for metric in SHOWN if any(effect.metric == metric for effect in effects)]
    heads = [f"{measure(metric).label} [95 %]" for metric in metrics]
    lines = ["Medians of the runs' changes:", ""]
    lines += [f"| study, set, slots | | runs | {' | '.join(heads)} |", f"|---|---|---|{'---|' * len(heads)}"]
    for place, by_metric in grouped(effects):
        for change in _each_once(by_metric, "changes"):
            cells = _cells(by_metric, metrics, "changes", change.label)
            runs = _with_caveat(str(len(change.runs)), change)
            lines.append(f"| {escaped(place)} | {escaped(change.label)} | {runs} | {' | '.join(cells)} |")
    if not any(effect.differences for effect in effects):
        return "\n".join(lines) + "\n"
    lines += ["", "The differences of these medians, paired on the same scenes:", ""]
    lines += [f"| study, set, slots | | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    for place, by_metric in grouped(effects):
        for difference in _each_once(by_metric, "differences"):
            cells = _cells(by_metric, metrics, "differences", difference.label)
            label = _with_caveat(escaped(difference.label), difference)
            lines.append(f"| {escaped(place)} | {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _each_once(by_metric: Mapping[str, Effect], kind: str) -> list[Any]:
    """The changes or differences of all metrics, each label once."""
    return list({entry.label: entry for effect in by_metric.values() for entry in getattr(effect, kind)}.values())


def _cells(by_metric: Mapping[str, Effect], metrics: Sequence[str], kind: str, label: str) -> list[str]:
    """One line's numbers; empty where a metric has none."""
    numbers = {
        metric: f"{signed(entry.value)} {shown_interval(entry.interval)}".strip()
        for metric, effect in by_metric.items()
        for entry in getattr(effect, kind)
        if entry.label == label
    }
    return [numbers.get(metric, "") for metric in metrics]


def grouped(effects: Iterable[Effect]) -> list[tuple[str, dict[str, Effect]]]:
    """Effects of one section and set together, by metric, under their place in words: "toy (4, 5), toy4, K 5 → 15".

    A place has one effect of a metric: one with failed runs and one without them do not stand beside each other.
    """
    places: dict[str, dict[str, Effect]] = {}
    for effect in effects:
        words = f"{effect.section} {effect.factors}, {effect.dataset}, K {effect.slots[0]} → {effect.slots[1]}"
        by_metric = places.setdefault(words, {})
        if effect.metric in by_metric:
            raise ValueError(f"{words}: {effect.metric} of {by_metric[effect.metric].which} and of {effect.which} runs")
        by_metric[effect.metric] = effect
    return list(places.items())


def _with_caveat(words: str, entry: Change | Difference) -> str:
    return f"{words} ({caveat(entry)})" if caveat(entry) else words


def to_csv(effects: Iterable[Effect]) -> str:
    """Every change and every difference, one line each."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([
        "section", "study", "runs", "dataset", "metric", "source", "from_slots", "to_slots", "kind", "norm", "than",
        "value", "low", "high", "interval_over", "rough", "median_before", "median_after", "difference_of_medians",
        "runs_changes",
    ])  # fmt: skip
    for effect in effects:
        head = [effect.section, effect.study, effect.which, effect.dataset, effect.metric, effect.source, *effect.slots]
        for change in effect.changes:
            medians = [_number(value) for value in (change.before, change.after, change.difference_of_medians)]
            own = " ".join(_number(value) for value in change.runs.values())
            cells = [*_numbers(change.median, change.interval), change.over, int(change.rough), *medians, own]
            writer.writerow([*head, "median of changes", change.norm, "", *cells])
        for pair in effect.differences:
            cells = [*_numbers(pair.value, pair.interval), pair.over, int(pair.rough), "", "", "", ""]
            writer.writerow([*head, "difference of medians of changes", pair.norm, pair.than, *cells])
    return buffer.getvalue()


def _numbers(value: float, interval: Interval | None) -> list[str]:
    return [_number(value), *(_number(edge) for edge in interval or (float("nan"), float("nan")))]


def _number(value: float) -> str:
    """Five decimals, which any machine computes alike; no minus before zero."""
    return "" if value != value else f"{round(value, 5) + 0.0:.5f}"
