"""The picture of traced solids: each pixel is the mean of its samples' colours.

Light on the ground varies slowly and is computed once per pixel; what changes sharply, who covers a sample and whether
the key light reaches it, is known for every sample.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slotnorm.data import lighting, raytracer
from slotnorm.data.lighting import Lights, Points
from slotnorm.data.placement import CENTRE, SAMPLES, Floats
from slotnorm.data.raytracer import Camera, Solid

MIRROR_REACH = 3.0  # times the sum of two radii: from there on a mirror image is too small to draw


@dataclass(frozen=True)
class Scene:
    """What is painted: solids with their albedo (3, O) and whether they are metal (O,)."""

    camera: Camera
    lights: Lights
    solids: list[Solid]
    albedo: Floats
    metal: NDArray[np.bool_]


def paint(scene: Scene, owner: NDArray[np.uint8], depth: Floats) -> NDArray[np.uint8]:
    """The image (size, size, 3), given the label and depth of what each sample (SAMPLES, size, size) meets first."""
    size = scene.camera.size
    image = _ground(scene, owner == 0)
    if scene.solids:
        image += _solids(scene, owner.ravel(), depth.ravel())
    return lighting.encode(image.T.reshape(size, size, 3))


def _ground(scene: Scene, free: NDArray[np.bool_]) -> Floats:
    """The ground's share of every pixel (3, pixels), where samples are `free` (SAMPLES, size, size) of solids."""
    ground = raytracer.ground_points(scene.camera)
    uncovered = _share(free)
    raytracer.cast_shadows(free, scene.camera, ground, scene.solids, scene.lights.key_points())
    uncovered_and_lit = _share(free)
    places = np.zeros((3, len(uncovered)), np.float32)
    places[:2] = ground[:, CENTRE].reshape(2, -1)
    light = scene.lights.on_ground(places)
    if scene.solids:
        standing = _standing(scene.solids)[:, :, None]
        uncovered *= np.multiply.reduce(lighting.openness(places[0], places[1], standing), axis=0)
    light[0] *= uncovered_and_lit
    light[1] *= uncovered
    return lighting.GROUND * (lighting.AMBIENT * uncovered + lighting.colored(light))


def _share(samples: NDArray[np.bool_]) -> Floats:
    covered: NDArray[np.uint8] = np.add.reduce(samples, axis=0, dtype=np.uint8)
    return covered.ravel() * np.float32(1 / SAMPLES)


def _standing(solids: list[Solid]) -> Floats:
    """x, y and radius, which is also the centre's height, of solids: (3, O)."""
    return np.array([solid.centre for solid in solids]).T


@functools.cache
def _sample_grid(size: int) -> Floats:
    right, up = np.broadcast_arrays(*raytracer.sample_grid(size))
    return np.stack([right.ravel(), up.ravel()])


def _solids(scene: Scene, owner: NDArray[np.uint8], depth: Floats) -> Floats:
    """The solids' share of every pixel (3, pixels)."""
    camera = scene.camera
    # rubber first: the metal points are then one slice, and every solid's are one
    turn = np.argsort(scene.metal, kind="stable")
    rank = np.empty(len(turn) + 1, np.uint8)
    rank[1 + turn] = np.arange(len(turn))
    samples = np.flatnonzero(owner)
    ranks = rank[owner[samples]]
    order = np.argsort(ranks, kind="stable")
    samples, ranks = samples[order], ranks[order]
    ends = np.searchsorted(ranks, np.arange(len(turn) + 1)).tolist()
    spans = {int(j): slice(first, last) for j, first, last in zip(turn, ends[:-1], ends[1:], strict=True)}
    solid = turn[ranks]

    right, up = _sample_grid(camera.size)[:, samples]
    axes = camera.axes.astype(np.float32)
    rays = axes[:, :1] * right + (axes[:, 1:2] * up + axes[:, 2:])
    places = camera.position.astype(np.float32)[:, None] + rays * depth[samples]
    normals = np.empty_like(places)
    for j, span in spans.items():
        normals[:, span] = lighting.normals(scene.solids[j], places[:, span])
    sample, pixel = np.divmod(samples, camera.size**2)
    lit = _lit(scene, spans, places, scene.lights.key_points()[:, sample])
    points = Points(places, normals, lighting.unit(-rays), scene.albedo[:, solid], lit)
    first_metal = ends[len(turn) - int(scene.metal.sum())]
    mirrored = _mirrored(scene, spans, points, solid, first_metal)
    colors = lighting.shade(scene.lights, points, first_metal, mirrored)
    shares = np.empty((3, camera.size**2), np.float32)
    for share, color in zip(shares, colors, strict=True):
        share[:] = np.bincount(pixel, weights=color, minlength=camera.size**2)
    return shares * np.float32(1 / SAMPLES)


def _lit(scene: Scene, spans: dict[int, slice], places: Floats, lamps: Floats) -> NDArray[np.bool_]:
    """Where (n,) no other solid hides its sample's point of the lamp from a place; their own backs are dark anyway."""
    lit = np.ones(places.shape[1], np.bool_)
    for j, i in raytracer.pairs_on_the_way(scene.solids, scene.lights.places[:, 0]):
        origins = lamps[:, spans[i]]
        near, far = scene.solids[j].meet(origins, places[:, spans[i]] - origins)
        lit[spans[i]] &= ~((near < far) & (near < 1))
    return lit


def _mirrored(scene: Scene, spans: dict[int, slice], points: Points, solid: NDArray[np.int64], first: int) -> Floats:
    """What the metal points, which begin at number `first`, mirror (3, metals): ground, room and the nearest solids."""
    places, normals, eyes = points.places[:, first:], points.normals[:, first:], points.eyes[:, first:]
    if not places.size:
        return places
    directions = 2 * raytracer.dot(normals, eyes) * normals - eyes
    mirrored = lighting.surroundings(scene.lights, places, directions, _standing(scene.solids)[:, solid[first:]])
    nearest = np.full(places.shape[1], np.inf, np.float32)
    for i in np.flatnonzero(scene.metal).tolist():
        mirror, span = scene.solids[i], slice(spans[i].start - first, spans[i].stop - first)
        for j, other in enumerate(scene.solids):
            gap = math.hypot(other.x - mirror.x, other.y - mirror.y)
            if j == i or gap > MIRROR_REACH * (other.radius + mirror.radius):
                continue
            near, far = other.meet(places[:, span], directions[:, span])
            seen = (near < far) & (near > 0) & (near < nearest[span])
            np.copyto(nearest[span], near, where=seen)
            np.copyto(mirrored[:, span], scene.albedo[:, j : j + 1] * np.float32(0.7), where=seen)
    return mirrored
