"""How figures look where they are used: in a paper, on slides, on a dark background; and how wide they are."""

from dataclasses import dataclass
from typing import Literal

from slotnorm.report.appearance import GRID, TEXT

StyleName = Literal["paper", "slides", "dark"]
Width = Literal["page", "column"]

_LEAST_CONTRAST = 4.0  # of a line's colour to the background; 3 is what WCAG asks of graphics
# share of its own colour in the line of a single run; less on a dark background makes orange brown
_LIGHT, _LIGHT_ON_DARK = 0.36, 0.5


@dataclass(frozen=True)
class Style:
    """Colours and sizes; lengths in points, 72 to the inch."""

    name: StyleName
    background: str
    ink: str
    quiet: str
    """Of notes, axes and ticks."""
    grid: str
    shade: str
    """Behind every second group of a forest plot."""
    text: float
    """Size of letters."""
    line: float
    """Width of a median's line."""
    widths: dict[Width, float]

    @property
    def unit(self) -> float:
        """What gaps and marks grow with: 1 where letters have 7.5 points."""
        return self.text / 7.5

    def color(self, own: str) -> str:
        """A normalization's colour; on a dark background mixed with the ink until it can be told from it."""
        shares = (place / 20 for place in range(21)) if self.is_dark else (0.0,)
        mixtures = [mixed(own, self.ink, share) for share in shares]
        return next((color for color in mixtures if contrast(color, self.background) >= _LEAST_CONTRAST), mixtures[0])

    def light(self, own: str) -> str:
        """Of single runs: a tint that covers what is below it, so that no two colours blend to a third."""
        return mixed(self.background, self.color(own), _LIGHT_ON_DARK if self.is_dark else _LIGHT)

    @property
    def is_dark(self) -> bool:
        return _luminance(self.background) < 0.5


def mixed(first: str, second: str, share: float) -> str:
    """A colour between two, "#rrggbb", with this share of the second."""
    parts = (first[place : place + 2] for place in (1, 3, 5)), (second[place : place + 2] for place in (1, 3, 5))
    channels = [round((1 - share) * int(own, 16) + share * int(other, 16)) for own, other in zip(*parts, strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def contrast(first: str, second: str) -> float:
    """WCAG's contrast of two colours, from 1 to 21."""
    high, low = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# A page of a paper is 6.75 inches wide, one of its two columns 3.25; a slide is 12 inches
_ON_PAPER: dict[Width, float] = {"page": 486.0, "column": 234.0}
_ON_SLIDES: dict[Width, float] = {"page": 864.0, "column": 432.0}
STYLES: dict[StyleName, Style] = {
    "paper": Style("paper", "#ffffff", TEXT, "#5a5a5a", GRID, "#f5f5f5", 7.5, 1.5, _ON_PAPER),
    "slides": Style("slides", "#ffffff", TEXT, "#5a5a5a", GRID, "#f5f5f5", 14.0, 3.0, _ON_SLIDES),
    "dark": Style("dark", "#15171c", "#f2f2f2", "#b4b8c0", "#33373f", "#1e2128", 14.0, 3.0, _ON_SLIDES),
}
