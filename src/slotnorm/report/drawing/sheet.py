"""A drawing as plain data: lines, marks, blocks and words on a sheet, in points from its upper left corner."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slotnorm.report.drawing import fonts
from slotnorm.report.safe_names import one_line

Points = NDArray[np.float64]
Anchor = Literal["start", "middle", "end"]


class Box(NamedTuple):
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top


@dataclass(frozen=True, eq=False)
class Line:
    """An open line through points (n, 2)."""

    points: Points
    color: str
    width: float
    dashes: tuple[float, ...] = ()
    """Lengths of dash and gap; none: solid."""
    inside: Box | None = None
    """What is outside of it is cut off."""


@dataclass(frozen=True, eq=False)
class Marks:
    """The same small outline at places (n, 2)."""

    places: Points
    outline: Points
    """(m, 2), around (0, 0), closed."""
    face: str | None
    """None: hollow."""
    edge: str
    edge_width: float
    inside: Box | None = None


@dataclass(frozen=True)
class Block:
    """A filled rectangle."""

    box: Box
    color: str


@dataclass(frozen=True)
class Words:
    """One line of text at its baseline."""

    x: float
    y: float
    text: str
    size: float
    color: str
    anchor: Anchor = "start"
    bold: bool = False

    @property
    def left(self) -> float:
        """Where the first letter starts."""
        shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]
        return self.x - shift * fonts.width(self.text, self.size, self.bold) if shift else self.x


@dataclass
class Sheet:
    """What is drawn, in the order in which it is drawn."""

    width: float
    height: float
    background: str
    title: str
    """For readers of the file: what it shows."""
    items: list[Line | Marks | Block | Words] = field(default_factory=list)

    def line(
        self,
        x: ArrayLike,
        y: ArrayLike,
        color: str,
        width: float,
        dashes: Sequence[float] = (),
        inside: Box | None = None,
    ) -> None:
        """A line through places, interrupted where one is not a number."""
        points = np.column_stack(np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(y, np.float64)))
        gaps = np.flatnonzero(~np.isfinite(points).all(axis=1))
        for piece in np.split(points, gaps):
            known = piece[np.isfinite(piece).all(axis=1)]
            if len(known) > 1:
                self.items.append(Line(known, color, width, tuple(dashes), inside))

    def marks(
        self,
        x: ArrayLike,
        y: ArrayLike,
        shape: str,
        size: float,
        face: str | None,
        edge: str,
        edge_width: float,
        inside: Box | None = None,
    ) -> None:
        """A marker, by matplotlib's name, as wide as `size` at each place that is known."""
        places = np.column_stack(np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(y, np.float64)))
        known = places[np.isfinite(places).all(axis=1)]
        if len(known):
            outline = size / 2 * _OUTLINES.get(shape, _OUTLINES["o"])
            self.items.append(Marks(known, outline, face, edge, edge_width, inside))

    def block(self, box: Box, color: str) -> None:
        self.items.append(Block(box, color))

    def words(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        color: str,
        anchor: Anchor = "start",
        bold: bool = False,
        room: float = math.inf,
    ) -> None:
        """Words at a baseline; made smaller where they are wider than there is room."""
        shown = one_line(text)
        wide = fonts.width(shown, size, bold)
        self.items.append(Words(x, y, shown, size * min(1.0, room / wide if wide else 1.0), color, anchor, bold))


def _circle() -> list[tuple[float, float]]:
    return [(math.cos(turn * math.pi / 12), math.sin(turn * math.pi / 12)) for turn in range(24)]


def _star() -> list[tuple[float, float]]:
    lengths = [1.35, 0.55] * 5
    return [(r * math.sin(turn * math.pi / 5), -r * math.cos(turn * math.pi / 5)) for turn, r in enumerate(lengths)]


_PLUS = [
    (-0.4, -1.1), (0.4, -1.1), (0.4, -0.4), (1.1, -0.4), (1.1, 0.4), (0.4, 0.4),
    (0.4, 1.1), (-0.4, 1.1), (-0.4, 0.4), (-1.1, 0.4), (-1.1, -0.4), (-0.4, -0.4),
]  # fmt: skip
# half as wide as a marker's size, which is 2 here
_OUTLINES: dict[str, Points] = {
    name: np.asarray(corners, dtype=np.float64)
    for name, corners in {
        "o": _circle(),
        "s": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        "^": [(0, -1.05), (1.05, 0.95), (-1.05, 0.95)],
        "v": [(0, 1.05), (1.05, -0.95), (-1.05, -0.95)],
        "D": [(0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)],
        "P": _PLUS,
        "X": [((x - y) / math.sqrt(2), (x + y) / math.sqrt(2)) for x, y in _PLUS],
        "*": _star(),
    }.items()
}
