"""Which figures are drawn and what of them: style, width, normalizations, metrics, and no panel of mere noise."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slotnorm.errors import UserError, nearest
from slotnorm.metrics import all_metrics
from slotnorm.report.appearance import GUESS, measure, ordered
from slotnorm.report.curves import Figure, Panel, PathPanel
from slotnorm.report.diagnostics import Diagnostics
from slotnorm.report.drawing.layout import Format
from slotnorm.report.drawing.style import STYLES, StyleName, Width
from slotnorm.report.effects import PROPOSED_LESS_OTHERS, Difference, Effect
from slotnorm.report.sections import Section

_FEWEST_RUNS = 3  # of which the range tells what noise is
_VISIBLE = 0.005  # a score whose every number is the same to two decimals shows nothing


@dataclass(frozen=True)
class Chosen:
    """What is drawn of a figure, and what is not."""

    figure: Figure | None
    """None where nothing is left."""
    noise: tuple[str, ...] = ()
    """Titles of panels that show nothing but noise."""

    @property
    def left_out(self) -> str:
        """A sentence on them, or nothing."""
        if not self.noise:
            return ""
        return f"Not drawn, since they show no difference beyond the range of the runs: {'; '.join(self.noise)}."


@dataclass(frozen=True)
class Choice:
    """What is asked of the figures; None is all. Tables, claims and the page are always of everything."""

    style: StyleName = "paper"
    width: Width = "page"
    norms: tuple[str, ...] | None = None
    metrics: tuple[str, ...] | None = None

    @property
    def form(self) -> Format:
        return Format(STYLES[self.style], self.width)

    def require_known(self, sections: Sequence[Section]) -> None:
        """Refuse normalizations and metrics of which there is no run or no number."""
        norms = ordered(run.norm for section in sections for run in section.all_runs)
        measured = {metric for section in sections for metric in section.metrics()}
        metrics = [metric for metric in all_metrics() if metric in measured]
        for option, asked, known in (("--norms", self.norms, norms), ("--metrics", self.metrics, metrics)):
            for name in asked or ():
                if name not in known:
                    raise UserError(f"{option} has {name!r}, but the runs have none of it; {nearest(name, known)}")

    def of(self, figure: Figure) -> Chosen:
        """The figure with what is asked for, without panels that show nothing but noise."""
        rows = [[shown for panel in row if (shown := self._panel(panel)) is not None] for row in figure.rows]
        noise = tuple(panel.title for row in rows for panel in row if shows_only_noise(panel))
        left = tuple(kept for row in rows if (kept := tuple(panel for panel in row if not shows_only_noise(panel))))
        counts = {norm: count for norm, count in figure.counts.items() if self._has(norm)}
        return Chosen(dataclasses.replace(figure, rows=left, counts=counts) if left else None, noise)

    def _panel(self, panel: Panel) -> Panel | None:
        needed = ("f_ari", "ari") if isinstance(panel, PathPanel) else (panel.metric,)
        if self.metrics is not None and not set(needed) <= set(self.metrics):
            return None
        curves = {norm: curve for norm, curve in panel.curves.items() if self._has(norm)}
        if not set(curves).difference([GUESS]):
            return None
        if isinstance(panel, PathPanel):
            across = {norm: panel.across[norm] for norm in curves}
            return dataclasses.replace(panel, curves=curves, across=across)
        return dataclasses.replace(panel, curves=curves)

    def of_diagnostics(self, measured: Diagnostics) -> Diagnostics | None:
        """Those of the normalizations that are asked for, or None."""
        counts = {norm: count for norm, count in measured.counts.items() if self._has(norm)}
        if not counts:
            return None
        curves = {
            metric: {norm: some[norm] for norm in some if norm in counts} for metric, some in measured.curves.items()
        }
        masses = {norm: pairs for norm, pairs in measured.masses.items() if norm in counts}
        return dataclasses.replace(measured, counts=counts, curves=curves, masses=masses)

    def of_effects(self, effects: Sequence[Effect]) -> list[Effect]:
        """Effects on the metrics, with the normalizations, that are asked for."""
        return [
            dataclasses.replace(
                effect,
                changes=tuple(change for change in effect.changes if self._has(change.norm)),
                differences=tuple(pair for pair in effect.differences if self._has_both(pair)),
            )
            for effect in effects
            if self.metrics is None or effect.metric in self.metrics
        ]

    def _has(self, norm: str) -> bool:
        return self.norms is None or norm in (*self.norms, GUESS)

    def _has_both(self, pair: Difference) -> bool:
        if (pair.norm, pair.than) == PROPOSED_LESS_OTHERS:
            return self.norms is None
        return self._has(pair.norm) and self._has(pair.than)


def shows_only_noise(panel: Panel) -> bool:
    """Whether all runs of all normalizations overlap at every point, and no curve leaves the range of its own runs; or
    there is nothing to see at all.

    With fewer than three runs of a normalization nobody knows what is noise; paths of two scores are always drawn.
    """
    if is_flat(panel):
        return True
    if isinstance(panel, PathPanel) or any(len(curve.runs) < _FEWEST_RUNS for curve in panel.curves.values()):
        return False
    first = panel.train_slots if panel.against == "slots" else 0
    ranges: dict[int, list[tuple[float, float]]] = {}
    for curve in panel.curves.values():
        kept = (curve.x >= first) & (curve.count > 0)
        own = list(zip(curve.low[kept].tolist(), curve.high[kept].tolist(), strict=True))
        if not _overlap(own):
            return False
        for point, edges in zip(curve.x[kept].tolist(), own, strict=True):
            ranges.setdefault(point, []).append(edges)
    return bool(ranges) and all(map(_overlap, ranges.values()))


def is_flat(panel: Panel) -> bool:
    """Whether all runs of all normalizations, at every point, differ by no more than a score's two decimals show."""
    shown = measure(panel.metric)
    if isinstance(panel, PathPanel) or not (shown.higher_is_better or shown.is_share):
        return False
    known = [curve for curve in panel.curves.values() if curve.count.any()]
    lows, highs = [np.nanmin(curve.low) for curve in known], [np.nanmax(curve.high) for curve in known]
    return bool(known and max(highs) - min(lows) < _VISIBLE)


def _overlap(ranges: Sequence[tuple[float, float]]) -> bool:
    """Whether some number is in all of them."""
    return not ranges or max(low for low, _ in ranges) <= min(high for _, high in ranges)
