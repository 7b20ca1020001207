"""What happens inside trained models as K grows, as data; what is measured is said in evaluation/diagnosis.py."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slotnorm.evaluation.background import DIVISORS, SHARE, TAKEN, divided_name
from slotnorm.evaluation.diagnosis import OCCUPIED, SOURCE
from slotnorm.evaluation.rows import Rows
from slotnorm.report.appearance import looks
from slotnorm.report.curves import Curve, curve
from slotnorm.report.scores import RunScores, summarize

# metric -> title of its panel
DRAWN = {
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
    metrics = (*DRAWN, "occupancy", "update_norm", "mean_drift", "mass_error", *held)
    curves = {
        metric: {norm: curve(some, metric, dataset, source=SOURCE) for norm, some in by_norm.items()}
        for metric in metrics
    }
    errors = {norm: float(np.nanmax(own.median)) for norm, own in curves["mass_error"].items() if own.count.any()}
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


def to_csv(measured: Diagnostics) -> str:
    """What is drawn of it: the points of the curves, then pairs of true mass (x) and the mass read off the codes."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["norm", "metric", "dataset", "x", "median", "low", "high", "values"])
    for metric in DRAWN:
        for norm, own in measured.curves[metric].items():
            for place, x in enumerate(own.x.tolist()):
                values = [f"{column[place]:.6g}" for column in (own.median, own.low, own.high)]
                runs = " ".join(f"{run[place]:.6g}" for run in own.runs.values())
                writer.writerow([norm, metric, measured.dataset, x, *values, runs])
    for norm, pairs in measured.masses.items():
        for true, read in pairs:
            writer.writerow([norm, "mass", measured.dataset, f"{true:.6g}", f"{read:.6g}", "", "", ""])
    return buffer.getvalue()
