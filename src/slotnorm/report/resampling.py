"""How sure a number is: the bootstrap over test scenes and over runs, vectorised, the same draws at every rebuild.

A resample draws scenes with replacement, once for all runs that were scored on a set: normalizations are compared on
the same scenes. Then it draws, for each normalization, as many of its runs as there are. Whatever is computed from
several numbers (a difference, a mean over K) is computed in each of the 10,000 resamples; the 95 % interval holds the
middle of what comes out.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
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
_AT_ONCE = 1_000  # resamples whose scenes are in memory at full precision

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

    @property
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


def run_means(
    runs: Sequence[RunScores],
    dataset: str,
    metric: str,
    source: str,
    slots: Sequence[int],
    dtype: type[np.floating[Any]] = np.float64,
    objects: int | None = None,
) -> Array:
    """Every run's mean over scenes in every resample, (RESAMPLES, runs, K); NaN where a run has no value.

    Scenes are those with two or more visible objects, or of them those with this many `objects`; an undefined value is
    left out of the mean, as everywhere. In float32 it takes half the time, and is exact to six digits.
    """
    scored = [run.scenes.get((dataset, source, metric)) for run in runs]
    images = np.unique(np.concatenate([_images(of_run) for of_run in scored])) if scored else np.empty(0, np.int64)
    means = np.full((RESAMPLES, len(runs), len(slots)), np.nan, dtype=dtype)
    if not len(images):
        return means
    values = np.full((len(images), len(runs), len(slots)), np.nan, dtype=dtype)
    for place, of_run in enumerate(scored):
        if of_run is not None:
            kept = ~of_run.few if objects is None else ~of_run.few & (of_run.objects == objects)
            rows = np.searchsorted(images, of_run.images[kept])
            for column, k in enumerate(slots):
                values[rows, place, column] = of_run.at(k)[kept]
    flat = values.reshape(len(images), -1)
    known = ~np.isnan(flat)
    filled, everything, counted = np.where(known, flat, 0).astype(dtype), known.all(), known.astype(dtype)
    flat_means = means.reshape(RESAMPLES, -1)
    weights = _scene_weights(dataset, len(images))
    with one_thread():
        for start in range(0, RESAMPLES, _AT_ONCE):
            some = weights[start : start + _AT_ONCE].astype(dtype)
            counts = some.sum(axis=1, keepdims=True) if everything else _product(some, counted)
            flat_means[start : start + _AT_ONCE] = _product(some, filled) / np.where(counts > 0, counts, np.nan)
    return means


def _product(left: Array, right: Array) -> Array:
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


def median_over_runs(values: Array, names: Sequence[str]) -> Array:
    """The median over drawn runs in each resample: values (RESAMPLES, runs, ...) -> (RESAMPLES, ...).

    The same runs, by their names, are drawn alike whatever is asked of them.
    """
    runs = len(names)
    if runs == 1:
        return values[:, 0]
    drawn = _run_draws(", ".join(names), runs)
    ordered = [values[np.arange(RESAMPLES), drawn[:, place]] for place in range(runs)]
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


@lru_cache(maxsize=4)
def _scene_weights(dataset: str, scenes: int) -> Array:
    """How often each scene is drawn, (RESAMPLES, scenes)."""
    weights = np.empty((RESAMPLES, scenes), dtype=np.uint16)
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
    drawn.setflags(write=False)
    return drawn
