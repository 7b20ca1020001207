"""Anyone's pictures as a set: a folder of image files becomes scenes in the cache, once for each content and size."""

import statistics
import warnings
from pathlib import Path

from slotnorm.config import SPLITS
from slotnorm.data.cache import cache_folder
from slotnorm.data.folder import Survey, convert, survey
from slotnorm.data.manifest import MANIFEST, STATE
from slotnorm.data.prefix_cache import open_or_build
from slotnorm.data.scenes import Scenes


def is_pictures(directory: Path) -> bool:
    """Whether a folder is one of image files, and not a built set, a half-built one, or one of built splits."""
    places = [directory, *(directory / split for split in SPLITS)]
    return directory.is_dir() and not any((place / file).exists() for place in places for file in (MANIFEST, STATE))


def open_pictures(directory: Path, size: int) -> Scenes:
    """The set of a folder of pictures, scaled to size x size as `segment` scales; built in the cache where it is new.

    What it is called there depends on the content of every file: changed pictures are another set.
    """
    surveyed = survey(directory)
    folder = cache_folder() / "data" / "own" / f"{surveyed.digest()[:16] if surveyed.items else 'none'}-{size}"
    command = f"slotnorm data folder --from {directory} --size {size} --skip-bad --out SET"
    way_out = f"`{command}` leaves out what cannot be used; give --data SET then"
    return open_or_build(folder, len(surveyed.items), lambda out, _: convert(directory, out, size, way_out=way_out))


def middle_side(surveyed: Survey) -> int:
    """The median of the pictures' shorter sides, in pixels, by what their files claim; 0 where none can be read."""
    from PIL import Image

    sides = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about large sizes and odd metadata: nothing is decoded here
        for item in surveyed.items:
            try:
                with Image.open(item.image) as image:
                    sides.append(min(image.size))
            except Exception:  # decoders fail in many ways; the conversion names the file and the reason
                continue
    return int(statistics.median(sides)) if sides else 0
