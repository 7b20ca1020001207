"""A folder of images, with masks and properties if there are any -> Scenes: anyone can train on their own data.

DIR/images/NAME.png (or .jpg), DIR/masks/NAME.png, DIR/properties.json: a list of {"image": file name, "objects":
[{"label", "shape", "size", "material", "color", "position": [x, y, z], "rotation"}]}. Scenes are in the order of the
images' names.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotnorm.data.builder import Builder
from slotnorm.data.image_files import read_image, read_mask
from slotnorm.data.resize import method_of, resize
from slotnorm.data.scenes import CLEVR_PROPERTIES, Scenes
from slotnorm.errors import UserError, nearest
from slotnorm.runtime.progress import Progress
from slotnorm.storage.seals import read_json

_IMAGES = (".png", ".jpg", ".jpeg")
_NUMBERS = ("x", "y", "z", "rotation")
_CHUNK_SCENES, _CHUNK_BYTES = 32, 1 << 26
_MAX_PROPERTIES = 1 << 30  # bytes: properties.json of a million scenes
_MAX_SIZE = 2048
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class _Item:
    """One scene's files and objects; `objects` is None where there is no properties.json."""

    image: Path
    mask: Path | None
    objects: tuple[dict[str, float], ...] | None


def convert(source: str | Path, directory: str | Path, size: int | None = None, crop: str = "none") -> Scenes:
    """Build the set of a folder in `directory`; an interrupted conversion continues.

    `crop` is none, center (the largest centred square) or top:left:height:width; `size` then scales to size x size:
    images bilinearly with antialias, masks to the nearest pixel centre.
    """
    source = Path(source)
    if size is not None and not 1 <= size <= _MAX_SIZE:
        raise UserError(f"--size {size} is outside 1 to {_MAX_SIZE}")
    window = _parse_crop(crop)
    items = _survey(source)
    image, _, _ = _scene(items[0], window, size)
    height, width = image.shape[:2]
    objects = max((len(item.objects) for item in items if item.objects is not None), default=0)
    names = sorted({name for item in items for entry in item.objects or () for name in entry})
    fields: dict[str, tuple[tuple[int, ...], str]] = {"images": ((height, width, 3), "uint8")}
    if items[0].mask is not None:
        fields["labels"] = ((height, width), "uint8")
    fields |= {name: ((objects,), "uint8" if name in CLEVR_PROPERTIES else "float32") for name in names}
    provenance = {
        "source": "folder",
        "folder": source.resolve().name,
        "content": _digest(source, items),
        "crop": crop,
        "size": size,
    }
    coded = {name: values for name, values in CLEVR_PROPERTIES.items() if name in names}
    with Builder(directory, fields, num=len(items), provenance=provenance, properties=coded) as builder:
        chunk = max(1, min(_CHUNK_SCENES, _CHUNK_BYTES // (4 * height * width)))
        with Progress("scenes", len(items), builder.done) as progress:
            while builder.done < len(items):
                part = items[builder.done : builder.done + chunk]
                builder.append(**_arrays(part, fields, window, size))
                progress.advance(len(part))
        return builder.finish()


def _arrays(items: list[_Item], fields: Any, window: Any, size: int | None) -> dict[str, NDArray[Any]]:
    """A chunk of scenes, field by field."""
    arrays = {name: np.zeros((len(items), *shape), dtype=dtype) for name, (shape, dtype) in fields.items()}
    arrays["counts"] = np.zeros(len(items), dtype=np.int64)
    for row, item in enumerate(items):
        image, labels, count = _scene(item, window, size)
        if image.shape != arrays["images"].shape[1:]:
            (height, width), (first_height, first_width) = image.shape[:2], arrays["images"].shape[1:3]
            sizes = f"{width} x {height} pixels, the first image {first_width} x {first_height}"
            raise UserError(f"{item.image} is {sizes}; give --size to bring all images to one size")
        arrays["images"][row], arrays["counts"][row] = image, count
        if labels is not None:
            arrays["labels"][row] = labels
        for place, entry in enumerate(item.objects or ()):
            for name, value in entry.items():
                arrays[name][row, place] = value
    return arrays


def _scene(item: _Item, window: Any, size: int | None) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None, int]:
    """Image (H, W, 3), labels (H, W) or None, and the number of objects, counted before anything is cut off."""
    picture = np.asarray(read_image(item.image))
    top, left, height, width = _place(window, picture.shape[0], picture.shape[1], item.image)
    count = len(item.objects or ())
    labels = None
    if item.mask is not None:
        labels = read_mask(item.mask)
        if labels.shape != picture.shape[:2]:
            sizes = f"{labels.shape[1]} x {labels.shape[0]} and its image {picture.shape[1]} x {picture.shape[0]}"
            raise UserError(f"{item.mask} is {sizes} pixels; a mask needs its image's size")
        present = np.unique(labels)
        if item.objects is None:
            count = int(np.count_nonzero(present))
        elif present[-1] > len(item.objects):
            raise UserError(
                f"{item.mask} has label {present[-1]}, but properties.json lists {len(item.objects)} objects"
            )
        labels = labels[top : top + height, left : left + width]
    image = picture[top : top + height, left : left + width]
    if size is not None:
        image = resize(image, size, method_of("folder", "paper"))
        labels = None if labels is None else resize(labels, size, "nearest")
    return image, labels, count


def _parse_crop(crop: str) -> str | tuple[int, ...]:
    if crop in ("none", "center"):
        return crop
    parts = crop.split(":")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        raise UserError(f"--crop {crop!r} is none of: none, center, top:left:height:width in pixels")
    return tuple(int(part) for part in parts)


def _place(window: str | tuple[int, ...], height: int, width: int, path: Path) -> tuple[int, int, int, int]:
    """Top, left, height and width of the part that is kept."""
    if window == "none":
        return 0, 0, height, width
    if window == "center":
        side = min(height, width)
        return (height - side) // 2, (width - side) // 2, side, side
    top, left, tall, wide = (int(part) for part in window)
    if tall < 1 or wide < 1 or top + tall > height or left + wide > width:
        raise UserError(f"--crop {top}:{left}:{tall}:{wide} does not lie within {path} ({width} x {height} pixels)")
    return top, left, tall, wide


def _survey(source: Path) -> list[_Item]:
    """All scenes of the folder; everything that does not fit together is said before the first image is decoded."""
    images = _files(source / "images", _IMAGES)
    if not images:
        raise UserError(f"{source / 'images'} holds no PNG or JPEG images; put them there as NAME.png or NAME.jpg")
    masks = _files(source / "masks", (".png",)) if (source / "masks").exists() else None
    if masks is not None:
        for stem in sorted(set(masks) - set(images)):
            raise UserError(f"{masks[stem]} is a mask without an image; add the image or remove the mask")
        for stem in sorted(set(images) - set(masks)):
            raise UserError(f"{images[stem]} is an image without a mask; add the mask, or remove the folder of masks")
    listing = source / "properties.json"
    objects = _read_properties(listing, images) if listing.exists() else {}
    return [
        _Item(path, masks[stem] if masks else None, objects.get(path.name)) for stem, path in sorted(images.items())
    ]


def _files(folder: Path, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Stem -> path of the folder's files; hidden ones are not looked at."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; images go into DIR/images, masks (if any) into DIR/masks")
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.suffix.lower() not in suffixes or not path.is_file():
            raise UserError(f"{path} is not a {' or '.join(suffixes)} file; convert it or move it elsewhere")
        if path.stem in files:
            raise UserError(f"{path} and {files[path.stem].name} have the same name; rename one of them")
        files[path.stem] = path
    return files


def _digest(source: Path, items: list[_Item]) -> str:
    """SHA-256 over all names and contents: an interrupted conversion continues only on the same folder."""
    digest = hashlib.sha256()
    paths = [path for item in items for path in (item.image, item.mask) if path is not None]
    if items[0].objects is not None:
        paths.append(source / "properties.json")
    for path in paths:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(source).as_posix()}\0{content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _read_properties(path: Path, images: dict[str, Path]) -> dict[str, tuple[dict[str, float], ...]]:
    """Image file name -> its objects in label order, names replaced by CLEVR's codes."""
    listing = read_json(path, _MAX_PROPERTIES)
    if not isinstance(listing, list) or not all(isinstance(entry, dict) for entry in listing):
        raise UserError(f'{path} is not a list of {{"image": ..., "objects": [...]}}')
    names = {image.name for image in images.values()}
    scenes: dict[str, tuple[dict[str, float], ...]] = {}
    for entry in listing:
        name, objects = entry.get("image"), entry.get("objects")
        if not isinstance(name, str) or name not in names or name in scenes:
            raise UserError(
                f"{path} lists {str(name)[:80]!r}, which is not an image of {path.parent / 'images'} or is listed twice"
            )
        if not isinstance(objects, list) or not all(isinstance(thing, dict) for thing in objects):
            raise UserError(f"{path} has no list of objects for {name}")
        if len(objects) > 255:
            raise UserError(f"{path} lists {len(objects)} objects for {name}; a scene can have at most 255 objects")
        scenes[name] = _in_label_order([_read_object(thing, f"{path}, {name}") for thing in objects], f"{path}, {name}")
    if absent := sorted(names - set(scenes)):
        raise UserError(f"{path} does not list {absent[0]}; list every image, or remove the file")
    given = {frozenset(thing) for objects in scenes.values() for thing in objects}
    if len(given) > 1:
        differing = sorted(frozenset.union(*given) - frozenset.intersection(*given))
        raise UserError(f"{path} gives {differing[0]} for some objects and not for others; give it for all or for none")
    return scenes


def _in_label_order(labelled: list[tuple[int | None, dict[str, float]]], where: str) -> tuple[dict[str, float], ...]:
    labels = [place + 1 if label is None else label for place, (label, _) in enumerate(labelled)]
    if sorted(labels) != list(range(1, len(labels) + 1)):
        raise UserError(
            f"{where}: the labels of {len(labels)} objects must be 1 to {len(labels)}, each once, not {labels[:10]}"
        )
    return tuple(thing for _, (_, thing) in sorted(zip(labels, labelled, strict=True), key=lambda pair: pair[0]))


def _read_object(thing: dict[str, Any], where: str) -> tuple[int | None, dict[str, float]]:
    """An object's label, if given, and its numbers: codes of CLEVR's names, position and rotation."""
    numbers: dict[str, float] = {}
    for name, values in CLEVR_PROPERTIES.items():
        if name in thing:
            value = thing[name]
            if value not in values:
                raise UserError(f"{where}: there is no {name} {str(value)[:40]!r}; {nearest(str(value)[:40], values)}")
            numbers[name] = values.index(value) + 1
    position = thing.get("position", [])
    if not isinstance(position, list) or len(position) not in (0, 3):
        raise UserError(f"{where}: a position is [x, y, z], not {str(position)[:40]}")
    given = dict(zip("xyz", position, strict=False)) | ({"rotation": thing["rotation"]} if "rotation" in thing else {})
    for name, value in given.items():
        numbers[name] = _number(value, f"{where}: {name}")
    label = thing.get("label")
    if label is not None and (not isinstance(label, int) or isinstance(label, bool)):
        raise UserError(f"{where}: a label is a whole number, not {str(label)[:40]}")
    return label, numbers


def _number(value: Any, what: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_FLOAT32:
        return float(value)
    raise UserError(f"{what} is {str(value)[:40]}, which is not a number that float32 can hold")
