"""Curves and numbers on the terminal: characters only, coloured where the terminal wants colours."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.text import Text

from slotnorm.report.appearance import Look, fixed, looks, measure
from slotnorm.report.curves import Panel, limits_of
from slotnorm.report.page.panels import number
from slotnorm.report.safe_names import one_line
from slotnorm.runtime.screen import Screen

_HEIGHT = 9  # lines of a chart
_WIDTH = 64  # characters, at most
_MARKERS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "+", "X": "x", "*": "*"}
_PLAIN_MARKERS = {"o": "o", "s": "#", "^": "^", "D": "%", "v": "v", "P": "+", "X": "x", "*": "*"}


class Characters(NamedTuple):
    """What a chart is drawn with."""

    markers: Mapping[str, str]
    side: str
    corner: str
    bottom: str
    arrows: Mapping[str, str]


UNICODE = Characters(_MARKERS, "┤", "└", "─", {"↑": "↑", "↓": "↓", "ℓ²": "ℓ²"})
ASCII = Characters(_PLAIN_MARKERS, "|", "+", "-", {"↑": "(higher is better)", "↓": "(lower is better)", "ℓ²": "l2"})


def console() -> Screen:
    """Writes to stdout: no colours where NO_COLOR says so or it is not a terminal, and never a broken line."""
    return Screen(highlight=False, soft_wrap=True)


def characters(encoding: str | None = None) -> Characters:
    """Those that the output can show (`encoding` None: stdout's)."""
    try:
        "●┤ℓ²↑−".encode(encoding or sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def chart(panel: Panel, drawn_with: Characters = UNICODE) -> list[Text]:
    """A panel as lines: one column of markers a point, curves that meet beside each other."""
    low, high = limits_of([panel])
    points = sorted({int(x) for curve in panel.curves.values() for x in curve.x})
    step = max(2, min(len(panel.curves) + 1, _WIDTH // len(points)))
    cells = _cells(panel, low, high)
    lines = [Text(f"{_label(panel.metric, drawn_with)} on {one_line(', '.join(panel.datasets))}", style="bold")]
    for row in range(_HEIGHT):
        value = high - (high - low) * row / (_HEIGHT - 1)
        beside = _plain(fixed(value, 2), drawn_with) if row % 2 == 0 else ""
        line = Text(f"{beside:>8} {drawn_with.side} ")
        for point in points:
            marks = cells.get((row, point), [])[: step - 1]
            for look in marks:
                line.append(drawn_with.markers.get(look.marker, "o"), style=look.color)
            line.append(" " * (step - len(marks)))
        line.rstrip()
        lines.append(line)
    lines.append(Text(f"{'':>8} {drawn_with.corner}{drawn_with.bottom * (step * len(points))}"))
    lines.append(_axis(panel, points, step))
    return lines


def _cells(panel: Panel, low: float, high: float) -> dict[tuple[int, int], list[Look]]:
    """(line, point) -> the curves that pass there; what is outside the frame is not drawn."""
    cells: dict[tuple[int, int], list[Look]] = {}
    for norm, look in looks(panel.curves).items():
        curve = panel.curves[norm]
        for point, value in zip(curve.x.tolist(), curve.median.tolist(), strict=True):
            if low <= value <= high:
                row = round((high - value) / (high - low) * (_HEIGHT - 1))
                cells.setdefault((row, point), []).append(look)
    return cells


def _axis(panel: Panel, points: Sequence[int], step: int) -> Text:
    """The numbers below, the training number of slots in brackets; those that do not fit are left out."""
    row = [" "] * (1 + step * len(points) + 8)
    for point in sorted(points, key=lambda point: point != panel.train_slots):
        trained = point == panel.train_slots
        word = f"[{point}]" if trained else str(point)
        start = 1 + points.index(point) * step - trained
        if not "".join(row[max(0, start - 1) : start + len(word) + 1]).strip():
            row[start : start + len(word)] = word
    return Text(f"{'':>10}{''.join(row).rstrip()}  slots K, [trained]")


def legend(norms: Iterable[str], drawn_with: Characters = UNICODE) -> Text:
    """Marker and label of each normalization."""
    line = Text(f"{'':>10} ")
    for look in looks(norms).values():
        line.append(drawn_with.markers.get(look.marker, "o"), style=look.color)
        line.append(f" {one_line(look.label)}   ")
    line.rstrip()
    return line


def table(
    values: Mapping[str, Mapping[str, Sequence[float]]], slots: Sequence[int], drawn_with: Characters = UNICODE
) -> list[Text]:
    """Lines of a table: a row for each normalization, for each metric a column for each K.

    `values` are normalization -> metric -> a number for each of `slots`.
    """
    appearances = looks(values)
    metrics = list(next(iter(values.values())))
    heads = [_label(metric, drawn_with) for metric in metrics]
    wide = max(len(look.label) for look in appearances.values()) + 2
    column = 9
    block = max(column * len(slots), max(map(len, heads)) + 3)
    first = Text(" " * wide)
    for head in heads:
        first.append(head.rjust(column * len(slots)).ljust(block), style="bold")
    second = Text("slots K".ljust(wide))
    for _ in metrics:
        second.append("".join(f"{k:>{column}}" for k in slots).ljust(block))
    lines = [first, second]
    for norm, look in appearances.items():
        line = Text(one_line(look.label).ljust(wide), style=look.color)
        for metric in metrics:
            shown = (number(value, metric) for value in values[norm][metric])
            line.append(
                "".join(f"{_plain(word, drawn_with):>{column}}" for word in shown).ljust(block), style="default"
            )
        lines.append(line)
    for line in lines:
        line.rstrip()
    return lines


def _label(metric: str, drawn_with: Characters) -> str:
    shown = measure(metric)
    label = shown.label.replace("ℓ²", drawn_with.arrows["ℓ²"])
    return f"{label} {drawn_with.arrows[shown.arrow]}"


def _plain(word: str, drawn_with: Characters) -> str:
    return word if drawn_with is UNICODE else word.replace("–", "-").replace("−", "-")
