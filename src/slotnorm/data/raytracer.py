"""Rays against solids, vectorised: a pinhole camera, and spheres, cubes and cylinders that stand on the ground z = 0.

Every solid is convex, so a ray o + t d meets it in one interval of t, `near < far` where it hits. Rays are taken to the
solid's own frame, where it is the unit sphere, the cube [-1, 1]^3 or the cylinder of radius 1 and height 2; t keeps its
meaning. Vectors are float32 arrays (3, ...), directions are not normalised. Only +, -, *, / and sqrt touch them: these
are exactly rounded, so no bit depends on how numpy cuts an array into registers.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slotnorm.data.placement import SAMPLE_COLUMNS, SAMPLE_ROWS, Floats, Layer, box

Vector = tuple[float, float, float]

CUBE, SPHERE, CYLINDER = 1, 2, 3  # as in CLEVR's properties
HALF_WIDTH = 0.275  # tangent of half the angle of view: about CLEVR's lens, cut to the middle square


@functools.cache
def sample_grid(size: int) -> tuple[Floats, Floats]:
    """Tangents of the samples' angles, right (samples, 1, size) and up (samples, size, 1)."""
    pixels = np.arange(size) + 0.5
    right = (pixels[None, :] + SAMPLE_COLUMNS[:, None]) * (2 / size) - 1
    up = 1 - (pixels[None, :] + SAMPLE_ROWS[:, None]) * (2 / size)
    return (right * HALF_WIDTH)[:, None, :].astype(np.float32), (up * HALF_WIDTH)[:, :, None].astype(np.float32)


@dataclass(frozen=True)
class Camera:
    """A pinhole; the columns of `axes` (3, 3) are its unit vectors right, up and forward."""

    position: Floats
    axes: Floats
    size: int

    @staticmethod
    def looking_at(target: Vector, position: Vector, size: int) -> "Camera":
        """A camera held level."""
        x, y, z = (b - a for a, b in zip(position, target, strict=True))
        flat, length = math.hypot(x, y), math.hypot(x, y, z)
        right = (y / flat, -x / flat, 0.0)
        forward = (x / length, y / length, z / length)
        up = (right[1] * forward[2], -right[0] * forward[2], right[0] * forward[1] - right[1] * forward[0])
        return Camera(np.array(position), np.array([right, up, forward]).T, size)

    def project(self, points: Sequence[Floats] | Floats) -> tuple[Floats, Floats, Floats]:
        """Column and row in pixels, and pixels a unit of length, of points (x, y, z) in front of the camera."""
        x, y, z = (points[axis] - self.position[axis] for axis in range(3))
        right, up, depth = (x * axis[0] + y * axis[1] + z * axis[2] for axis in self.axes.T.tolist())
        scale = self.size / (2 * HALF_WIDTH) / depth
        return self.size / 2 + right * scale, self.size / 2 - up * scale, scale

    def rays(self, axes: Floats, rows: slice, columns: slice) -> Floats:
        """Directions (3, samples, rows, columns) of a box of pixels, for a camera whose axes are written as `axes`."""
        right, up, forward = axes.astype(np.float32).T[:, :, None, None, None]
        right_grid, up_grid = sample_grid(self.size)
        rays: Floats = right_grid[:, :, columns] * right + (up_grid[:, rows, :] * up + forward)
        return rays

    def boxes(self, points: Floats) -> list[tuple[slice, slice]]:
        """The (rows, columns) of pixels that points (3, solids, n) of each solid span."""
        spanned = np.empty((2, *points.shape[1:]))
        spanned[1], spanned[0], _ = self.project(points)
        limits = zip(*spanned.min(axis=2).tolist(), *spanned.max(axis=2).tolist(), strict=True)
        return [(box(top, bottom, self.size), box(left, right, self.size)) for top, left, bottom, right in limits]


@dataclass(frozen=True)
class Solid:
    """One object on the ground: its centre is at height `radius`; only a cube shows its turn."""

    shape: int
    x: float
    y: float
    radius: float
    cosine: float
    sine: float

    @staticmethod
    def standing(shape: int, radius: float, rotation: float, x: float, y: float) -> "Solid":
        """A solid turned by `rotation` degrees about the vertical."""
        angle = math.radians(rotation) if shape == CUBE else 0.0
        return Solid(shape, x, y, radius, math.cos(angle), math.sin(angle))

    @functools.cached_property
    def centre(self) -> Floats:
        return np.array([self.x, self.y, self.radius], np.float32)

    def frame(self, vectors: Floats) -> Floats:
        """Directions of the world (3, ...) in the solid's own frame."""
        local = vectors * (1 / self.radius)
        if self.shape == CUBE:
            x, y = local[0] * self.cosine + local[1] * self.sine, local[1] * self.cosine - local[0] * self.sine
            local[0], local[1] = x, y
        return local

    def place(self, points: Floats) -> Floats:
        """Points of the world (3, ...) in the solid's own frame."""
        return self.frame(points - self.centre.reshape(-1, *(1,) * (points.ndim - 1)))

    def interval(self, origins: Floats, directions: Floats) -> tuple[Floats, Floats]:
        """Where rays in the solid's own frame (3, ...) enter and leave it: `near < far` where they hit."""
        with np.errstate(divide="ignore", invalid="ignore"):  # rays along a face: infinite, and compared rightly
            return _INTERVALS[self.shape](origins, directions)

    def meet(self, origins: Floats, directions: Floats) -> tuple[Floats, Floats]:
        """Where rays of the world (3, ...) enter and leave the solid."""
        return self.interval(self.place(origins), self.frame(directions))


def dot(a: Floats, b: Floats) -> Floats:
    """Inner products of vectors (3, ...), summed in one order."""
    product = a * b
    total: Floats = product[0] + product[1] + product[2]
    return total


def _sphere(origins: Floats, directions: Floats) -> tuple[Floats, Floats]:
    square = dot(directions, directions)
    middle = dot(origins, directions) / square  # negative: t is measured from the origin towards the centre
    # the distance of the ray from the centre, not b^2 - 4ac, which would cancel most of float32's digits
    aside = origins - middle * directions
    half = np.sqrt(np.maximum(1 - dot(aside, aside), 0) / square)
    return -half - middle, half - middle


def _cylinder(origins: Floats, directions: Floats) -> tuple[Floats, Floats]:
    flat_origins, flat_directions = origins[:2], directions[:2]
    product = flat_directions * flat_directions
    square = product[0] + product[1]
    product = flat_origins * flat_directions
    middle = (product[0] + product[1]) / square
    aside = flat_origins - middle * flat_directions
    aside *= aside
    half = np.sqrt(np.maximum(1 - (aside[0] + aside[1]), 0) / square)
    near, far = _slabs(origins[2], directions[2])
    return np.maximum(-half - middle, near), np.minimum(half - middle, far)


def _cube(origins: Floats, directions: Floats) -> tuple[Floats, Floats]:
    near, far = _slabs(origins, directions)
    return np.maximum(np.maximum(near[0], near[1]), near[2]), np.minimum(np.minimum(far[0], far[1]), far[2])


def _slabs(origins: Floats, directions: Floats) -> tuple[Floats, Floats]:
    """Where coordinates that grow from `origins` by `directions` lie between -1 and 1."""
    inverse = 1 / directions
    middle, half = origins * inverse, np.abs(inverse)
    return -half - middle, half - middle


_INTERVALS = {CUBE: _cube, SPHERE: _sphere, CYLINDER: _cylinder}


def corners(solids: list[Solid]) -> Floats:
    """The corners (3, solids, 8) of boxes that hold the solids."""
    values = np.array([(s.x, s.y, s.radius, s.cosine, s.sine) for s in solids]).reshape(-1, 5)
    x, y, radius, cosine, sine = values.T[:, :, None]
    along, across, height = radius * _CORNERS[:, None, :]
    points = np.empty((3, len(solids), 8))
    points[0] = x + cosine * along - sine * across
    points[1] = y + sine * along + cosine * across
    points[2] = radius + height
    return points


_CORNERS = np.array([[i, j, k] for i in (-1.0, 1.0) for j in (-1.0, 1.0) for k in (-1.0, 1.0)]).T


def see(camera: Camera, solids: list[Solid]) -> list[Layer]:
    """The solids' layers: how far along the camera's rays each is met, inside its bounding box."""
    layers = []
    for solid, (rows, columns) in zip(solids, camera.boxes(corners(solids)), strict=True):
        # the camera is taken to the solid's frame instead of every ray
        rays = camera.rays(solid.frame(camera.axes), rows, columns)
        origin = solid.place(camera.position).astype(np.float32).reshape(3, 1, 1, 1)
        near, far = solid.interval(origin, rays)
        near[~(near < far)] = np.inf
        layers.append(Layer(rows, columns, near))
    return layers


def ground_points(camera: Camera) -> Floats:
    """Where the samples' rays meet z = 0: x and y, (2, samples, size, size). The camera sees no horizon."""
    right_grid, up_grid = sample_grid(camera.size)
    x, y, z = (
        right_grid * np.float32(right) + (up_grid * np.float32(up) + np.float32(forward))
        for right, up, forward in camera.axes.tolist()
    )
    along = np.float32(-camera.position[2]) / z
    points = np.empty((2, *along.shape), np.float32)
    points[0] = along * x + np.float32(camera.position[0])
    points[1] = along * y + np.float32(camera.position[1])
    return points


def cast_shadows(lit: NDArray[np.bool_], camera: Camera, ground: Floats, solids: list[Solid], lamp: Floats) -> None:
    """Clear `lit` (samples, size, size) where solids hide a sample's point of the lamp (3, samples) from the ground."""
    if not solids:
        return
    points, lamps = corners(solids)[:, :, :, None], lamp.astype(np.float64)[:, None, None, :]
    shadow = lamps + (points - lamps) * (lamps[2] / (lamps[2] - points[2]))
    origins = lamp[:, :, None, None]
    for solid, (rows, columns) in zip(solids, camera.boxes(shadow.reshape(3, len(solids), -1)), strict=True):
        directions = np.empty((3, len(lit), rows.stop - rows.start, columns.stop - columns.start), np.float32)
        np.subtract(ground[:, :, rows, columns], origins[:2], out=directions[:2])
        directions[2] = -origins[2]
        near, far = solid.meet(origins, directions)
        lit[:, rows, columns] &= ~(near < far)


def pairs_on_the_way(solids: list[Solid], lamp: Floats) -> list[tuple[int, int]]:
    """(j, i) where solid j may hide the lamp (3, 1) from solid i: j's ball touches the ball-wide beam from it to i."""
    if len(solids) < 2:
        return []
    beams = np.array([solid.centre for solid in solids]).T - lamp
    balls = math.sqrt(3) * np.array([solid.radius for solid in solids])  # a cube's corners are the farthest
    square = dot(beams, beams)
    length = np.sqrt(square)
    along = dot(beams[:, :, None], (beams / length)[:, None, :])
    close = (square[:, None] - along * along < (balls[:, None] + balls) ** 2) & (along < length + balls)
    return [(j, i) for j, i in np.argwhere(close).tolist() if j != i]
