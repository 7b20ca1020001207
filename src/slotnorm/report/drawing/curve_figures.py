"""Curves on paper: a light line for each run, a strong one for the median, one legend for all panels."""

import math
from collections.abc import Mapping

import numpy as np

from slotnorm.report.appearance import Look, looks
from slotnorm.report.curves import Curve, Figure, Panel, PathPanel, limits_of, path_axis, shared_limits
from slotnorm.report.drawing.axes import Axes, Scale, Tick, whole_ticks
from slotnorm.report.drawing.layout import Format, Place, arrange, dashes, files, legend_of, mark_size
from slotnorm.report.drawing.sheet import Sheet

_AXES = {
    "slots": "slots K in evaluation",
    "objects": "objects in the scene",
    "divisor": "the background's mask divided by",
}
_MANY = 12  # runs of which lines are thinner


def draw(figure: Figure, form: Format = Format()) -> dict[str, bytes]:  # noqa: B008 (frozen)
    """The figure as files: {"svg": ..., "pdf": ..., "png": ...}."""
    drawn = {norm for row in figure.rows for panel in row for norm in panel.curves}
    appearances = looks(norm for norm in figure.counts if norm in drawn)
    legend = legend_of(figure.counts, appearances)
    sheet, places = arrange([[panel.title for panel in row] for row in figure.rows], form, figure.title, legend)
    panels = [pair for row in figure.rows for pair in zip(row, shared_limits(row), strict=True)]
    for (panel, limits), place in zip(panels, places, strict=True):
        _draw_panel(sheet, form, place, panel, Scale(*limits), appearances)
    return files(sheet, form)


def _draw_panel(
    sheet: Sheet, form: Format, place: Place, panel: Panel, up: Scale, appearances: Mapping[str, Look]
) -> None:
    points = sorted({int(x) for curve in panel.curves.values() for x in curve.x})
    label = _AXES[panel.against]
    if isinstance(panel, PathPanel):
        across, label = Scale(*limits_of([panel], across=True)), path_axis(panel)
        ticks = across.ticks(4)
    elif panel.against == "divisor":  # a few numbers at equal distances
        across = padded(range(len(points)))
        ticks = [Tick(number, str(point)) for number, point in enumerate(points)]
    else:
        across = padded(points)
        ticks = whole_ticks(points, place.frame.width, form.style)
    axes = Axes(sheet, form.style, place.frame, across, up)
    axes.frame(ticks)
    axes.title(place.title, place.left)
    axes.label(label)
    if isinstance(panel, PathPanel):
        _draw_paths(axes, panel, appearances)
    elif panel.against == "divisor":
        draw_curves(axes, panel.curves, appearances, points)
    else:
        if panel.against == "slots":
            axes.note(panel.train_slots, "trained")
        elif panel.train_objects in points[:-1]:
            axes.note(panel.train_objects + 0.5, "beyond training")
        draw_curves(axes, panel.curves, appearances)


def padded(points: list[int] | range) -> Scale:
    """An axis with a little room left and right of its points."""
    low, high = min(points), max(points)
    room = 0.04 * (high - low) or 0.5
    return Scale(low - room, high + room)


def draw_curves(
    axes: Axes, curves: Mapping[str, Curve], appearances: Mapping[str, Look], points: list[int] | None = None
) -> None:
    """First every run's line, light, then the medians over all of them; at the places of `points`, or at x itself."""
    style = axes.style
    places = {
        norm: curve.x if points is None else np.searchsorted(points, curve.x) for norm, curve in curves.items()
    }  # fmt: skip
    for norm, curve in curves.items():
        if len(curve.runs) > 1:
            width = (0.3 if len(curve.runs) > _MANY else 0.5) * style.line
            for values in curve.runs.values():
                axes.line(places[norm], values, style.light(appearances[norm].color), width)
    for norm, curve in curves.items():
        look = appearances[norm]
        color = style.color(look.color)
        axes.line(places[norm], curve.median, color, style.line, dashes(look, style))
        size = mark_size(style)
        between = axes.box.width / max(1, len(curve.x))
        marked = slice(None, None, math.ceil(1.5 * size / between))  # so that marks do not hide the line
        axes.marks(
            places[norm][marked], curve.median[marked], look.marker, size, color, style.background, 0.35 * style.unit
        )


def _draw_paths(axes: Axes, panel: PathPanel, appearances: Mapping[str, Look]) -> None:
    """Two scores against each other, with marks at the training K, hollow so that it hides none, and its multiples."""
    style = axes.style
    for norm, up in panel.curves.items():
        if len(up.runs) > 1:
            for name, values in up.runs.items():
                light = style.light(appearances[norm].color)
                axes.line(panel.across[norm].runs[name], values, light, 0.5 * style.line)
    for norm, up in panel.curves.items():
        look, across, color = appearances[norm], panel.across[norm].median, style.color(appearances[norm].color)
        axes.line(across, up.median, color, 0.85 * style.line, dashes(look, style))
        for k in panel.marked:
            at, hollow = up.x == k, k == panel.train_slots
            face, edge = (None, color) if hollow else (color, style.background)
            width = 0.8 * style.line if hollow else 0.4 * style.unit
            size = mark_size(style) * (1.8 if hollow else 1.15)
            axes.marks(across[at], up.median[at], look.marker, size, face, edge, width)
