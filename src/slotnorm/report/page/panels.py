"""Curves of the page: numbers that its script draws, reads out and lists, each once; and the one legend."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotnorm.report.appearance import Look, fixed, looks, measure
from slotnorm.report.curves import Curve, Figure, Panel, PathPanel, limits_of, path_axis, shared_limits
from slotnorm.report.page.markup import Markup, element
from slotnorm.report.page.words import norm_in_words

_MARK = 3.1  # half the size of a marker
_NAMES = {"slots": "{} slots", "objects": "{} objects", "divisor": "divided by {}"}
_AXES = {
    "slots": "number of slots",
    "objects": "objects in the scene",
    "divisor": "the background's mask divided by",
}
_DECIMALS = range(4, 8)  # of what is read out, as few as round as in the tables
_DECIMALS_DRAWN = 4  # of single runs, which are only drawn

# matplotlib's names of markers -> a path around the point where the pen is
_MARKERS = {
    "o": "m-{r} 0a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0-{d} 0z",
    "s": "m-{r}-{r}h{d}v{d}h-{d}z",
    "^": "m0-{r}l{r} {d}h-{d}z",
    "v": "m0 {r}l{r}-{d}h-{d}z",
    "D": "m0-{w}l{w} {w}l-{w} {w}l-{w}-{w}z",
    "P": "m-{t}-{r}h{r}v{t}h{t}v{r}h-{t}v{t}h-{r}v-{t}h-{t}v-{r}h{t}z",
    "X": "m-{r}-{t}l{t}-{t}l{t} {t}l{t}-{t}l{t} {t}l-{t} {t}l{t} {t}l-{t} {t}l-{t}-{t}l-{t} {t}l-{t}-{t}l{t}-{t}z",
    "*": "m0-{w}l{t} {r}h{r}l-{r} {t}l{t} {r}l-{r}-{t}l-{r} {t}l{t}-{r}l-{r}-{t}h{r}z",
}


@dataclass(frozen=True)
class Shown:
    """A panel with its axis, and the same without failed runs where some failed."""

    panel: Panel
    limits: tuple[float, float]
    kept: tuple[Panel, tuple[float, float]] | None = None


def shown_panels(everything: Iterable[Figure], without_failed: Iterable[Figure] | None) -> list[Shown]:
    """The panels of figures, with those without failed runs; `without_failed` is None where none failed."""
    without = {
        _key(panel): (panel, limits) for figure in without_failed or () for panel, limits in _with_limits(figure)
    }
    return [
        Shown(panel, limits, None if without_failed is None else without.get(_key(panel), (_emptied(panel), limits)))
        for figure in everything
        for panel, limits in _with_limits(figure)
    ]


def _with_limits(figure: Figure) -> list[tuple[Panel, tuple[float, float]]]:
    return [pair for row in figure.rows for pair in zip(row, shared_limits(row), strict=True)]


def _key(panel: Panel) -> tuple[Any, ...]:
    return type(panel), panel.metric, panel.source, panel.against, panel.datasets, panel.slots


def _emptied(panel: Panel) -> Panel:
    """The panel of runs of which none is left."""
    return replace(panel, curves={})


def draw_panels(panels: Sequence[tuple[str, Shown]], data: dict[str, Any]) -> Markup:
    """Titled panels side by side, and a table of all their values; their numbers are added to `data` by id."""
    names, drawn = [], []
    for title, shown in panels:
        names.append(f"panel-{len(data)}")
        data[names[-1]] = {"title": title, **_numbers(shown)}
        plot = element("div", class_="plot", data_panel=names[-1])
        readout = element("p", class_="readout", aria_live="polite", hidden=True)
        drawn.append(element("div", element("h4", title), plot, readout, class_="panel"))
    values = element("details", element("summary", "All values"), class_="values", data_panels=" ".join(names))
    return element("figure", element("div", *drawn, class_="panels"), values, class_="curves")


def _numbers(shown: Shown) -> dict[str, Any]:
    """What the script draws and reads out of a panel."""
    panel = shown.panel
    points = sorted({int(x) for curve in panel.curves.values() for x in curve.x})
    place, words = _trained(panel)
    content: dict[str, Any] = {
        "name": _NAMES[panel.against], "axis": _AXES[panel.against], "points": points,
        "decimals": measure(panel.metric).decimals, "trained": place, "note": words,
        "even": panel.against == "divisor", "all": _drawn(panel, shown.limits),
    }  # fmt: skip
    if isinstance(panel, PathPanel):
        content |= {"axis": path_axis(panel), "marked": list(panel.marked)}
    if shown.kept is not None:
        content["kept"] = _drawn(*shown.kept)
        told = content["all"]["curves"]
        content["kept"]["curves"] = [
            {"norm": own["norm"]} if own in told else own for own in content["kept"]["curves"]
        ]  # those of which no run failed are in the page once
    return content


def _trained(panel: Panel) -> tuple[float | None, str]:
    """Where the training K is, or the most objects of training end, and what is written there."""
    if panel.against == "divisor" or isinstance(panel, PathPanel):
        return None, ""
    if panel.against == "slots":
        return panel.train_slots, "trained"
    return (panel.train_objects + 0.5, "beyond training") if panel.train_objects > 0 else (None, "")


def _drawn(panel: Panel, limits: tuple[float, float]) -> dict[str, Any]:
    curves = []
    for norm, curve in panel.curves.items():
        drawn: dict[str, Any] = {"norm": norm, "at": curve.x.tolist()}
        decimals = measure(panel.metric).decimals
        drawn |= {name: _read_out(getattr(curve, name), decimals) for name in ("median", "low", "high")}
        if len(curve.runs) > 1:
            drawn["runs"] = [_list(values, _DECIMALS_DRAWN) for values in curve.runs.values()]
        if isinstance(panel, PathPanel):
            across: Curve = panel.across[norm]
            drawn["across"] = _read_out(across.median, decimals)
            if len(curve.runs) > 1:
                drawn["across_runs"] = [_list(across.runs[name], _DECIMALS_DRAWN) for name in curve.runs]
        curves.append(drawn)
    content: dict[str, Any] = {"limits": list(limits), "curves": curves}
    if isinstance(panel, PathPanel):
        content["across_limits"] = list(limits_of([panel], across=True))
    return content


def _read_out(values: NDArray[np.float64], decimals: int) -> list[float | None]:
    """The values, short, and still such that the script, which shows so many decimals, shows those of the tables."""

    def short(value: float) -> float:
        several, shown = (round(value, places) for places in _DECIMALS), f"{value:.{decimals}f}"
        return next((near for near in several if f"{near:.{decimals}f}" == shown), value)

    return [None if value != value else short(value) for value in values.tolist()]


def _list(values: NDArray[np.float64], decimals: int) -> list[float | None]:
    return [None if value != value else round(value, decimals) for value in values.tolist()]


def looks_data(norms: Iterable[str]) -> dict[str, Any]:
    """How the script draws each normalization."""
    return {
        norm: {"label": look.label, "class": css_class(norm), "marker": marker(look), "dashed": look.dashed}
        for norm, look in looks(norms).items()
    }


def draw_legend(norms: Iterable[str], counts: Mapping[str, int]) -> Markup:
    """The page's one legend: line, marker, name, number of runs and what it does, of every normalization."""
    entries = []
    for norm, look in looks(norms).items():
        line = element("path", d="M1 7H33", class_="line dashed" if look.dashed else "line")
        mark = element("path", d="M17 7" + marker(look), class_="mark")
        key = element("svg", line, mark, viewBox="0 0 34 14", aria_hidden="true")
        words, formula = norm_in_words(norm)
        runs = element("small", f"{counts[norm]} run{'s' * (counts[norm] != 1)}")
        symbols = element("code", formula) if formula else None
        entries.append(element("dt", key, look.label, " ", runs, class_=css_class(norm)))
        entries.append(element("dd", words, ". " if symbols else ".", symbols))
    return element("dl", *entries, class_="legend")


def css_class(norm: str) -> str:
    """The class that gives a normalization its colour; of letters that need no escaping, whatever the name."""
    return "norm-" + "".join(
        letter if letter.isascii() and letter.isalnum() else f"_{ord(letter):x}" for letter in norm
    )


def marker(look: Look, size: float = 1.0) -> str:
    """The path of a marker around the pen's place."""
    half = size * _MARK
    sizes = {"r": half, "d": 2 * half, "w": 1.35 * half, "t": half / 2}
    return _MARKERS.get(look.marker, _MARKERS["o"]).format(**{name: f"{size:.3g}" for name, size in sizes.items()})


def number(value: float, metric: str) -> str:
    """A score as it is read out; a dash where there is none."""
    return "–" if value != value else fixed(value, measure(metric).decimals)
