"""The forest plot: every study's change from the training K to three times it, a dot per run, median and interval."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure as Paper

from slotnorm.report.appearance import TEXT, looks, measure
from slotnorm.report.drawing import STYLE, plain_number, save
from slotnorm.report.effects import ALL, PROPOSED_LESS_OTHERS, SHOWN, Effect, grouped
from slotnorm.report.resampling import Interval
from slotnorm.report.safe_names import file_name, plain

_ROW, _HEAD = 0.2, 0.3  # inches
_LABELS, _PANEL, _BETWEEN = 2.15, 2.9, 0.22
_ABOVE, _BELOW = 0.85, 0.5
_NEUTRAL = "#4a4a4a"
_DOTS = "hollow: each run; filled: their median; line: its 95 % interval over scenes and runs"
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
    made = [
        _forest("effect", "From the training K to three times it", _DOTS, first, _changes),
        _forest("effect with more objects", "The same with more objects than in training", _DOTS, later, _changes),
        _forest("effect differences", "How much more one score changes than the other", _PAIRS, first, _differences),
    ]
    return [forest for forest in made if forest.groups]


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


def _runs(marks: Mapping[str, ForestMark]) -> str:
    count = max(len(mark.dots) for mark in marks.values())
    return f"{count} runs" if count != 1 else "1 run, scenes only"


def _differences(effects: Mapping[str, Effect]) -> Iterable[ForestRow]:
    by_label = {one.label: one for effect in effects.values() for one in effect.differences}
    for label, difference in by_label.items():
        marks = {
            metric: ForestMark(one.value, one.interval)
            for metric, effect in effects.items()
            for one in effect.differences
            if one.label == label
        }
        groups = (difference.norm, difference.than) == PROPOSED_LESS_OTHERS
        color = _NEUTRAL if groups else looks([difference.norm])[difference.norm].color
        yield ForestRow(label, color, "D", marks)


def draw_forest(forest: Forest) -> dict[str, bytes]:
    """The plot as files, {"svg": ..., "png": ...}."""
    heights = [_HEAD + _ROW * len(group.rows) for group in forest.groups]
    width = _LABELS + len(forest.metrics) * (_PANEL + _BETWEEN)
    height = _ABOVE + sum(heights) + _BELOW
    with matplotlib.rc_context(STYLE):
        paper = Paper(figsize=(width, height), dpi=150, facecolor="white")
        edges = [(_LABELS + number * (_PANEL + _BETWEEN)) / width for number in range(len(forest.metrics))]
        axes = [paper.add_axes((left, _BELOW / height, _PANEL / width, sum(heights) / height)) for left in edges]
        for ax, metric in zip(axes, forest.metrics, strict=True):
            ax.set_ylim(sum(heights), 0)
            ax.set_yticks([])
            ax.spines["left"].set_visible(False)
            ax.grid(axis="x")
            ax.axvline(0, color="#6b6b6b", linewidth=1.1, zorder=1)
            ax.set_title(f"change of {measure(metric).label}", loc="left", color=TEXT)
            ax.xaxis.set_major_formatter(plain_number)
            ax.locator_params(axis="x", nbins=6)
        _draw_rows(forest, axes)
        paper.text(0.1 / width, 1 - 0.1 / height, plain(forest.title), va="top", fontsize=11, fontweight="bold")
        paper.text(0.1 / width, 1 - 0.34 / height, plain(forest.key), va="top", fontsize=8.5, color=TEXT)
        return save(paper)


def _draw_rows(forest: Forest, axes: Sequence[Any]) -> None:
    top = 0.0
    for number, group in enumerate(forest.groups):
        for ax in axes:
            if number % 2 == 0:
                ax.axhspan(top, top + _HEAD + _ROW * len(group.rows), color="#f5f5f5", zorder=0, linewidth=0)
        _write(axes[0], -_LABELS + 0.1, top + 0.6 * _HEAD, group.title, fontweight="bold", fontsize=8.5)
        for place, row in enumerate(group.rows):
            y = top + _HEAD + (place + 0.4) * _ROW
            _write(axes[0], -_LABELS + 0.2, y, row.label, fontsize=8)
            for ax, metric in zip(axes, forest.metrics, strict=True):
                if metric in row.marks:
                    _draw_mark(ax, y, row, row.marks[metric])
        top += _HEAD + _ROW * len(group.rows)


def _write(ax: Any, inches: float, y: float, words: str, **style: Any) -> None:
    """Words left of the first panel: across in inches from its edge, down at the row's place."""
    ax.annotate(
        plain(words), (0, y), xycoords=("axes fraction", "data"), xytext=(72 * inches, 0), textcoords="offset points",
        ha="left", va="center", color=TEXT, annotation_clip=False, **style,
    )  # fmt: skip


def _draw_mark(ax: Any, y: float, row: ForestRow, mark: ForestMark) -> None:
    if mark.interval is not None:
        ax.plot(mark.interval, (y, y), color=row.color, linewidth=1.8, solid_capstyle="butt", zorder=2)
    if len(mark.dots) > 1:
        ax.plot(
            mark.dots, [y] * len(mark.dots), linestyle="none", marker="o", markersize=3.2, markerfacecolor="white",
            markeredgecolor=row.color, markeredgewidth=0.9, zorder=3,
        )  # fmt: skip
    ax.plot(
        [mark.value], [y], linestyle="none", marker=row.marker, markersize=5.5, color=row.color,
        markeredgecolor="white", markeredgewidth=0.5, zorder=4,
    )  # fmt: skip
