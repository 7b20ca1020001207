"""The scores that claims are checked on, each with its noise: medians over runs, in every resample."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotnorm.experiments import Transfer
from slotnorm.report import resampling
from slotnorm.report.claims.vocabulary import Undecided
from slotnorm.report.curves import homes
from slotnorm.report.resampling import Estimate, MeansOfSome
from slotnorm.report.scores import RunScores, spread
from slotnorm.report.sections import Section

_KEPT = 96  # resampled curves in memory, about half a megabyte each

Array = NDArray[Any]


def combined(function: Callable[..., Any], *estimates: Estimate) -> Estimate:
    """A function of several numbers, in every resample."""
    value = float(function(*(estimate.value for estimate in estimates)))
    draws = np.asarray(function(*(estimate.draws for estimate in estimates)))
    runs = min(estimate.runs for estimate in estimates)
    return Estimate(value, draws, runs, all(estimate.scenes for estimate in estimates))


def loss(before: Estimate, after: Estimate, metric: str) -> Estimate:
    """How much the metric went down: as a difference, or for l2 as a share of the smaller."""
    if metric == "l2":
        return combined(lambda first, second: (first - second) / np.minimum(first, second), before, after)
    return before - after


class Resamples:
    """Runs' resampled curves, each computed once as long as it is asked for often."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, Array] = OrderedDict()

    def over_slots(
        self, runs: Sequence[RunScores], dataset: str, metric: str, source: str, slots: Sequence[int]
    ) -> Array:
        """The median over runs at each K, (RESAMPLES, K)."""
        key = (*map(id, runs), dataset, metric, source, tuple(slots))
        return self._once(
            key, lambda: _medians(resampling.run_means(runs, dataset, metric, source, slots, np.float32), runs)
        )

    def over_objects(
        self, runs: Sequence[RunScores], home: Mapping[int, str], metric: str, source: str, slots: int
    ) -> Array:
        """The median over runs for each number of objects, read on its set, (RESAMPLES, counts)."""
        key = (*map(id, runs), tuple(home.items()), metric, source, slots)

        def medians() -> Array:
            every = np.empty((resampling.RESAMPLES, len(home)), np.float32)
            sets = np.asarray(list(home.values()))
            for dataset in dict.fromkeys(home.values()):
                counts = [count for count, name in home.items() if name == dataset]
                means = resampling.run_means_by_objects(runs, dataset, metric, source, slots, counts)
                every[:, sets == dataset] = _medians(means, runs)
            return every

        return self._once(key, medians)

    def _once(self, key: Any, medians: Callable[[], Array]) -> Array:
        if key not in self._kept:
            self._kept[key] = medians()
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def _medians(means: Iterable[MeansOfSome], runs: Sequence[RunScores]) -> Array:
    """The medians over runs in all resamples, (RESAMPLES, columns)."""
    names = [run.name for run in runs]
    return np.concatenate([resampling.median_over_runs(values, names, some) for some, values in means])


class StudyScores:
    """The scores of one section, and of those at the same scale, as claims ask for them."""

    def __init__(
        self,
        section: Section,
        related: Mapping[str, Section],
        leave_out_failed: bool = True,
        resamples: Resamples | None = None,
    ) -> None:
        self.whole = section.on_usual_scenes()
        self.section = self.whole.without_failed() if leave_out_failed else self.whole
        self._related, self._leave_out_failed = related, leave_out_failed
        self._resamples = resamples or Resamples()
        self._sources: dict[str, str] = {}
        self.used = [section]
        """The sections that were asked so far."""

    def source(self, metric: str) -> str:
        """Where the metric is read from."""
        if metric not in self._sources:
            self._sources[metric] = self.whole.source(metric)
        return self._sources[metric]

    def related(self, study: str) -> "StudyScores":
        """The section at the same scale that stands for another of the paper's studies."""
        if study not in self._related:
            raise Undecided(f"no runs that stand for {study} at this scale")
        self.used.append(self._related[study])
        return StudyScores(self._related[study], self._related, self._leave_out_failed, self._resamples)

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
        if not self.whole.sets:
            raise Undecided("no test set was evaluated")
        return (self.whole.sets[0], self.whole.sets[-1])[: len(self.whole.sets)]

    @property
    def train_slots(self) -> int:
        return self.whole.train_slots

    @property
    def object_slots(self) -> int:
        return self.whole.object_slots

    def enough_slots(self, dataset: str) -> int:
        """A slot for every object of the set's fullest scenes, and one for the background."""
        counts = [
            max(run.objects(dataset, metric, source), default=0)
            for run in self.whole.all_runs
            for name, source, metric in run.tallies
            if name == dataset
        ]
        return max(counts, default=0) + 1

    def slots(self, metric: str, dataset: str, norms: Iterable[str]) -> list[int]:
        """Every K at which all runs of these normalizations were evaluated."""
        source, common = self.source(metric), None
        for norm in norms:
            for run in self.runs(norm):
                points = set(run.slots(dataset, metric, source))
                common = points if common is None else common & points
        if not common:
            raise Undecided(f"no common number of slots for {metric} on {dataset}")
        return sorted(common)

    def excess(self, metric: str, dataset: str, norms: Iterable[str], beyond: int = 0) -> list[int]:
        """Every K that is too many: from the training K and `beyond` on, and not below the objects plus one."""
        least = max(self.train_slots + beyond, self.enough_slots(dataset))
        return self._from(least, self.slots(metric, dataset, norms), dataset)

    def from_training(self, metric: str, dataset: str, norms: Iterable[str]) -> list[int]:
        """Every K from the training K on."""
        return self._from(self.train_slots, self.slots(metric, dataset, norms), dataset)

    def _from(self, least: int, slots: Sequence[int], dataset: str) -> list[int]:
        several = [k for k in slots if k >= least]
        if len(several) < 2:
            raise Undecided(f"{dataset} was not evaluated with two numbers of slots from {least} on")
        return several

    def at(self, norm: str, metric: str, dataset: str, slots: int) -> Estimate:
        """The median over runs at one K."""
        known = self.slots(metric, dataset, (norm,))
        if slots not in known:
            raise Undecided(f"{norm} has no {metric} on {dataset} at {slots} slots")
        runs, source = self.runs(norm), self.source(metric)
        draws = self._resamples.over_slots(runs, dataset, metric, source, known)[:, known.index(slots)]
        scenes = all(run.scenes[dataset, source, metric].of_scenes for run in runs)
        return Estimate(_median(runs, dataset, metric, slots, source), draws, len(runs), scenes)

    def overall(self, norm: str, metric: str, dataset: str) -> Estimate:
        """The mean of the medians from the training K on."""
        known = [k for k in self.slots(metric, dataset, [norm]) if k >= self.train_slots]
        if not known:
            raise Undecided(f"{dataset} was not evaluated with {self.train_slots} slots or more")
        return resampling.mean([self.at(norm, metric, dataset, k) for k in known])

    def range_over_slots(self, norm: str, metric: str, dataset: str) -> Estimate:
        """Largest less smallest median from the training K on."""
        points = [self.at(norm, metric, dataset, k) for k in self.from_training(metric, dataset, [norm])]
        return combined(lambda *values: np.max(values, axis=0) - np.min(values, axis=0), *points)

    def by_objects(self, norm: str, metric: str) -> dict[int, Estimate]:
        """The metric for each number of objects, at the K of the object panels."""
        runs, source, slots = self.runs(norm), self.source(metric), self.object_slots
        home = {
            count: name
            for count, name in sorted(homes(runs, metric, self.whole.sets, source).items())
            if all(run.mean(name, metric, slots, count, source).scored for run in runs)
        }
        if len(home) < 2:
            raise Undecided(f"{norm} has {metric} for fewer than two object counts at {slots} slots")
        draws = self._resamples.over_objects(runs, home, metric, source, slots)
        values = [spread(run.mean(name, metric, slots, count, source).value for run in runs).median
                  for count, name in home.items()]  # fmt: skip
        return {
            count: Estimate(value, column, len(runs), True)
            for count, value, column in zip(home, values, draws.T, strict=True)
        }

    def trend(self, norm: str, metric: str) -> Estimate:
        """The slope of the metric in the number of objects."""
        points = self.by_objects(norm, metric)
        away = np.asarray(list(points)) - np.mean(list(points))
        weights = away / (away**2).sum()

        def slope(*values: Any) -> Any:  # NumPy 1 would keep the draws' float32, and its rounding would decide
            return sum(np.multiply(w, v, dtype=np.float64) for w, v in zip(weights, values, strict=True))

        return combined(slope, *points.values())

    def deviation(self, norm: str, metric: str, dataset: str, slots: int) -> Estimate:
        """The largest deviation of a run from the median; its noise is that of the scenes."""
        runs, source = self.runs(norm), self.source(metric)
        value = spread(run.mean(dataset, metric, slots, source=source).value for run in runs)
        if value.runs < len(runs):
            raise Undecided(f"{norm} has no {metric} on {dataset} at {slots} slots")
        means = self._run_means(runs, dataset, metric, source, slots)
        draws = np.abs(means - np.median(means, axis=1, keepdims=True)).max(axis=1)
        return Estimate(value.deviation, draws, len(runs), True)

    def _run_means(self, runs: Sequence[RunScores], dataset: str, metric: str, source: str, slots: int) -> Array:
        """Every run's own mean in all resamples, (RESAMPLES, runs)."""
        parts = resampling.run_means(runs, dataset, metric, source, [slots], np.float32)
        return np.concatenate([means[:, :, 0] for _, means in parts])

    def single_runs(self, norm: str, metric: str, dataset: str, slots: int) -> list[Estimate]:
        """Every run's own value; its noise is that of the scenes."""
        runs, source = self.runs(norm), self.source(metric)
        values = [run.mean(dataset, metric, slots, source=source).value for run in runs]
        if any(value != value for value in values):
            raise Undecided(f"{norm} has no {metric} on {dataset} at {slots} slots")
        means = self._run_means(runs, dataset, metric, source, slots)
        return [Estimate(value, column, 1, True) for value, column in zip(values, means.T, strict=True)]

    def failed(self, norm: str) -> tuple[int, int]:
        """How many runs failed by the rule, and of how many."""
        runs = [run for run in self.whole.of(norm) if run.failed is not None]
        if not runs:
            raise Undecided(f"no run of {norm} was judged by the failed-run rule")
        return sum(run.failed is True for run in runs), len(runs)

    def runs(self, norm: str) -> list[RunScores]:
        """Those of a normalization that count."""
        return runs_that_count(self.section, self.whole, norm)


def runs_that_count(without_failed: Section, section: Section, norm: str) -> list[RunScores]:
    """The runs of a normalization that did not fail; without any it is not decided, and said why."""
    runs = without_failed.of(norm)
    if not runs:
        failed = len(section.of(norm))
        if failed:
            words = f"all {failed} runs of {norm} failed" if failed > 1 else f"the one run of {norm} failed"
            raise Undecided(words, "all runs failed")
        raise Undecided(f"no run of {norm}")
    return runs


def _median(runs: Sequence[RunScores], dataset: str, metric: str, slots: int, source: str) -> float:
    return spread(run.mean(dataset, metric, slots, source=source).value for run in runs).median


class TransferScores:
    """The scores of runs of several studies on one set that none of them was trained on."""

    def __init__(
        self,
        sections: Sequence[Section],
        transfer: Transfer,
        leave_out_failed: bool = True,
        resamples: Resamples | None = None,
    ) -> None:
        self._transfer, self._leave_out_failed = transfer, leave_out_failed
        self._resamples = resamples or Resamples()
        tested = [section for section in sections if any(transfer.test.name in run.datasets for run in section.runs)]
        self._sections = {
            study: section for study in transfer.studies for section in tested[::-1] if section.study == study
        }

    @property
    def evaluated(self) -> bool:
        return bool(self._sections)

    @property
    def studies(self) -> list[str]:
        """All of the table's, in its order; a part that was not run is missed by whoever asks for it."""
        return list(self._transfer.studies)

    def fewest(self) -> str:
        """The study that trains with the fewest objects and slots."""
        if len(self._sections) < len(self._transfer.studies):
            raise Undecided("not every section of the table was run")
        return min(
            self._sections, key=lambda study: (self._sections[study].train_objects, self._sections[study].train_slots)
        )

    def at(self, study: str, norm: str, metric: str) -> Estimate:
        """A normalization's median on the set, of the runs of one study."""
        if study not in self._sections:
            raise Undecided(f"no runs of {study} on {self._transfer.test.name}")
        section = self._sections[study]
        counted = section.without_failed() if self._leave_out_failed else section
        runs, dataset, slots = runs_that_count(counted, section, norm), self._transfer.test.name, self._transfer.slots
        source = section.source(metric)
        if not all(run.mean(dataset, metric, slots, source=source).scored for run in runs):
            raise Undecided(f"{study} has no {metric} of {norm} on {dataset}")
        draws = self._resamples.over_slots(runs, dataset, metric, source, [slots])
        return Estimate(_median(runs, dataset, metric, slots, source), draws[:, 0], len(runs), True)
