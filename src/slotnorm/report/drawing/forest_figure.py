"""The forest plot: every study's change from the training K to three times it, a dot per run, median and interval."""

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slotnorm.report.appearance import looks, measure
from slotnorm.report.drawing import fonts
from slotnorm.report.drawing.axes import Axes, Scale, Tick
from slotnorm.report.drawing.layout import Format, files, mark_size
from slotnorm.report.drawing.sheet import Box, Sheet
from slotnorm.report.drawing.style import Style
from slotnorm.report.effects import ALL, PROPOSED_LESS_OTHERS, SHOWN, Difference, Effect, as_many, caveat, grouped
from slotnorm.report.resampling import FEW_RUNS, Interval
from slotnorm.report.safe_names import file_name

# in points where letters have 7.5
_ROW, _HEAD, _FOOT = 10.0, 13.0, 3.0
_NARROWEST, _BETWEEN = 92.0, 8.0
_ABOVE, _BELOW = 13.0, 15.0
_NEUTRAL = "#4a4a4a"
_DOTS = (
    "hollow: each run; filled: their median; line: its 95 % interval over scenes and runs, rough with fewer than "
    f"{FEW_RUNS} runs"
)
_TOGETHER = "; proposed (weighted sum, batch norm) − others (baseline, layer norm): right of 0 they keep more"
_PAIRS = "difference of median changes, 95 % interval, on the same scenes; right of 0 the first keeps more of its score"


@dataclass(frozen=True)
class ForestMark:
    """One row's numbers of one metric."""

    value: float
    interval: Interval | None
    dots: tuple[float, ...] = ()
    """One per run."""


@dataclass(frozen=True)
class ForestRow:
    """One line of the plot."""

    label: str
    color: str
    marker: str
    marks: Mapping[str, ForestMark]
    """By metric."""


@dataclass(frozen=True)
class ForestGroup:
    """The rows of one study."""

    title: str
    rows: tuple[ForestRow, ...]


@dataclass(frozen=True)
class Forest:
    """A forest plot as data."""

    name: str
    """For files."""
    title: str
    caption: str
    key: str
    """What the marks mean, in the picture itself."""
    metrics: tuple[str, ...]
    groups: tuple[ForestGroup, ...]

    @property
    def file(self) -> str:
        """Where it is drawn to, below the report's folder and without its ending."""
        return f"figures/{file_name(self.name)}"


def forests(effects: Sequence[Effect]) -> list[Forest]:
    """Changes on the sets with as many objects as in training, the same with more objects, and the differences."""
    everything = [effect for effect in effects if effect.which == ALL and effect.metric in SHOWN]
    first = [effect for effect in everything if effect.place == 0]
    later = [effect for effect in everything if effect.place > 0]
    forests = [
        _forest("effect", f"From the training K to {as_many(first)} it", _dots(first), first, _changes),
        _forest(
            "effect with more objects", "The same with more objects than in training", _dots(later), later, _changes
        ),
        _forest("effect differences", "How much more one score changes than the other", _PAIRS, first, _differences),
    ]
    return [forest for forest in forests if forest.groups]


def _dots(effects: Sequence[Effect]) -> str:
    """What the marks mean; the proposed together are told of where there is such a line."""
    pairs = {(pair.norm, pair.than) for effect in effects for pair in effect.differences}
    return _DOTS + _TOGETHER * (PROPOSED_LESS_OTHERS in pairs)


def _forest(
    name: str,
    title: str,
    key: str,
    effects: Sequence[Effect],
    rows_of: Callable[[Mapping[str, Effect]], Iterable[ForestRow]],
) -> Forest:
    metrics = tuple(metric for metric in SHOWN if any(effect.metric == metric for effect in effects))
    groups = [ForestGroup(place, rows) for place, some in grouped(effects) if (rows := tuple(rows_of(some)))]
    return Forest(name, title, f"{title}. {key}.", key, metrics, tuple(groups))


def _changes(effects: Mapping[str, Effect]) -> Iterable[ForestRow]:
    norms = {change.norm for effect in effects.values() for change in effect.changes}
    for norm, look in looks(norms).items():
        marks = {}
        for metric, effect in effects.items():
            if (change := effect.change(norm)) is not None:
                marks[metric] = ForestMark(change.median, change.interval, tuple(change.runs.values()))
        yield ForestRow(f"{look.label} ({_runs(marks)})", look.color, look.marker, marks)
    yield from _pairs(effects, lambda pair: (pair.norm, pair.than) == PROPOSED_LESS_OTHERS)


def _runs(marks: Mapping[str, ForestMark]) -> str:
    count = max(len(mark.dots) for mark in marks.values())
    return "1 run, scenes only" if count == 1 else f"{count} runs{', rough' * (count < FEW_RUNS)}"


def _differences(effects: Mapping[str, Effect]) -> Iterable[ForestRow]:
    return _pairs(effects, lambda pair: True)


def _pairs(effects: Mapping[str, Effect], wanted: Callable[[Difference], bool]) -> Iterable[ForestRow]:
    by_label = {pair.label: pair for effect in effects.values() for pair in effect.differences if wanted(pair)}
    for label, difference in by_label.items():
        marks = {
            metric: ForestMark(pair.value, pair.interval)
            for metric, effect in effects.items()
            for pair in effect.differences
            if pair.label == label
        }
        groups = (difference.norm, difference.than) == PROPOSED_LESS_OTHERS
        color = _NEUTRAL if groups else looks([difference.norm])[difference.norm].color
        yield ForestRow(f"{label} ({caveat(difference)})" if caveat(difference) else label, color, "D", marks)


def draw_forest(forest: Forest, form: Format = Format()) -> dict[str, bytes]:  # noqa: B008 (frozen)
    """The plot as files: metrics side by side where the sheet is wide enough, else below each other."""
    style, unit = form.style, form.style.unit
    labels = 13 * unit + max(_label_widths(forest, style))
    side_by_side = max(1, int((form.points - labels) / ((_NARROWEST + _BETWEEN) * unit)))
    chunks = [forest.metrics[start : start + side_by_side] for start in range(0, len(forest.metrics), side_by_side)]
    key = _broken_in_lines(forest.key, form.points - 8 * unit, 0.88 * style.text)
    top = (15 + 9 * len(key)) * unit
    blocks = [_with_metrics(forest, metrics) for metrics in chunks]
    heights = [(sum(_heights(block)) + _ABOVE + _BELOW) * unit for block in blocks]
    sheet = Sheet(form.points, top + sum(heights), style.background, forest.title)
    room = form.points - 8 * unit
    sheet.words(4 * unit, 10 * unit, forest.title, 1.1 * style.text, style.ink, bold=True, room=room)
    for number, words in enumerate(key):
        sheet.words(4 * unit, (20 + 9 * number) * unit, words, 0.88 * style.text, style.quiet)
    for block, height in zip(blocks, heights, strict=True):
        _draw_block(sheet, form, block, top, labels)
        top += height
    return files(sheet, form)


def _with_metrics(forest: Forest, metrics: tuple[str, ...]) -> Forest:
    """The studies and sets that have one of these metrics."""
    groups = tuple(group for group in forest.groups if any(row.marks.keys() & metrics for row in group.rows))
    return dataclasses.replace(forest, metrics=metrics, groups=groups)


def to_csv(forest: Forest) -> str:
    """What the plot shows, one line per mark."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["group", "row", "metric", "value", "low", "high", "runs_values"])
    for group in forest.groups:
        for row in group.rows:
            for metric, mark in row.marks.items():
                edges = mark.interval or (math.nan, math.nan)
                numbers = ["" if number != number else f"{number + 0.0:.6g}" for number in (mark.value, *edges)]
                own = " ".join(f"{dot + 0.0:.6g}" for dot in mark.dots)
                writer.writerow([group.title, row.label, metric, *numbers, own])
    return buffer.getvalue()


def _draw_block(sheet: Sheet, form: Format, forest: Forest, above: float, labels: float) -> None:
    """All rows, with a panel for each metric."""
    style, unit, metrics = form.style, form.style.unit, forest.metrics
    top = above + _ABOVE * unit
    bottom = top + sum(_heights(forest)) * unit
    wide = (form.points - labels) / len(metrics)
    panels = []
    y = top
    for number, height in enumerate(_heights(forest)):
        if number % 2 == 0:
            sheet.block(Box(2 * unit, y, form.points - 2 * unit, y + height * unit), style.shade)
        y += height * unit
    for number, metric in enumerate(metrics):
        left = labels + number * wide
        box = Box(left, top, left + wide - _BETWEEN * unit, bottom)
        axes = Axes(sheet, style, box, _scale(forest, metric), Scale(0, 1))
        axes.frame(_ticks(axes), words_up=False)
        axes.title((f"change of {measure(metric).label}",), left)
        sheet.line(axes.x([0, 0]), (top, bottom), style.quiet, 0.9 * unit)
        panels.append(axes)
    y = top
    for number, group in enumerate(forest.groups):
        size = 0.9 * style.text
        right = min(form.points, 7 * unit + fonts.width(group.title, size, bold=True))
        behind = style.background if number % 2 else style.shade
        sheet.block(Box(2 * unit, y, right, y + _HEAD * unit), behind)  # no line of a panel goes through the words
        room = form.points - 9 * unit
        sheet.words(5 * unit, y + 0.7 * _HEAD * unit, group.title, size, style.ink, bold=True, room=room)
        y += _HEAD * unit
        for row in group.rows:
            middle = y + _ROW * unit / 2
            sheet.words(8 * unit, middle + 0.3 * style.text, row.label, 0.9 * style.text, style.ink)
            for axes, metric in zip(panels, metrics, strict=True):
                if metric in row.marks:
                    _draw_mark(axes, middle, row, row.marks[metric])
            y += _ROW * unit
        y += _FOOT * unit


def _ticks(axes: Axes) -> list[Tick]:
    """Round numbers that do not run into the next panel's; two of them at least, since one alone is no scale."""
    style, box = axes.style, axes.box
    reach = _BETWEEN / 2 * style.unit
    most = max(2, int(box.width / (4 * style.text)))
    for about in range(most, most + 4):
        ticks = []
        for tick in axes.across.ticks(about):
            place, half = float(axes.x(tick.value)), fonts.width(tick.words, 0.88 * style.text) / 2
            if box.left - reach <= place - half and place + half <= box.right + reach:
                ticks.append(tick)
        if len(ticks) > 1:
            break
    return ticks


def _draw_mark(axes: Axes, y: float, row: ForestRow, mark: ForestMark) -> None:
    sheet, style = axes.sheet, axes.style
    color = style.color(row.color)
    if mark.interval is not None:
        sheet.line(axes.x(mark.interval), (y, y), color, 0.9 * style.line)
    if len(mark.dots) > 1:
        size = 0.8 * mark_size(style)
        sheet.marks(axes.x(mark.dots), y, "o", size, style.background, color, 0.45 * style.line)
    size = 1.3 * mark_size(style)
    sheet.marks(axes.x([mark.value]), y, row.marker, size, color, style.background, 0.4 * style.unit)


def _scale(forest: Forest, metric: str) -> Scale:
    """Zero and everything that is drawn, with a little room."""
    marks = [row.marks[metric] for group in forest.groups for row in group.rows if metric in row.marks]
    values = [0.0, *(value for mark in marks for value in (mark.value, *mark.dots, *(mark.interval or ())))]
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known), max(known)
    room = 0.05 * (high - low) or 0.05
    return Scale(low - room, high + room)


def _heights(forest: Forest) -> list[float]:
    """Of the groups, in points where letters have 7.5."""
    return [_HEAD + _ROW * len(group.rows) + _FOOT for group in forest.groups]


def _label_widths(forest: Forest, style: Style) -> list[float]:
    return [fonts.width(row.label, 0.9 * style.text) for group in forest.groups for row in group.rows]


def _broken_in_lines(text: str, width: float, size: float) -> list[str]:
    """Words in lines that fit."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and fonts.width(longer, size) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
