"""Curves on paper: SVG and PNG by matplotlib, without its global state, the same bytes for the same data."""

import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Paper
from matplotlib.lines import Line2D

from slotnorm.report.appearance import GRID, TEXT, Look, looks
from slotnorm.report.curves import Curve, Figure, Panel, PathPanel, limits_of, path_axis, shared_limits
from slotnorm.report.safe_names import plain

_PANEL = (3.5, 2.75)  # inches
_DOTS_PER_INCH = 150
_ABOVE, _LEGEND_ROW = 0.35, 0.24
_LEGEND_ENTRY = 2.5
_DASHES: Any = (0, (4, 1.6))
STYLE: Any = {
    "svg.hashsalt": "slotnorm", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 9.5,
    "axes.titlesize": 9.5, "axes.labelsize": 9.5, "legend.fontsize": 9.5, "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5, "text.color": TEXT, "axes.labelcolor": TEXT, "xtick.color": TEXT, "ytick.color": TEXT,
    "axes.edgecolor": "#8a8a8a",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID, "axes.axisbelow": True,
}  # fmt: skip


def draw(figure: Figure) -> dict[str, bytes]:
    """The figure as files: {"svg": ..., "png": ...}."""
    with matplotlib.rc_context(STYLE):
        columns = max(len(row) for row in figure.rows)
        paper, axes = panels_on_paper(len(figure.rows), columns, figure.title, len(figure.counts))
        appearances = looks(figure.counts)
        for row, panels in zip(axes, figure.rows, strict=True):
            for ax, panel, limits in zip(row, panels, shared_limits(panels), strict=False):
                _draw_panel(ax, panel, appearances)
                ax.set_ylim(*limits)
            for ax in row[len(panels) :]:
                ax.set_visible(False)
        drawn = {norm for row in figure.rows for panel in row for norm in panel.curves}
        add_legend(paper, figure.counts, {norm: one for norm, one in appearances.items() if norm in drawn})
        return save(paper)


def panels_on_paper(rows: int, columns: int, title: str, entries: int) -> tuple[Paper, Any]:
    """An empty figure of equal panels (rows, columns), with room for a title above and a legend of `entries` below."""
    width = columns * _PANEL[0]
    below = 0.15 + _LEGEND_ROW * math.ceil(entries / _entries_across(width))
    height = rows * _PANEL[1] + _ABOVE + below
    paper = Paper(figsize=(width, height), dpi=_DOTS_PER_INCH, facecolor="white")
    axes = paper.subplots(rows, columns, squeeze=False)
    left, right, between = 0.64, 0.12, 0.7  # inches
    panel = _PANEL[0] - (left + right + between * (columns - 1)) / columns
    paper.subplots_adjust(
        left=left / width, right=1 - right / width, bottom=(below + 0.45) / height, top=1 - (_ABOVE + 0.25) / height,
        wspace=between / panel, hspace=0.36,
    )  # fmt: skip
    words = plain(title)
    paper.text(0.12 / width, 1 - 0.1 / height, words, ha="left", va="top", fontsize=11, fontweight="bold", color=TEXT)
    return paper, axes


def save(paper: Paper) -> dict[str, bytes]:
    """A matplotlib figure as SVG and PNG without dates; call it inside `rc_context(STYLE)`."""
    svg, png = io.BytesIO(), io.BytesIO()
    FigureCanvasAgg(paper).print_png(png, metadata={"Software": None})  # first: print_svg changes the resolution
    FigureCanvasSVG(paper).print_svg(svg, metadata={"Date": None, "Creator": None})
    return {"svg": svg.getvalue(), "png": png.getvalue()}


def draw_curve(ax: Any, curve: Curve, appearance: Look) -> None:
    """Median line with markers, the range over seeds as a band, single runs faint."""
    color = appearance.color
    if len(curve.runs) > 1:
        ax.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.12, linewidth=0)
        for values in curve.runs.values():
            ax.plot(curve.x, values, color=color, alpha=0.35, linewidth=0.7)
    style = _DASHES if appearance.dashed else "solid"
    ax.plot(
        curve.x, curve.median, color=color, linewidth=1.9, linestyle=style,
        marker=appearance.marker, markersize=3.8, markeredgecolor="white", markeredgewidth=0.5,
    )  # fmt: skip


def legend_handle(appearance: Look, label: str) -> Line2D:
    """One entry of a legend."""
    style: Any = _DASHES if appearance.dashed else "solid"
    return Line2D(
        [],
        [],
        color=appearance.color,
        linewidth=1.9,
        linestyle=style,
        marker=appearance.marker,
        markersize=5,
        label=label,
    )


def mark(ax: Any, x: float, words: str) -> None:
    """A dotted vertical line with a few words at its upper end, out of the curves' way."""
    ax.axvline(x, color="#6b6b6b", linestyle=(0, (1, 2)), linewidth=1.2, zorder=1)
    ax.annotate(
        words, (x, 1), xycoords=("data", "axes fraction"), xytext=(3, -2), textcoords="offset points",
        ha="left", va="top", fontsize=7.5, color="#4a4a4a",
    )  # fmt: skip


def plain_number(value: float, _: Any) -> str:
    """A tick's number as people write it, without a power of ten in the corner."""
    return f"{value:g}"


def whole_ticks(ax: Any, points: Sequence[int]) -> None:
    """At most about eight whole numbers on the x axis, the first point among them; of two points both and no other."""
    if len(points) == 2:
        ax.set_xticks(points)
        return
    step = max(1, math.ceil((max(points) - min(points) + 1) / 8))
    ax.set_xticks(range(min(points), max(points) + 1, step))


def add_legend(paper: Paper, counts: Mapping[str, str], appearances: Mapping[str, Look]) -> None:
    """The one legend of a figure, below: the normalizations in their order, each with its number of runs."""
    handles = [
        legend_handle(appearance, f"{plain(appearance.label)} ({counts[norm]})")
        for norm, appearance in appearances.items()
    ]
    across = min(len(handles), _entries_across(paper.get_figwidth()))
    paper.legend(handles=handles, loc="lower center", ncols=across, frameon=False, handlelength=2.8, borderaxespad=0.3)


def _entries_across(width: float) -> int:
    """How many entries of a legend fit beside each other."""
    return max(1, int(width / _LEGEND_ENTRY))


def _draw_panel(ax: Any, panel: Panel, appearances: Mapping[str, Look]) -> None:
    if isinstance(panel, PathPanel):
        _draw_paths(ax, panel, appearances)
    elif panel.against == "divisor":
        _draw_divisors(ax, panel, appearances)
    else:
        _draw_numbers(ax, panel, appearances)
    title = ax.set_title(plain(panel.title), loc="left", color=TEXT)
    room = ax.get_window_extent().width / title.get_window_extent().width
    if room < 1:
        title.set_fontsize(0.95 * room * title.get_fontsize())  # hinted letters shrink a little less than they should
    ax.yaxis.set_major_formatter(plain_number)


def _draw_numbers(ax: Any, panel: Panel, appearances: Mapping[str, Look]) -> None:
    """Against numbers of slots or objects."""
    for norm, curve in panel.curves.items():
        draw_curve(ax, curve, appearances[norm])
    points = sorted({int(x) for curve in panel.curves.values() for x in curve.x})
    whole_ticks(ax, points)
    if panel.against == "slots":
        ax.set_xlabel("slots K in evaluation")
        mark(ax, panel.train_slots, "trained")
    else:
        ax.set_xlabel("objects in the scene")
        if panel.train_objects in points[:-1]:
            mark(ax, panel.train_objects + 0.5, "beyond training")


def _draw_divisors(ax: Any, panel: Panel, appearances: Mapping[str, Look]) -> None:
    """Against a few numbers at equal distances."""
    points = sorted({int(x) for curve in panel.curves.values() for x in curve.x})
    for norm, curve in panel.curves.items():
        draw_curve(ax, dataclasses.replace(curve, x=np.searchsorted(points, curve.x)), appearances[norm])
    ax.set_xticks(range(len(points)), [str(point) for point in points])
    ax.set_xlabel("the background's mask divided by")


def _draw_paths(ax: Any, panel: PathPanel, appearances: Mapping[str, Look]) -> None:
    """Two scores against each other, with marks at the training K, hollow so that it hides none, and its multiples."""
    for norm, up in panel.curves.items():
        look, across = appearances[norm], panel.across[norm]
        style = _DASHES if look.dashed else "solid"
        if len(up.runs) > 1:
            for name, values in up.runs.items():
                ax.plot(across.runs[name], values, color=look.color, alpha=0.35, linewidth=0.7)
        ax.plot(across.median, up.median, color=look.color, linewidth=1.6, linestyle=style)
        for k in panel.marked:
            at, hollow = up.x == k, k == panel.train_slots
            face, edge = ("none", look.color) if hollow else (look.color, "white")
            ax.plot(
                across.median[at], up.median[at], linestyle="none", marker=look.marker, zorder=3, markerfacecolor=face,
                markeredgecolor=edge, markersize=8.5 if hollow else 5, markeredgewidth=1.6 if hollow else 0.6,
            )  # fmt: skip
    ax.set_xlim(*limits_of([panel], across=True))
    ax.xaxis.set_major_formatter(plain_number)
    ax.set_xlabel(path_axis(panel))
