"""Where panels, title and legend stand on a sheet; how a normalization's line is drawn; and a sheet as files."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slotnorm.report.appearance import Look
from slotnorm.report.drawing import fonts
from slotnorm.report.drawing.axes import LINE
from slotnorm.report.drawing.pdf import to_pdf
from slotnorm.report.drawing.png import to_png
from slotnorm.report.drawing.sheet import Box, Sheet
from slotnorm.report.drawing.style import STYLES, Style, Width
from slotnorm.report.drawing.svg import to_svg

# in points where letters have 7.5
_WIDEST, _NARROWEST = 234.0, 105.0  # place of a panel
_LEFT, _RIGHT, _ABOVE, _BELOW = 27.0, 7.0, 16.0, 24.0  # around a panel's frame, inside its place
_HEIGHT = 0.72  # of a frame against its width
_TITLE, _LEGEND_LINE, _KEY, _BETWEEN = 15.0, 11.5, 20.0, 12.0
_TITLE_LEFT = 4.0  # of a panel's title, inside its place
_TOO_WIDE = 1.1  # times its room: a title that needs less is made a little smaller, others have two lines


@dataclass(frozen=True)
class Format:
    """How figures are asked for."""

    style: Style = STYLES["paper"]
    width: Width = "page"

    @property
    def points(self) -> float:
        """The most that a figure is wide."""
        return self.style.widths[self.width]


class Place(NamedTuple):
    """Of a panel: where it begins, and the frame that curves are in."""

    left: float
    frame: Box
    title: tuple[str, ...]
    """Its lines, the last of them right above the frame."""


def arrange(
    rows: Sequence[Sequence[str]], form: Format, title: str, legend: Sequence[tuple[Look, str]]
) -> tuple[Sheet, list[Place]]:
    """A sheet with a title and a legend, and the places of rows of panels with these titles, one after another.

    Where a row is too long, all panels follow each other whatever their rows; short rows share a line where they fit.
    """
    style, unit = form.style, form.style.unit
    longest = max(map(len, rows))
    columns = min(longest, max(1, int(form.points / (_NARROWEST * unit))))
    width = min(form.points, columns * _WIDEST * unit)
    wide = width / columns
    frame_width = wide - (_LEFT + _RIGHT) * unit
    if longest > columns:  # then the next row goes on where one ends
        every = list(itertools.chain.from_iterable(rows))
        rows = [every[start : start + columns] for start in range(0, len(every), columns)]
    else:
        rows = _side_by_side(rows, columns)
    places: list[Place] = []
    top = _TITLE * unit
    for row in rows:
        titles = [_title_lines(words, wide - (_TITLE_LEFT + _RIGHT) * unit, style) for words in row]
        upper = top + _ABOVE * unit + (max(map(len, titles)) - 1) * LINE * style.text
        for column, lines in enumerate(titles):
            left = column * wide + _LEFT * unit
            frame = Box(left, upper, left + frame_width, upper + _HEIGHT * frame_width)
            places.append(Place(column * wide + _TITLE_LEFT * unit, frame, lines))
        top = upper + _HEIGHT * frame_width + _BELOW * unit
    lines_below = _broken(legend, width, style)
    sheet = Sheet(width, top + (len(lines_below) * _LEGEND_LINE + 5) * unit, style.background, title)
    sheet.words(4 * unit, 10 * unit, title, 1.1 * style.text, style.ink, bold=True, room=width - 8 * unit)
    for number, entries in enumerate(lines_below):
        _draw_legend(sheet, entries, top + (number + 0.7) * _LEGEND_LINE * unit, style)
    return sheet, places


def _side_by_side(rows: Sequence[Sequence[str]], columns: int) -> list[list[str]]:
    """Rows that fit beside the one before them stand there."""
    lines: list[list[str]] = []
    for row in rows:
        if lines and len(lines[-1]) + len(row) <= columns:
            lines[-1] += row
        else:
            lines.append(list(row))
    return lines


def _title_lines(words: str, room: float, style: Style) -> tuple[str, ...]:
    """The words in one line, or where they are too wide in two that are as narrow as can be."""
    several = words.split(" ")
    if fonts.width(words, style.text) <= _TOO_WIDE * room or len(several) == 1:
        return (words,)
    broken = [(" ".join(several[:place]), " ".join(several[place:])) for place in range(1, len(several))]
    return min(broken, key=lambda lines: max(fonts.width(line, style.text) for line in lines))


def _entry_width(words: str, style: Style) -> float:
    return (_KEY + _BETWEEN) * style.unit + fonts.width(words, style.text)


def _broken(legend: Sequence[tuple[Look, str]], width: float, style: Style) -> list[list[tuple[Look, str]]]:
    """The entries in lines that fit."""
    lines: list[list[tuple[Look, str]]] = []
    room = 0.0
    for look, words in legend:
        needed = _entry_width(words, style)
        if needed > room:
            lines.append([])
            room = width
        lines[-1].append((look, words))
        room -= needed
    return lines


def _draw_legend(sheet: Sheet, entries: Sequence[tuple[Look, str]], y: float, style: Style) -> None:
    unit = style.unit
    left = (sheet.width - sum(_entry_width(words, style) for _, words in entries) + _BETWEEN * unit) / 2
    for look, words in entries:
        middle, color = y - 0.36 * style.text, style.color(look.color)
        ends = (left, left + (_KEY - 4) * unit)
        sheet.line(ends, (middle, middle), color, style.line, dashes(look, style))
        sheet.marks(sum(ends) / 2, middle, look.marker, mark_size(style), color, style.background, 0.4 * unit)
        sheet.words(left + _KEY * unit, y, words, style.text, style.ink)
        left += _entry_width(words, style)


def legend_of(counts: Mapping[str, str], appearances: Mapping[str, Look]) -> list[tuple[Look, str]]:
    """The entries of normalizations in their order, each with its number of runs."""
    return [(look, f"{look.label} ({counts[norm]})") for norm, look in appearances.items()]


def dashes(look: Look, style: Style) -> tuple[float, ...]:
    """Of the lines of normalizations whose codes lose the mass."""
    return (2.8 * style.line, 1.3 * style.line) if look.dashed else ()


def mark_size(style: Style) -> float:
    return 2.4 * style.line


def files(sheet: Sheet, form: Format) -> dict[str, bytes]:
    """The sheet as {"svg": ..., "pdf": ..., "png": ...}: the same bytes for the same data, without dates."""
    return {"svg": to_svg(sheet), "pdf": to_pdf(sheet), "png": to_png(sheet, form.style.unit)}
