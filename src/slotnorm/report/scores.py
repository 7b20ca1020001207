"""From rows to scores: first the mean over a run's images, then median and maximal deviation over its seeds.

Headline numbers are over scenes with two or more visible objects, because with one object F-ARI is only 0 or 1; the
other scenes are kept apart. A value that is not defined (NaN, or infinite) is left out of a mean and counted.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotnorm.errors import UserError
from slotnorm.evaluation.measurement import VISIBLE
from slotnorm.evaluation.rows import MISSING, Rows
from slotnorm.storage.aside import ArrayAside, Aside

RESAMPLED = ("f_ari", "ari", "l2", "ap@inf", "ap@1", "ap@0.5", "ap@0.25", "ap@0.125")
"""Metrics of which every image's value is kept, for intervals."""
_ENOUGH_VISIBLE = 2

Array = NDArray[Any]


class RowsTwice(UserError):
    """A row for the same run, image, slots and metric is there twice."""


class Mean(NamedTuple):
    """A mean over images, and what it is a mean of."""

    value: float
    """NaN when nothing was scored."""
    scored: int
    undefined: int
    """Images whose value is NaN: left out."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Every image's value of one metric of one run on one set, with every K."""

    slots: Array
    """(k,), ascending."""
    images: Array
    """(n,), ascending; one entry, -1, of a metric that belongs to the whole set."""
    objects: Array
    """(n,); -1 where it is not known."""
    few: Array
    """(n,): whether fewer than two objects are visible."""
    values: Array
    """(k, n); NaN where it is not defined or was not scored."""
    present: Array
    """(k, n): whether it was scored."""

    def tally(self) -> "Tally":
        """Its sums over images with the same number of objects."""
        kind = 2 * self.objects + self.few
        order = np.argsort(kind, kind="stable")
        kinds, starts = np.unique(kind[order], return_index=True)
        values, present = self.values[:, order], self.present[:, order]
        undefined = np.isnan(values) & present

        def sums(numbers: Array) -> Array:
            return np.asarray(np.add.reduceat(numbers, starts, axis=1)).reshape(-1)

        total = sums(np.where(np.isnan(values), 0, values).astype(np.float64))
        scored, left_out = sums((present & ~undefined).astype(np.int64)), sums(undefined.astype(np.int64))
        slots = np.repeat(self.slots, len(kinds))
        objects, few = (np.tile(row, len(self.slots)) for row in (kinds // 2, kinds % 2 == 1))
        known = scored + left_out > 0
        return Tally(slots[known], objects[known], few[known], total[known], scored[known], left_out[known])

    def scenes(self) -> "SceneScores":
        """Its images' values, in half the room where that loses nothing."""
        short = self.values.astype(np.float32)
        values = short if np.array_equal(short, self.values, equal_nan=True) else self.values.copy()
        return SceneScores(self.slots, self.images, self.objects, self.few, values)


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over images of one metric of one run on one set, by number of slots and of objects; arrays (n,)."""

    slots: Array
    """Ascending."""
    objects: Array
    """-1 where the metric is one of the whole set."""
    few: Array
    """True for scenes with fewer than two visible objects."""
    total: Array
    scored: Array
    undefined: Array
    _means: dict[tuple[int | None, bool], Array] = field(default_factory=dict, init=False, repr=False)
    """Those that were asked for, with every K: a report asks for some of them a thousand times."""

    def mean(self, slots: int, objects: int | None = None, few: bool = False) -> Mean:
        """Over the images with K `slots` (and this many objects), with enough visible objects or with `few`."""
        if slots not in self.all_slots:
            return Mean(float("nan"), 0, 0)
        if (objects, few) not in self._means:
            self._means[objects, few] = self._with_every_slots(objects, few)
        value, scored, undefined = self._means[objects, few][self.all_slots.index(slots)].tolist()
        return Mean(value, int(scored), int(undefined))

    def _with_every_slots(self, objects: int | None, few: bool) -> Array:
        """The `Mean` with every K, (k, 3)."""
        kept = self.few == few if objects is None else (self.few == few) & (self.objects == objects)
        means = np.tile([np.nan, 0, 0], (len(self.all_slots), 1))
        slots, starts = np.unique(self.slots[kept], return_index=True)  # the slots of a tally are ascending
        parts = [np.split(sums[kept], starts[1:]) for sums in (self.total, self.scored, self.undefined)]
        for k, total, scored, undefined in zip(slots.tolist(), *parts, strict=False):
            of_scored = scored.sum()
            value = total.sum() / of_scored if of_scored else np.nan
            means[self.all_slots.index(k)] = value, of_scored, undefined.sum()
        return means

    @cached_property
    def all_slots(self) -> list[int]:
        """Every K, ascending."""
        return list(map(int, np.unique(self.slots)))

    @cached_property
    def all_objects(self) -> list[int]:
        """The object counts of scenes with enough visible objects, -1 left out."""
        return [count for count in np.unique(self.objects[~self.few]).tolist() if count != MISSING]


@dataclass(frozen=True, eq=False)
class SceneScores:
    """Every image's value of one metric of one run on one set: what means are taken of, and resampled."""

    slots: Array
    """(k,), ascending."""
    images: Array
    """(n,), ascending; one entry, -1, of a metric that belongs to the whole set."""
    objects: Array
    """(n,); -1 where it is not known."""
    few: Array
    """(n,): whether fewer than two objects are visible."""
    values: Array | ArrayAside
    """(k, n); NaN where it is not defined or was not scored; of many runs in a file, see `load`."""

    def set_aside(self, aside: Aside) -> "SceneScores":
        """The same with its values in a file: those of hundreds of runs would fill the memory."""
        values = self.values if isinstance(self.values, ArrayAside) else aside.put(self.values)
        return SceneScores(
            aside.share(self.slots), aside.share(self.images), aside.share(self.objects), aside.share(self.few), values
        )

    def load(self) -> "SceneScores":
        """The same with its values in memory, before several are asked for."""
        return dataclasses.replace(self, values=self.values.load()) if isinstance(self.values, ArrayAside) else self

    @property
    def of_scenes(self) -> bool:
        """Whether there are values of scenes, of which some can be drawn."""
        return bool((self.images != MISSING).all())

    def at(self, slots: int) -> Array:
        """The images' values with K `slots`, (n,); NaN where it was not evaluated with so many."""
        values = self.values.load() if isinstance(self.values, ArrayAside) else self.values
        place = int(np.searchsorted(self.slots, slots))
        known = place < len(self.slots) and self.slots[place] == slots
        return np.asarray(values[place]) if known else np.full(len(self.images), np.nan)


@dataclass(frozen=True)
class RunScores:
    """All that a report knows of one run."""

    name: str
    norm: str
    seed: int
    train_objects: int
    """-1 when it is not known."""
    train_slots: int
    protocol: str
    tallies: Mapping[tuple[str, str, str], Tally]
    """By (dataset, source, metric)."""
    scenes: Mapping[tuple[str, str, str], SceneScores] = field(default_factory=dict)
    """The same image by image, of the metrics that are compared beyond their noise."""
    failed: bool | None = None
    """Whether it failed by the rule; None where the rule was not asked."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Where its rows come from."""

    def set_aside(self, aside: Aside) -> "RunScores":
        """The same with its images' values in a file."""
        return dataclasses.replace(self, scenes={key: scores.set_aside(aside) for key, scores in self.scenes.items()})

    def mean(
        self,
        dataset: str,
        metric: str,
        slots: int,
        objects: int | None = None,
        source: str = "masks",
        few: bool = False,
    ) -> Mean:
        """The mean over a set's images."""
        tally = self.tallies.get((dataset, source, metric))
        return tally.mean(slots, objects, few) if tally else Mean(float("nan"), 0, 0)

    def slots(self, dataset: str, metric: str, source: str = "masks") -> list[int]:
        """The numbers of slots it was evaluated with."""
        tally = self.tallies.get((dataset, source, metric))
        return tally.all_slots if tally else []

    def objects(self, dataset: str, metric: str, source: str = "masks") -> list[int]:
        """The object counts of the scenes it was evaluated on, -1 left out."""
        tally = self.tallies.get((dataset, source, metric))
        return tally.all_objects if tally else []

    @property
    def datasets(self) -> list[str]:
        return sorted({dataset for dataset, _, _ in self.tallies})

    def sources(self, metric: str) -> list[str]:
        """Where the metric was read from: masks first, attention where there is nothing else or both."""
        return sorted({source for _, source, name in self.tallies if name == metric}, reverse=True)


class Spread(NamedTuple):
    """One number for several seeds."""

    median: float
    deviation: float
    """max_i |x_i - median|."""
    low: float
    high: float
    runs: int
    """How many runs have a value."""


def spread(values: Iterable[float]) -> Spread:
    """Median and maximal deviation of the runs' values; NaN ones are left out."""
    known = [value for value in values if value == value]
    if not known:
        nan = float("nan")
        return Spread(nan, nan, nan, nan, 0)
    median = statistics.median(known)
    return Spread(median, max(abs(value - median) for value in known), min(known), max(known), len(known))


def summarize(rows: Rows) -> list[RunScores]:
    """The scores of every run in the rows, by name; a row that is there twice is refused."""
    return [_run_scores(str(name), part) for (name,), part in rows.groups("run")]


def _run_scores(name: str, rows: Rows) -> RunScores:
    factors = {
        column: _one(rows, column, name) for column in ("norm", "seed", "train_objects", "train_slots", "protocol")
    }
    tallies, scenes = {}, {}
    for dataset in rows.unique("dataset"):
        grids = _grids(rows.where(dataset=dataset), name)
        for (source, metric), grid in grids.items():
            if metric != VISIBLE:
                tallies[dataset, source, metric] = grid.tally()
                if metric in RESAMPLED:
                    scenes[dataset, source, metric] = grid.scenes()
    return RunScores(name, tallies=tallies, scenes=scenes, **factors)


def _one(rows: Rows, column: str, name: str) -> Any:
    entries: Sequence[Any] = rows.unique(column)
    if len(entries) > 1:
        both = f"{entries[0]} and {entries[1]}"
        raise UserError(f"the rows of {name} have {column} {both}, but a run has one; rename one of the two runs")
    return entries[0]


def _grids(rows: Rows, name: str) -> dict[tuple[str, str], Grid]:
    """Rows of one run and set as grids, by (source, metric): every row is put in its place, none is sorted."""
    sources, at_source = rows.places("source")
    metrics, at_metric = rows.places("metric")
    slots, at_slots = rows.places("slots")
    images, at_image = rows.places("image")
    shape = (len(sources), len(metrics), len(slots), len(images))
    place = np.ravel_multi_index((at_source, at_metric, at_slots, at_image), shape)
    times = np.bincount(place, minlength=int(np.prod(shape)))
    if times.max(initial=0) > 1:
        raise RowsTwice(f"the rows of {name} hold the same image, slots and metric twice; keep each once")
    present = (times > 0).reshape(shape)
    values = np.full(shape, np.nan)
    values.reshape(-1)[place] = np.where(np.isinf(rows["value"]), np.nan, rows["value"])  # no more a score than NaN
    objects = np.full(len(images), MISSING, dtype=np.int64)
    objects[at_image] = rows["objects"]
    grids = {}
    for number, source in enumerate(sources):
        few = _few_visible(values[number], present[number], list(metrics), objects)
        for column, metric in enumerate(metrics):
            there = present[number, column]
            if there.any():
                kept, seen = there.any(axis=1), there.any(axis=0)
                grids[source, metric] = Grid(
                    slots[kept], images[seen], objects[seen], few[seen], values[number, column][kept][:, seen],
                    there[kept][:, seen],
                )  # fmt: skip
    return grids


def _few_visible(values: Array, present: Array, metrics: Sequence[str], objects: Array) -> Array:
    """The images with fewer than two visible objects; where nobody counted those, with fewer than two objects.

    `values` and `present` are those of one source, (metrics, k, n).
    """
    if VISIBLE in metrics and present[metrics.index(VISIBLE)].any():
        seen = values[metrics.index(VISIBLE)]
        return np.asarray((seen < _ENOUGH_VISIBLE).any(axis=0))
    scored = present.any(axis=(0, 1))
    alone = (objects != MISSING) & (objects < _ENOUGH_VISIBLE)
    return np.asarray(alone & (objects[scored] >= _ENOUGH_VISIBLE).any())
