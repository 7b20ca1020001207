"""The letters of figures: how wide words are, and the part of the font that a file carries with it."""

import io
import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import matplotlib
from fontTools import subset
from fontTools.ttLib import TTFont

FAMILY = "DejaVu Sans"  # comes with matplotlib, may be embedded, and has ũ, ℓ and arrows
_FILES = {False: "DejaVuSans.ttf", True: "DejaVuSans-Bold.ttf"}  # by whether they are bold
_ALWAYS = string.ascii_letters + string.digits + string.punctuation + " −–±÷²ℓ∞ũ→…↑↓"
# what figures usually say: most of them then share one part of the font, which is made once
_LEFT_OUT = ["FFTM", "GDEF", "GPOS", "GSUB", "MATH", "gasp"]


@dataclass(frozen=True)
class Part:
    """Some letters of a font, as a font of their own."""

    truetype: bytes
    woff: bytes
    glyphs: Mapping[str, int]
    """Letter -> its number in the font; one that the font lacks has none."""
    widths: tuple[int, ...]
    """By number, in thousandths of the letters' size."""
    box: tuple[int, int, int, int]
    """All letters lie within it, in thousandths."""


def file_of(bold: bool = False) -> Path:
    """The font's file."""
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / _FILES[bold]


def width(text: str, size: float, bold: bool = False) -> float:
    """How wide words are, in the unit of their size."""
    widths = _widths(bold)
    return size * sum(widths.get(letter, 0.6) for letter in text)


def part(text: str, bold: bool = False) -> Part:
    """A part of the font that has all letters of the text."""
    return _part(frozenset(text) | frozenset(_ALWAYS), bold)


@cache
def _widths(bold: bool) -> Mapping[str, float]:
    """Letter -> its width, where the letter is one high."""
    with TTFont(file_of(bold), lazy=True) as font:
        units, advances = font["head"].unitsPerEm, font["hmtx"].metrics
        return {chr(code): advances[name][0] / units for code, name in font.getBestCmap().items()}


@lru_cache(maxsize=32)
def _part(letters: frozenset[str], bold: bool) -> Part:
    options = subset.Options(hinting=False, glyph_names=False, notdef_outline=True, layout_features=[], name_IDs=[1, 2])
    options.drop_tables += _LEFT_OUT
    with subset.load_font(str(file_of(bold)), options) as font:
        cutter = subset.Subsetter(options)
        cutter.populate(unicodes=sorted(map(ord, letters)))
        cutter.subset(font)
        head, advances = font["head"], font["hmtx"].metrics
        thousandth = head.unitsPerEm / 1000
        names = font.getGlyphOrder()
        glyphs = {chr(code): font.getGlyphID(name) for code, name in font.getBestCmap().items()}
        box = tuple(round(edge / thousandth) for edge in (head.xMin, head.yMin, head.xMax, head.yMax))
        files = {}
        for flavor in (None, "woff"):
            font.flavor, buffer = flavor, io.BytesIO()
            font.save(buffer)
            files[flavor] = buffer.getvalue()
    widths = tuple(round(advances[name][0] / thousandth) for name in names)
    return Part(files[None], files["woff"], glyphs, widths, (box[0], box[1], box[2], box[3]))
