"""Four panels of what happens inside trained models: three curves over K, and the mass read off the codes."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from slotnorm.report.appearance import Look, looks
from slotnorm.report.diagnostics import DRAWN, Diagnostics
from slotnorm.report.drawing.axes import Axes, Scale, whole_ticks
from slotnorm.report.drawing.curve_figures import draw_curves, padded
from slotnorm.report.drawing.layout import Format, Place, arrange, files, legend_of
from slotnorm.report.drawing.sheet import Sheet

_LINEAR = ("occupied", "update_norm_ratio")  # the others are ratios that span powers of ten
_MOST_DOTS = 250  # of a normalization: more lie upon each other
_READ = (-0.2, 1.2)  # masses that are shown; what lies beyond is drawn at the edge


def draw_diagnostics(measured: Diagnostics, form: Format = Format()) -> dict[str, bytes]:  # noqa: B008 (frozen)
    """The panels as {"svg": ..., "pdf": ..., "png": ...}."""
    appearances = looks(measured.counts)
    titles = [*DRAWN.values(), "mass read off the codes (Prop. 2)"]
    title = f"{measured.title}: inside the models, on {measured.dataset}"
    sheet, places = arrange([titles[:2], titles[2:]], form, title, legend_of(measured.counts, appearances))
    for metric, place in zip(DRAWN, places, strict=False):
        _draw_metric(sheet, form, place, measured, metric, appearances)
    _draw_masses(sheet, form, places[-1], measured, appearances)
    return files(sheet, form)


def _draw_metric(
    sheet: Sheet, form: Format, place: Place, measured: Diagnostics, metric: str, appearances: Mapping[str, Look]
) -> None:
    curves, style = measured.curves[metric], form.style
    points = sorted({int(x) for curve in curves.values() for x in curve.x})
    values = np.concatenate([values for curve in curves.values() for values in curve.runs.values()])
    up = _scale(values[np.isfinite(values)], metric, points)
    axes = Axes(sheet, style, place.frame, padded(points), up)
    axes.frame(whole_ticks(points, place.frame.width, style))
    axes.title(place.title, place.left)
    axes.label("slots K")
    if metric == "occupied":
        axes.line(points, points, style.quiet, 0.5 * style.line)
        x, y = float(axes.x(points[-1])), float(axes.y(points[-1]))
        sheet.words(x - 4 * style.unit, y + style.unit, "all K", 0.8 * style.text, style.quiet, "end")
    axes.note(measured.train_slots, "trained")
    draw_curves(axes, curves, appearances)


def _scale(values: NDArray[np.float64], metric: str, points: list[int]) -> Scale:
    if metric in _LINEAR:
        most = float(values.max(initial=0.0)) or 1.0
        return Scale(0, 1.08 * max([most, *(points if metric == "occupied" else [])]))
    known = values[values > 0]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.1, 10.0)
    return Scale(low / 1.3, high * 1.3, logarithmic=True)


def _draw_masses(
    sheet: Sheet, form: Format, place: Place, measured: Diagnostics, appearances: Mapping[str, Look]
) -> None:
    style = form.style
    axes = Axes(sheet, style, place.frame, Scale(-0.03, 1.03), Scale(*_READ))
    axes.frame(axes.across.ticks(5))
    axes.title(place.title, place.left)
    axes.label("true mass of a slot (share of tokens)")
    axes.line([0, 1], [0, 1], style.quiet, 0.5 * style.line)
    for norm, pairs in measured.masses.items():
        if pairs:
            look = appearances[norm]
            chosen = np.unique(np.linspace(0, len(pairs) - 1, _MOST_DOTS).round().astype(np.int64))
            true, read = np.asarray(pairs)[chosen].T
            axes.marks(
                true, np.clip(read, _READ[0] + 0.05, _READ[1] - 0.05), look.marker, 1.5 * style.line,
                style.color(look.color), style.background, 0.3 * style.unit,
            )  # fmt: skip
    if not any(measured.masses.values()):
        x, y = float(axes.x(0.5)), float(axes.y(0.5))
        sheet.words(x, y, "cannot be read off these models", style.text, style.quiet, "middle")
