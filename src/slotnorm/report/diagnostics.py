"""Drawings of what happens inside trained models as K grows; what is measured is said in evaluation/diagnosis.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np

from slotnorm.evaluation.background import DIVISORS, SHARE, TAKEN, divided_name
from slotnorm.evaluation.diagnosis import OCCUPIED, SOURCE
from slotnorm.evaluation.rows import Rows
from slotnorm.report.appearance import TEXT, Look, looks
from slotnorm.report.curves import Curve, curve
from slotnorm.report.drawing import (
    STYLE,
    add_legend,
    draw_curve,
    mark,
    panels_on_paper,
    plain_number,
    save,
    whole_ticks,
)
from slotnorm.report.scores import RunScores, summarize

# metric -> title; the last panel is the scatter of masses
_PANELS = {
    "update_norm_ratio": "length of update codes (1 at training K)",
    "occupied": f"slots that hold {OCCUPIED:.0%} of the tokens",
    "variance_drift": "variance of ũ / that normalized with",
}


@dataclass(frozen=True)
class Diagnostics:
    """What was measured of a section's runs on one set."""

    title: str
    dataset: str
    train_slots: int
    curves: Mapping[str, Mapping[str, Curve]]
    """Metric -> normalization -> curve against K."""
    masses: Mapping[str, Sequence[tuple[float, float]]]
    """Normalization -> pairs (true, read off the codes), as shares of the tokens."""
    mass_errors: Mapping[str, float]
    """Normalization that keeps the mass -> the largest mean error over runs and K."""
    refused: Mapping[str, str]
    """Normalization -> why no mass can be read off its runs' codes."""
    counts: Mapping[str, str]
    """Normalization -> how many runs."""


def diagnostics(title: str, measured: Sequence[Rows]) -> Diagnostics:
    """Put the rows of `diagnose` of several runs on one set together."""
    runs = [run for rows in measured for run in summarize(rows)]
    by_norm: dict[str, list[RunScores]] = {}
    for run in runs:
        by_norm.setdefault(run.norm, []).append(run)
    by_norm = {norm: by_norm[norm] for norm in looks(by_norm)}
    dataset = runs[0].datasets[0]
    held = (SHARE, TAKEN, *(divided_name(divisor) for divisor in DIVISORS))
    metrics = (*_PANELS, "occupancy", "update_norm", "mean_drift", "mass_error", *held)
    curves = {
        metric: {norm: curve(some, metric, dataset, source=SOURCE) for norm, some in by_norm.items()}
        for metric in metrics
    }
    errors = {norm: float(np.nanmax(one.median)) for norm, one in curves["mass_error"].items() if one.count.any()}
    masses: dict[str, list[tuple[float, float]]] = {norm: [] for norm in by_norm}
    refused = {}
    for rows in measured:
        norm = str(rows.unique("norm")[0])
        mass = rows.header["mass"]
        masses[norm] += [(true, read) for k in sorted(mass["pairs"], key=int) for true, read in mass["pairs"][k]]
        if mass["refused"]:
            refused[norm] = mass["refused"]
    counts = {norm: f"{len(some)} run{'s' * (len(some) != 1)}" for norm, some in by_norm.items()}
    return Diagnostics(title, dataset, runs[0].train_slots, curves, masses, errors, refused, counts)


def draw_diagnostics(found: Diagnostics) -> dict[str, bytes]:
    """Four panels as {"svg": ..., "png": ...}."""
    with matplotlib.rc_context(STYLE):
        paper, axes = panels_on_paper(2, 2, f"{found.title}: inside the models, on {found.dataset}", len(found.counts))
        appearances = looks(found.counts)
        for ax, (metric, title) in zip(axes.flat, _PANELS.items(), strict=False):
            _draw_metric(ax, found, metric, title, appearances)
        _draw_masses(axes.flat[-1], found, appearances)
        add_legend(paper, found.counts, appearances)
        return save(paper)


def _draw_metric(ax: Any, found: Diagnostics, metric: str, title: str, appearances: Mapping[str, Look]) -> None:
    for norm, one in found.curves[metric].items():
        draw_curve(ax, one, appearances[norm])
    points = sorted({int(x) for one in found.curves[metric].values() for x in one.x})
    whole_ticks(ax, points)
    if metric == "occupied":
        ax.plot(points, points, color="#9a9a9a", linewidth=0.8)
        ax.annotate("all K", (points[-1], points[-1]), ha="right", va="bottom", fontsize=7.5, color="#4a4a4a")
    elif metric == "update_norm_ratio":
        ax.set_ylim(bottom=0)
    else:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(plain_number)
        ax.yaxis.set_minor_formatter(_sparse_number)
        ax.tick_params(axis="y", which="minor", labelsize=7.5)
    mark(ax, found.train_slots, "trained")
    ax.set_xlabel("slots K")
    ax.set_title(title, loc="left", color=TEXT)


def _draw_masses(ax: Any, found: Diagnostics, appearances: Mapping[str, Look]) -> None:
    ax.plot([0, 1], [0, 1], color="#9a9a9a", linewidth=0.8, zorder=1)
    for norm, pairs in found.masses.items():
        if pairs:
            appearance = appearances[norm]
            true, read = np.asarray(pairs).T
            shown = np.clip(read, -0.15, 1.15)
            style = {"marker": appearance.marker, "color": appearance.color}
            ax.scatter(true, shown, s=9, alpha=0.45, linewidths=0, **style)
    ax.set_xlim(-0.03, 1.03)
    ax.set_ylim(-0.2, 1.2)
    ax.set_xlabel("true mass of a slot (share of tokens)")
    ax.set_title("mass read off the codes (Prop. 2)", loc="left", color=TEXT)
    if not any(found.masses.values()):
        ax.annotate("cannot be read off these models", (0.5, 0.5), ha="center", color="#4a4a4a")


def _sparse_number(value: float, _: Any) -> str:
    """Of the marks between powers of ten only 2 and 5 are written."""
    first = f"{value:e}"[0]
    return f"{value:g}" if first in "25" else ""
