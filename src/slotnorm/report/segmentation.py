"""What a model makes of one picture: a label map, soft masks, how many objects there are, and a figure of them."""

import base64
import html
import io
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from slotnorm.training.pictures import palette, to_pixels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COUNTED_ROWS = 256  # of a label map at once
_LABELS = 256
_SHOWN_SIDE = 640  # pixels of the picture in a figure or a notebook, at most
_OVERLAY = 0.5  # share of the slots' colours


@dataclass(frozen=True, eq=False, repr=False)
class Segmentation:
    """What a model makes of one image; a notebook shows it."""

    image: Image.Image
    """As it was read: 8-bit RGB, upright."""
    labels: NDArray[np.uint8]
    """(H, W): the slot of every pixel of the input; with slots="auto", 0 is the background."""
    masses: NDArray[np.float64]
    """(K,): the attention of each slot, summed over tokens; all slots together have the number of tokens."""
    tokens: int
    scaled_to: int
    """Side of the square that the model saw."""
    masks: NDArray[np.float32]
    """(K, h, w): how much each slot explains of each place, on the model's own grid."""
    count: int
    """How many objects were found: `sn.count_objects`."""
    numbers: tuple[tuple[int, ...], ...]
    """(K,): which of the model's slots each of these is; the background is all that hold no object."""
    background: int | None = None
    """Which of these slots is the background; None where the model was asked for a number of slots."""
    times_validation: float | None = None
    """The error in rebuilding the picture, by that of the model's validation; None where that is not known."""

    def slots(self) -> list[dict[str, Any]]:
        """For each slot its area in pixels, share of the image, attention mass, and box (None when it is empty).

        `background` says whether it is the background, and `numbers` which of the model's slots it is.
        """
        by_row, by_column = self._tallies
        areas = by_row.sum(axis=0)
        return [
            {
                "slot": slot, "background": slot == self.background, "numbers": list(self.numbers[slot]),
                "area": int(area), "share": float(area / self.labels.size),
                "attention_mass": float(mass), "box": _box(by_row[:, slot], by_column[:, slot]) if area else None,
            }
            for slot, (area, mass) in enumerate(zip(areas[: len(self.masses)], self.masses, strict=True))
        ]  # fmt: skip

    def overlay(self, side: int | None = None) -> Image.Image:
        """The picture, half covered by the slots' colours; scaled such that no side is longer than `side`."""
        picture, labels = self.image, Image.fromarray(self.labels)
        if side is not None and max(picture.size) > side:
            share = side / max(picture.size)
            size = (max(1, round(picture.width * share)), max(1, round(picture.height * share)))
            picture, labels = picture.resize(size), labels.resize(size, Image.Resampling.NEAREST)
        labels.putpalette(self.palette.tobytes())
        return Image.blend(picture, labels.convert("RGB"), _OVERLAY)

    def plot(self) -> "Figure":
        """A figure: the picture, its segments, and each slot's soft mask."""
        from matplotlib.figure import Figure

        columns = min(6, len(self.masks) + 2)
        rows = -(-(len(self.masks) + 2) // columns)
        figure = Figure(figsize=(2 * columns, 2.2 * rows), layout="constrained")
        axes = list(np.atleast_1d(figure.subplots(rows, columns)).flat)
        small = self.image.copy()
        small.thumbnail((_SHOWN_SIDE, _SHOWN_SIDE))
        axes[0].imshow(small)
        axes[0].set_title("picture", fontsize=9)
        axes[1].imshow(self.overlay(_SHOWN_SIDE))
        axes[1].set_title(count_in_words(self.count), fontsize=9)
        extent = (0, self.image.width, self.image.height, 0)
        for slot, (axis, mask) in enumerate(zip(axes[2:], self.masks, strict=False)):
            axis.imshow(mask, vmin=0, vmax=1, cmap="gray", extent=extent)
            axis.set_title("background" if slot == self.background else f"slot {slot}", fontsize=9)
        for axis in axes:
            axis.axis("off")
        return figure

    def __repr__(self) -> str:
        slots = f", {len(self.masks)} slot{'s' * (len(self.masks) != 1)}"
        beside = slots if self.background is None else " and background"
        return f"Segmentation of {self.image.width} x {self.image.height} pixels: {count_in_words(self.count)}{beside}"

    def _repr_html_(self) -> str:
        content = io.BytesIO()
        self.overlay(_SHOWN_SIDE).save(content, "PNG")
        data = base64.b64encode(content.getvalue()).decode()
        words = html.escape(repr(self))
        return (
            f'<figure><img alt="{words}" src="data:image/png;base64,{data}"><figcaption>{words}</figcaption></figure>'
        )

    @property
    def palette(self) -> NDArray[np.uint8]:
        """(K, 3): the colours of label maps and overlays; the background is grey."""
        first = 1 if self.background is None else 0
        return to_pixels(palette(np.arange(first, first + len(self.masses))))

    @cached_property
    def _tallies(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pixels of each slot in each row (H, 256) and in each column (W, 256)."""
        height, width = self.labels.shape
        by_row, by_column = np.zeros((height, _LABELS), np.int64), np.zeros((width, _LABELS), np.int64)
        for first in range(0, height, _COUNTED_ROWS):
            part = self.labels[first : first + _COUNTED_ROWS].astype(np.int64)
            rows = np.arange(len(part))[:, None] * _LABELS + part
            by_row[first : first + len(part)] = np.bincount(rows.ravel(), minlength=len(part) * _LABELS).reshape(
                -1, _LABELS
            )
            columns = np.arange(width) * _LABELS + part
            by_column += np.bincount(columns.ravel(), minlength=width * _LABELS).reshape(-1, _LABELS)
        return by_row, by_column


def count_in_words(count: int) -> str:
    return "1 object" if count == 1 else f"{count} objects"


def _box(by_row: NDArray[np.int64], by_column: NDArray[np.int64]) -> list[int]:
    """Left, top, right and bottom of a slot's pixels, right and bottom being the first outside."""
    rows, columns = np.flatnonzero(by_row), np.flatnonzero(by_column)
    return [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]
