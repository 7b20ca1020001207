"""What the paper's words mean in numbers, defined once, and the scores that a claim is checked on.

All comparisons are between medians over the seeds that did not fail, as in the paper.

- "above", "best", "highest", "lowest": a larger (smaller) median, by any amount.
- "falls" or "grows" with K: between two K by more than NOTICEABLE; "holds", "does not fall", "alike", "slightly": by no
  more. On F-ARI, ARI and average precision that is a difference, on l2 a share of the smaller of the two.
- "far above", "a lot", "large spread": by more than LARGE; the spread is the maximal deviation from the median.
- "overall", where the paper speaks of a whole curve: the mean of the medians from the training K on.
- "trend" with the number of objects: the slope of the least-squares line through the medians.
- "background in one slot": a run's ARI at the training K is above ONE_BACKGROUND; spread over several
  slots it cannot be.
- "low" F-ARI: below half of every other variant's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from slotnorm.experiments import MAIN, Transfer
from slotnorm.report.appearance import looks
from slotnorm.report.curves import Curve, curve
from slotnorm.report.scores import RunScores, Spread
from slotnorm.report.sections import Section
from slotnorm.report.tables import at_slots

NOTICEABLE = 0.02
NOTICEABLE_L2 = 0.05  # a share
LARGE = 0.05
ONE_BACKGROUND = 0.7


Decision = tuple[bool, str]
"""Whether a part of a claim holds, and the numbers it rests on."""

Part = tuple[str, Callable[[], Decision]]
"""The words of a part of a claim, and how it is decided."""

Check = TypeVar("Check", bound=Callable[[Any], Iterator[Part]])


@dataclass(frozen=True)
class Claim:
    """One statement of the paper's text, and how it is checked."""

    number: int
    study: str
    """The paper's study (or transfer) it speaks of; "theory" for what needs no run."""
    statement: str
    check: Callable[[Any], Iterator[Part]]
    """Evidence -> its parts."""


CLAIMS: dict[int, Claim] = {}


def claim(number: int, study: str, statement: str) -> Callable[[Check], Check]:
    """Register a function as the check of a claim."""

    def register(check: Check) -> Check:
        CLAIMS[number] = Claim(number, study, statement, check)
        return check

    return register


class NotRun(Exception):
    """A claim, or a part of one, that the runs at hand cannot decide; says what is missing."""


class Evidence:
    """The scores of one section, and of its sections beside, as claims ask for them."""

    def __init__(self, section: Section, related: Mapping[str, Section], leave_out_failed: bool = True) -> None:
        self.all_runs = section
        self.section = section.without_failed() if leave_out_failed else section
        self._related, self._leave_out_failed = related, leave_out_failed
        self.used = [section]
        """The sections that were asked so far."""

    def related(self, study: str) -> "Evidence":
        """The section at the same scale that stands for another of the paper's studies."""
        if study not in self._related:
            raise NotRun(f"no runs that stand for {study} at this scale")
        self.used.append(self._related[study])
        return Evidence(self._related[study], self._related, self._leave_out_failed)

    @property
    def few(self) -> str:
        """The test set with few objects."""
        return self.sets[0]

    @property
    def many(self) -> str:
        """The test set with many objects."""
        return self.sets[-1]

    @property
    def sets(self) -> tuple[str, ...]:
        if not self.section.sets:
            raise NotRun("no test set was evaluated")
        return (self.section.sets[0], self.section.sets[-1])[: len(self.section.sets)]

    @property
    def train_slots(self) -> int:
        return self.section.train_slots

    @property
    def object_slots(self) -> int:
        return self.all_runs.object_slots

    def curve(self, norm: str, metric: str, dataset: str) -> Curve:
        """The metric against K."""
        source = self.section.source(metric)
        found = curve(self._runs(norm), metric, dataset, "slots", source=source)
        if not found.count.any():
            raise NotRun(f"{norm} has no {metric} on {dataset}")
        return found

    def by_objects(self, norm: str, metric: str) -> Curve:
        """The metric against the number of objects, at the K of the object panels."""
        source = self.section.source(metric)
        sets = self.section.sets
        found = curve(self._runs(norm), metric, sets, "objects", self.object_slots, source)
        if len(found.x) < 2:
            raise NotRun(f"{norm} has {metric} for fewer than two object counts at {self.object_slots} slots")
        return found

    def at(self, norm: str, metric: str, dataset: str, slots: int) -> Spread:
        """Median and deviation at one K."""
        self._runs(norm)
        found = at_slots(self.section, norm, metric, dataset, slots)
        if not found.runs:
            raise NotRun(f"{norm} has no {metric} on {dataset} at {slots} slots")
        return found

    def median(self, norm: str, metric: str, dataset: str, slots: int) -> float:
        return self.at(norm, metric, dataset, slots).median

    def slots(self, metric: str, dataset: str, norms: Iterable[str]) -> list[int]:
        """Every K at which all of these normalizations were evaluated."""
        common: set[int] | None = None
        for norm in norms:
            found = self.curve(norm, metric, dataset)
            points = set(found.x[found.count > 0].tolist())
            common = points if common is None else common & points
        if not common:
            raise NotRun(f"no common number of slots for {metric} on {dataset}")
        return sorted(common)

    def excess(self, metric: str, dataset: str, norms: Iterable[str], beyond: int = 0) -> tuple[int, int]:
        """The two K between which a curve falls or holds: `beyond` slots above the training K, and the largest."""
        slots = self.slots(metric, dataset, norms)
        start = min((k for k in slots if k >= self.train_slots + beyond), default=slots[-1])
        if start == slots[-1]:
            raise NotRun(f"{dataset} was not evaluated with more than {start} slots")
        return start, slots[-1]

    def overall(self, norm: str, metric: str, dataset: str) -> float:
        """The mean of the medians from the training K on."""
        found = self.curve(norm, metric, dataset)
        kept = (found.x >= self.train_slots) & (found.count > 0)
        if not kept.any():
            raise NotRun(f"{dataset} was not evaluated with {self.train_slots} slots or more")
        return float(found.median[kept].mean())

    def range_over_slots(self, norm: str, metric: str, dataset: str) -> float:
        """Largest less smallest median from the training K on."""
        found = self.curve(norm, metric, dataset)
        kept = found.median[(found.x >= self.train_slots) & (found.count > 0)]
        if len(kept) < 2:
            raise NotRun(f"{dataset} was not evaluated with more than {self.train_slots} slots")
        return float(kept.max() - kept.min())

    def trend(self, norm: str, metric: str) -> float:
        """The slope of the metric in the number of objects."""
        found = self.by_objects(norm, metric)
        kept = found.count > 0
        return float(np.polyfit(found.x[kept], found.median[kept], 1)[0])

    def failed(self, norm: str) -> tuple[int, int]:
        """How many runs failed by the rule, and of how many."""
        runs = [run for run in self.all_runs.of(norm) if run.failed is not None]
        if not runs:
            raise NotRun(f"no run of {norm} was judged by the failed-run rule")
        return sum(run.failed is True for run in runs), len(runs)

    def single_runs(self, norm: str, metric: str, dataset: str, slots: int) -> list[float]:
        """Every run's own value."""
        source = self.section.source(metric)
        values = [run.mean(dataset, metric, slots, source=source).value for run in self._runs(norm)]
        known = [value for value in values if value == value]
        if not known:
            raise NotRun(f"{norm} has no {metric} on {dataset} at {slots} slots")
        return known

    def _runs(self, norm: str) -> list[RunScores]:
        runs = self.section.of(norm)
        if not runs:
            total = len(self.all_runs.of(norm))
            raise NotRun(f"all {total} runs of {norm} failed" if total else f"no run of {norm}")
        return runs


class TransferEvidence:
    """The scores of runs of several studies on one set that none of them was trained on."""

    def __init__(self, sections: Sequence[Section], transfer: Transfer, leave_out_failed: bool = True) -> None:
        self._transfer = transfer
        tested = [section for section in sections if any(transfer.test.name in run.datasets for run in section.runs)]
        self._sections = {
            study: section.without_failed() if leave_out_failed else section
            for study in transfer.studies
            for section in tested[::-1]
            if section.study == study
        }

    @property
    def evaluated(self) -> bool:
        return bool(self._sections)

    @property
    def studies(self) -> list[str]:
        """Those with runs on the set, in the order of the table."""
        return list(self._sections)

    def train_factors(self, study: str) -> tuple[int, int]:
        """(O, K) of training."""
        return self._sections[study].train_objects, self._sections[study].train_slots

    def medians(self, study: str, metric: str) -> dict[str, float]:
        """Of the main normalizations."""
        found = {
            norm: at_slots(self._sections[study], norm, metric, self._transfer.test.name, self._transfer.slots)
            for norm in MAIN
        }
        for norm, one in found.items():
            if not one.runs:
                raise NotRun(f"{study} has no {metric} of {norm} on {self._transfer.test.name}")
        return {norm: one.median for norm, one in found.items()}


@cache
def label(norm: str) -> str:
    """What the paper calls the normalization."""
    return looks([norm])[norm].label


def listed(values: Mapping[str, float]) -> str:
    """Values by normalization as words."""
    return ", ".join(f"{label(norm)} {value:.3g}" for norm, value in values.items())


def fall(before: float, after: float, metric: str) -> float:
    """How much the metric went down, as a difference, or for l2 as a share of the smaller."""
    return (before - after) / min(before, after) if metric == "l2" else before - after


def noticeable(metric: str) -> float:
    return NOTICEABLE_L2 if metric == "l2" else NOTICEABLE
