"""From rows to scores: first the mean over a run's images, then median and maximal deviation over its seeds.

Headline numbers are over scenes with two or more visible objects, because with one object F-ARI is only 0 or 1; the
other scenes are kept apart. A value that is not defined (NaN) is left out of a mean and counted.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotnorm.errors import UserError
from slotnorm.evaluation.measurement import VISIBLE
from slotnorm.evaluation.rows import MISSING, Rows

_ENOUGH_VISIBLE = 2

Array = NDArray[Any]


class Mean(NamedTuple):
    """A mean over images, and what it is a mean of."""

    value: float
    """NaN when nothing was scored."""
    scored: int
    undefined: int
    """Images whose value is NaN: left out."""


@dataclass(frozen=True)
class Tally:
    """Sums over images of one metric of one run on one set, by number of slots and of objects; arrays (n,)."""

    slots: Array
    objects: Array
    """-1 where the metric is one of the whole set."""
    few: Array
    """True for scenes with fewer than two visible objects."""
    total: Array
    scored: Array
    undefined: Array

    @classmethod
    def of(cls, rows: Rows, few: Array) -> "Tally":
        """Add up rows of one run, set, source and metric; `few` (n,) says which have fewer than two visible objects."""
        keys, group = np.unique(np.stack([rows["slots"], rows["objects"], few]), axis=1, return_inverse=True)
        values, undefined = rows["value"], np.isnan(rows["value"])
        size, group = keys.shape[1], group.reshape(-1)
        return cls(
            keys[0], keys[1], keys[2].astype(bool),
            np.bincount(group, np.where(undefined, 0, values), minlength=size),
            np.bincount(group[~undefined], minlength=size), np.bincount(group[undefined], minlength=size),
        )  # fmt: skip

    def mean(self, slots: int, objects: int | None = None, few: bool = False) -> Mean:
        """Over the images with K `slots` (and this many objects), with enough visible objects or with `few`."""
        kept = (self.slots == slots) & (self.few == few)
        if objects is not None:
            kept &= self.objects == objects
        scored, undefined = int(self.scored[kept].sum()), int(self.undefined[kept].sum())
        return Mean(float(self.total[kept].sum()) / scored if scored else float("nan"), scored, undefined)


@dataclass(frozen=True)
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
    values: Array
    """(k, n); NaN where it is not defined or was not scored."""

    @classmethod
    def of(cls, rows: Rows, few: Array) -> "SceneScores":
        """From rows of one run, set, source and metric; `few` (rows,) as in `Tally.of`."""
        slots, at_slots = np.unique(rows["slots"], return_inverse=True)
        images, at_image = np.unique(rows["image"], return_inverse=True)
        values = np.full((len(slots), len(images)), np.nan)
        values[at_slots, at_image] = rows["value"]
        objects, alone = np.empty(len(images), dtype=np.int64), np.empty(len(images), dtype=bool)
        objects[at_image], alone[at_image] = rows["objects"], few
        return cls(slots, images, objects, alone, values)

    @property
    def of_scenes(self) -> bool:
        """Whether there are values of scenes, of which some can be drawn."""
        return bool((self.images != MISSING).all())

    def at(self, slots: int) -> Array:
        """The images' values with K `slots`, (n,); NaN where it was not evaluated with so many."""
        place = int(np.searchsorted(self.slots, slots))
        known = place < len(self.slots) and self.slots[place] == slots
        return np.asarray(self.values[place]) if known else np.full(len(self.images), np.nan)


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
    """The same, image by image."""
    failed: bool | None = None
    """Whether it failed by the rule; None where the rule was not asked."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Where its rows come from."""

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
        return np.unique(tally.slots).tolist() if tally else []

    def objects(self, dataset: str, metric: str, source: str = "masks") -> list[int]:
        """The object counts of the scenes it was evaluated on, -1 left out."""
        tally = self.tallies.get((dataset, source, metric))
        counts = np.unique(tally.objects[~tally.few]).tolist() if tally else []
        return [count for count in counts if count != MISSING]

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
    """The scores of every run in the rows, by name."""
    return [_run_scores(str(name), part) for (name,), part in rows.groups("run")]


def _run_scores(name: str, rows: Rows) -> RunScores:
    factors = {
        column: _one(rows, column, name) for column in ("norm", "seed", "train_objects", "train_slots", "protocol")
    }
    tallies, scenes = {}, {}
    for (dataset, source), part in rows.groups("dataset", "source"):
        few = _few_visible(part)
        for (metric,), cells in part.groups("metric"):
            if metric != VISIBLE:
                key, alone = (str(dataset), str(source), str(metric)), np.isin(cells["image"], few)
                tallies[key], scenes[key] = Tally.of(cells, alone), SceneScores.of(cells, alone)
    return RunScores(name, tallies=tallies, scenes=scenes, **factors)


def _one(rows: Rows, column: str, name: str) -> Any:
    entries: Sequence[Any] = rows.unique(column)
    if len(entries) > 1:
        both = f"{entries[0]} and {entries[1]}"
        raise UserError(f"the rows of {name} have {column} {both}, but a run has one; rename one of the two runs")
    return entries[0]


def _few_visible(rows: Rows) -> Array:
    """The images with fewer than two visible objects; where nobody counted those, with fewer than two objects."""
    seen = rows.where(metric=VISIBLE)
    if len(seen):
        return np.unique(seen["image"][seen["value"] < _ENOUGH_VISIBLE])
    alone = (rows["objects"] != MISSING) & (rows["objects"] < _ENOUGH_VISIBLE)
    return np.unique(rows["image"][alone]) if (rows["objects"] >= _ENOUGH_VISIBLE).any() else np.empty(0, np.int64)
