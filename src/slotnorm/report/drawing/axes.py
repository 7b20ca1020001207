"""A panel: numbers become places inside a box, with ticks, a grid, a title, and notes where something changes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slotnorm.report.drawing import fonts
from slotnorm.report.drawing.sheet import Anchor, Box, Sheet
from slotnorm.report.drawing.style import Style

_TICKS_UP = 5
LINE = 1.2  # letters' sizes from one line of a title to the next
_TICK_ROOM = 2.2  # letters' sizes that a number below a panel needs


class Tick(NamedTuple):
    """A number on an axis, and how it is written."""

    value: float
    words: str


@dataclass(frozen=True)
class Scale:
    """What an axis shows, from its lowest to its highest number."""

    low: float
    high: float
    logarithmic: bool = False

    def shares(self, values: ArrayLike) -> NDArray[np.float64]:
        """How far along the axis each value is, 0 to 1."""
        numbers, low, high = np.asarray(values, dtype=np.float64), self.low, self.high
        if self.logarithmic:
            with np.errstate(divide="ignore", invalid="ignore"):
                numbers, low, high = np.log(numbers), math.log(low), math.log(high)
        return np.asarray((numbers - low) / (high - low))

    def ticks(self, about: int) -> list[Tick]:
        """Round numbers within it."""
        if not self.logarithmic:
            return [Tick(value, plain_number(value)) for value in round_numbers(self.low, self.high, about)]
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        factors = (1, 2, 5) if self.high / self.low < 1000 else (1,)
        values = [factor * 10.0**power for power in powers for factor in factors]
        return [Tick(value, plain_number(value)) for value in values if self.low <= value <= self.high]


def round_numbers(low: float, high: float, about: int) -> list[float]:
    """About so many round numbers from low to high, at most."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [step * place for place in range(first, math.floor(high / step + 1e-9) + 1)]


def plain_number(value: float) -> str:
    """A tick's number as people write it, without a power of ten in the corner."""
    return f"{value + 0.0:g}".replace("-", "−")


def whole_ticks(points: Sequence[int], width: float, style: Style) -> list[Tick]:
    """As many whole numbers as have room, the first point among them; of two points both and no other."""
    if len(points) == 2:
        chosen: Sequence[int] = points
    else:
        most = max(2, int(width / (_TICK_ROOM * style.text)))
        step = max(1, math.ceil((max(points) - min(points) + 1) / most))
        chosen = range(min(points), max(points) + 1, step)
    return [Tick(point, str(point)) for point in chosen]


@dataclass(frozen=True)
class Axes:
    """A panel on a sheet."""

    sheet: Sheet
    style: Style
    box: Box
    """The frame that curves are in."""
    across: Scale
    up: Scale

    def x(self, values: ArrayLike) -> NDArray[np.float64]:
        return np.asarray(self.box.left + self.across.shares(values) * self.box.width)

    def y(self, values: ArrayLike) -> NDArray[np.float64]:
        return np.asarray(self.box.bottom - self.up.shares(values) * self.box.height)

    @property
    def inside(self) -> Box:
        """What curves may cover: a little more than the frame, so that lines at its edge are whole."""
        room = self.style.unit
        return Box(self.box.left - room, self.box.top - room, self.box.right + room, self.box.bottom + room)

    def line(self, x: ArrayLike, y: ArrayLike, color: str, width: float, dashes: Sequence[float] = ()) -> None:
        self.sheet.line(self.x(x), self.y(y), color, width, dashes, self.inside)

    def marks(
        self, x: ArrayLike, y: ArrayLike, shape: str, size: float, face: str | None, edge: str, edge_width: float
    ) -> None:
        self.sheet.marks(self.x(x), self.y(y), shape, size, face, edge, edge_width, self.inside)

    def frame(self, ticks: Sequence[Tick], words_up: bool = True) -> None:
        """Grid, axes and numbers; `ticks` are those below, on the left stand round ones."""
        style, box, unit = self.style, self.box, self.style.unit
        size = 0.88 * style.text
        for value, words in self.up.ticks(_TICKS_UP) if words_up else ():
            y = float(self.y(value))
            self.sheet.line((box.left, box.right), (y, y), style.grid, 0.6 * unit)
            self.sheet.words(box.left - 3 * unit, y + 0.36 * size, words, size, style.quiet, "end")
        for value, words in ticks:
            x = float(self.x(value))
            self.sheet.line((x, x), (box.top, box.bottom), style.grid, 0.6 * unit)
            self.sheet.words(x, box.bottom + 1.3 * size, words, size, style.quiet, "middle")
        self.sheet.line((box.left, box.right), (box.bottom, box.bottom), style.quiet, 0.6 * unit)
        if words_up:
            self.sheet.line((box.left, box.left), (box.top, box.bottom), style.quiet, 0.6 * unit)

    def title(self, lines: tuple[str, ...], left: float) -> None:
        """Above the panel, from `left` on; a line that is too wide is made smaller."""
        y = self.box.top - 4.5 * self.style.unit
        for above, words in enumerate(reversed(lines)):
            room, size = self.box.right - left, self.style.text
            self.sheet.words(left, y - above * LINE * size, words, size, self.style.ink, room=room)

    def label(self, words: str) -> None:
        """What the numbers below are."""
        size = 0.94 * self.style.text
        middle, y = (self.box.left + self.box.right) / 2, self.box.bottom + 2.6 * size
        self.sheet.words(middle, y, words, size, self.style.ink, "middle", room=1.1 * self.box.width)

    def note(self, x: float, words: str) -> None:
        """A dotted vertical line with a few words at its upper end, on the side where there is room."""
        at, size, unit = float(self.x(x)), 0.8 * self.style.text, self.style.unit
        self.sheet.line((at, at), (self.box.top, self.box.bottom), self.style.quiet, 0.9 * unit, (unit, 2 * unit))
        rooms = {"start": self.box.right - at, "end": at - self.box.left}
        wide = fonts.width(words, size) + 3 * unit
        anchor: Anchor = "end" if rooms["start"] < wide and rooms["end"] > rooms["start"] else "start"
        place = at + 2.5 * unit * (1 if anchor == "start" else -1)
        y = self.box.top + size
        self.sheet.words(place, y, words, size, self.style.quiet, anchor, room=rooms[anchor] - 2.5 * unit)
