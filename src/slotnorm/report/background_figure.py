"""F-ARI beside ARI, and who holds the background: who pays for a high F-ARI with a spread background.

What is measured of the background is said in evaluation/background.py; it comes from the diagnosis of the runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slotnorm.config import SLOTS_FACTOR
from slotnorm.evaluation.background import DIVISORS, SHARE, TAKEN, divided_name
from slotnorm.report.appearance import looks
from slotnorm.report.curves import Curve, Figure, PathPanel, TitledPanel, curve, gathered, runs_of
from slotnorm.report.diagnostics import Diagnostics
from slotnorm.report.scores import Spread, spread
from slotnorm.report.sections import Section
from slotnorm.report.tables import Cell, Line, Part, Table, at_slots, mark

TITLE = "F-ARI and the background"
ON_PATHS = (
    "F-ARI looks at the pixels of objects alone, ARI at all of them. Where the background is spread over many slots, "
    "none of them is strong, and objects win the pixels at their borders: such a model keeps its F-ARI and pays with "
    "ARI, to the left in the figure. Where one slot holds the whole background, it wins some of these border pixels: "
    "that costs a little F-ARI, and ARI stays."
)
ON_SLOTS = (
    "How much of the background its largest slot holds, which share of the objects' pixels that slot takes, and what "
    "F-ARI is when that slot's mask is divided by 2, 3 or 10 before every pixel goes to the largest mask. What F-ARI "
    "gains so was lost at borders only; objects that are split or merged stay so. Where the background is spread, the "
    "slot with most of it is often an object's own: what it takes is then no loss, and making it weaker does not help."
)
_MULTIPLES = range(1, SLOTS_FACTOR + 1)  # of the training K: marked on the paths
_DIVIDED = tuple(divided_name(divisor) for divisor in DIVISORS)


@dataclass(frozen=True)
class Background:
    """The figure of a section, its words, and what was measured of slots as a table."""

    figure: Figure
    words: tuple[str, ...]
    """Paragraphs."""
    table: Table | None
    """None where no run has a diagnosis."""


def background(section: Section, diagnosed: Diagnostics | None, leave_out_failed: bool = False) -> Background | None:
    """F-ARI against ARI on each set, and what `diagnosed` says of the background; None where neither is known."""
    shown = section.without_failed() if leave_out_failed else section
    if not shown.all_runs:
        return None  # every run failed
    counts = {norm: runs_of(section, norm, leave_out_failed) for norm in section.norms}
    paths = tuple(panel for dataset in section.sets if (panel := _path_panel(shown, dataset)).curves)
    measured = _kept(diagnosed, shown) if diagnosed is not None else {}
    rows = [paths, *_slot_panels(shown, diagnosed.dataset, measured)] if diagnosed is not None and measured else [paths]
    rows = [row for row in rows if row]
    if not rows:
        return None
    name = f"{section.title}{' without failed runs' * leave_out_failed}"
    caption = f"F-ARI, ARI and the background. Trained with {section.train_slots} slots."
    figure = Figure(f"{name} background", f"{section.title} {section.factors}: {TITLE}", caption, tuple(rows), counts)
    words = (*((ON_PATHS,) if paths else ()), *((ON_SLOTS,) if measured else ()))
    table = None
    if diagnosed is not None and measured:
        table = _table(f"{name} background", section, shown, diagnosed.dataset, measured, counts)
    return Background(figure, words, table)


def _path_panel(section: Section, dataset: str) -> PathPanel:
    """Each normalization's way from the training K to three times it."""
    curves: dict[str, dict[str, Curve]] = {"f_ari": {}, "ari": {}}
    source, most = section.source("f_ari"), max(_MULTIPLES) * section.train_slots
    for norm in section.norms:
        both = {metric: curve(section.of(norm), metric, dataset, source=source) for metric in curves}
        first = both["f_ari"]
        kept = [int(k) for k in first.x if section.train_slots <= k <= most and k in both["ari"].x]
        for metric, scored in both.items():
            at = np.isin(scored.x, kept)
            part = gathered(kept, {name: values[at] for name, values in scored.runs.items()})
            if part.count.any():
                curves[metric][norm] = part
    known = [norm for norm in curves["f_ari"] if norm in curves["ari"]]
    return PathPanel(
        "f_ari", source, "slots", (dataset,), None, {norm: curves["f_ari"][norm] for norm in known},
        section.train_slots, section.train_objects, f"F-ARI against ARI on {dataset}",
        across={norm: curves["ari"][norm] for norm in known},
        marked=tuple(multiple * section.train_slots for multiple in _MULTIPLES),
    )  # fmt: skip


def _kept(diagnosed: Diagnostics, section: Section) -> dict[str, dict[str, Curve]]:
    """What the diagnosis says of the background, by metric and normalization, of the section's runs alone."""
    names = {run.name for run in section.all_runs}
    kept: dict[str, dict[str, Curve]] = {}
    for metric in (SHARE, TAKEN, *_DIVIDED):
        for norm, own in diagnosed.curves.get(metric, {}).items():
            runs = {name: values for name, values in own.runs.items() if name in names}
            part = gathered(own.x.tolist(), runs)
            if part.count.any():
                kept.setdefault(metric, {})[norm] = part
    return kept


def _slot_panels(
    section: Section, dataset: str, measured: Mapping[str, Mapping[str, Curve]]
) -> list[tuple[TitledPanel, ...]]:
    """Share and foreground against K; F-ARI against the divisor, a panel for each K."""
    factors = section.train_slots, section.train_objects
    titles = {SHARE: f"Background in its largest slot, {dataset}", TAKEN: f"Foreground that slot takes, {dataset}"}
    first = tuple(
        TitledPanel(metric, "diagnosis", "slots", (dataset,), None, measured[metric], *factors, words)
        for metric, words in titles.items()
        if metric in measured
    )
    second = tuple(
        TitledPanel(
            "f_ari", "diagnosis", "divisor", (dataset,), slots, curves, *factors,
            f"F-ARI, that slot's mask divided, {slots} slots",
        )
        for slots in _slots_of(measured)
        if (curves := _against_divisors(measured, slots))
    )  # fmt: skip
    return [row for row in (first, second) if row]


def _against_divisors(measured: Mapping[str, Mapping[str, Curve]], slots: int) -> dict[str, Curve]:
    """F-ARI at K `slots` with the background's slot divided by each of DIVISORS."""
    curves = {}
    for norm, first in measured.get(_DIVIDED[0], {}).items():
        values = {name: [_at(measured[metric][norm], name, slots) for metric in _DIVIDED] for name in first.runs}
        divided = gathered(DIVISORS, values)
        if divided.count.any():
            curves[norm] = divided
    return curves


def _table(
    name: str,
    section: Section,
    shown: Section,
    dataset: str,
    measured: Mapping[str, Mapping[str, Curve]],
    counts: Mapping[str, str],
) -> Table:
    metrics, parts = ("f_ari", "ari", SHARE, TAKEN, *_DIVIDED), []
    for slots in _slots_of(measured):
        lines = []
        for norm, look in looks(section.norms).items():
            spreads = [at_slots(shown, norm, metric, dataset, slots) for metric in ("f_ari", "ari")]
            spreads += [_spread(measured.get(metric, {}).get(norm), slots) for metric in metrics[2:]]
            lines.append(Line(norm, look.label, counts[norm], tuple(Cell(number) for number in spreads)))
        trained = " (training K)" if slots == section.train_slots else ""
        parts.append(Part(f"{dataset}, {slots} slots{trained}", tuple(lines)))
    caption = (
        f"{section.title} {section.factors}, the slot that holds most of the background on {dataset}: its share of it, "
        "the share of the foreground that it takes, and F-ARI with its mask divided (÷) before the argmax. "
        "Median ± maximal deviation over runs."
    )
    return mark(Table(name, caption, metrics, tuple(parts), bold=False))


def _slots_of(measured: Mapping[str, Mapping[str, Curve]]) -> list[int]:
    return sorted({int(k) for shares in measured[SHARE].values() for k in shares.x})


def _spread(measured: Curve | None, slots: int) -> Spread:
    return spread([] if measured is None else [_at(measured, name, slots) for name in measured.runs])


def _at(measured: Curve, name: str, slots: int) -> float:
    """A run's value at K, NaN where it has none."""
    values: Sequence[float] = measured.runs[name][measured.x == slots].tolist() if name in measured.runs else []
    return values[0] if values else float("nan")
