"""How a normalization and a metric look wherever they are shown: order, label, colour, marker, line.

The registries are the one list: a normalization's place decides its colour and marker, its `label` and `keeps_mass`
the rest; a metric says its label and direction itself. A new class is drawn without a change here.
"""

from collections.abc import Iterable
from typing import NamedTuple

from slotnorm.evaluation.background import DIVISORS, SHARE, TAKEN, divided_name
from slotnorm.metrics import all_metrics
from slotnorm.normalization import normalizations

TEXT = "#1a1a1a"
GRID = "#e3e3e3"

# Okabe and Ito's colours, which people with colour-blind eyes can tell apart; yellow is left out, white paper eats it
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#5C5C5C", "#8C6D1F")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


GUESS = "mean of training"
"""The trivial guess of a number of objects, which is shown beside the normalizations as if it were one."""


class Look(NamedTuple):
    """How one normalization is drawn."""

    label: str
    color: str
    marker: str
    dashed: bool
    """Lines of normalizations whose codes lose the mass are dashed, so that no colour need be told apart."""


_GUESSED = Look("Guess", "#5C5C5C", "X", dashed=True)


class Measure(NamedTuple):
    """How one metric is shown."""

    label: str
    higher_is_better: bool
    decimals: int = 3
    is_share: bool = False
    """Between 0 and 1, so that three decimals tell enough however small it is."""

    @property
    def arrow(self) -> str:
        return "↑" if self.higher_is_better else "↓"


# of diagnoses, which are not scores
_MEASURES = {
    SHARE: Measure("background held", True),
    TAKEN: Measure("foreground taken", False, is_share=True),
    **{divided_name(divisor): Measure(f"F-ARI ÷{divisor}", True) for divisor in DIVISORS},
}

AVERAGE_PRECISIONS = tuple(name for name, metric in all_metrics().items() if metric.figure == "precision")
# the paper's figures have the last four


def measure(metric: str) -> Measure:
    """How the metric is shown; one that is not known (its plugin was not given) by its own name, higher is better."""
    if (known := all_metrics().get(metric)) is not None:
        return Measure(known.label, known.direction == "higher", known.decimals, is_share=known.bounds == (0, 1))
    return _MEASURES.get(metric, Measure(metric, True))


def fixed(value: float, decimals: int = 3) -> str:
    """A score as people write it: "0.012", "−0.105", and no minus before one that rounds to zero."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")


def signed(value: float, decimals: int = 3) -> str:
    """A difference as people write it: "+0.012", "−0.105", and "0.000" without a sign."""
    rounded = round(value, decimals)
    if rounded != rounded:
        return "–"
    return "+" * (rounded > 0) + fixed(rounded, decimals)


def looks(norms: Iterable[str]) -> dict[str, Look]:
    """How each of these normalizations is drawn, in the registry's order.

    One that is not registered (a plugin that was not given) comes after the rest, under its own name.
    """
    registry, asked = normalizations(), set(norms)
    appearances = {}
    for place, norm in enumerate([*registry, *sorted(asked.difference(registry))]):
        if norm in asked:
            scheme = registry.get(norm)
            label, dashed = (scheme.label, not scheme.keeps_mass) if scheme else (norm, False)
            appearances[norm] = Look(label, _COLORS[place % len(_COLORS)], _MARKERS[place % len(_MARKERS)], dashed)
    return {norm: _GUESSED if norm == GUESS else look for norm, look in appearances.items()}


def ordered(norms: Iterable[str]) -> list[str]:
    """Normalizations in the registry's order, then the unregistered by name."""
    return list(looks(norms))
