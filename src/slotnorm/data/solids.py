"""The CLEVR-like style: solids of two sizes and two materials on a grey ground, ray traced."""

import math

import numpy as np

from slotnorm.data import raytracer
from slotnorm.data.lighting import Lights
from slotnorm.data.painting import Scene, paint
from slotnorm.data.placement import CANDIDATES, CENTRE, Drawing, Floats, Layer, Objects, Request, Style, arrange, pick
from slotnorm.data.raytracer import CUBE, Camera, Solid
from slotnorm.data.scenes import CLEVR_PROPERTIES

AREA = 3.0  # objects stand on [-3, 3]^2, as in CLEVR
LARGE_RADIUS, SMALL_RADIUS = 0.7, 0.35  # CLEVR's
METAL = 2
TARGET = (0.0, -0.15, 0.2)
CAMERA, CAMERA_JITTER = np.array([0.0, -10.0, 7.0]), 0.5
LAMPS, LAMP_JITTER = np.array([[-5.2, -4.6, 7.2], [7.0, -3.0, 4.2]]).T, 1.0  # key from the left, fill from the right
POWERS, POWER_JITTER = np.array([0.95, 0.28]), 0.1

# CLEVR's colours as they shall appear in white light
COLORS = {
    "gray": (87, 87, 87), "red": (173, 35, 35), "blue": (42, 75, 215), "green": (29, 105, 20),
    "brown": (129, 74, 25), "purple": (129, 38, 192), "cyan": (41, 208, 208), "yellow": (255, 238, 51),
}  # fmt: skip
_ALBEDO: Floats = np.array([(0.0, 0.0, 0.0), *(COLORS[name] for name in CLEVR_PROPERTIES["color"])], np.float32).T / 255
_ALBEDO *= _ALBEDO


def draw(request: Request, random: np.random.Generator, count: int) -> Drawing | None:
    """One scene with `count` objects, or None when they found no place."""
    objects = _draw_objects(request, random, count)
    jitter = random.uniform(-1, 1, 11)
    camera = Camera.looking_at(TARGET, tuple((CAMERA + CAMERA_JITTER * jitter[:3]).tolist()), request.size)
    lamps = LAMPS + LAMP_JITTER * jitter[3:9].reshape(3, 2)
    powers = POWERS * (1 + POWER_JITTER * jitter[9:])
    lights = Lights(lamps[:, :, None].astype(np.float32), powers[:, None].astype(np.float32))
    # the corners of a cube stand out of the circle of its radius
    reach = objects.radius * np.where(objects.shape == CUBE, math.sqrt(2), 1.0)
    outlines = list(zip(objects.shape.tolist(), objects.radius.tolist(), objects.rotation.tolist(), strict=True))
    standing: dict[int, Solid] = {}

    def candidates(chosen: list[int]) -> Floats:
        places = random.uniform(-AREA, AREA, (len(chosen), CANDIDATES, 2))
        heights = objects.radius[chosen, None]
        column, row, scale = camera.project((places[:, :, 0], places[:, :, 1], heights))
        edge, middle = request.size / 2 - scale * reach[chosen, None], request.size / 2
        places[(np.abs(column - middle) > edge) | (np.abs(row - middle) > edge)] = np.nan
        return places

    def trace(chosen: list[int], places: Floats) -> list[Layer]:
        for j in chosen:
            standing[j] = Solid.standing(*outlines[j], *places[j].tolist())
        return raytracer.see(camera, [standing[j] for j in chosen])

    arranged = arrange(request, reach, candidates, trace)
    if arranged is None:
        return None
    objects.x, objects.y = arranged.places.T
    solids = [standing[j] for j in range(count)]
    scene = Scene(camera, lights, solids, _ALBEDO[:, objects.color], objects.material == METAL)
    return Drawing(paint(scene, arranged.owner, arranged.depth), arranged.owner[CENTRE], objects)


def _draw_objects(request: Request, random: np.random.Generator, count: int) -> Objects:
    drawn = random.random((5, count))
    small, large = request.radius
    size = pick(drawn[0], np.array([1, 2] if small < large else [1]))  # CLEVR's order: 1 is large, 2 is small
    radius = np.array([0.0, large, small])[size]
    return Objects(
        shape=pick(drawn[1], request.shapes),
        size=size,
        material=pick(drawn[2], request.materials),
        color=pick(drawn[3], request.colors),
        radius=radius,
        rotation=360 * drawn[4],
        x=np.zeros(count),
        y=np.zeros(count),
        z=radius,
    )


def _usual_radius(most: int) -> tuple[float, float]:
    """CLEVR's sizes up to CLEVR's 10 objects, so that counts can be compared; more of them share the same ground."""
    scale = min(1.0, math.sqrt(10 / most))
    return SMALL_RADIUS * scale, LARGE_RADIUS * scale


def _usual_visible(size: int, radius: tuple[float, float]) -> int:
    """CLEVR's 200 of 320 x 240 pixels, as a share of the picture and for these radii; never below 4."""
    return max(4, round(200 / (320 * 240) * size * size * (radius[0] / SMALL_RADIUS) ** 2))


def _most_visible(size: int, radius: tuple[float, float]) -> float:
    """No place in the picture is nearer to the camera than 8.5; a cube there fills less than 8 radii squared."""
    pixels = size / (2 * raytracer.HALF_WIDTH * 8.5) * radius[0]
    return 8 * pixels * pixels


STYLE = Style(
    name="clevr",
    smallest=32,
    shapes=CLEVR_PROPERTIES["shape"],
    sizes=CLEVR_PROPERTIES["size"],
    materials=CLEVR_PROPERTIES["material"],
    colors=CLEVR_PROPERTIES["color"],
    usual_materials=CLEVR_PROPERTIES["material"],
    margin=0.2,
    least_margin=0.0,
    largest_radius=1.5,
    usual_radius=_usual_radius,
    usual_visible=_usual_visible,
    most_visible=_most_visible,
    draw=draw,
)
