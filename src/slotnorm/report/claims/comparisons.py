"""The comparisons that claims are made of: each says whether it holds, and on which numbers (words: evidence.py)."""

from collections.abc import Callable

from slotnorm.report.claims.vocabulary import LARGE, Decision, Evidence, NotRun, fall, label, listed, noticeable


def falls(
    e: Evidence, norms: tuple[str, ...], metric: str, sets: tuple[str, ...] | None = None, beyond: int = 0,
    by: float | None = None,
) -> Decision:  # fmt: skip
    """Whether each of the normalizations loses more than `by` between `beyond` the training K and the largest K."""
    return _between(e, norms, metric, sets, beyond, lambda loss: loss > (noticeable(metric) if by is None else by))


def holds(
    e: Evidence, norms: tuple[str, ...], metric: str, sets: tuple[str, ...] | None = None, beyond: int = 0
) -> Decision:
    """Whether none of them loses a noticeable amount."""
    return _between(e, norms, metric, sets, beyond, lambda loss: loss <= noticeable(metric))


def _between(
    e: Evidence, norms: tuple[str, ...], metric: str, sets: tuple[str, ...] | None, beyond: int,
    fits: Callable[[float], bool],
) -> Decision:  # fmt: skip
    fitting, words = True, []
    for dataset in sets or e.sets:
        start, end = e.excess(metric, dataset, norms, beyond)
        pairs = {norm: (e.median(norm, metric, dataset, start), e.median(norm, metric, dataset, end)) for norm in norms}
        fitting &= all(fits(fall(before, after, metric)) for before, after in pairs.values())
        shown = ", ".join(f"{label(norm)} {before:.3g} → {after:.3g}" for norm, (before, after) in pairs.items())
        words.append(f"{dataset}, K {start} → {end}: {shown}")
    return fitting, "; ".join(words)


def above(
    e: Evidence, upper: tuple[str, ...], lower: tuple[str, ...], metric: str, slots: int,
    sets: tuple[str, ...] | None = None,
) -> Decision:  # fmt: skip
    """Whether at this K every one of `upper` has a larger median than every one of `lower`."""
    ahead, words = True, []
    for dataset in sets or e.sets:
        values = {norm: e.median(norm, metric, dataset, slots) for norm in (*lower, *upper)}
        ahead &= min(values[norm] for norm in upper) > max(values[norm] for norm in lower)
        words.append(f"{dataset}, K {slots}: {listed(values)}")
    return ahead, "; ".join(words)


def above_overall(e: Evidence, upper: tuple[str, ...], lower: tuple[str, ...], metric: str) -> Decision:
    """The same of the mean of the medians from the training K on."""
    ahead, words = True, []
    for dataset in e.sets:
        values = {norm: e.overall(norm, metric, dataset) for norm in (*lower, *upper)}
        ahead &= min(values[norm] for norm in upper) > max(values[norm] for norm in lower)
        words.append(f"{dataset}: {listed(values)}")
    return ahead, "; ".join(words)


def slower(e: Evidence, slow: tuple[str, ...], fast: tuple[str, ...], metric: str) -> Decision:
    """Whether each of `slow` loses less than each of `fast` from the training K to the largest."""
    less, words = True, []
    for dataset in e.sets:
        start, end = e.excess(metric, dataset, (*slow, *fast))
        losses = {
            norm: fall(e.median(norm, metric, dataset, start), e.median(norm, metric, dataset, end), metric)
            for norm in (*fast, *slow)
        }
        less &= max(losses[norm] for norm in slow) < min(losses[norm] for norm in fast)
        words.append(f"{dataset}, lost from K {start} to {end}: {listed(losses)}")
    return less, "; ".join(words)


def alike(e: Evidence, norms: tuple[str, ...], metric: str) -> Decision:
    """Whether their overall values differ by no noticeable amount on any set."""
    close, words = True, []
    for dataset in e.sets:
        values = {norm: e.overall(norm, metric, dataset) for norm in norms}
        close &= fall(max(values.values()), min(values.values()), metric) <= noticeable(metric)
        words.append(f"{dataset}: {listed(values)}")
    return close, "; ".join(words)


def large_spread(e: Evidence, norms: tuple[str, ...], metric: str) -> Decision:
    """Whether seeds differ a lot: the largest deviation from a median at the K of the object panels."""
    spreads = {norm: e.at(norm, metric, e.many, e.object_slots) for norm in norms}
    if max(spread.runs for spread in spreads.values()) < 2:
        raise NotRun("a spread needs two runs of a normalization")
    words = listed({norm: spread.deviation for norm, spread in spreads.items()})
    return max(spread.deviation for spread in spreads.values()) > LARGE, f"{e.many}, K {e.object_slots}: ± {words}"


def by_objects(e: Evidence, norms: tuple[str, ...], margin: float = 0.0) -> Decision:
    """Whether for every object count each of them is above the baseline, or no more than `margin` below it."""
    base = e.by_objects("weighted_mean", "f_ari")
    baseline = dict(zip(base.x.tolist(), base.median.tolist(), strict=True))
    ahead, words = True, []
    for norm in norms:
        mine = e.by_objects(norm, "f_ari")
        pairs = zip(mine.x.tolist(), mine.median.tolist(), strict=True)
        gains = {count: value - baseline[count] for count, value in pairs if count in baseline}
        ahead &= all(gain >= -margin if margin else gain > 0 for gain in gains.values())
        worst = min(gains, key=lambda count: gains[count])
        words.append(f"{label(norm)} least ahead with {worst} objects ({gains[worst]:+.3f})")
    return ahead, f"K {e.object_slots}: {', '.join(words)}"
