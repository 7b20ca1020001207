"""Pictures of segmentations: input, reconstruction and soft masks side by side."""

import colorsys
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from slotnorm import files
from slotnorm.training import Picture

_SMALLEST_SIDE = 96  # pixels of one image in the picture: a 16x16 toy scene should be seen without a magnifier
_GAP = 4


def save_picture(path: Path, picture: Picture) -> None:
    """Write the scenes of a `Picture` as rows of input, reconstruction and soft segmentation (PNG)."""
    soft = soft_segmentation(picture.masks)
    columns = [soft]
    if picture.reconstruction is not None:
        columns.insert(0, _pixels(picture.reconstruction.transpose(0, 2, 3, 1)))
    if picture.images is not None:
        columns.insert(0, picture.images)
    side = max(_SMALLEST_SIDE, *(column.shape[1] for column in columns))
    sheet = Image.new("RGB", _sheet_size(len(columns), len(soft), side), "white")
    for x, column in enumerate(columns):
        for y, pixels in enumerate(column):
            tile = Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST)
            sheet.paste(tile, (_GAP + x * (side + _GAP), _GAP + y * (side + _GAP)))
    content = io.BytesIO()
    sheet.save(content, "PNG")
    files.write(path, content.getvalue())


def soft_segmentation(masks: NDArray[Any]) -> NDArray[np.uint8]:
    """Slot colours mixed by the masks: (n, K, h, w), or (n, K, N) over a square of tokens -> (n, h, w, 3)."""
    if masks.ndim == 3:
        side = round(masks.shape[-1] ** 0.5)
        masks = masks.reshape(*masks.shape[:2], side, side)
    return _pixels(np.einsum("nkhw,kc->nhwc", masks, slot_colors(masks.shape[1])) * 2 - 1)


def slot_colors(slots: int) -> NDArray[np.float64]:
    """Colours (K, 3) in [0, 1] that stay apart: hues by the golden ratio, three brightnesses."""
    hues = [(0.61803398875 * slot) % 1 for slot in range(slots)]
    return np.array([colorsys.hsv_to_rgb(hue, 0.75, (1.0, 0.75, 0.5)[slot % 3]) for slot, hue in enumerate(hues)])


def _pixels(values: NDArray[Any]) -> NDArray[np.uint8]:
    """[-1, 1] -> uint8."""
    return np.clip(np.rint((values + 1) * 127.5), 0, 255).astype(np.uint8)


def _sheet_size(columns: int, rows: int, side: int) -> tuple[int, int]:
    return _GAP + columns * (side + _GAP), _GAP + rows * (side + _GAP)
