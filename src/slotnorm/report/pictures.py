"""Pictures of segmentations: input, reconstruction and soft masks of all variants side by side."""

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
from slotnorm.report.coloring import Colors, match_colors, own_reference, scene_palettes, true_reference
from slotnorm.training.pictures import GAP, Pixels, resized, soft_segmentation, tile, to_pixels, to_png

_SIDE = 132  # of one image in a visual table
_HEAD, _LEFT = 26, 96  # room for words above and beside
_OVERLAY = 0.7  # share of the segmentation where it lies over a frame


@dataclass(frozen=True)
class Illustration:
    """The examples of one run of each normalization on the same scenes, with colours that match."""

    dataset: str
    examples: Mapping[str, Examples]
    """By normalization, in the registry's order."""
    colors: Mapping[str, Colors]
    """The number of each slot's colour, by normalization."""
    palettes: NDArray[np.float64]
    """(n, P, 3) in [0, 1]: each scene's colours by number, none that of an object in it."""

    @property
    def slots(self) -> list[int]:
        """The K that all of them have."""
        return sorted(set.intersection(*(set(examples.slots) for examples in self.examples.values())))

    @property
    def any(self) -> Examples:
        return next(iter(self.examples.values()))

    def segmentation(self, norm: str, slots: int, scenes: Sequence[int] | None = None) -> Pixels:
        """(n, h, w, 3): soft segmentations of all scenes or of some; over the frame where the model has no
        reconstruction to show."""
        examples = self.examples[norm]
        some = list(range(len(examples.scenes)) if scenes is None else scenes)
        colors = self._painted(self.colors[norm][slots][some], some)
        soft = soft_segmentation(examples.masks[slots][some] / 255.0, colors)
        return soft if examples.reconstructions else self._over_frames(soft, some)

    def truth(self) -> Pixels | None:
        """(n, H, W, 3): the true segments in their colours, where the scenes have masks; over the frame where the
        segmentations are, so that the same colour is the same object."""
        labels = self.any.labels
        if labels is None:
            return None
        every = range(len(labels))
        drawn = to_pixels(self._painted(labels, every))
        plain = any(examples.reconstructions for examples in self.examples.values())
        return drawn if plain else self._over_frames(drawn, every)

    def _painted(self, numbers: NDArray[Any], scenes: Sequence[int]) -> NDArray[np.float64]:
        """The colours (n, ..., 3) of colour numbers (n, ...) of each of these scenes."""
        return np.stack([self.palettes[scene][of_scene] for scene, of_scene in zip(scenes, numbers, strict=True)])

    def _over_frames(self, drawn: Pixels, scenes: Sequence[int]) -> Pixels:
        """Pictures over their frames in grey: a frame in colour would change the slots' colours."""
        if self.any.images is None:
            return drawn
        images = self.any.images[list(scenes)]
        height, width = images.shape[1:3]
        scaled = np.stack([resized(picture, width, height, smooth=True) for picture in drawn])
        grey = images.mean(axis=-1, keepdims=True)
        return to_pixels((_OVERLAY * scaled + (1 - _OVERLAY) * grey) / 255)


def illustrate(examples: Sequence[Examples], train_slots: int) -> Illustration:
    """Match the colours of several runs on the same scenes."""
    by_norm = {of_run.norm: of_run for of_run in examples}
    by_norm = {norm: by_norm[norm] for norm in looks(by_norm)}
    first = next(iter(by_norm.values()))
    reference = None
    if first.labels is None:
        reference = own_reference(first, train_slots if train_slots in first.slots else first.slots[0])
    colors = {}
    for norm, of_run in by_norm.items():
        same_size = reference is None or of_run.masks[of_run.slots[0]].shape[-2:] == reference[0].shape[-2:]
        colors[norm] = match_colors(of_run, reference if same_size and reference else true_reference(of_run))
    most = max(int(numbers.max()) for of_norm in colors.values() for numbers in of_norm.values())
    most = max(most, 0 if first.labels is None else int(first.labels.max()))
    return Illustration(first.dataset, by_norm, colors, scene_palettes(first, most + 1))


def visual_table(illustration: Illustration, slots: int, scenes: Sequence[int]) -> bytes:
    """The paper's visual table as PNG: for each scene the input, and each variant's reconstruction and segmentation."""
    appearances = looks(illustration.examples)
    rows: list[tuple[str, list[Pixels | None]]] = []
    images, truth = illustration.any.images, illustration.truth()
    reconstructions = [examples.reconstructions.get(slots) for examples in illustration.examples.values()]
    segmented = [illustration.segmentation(norm, slots, scenes) for norm in illustration.examples]
    for place, scene in enumerate(scenes):
        segments: list[Pixels | None] = [drawn[place] for drawn in segmented]
        true = None if truth is None else truth[scene]
        image = None if images is None else images[scene]
        if any(rebuilt is not None for rebuilt in reconstructions):
            rebuilt_scenes = (None if rebuilt is None else rebuilt[scene] for rebuilt in reconstructions)
            rows.append(("reconstruction", [image, *rebuilt_scenes]))
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
        leftmost = left[number] if number < len(left) else None
        cells: list[Pixels | None] = [illustration.segmentation(norm, k, [scene])[0] for k in slots]
        rows.append((appearances[norm].label, [leftmost, *cells]))
    return _sheet(["Input, truth", *(f"K = {k}" for k in slots)], rows, len(rows))


def scene_strip(illustration: Illustration, norms: Sequence[str], slots: int, scenes: Sequence[int]) -> bytes:
    """A few scenes side by side as PNG: a row for the input, and one for the segmentation by each of `norms`."""
    images, appearances = illustration.any.images, looks(illustration.examples)
    rows: list[tuple[str, list[Pixels | None]]] = []
    if images is not None:
        rows.append(("Input", [images[scene] for scene in scenes]))
    for norm in norms:
        rows.append((appearances[norm].label, list(illustration.segmentation(norm, slots, scenes))))
    return _sheet([""] * len(scenes), rows, len(rows), line=False)


def _sheet(
    heads: Sequence[str], rows: Sequence[tuple[str, Sequence[Pixels | None]]], block: int, line: bool = True
) -> bytes:
    """Tiles with words above and beside; after every `block` rows a wider gap, and a line right of the first column."""
    step = _SIDE + GAP
    breaks = (len(rows) - 1) // block
    size = (_LEFT + len(heads) * step + 3 * GAP, _HEAD + len(rows) * step + 3 * GAP * breaks + GAP)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    places = [_LEFT + column * step + (2 * GAP if column and line else 0) for column in range(len(heads))]
    for x, words in zip(places, heads, strict=True):
        draw.text((x + _SIDE / 2, _HEAD / 2), words, fill=TEXT, font=_font(13), anchor="mm")
    for number, (words, tiles) in enumerate(rows):
        y = _HEAD + number * step + 3 * GAP * (number // block)
        draw.text((_LEFT - 8, y + _SIDE / 2), words, fill=TEXT, font=_font(11), anchor="rm")
        for x, pixels in zip(places, tiles, strict=True):
            if pixels is not None:
                sheet.paste(tile(pixels, _SIDE), (x, y))
    if line:
        right = places[0] + _SIDE + GAP + 1
        draw.line([(right, 4), (right, size[1] - GAP)], fill="#9a9a9a")
    return to_png(sheet)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)
