"""The ray tracer against geometry in float64 that knows nothing of it."""

import math

import numpy as np
import pytest
from scipy.spatial import ConvexHull

from slotnorm.data import lighting, raytracer
from slotnorm.data.lighting import Lights
from slotnorm.data.placement import CENTRE, SAMPLE_COLUMNS, SAMPLE_ROWS, SAMPLES, Layer, compose
from slotnorm.data.raytracer import CUBE, CYLINDER, SPHERE, Camera, Solid

SIZE = 64
EYE, TARGET = (0.3, -9.7, 7.2), (0.0, -0.15, 0.2)
CAMERA = Camera.looking_at(TARGET, EYE, SIZE)
SOLIDS = [
    Solid.standing(shape, radius, rotation, x, y)
    for shape in (CUBE, SPHERE, CYLINDER)
    for x, y, radius, rotation in ((0.0, 0.0, 0.7, 0.0), (-2.1, 1.3, 0.35, 33.0), (1.9, -2.4, 0.9, 200.0))
]


def rays(columns: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Unit directions (n, 3) through picture points in pixels, from the camera's definition."""
    forward = np.subtract(TARGET, EYE) / math.dist(TARGET, EYE)
    right = np.cross(forward, (0, 0, 1))
    right /= np.linalg.norm(right)
    up = np.cross(right, forward)
    across, along = (2 * columns / SIZE - 1) * raytracer.HALF_WIDTH, (1 - 2 * rows / SIZE) * raytracer.HALF_WIDTH
    directions = forward + across[:, None] * right + along[:, None] * up
    return directions / np.linalg.norm(directions, axis=1, keepdims=True)


def pixel_centres() -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.mgrid[:SIZE, :SIZE] + 0.5
    return columns.ravel(), rows.ravel()


def mask(solid: Solid, sample: int = CENTRE) -> np.ndarray:
    owner, _ = compose(raytracer.see(CAMERA, [solid]), SIZE)
    return owner[sample].ravel() == 1


def distance_from_ray(directions: np.ndarray, point: np.ndarray) -> np.ndarray:
    away = point - np.array(EYE)
    return np.linalg.norm(away - (directions @ away)[:, None] * directions, axis=1)


@pytest.mark.parametrize("solid", SOLIDS[3:6])
@pytest.mark.parametrize("sample", range(SAMPLES))
def test_the_mask_of_a_sphere_is_its_analytic_projection(solid, sample):
    columns, rows = pixel_centres()
    directions = rays(columns + SAMPLE_COLUMNS[sample], rows + SAMPLE_ROWS[sample])
    distance = distance_from_ray(directions, np.array([solid.x, solid.y, solid.radius]))
    assert np.abs(distance - solid.radius).min() > 1e-5  # no sample lies on the outline itself
    np.testing.assert_array_equal(mask(solid, sample), distance < solid.radius)


def test_labels_are_taken_at_the_centres_of_pixels():
    assert SAMPLE_COLUMNS[CENTRE] == SAMPLE_ROWS[CENTRE] == 0


@pytest.mark.parametrize("solid", SOLIDS[:3] + SOLIDS[6:])
def test_the_mask_of_a_cube_or_cylinder_is_the_hull_of_its_projected_edges(solid):
    if solid.shape == CUBE:
        flat = np.array([[i, j] for i in (-1, 1) for j in (-1, 1)]) * solid.radius
        turn = np.array([[solid.cosine, solid.sine], [-solid.sine, solid.cosine]])
        flat = flat @ turn
    else:
        angles = np.linspace(0, 2 * np.pi, 1200, endpoint=False)
        flat = solid.radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    flat += np.array([solid.x, solid.y])
    edge = np.concatenate([np.c_[flat, np.full(len(flat), z)] for z in (0, 2 * solid.radius)])
    columns, rows, _ = CAMERA.project(edge.T)
    hull = ConvexHull(np.stack([columns, rows], axis=1))
    x, y = pixel_centres()
    inside = (np.stack([x, y], axis=1) @ hull.equations[:, :2].T + hull.equations[:, 2]).max(axis=1)
    certain = np.abs(inside) > 1e-4
    assert certain.mean() > 0.999
    np.testing.assert_array_equal(mask(solid)[certain], inside[certain] < 0)


def test_projected_points_lie_on_their_own_rays():
    points = np.random.default_rng(0).uniform((-3, -3, 0), (3, 3, 1.4), (50, 3))
    columns, rows, _ = CAMERA.project(points.T)
    distances = [distance_from_ray(ray[None], point)[0] for ray, point in zip(rays(columns, rows), points, strict=True)]
    assert max(distances) < 1e-12


@pytest.mark.parametrize("solid", SOLIDS)
def test_the_bounding_box_holds_the_whole_solid(solid):
    (layer,) = raytracer.see(CAMERA, [solid])
    whole = slice(0, SIZE)
    near, far = solid.interval(
        solid.place(CAMERA.position).astype(np.float32).reshape(3, 1, 1, 1),
        CAMERA.rays(solid.frame(CAMERA.axes), whole, whole),
    )
    assert (near < far).sum() == np.isfinite(layer.near).sum() > 0


def test_the_nearest_of_two_solids_is_seen():
    front, back = Solid.standing(SPHERE, 0.4, 0, 0.0, -1.0), Solid.standing(CUBE, 0.7, 10, 0.0, 0.5)
    owner, _ = compose(raytracer.see(CAMERA, [back, front]), SIZE)
    seen_alone = mask(front).reshape(SIZE, SIZE)
    np.testing.assert_array_equal(owner[CENTRE] == 2, seen_alone)
    assert 0 < (owner[CENTRE] == 1).sum() < mask(back).sum()


def test_the_ground_is_in_shadow_exactly_where_a_sphere_hides_the_lamp():
    solid = SOLIDS[3]
    lights = Lights(np.array([[[-5.0], [7]], [[-4.5], [-3]], [[7.0], [4]]], np.float32), np.ones((2, 1), np.float32))
    lamp, ground = lights.key_points(), raytracer.ground_points(CAMERA)
    lit = np.ones((SAMPLES, SIZE, SIZE), bool)
    raytracer.cast_shadows(lit, CAMERA, ground, [solid], lamp)
    starts = np.stack([*ground.reshape(2, -1), np.zeros(lit.size)], axis=1).astype(np.float64)
    beams = np.repeat(lamp.T, SIZE * SIZE, axis=0) - starts
    beams /= np.linalg.norm(beams, axis=1, keepdims=True)
    away = np.array([solid.x, solid.y, solid.radius]) - starts
    along = (away * beams).sum(axis=1)
    distance = np.linalg.norm(away - along[:, None] * beams, axis=1)
    hidden = (distance < solid.radius) & (along > 0)
    certain = np.abs(distance - solid.radius) > 1e-4
    np.testing.assert_array_equal(lit.ravel()[certain], ~hidden[certain])
    assert 0.01 < hidden.mean() < 0.2


def test_ground_points_lie_on_the_ground_below_their_samples():
    ground = raytracer.ground_points(CAMERA)[:, CENTRE].reshape(2, -1)
    columns, rows, _ = CAMERA.project(np.concatenate([ground, np.zeros_like(ground[:1])]).astype(np.float64))
    x, y = pixel_centres()
    assert max(np.abs(columns - x).max(), np.abs(rows - y).max()) < 1e-3


@pytest.mark.parametrize("solid", SOLIDS)
def test_normals_are_of_length_one_and_look_at_the_eye(solid):
    owner, depth = compose(raytracer.see(CAMERA, [solid]), SIZE)
    whole = slice(0, SIZE)
    directions = CAMERA.rays(CAMERA.axes, whole, whole)[:, owner == 1]
    places = CAMERA.position.astype(np.float32)[:, None] + directions * depth[owner == 1]
    normals = lighting.normals(solid, places)
    np.testing.assert_allclose((normals**2).sum(axis=0), 1, atol=1e-5)
    facing = raytracer.dot(normals, directions) < 0
    assert facing.all() if solid.shape == SPHERE else facing.mean() > 0.9  # bent edges may look away
    if solid.shape == SPHERE:
        radii = np.linalg.norm(places - np.array([[solid.x], [solid.y], [solid.radius]]), axis=0)
        np.testing.assert_allclose(radii, solid.radius, rtol=1e-4)


def test_every_pair_of_which_one_hides_the_lamp_from_the_other_is_looked_at():
    random = np.random.default_rng(1)
    lamp = np.array([[-5.0], [-4.5], [7.0]], np.float32)
    solids = [Solid.standing(SPHERE, random.uniform(0.2, 0.7), 0, *random.uniform(-3, 3, 2)) for _ in range(12)]
    pairs = set(raytracer.pairs_on_the_way(solids, lamp))
    for i, receiver in enumerate(solids):
        surface = random.standard_normal((3, 2000)).astype(np.float32)
        surface = receiver.centre[:, None] + receiver.radius * lighting.unit(surface)
        for j, other in enumerate(solids):
            near, far = other.meet(np.broadcast_to(lamp, surface.shape), surface - lamp)
            if i != j and ((near < far) & (near < 1)).any():
                assert (j, i) in pairs
    assert len(pairs) < len(solids) ** 2 / 2


def test_an_empty_box_is_no_layer():
    empty = Layer(slice(0, 0), slice(0, 0), np.empty((SAMPLES, 0, 0), np.float32))
    assert not compose([empty], 8)[0].any()
