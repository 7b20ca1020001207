"""The flat style: discs, squares and triangles of saturated colours on a dark ground, for the quickest experiments.

Places are in the units of the other style, [-3, 3] across the picture, x to the right and y up; everything lies in the
plane z = 0, and objects with higher labels lie on top.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray

from slotnorm.data.placement import (
    CANDIDATES,
    CENTRE,
    SAMPLE_COLUMNS,
    SAMPLE_ROWS,
    SAMPLES,
    Arrangement,
    Drawing,
    Floats,
    Layer,
    Objects,
    Request,
    Style,
    arrange,
    box,
    pick,
)

AREA = 3.0  # half the picture's side
BACKGROUND = (26, 26, 30)
COLORS = {
    "red": (230, 36, 36), "orange": (250, 136, 20), "yellow": (250, 226, 40), "green": (36, 190, 60),
    "cyan": (40, 210, 225), "blue": (50, 84, 245), "purple": (150, 50, 220), "pink": (250, 90, 190),
}  # fmt: skip
LARGE, SMALL = 1, 2
DISC, SQUARE, TRIANGLE = 1, 2, 3
OUTLINED = 2
_INNER, _INNER_LIGHT = 0.55, 0.35  # an outlined shape is this much darker in this share of its radius


def draw(request: Request, random: np.random.Generator, count: int) -> Drawing | None:
    """One scene with `count` objects, or None when they found no place."""
    objects = _draw_objects(request, random, count)
    pixels = request.size / (2 * AREA)  # a unit of length

    def candidates(chosen: list[int]) -> Floats:
        room = AREA - objects.radius[chosen, None, None]
        return room * random.uniform(-1, 1, (len(chosen), CANDIDATES, 2))

    def trace(chosen: list[int], places: Floats) -> list[Layer]:
        layers = []
        for j in chosen:
            (x, y), radius = places[j].tolist(), float(objects.radius[j])
            columns = box((AREA + x - radius) * pixels, (AREA + x + radius) * pixels, request.size)
            rows = box((AREA - y - radius) * pixels, (AREA - y + radius) * pixels, request.size)
            right = (_coordinates(columns, SAMPLE_COLUMNS, request.size) - x) / radius
            up = (-_coordinates(rows, SAMPLE_ROWS, request.size) - y) / radius
            factor = _factor(int(objects.shape[j]), float(objects.rotation[j]), right[:, None, :], up[:, :, None])
            # a shape is a flat cone, half as high as layers are apart: its depth also tells how far out a sample lies
            near = np.where(factor < 1, count - j + factor / 2, np.inf)
            layers.append(Layer(rows, columns, near.astype(np.float32)))
        return layers

    arranged = arrange(request, objects.radius, candidates, trace)
    if arranged is None:
        return None
    objects.x, objects.y = arranged.places.T
    return Drawing(_paint(arranged, objects), arranged.owner[CENTRE], objects)


def _draw_objects(request: Request, random: np.random.Generator, count: int) -> Objects:
    drawn = random.random((4, count))
    low, high = (2 * AREA * share for share in request.radius)
    radius = low + (high - low) * drawn[1]
    # as long as there are colours enough no two objects share one: where they overlap their border must be visible
    colors = random.permutation(request.colors)
    if count > len(colors):
        colors = pick(random.random(count), request.colors)
    return Objects(
        shape=pick(drawn[0], request.shapes),
        size=np.where(radius < (low + high) / 2, SMALL, LARGE),
        material=pick(drawn[2], request.materials),
        color=colors[:count],
        radius=radius,
        rotation=360 * drawn[3],
        x=np.zeros(count),
        y=np.zeros(count),
        z=np.zeros(count),
    )


def _coordinates(pixels: slice, offsets: Floats, size: int) -> Floats:
    """Where the samples of these pixels lie between -AREA and AREA, (SAMPLES, pixels)."""
    return (np.arange(pixels.start, pixels.stop) + 0.5 + offsets[:, None]) * (2 * AREA / size) - AREA


def _factor(shape: int, rotation: float, x: Floats, y: Floats) -> Floats:
    """By which factor the unit shape must be scaled to reach (x, y): below 1 inside; all reach 1 from their middle."""
    if shape == DISC:
        return np.asarray(np.sqrt(x * x + y * y))
    angle = math.radians(rotation)
    sides = {SQUARE: 4, TRIANGLE: 3}[shape]
    faces = [angle + 2 * math.pi * side / sides for side in range(sides)]
    beyond = functools.reduce(np.maximum, (x * math.cos(face) + y * math.sin(face) for face in faces))
    return beyond / math.cos(math.pi / sides)


def _paint(arranged: Arrangement, objects: Objects) -> NDArray[np.uint8]:
    """The image (size, size, 3): the mean of its samples' colours."""
    outlined = np.concatenate([[False], objects.material == OUTLINED])
    owner, height = arranged.owner.astype(np.int64), np.where(arranged.owner, arranged.depth, 0)
    dark = outlined[owner] & (height % 1 < _INNER / 2)
    table = np.array([BACKGROUND, *(list(COLORS.values())[color - 1] for color in objects.color)], np.float32)
    table = np.concatenate([table, _INNER_LIGHT * table])
    shades = table[owner + (len(objects) + 1) * dark]
    mean: Floats = np.add.reduce(shades, axis=0) / SAMPLES
    return np.rint(mean).astype(np.uint8)


def _usual_radius(most: int) -> tuple[float, float]:
    """Shares of the picture's side; more than 7 objects share the room of 7."""
    scale = min(1.0, math.sqrt(7 / most))
    return 0.14 * scale, 0.20 * scale


def _usual_visible(size: int, radius: tuple[float, float]) -> int:
    """A fifth of the smallest disc, which is half of the smallest triangle."""
    return max(4, round(0.2 * math.pi * (radius[0] * size) ** 2))


STYLE = Style(
    name="flat",
    smallest=16,
    shapes=("disc", "square", "triangle"),
    sizes=("large", "small"),
    materials=("solid", "outlined"),
    colors=tuple(COLORS),
    usual_materials=("solid",),
    margin=-0.3,
    least_margin=-1.0,
    largest_radius=0.5,
    usual_radius=_usual_radius,
    usual_visible=_usual_visible,
    most_visible=lambda size, radius: math.pi * (radius[0] * size + 0.5) ** 2,  # a disc hits fewer pixels' centres
    draw=draw,
)
