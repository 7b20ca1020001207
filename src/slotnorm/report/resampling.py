"""How sure a number is: the bootstrap over test scenes and over runs, vectorised, the same draws at every rebuild.

A resample draws scenes with replacement, once for all runs that were scored on a set: normalizations are compared on
the same scenes. Then it draws, for each normalization, as many of its runs as there are. Whatever is computed from
several numbers (a difference, a mean over K) is computed in each of the 10,000 resamples; the 95 % interval holds the
middle of what comes out.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from slotnorm.report.scores import RunScores, SceneScores
from slotnorm.runtime import randomness

RESAMPLES = 10_000
LEVEL = 0.95
FEW_RUNS = 5  # an interval over fewer runs than this is rough
_SEED = 20240704
_FEW_TO_SORT = 8
_AT_ONCE = 1_000  # resamples that are in memory with every run's means
_ALL = slice(0, RESAMPLES)

Array = NDArray[Any]


class Interval(NamedTuple):
    """The middle 95 % of the resamples."""

    low: float
    high: float

    def excludes(self, value: float) -> bool:
        return not self.low <= value <= self.high


@dataclass(frozen=True, eq=False)
class Estimate:
    """A number, and the same number in every resample; sums and differences of estimates are estimates."""

    value: float
    draws: Array
    """(RESAMPLES,)."""
    runs: int
    """Runs behind it; of several normalizations the fewest."""
    scenes: bool
    """Whether scenes were drawn: a metric of a whole set, as average precision, has no value for a scene."""

    def __add__(self, other: "Estimate") -> "Estimate":
        return self._with(other, self.value + other.value, self.draws + other.draws)

    def __sub__(self, other: "Estimate") -> "Estimate":
        return self._with(other, self.value - other.value, self.draws - other.draws)

    def __truediv__(self, number: float) -> "Estimate":
        return Estimate(self.value / number, self.draws / number, self.runs, self.scenes)

    def _with(self, other: "Estimate", value: float, draws: Array) -> "Estimate":
        return Estimate(value, draws, min(self.runs, other.runs), self.scenes and other.scenes)

    @cached_property
    def interval(self) -> Interval | None:
        """None where neither scenes nor runs could be drawn."""
        known = self.draws[~np.isnan(self.draws)]
        if not (self.scenes or self.runs > 1) or not len(known):
            return None
        edge = 50 * (1 - LEVEL)
        low, high = np.percentile(known, [edge, 100 - edge])
        return Interval(float(low), float(high))

    @property
    def over(self) -> str:
        """What was drawn: "scenes and runs", "scenes" of one run, "runs" where scenes have no value, or nothing."""
        return " and ".join(["scenes"] * self.scenes + ["runs"] * (self.runs > 1))

    @property
    def rough(self) -> bool:
        """Whether the interval is over so few runs that it says little of others."""
        return self.runs < FEW_RUNS


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of several, resample by resample."""
    total = estimates[0]
    for estimate in estimates[1:]:
        total = total + estimate
    return total / len(estimates)


class MeansOfSome(NamedTuple):
    """Every run's means in some of the resamples."""

    some: slice
    """Of all resamples those."""
    means: Array
    """(resamples, runs, columns); NaN where a run has no value."""


def run_means(
    runs: Sequence[RunScores],
    dataset: str,
    metric: str,
    source: str,
    slots: Sequence[int],
    dtype: type[np.floating[Any]] = np.float64,
) -> Iterator[MeansOfSome]:
    """Every run's mean over scenes with each K, a thousand resamples after another: all of many runs are large.

    Scenes are those with two or more visible objects; an undefined value is left out of the mean, as everywhere. In
    float32 it takes half the time, and is exact to six digits.
    """
    return _means(runs, dataset, metric, source, [(k, None) for k in slots], dtype)


def run_means_by_objects(
    runs: Sequence[RunScores], dataset: str, metric: str, source: str, slots: int, counts: Sequence[int]
) -> Iterator[MeansOfSome]:
    """The same with K `slots` over the scenes with each number of objects, in float32."""
    return _means(runs, dataset, metric, source, [(slots, count) for count in counts], np.float32)


def _means(
    runs: Sequence[RunScores],
    dataset: str,
    metric: str,
    source: str,
    columns: Sequence[tuple[int, int | None]],
    dtype: type[np.floating[Any]],
) -> Iterator[MeansOfSome]:
    """Each column has a K, and is over all scenes or over those with so many objects."""
    scored = [run.scenes.get((dataset, source, metric)) for run in runs]
    images = np.unique(np.concatenate([_images(of_run) for of_run in scored])) if scored else np.empty(0, np.int64)
    if not len(images):
        yield MeansOfSome(_ALL, np.full((RESAMPLES, len(runs), len(columns)), np.nan, dtype=dtype))
        return
    values = np.full((len(images), len(runs), len(columns)), np.nan, dtype=dtype)
    for place, of_run in enumerate(scored):
        if of_run is not None:
            of_run = of_run.load()
            rows = np.searchsorted(images, of_run.images)
            for column, (k, objects) in enumerate(columns):
                kept = ~of_run.few if objects is None else ~of_run.few & (of_run.objects == objects)
                values[rows[kept], place, column] = of_run.at(k)[kept]
    flat = values.reshape(len(images), -1)
    known = ~np.isnan(flat)
    filled = np.where(known, flat, 0).astype(dtype)
    is_whole = bool(known.all())  # then a resample has as many values as there are scenes, whichever are drawn
    if not is_whole:
        kinds, kind = np.unique(known, axis=1, return_inverse=True)  # scenes have a value in most columns or in none
    weights = _scene_weights(dataset, len(images))
    for start in range(0, RESAMPLES, _AT_ONCE):
        drawn = weights[start : start + _AT_ONCE].astype(dtype)
        with one_thread():
            means = product(drawn, filled)
            if is_whole:
                means /= len(images)
            else:
                counts = product(drawn, kinds.astype(dtype))
                means /= np.where(counts > 0, counts, np.nan)[:, kind.reshape(-1)]
        yield MeansOfSome(slice(start, start + _AT_ONCE), means.reshape(len(drawn), len(runs), len(columns)))


def product(left: Array, right: Array) -> Array:
    """The matrix product; by torch, whose threads can be told to stay out of it."""
    return torch.mm(torch.from_numpy(left), torch.from_numpy(right)).numpy()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """On matrices this narrow a second thread waits more than it works (ten times the CPU time on two busy cores), and
    the order of sums would depend on how many there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def median_over_runs(values: Array, names: Sequence[str], some: slice = _ALL) -> Array:
    """The median over drawn runs in each of some resamples: values (resamples, runs, ...) -> (resamples, ...).

    The same runs, by their names, are drawn alike whatever is asked of them.
    """
    runs = len(names)
    if runs == 1:
        return values[:, 0]
    drawn = _run_draws(", ".join(names), runs)[some]
    ordered = [values[np.arange(len(drawn)), drawn[:, place]] for place in range(runs)]
    if runs > _FEW_TO_SORT:
        ordered = list(np.sort(np.stack(ordered), axis=0))
    else:
        for last in range(runs - 1, 0, -1):  # neighbours change places: of a few columns far quicker than sorting rows
            for place in range(last):
                left, right = ordered[place], ordered[place + 1]
                ordered[place], ordered[place + 1] = np.minimum(left, right), np.maximum(left, right)
    return np.asarray((ordered[(runs - 1) // 2] + ordered[runs // 2]) / 2)


def _images(scored: SceneScores | None) -> Array:
    return np.empty(0, np.int64) if scored is None else scored.images[~scored.few]


@lru_cache(maxsize=8)  # claims ask for two sets of each scale in turn
def _scene_weights(dataset: str, scenes: int) -> Array:
    """How often each scene is drawn, (RESAMPLES, scenes): about once, and 256 times in no lifetime."""
    weights = np.empty((RESAMPLES, scenes), dtype=np.uint8)
    random = randomness.generator(_SEED, f"resampled scenes of {dataset}", scenes)
    offsets = scenes * np.arange(_AT_ONCE)[:, None]
    for start in range(0, RESAMPLES, _AT_ONCE):
        drawn = random.integers(scenes, size=(_AT_ONCE, scenes)) + offsets
        counts = np.bincount(drawn.reshape(-1), minlength=_AT_ONCE * scenes)
        weights[start : start + _AT_ONCE] = counts.reshape(_AT_ONCE, scenes)
    weights.setflags(write=False)
    return weights


@lru_cache(maxsize=64)
def _run_draws(names: str, runs: int) -> Array:
    """Which runs are drawn, (RESAMPLES, runs)."""
    drawn = randomness.generator(_SEED, f"resampled runs of {names}", runs).integers(runs, size=(RESAMPLES, runs))
    drawn = drawn.astype(np.min_scalar_type(runs))  # of many runs these are many numbers
    drawn.setflags(write=False)
    return drawn
