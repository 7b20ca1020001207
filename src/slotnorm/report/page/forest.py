"""The effect over all studies: for each study and normalization a line with its runs, their median and its interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slotnorm.report.appearance import looks, measure, signed
from slotnorm.report.contents import Report
from slotnorm.report.drawing.axes import round_numbers
from slotnorm.report.effects import (
    ALL,
    PROPOSED_LESS_OTHERS,
    SHOWN,
    WITHOUT_FAILED,
    Change,
    Difference,
    Effect,
    caveat,
    shown_interval,
)
from slotnorm.report.page.markup import Markup, element, joined
from slotnorm.report.page.panels import css_class, marker
from slotnorm.report.page.tables import wide
from slotnorm.report.page.words import objects_in_words
from slotnorm.report.sections import Section

_ROOM = 0.06  # of the range, left and right of it
_TICKS = 3


@dataclass(frozen=True)
class Scale:
    """Where a change stands, as a share of the strip's width."""

    low: float
    high: float

    @classmethod
    def of(cls, entries: Sequence[Change | Difference]) -> "Scale":
        """Zero and everything that is drawn."""
        values = [0.0, *(entry.value for entry in entries)]
        values += [edge for entry in entries if entry.interval is not None for edge in entry.interval]
        values += [change for entry in entries if isinstance(entry, Change) for change in entry.runs.values()]
        known = [value for value in values if math.isfinite(value)]
        low, high = min(known), max(known)
        room = _ROOM * (high - low) or 0.05
        return cls(low - room, high + room)

    def at(self, value: float) -> str:
        """ "43.21%"."""
        return f"{100 * (value - self.low) / (self.high - self.low):.2f}%"

    def ticks(self) -> list[float]:
        return round_numbers(self.low, self.high, _TICKS)


def draw_effects(report: Report) -> Markup | None:
    """The change of F-ARI in every study; ARI, average precision, more objects and differences folded below."""
    if not report.effects:
        return None
    failed = any(contents.section.failures for contents in report.sections)
    parts = [element("div", _all_of(report, ALL), class_="all" if failed else None)]
    parts += [element("div", _all_of(report, WITHOUT_FAILED), class_="kept")] if failed else []
    return joined(parts)


def _all_of(report: Report, which: str) -> Markup:
    sections = {contents.section.title: contents.section for contents in report.sections}
    effects = [
        effect
        for effect in report.effects
        if effect.which == which or (effect.which == ALL and not sections[effect.section].failures)
    ]
    first = [effect for effect in effects if effect.place == 0]
    metrics = [metric for metric in SHOWN if any(effect.metric == metric for effect in first)]
    parts: list[Markup] = []
    for metric in metrics:
        of_metric = [effect for effect in first if effect.metric == metric]
        table = _forest(of_metric, sections, f"Change of {measure(metric).label} on the scenes with fewest objects")
        parts.append(table if metric == metrics[0] else _folded(f"The same for {measure(metric).label}", table))
    for metric in metrics[:1]:
        later = [effect for effect in effects if effect.place > 0 and effect.metric == metric]
        if later:
            table = _forest(later, sections, f"Change of {measure(metric).label} on scenes with more objects")
            parts.append(_folded(f"{measure(metric).label} on scenes with more objects than in training", table))
        pairs = [effect for effect in first if effect.metric == metric and effect.differences]
        if pairs:
            table = _forest(pairs, sections, f"Differences of these changes of {measure(metric).label}", pairs=True)
            parts.append(_folded("One normalization against another, on the same scenes", table))
    return joined(parts) if parts else element("p", "No run is left to compare.", class_="lacks")


def _folded(words: str, table: Markup) -> Markup:
    return element("details", element("summary", words), table)


def _entries(effect: Effect, pairs: bool) -> list[Change | Difference]:
    """The rows of a study: changes, and what the proposed keep beyond the others; or every pair."""
    if pairs:
        return list(effect.differences)
    together = [pair for pair in effect.differences if (pair.norm, pair.than) == PROPOSED_LESS_OTHERS]
    return [*effect.changes, *together]


def _forest(effects: Sequence[Effect], sections: dict[str, Section], caption: str, pairs: bool = False) -> Markup:
    scale = Scale.of([entry for effect in effects for entry in _entries(effect, pairs)])
    head = element(
        "tr", element("th", "", scope="col"), element("th", _axis(scale), scope="col", aria_label="change, drawn"),
        element("th", "difference [95 %]" if pairs else "median [95 %]", scope="col"),
        element("th", "" if pairs else "runs", scope="col"),
    )  # fmt: skip
    bodies = []
    for effect in effects:
        section = sections[effect.section]
        words = f"{effect.section}: {effect.slots[0]} to {effect.slots[1]} slots"
        words += f", {objects_in_words(section, effect.dataset)}"
        rows = [element("tr", element("th", words, scope="colgroup", colspan=4), class_="part")]
        rows += [_row(entry, scale) for entry in _entries(effect, pairs)]
        bodies.append(element("tbody", *rows))
    table = element("table", element("caption", caption), element("thead", head), *bodies, class_="forest")
    return wide(table, caption)


def _row(entry: Change | Difference, scale: Scale) -> Markup:
    numbers = [element("strong", signed(entry.value)), " ", element("small", shown_interval(entry.interval))]
    count = f"{len(entry.runs)}" if isinstance(entry, Change) else ""
    sureness = element("td", count, element("small", f" ({caveat(entry)})") if caveat(entry) else None)
    name = element("th", entry.label, scope="row", class_=css_class(entry.norm))
    return element("tr", name, element("td", _strip(entry, scale), class_="drawn"), element("td", *numbers), sureness)


def _strip(entry: Change | Difference, scale: Scale) -> Markup:
    """A dot per run, hollow; the median; a line for the interval; zero."""
    zero = element("line", class_="zero", x1=scale.at(0), x2=scale.at(0), y1="0", y2="100%")
    parts = [zero]
    if entry.interval is not None:
        low, high = (scale.at(edge) for edge in entry.interval)
        parts.append(element("line", class_="interval", x1=low, x2=high, y1="50%", y2="50%"))
    if isinstance(entry, Change) and len(entry.runs) > 1:
        parts += [
            element("circle", class_="dot", cx=scale.at(change), cy="50%", r="3") for change in entry.runs.values()
        ]
    look = looks([entry.norm])[entry.norm]
    shape = element("path", class_="mark", d=f"M0 0{marker(look, 1.5)}")
    parts.append(element("svg", shape, x=scale.at(entry.value), y="50%", overflow="visible", width="1", height="1"))
    return element("svg", *parts, class_=f"spread {css_class(entry.norm)}", aria_hidden="true")


def _axis(scale: Scale) -> Markup:
    ticks = [element("text", signed(tick, 2), x=scale.at(tick), y="14") for tick in scale.ticks()]
    return element("svg", *ticks, class_="spread axis", aria_hidden="true")
