"""A folder of images, with masks and properties if there are any -> Scenes: anyone can train on their own data.

The images are in DIR itself, or in DIR/images with DIR/masks/NAME.png and DIR/properties.json beside it
(`properties_file.py`). Scenes are in the order of the images' names. Everything is looked at before anything is
written, and all files that cannot be used are named at once.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotnorm.config import Fit
from slotnorm.data.builder import Builder
from slotnorm.data.image_files import ENDINGS, PICTURES_OF_OTHERS, is_of_system, read_image, read_mask
from slotnorm.data.properties_file import Objects, read_properties
from slotnorm.data.resize import centred_square, fit_square, method_of
from slotnorm.data.scenes import CLEVR_PROPERTIES, Scenes
from slotnorm.errors import UserError
from slotnorm.runtime.progress import Progress
from slotnorm.storage.files import sha256

_log = logging.getLogger(__name__)

_CHUNK_SCENES, _CHUNK_BYTES = 32, 1 << 26
_MAX_SIZE = 2048
_SHOWN = 5  # names of files that are passed over
SKIP = "--skip-bad leaves out what cannot be used"


@dataclass(frozen=True)
class _Item:
    """One scene's files and objects; `objects` is None where there is no properties.json."""

    image: Path
    mask: Path | None
    objects: Objects | None


@dataclass(frozen=True)
class Survey:
    """The scenes of a folder, and what is wrong with its other files, a sentence each."""

    source: Path
    items: tuple[_Item, ...]
    problems: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    """Files that are not images, where such may lie among them."""

    def digest(self) -> str:
        """SHA-256 over all names and contents: an interrupted conversion continues only on the same folder."""
        digest = hashlib.sha256()
        paths = [path for item in self.items for path in (item.image, item.mask) if path is not None]
        if self.items[0].objects is not None:
            paths.append(self.source / "properties.json")
        for path in paths:
            name = path.relative_to(self.source).as_posix()
            digest.update(f"{name}\0{sha256(path)}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


def convert(
    source: str | Path,
    directory: str | Path,
    size: int | None = None,
    crop: str = "none",
    fit: Fit = "stretch",
    skip_bad: bool = False,
    way_out: str = SKIP,
) -> Scenes:
    """Build the set of a folder in `directory`; an interrupted conversion continues.

    `crop` is none, center (the largest centred square) or top:left:height:width; `size` then makes squares of size x
    size, by `fit` (data/resize.py): images bilinearly with antialias, masks to the nearest pixel centre. Files that
    cannot be used are all named in one sentence with the `way_out`, or left out and named when `skip_bad`.
    """
    if size is not None and not 1 <= size <= _MAX_SIZE:
        raise UserError(f"--size {size} is outside 1 to {_MAX_SIZE}")
    if size is None and fit != "stretch":
        raise UserError(f"--fit {fit} says how a picture becomes a square, and needs its side: give --size, as 64")
    window = _parse_crop(crop)
    surveyed = _usable(survey(Path(source)), window, size, skip_bad, way_out)
    items = list(surveyed.items)
    image, _, _ = _scene(items[0], window, size, fit)
    height, width = image.shape[:2]
    objects = max((len(item.objects) for item in items if item.objects is not None), default=0)
    names = sorted({name for item in items for entry in item.objects or () for name in entry})
    fields: dict[str, tuple[tuple[int, ...], str]] = {"images": ((height, width, 3), "uint8")}
    if items[0].mask is not None:
        fields["labels"] = ((height, width), "uint8")
    fields |= {name: ((objects,), "uint8" if name in CLEVR_PROPERTIES else "float32") for name in names}
    provenance = {
        "source": "folder",
        "folder": Path(source).resolve().name,
        "content": surveyed.digest(),
        "crop": crop,
        "size": size,
        **({} if fit == "stretch" else {"fit": fit}),  # sets of before it could be chosen are still the same sets
    }
    coded = {name: values for name, values in CLEVR_PROPERTIES.items() if name in names}
    with Builder(directory, fields, num=len(items), provenance=provenance, properties=coded) as builder:
        chunk = max(1, min(_CHUNK_SCENES, _CHUNK_BYTES // (4 * height * width)))
        with Progress("scenes", len(items), builder.done) as progress:
            while builder.done < len(items):
                part = items[builder.done : builder.done + chunk]
                builder.append(**_arrays(part, fields, window, size, fit))
                progress.advance(len(part))
        return builder.finish()


def survey(source: Path) -> Survey:
    """The scenes of a folder by the names of its files; nothing is decoded."""
    if not source.is_dir():
        raise UserError(f"{source} is not a folder; give the folder that your images are in")
    apart = (source / "images").is_dir()
    images, problems, others = _images(source / "images" if apart else source, apart)
    if not images and not problems:
        raise UserError(_no_images(source, apart))
    listing = source / "properties.json"
    objects = read_properties(listing, [path.name for path in images]) if apart and listing.exists() else {}
    masks: dict[str, Path] | None = None
    if apart and (source / "masks").exists():
        masks, more = _masks(source / "masks")
        images, unpaired = _paired(images, masks)
        problems += [*more, *unpaired]
    items = [_Item(path, masks[path.stem] if masks else None, objects.get(path.name)) for path in images]
    return Survey(source, tuple(items), tuple(problems), tuple(others))


def _no_images(source: Path, apart: bool) -> str:
    kinds = ", ".join(ENDINGS)
    if apart:
        return f"{source / 'images'} holds no PNG or JPEG images, nor others that are read ({kinds}); put them there"
    inside = sorted(path.parent for ending in ENDINGS for path in source.glob(f"*/*{ending}"))
    way_out = f"there are some in {inside[0]}: give that folder" if inside else f"put files there that end in {kinds}"
    return f"{source} holds no images, and {source / 'images'} is not a folder; {way_out}"


def _images(folder: Path, apart: bool) -> tuple[list[Path], list[str], list[str]]:
    """The images of a folder by name, what is wrong with other files, and the names of those that are passed over.

    In DIR/images (`apart`) every other file is wrong; a folder that may hold anything has images that are not read.
    """
    entries = [path for path in sorted(folder.iterdir()) if not is_of_system(path)]
    images = [path for path in entries if path.suffix.lower() in ENDINGS and path.is_file()]
    others = sorted(set(entries).difference(images))
    if apart:
        kinds = " or ".join(ENDINGS)
        return images, [f"{path} is not a {kinds} file; convert it or move it elsewhere" for path in others], []
    unread = [path for path in others if path.suffix.lower() in PICTURES_OF_OTHERS]
    problems = [f"{path} is an image that is not read; save it as PNG or JPEG" for path in unread]
    return images, problems, [path.name for path in others if path not in unread]


def _masks(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Stem -> path of the masks, and what is wrong with other files."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; images go into DIR/images, masks (if any) into DIR/masks")
    entries = [path for path in sorted(folder.iterdir()) if not is_of_system(path)]
    masks = {path.stem: path for path in entries if path.suffix.lower() == ".png" and path.is_file()}
    others = [path for path in entries if path != masks.get(path.stem)]
    return masks, [f"{path} is not a .png file; convert it or move it elsewhere" for path in others]


def _paired(images: Sequence[Path], masks: Mapping[str, Path]) -> tuple[list[Path], list[str]]:
    """The images with a mask of their own, and what is wrong with other images and masks."""
    problems = []
    first: dict[str, Path] = {}
    for path in images:
        if path.stem in first:
            problems.append(f"{path} and {first[path.stem].name} have the same name; rename one of them")
        first.setdefault(path.stem, path)
    for stem in sorted(set(masks) - set(first)):
        problems.append(f"{masks[stem]} is a mask without an image; add the image or remove the mask")
    for stem in sorted(set(first) - set(masks)):
        problems.append(f"{first[stem]} is an image without a mask; add the mask, or remove the folder of masks")
    stems = Counter(path.stem for path in images)
    return [path for path in images if path.stem in masks and stems[path.stem] == 1], problems


def _usable(surveyed: Survey, window: str | tuple[int, ...], size: int | None, skip_bad: bool, way_out: str) -> Survey:
    """The survey of those scenes that can be used; unless `skip_bad`, all else is named and refused.

    Images of several sizes are not bad ones, and none is left out for its size: that is one sentence for all of them.
    """
    problems, good, sizes = list(surveyed.problems), [], dict[str, Path]()
    with Progress("images checked", len(surveyed.items)) as progress:
        for item in surveyed.items:
            try:
                picture, _, _ = _read(item, window)
                sizes.setdefault(f"{picture.shape[1]} x {picture.shape[0]}", item.image)
                good.append(item)
            except UserError as error:
                problems.append(str(error))
            progress.advance()
    differ = [_sizes(surveyed.source, sizes)] if size is None and len(sizes) > 1 else []
    if differ or (problems and not (skip_bad and good)):
        wrong = [*problems, *differ]
        several = f"{len(wrong)} things are wrong in {surveyed.source}: " if len(wrong) > 1 else ""
        raise UserError(f"{several}{'; '.join(wrong)}" + (f" ({way_out})" if good and problems else ""))
    for problem in problems:
        _log.warning(f"left out: {problem}")
    if others := surveyed.passed_over:
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        _log.info(f"note: passed over in {surveyed.source}, being no images: {', '.join(others[:_SHOWN])}{more}")
    return Survey(surveyed.source, tuple(good))


def _sizes(source: Path, sizes: Mapping[str, Path]) -> str:
    """What is wrong with images of several sizes, each with the first image that has it."""
    shown = " and ".join(f"{size} ({path.name})" for size, path in list(sizes.items())[:2])
    return f"{source} holds images of {len(sizes)} sizes, as {shown} pixels; give --size to bring all to one size"


def _arrays(items: list[_Item], fields: Any, window: Any, size: int | None, fit: Fit) -> dict[str, NDArray[Any]]:
    """A chunk of scenes, field by field."""
    arrays = {name: np.zeros((len(items), *shape), dtype=dtype) for name, (shape, dtype) in fields.items()}
    arrays["counts"] = np.zeros(len(items), dtype=np.int64)
    for row, item in enumerate(items):
        arrays["images"][row], labels, arrays["counts"][row] = _scene(item, window, size, fit)
        if labels is not None:
            arrays["labels"][row] = labels
        for place, entry in enumerate(item.objects or ()):
            for name, value in entry.items():
                arrays[name][row, place] = value
    return arrays


def _scene(
    item: _Item, window: Any, size: int | None, fit: Fit
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None, int]:
    """Image (H, W, 3), labels (H, W) or None, and the number of objects, counted before anything is cut off."""
    image, labels, count = _read(item, window)
    if size is not None:
        image = fit_square(image, size, fit, method_of("folder", "paper"))
        labels = None if labels is None else fit_square(labels, size, fit, "nearest")
    return image, labels, count


def _read(item: _Item, window: Any) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None, int]:
    """The same at the size of the files."""
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
    return picture[top : top + height, left : left + width], labels, count


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
        top, left, side = centred_square(height, width)
        return top, left, side, side
    top, left, tall, wide = (int(part) for part in window)
    if tall < 1 or wide < 1 or top + tall > height or left + wide > width:
        raise UserError(f"--crop {top}:{left}:{tall}:{wide} does not lie within {path} ({width} x {height} pixels)")
    return top, left, tall, wide
