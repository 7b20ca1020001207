"""A sheet as PNG: matplotlib's renderer of pixels draws the same lines, marks and words."""

import io
from functools import cache
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.transforms import Affine2D, Bbox
from PIL import Image

from slotnorm.report.drawing import fonts
from slotnorm.report.drawing.sheet import Block, Box, Line, Marks, Points, Sheet, Words

_PIXELS = 240.0  # to the inch; on slides, whose letters are larger, in proportion less
_PACKED = 3  # of zlib's levels: half the time of its usual one, and files a tenth larger


def to_png(sheet: Sheet, unit: float) -> bytes:
    """The file; `unit` is how large letters are against those of a paper."""
    dots = round(_PIXELS / unit)
    scale = dots / 72
    renderer = RendererAgg(round(scale * sheet.width), round(scale * sheet.height), dots)
    canvas = _Canvas(renderer, scale)
    canvas.draw(Block(Box(0, 0, sheet.width + 1, sheet.height + 1), sheet.background))
    for item in sheet.items:
        canvas.draw(item)
    size = int(renderer.width), int(renderer.height)
    pixels = Image.frombuffer("RGBA", size, renderer.buffer_rgba(), "raw", "RGBA", 0, 1).convert("RGB")
    packed = io.BytesIO()
    pixels.save(packed, "PNG", compress_level=_PACKED, dpi=(dots, dots))
    return packed.getvalue()


class _Canvas:
    """Draws items of a sheet; the renderer counts pixels from the lower left corner."""

    def __init__(self, renderer: Any, scale: float) -> None:
        self.renderer = renderer
        self.place = Affine2D().scale(scale, -scale).translate(0, renderer.height)
        self.turned = Affine2D().scale(scale, -scale)

    def draw(self, item: Line | Marks | Block | Words) -> None:
        context = self.renderer.new_gc()
        if isinstance(item, Words):
            context.set_foreground(item.color)
            x, y = self.place.transform((item.left, item.y))
            self.renderer.draw_text(context, x, self.renderer.height - y, item.text, _letters(item.size, item.bold), 0)
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


@cache
def _letters(size: float, bold: bool) -> FontProperties:
    return FontProperties(fname=str(fonts.file_of(bold)), size=size)
