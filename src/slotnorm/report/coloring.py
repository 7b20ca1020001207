"""Colours of slots that stay the same over K and variants: a slot has the colour of what it covers, not of its number.

Slots are matched to a reference (Hungarian, by the overlap of their masks): to the true objects where the scene has
masks, else to the segments of the first run at its training K. Overlap with the slot that had the colour at the K
before counts too, so that slots that cover nothing in particular keep their colours when a slider moves.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from slotnorm.evaluation.examples import Examples

_FOR_THE_SAME_AS_BEFORE = 0.5  # of the weight of covering the same as the reference

Colors = Mapping[int, NDArray[np.int64]]
"""K -> (n, K): the colour number of every slot of every scene; 0 is the background's where it is known."""


def match_colors(
    examples: Examples, reference: tuple[NDArray[np.float64], Sequence[NDArray[np.int64]]] | None = None
) -> Colors:
    """Colour numbers for every K of a run's examples.

    `reference` is masks (n, R, h, w) and for each scene their colour numbers; None takes the true labels.
    """
    masks, numbers = reference or true_reference(examples)
    colors: dict[int, NDArray[np.int64]] = {k: np.empty(examples.masks[k].shape[:2], np.int64) for k in examples.slots}
    for scene in range(len(examples.scenes)):
        wanted = dict(zip(numbers[scene].tolist(), masks[scene], strict=True))
        before: dict[int, NDArray[np.float64]] = {}
        for k in examples.slots:
            shares = examples.masks[k][scene] / 255.0
            found = _match(shares, wanted, before)
            taken = {*found.tolist(), *wanted, *before}
            fresh = (number for number in itertools.count() if number not in taken)
            for slot in np.argsort(-shares.sum(axis=(1, 2)), kind="stable"):
                if found[slot] < 0:
                    found[slot] = next(fresh)
            before = dict(zip(found.tolist(), shares, strict=True))
            colors[k][scene] = found
    return colors


def true_reference(examples: Examples) -> tuple[NDArray[np.float64], list[NDArray[np.int64]]]:
    """The true segments (n, O + 1, h, w) at the masks' size, numbered by their labels; the run's own without labels."""
    first = examples.masks[examples.slots[0]]
    if examples.labels is None:
        return own_reference(examples, examples.slots[0])
    height, width = first.shape[-2:]
    rows = (np.arange(height) * examples.labels.shape[1] // height).astype(int)
    columns = (np.arange(width) * examples.labels.shape[2] // width).astype(int)
    labels = examples.labels[:, rows][:, :, columns]
    most = int(labels.max())
    segments = (labels[:, None] == np.arange(most + 1)[:, None, None]).astype(np.float64)
    return segments, [np.arange(most + 1) for _ in labels]


def own_reference(examples: Examples, slots: int) -> tuple[NDArray[np.float64], list[NDArray[np.int64]]]:
    """A run's own segments at one K as the reference, numbered from 1, since nobody knows which is background."""
    masks = examples.masks[slots] / 255.0
    return masks, [np.arange(1, masks.shape[1] + 1) for _ in masks]


def _match(
    shares: NDArray[np.float64], wanted: Mapping[int, NDArray[np.float64]], before: Mapping[int, NDArray[np.float64]]
) -> NDArray[np.int64]:
    """A colour number for each of the masks (K, h, w), or -1: what it covers counts most, then what was before."""
    numbers = [*wanted, *(number for number in before if number not in wanted)]
    score = np.zeros((len(shares), len(numbers)))
    for column, number in enumerate(numbers):
        for reference, weight in ((wanted, 1.0), (before, _FOR_THE_SAME_AS_BEFORE)):
            if number in reference:
                score[:, column] += weight * _overlap(shares, reference[number])
    found = np.full(len(shares), -1, dtype=np.int64)
    for slot, column in zip(*linear_sum_assignment(score, maximize=True), strict=True):
        if score[slot, column] > 0:
            found[slot] = numbers[column]
    return found


def _overlap(shares: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union of soft masks (K, h, w) with one (h, w): (K,)."""
    common = (shares * reference).sum(axis=(1, 2))
    union = shares.sum(axis=(1, 2)) + reference.sum() - common
    overlap: NDArray[np.float64] = common / np.maximum(union, 1e-9)
    return overlap
