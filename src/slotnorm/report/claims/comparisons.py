"""The comparisons that claims are made of: each says whether it holds beyond its noise, and on which numbers."""

from collections.abc import Iterable, Mapping, Sequence

from slotnorm.experiments import MAIN
from slotnorm.report.appearance import AVERAGE_PRECISIONS
from slotnorm.report.claims.estimates import StudyScores, loss
from slotnorm.report.claims.vocabulary import (
    FEWEST_FOR_SPREAD,
    LARGE,
    NOTICEABLE,
    Decision,
    Undecided,
    every,
    exceeds,
    generally,
    label,
    noticeable,
    within,
)
from slotnorm.report.resampling import Estimate


def above(values: Mapping[str, Estimate], upper: Iterable[str], lower: Iterable[str], by: float = 0.0) -> Decision:
    """Whether every one of `upper` is above every one of `lower`, by more than `by`."""
    rest = list(lower)
    return every([
        exceeds(values[norm] - values[other], f"{label(norm)} − {label(other)}", by) for norm in upper for other in rest
    ])  # fmt: skip


def others_than(*norms: str) -> tuple[str, ...]:
    """The main normalizations without these."""
    return tuple(norm for norm in MAIN if norm not in norms)


def losses(
    scores: StudyScores, norms: Iterable[str], metric: str, dataset: str, slots: Sequence[int]
) -> dict[str, Estimate]:
    """What each loses from the first of these K to the last."""
    return {
        norm: loss(scores.at(norm, metric, dataset, slots[0]), scores.at(norm, metric, dataset, slots[-1]), metric)
        for norm in norms
    }


def falls(
    scores: StudyScores, norms: Sequence[str], metric: str, sets: Sequence[str] | None = None, beyond: int = 0,
    by: float | None = None, excess: bool = True,
) -> Decision:  # fmt: skip
    """Whether each of the normalizations loses more than `by` with excess slots (else from the training K on)."""
    return _with_slots(scores, norms, metric, sets, beyond, noticeable(metric) if by is None else by, excess, False)


def holds(
    scores: StudyScores, norms: Sequence[str], metric: str, sets: Sequence[str] | None = None, beyond: int = 0
) -> Decision:
    """Whether none of them loses a noticeable amount with excess slots."""
    return _with_slots(scores, norms, metric, sets, beyond, noticeable(metric), True, True)


def _with_slots(
    scores: StudyScores, norms: Sequence[str], metric: str, sets: Sequence[str] | None, beyond: int, by: float,
    excess: bool, negated: bool,
) -> Decision:  # fmt: skip
    decisions = []
    for dataset in sets or scores.sets:
        if excess:
            slots = scores.excess(metric, dataset, norms, beyond)
        else:
            slots = scores.from_training(metric, dataset, norms)
        lost = losses(scores, norms, metric, dataset, slots)
        each = [exceeds(estimate, label(norm), by) for norm, estimate in lost.items()]
        each = [decision.negated() for decision in each] if negated else each
        decisions.append(every(each).at(f"{dataset}, lost from K {slots[0]} to {slots[-1]}"))
    return every(decisions, "; ")


def slower(scores: StudyScores, slow: Sequence[str], fast: Sequence[str], metric: str, excess: bool = True) -> Decision:
    """Whether each of `slow` loses less than each of `fast`."""
    decisions = []
    for dataset in scores.sets:
        norms = (*slow, *fast)
        slots = (scores.excess if excess else scores.from_training)(metric, dataset, norms)
        lost = losses(scores, norms, metric, dataset, slots)
        decisions.append(above(lost, fast, slow).at(f"{dataset}, lost more from K {slots[0]} to {slots[-1]}"))
    return every(decisions, "; ")


def above_at(
    scores: StudyScores, upper: Sequence[str], lower: Sequence[str], metric: str, slots: int,
    sets: Sequence[str] | None = None,
) -> Decision:  # fmt: skip
    """Whether at this K every one of `upper` is above every one of `lower`."""
    decisions = []
    for dataset in sets or scores.sets:
        values = {norm: scores.at(norm, metric, dataset, slots) for norm in (*lower, *upper)}
        decisions.append(above(values, upper, lower).at(f"{dataset}, K {slots}"))
    return every(decisions, "; ")


def above_overall(
    scores: StudyScores, upper: Sequence[str], lower: Sequence[str], metric: str, sets: Sequence[str] | None = None,
    by: float = 0.0,
) -> Decision:  # fmt: skip
    """The same of the mean of the medians from the training K on."""
    decisions = []
    for dataset in sets or scores.sets:
        values = {norm: scores.overall(norm, metric, dataset) for norm in (*lower, *upper)}
        decisions.append(above(values, upper, lower, by).at(dataset))
    return every(decisions, "; ")


def generally_above(
    scores: StudyScores, upper: Sequence[str], lower: Sequence[str], metric: str, excess: bool = False
) -> Decision:
    """Whether in the named share of sets and K every one of `upper` is above every one of `lower`."""
    decisions, words = [], []
    for dataset in scores.sets:
        norms = (*upper, *lower)
        slots = (scores.excess if excess else scores.slots)(metric, dataset, norms)
        words.append(f"{dataset} K {slots[0]}-{slots[-1]}")
        for k in slots:
            values = {norm: scores.at(norm, metric, dataset, k) for norm in norms}
            decisions.append(above(values, upper, lower))
    return generally(decisions, f"cases ({', '.join(words)})")


def alike(scores: StudyScores, norms: Sequence[str], metric: str) -> Decision:
    """Whether their overall values differ by no noticeable amount on any set."""
    decisions = []
    for dataset in scores.sets:
        values = {norm: scores.overall(norm, metric, dataset) for norm in norms}
        pairs = [(norm, other) for place, norm in enumerate(norms) for other in norms[place + 1 :]]
        decisions += [
            within(loss(values[norm], values[other], metric), f"{label(norm)} − {label(other)}", noticeable(metric)).at(
                dataset
            )
            for norm, other in pairs
        ]
    return every(decisions)


def large_spread(scores: StudyScores, norms: Sequence[str], metric: str) -> Decision:
    """Whether seeds differ a lot: the largest deviation from a median at the K of the object panels."""
    k, dataset, decisions = scores.object_slots, scores.many, []
    for norm in norms:
        deviation = scores.deviation(norm, metric, dataset, k)
        decision = exceeds(deviation, f"{label(norm)} ±", LARGE)
        if deviation.runs < FEWEST_FOR_SPREAD:
            decision = Decision(None, decision.numbers, "too few seeds")
        decisions.append(decision)
    numbers = every(decisions).at(f"{dataset}, K {k}").numbers
    if any(decision.holds for decision in decisions):
        return Decision(True, numbers)
    open_ones = [decision for decision in decisions if decision.holds is None]
    return Decision(None, numbers, open_ones[0].reason) if open_ones else Decision(False, numbers)


def above_baseline_by_objects(scores: StudyScores, norms: Sequence[str], by: float = 0.0) -> Decision:
    """Whether for every object count each of them is above the baseline by more than `by`."""
    base = scores.by_objects("weighted_mean", "f_ari")
    decisions: list[Decision] = []
    words = []
    for norm in norms:
        mine = scores.by_objects(norm, "f_ari")
        each = {count: exceeds(mine[count] - base[count], f"{count} objects", by) for count in mine if count in base}
        worst = min(each, key=lambda count: mine[count].value - base[count].value)
        words.append(f"{label(norm)} − Baseline least with {each[worst].numbers}")
        decisions += each.values()
    verdict = every(decisions)
    return Decision(verdict.holds, f"K {scores.object_slots}: {', '.join(words)}", verdict.reason)


def compared(pairs: Iterable[tuple[str, Estimate, Estimate]], place: str, lower: bool = False) -> Decision:
    """Whether of every pair (words, here, there) the first is above the second, or below it."""
    return every([exceeds(there - here if lower else here - there, words) for words, here, there in pairs]).at(place)


def telling_distances(scores: StudyScores, norms: Sequence[str], dataset: str, slots: int) -> list[str]:
    """The average precisions at which some variant scores at all; none is not decided."""
    telling = [
        metric
        for metric in AVERAGE_PRECISIONS
        if max(scores.at(norm, metric, dataset, slots).value for norm in norms) > NOTICEABLE
    ]
    if not telling:
        raise Undecided(f"no variant has average precision above {NOTICEABLE} at any distance", "shows nothing")
    return telling
