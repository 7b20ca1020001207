"""Curves as data: a score against the number of slots or of objects, median and range over seeds, and every run."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slotnorm.errors import UserError, describe, place_of
from slotnorm.metrics import all_metrics
from slotnorm.report.appearance import measure
from slotnorm.report.scores import RunScores, spread
from slotnorm.report.sections import Section

Against = Literal["slots", "objects", "divisor"]  # divisor: of the background's mask, see evaluation/background.py


@dataclass(frozen=True)
class Curve:
    """One normalization's scores at the points x (n,)."""

    x: NDArray[np.int64]
    median: NDArray[np.float64]
    low: NDArray[np.float64]
    """The least of the runs at each point; NaN where no run has a value."""
    high: NDArray[np.float64]
    deviation: NDArray[np.float64]
    count: NDArray[np.int64]
    """Runs with a value at each point."""
    runs: Mapping[str, NDArray[np.float64]]
    """Every run's own values, by name."""


@dataclass(frozen=True)
class Panel:
    """One plot: a metric against one number, a curve for each normalization."""

    metric: str
    source: str
    against: Against
    datasets: tuple[str, ...]
    slots: int | None
    """K, where objects vary."""
    curves: Mapping[str, Curve]
    """By normalization, in the registry's order."""
    train_slots: int
    train_objects: int

    @property
    def title(self) -> str:
        label = measure(self.metric)
        where = ", ".join(self.datasets)
        at = f" with {self.slots} slots" if self.slots is not None else ""
        return f"{label.label} ({label.arrow}){at} on {where}"

    @property
    def scale(self) -> str:
        """Panels of a row with the same scale share their y axis."""
        return ""


@dataclass(frozen=True)
class TitledPanel(Panel):
    """A panel that says itself what it shows."""

    words: str = ""

    @property
    def title(self) -> str:
        return self.words

    @property
    def scale(self) -> str:
        return self.metric


@dataclass(frozen=True)
class PathPanel(TitledPanel):
    """One score against another: F-ARI, its `curves`, upward and ARI `across`, a path over K for each normalization."""

    across: Mapping[str, Curve] = field(default_factory=dict)
    """By normalization, at the same K as `curves`."""
    marked: tuple[int, ...] = ()
    """The K that are marked: the training K and its multiples."""

    @property
    def scale(self) -> str:
        return self.title  # each has its own


@dataclass(frozen=True)
class Figure:
    """Panels in rows, drawn with one legend."""

    name: str
    """For files."""
    title: str
    caption: str
    rows: tuple[tuple[Panel, ...], ...]
    counts: Mapping[str, str]
    """By normalization: how many runs, "3 of 5 runs" where some failed and are left out."""


SectionFigure = Callable[[Section], tuple[str, str, Sequence[Sequence[Panel]]] | None]
_section_figures: dict[str, SectionFigure] = {}
_OTHER_FIGURES = ("background", "count", "diagnostics")  # of a section, which are made elsewhere


def curve(
    runs: Sequence[RunScores],
    metric: str,
    dataset: str | Sequence[str],
    against: Against = "slots",
    slots: int | None = None,
    source: str = "masks",
) -> Curve:
    """The curve of some runs of one normalization.

    Against `slots` it is over all scenes of `dataset`. Against `objects` it is at K `slots`; of several sets the last
    one that has scenes with that many objects is read, so that sets which overlap are not mixed.
    """
    sets = (dataset,) if isinstance(dataset, str) else tuple(dataset)
    if against == "slots":
        points = sorted({point for run in runs for point in run.slots(sets[-1], metric, source)})
        values = {run.name: [run.mean(sets[-1], metric, k, source=source).value for k in points] for run in runs}
    else:
        home = homes(runs, metric, sets, source)
        points = sorted(home)
        at = -1 if slots is None else slots
        values = {run.name: [run.mean(home[o], metric, at, o, source).value for o in points] for run in runs}
        seen = [any(value[i] == value[i] for value in values.values()) for i in range(len(points))]
        points = [point for point, kept in zip(points, seen, strict=True) if kept]
        values = {
            name: [number for number, kept in zip(value, seen, strict=True) if kept] for name, value in values.items()
        }
    return gathered(points, values)


def homes(runs: Iterable[RunScores], metric: str, sets: Sequence[str], source: str = "masks") -> dict[int, str]:
    """For each object count the last of the sets that has such scenes: where its score is read."""
    several = list(runs)
    return {count: name for name in sets for run in several for count in run.objects(name, metric, source)}


def gathered(points: Sequence[int], values: Mapping[str, Sequence[float] | NDArray[np.float64]]) -> Curve:
    """The curve of runs' values at the points, by run."""
    spreads = [spread(value[i] for value in values.values()) for i in range(len(points))]

    def column(name: str, dtype: Any = np.float64) -> NDArray[Any]:
        return np.asarray([getattr(of_runs, name) for of_runs in spreads], dtype=dtype)

    return Curve(
        np.asarray(points, dtype=np.int64), column("median"), column("low"), column("high"), column("deviation"),
        column("runs", np.int64), {name: np.asarray(value, dtype=np.float64) for name, value in values.items()},
    )  # fmt: skip


def figures(section: Section, without_failed: Section | None = None) -> list[Figure]:
    """The paper's figures of a section: F-ARI and ARI, then l2, or F-ARI and average precision; then other metrics'.

    `without_failed` is the section without its failed runs, when those are to be left out.
    """
    shown = section if without_failed is None else without_failed
    if not shown.all_runs:
        return []  # every run failed
    counts = {norm: runs_of(section, norm, without_failed is not None) for norm in section.norms}
    name = section.title if without_failed is None else f"{section.title} without failed runs"

    def figure(kind: str, caption: str, rows: Sequence[Sequence[Panel]]) -> Figure:
        full = tuple(panels for row in rows if (panels := tuple(panel for panel in row if panel.curves)))
        return Figure(f"{name} {kind}", f"{section.title} {section.factors}", caption, full, counts)

    objects = f" on at most {section.train_objects} objects" if section.train_objects > 0 else ""
    trained = f"Models trained{objects} with {section.train_slots} slots."
    against = "slots and objects" if section.object_counts() else "slots"
    drawn, figures = metrics_by_figure(section), []
    if segmented := drawn.pop("segmentation", []):
        rows = [metric_row(shown, metric) for metric in segmented]
        figures.append(figure("segmentation", f"Segmentation against {against}. {trained}", rows))
        if _has_attention(section):
            rows = [metric_row(shown, metric, "attention") for metric in segmented]
            figures.append(figure("attention", f"The same from attention instead of decoder masks. {trained}", rows))
    if reconstructed := drawn.pop("reconstruction", []):
        rows = [metric_row(shown, metric) for metric in reconstructed]
        figures.append(figure("reconstruction", f"Reconstruction loss against {against}. {trained}", rows))
    if precisions := drawn.pop("precision", []):
        for dataset in section.sets:
            panels = [metric_panel(shown, metric, (dataset,)) for metric in precisions]
            rows = [panels[:3], panels[3:]]
            figures.append(figure(f"precision {dataset}", f"Mean average precision at five distances. {trained}", rows))
    for kind, metrics in drawn.items():
        labels = ", ".join(measure(metric).label for metric in metrics)
        rows = [metric_row(shown, metric) for metric in metrics]
        figures.append(figure(kind, f"{labels} against {against}. {trained}", rows))
    figures += [
        figure(*content) for make in _section_figures.values() if (content := _content(make, shown)) is not None
    ]
    _require_own_names([figure.name.removeprefix(f"{name} ") for figure in figures])
    return [figure for figure in figures if figure.rows]


def _content(make: SectionFigure, section: Section) -> tuple[str, str, Sequence[Sequence[Panel]]] | None:
    """What a function makes of a section; one that raises, or gives something else, is named."""
    try:
        if (content := make(section)) is None:
            return None
        name, caption, rows = content
        panels = [panel for row in rows for panel in row]
    except Exception as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"the figure {make.__name__} fails with {describe(error)}{place_of(error)}; mend it, or leave it out"
        ) from error
    texts = isinstance(name, str) and isinstance(caption, str)
    if not texts or not all(isinstance(panel, Panel) for panel in panels):
        raise UserError(f"the figure {make.__name__} must give its name, its caption and rows of panels, or None")
    return content


def _require_own_names(names: Sequence[str]) -> None:
    """Refuse two figures of one name: one of the two files would be lost."""
    for name in names:
        if names.count(name) > 1 or name in _OTHER_FIGURES:
            raise UserError(
                f"two figures are called {name!r}; give the metric's `figure`, or what the figure's function says, "
                "another name"
            )


def section_figure(make: SectionFigure) -> SectionFigure:
    """Add a figure to every section: to the files, report.md and the page.

    `make(section)` gives what it is called in files, its caption and its rows of panels, or None where there is nothing
    to show. It is called again with the section without its failed runs, where some failed.
    """
    name = make.__name__
    if name in _section_figures:
        raise TypeError(f"figure name {name!r} of {make.__module__} is taken by {_section_figures[name].__module__}")
    _section_figures[name] = make
    return make


def metrics_by_figure(section: Section) -> dict[str, list[str]]:
    """The metrics of a section that are drawn, by the figure that they are drawn in, in the registry's order."""
    drawn: dict[str, list[str]] = {}
    measured = section.metrics()
    for name, metric in all_metrics().items():
        if name in measured and metric.figure is not None:
            drawn.setdefault(metric.figure or name, []).append(name)
    return drawn


def runs_of(section: Section, norm: str, leave_out: bool) -> str:
    """How many runs of a normalization are shown: "5 runs", or "3 of 5 runs" when failed ones are left out."""
    runs = section.of(norm)
    successful = [run for run in runs if not run.failed]
    if leave_out and len(successful) < len(runs):
        return f"{len(successful)} of {len(runs)} runs"
    return f"{len(runs)} run{'s' * (len(runs) != 1)}"


def metric_row(section: Section, metric: str, source: str | None = None) -> list[Panel]:
    """A metric on each set against slots, and against objects."""
    panels = [metric_panel(section, metric, (dataset,), source=source) for dataset in section.sets]
    if section.object_counts():
        panels.append(metric_panel(section, metric, section.sets, section.object_slots, source))
    return panels


def metric_panel(
    section: Section, metric: str, sets: tuple[str, ...], slots: int | None = None, source: str | None = None
) -> Panel:
    """A metric against slots; with `slots`, against objects at that K."""
    source = source or section.source(metric)
    against: Against = "slots" if slots is None else "objects"
    if against == "objects":
        used = set(homes(section.all_runs, metric, sets, source).values())
        sets = tuple(name for name in sets if name in used)
    curves = {norm: curve(section.of(norm), metric, sets, against, slots, source) for norm in section.norms}
    shown = {norm: drawn for norm, drawn in curves.items() if drawn.count.any()}
    return Panel(metric, source, against, sets, slots, shown, section.train_slots, section.train_objects)


def _has_attention(section: Section) -> bool:
    """Whether F-ARI was read from attention beside the masks."""
    return any(run.sources("f_ari") == ["masks", "attention"] for run in section.all_runs)


def limits_of(panels: Iterable[Panel], across: bool = False) -> tuple[float, float]:
    """What a row's y axes show (of paths with `across` the x axes): everything from the training K on.

    Where fewer slots score worse than all of that, they may leave the frame.
    """
    values = []
    for panel in panels:
        curves = panel.across if across and isinstance(panel, PathPanel) else panel.curves
        for curve in curves.values():
            kept = curve.x >= (panel.train_slots if panel.against == "slots" else 0)
            kept = kept if kept.any() else np.ones_like(kept)
            best = np.fmin.reduce(curve.low) if measure(panel.metric).arrow == "↓" else np.fmax.reduce(curve.high)
            values += [curve.low[kept], curve.high[kept], np.array([best])]
    finite = np.concatenate(values) if values else np.empty(0)
    finite = finite[np.isfinite(finite)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    return low - room, high + 1.8 * room


def path_axis(panel: PathPanel) -> str:
    """What stands below paths: "ARI (hollow: 5 slots; filled: 10, 15)"."""
    known = {int(k) for curve in panel.curves.values() for k in curve.x}
    rest = ", ".join(str(k) for k in panel.marked if k in known and k != panel.train_slots)
    return f"ARI (hollow: {panel.train_slots} slots{f'; filled: {rest}' if rest else ''})"


def shared_limits(row: Sequence[Panel]) -> list[tuple[float, float]]:
    """The y axis of each panel of a row: the same for panels of the same scale."""
    return [limits_of(other for other in row if other.scale == panel.scale) for panel in row]


def to_csv(labelled: Iterable[tuple[str, str, Figure]], with_paths: bool = False) -> str:
    """The data of (section, which runs, figure), one line per point of a curve.

    The two scores of a path are curves of other figures, too, and are left out unless asked for.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns = ("median", "low", "high", "deviation", "count")
    writer.writerow(
        ["section", "runs", "norm", "metric", "source", "datasets", "slots", "against", "x", *columns, "values"]
    )
    for section, which, figure in labelled:
        for panel in (panel for row in figure.rows for panel in row):
            scores = {panel.metric: panel.curves}
            if isinstance(panel, PathPanel):
                scores = {panel.metric: panel.curves, "ari": panel.across} if with_paths else {}
            for metric, curves in scores.items():
                for norm, drawn in curves.items():
                    at = "" if panel.slots is None else panel.slots
                    head = [section, which, norm, metric, panel.source, " ".join(panel.datasets), at, panel.against]
                    for i, x in enumerate(drawn.x.tolist()):
                        single = " ".join(_number(values[i]) for values in drawn.runs.values())
                        writer.writerow([*head, x, *(_number(getattr(drawn, name)[i]) for name in columns), single])
    return buffer.getvalue()


def _number(value: Any) -> str:
    return "" if value != value else f"{value:.6g}"
