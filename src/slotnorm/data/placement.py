"""Where objects may stand: apart from each other, inside the picture, each visible; drawn by bounded rejection.

Both styles share this. A style turns one placed object into a `Layer`, its depth at five samples in each pixel of
its bounding box. Sample `CENTRE` is the pixel's centre: labels are taken there, images from the mean of all five.
Everything is computed scene by scene, so no number can depend on which scenes are made together.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]  # float32 in pictures, float64 in places: numpy's stubs lose it in arithmetic

# Offsets from a pixel's centre, in pixels: no two samples share a row or a column, so that edges along the picture's
# axes, the most common ones, get six shades.
SAMPLE_ROWS = np.array([0.2, -0.4, 0.0, 0.4, -0.2])
SAMPLE_COLUMNS = np.array([-0.4, -0.2, 0.0, 0.2, 0.4])
SAMPLES, CENTRE = 5, 2

# Bounds of the rejection: 15 objects on 32 x 32 pixels need 2 rounds on average, and 10 at most in 60 scenes.
CANDIDATES = 64  # places tried for one object before the arrangement is given up
ROUNDS = 20  # in which objects that are hidden get another place
ARRANGEMENTS = 40  # new objects, camera and places before the request is called impossible


@dataclass(frozen=True)
class Request:
    """What one scene must satisfy, every default filled in; values are 1-based positions in the style's names."""

    size: int
    shapes: NDArray[np.int64]
    materials: NDArray[np.int64]
    colors: NDArray[np.int64]
    radius: tuple[float, float]
    margin: float
    min_visible: int


@dataclass
class Objects:
    """The objects of one scene, one array entry each; `shape`, `size`, `material`, `color` are 1-based values."""

    shape: NDArray[np.int64]
    size: NDArray[np.int64]
    material: NDArray[np.int64]
    color: NDArray[np.int64]
    radius: Floats
    rotation: Floats  # degrees about the vertical
    x: Floats
    y: Floats
    z: Floats

    def __len__(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Layer:
    """One object's depth in its bounding box: near (SAMPLES, rows, columns), infinite where the sample misses it."""

    rows: slice
    columns: slice
    near: Floats


@dataclass(frozen=True)
class Style:
    """A way to draw scenes: the names of its property values, its defaults, and the function that draws one scene."""

    name: str
    smallest: int
    shapes: tuple[str, ...]
    sizes: tuple[str, ...]
    materials: tuple[str, ...]
    colors: tuple[str, ...]
    usual_materials: tuple[str, ...]
    margin: float
    least_margin: float
    largest_radius: float
    usual_radius: Callable[[int], tuple[float, float]]  # of the largest object count
    usual_visible: Callable[[int, tuple[float, float]], int]  # of size and radius
    most_visible: Callable[[int, tuple[float, float]], float]  # the pixels that its smallest object can fill
    draw: Callable[[Request, np.random.Generator, int], "Drawing | None"]


@dataclass(frozen=True)
class Drawing:
    """A finished scene: image (H, W, 3) uint8, labels (H, W) uint8, and its objects in label order."""

    image: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    objects: Objects


@dataclass(frozen=True)
class Arrangement:
    """Where objects are: places (O, 2), and label and depth of what each sample (SAMPLES, size, size) meets first."""

    places: Floats
    owner: NDArray[np.uint8]
    depth: Floats


def arrange(
    request: Request,
    reach: Floats,
    candidates: Callable[[list[int]], Floats],
    trace: Callable[[list[int], Floats], list[Layer]],
) -> Arrangement | None:
    """Find places for objects whose outlines reach `reach` (O,) from their centres; None when it fails.

    `candidates(chosen)` draws places (len(chosen), n, 2) for these objects, NaN for those that are outside the picture;
    `trace(chosen, places)` gives their layers. The widest objects choose first, or they would find no room.
    """
    places = np.full((len(reach), 2), np.inf)
    layers: dict[int, Layer] = {}
    moving = np.argsort(-reach, kind="stable").tolist()
    for _ in range(ROUNDS):
        places[moving] = np.inf  # an object that moves is in nobody's way
        for j, drawn in zip(moving, candidates(moving), strict=True):
            away = drawn[:, None] - places
            away *= away
            least = (1 + request.margin) * (reach[j] + reach)
            free = (away[:, :, 0] + away[:, :, 1] >= least * least).all(axis=1)
            first = int(free.argmax())
            if not free[first]:
                return None
            places[j] = drawn[first]
        layers.update(zip(moving, trace(moving, places), strict=True))
        ordered = [layers[j] for j in range(len(reach))]
        owner, depth = compose(ordered, request.size)
        visible = np.bincount(owner[CENTRE].ravel(), minlength=len(reach) + 1)[1:]
        moving = np.flatnonzero(visible < request.min_visible).tolist()
        if not moving:
            return Arrangement(places, owner, depth)
    return None


def compose(layers: list[Layer], size: int) -> tuple[NDArray[np.uint8], Floats]:
    """The nearest layer's label (0: none) and depth at every sample, each (SAMPLES, size, size)."""
    depth = np.full((SAMPLES, size, size), np.inf, np.float32)
    owner = np.zeros((SAMPLES, size, size), np.uint8)
    for label, layer in enumerate(layers, start=1):
        region = depth[:, layer.rows, layer.columns]
        closer = layer.near < region
        np.copyto(region, layer.near, where=closer)
        np.copyto(owner[:, layer.rows, layer.columns], np.uint8(label), where=closer)
    return owner, depth


def pick(drawn: Floats, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Values chosen by uniform draws from [0, 1)."""
    return values[(drawn * len(values)).astype(np.int64)]


def box(low: float, high: float, size: int) -> slice:
    """The pixels that samples between two picture coordinates may fall into, cut to the picture."""
    first = min(max(math.floor(low) - 1, 0), size)
    return slice(first, max(min(math.ceil(high) + 1, size), first))
