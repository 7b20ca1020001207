"""Pictures of a model in training: a few validation scenes with their reconstructions and soft segmentations."""

import colorsys
import dataclasses
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

GAP = 4  # pixels between tiles
_SMALLEST_SIDE = 96  # pixels of one image in a training picture: a 16x16 toy scene should be seen without a magnifier
_BACKGROUND = (0.24, 0.24, 0.26)
_GOLDEN = 0.61803398875

Pixels = NDArray[np.uint8]


@dataclasses.dataclass(frozen=True)
class Picture:
    """What is shown of a model in training: a few validation scenes as it sees them. Read-only arrays."""

    images: Pixels | None  # (n, H, W, 3)
    masks: NDArray[np.float32]  # (n, K, h, w), or (n, K, N) over tokens
    reconstruction: NDArray[np.float32] | None  # (n, 3, H, W) in [-1, 1]

    def __post_init__(self) -> None:
        for array in (self.images, self.masks, self.reconstruction):
            if array is not None:
                array.flags.writeable = False

    def sheet(self) -> Image.Image:
        """The scenes as rows of input, reconstruction and soft segmentation."""
        columns = [soft_segmentation(self.masks)]
        if self.reconstruction is not None:
            columns.insert(0, to_pixels(self.reconstruction.transpose(0, 2, 3, 1) / 2 + 0.5))
        if self.images is not None:
            columns.insert(0, self.images)
        side = max(_SMALLEST_SIDE, *(column.shape[1] for column in columns))
        sheet = Image.new("RGB", (GAP + len(columns) * (side + GAP), GAP + len(self.masks) * (side + GAP)), "white")
        for x, column in enumerate(columns):
            for y, pixels in enumerate(column):
                sheet.paste(tile(pixels, side), (GAP + x * (side + GAP), GAP + y * (side + GAP)))
        return sheet


def soft_segmentation(masks: NDArray[Any], colors: NDArray[np.float64] | None = None) -> Pixels:
    """Slot colours mixed by the masks: (n, K, h, w), or (n, K, N) over a square of tokens -> (n, h, w, 3).

    `colors` (n, K, 3) are in [0, 1]; without them slots are coloured by their own number.
    """
    if masks.ndim == 3:
        side = round(masks.shape[-1] ** 0.5)
        masks = masks.reshape(*masks.shape[:2], side, side)
    mixed = slot_colors(masks.shape[1])[None].repeat(len(masks), 0) if colors is None else colors
    return to_pixels(np.einsum("nkhw,nkc->nhwc", masks, mixed))


def slot_colors(slots: int) -> NDArray[np.float64]:
    """Colours (K, 3) in [0, 1] by a slot's own number, where nothing is known to match them to."""
    return palette(np.arange(1, slots + 1))


def palette(numbers: NDArray[Any]) -> NDArray[np.float64]:
    """Colours (..., 3) in [0, 1] of colour numbers (...): 0 is the background's grey, then hues by the golden ratio."""
    hues = [(0.02 + _GOLDEN * number) % 1 for number in range(int(numbers.max()) + 1)]
    colors = [colorsys.hsv_to_rgb(hue, (0.8, 0.6)[i % 2], (0.95, 0.7, 0.85)[i % 3]) for i, hue in enumerate(hues)]
    chosen: NDArray[np.float64] = np.array([_BACKGROUND, *colors[1:]])[numbers]
    return chosen


def tile(pixels: Pixels, side: int) -> Image.Image:
    """An image (h, w, 3) as a square of a sheet."""
    return Image.fromarray(np.asarray(resized(pixels, side, side, smooth=max(pixels.shape[:2]) > side // 2)))


def resized(pixels: Pixels, width: int, height: int, smooth: bool) -> Pixels:
    """Few pixels are magnified as squares, many are scaled smoothly."""
    how = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST
    scaled: Pixels = np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize((width, height), how))
    return scaled


def to_png(sheet: Image.Image) -> bytes:
    """A sheet as a file."""
    content = io.BytesIO()
    sheet.save(content, "PNG")  # optimize=True would save a few percent of it and take four times as long
    return content.getvalue()


def to_pixels(shares: NDArray[Any]) -> Pixels:
    """[0, 1] -> uint8."""
    pixels: Pixels = np.clip(np.rint(shares * 255), 0, 255).astype(np.uint8)
    return pixels
