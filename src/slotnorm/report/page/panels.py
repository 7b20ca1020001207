"""Curves on the page: inline SVG in the page's colours, and the numbers that are read out where it is pointed at."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotnorm.report.appearance import Look, looks, measure
from slotnorm.report.curves import Curve, Figure, Panel, PathPanel, limits_of, path_axis, shared_limits
from slotnorm.report.page.markup import Markup, element, joined

_WIDTH, _HEIGHT = 360, 236  # units of the drawing; about pixels on a phone
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 10, 36
_TICKS = 5
_MARK = 3.1  # half the size of a marker
_NAMES = {"slots": "slots K", "objects": "objects", "divisor": "divided by"}
_AXES = {
    "slots": "slots K in evaluation",
    "objects": "objects in the scene",
    "divisor": "the background's mask divided by",
}

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


def number(value: float, metric: str) -> str:
    """A score as it is read out; a dash where there is none."""
    return "–" if value != value else f"{value:.{measure(metric).decimals}f}"


def draw_figure(figure: Figure, data: dict[str, Any]) -> Markup:
    """The panels of a figure with one legend and a table of all values; their numbers are added to `data` by id."""
    appearances = looks(figure.counts)
    panels: list[Markup] = []
    for row in figure.rows:
        for panel, limits in zip(row, shared_limits(row), strict=True):
            name = f"panel-{len(data)}"
            drawing = _Paths(panel, limits) if isinstance(panel, PathPanel) else _Drawing(panel, limits)
            data[name] = drawing.numbers(appearances)
            head = element("h4", panel.title)
            readout = element("p", class_="readout", aria_live="polite", hidden=True)
            panels.append(element("div", head, drawing.svg(name, appearances), readout, class_="panel"))
    drawn = {norm for row in figure.rows for panel in row for norm in panel.curves}
    shown = {norm: look for norm, look in appearances.items() if norm in drawn}
    return element(
        "figure",
        element("figcaption", figure.caption),
        draw_legend(shown, figure.counts),
        element("div", *panels, class_="panels"),
        element("details", element("summary", "All values"), *(_values(panel) for row in figure.rows for panel in row)),
        class_="curves",
    )


def draw_legend(appearances: Mapping[str, Look], counts: Mapping[str, str]) -> Markup:
    """Line, marker, label and number of runs of each normalization."""
    entries = []
    for norm, look in appearances.items():
        line = element("path", d="M1 7H29", class_=_classes("line", look))
        mark = element("path", d="M15 7" + marker(look), class_="mark")
        key = element("svg", line, mark, viewBox="0 0 30 14", aria_hidden="true", class_=css_class(norm))
        entries.append(element("li", key, look.label, " ", element("small", counts[norm])))
    return element("ul", *entries, class_="legend")


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


def ticks_between(low: float, high: float) -> list[float]:
    """About five round numbers from low to high."""
    raw = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [step * place for place in range(first, math.floor(high / step + 1e-9) + 1)]


class _Drawing:
    """One panel in the units of its view box."""

    def __init__(self, panel: Panel, limits: tuple[float, float]) -> None:
        self.panel, self.limits = panel, limits
        self.points = sorted({int(x) for curve in panel.curves.values() for x in curve.x})
        self.name = _NAMES[panel.against]

    def x(self, value: float) -> float:
        first, last = self.points[0], self.points[-1]
        if self.panel.against == "divisor":  # a few numbers at equal distances
            value, first, last = self.points.index(int(value)), 0, len(self.points) - 1
        share = (value - first) / (last - first) if last > first else 0.5
        return _LEFT + 6 + share * (_WIDTH - _LEFT - _RIGHT - 12)

    def y(self, value: float) -> float:
        low, high = self.limits
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def numbers(self, appearances: Mapping[str, Look]) -> dict[str, Any]:
        """What the script reads out: for every point its place and each curve's median and range, as words."""
        metric, curves = self.panel.metric, []
        for norm, curve in self.panel.curves.items():
            at = {int(x): place for place, x in enumerate(curve.x)}
            words = [_spoken(curve, at[point], metric) if point in at else "–" for point in self.points]
            curves.append({"label": appearances[norm].label, "class": css_class(norm), "values": words})
        return {
            "name": self.name, "points": self.points, "places": [round(self.x(point), 1) for point in self.points],
            "curves": curves, "width": _WIDTH,
        }  # fmt: skip

    def svg(self, name: str, appearances: Mapping[str, Look]) -> Markup:
        inner = (_LEFT, _TOP, _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM)
        box = dict(zip(("x", "y", "width", "height"), inner, strict=True))
        clip = element("clipPath", element("rect", **box), id=f"{name}-clip")
        curves = [self._curve(curve, norm, appearances[norm]) for norm, curve in self.panel.curves.items()]
        label = f"{self.panel.title}, against {self.name}. Left and right arrow keys read the values."
        return element(
            "svg", clip, self._axes(), element("g", *curves, clip_path=f"url(#{name}-clip)"),
            self._cross(),
            viewBox=f"0 0 {_WIDTH} {_HEIGHT}", id=name, class_="plot", tabindex="0", role="img", aria_label=label,
        )  # fmt: skip

    def _cross(self) -> Markup:
        """What the script puts where values are read."""
        return element("line", class_="cross", y1=_TOP, y2=_HEIGHT - _BOTTOM, x1=0, x2=0)

    def _axes(self) -> Markup:
        parts = []
        for value, words in _labelled(ticks_between(*self.limits)):
            y = round(self.y(value), 1)
            parts.append(element("line", class_="grid", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y))
            parts.append(element("text", words, class_="tick left", x=_LEFT - 6, y=y + 3.5))
        return joined([*parts, *self._below()])

    def _below(self) -> list[Markup]:
        """The x axis: numbers and title, and where training ended."""
        every = max(1, math.ceil((self.points[-1] - self.points[0] + 1) / 9))
        few = len(self.points) == 2 or self.panel.against == "divisor"
        ticks = self.points if few else range(self.points[0], self.points[-1] + 1, every)
        return [
            *(self._tick(self.x(point), str(point)) for point in ticks),
            self._axis(_AXES[self.panel.against]),
            self._training(),
        ]

    def _tick(self, x: float, words: str) -> Markup:
        return element("text", words, class_="tick", x=round(x, 1), y=_HEIGHT - _BOTTOM + 14)

    def _axis(self, words: str) -> Markup:
        return element("text", words, class_="axis", x=(_LEFT + _WIDTH - _RIGHT) / 2, y=_HEIGHT - 5)

    def _training(self) -> Markup:
        """A dotted line at the training K, or after the most objects of training."""
        if self.panel.against == "divisor":
            return Markup()
        if self.panel.against == "slots":
            place, words = float(self.panel.train_slots), "trained"
        else:
            place, words = self.panel.train_objects + 0.5, "beyond training"
        if not self.points[0] <= place <= self.points[-1]:
            return Markup()
        x = round(self.x(place), 1)
        line = element("line", class_="trained", x1=x, x2=x, y1=_TOP, y2=_HEIGHT - _BOTTOM)
        return joined([line, element("text", words, class_="note", x=x + 4, y=_TOP + 9)])

    def _curve(self, curve: Curve, norm: str, look: Look) -> Markup:
        known = np.isfinite(curve.median)
        parts = []
        if len(curve.runs) > 1:
            edge = [
                *self._places(curve.x[known], curve.high[known]),
                *self._places(curve.x[known], curve.low[known])[::-1],
            ]
            parts.append(element("path", class_="band", d=f"M{'L'.join(edge)}z" if edge else "M0 0"))
            parts += [element("path", class_="run", d=self._line(curve.x, values)) for values in curve.runs.values()]
        parts.append(element("path", class_=_classes("line", look), d=self._line(curve.x, curve.median)))
        places = self._places(curve.x[known], curve.median[known])
        parts.append(element("path", class_="mark", d="".join(f"M{place}{marker(look)}" for place in places)))
        return element("g", *parts, class_=css_class(norm))

    def _line(self, x: NDArray[Any], values: NDArray[np.float64]) -> str:
        """A path that is broken where a value is missing."""
        words, pen = [], "M"
        for point, value in zip(x.tolist(), values.tolist(), strict=True):
            known = value == value and point == point
            if known:
                words.append(f"{pen}{self.x(point):.1f} {self.y(value):.1f}")
            pen = "L" if known else "M"
        return "".join(words) or "M0 0"

    def _places(self, x: NDArray[np.int64], values: NDArray[np.float64]) -> list[str]:
        return [f"{self.x(p):.1f} {self.y(v):.1f}" for p, v in zip(x.tolist(), values.tolist(), strict=True)]


class _Paths(_Drawing):
    """One score against another, with marks at the training K, hollow so that it hides none, and its multiples."""

    panel: PathPanel

    def __init__(self, panel: PathPanel, limits: tuple[float, float]) -> None:
        super().__init__(panel, limits)
        self.across = limits_of([panel], across=True)

    def x(self, value: float) -> float:
        low, high = self.across
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def numbers(self, appearances: Mapping[str, Look]) -> dict[str, Any]:
        """What the script reads out: for every K both scores of each path, and where they are."""
        curves = []
        for norm, up in self.panel.curves.items():
            at = {int(k): place for place, k in enumerate(up.x)}
            words = [_both(self.panel, norm, at[k]) if k in at else "–" for k in self.points]
            spots = [self._spot(norm, at[k]) if k in at else None for k in self.points]
            shown = {"label": appearances[norm].label, "class": css_class(norm), "values": words, "spots": spots}
            curves.append(shown)
        return {"name": self.name, "points": self.points, "curves": curves, "width": _WIDTH}

    def _spot(self, norm: str, place: int) -> list[float] | None:
        x, y = float(self.panel.across[norm].median[place]), float(self.panel.curves[norm].median[place])
        return [round(self.x(x), 1), round(self.y(y), 1)] if x == x and y == y else None

    def _cross(self) -> Markup:
        return element("path", class_="cross", fill="none", d="M0 0")

    def _below(self) -> list[Markup]:
        parts = []
        for value, words in _labelled(ticks_between(*self.across)):
            x = round(self.x(value), 1)
            parts.append(element("line", class_="grid", x1=x, x2=x, y1=_TOP, y2=_HEIGHT - _BOTTOM))
            parts.append(self._tick(x, words))
        return [*parts, self._axis(path_axis(self.panel))]

    def _curve(self, curve: Curve, norm: str, look: Look) -> Markup:
        across, parts = self.panel.across[norm], []
        if len(curve.runs) > 1:
            for name, values in curve.runs.items():
                parts.append(element("path", class_="run", d=self._line(across.runs[name], values)))
        parts.append(element("path", class_=_classes("line", look), d=self._line(across.median, curve.median)))
        spots = {int(k): spot for place, k in enumerate(curve.x) if (spot := self._spot(norm, place)) is not None}
        for k in (k for k in self.panel.marked if k in spots):
            hollow, (x, y) = k == self.panel.train_slots, spots[k]
            shape = f"M{x} {y}{marker(look, 1.6 if hollow else 1.0)}"
            parts.append(element("path", class_="mark hollow" if hollow else "mark", d=shape))
        return element("g", *parts, class_=css_class(norm))


def _labelled(ticks: Sequence[float]) -> list[tuple[float, str]]:
    """Ticks with their numbers, in as many decimals as they need."""
    decimals = next(d for d in range(1, 16) if all(math.isclose(round(t, d), t, abs_tol=1e-12) for t in ticks))
    return [(tick, f"{tick:.{decimals}f}") for tick in ticks]


def _both(panel: PathPanel, norm: str, place: int) -> str:
    """Both scores at a place of a path."""
    up, across = (float(one[norm].median[place]) for one in (panel.curves, panel.across))
    return f"F-ARI {number(up, 'f_ari')}, ARI {number(across, 'ari')}"


def _classes(name: str, look: Look) -> str:
    return f"{name} dashed" if look.dashed else name


def _spoken(curve: Curve, place: int, metric: str) -> str:
    """The median, with the range where there are several runs: "0.912 (0.905 to 0.920)"."""
    words = number(float(curve.median[place]), metric)
    if curve.count[place] > 1:
        words += f" ({number(float(curve.low[place]), metric)} to {number(float(curve.high[place]), metric)})"
    return words


def _told(panel: Panel, norm: str, place: int) -> str:
    """What a panel says of a normalization at a place of its curve."""
    if isinstance(panel, PathPanel):
        return _both(panel, norm, place)
    return _spoken(panel.curves[norm], place, panel.metric)


def _values(panel: Panel) -> Markup:
    """Every value of a panel as a table, for those who do not point or do not see."""
    points: Sequence[int] = sorted({int(x) for curve in panel.curves.values() for x in curve.x})
    first = "K" if panel.against == "slots" else _NAMES[panel.against]
    labels = [element("th", look.label, scope="col") for look in looks(panel.curves).values()]
    rows = []
    for point in points:
        cells = []
        for norm, curve in panel.curves.items():
            at = np.flatnonzero(curve.x == point)
            cells.append(element("td", _told(panel, norm, int(at[0])) if len(at) else "–"))
        rows.append(element("tr", element("th", point, scope="row"), *cells))
    head = element("tr", element("th", first, scope="col"), *labels)
    table = element("table", element("caption", panel.title), element("thead", head), element("tbody", *rows))
    return element("div", table, class_="wide", tabindex="0", role="region", aria_label=f"Values: {panel.title}")
