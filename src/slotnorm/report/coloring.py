"""Colours of slots that stay the same over K and variants: a slot has the colour of what it covers, not of its number.

Slots are matched to a reference (Hungarian, by the overlap of their masks): to the true objects where the scene has
masks, else to the segments of the first run at its training K. Overlap with the slot that had the colour at the K
before counts too, so that slots that cover nothing in particular keep their colours when a slider moves.

A scene's own palette keeps away from the colours of the objects in it: a red segment beside a red object would say that
they belong together.
"""

import colorsys
import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from slotnorm.evaluation.examples import Examples
from slotnorm.report.resampling import one_thread, product

_FOR_THE_SAME_AS_BEFORE = 0.5  # of the weight of covering the same as the reference
APART = 0.1  # in OKLab, five times what eyes just notice: so far a slot's colour is from any object's in its scene
_LIGHTNESS = 0.4  # of a difference in lightness counts when colours are chosen: hues tell more than shades
_MAIN_COLORS = 16  # of an image whose objects nobody marked
_NEUTRALS = ((0.24, 0.24, 0.26), (0.80, 0.80, 0.78), (0.45, 0.45, 0.47), (0.95, 0.95, 0.93), (0.12, 0.12, 0.13))

Colors = Mapping[int, NDArray[np.int64]]
"""K -> (n, K): the colour number of every slot of every scene; 0 is the background's where it is known."""


def scene_palettes(examples: Examples, count: int) -> NDArray[np.float64]:
    """Colours (n, count, 3) in [0, 1] by colour number for each scene: none is that of an object seen in it."""
    return np.stack([_chosen(_seen_colors(examples, scene), count) for scene in range(len(examples.scenes))])


def oklab(colors: NDArray[Any]) -> NDArray[np.float64]:
    """sRGB (..., 3) in [0, 1] as OKLab, where distances are as eyes see them."""
    linear = np.where(colors <= 0.04045, colors / 12.92, ((np.asarray(colors) + 0.055) / 1.055) ** 2.4)
    colors_seen: NDArray[np.float64] = np.cbrt(linear @ _TO_CONES.T) @ _FROM_CONES.T
    return colors_seen


# Ottosson's matrices, https://bottosson.github.io/posts/oklab
_TO_CONES = np.array([
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
])  # fmt: skip
_FROM_CONES = np.array([
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
])  # fmt: skip


def _seen_colors(examples: Examples, scene: int) -> NDArray[np.float64]:
    """The colours (m, 3) of a scene's objects; without true masks the main colours of its image, without one none."""
    if examples.images is None:
        return np.empty((0, 3))
    image = examples.images[scene]
    if examples.labels is None:
        few = Image.fromarray(np.ascontiguousarray(image)).quantize(_MAIN_COLORS, Image.Quantize.MEDIANCUT)
        return np.unique(np.asarray(few.convert("RGB")).reshape(-1, 3), axis=0) / 255
    labels = examples.labels[scene]
    return np.array([np.median(image[labels == label], axis=0) / 255 for label in np.unique(labels[labels > 0])])


def _chosen(seen: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Colours (count, 3), each as far as can be from those that are seen and from those before it; first a neutral."""
    pool = np.concatenate([np.array(_NEUTRALS), _pool()])
    places, objects = oklab(pool), oklab(seen.reshape(-1, 3))
    allowed = _distances(places, objects).min(axis=1, initial=np.inf) >= APART
    by_hue = np.array([_LIGHTNESS, 1, 1])
    places, objects = places * by_hue, objects * by_hue
    neutral = int(np.argmax(allowed[: len(_NEUTRALS)]))  # the first that no object has
    chosen = [neutral]
    nearest = np.minimum(
        _distances(places, objects).min(axis=1, initial=np.inf), _distances(places, places[[neutral]])[:, 0]
    )
    nearest[: len(_NEUTRALS)] = -1
    nearest[~allowed] = -1
    while len(chosen) < count:
        best = int(np.argmax(nearest))
        if nearest[best] <= 0:  # more slots than colours: they come again
            chosen += [chosen[1 + place % max(1, len(chosen) - 1)] for place in range(count - len(chosen))]
            break
        chosen.append(best)
        nearest = np.minimum(nearest, _distances(places, places[[best]])[:, 0])
    return pool[chosen]


def _distances(places: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """(m, 3) and (k, 3) -> (m, k)."""
    distances: NDArray[np.float64] = np.linalg.norm(places[:, None] - others[None], axis=-1)
    return distances


@cache
def _pool() -> NDArray[np.float64]:
    """Colours that may be chosen, (m, 3): many hues, three lightnesses, clear but not glaring."""
    shades = ((0.62, 0.95), (0.85, 0.75), (0.45, 0.98))
    return np.array([
        colorsys.hsv_to_rgb(hue / 30, saturation, value) for saturation, value in shades for hue in range(30)
    ])  # fmt: skip


def match_colors(
    examples: Examples, reference: tuple[NDArray[np.float64], Sequence[NDArray[np.int64]]] | None = None
) -> Colors:
    """Colour numbers for every K of a run's examples.

    `reference` is masks (n, R, h, w) and for each scene their colour numbers; None takes the true labels.
    """
    with one_thread():
        return _matched_colors(examples, *(reference or true_reference(examples)))


def _matched_colors(
    examples: Examples, masks: NDArray[np.float64], numbers: Sequence[NDArray[np.int64]]
) -> dict[int, NDArray[np.int64]]:
    colors: dict[int, NDArray[np.int64]] = {k: np.empty(examples.masks[k].shape[:2], np.int64) for k in examples.slots}
    for scene in range(len(examples.scenes)):
        wanted = _Segments.of(masks[scene], numbers[scene].tolist())
        before: _Segments | None = None
        for k in examples.slots:
            shares = examples.masks[k][scene] / 255.0
            segments = _Segments.of(shares, [])
            matched = _match(segments, wanted, before)
            taken = {*matched.tolist(), *wanted.numbers, *(before.numbers if before else ())}
            fresh = (number for number in itertools.count() if number not in taken)
            for slot in np.argsort(-shares.sum(axis=(1, 2)), kind="stable"):
                if matched[slot] < 0:
                    matched[slot] = next(fresh)
            before = segments._replace(numbers=matched.tolist())
            colors[k][scene] = matched
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


class _Segments(NamedTuple):
    """Soft masks of one scene, how much each holds, and their colour numbers where these are known."""

    masks: NDArray[np.float64]
    """(K, h * w)."""
    sizes: NDArray[np.float64]
    """(K,)."""
    numbers: list[int]

    @classmethod
    def of(cls, masks: NDArray[np.float64], numbers: list[int]) -> "_Segments":
        """Of masks (K, h, w)."""
        flat = masks.reshape(len(masks), -1)
        return cls(flat, flat.sum(axis=1), numbers)


def _match(segments: _Segments, wanted: _Segments, before: _Segments | None) -> NDArray[np.int64]:
    """A colour number for each of the segments, or -1: what it covers counts most, then what was before."""
    from scipy.optimize import linear_sum_assignment

    references = [(wanted, 1.0)] + ([(before, _FOR_THE_SAME_AS_BEFORE)] if before else [])
    numbers = list(dict.fromkeys(number for reference, _ in references for number in reference.numbers))
    places = {number: place for place, number in enumerate(numbers)}
    score = np.zeros((len(segments.masks), len(numbers)))
    for reference, weight in references:
        score[:, [places[number] for number in reference.numbers]] += weight * _overlaps(segments, reference)
    matched = np.full(len(segments.masks), -1, dtype=np.int64)
    for slot, column in zip(*linear_sum_assignment(score, maximize=True), strict=True):
        if score[slot, column] > 0:
            matched[slot] = numbers[column]
    return matched


def _overlaps(segments: _Segments, references: _Segments) -> NDArray[np.float64]:
    """Intersection over union of soft masks with others: (K, R)."""
    common = product(segments.masks, references.masks.T)
    union = segments.sizes[:, None] + references.sizes - common
    overlaps: NDArray[np.float64] = common / np.maximum(union, 1e-9)
    return overlaps
