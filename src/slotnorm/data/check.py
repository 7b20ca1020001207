"""Verify a set of scenes in full, describe it in a table, and show some of it on a contact sheet with masks."""

import colorsys
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slotnorm.data.scenes import LazyArray, Scenes
from slotnorm.errors import DamagedFile, UserError
from slotnorm.runtime.columns import in_columns
from slotnorm.runtime.progress import Progress
from slotnorm.storage import files
from slotnorm.storage.files import open_to_read

if TYPE_CHECKING:
    from PIL import Image

_READ_BYTES = 1 << 24
_TILE = 96  # pixels at least, so that 32-pixel scenes can be looked at
_GAP = 2
_BACKGROUND = (40, 40, 40)


def verify(scenes: Scenes) -> None:
    """Compare every file of the container with its SHA-256; the error names the file and, where possible, the block."""
    files = scenes.manifest["files"]
    paths = {name: scenes.directory / entry["file"] for name, entry in files.items()}
    read = 0
    with Progress("MiB verified", sum(path.stat().st_size for path in paths.values()) >> 20) as progress:
        for name, path in paths.items():
            _require_finite(scenes, name)
            digest = hashlib.sha256()
            with open_to_read(path) as file:
                while content := file.read(_READ_BYTES):
                    digest.update(content)
                    read += len(content)
                    progress.advance((read >> 20) - progress.done)
            if digest.hexdigest() != files[name]["sha256"]:
                scenes.verify(name)
                raise DamagedFile(
                    f"{path} does not have the SHA-256 of its manifest; delete its folder and build the set again"
                )


def _require_finite(scenes: Scenes, name: str) -> None:
    """Refuse numbers that no set is built with: whoever put them there could seal the set again."""
    column = scenes.columns[name]
    rows = column.rows
    if rows.dtype.kind == "f":
        step = max(1, _READ_BYTES // max(1, column.field.row_bytes))
        for first in range(0, len(rows), step):
            finite = np.isfinite(rows[first : first + step]).reshape(len(rows[first : first + step]), -1).all(axis=1)
            if not finite.all():
                scene = first + int(np.argmin(finite))
                raise DamagedFile(f"{column.path} has {name} of scene {scene} that are not finite; build the set again")


def describe(scenes: Scenes) -> str:
    """A table: scenes, fields with their sizes, scenes by number of objects, share of background, origin."""
    manifest = scenes.manifest
    rows = [("scenes", str(len(scenes)))]
    for name, entry in manifest["files"].items():
        path = scenes.directory / entry["file"]
        shape = " x ".join(str(length) for length in entry["shape"][1:]) or "one number"
        rows.append((name, f"{shape} {entry['dtype']}, {path.stat().st_size / 1e6:.1f} MB"))
    most = max(manifest["objects"].values(), default=1)
    for number, many in sorted(manifest["objects"].items(), key=lambda pair: int(pair[0])):
        bar = "#" * max(1, round(30 * many / most))
        rows.append((f"{number} objects", f"{many:>7} {100 * many / len(scenes):5.1f} %  {bar}"))
    if not manifest["objects"]:
        rows.append(("objects", "not counted: no masks, no properties"))
    if scenes.labels is not None:
        rows.append(("background", f"{100 * background_share(scenes.labels):.1f} % of the pixels"))
    rows.append(("protocol", manifest["protocol"]))
    rows += [(f"from {key}", str(value)) for key, value in manifest["provenance"].items()]
    rows += [("built by", manifest["library"]), ("fingerprint", scenes.fingerprint)]
    return "\n".join(in_columns(rows))


def background_share(labels: LazyArray) -> float:
    """The share of pixels (n, H, W) with label 0."""
    step = max(1, _READ_BYTES // (labels.shape[1] * labels.shape[2]))
    foreground = sum(np.count_nonzero(labels[first : first + step]) for first in range(0, len(labels), step))
    return 1 - foreground / (len(labels) * labels.shape[1] * labels.shape[2])


def contact_sheet(scenes: Scenes, num: int = 32, columns: int = 8) -> "Image.Image":
    """`num` scenes in the order of `Scenes.sample`, each image above its mask; every label has its own colour."""
    from PIL import Image

    shown = scenes.sample(num)
    layers = []
    if shown.images is not None:
        layers.append(np.asarray(shown.images))
    if shown.labels is not None:
        layers.append(label_colours()[np.asarray(shown.labels)])
    if not layers:
        raise UserError(f"{scenes.directory} holds features only: there is nothing to show")
    tiles = [_framed(np.concatenate([_enlarged(layer[row]) for layer in layers])) for row in range(len(shown))]
    tiles += [np.full_like(tiles[0], 255)] * (-len(tiles) % min(columns, len(tiles)))
    columns = min(columns, len(tiles))
    lines = [np.concatenate(tiles[first : first + columns], axis=1) for first in range(0, len(tiles), columns)]
    return Image.fromarray(np.concatenate(lines))


def label_colours() -> NDArray[np.uint8]:
    """(256, 3): dark grey for the background, then hues a golden angle apart, so that neighbours differ."""
    hues = [(label * 0.61803398875) % 1.0 for label in range(255)]
    rings = [(0.65, 1.0), (0.9, 0.75), (0.4, 0.95)]
    colours = [colorsys.hsv_to_rgb(hue, *rings[label // 8 % 3]) for label, hue in enumerate(hues)]
    return np.array([_BACKGROUND, *(tuple(round(255 * part) for part in colour) for colour in colours)], dtype=np.uint8)


def _enlarged(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Small images, pixel by pixel, up to `_TILE` or a little more; large ones thinned to at most twice of that."""
    longest = max(image.shape[:2])
    image = image[:: -(-longest // (2 * _TILE)), :: -(-longest // (2 * _TILE))]
    factor = -(-_TILE // max(image.shape[:2]))
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def _framed(tile: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.pad(tile, ((_GAP, _GAP), (_GAP, _GAP), (0, 0)), constant_values=255)


def check(directory: str | Path, sheet: str | Path | None = None, num: int = 32) -> str:
    """Verify everything, write the contact sheet (default: `contact-sheet.png` in the folder), return the table."""
    if num < 1:
        raise UserError(f"{num} scenes cannot be shown; ask for one or more with --num")
    scenes = Scenes.open(directory)
    verify(scenes)
    table = describe(scenes)
    if scenes.images is None and scenes.labels is None:
        return f"{table}\ncontact sheet  none: the set holds features only"
    return f"{table}\ncontact sheet  {contact_sheet_beside(scenes, sheet, num)}"


def contact_sheet_beside(scenes: Scenes, sheet: str | Path | None = None, num: int = 32) -> Path:
    """Write the contact sheet, unless said otherwise into the set's folder; returns where it is."""
    path = Path(sheet) if sheet is not None else scenes.directory / "contact-sheet.png"
    with files.replacing(path) as temporary:
        contact_sheet(scenes, num).save(temporary, format="PNG", optimize=True)
    return path
