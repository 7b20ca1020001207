"""A sheet as PNG: matplotlib's renderer of pixels draws the same lines, marks and words."""

import math
import struct
import zlib
from functools import cache, lru_cache
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.transforms import Affine2D, Bbox
from numpy.typing import NDArray

from slotnorm.report.drawing import fonts
from slotnorm.report.drawing.sheet import Block, Box, Line, Marks, Points, Sheet, Words

_PIXELS = 240.0  # to the inch; on slides, whose letters are larger, in proportion less
_PACKED = 3  # of zlib's levels: half the time of its usual one, and files a seventh larger


def to_png(sheet: Sheet, unit: float) -> bytes:
    """The file; `unit` is how large letters are against those of a paper."""
    dots = round(_PIXELS / unit)
    scale = dots / 72
    renderer = RendererAgg(round(scale * sheet.width), round(scale * sheet.height), dots)
    canvas = _Canvas(renderer, scale)
    canvas.draw(Block(Box(0, 0, sheet.width + 1, sheet.height + 1), sheet.background))
    for item in sheet.items:
        canvas.draw(item)
    return _file(np.asarray(renderer.buffer_rgba())[:, :, :3], dots)


def _file(pixels: NDArray[np.uint8], dots: int) -> bytes:
    """Pixels (h, w, 3) as they are: to filter each line first, as is usual for photographs, takes twice the time, and
    files of flat colours are larger for it."""
    height, width, channels = pixels.shape
    lines = np.zeros((height, 1 + width * channels), dtype=np.uint8)  # a zero before each: not filtered
    lines[:, 1:].reshape(pixels.shape)[:] = pixels
    to_the_metre = round(dots / 0.0254)
    return b"".join([
        b"\x89PNG\r\n\x1a\n",
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),  # eight bits of each of three colours
        _chunk(b"pHYs", struct.pack(">IIB", to_the_metre, to_the_metre, 1)),
        _chunk(b"IDAT", zlib.compress(lines.data, _PACKED)),
        _chunk(b"IEND", b""),
    ])  # fmt: skip


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


class _Canvas:
    """Draws items of a sheet; the renderer counts pixels from the lower left corner."""

    def __init__(self, renderer: Any, scale: float) -> None:
        self.renderer = renderer
        self.place = Affine2D().scale(scale, -scale).translate(0, renderer.height)
        self.turned = Affine2D().scale(scale, -scale)

    def draw(self, item: Line | Marks | Block | Words) -> None:
        context = self.renderer.new_gc()
        if isinstance(item, Words):
            self._write(item)
        elif isinstance(item, Block):
            context.set_linewidth(0)
            box = item.box
            corners = np.array([
                (box.left, box.top), (box.right, box.top), (box.right, box.bottom), (box.left, box.bottom),
            ])  # fmt: skip
            self.renderer.draw_path(context, _closed(corners), self.place, to_rgb(item.color))
        elif isinstance(item, Line):
            self._pen(context, item.color, item.width, item.inside)
            if item.dashes:
                context.set_dashes(0, item.dashes)
            self.renderer.draw_path(context, Path(item.points), self.place)
        else:
            self._pen(context, item.edge, item.edge_width, item.inside)
            face = None if item.face is None else to_rgb(item.face)
            self.renderer.draw_markers(
                context, _closed(item.outline), self.turned, Path(item.places), self.place, face
            )  # fmt: skip
        context.restore()

    def _write(self, words: Words) -> None:
        """Lay the words over what is there, at whole pixels, so that each is made of letters but once."""
        pixels = np.asarray(self.renderer.buffer_rgba())
        ink, left_of, up = _inked(words.text, words.size, words.bold, round(self.renderer.dpi))
        x, y = self.place.transform((words.left, words.y))
        left, top = round(x) + left_of, round(self.renderer.height - y) - up
        height, width = ink.shape
        rows = slice(*np.clip((top, top + height), 0, pixels.shape[0]).tolist())  # words may lie beyond the sheet
        columns = slice(*np.clip((left, left + width), 0, pixels.shape[1]).tolist())
        share = ink[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left, None] / 255
        below = pixels[rows, columns, :3]
        below[:] = np.rint(below + share * (255 * np.asarray(to_rgb(words.color)) - below))

    def _pen(self, context: Any, color: str, width: float, inside: Box | None) -> None:
        context.set_foreground(color)
        context.set_linewidth(width)  # in points, as dashes
        context.set_joinstyle("round")
        context.set_capstyle("butt")
        if inside is not None:
            corners = self.place.transform([(inside.left, inside.bottom), (inside.right, inside.top)])
            context.set_clip_rectangle(Bbox(corners))


def _closed(corners: Points) -> Path:
    return Path(np.concatenate([corners, corners[:1]]), closed=True)


@lru_cache(maxsize=2048)
def _inked(text: str, size: float, bold: bool, dots: int) -> tuple[NDArray[np.uint8], int, int]:
    """How much of each pixel the words cover, of 255; and where that is from their left end on their line: how many
    pixels to the right of it, and up."""
    letter = math.ceil(size * dots / 72)
    width = math.ceil(fonts.width(text, size, bold) * dots / 72) + 2 * letter
    renderer = RendererAgg(width, 3 * letter, dots)
    context = renderer.new_gc()
    renderer.draw_text(context, letter, 2 * letter, text, _letters(size, bold), 0)
    context.restore()
    ink = np.asarray(renderer.buffer_rgba())[:, :, 3]
    rows, columns = (np.flatnonzero(ink.any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return np.empty((0, 0), np.uint8), 0, 0
    cut = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].copy()
    cut.setflags(write=False)
    return cut, int(columns[0]) - letter, 2 * letter - int(rows[0])


@cache
def _letters(size: float, bold: bool) -> FontProperties:
    return FontProperties(fname=str(fonts.file_of(bold)), size=size)
