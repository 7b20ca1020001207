"""Light on the ground and on solids: a soft key light that casts shadows, a fill light, ambient light, mirrors.

Vectors and colours are float32 arrays (3, ...), colours linear until `encode`; what differs between the two lamps has
an axis of length 2, key then fill.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slotnorm.data.placement import Floats
from slotnorm.data.raytracer import CYLINDER, SPHERE, Solid, dot

BEVEL = 0.14  # share of a cube's or cylinder's half side over which its edges look rounded
CONTACT = 0.75  # the share of ambient light that an object takes from the ground it stands on
LAMP_RADIUS = 0.5  # of the key light's disc: the wider, the softer the shadows

AMBIENT = np.array([[0.30], [0.31], [0.33]], np.float32)
LAMPS = np.array([[[1.00], [0.88]], [[0.97], [0.94]], [[0.92], [1.00]]], np.float32)  # warm key, cool fill
GROUND = np.array([[0.30], [0.30], [0.31]], np.float32)

_UNIT_DISTANCE = np.float32(9.0)  # at which a lamp's power is what a surface gets that faces it
_RUBBER_SHINE = np.array([[0.10], [0.03]], np.float32)
_METAL_SHINE = np.array([[2.2], [0.8]], np.float32)
_GLOW = np.array([[1.2], [0.45]], np.float32)


@dataclass(frozen=True)
class Lights:
    """The two lamps: places (3, 2, 1) and powers (2, 1)."""

    places: Floats
    powers: Floats

    def key_points(self) -> Floats:
        """A point of the key light's disc (3, SAMPLES) for each sample of a pixel: together they make shadows soft."""
        return self.places[:, 0] + _DISC

    def toward(self, places: Floats) -> tuple[Floats, Floats]:
        """Unit vectors (3, 2, n) from places (3, n) to the lamps, and the light (2, n) that these send there."""
        away = self.places - places[:, None]
        square = dot(away, away)
        return away / np.sqrt(square), self.powers * (_UNIT_DISTANCE * _UNIT_DISTANCE) / square

    def on_ground(self, places: Floats) -> Floats:
        """What the lamps give (2, n) to the ground at places (3, n), without shadows."""
        to_lamps, light = self.toward(places)
        light *= to_lamps[2]
        return light


def _disc() -> Floats:
    """The middle of the disc and four points around it."""
    turns = np.pi * (np.array([0.0, 1.0, 0.0, 3.0, 2.0]) / 2 + 0.15)
    lengths = LAMP_RADIUS * np.array([0.9, 0.9, 0.0, 0.9, 0.9])
    return np.stack([lengths * np.cos(turns), lengths * np.sin(turns), 0 * turns]).astype(np.float32)


_DISC = _disc()


@dataclass(frozen=True)
class Points:
    """Places on solids, unit normals, unit vectors to the eye, and albedo, each (3, n); `lit` (n,) by the key light."""

    places: Floats
    normals: Floats
    eyes: Floats
    albedo: Floats
    lit: NDArray[np.bool_]


def unit(vectors: Floats) -> Floats:
    """Vectors (3, ...) of length 1."""
    return vectors / np.sqrt(dot(vectors, vectors))


def colored(light: Floats) -> Floats:
    """Light of the two lamps (2, n) in their colours, (3, n)."""
    both = LAMPS * light
    return both[:, 0] + both[:, 1]


def openness(x: Floats, y: Floats, standing: Floats) -> Floats:
    """The share of ambient light on the ground at (x, y): less close to solids given as x, y, radius (3, ...)."""
    across, along = (x - standing[0]) / standing[2], (y - standing[1]) / standing[2]
    square: Floats = across * across + along * along + 1
    return 1 - np.float32(CONTACT) / (square * np.sqrt(square))


def normals(solid: Solid, places: Floats) -> Floats:
    """Unit normals (3, n) of a solid's surface, bent near the edges of cubes and cylinders as if these were round."""
    local = solid.place(places)
    if solid.shape == SPHERE:
        return unit(local)
    if solid.shape == CYLINDER:
        length = np.sqrt(local[0] * local[0] + local[1] * local[1])
        local[:2] *= _bend(length) / np.maximum(length, 1e-6)
        local[2] = _bend(local[2])
        return unit(local)
    local = _bend(local)
    x, y = local[0] * solid.cosine - local[1] * solid.sine, local[0] * solid.sine + local[1] * solid.cosine
    local[0], local[1] = x, y
    return unit(local)


def _bend(coordinates: Floats) -> Floats:
    """What of coordinates lies within BEVEL of -1 or 1: on a face only its own coordinate, near an edge two of them."""
    return np.copysign(np.maximum(np.abs(coordinates) - (1 - BEVEL), 1e-6), coordinates)


def shade(lights: Lights, points: Points, first_metal: int, mirrored: Floats) -> Floats:
    """The colour (3, n) of points; from number `first_metal` on they are metal, and what they mirror is (3, metals).

    Rubber is matte with wide faint highlights (the cosine to the half-way vector to the power 16, after Blinn); metal
    has less diffuse light, mirrors in its own colour, and small bright highlights (to the power 128).
    """
    to_lamps, light = lights.toward(points.places)
    normals = points.normals[:, None]
    light *= np.maximum(dot(normals, to_lamps), 0)
    light[0] *= points.lit
    shine = _power(np.maximum(dot(normals, unit(points.eyes[:, None] + to_lamps)), 0), 4)
    shine[0] *= points.lit
    colors: Floats = points.albedo * (AMBIENT * (0.72 + 0.28 * points.normals[2]) + colored(light))
    rubber, metal = slice(0, first_metal), slice(first_metal, None)
    colors[:, rubber] += colored(_RUBBER_SHINE * shine[:, rubber])
    if mirrored.size:
        facing = np.maximum(dot(points.normals[:, metal], points.eyes[:, metal]), 0)
        rim = _power(1 - facing, 2)  # at grazing angles everything mirrors, and colours fade
        albedo = points.albedo[:, metal]
        tint = albedo + (1 - albedo) * (0.03 + 0.4 * rim)
        highlights = (0.3 + 0.7 * tint) * colored(_METAL_SHINE * _power(shine[:, metal], 3))
        colors[:, metal] = 0.3 * colors[:, metal] + tint * (1.9 * mirrored) + highlights
    return colors


def _power(values: Floats, doublings: int) -> Floats:
    """values ** (2 ** doublings) by multiplications, which are exact on every machine."""
    for _ in range(doublings):
        values = values * values
    return values


def surroundings(lights: Lights, places: Floats, directions: Floats, standing: Floats) -> Floats:
    """What (3, n) mirrors at `places` see along unit `directions`: the ground below, a dim room with lamps above.

    The ground is darker where the mirror itself, `standing` (3, n), stands on it.
    """
    down = directions[2] < -1e-3
    along = places[2] / np.where(down, -directions[2], 1)
    ground = places + along * directions
    ground[2] = 0
    below = GROUND * (AMBIENT + colored(lights.on_ground(ground))) * openness(ground[0], ground[1], standing)
    glow = _power(np.maximum(dot(directions[:, None], unit(lights.places)), 0), 4)
    above = 0.05 + 0.22 * np.maximum(directions[2], 0) + colored(_GLOW * glow)
    return np.where(down, below, above)


_LEVELS = 4096
_linear = np.linspace(0, 1, _LEVELS)
_SRGB = np.rint(255 * np.where(_linear <= 0.0031308, 12.92 * _linear, 1.055 * _linear ** (1 / 2.4) - 0.055)).astype(
    np.uint8
)


def encode(linear: Floats) -> NDArray[np.uint8]:
    """Linear colours as sRGB bytes, by a table."""
    levels = (np.minimum(linear, 1) * (_LEVELS - 1) + 0.5).astype(np.int32)
    return np.asarray(_SRGB[levels])
