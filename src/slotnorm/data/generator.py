"""Scenes from a seed: a `SceneSpec` says which, `render` draws any of them, `build` writes a set, `cached` keeps sets.

Scene i depends on (spec, i) alone: the same bits on one machine for any chunk, number of scenes or number of processes.
The styles are `solids.py` (ray-traced, CLEVR-like) and `flat.py`; `placement.py` is what they share.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotnorm.config import SceneSpec
from slotnorm.data import flat, solids
from slotnorm.data.builder import Builder
from slotnorm.data.cache import cache_folder
from slotnorm.data.conversion import in_processes
from slotnorm.data.placement import ARRANGEMENTS, Drawing, Request, Style
from slotnorm.data.prefix_cache import open_or_build
from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError, nearest
from slotnorm.runtime import randomness
from slotnorm.runtime.progress import Progress
from slotnorm.storage.seals import digest

VERSION = 1  # of the pictures: raise it whenever a bit of any scene changes, so that cached sets are made anew

STYLES: dict[str, Style] = {style.name: style for style in (solids.STYLE, flat.STYLE)}
LARGEST = 256  # pixels a side
_CHUNK = 32  # scenes; larger chunks cost page faults
_WORTH_PROCESSES = 8  # chunks; starting processes takes as long as two of them
_CODES, _NUMBERS = ("shape", "size", "material", "color"), ("x", "y", "z", "rotation")


def request(spec: SceneSpec) -> Request:
    """What each scene must satisfy, with the style's defaults filled in; what cannot be is refused."""
    _refuse_impossible(spec)
    style = STYLES[spec.style]
    radius = spec.radius or style.usual_radius(spec.objects[1])
    return Request(
        size=spec.size,
        shapes=_codes(spec.shapes or style.shapes, style.shapes),
        materials=_codes(spec.materials or style.usual_materials, style.materials),
        colors=_codes(spec.colors or style.colors, style.colors),
        radius=radius,
        margin=style.margin if spec.margin is None else spec.margin,
        min_visible=spec.min_visible or style.usual_visible(spec.size, radius),
    )


def provenance(spec: SceneSpec) -> dict[str, Any]:
    """What identifies the scenes, defaults included, as JSON can hold it."""
    asked, style = request(spec), STYLES[spec.style]
    return {
        "generator": VERSION, "style": spec.style, "size": spec.size,
        "objects": list(spec.objects), "seed": spec.seed,
        "shapes": [style.shapes[code - 1] for code in asked.shapes],
        "materials": [style.materials[code - 1] for code in asked.materials],
        "colors": [style.colors[code - 1] for code in asked.colors],
        "radius": list(asked.radius), "margin": asked.margin, "min_visible": asked.min_visible,
    }  # fmt: skip


def identify(spec: SceneSpec) -> str:
    """16 hexadecimal digits, the same for the same scenes in every process."""
    return digest(provenance(spec))[:16]


def _refuse_impossible(spec: SceneSpec) -> None:
    if spec.style not in STYLES:
        raise UserError(f"there is no style {spec.style!r}; {nearest(spec.style, STYLES)}")
    style, (fewest, most) = STYLES[spec.style], spec.objects
    if not (0 <= fewest <= most and 1 <= most <= 255):
        raise UserError(f"scenes cannot have {fewest} to {most} objects: ask for FEWEST:MOST, MOST from 1 to 255")
    if not style.smallest <= spec.size <= LARGEST:
        sides = f"{style.smallest} to {LARGEST} pixels"
        raise UserError(f"size {spec.size} is not possible: {style.name} scenes have sides of {sides}")
    for what in ("shapes", "materials", "colors"):
        _refuse_unknown(what, getattr(spec, what), getattr(style, what))
    if spec.radius is not None and not 0 < spec.radius[0] <= spec.radius[1] <= style.largest_radius:
        raise UserError(
            f"radius {spec.radius[0]} to {spec.radius[1]} is not possible: "
            f"both are above 0 and at most {style.largest_radius}, the larger one last"
        )
    if spec.margin is not None and not style.least_margin <= spec.margin <= 10:
        raise UserError(f"margin {spec.margin} is not possible: {style.name} takes {style.least_margin} to 10")
    if spec.min_visible is not None and spec.min_visible < 1:
        raise UserError(f"min_visible {spec.min_visible} is not possible: objects show at least 1 pixel")


def _refuse_unknown(what: str, names: Sequence[str] | None, known: Sequence[str]) -> None:
    for name in names or ():
        if name not in known:
            raise UserError(f"{name!r} is none of the {what}; {nearest(name, known)}")
    if names is not None and (not names or len(set(names)) < len(names)):
        raise UserError(f"{what} {list(names)} must be different ones, at least one of {', '.join(known)}")


def _codes(names: Sequence[str], known: Sequence[str]) -> NDArray[np.int64]:
    return np.array(sorted(1 + known.index(name) for name in names))


def render(spec: SceneSpec, indices: Iterable[int]) -> dict[str, NDArray[Any]]:
    """The scenes with these numbers, m of them, with places for `spec.objects[1]` = O objects in each.

    images (m, H, W, 3) and labels (m, H, W) uint8; counts (m,) uint16; shape, size, material, color (m, O) uint8, whose
    values 1, 2, ... are the style's names; x, y, z, rotation in degrees (m, O) float32. Entry j has label j + 1.
    """
    asked = request(spec)
    can_show = STYLES[spec.style].most_visible(spec.size, asked.radius)
    if can_show < asked.min_visible:
        raise UserError(
            f"objects of radius {asked.radius[0]:.3g} fill at most {can_show:.0f} pixels at size {spec.size} and "
            f"must show {asked.min_visible}; ask for a larger size, fewer or larger objects, or a smaller min_visible"
        )
    drawings = [_draw(spec, asked, index) for index in indices]
    chunk = {name: np.zeros((len(drawings), *shape), dtype) for name, (shape, dtype) in fields(spec).items()}
    for row, drawing in enumerate(drawings):
        count = len(drawing.objects)
        chunk["images"][row], chunk["labels"][row], chunk["counts"][row] = drawing.image, drawing.labels, count
        for name in (*_CODES, *_NUMBERS):
            chunk[name][row, :count] = getattr(drawing.objects, name)
    return chunk


def fields(spec: SceneSpec) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape of one scene and dtype of each field that `render` gives."""
    most = (spec.objects[1],)
    return {
        "images": ((spec.size, spec.size, 3), "uint8"), "labels": ((spec.size, spec.size), "uint8"),
        "counts": ((), "uint16"),
        **dict.fromkeys(_CODES, (most, "uint8")), **dict.fromkeys(_NUMBERS, (most, "float32")),
    }  # fmt: skip


def _draw(spec: SceneSpec, asked: Request, index: int) -> Drawing:
    random = randomness.generator(spec.seed, "scene", index)
    count = int(random.integers(*spec.objects, endpoint=True))
    for _ in range(ARRANGEMENTS):
        drawing = STYLES[spec.style].draw(asked, random, count)
        if drawing is not None:
            return drawing
    low, high = asked.radius
    raise UserError(
        f"{count} objects of radius {low:.3g} to {high:.3g} found no place in {spec.size} x {spec.size} pixels where "
        f"each shows {asked.min_visible} of them (scene {index}, {ARRANGEMENTS} arrangements tried); ask for fewer "
        "or smaller objects, a larger size, or a smaller margin or min_visible"
    )


def build(
    spec: SceneSpec, num: int, directory: str | Path, jobs: int | None = None, start: Scenes | None = None
) -> Scenes:
    """Write scenes 0 to num - 1 into a set; the same call continues an interrupted build.

    In `jobs` processes: None is one per core, or just this one when there is little to do. `start` are finished scenes
    of the same spec, which are copied instead of drawn again.
    """
    style, most = STYLES[spec.style], spec.objects[1]
    render(dataclasses.replace(spec, objects=(most, most)), [0])  # refuses the impossible before anything is written
    names = {"shape": style.shapes, "size": style.sizes, "material": style.materials, "color": style.colors}
    builder = Builder(directory, fields(spec), num, provenance(spec), properties=names)
    with builder, Progress("scenes", num, builder.done) as progress:
        while start is not None and builder.done < min(len(start), num):
            rows = np.arange(builder.done, min(builder.done + _CHUNK, len(start), num))
            builder.append(**{name: start.read(name, rows) for name in start.fields})
            progress.advance(len(rows))
        chunks = [range(first, min(first + _CHUNK, num)) for first in range(builder.done, num, _CHUNK)]
        draw = functools.partial(render, spec)
        alone = len(chunks) < _WORTH_PROCESSES if jobs is None else jobs == 1
        for chunk in map(draw, chunks) if alone else in_processes(draw, chunks, jobs):
            builder.append(**chunk)
            progress.advance(len(chunk["counts"]))
        return builder.finish()


def cached(spec: SceneSpec, num: int) -> Scenes:
    """The first `num` scenes of a spec from `$SLOTNORM_CACHE/data/generated/HASH`, made when they are not there.

    A folder there for each number of scenes that was made; see `open_or_build`.
    """
    folder = cache_folder() / "data" / "generated" / identify(spec)
    return open_or_build(folder, num, lambda directory, start: build(spec, num, directory, start=start))
