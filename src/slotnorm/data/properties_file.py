"""properties.json of a folder of images: a list of {"image": file name, "objects": [{"label", "shape", ...}]}."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from slotnorm.data.scenes import CLEVR_PROPERTIES
from slotnorm.errors import UserError, nearest
from slotnorm.storage.seals import read_json

Objects = tuple[dict[str, float], ...]
"""Of one image, in the order of their labels: codes of CLEVR's names, position and rotation."""

_MAX_PROPERTIES = 1 << 30  # bytes: properties.json of a million scenes
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


def read_properties(path: Path, names: Collection[str]) -> dict[str, Objects]:
    """Image file name -> its objects in label order; every one of `names` must be listed, and nothing else."""
    listing = read_json(path, _MAX_PROPERTIES)
    if not isinstance(listing, list) or not all(isinstance(entry, dict) for entry in listing):
        raise UserError(f'{path} is not a list of {{"image": ..., "objects": [...]}}')
    scenes: dict[str, Objects] = {}
    for entry in listing:
        name, objects = entry.get("image"), entry.get("objects")
        if not isinstance(name, str) or name not in names or name in scenes:
            raise UserError(
                f"{path} lists {str(name)[:80]!r}, which is not an image of {path.parent / 'images'} or is listed twice"
            )
        if not isinstance(objects, list) or not all(isinstance(item, dict) for item in objects):
            raise UserError(f"{path} has no list of objects for {name}")
        if len(objects) > 255:
            raise UserError(f"{path} lists {len(objects)} objects for {name}; a scene can have at most 255 objects")
        scenes[name] = _in_label_order([_read_object(item, f"{path}, {name}") for item in objects], f"{path}, {name}")
    if absent := sorted(set(names) - set(scenes)):
        raise UserError(f"{path} does not list {absent[0]}; list every image, or remove the file")
    given = {frozenset(item) for objects in scenes.values() for item in objects}
    if len(given) > 1:
        differing = sorted(frozenset.union(*given) - frozenset.intersection(*given))
        raise UserError(f"{path} gives {differing[0]} for some objects and not for others; give it for all or for none")
    return scenes


def _in_label_order(labelled: list[tuple[int | None, dict[str, float]]], where: str) -> Objects:
    labels = [place + 1 if label is None else label for place, (label, _) in enumerate(labelled)]
    if sorted(labels) != list(range(1, len(labels) + 1)):
        raise UserError(
            f"{where}: the labels of {len(labels)} objects must be 1 to {len(labels)}, each once, not {labels[:10]}"
        )
    return tuple(item for _, (_, item) in sorted(zip(labels, labelled, strict=True), key=lambda pair: pair[0]))


def _read_object(item: dict[str, Any], where: str) -> tuple[int | None, dict[str, float]]:
    """An object's label, if given, and its numbers: codes of CLEVR's names, position and rotation."""
    numbers: dict[str, float] = {}
    for name, values in CLEVR_PROPERTIES.items():
        if name in item:
            value = item[name]
            if value not in values:
                raise UserError(f"{where}: there is no {name} {str(value)[:40]!r}; {nearest(str(value)[:40], values)}")
            numbers[name] = values.index(value) + 1
    position = item.get("position", [])
    if not isinstance(position, list) or len(position) not in (0, 3):
        raise UserError(f"{where}: a position is [x, y, z], not {str(position)[:40]}")
    given = dict(zip("xyz", position, strict=False)) | ({"rotation": item["rotation"]} if "rotation" in item else {})
    for name, value in given.items():
        numbers[name] = _number(value, f"{where}: {name}")
    label = item.get("label")
    if label is not None and (not isinstance(label, int) or isinstance(label, bool)):
        raise UserError(f"{where}: a label is a whole number, not {str(label)[:40]}")
    return label, numbers


def _number(value: Any, what: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_FLOAT32:
        return float(value)
    raise UserError(f"{what} is {str(value)[:40]}, which is not a number that float32 can hold")
