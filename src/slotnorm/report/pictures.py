"""Pictures of segmentations: input, reconstruction and soft masks side by side, for one model or for all variants."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from slotnorm.evaluation.examples import Examples
from slotnorm.report.appearance import TEXT, looks
from slotnorm.report.coloring import Colors, match_colors, own_reference, palette, true_reference
from slotnorm.storage import files
from slotnorm.training.loop import Picture

_SMALLEST_SIDE = 96  # pixels of one image in a training picture: a 16x16 toy scene should be seen without a magnifier
_SIDE = 132  # of one image in a visual table
_GAP = 4
_HEAD, _LEFT = 26, 96  # room for words above and beside
_OVERLAY = 0.6  # share of the segmentation where it lies over a frame

Pixels = NDArray[np.uint8]


def save_picture(path: Path, picture: Picture) -> None:
    """Write the scenes of a `Picture` as rows of input, reconstruction and soft segmentation (PNG)."""
    soft = soft_segmentation(picture.masks)
    columns = [soft]
    if picture.reconstruction is not None:
        columns.insert(0, _pixels(picture.reconstruction.transpose(0, 2, 3, 1) / 2 + 0.5))
    if picture.images is not None:
        columns.insert(0, picture.images)
    side = max(_SMALLEST_SIDE, *(column.shape[1] for column in columns))
    sheet = Image.new("RGB", (_GAP + len(columns) * (side + _GAP), _GAP + len(soft) * (side + _GAP)), "white")
    for x, column in enumerate(columns):
        for y, pixels in enumerate(column):
            sheet.paste(_tile(pixels, side), (_GAP + x * (side + _GAP), _GAP + y * (side + _GAP)))
    files.write(path, _png(sheet))


def soft_segmentation(masks: NDArray[Any], colors: NDArray[np.int64] | None = None) -> Pixels:
    """Slot colours mixed by the masks: (n, K, h, w), or (n, K, N) over a square of tokens -> (n, h, w, 3).

    `colors` (n, K) are colour numbers; without them slots are coloured by their own.
    """
    if masks.ndim == 3:
        side = round(masks.shape[-1] ** 0.5)
        masks = masks.reshape(*masks.shape[:2], side, side)
    mixed = slot_colors(masks.shape[1])[None].repeat(len(masks), 0) if colors is None else palette(colors)
    return _pixels(np.einsum("nkhw,nkc->nhwc", masks, mixed))


def slot_colors(slots: int) -> NDArray[np.float64]:
    """Colours (K, 3) in [0, 1] by a slot's own number, where nothing is known to match them to."""
    return palette(np.arange(1, slots + 1))


@dataclass(frozen=True)
class Illustration:
    """The examples of one run of each normalization on the same scenes, with colours that match."""

    dataset: str
    examples: Mapping[str, Examples]
    """By normalization, in the registry's order."""
    colors: Mapping[str, Colors]

    @property
    def slots(self) -> list[int]:
        """The K that all of them have."""
        return sorted(set.intersection(*(set(one.slots) for one in self.examples.values())))

    @property
    def any(self) -> Examples:
        return next(iter(self.examples.values()))

    def segmentation(self, norm: str, slots: int) -> Pixels:
        """(n, h, w, 3): soft segmentations; over the frame where the model has no reconstruction to show."""
        examples = self.examples[norm]
        soft = soft_segmentation(examples.masks[slots] / 255.0, self.colors[norm][slots])
        if examples.reconstructions or examples.images is None:
            return soft
        height, width = examples.images.shape[1:3]
        scaled = np.stack([_resized(one, width, height, smooth=True) for one in soft])
        return _pixels((_OVERLAY * scaled + (1 - _OVERLAY) * examples.images) / 255)

    def truth(self) -> Pixels | None:
        """(n, H, W, 3): the true segments in their colours, where the scenes have masks."""
        labels = self.any.labels
        return None if labels is None else _pixels(palette(labels))


def illustrate(examples: Sequence[Examples], train_slots: int) -> Illustration:
    """Match the colours of several runs on the same scenes."""
    by_norm = {one.norm: one for one in examples}
    by_norm = {norm: by_norm[norm] for norm in looks(by_norm)}
    first = next(iter(by_norm.values()))
    reference = None
    if first.labels is None:
        reference = own_reference(first, train_slots if train_slots in first.slots else first.slots[0])
    colors = {}
    for norm, one in by_norm.items():
        same_size = reference is None or one.masks[one.slots[0]].shape[-2:] == reference[0].shape[-2:]
        colors[norm] = match_colors(one, reference if same_size and reference else true_reference(one))
    return Illustration(first.dataset, by_norm, colors)


def visual_table(illustration: Illustration, slots: int, scenes: Sequence[int]) -> bytes:
    """The paper's visual table as PNG: for each scene the input, and each variant's reconstruction and segmentation."""
    appearances = looks(illustration.examples)
    rows: list[tuple[str, list[Pixels | None]]] = []
    images, truth = illustration.any.images, illustration.truth()
    for scene in scenes:
        told = [one.reconstructions.get(slots) for one in illustration.examples.values()]
        segments: list[Pixels | None] = [
            illustration.segmentation(norm, slots)[scene] for norm in illustration.examples
        ]
        true = None if truth is None else truth[scene]
        image = None if images is None else images[scene]
        if any(one is not None for one in told):
            rows.append(("reconstruction", [image, *(None if one is None else one[scene] for one in told)]))
            rows.append(("segmentation", [true, *segments]))
        else:
            rows.append(("segmentation", [image, *segments]))
    block = len(rows) // len(scenes)
    first = "Input, truth" if block > 1 and truth is not None else "Input"
    return _sheet([first, *(look.label for look in appearances.values())], rows, block)


def slots_table(illustration: Illustration, slots: Sequence[int], scene: int) -> bytes:
    """One scene as PNG: a row for each variant, a column for each K; the input and the truth on the left."""
    appearances = looks(illustration.examples)
    images, truth = illustration.any.images, illustration.truth()
    left = [None if images is None else images[scene], None if truth is None else truth[scene]]
    rows: list[tuple[str, list[Pixels | None]]] = []
    for number, norm in enumerate(illustration.examples):
        beside = left[number] if number < len(left) else None
        cells: list[Pixels | None] = [illustration.segmentation(norm, k)[scene] for k in slots]
        rows.append((appearances[norm].label, [beside, *cells]))
    return _sheet(["Input, truth", *(f"K = {k}" for k in slots)], rows, len(rows))


def _sheet(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[Pixels | None]]], block: int) -> bytes:
    """Tiles with words above and beside; after every `block` rows a wider gap, and a line right of the first column."""
    step = _SIDE + _GAP
    breaks = (len(rows) - 1) // block
    size = (_LEFT + len(heads) * step + 3 * _GAP, _HEAD + len(rows) * step + 3 * _GAP * breaks + _GAP)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    places = [_LEFT + column * step + (2 * _GAP if column else 0) for column in range(len(heads))]
    for x, words in zip(places, heads, strict=True):
        draw.text((x + _SIDE / 2, _HEAD / 2), words, fill=TEXT, font=_font(13), anchor="mm")
    for number, (words, tiles) in enumerate(rows):
        y = _HEAD + number * step + 3 * _GAP * (number // block)
        draw.text((_LEFT - 8, y + _SIDE / 2), words, fill=TEXT, font=_font(11), anchor="rm")
        for x, pixels in zip(places, tiles, strict=True):
            if pixels is not None:
                sheet.paste(_tile(pixels, _SIDE), (x, y))
    line = places[0] + _SIDE + _GAP + 1
    draw.line([(line, 4), (line, size[1] - _GAP)], fill="#9a9a9a")
    return _png(sheet)


def _tile(pixels: Pixels, side: int) -> Image.Image:
    return Image.fromarray(np.asarray(_resized(pixels, side, side, smooth=max(pixels.shape[:2]) > side // 2)))


def _resized(pixels: Pixels, width: int, height: int, smooth: bool) -> Pixels:
    """Few pixels are magnified as squares, many are scaled smoothly."""
    how = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST
    resized: Pixels = np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize((width, height), how))
    return resized


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)


def _png(sheet: Image.Image) -> bytes:
    content = io.BytesIO()
    sheet.save(content, "PNG", optimize=True)
    return content.getvalue()


def _pixels(shares: NDArray[Any]) -> Pixels:
    """[0, 1] -> uint8."""
    whole: Pixels = np.clip(np.rint(shares * 255), 0, 255).astype(np.uint8)
    return whole
