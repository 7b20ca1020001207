"""Claims 1 to 19: object discovery, F-ARI and ARI (Sec. 5.1 and 5.2)."""

from collections.abc import Callable, Iterator

from slotnorm.experiments import MAIN, OTHERS, PROPOSED
from slotnorm.report.claims.comparisons import (
    above,
    above_overall,
    alike,
    by_objects,
    falls,
    holds,
    large_spread,
    slower,
)
from slotnorm.report.claims.vocabulary import (
    LARGE,
    NOTICEABLE,
    ONE_BACKGROUND,
    Decision,
    Evidence,
    NotRun,
    Part,
    claim,
    label,
    listed,
)

BASELINE = ("weighted_mean",)


def failures(e: Evidence, norms: tuple[str, ...], some: bool) -> Decision:
    """Whether some runs of each, or none of any, failed by the rule."""
    counts = {norm: e.failed(norm) for norm in norms}
    if some and any(failed == 0 and total < 2 for failed, total in counts.values()):
        raise NotRun("that some runs fail cannot be told from one run of a normalization")
    shown = ", ".join(f"{label(norm)} {failed} of {total}" for norm, (failed, total) in counts.items())
    return all((failed > 0) == some for failed, _ in counts.values()), shown


def backgrounds(e: Evidence, norm: str, expected: Callable[[int, int], bool]) -> Decision:
    """Whether as many runs as expected put the background in one slot."""
    values = e.single_runs(norm, "ari", e.few, e.train_slots)
    count = sum(value > ONE_BACKGROUND for value in values)
    shown = ", ".join(f"{value:.2f}" for value in values)
    return expected(count, len(values)), f"{label(norm)}: {count} of {len(values)} (ARI {shown})"


@claim(
    1, "clevr-6-7",
    "F-ARI of the others falls with more than nine slots, on CLEVR6 and CLEVR10; the proposed do not",
)  # fmt: skip
def _clevr_6_7_slots(e: Evidence) -> Iterator[Part]:
    yield "the others fall beyond nine slots (training K + 2)", lambda: falls(e, OTHERS, "f_ari", beyond=2)
    yield "the proposed do not", lambda: holds(e, PROPOSED, "f_ari", beyond=2)


@claim(2, "clevr-6-7", "at 11 slots both proposed are above the baseline in F-ARI")
def _at_11_slots(e: Evidence) -> Iterator[Part]:
    yield "the proposed are above the baseline", lambda: above(e, PROPOSED, BASELINE, "f_ari", e.object_slots)


@claim(3, "clevr-6-7", "at 11 slots the proposed are above the baseline for every object count")
def _for_every_count(e: Evidence) -> Iterator[Part]:
    yield "the proposed are above the baseline for every count", lambda: by_objects(e, PROPOSED)


@claim(4, "clevr-6-7", "F-ARI falls with the number of objects for every variant")
def _trend_with_objects(e: Evidence) -> Iterator[Part]:
    def decide() -> Decision:
        slopes = {norm: e.trend(norm, "f_ari") for norm in MAIN}
        return all(slope < 0 for slope in slopes.values()), f"slope an object: {listed(slopes)}"

    yield "the trend is downwards for every variant", decide


@claim(5, "clevr-6-7", "ARI: the proposed are above the others, with large spread between runs")
def _clevr_ari(e: Evidence) -> Iterator[Part]:
    yield "the proposed are above the others overall", lambda: above_overall(e, PROPOSED, OTHERS, "ari")
    yield "with a large spread between runs", lambda: large_spread(e, PROPOSED, "ari")


@claim(6, "clevr-6-7", "spatial failures: 2 of 5 runs each for weighted sum and batch norm, none for the others")
def _failures_6_7(e: Evidence) -> Iterator[Part]:
    yield "some runs of both proposed fail (the paper: 2 of 5 each)", lambda: failures(e, PROPOSED, True)
    yield "no run of the others", lambda: failures(e, OTHERS, False)


@claim(
    7, "clevr-6-11",
    "F-ARI of the variants is closer than in (6, 7); the others still fall as slots are added, the "
    "proposed stay more stable",
)  # fmt: skip
def _clevr_6_11_slots(e: Evidence) -> Iterator[Part]:
    def closer() -> Decision:
        before, smaller, words = e.related("clevr-6-7"), True, []
        for here, there in zip(e.sets, before.sets, strict=False):
            ranges = []
            for one, dataset in ((e, here), (before, there)):
                values = [one.median(norm, "f_ari", dataset, e.object_slots) for norm in MAIN]
                ranges.append(max(values) - min(values))
            smaller &= ranges[0] < ranges[1]
            words.append(f"{here}: {ranges[0]:.3f} against {ranges[1]:.3f}")
        return smaller, f"best less worst at K {e.object_slots}: {'; '.join(words)}"

    yield "the variants are closer than in (6, 7)", closer
    yield "the others fall as slots are added", lambda: falls(e, OTHERS, "f_ari")
    yield "the proposed fall less", lambda: slower(e, PROPOSED, OTHERS, "f_ari")


@claim(8, "clevr-6-11", "F-ARI is lower than when trained with 7 slots")
def _lower_than_6_7(e: Evidence) -> Iterator[Part]:
    def decide() -> Decision:
        before, lower, words = e.related("clevr-6-7"), True, []
        for norm in MAIN:
            pair = [one.median(norm, "f_ari", one.many, e.object_slots) for one in (e, before)]
            lower &= pair[0] < pair[1]
            words.append(f"{label(norm)} {pair[0]:.3f} against {pair[1]:.3f}")
        return lower, f"{e.many}, K {e.object_slots}: {', '.join(words)}"

    yield "every variant is lower than trained with 7 slots", decide


@claim(
    9, "clevr-6-11",
    "every proposed model puts the background in one slot (high ARI); one baseline model does; no layer-"
    "norm model",
)  # fmt: skip
def _one_background_slot(e: Evidence) -> Iterator[Part]:
    for norm in PROPOSED:
        yield f"every {label(norm)} run does", lambda norm=norm: backgrounds(e, norm, lambda count, runs: count == runs)  # type: ignore[misc]
    yield "not every baseline run (the paper: 1 of 3)", lambda: backgrounds(e, "weighted_mean", lambda c, n: c < n)
    yield "no layer-norm run", lambda: backgrounds(e, "layer_norm", lambda count, runs: count == 0)


@claim(10, "clevr-6-11", "1 of 3 batch-norm runs fails (vertical stripes), no other")
def _failures_6_11(e: Evidence) -> Iterator[Part]:
    yield "some batch-norm run fails (the paper: 1 of 3)", lambda: failures(e, ("batch_norm",), True)
    rest = tuple(norm for norm in MAIN if norm != "batch_norm")
    yield "no other", lambda: failures(e, rest, False)


@claim(11, "movi-10-11", "the proposed are above the others in F-ARI at every K, on MOVi-C6 and C10")
def _movi_10_11_every_slots(e: Evidence) -> Iterator[Part]:
    def decide() -> Decision:
        ahead, words = True, []
        for dataset in e.sets:
            gaps = {}
            for k in e.slots("f_ari", dataset, MAIN):
                values = {norm: e.median(norm, "f_ari", dataset, k) for norm in MAIN}
                gaps[k] = min(values[norm] for norm in PROPOSED) - max(values[norm] for norm in OTHERS)
            ahead &= min(gaps.values()) > 0
            worst = min(gaps, key=lambda k: gaps[k])
            words.append(f"{dataset}: least ahead at K {worst} ({gaps[worst]:+.3f})")
        return ahead, "; ".join(words)

    yield "the proposed are above the others at every K", decide


@claim(12, "movi-10-11", "F-ARI falls with excess slots for all, more slowly for the proposed")
def _movi_10_11_fall(e: Evidence) -> Iterator[Part]:
    yield "F-ARI falls with excess slots for all", lambda: falls(e, MAIN, "f_ari")
    yield "more slowly for the proposed", lambda: slower(e, PROPOSED, OTHERS, "f_ari")


@claim(13, "movi-10-11", "the gain is at the smaller object counts")
def _gain_at_small_counts(e: Evidence) -> Iterator[Part]:
    def decide() -> Decision:
        curves = {norm: e.by_objects(norm, "f_ari") for norm in MAIN}
        counts = sorted(set.intersection(*(set(one.x.tolist()) for one in curves.values())))
        if len(counts) < 2:
            raise NotRun("fewer than two common object counts")

        def gain(some: list[int]) -> float:
            means = {
                n: one.median[[i for i, x in enumerate(one.x.tolist()) if x in some]].mean()
                for n, one in curves.items()
            }
            return float(sum(means[n] for n in PROPOSED) - sum(means[n] for n in OTHERS)) / 2

        few, many = counts[: len(counts) // 2], counts[(len(counts) + 1) // 2 :]
        low, high = gain(few), gain(many)
        shown = f"mean gain {low:+.3f} with {few[0]}-{few[-1]} objects, {high:+.3f} with {many[0]}-{many[-1]}"
        return low > 0 and low > high, f"K {e.object_slots}: {shown}"

    yield "the gain is positive at small counts and larger than at large ones", decide


@claim(14, "movi-10-11", "ARI falls with excess slots for all; weighted sum is best, the other three alike")
def _movi_10_11_ari(e: Evidence) -> Iterator[Part]:
    rest = tuple(norm for norm in MAIN if norm != "weighted_sum")
    yield "ARI falls with excess slots for all", lambda: falls(e, MAIN, "ari")
    yield "weighted sum is best overall", lambda: above_overall(e, ("weighted_sum",), rest, "ari")
    yield "the other three are alike", lambda: alike(e, rest, "ari")


@claim(
    15, "movi-6-7",
    "at 11 slots on C10 the proposed are above the baseline, and above the models trained with (10, 11)",
)  # fmt: skip
def _movi_6_7_at_11(e: Evidence) -> Iterator[Part]:
    def better_than_10_11() -> Decision:
        before, ahead, words = e.related("movi-10-11"), True, []
        for norm in PROPOSED:
            pair = [one.median(norm, "f_ari", one.many, e.object_slots) for one in (e, before)]
            ahead &= pair[0] > pair[1]
            words.append(f"{label(norm)} {pair[0]:.3f} against {pair[1]:.3f}")
        return ahead, f"{e.many}, K {e.object_slots}: {', '.join(words)}"

    sets = (e.many,)
    yield "the proposed are above the baseline", lambda: above(e, PROPOSED, BASELINE, "f_ari", e.object_slots, sets)
    yield "and above themselves trained with (10, 11)", better_than_10_11


@claim(16, "movi-6-7", "excess slots cost the others a lot of F-ARI")
def _movi_6_7_fall(e: Evidence) -> Iterator[Part]:
    yield "the others fall by a lot", lambda: falls(e, OTHERS, "f_ari", by=LARGE)


@claim(17, "movi-6-7", "ARI depends less on K; the baseline is slightly best")
def _movi_6_7_ari(e: Evidence) -> Iterator[Part]:
    def less_dependent() -> Decision:
        before, less, words = e.related("movi-10-11"), True, []
        for norm in MAIN:
            pair = [one.range_over_slots(norm, "ari", one.many) for one in (e, before)]
            less &= pair[0] < pair[1]
            words.append(f"{label(norm)} {pair[0]:.3f} against {pair[1]:.3f}")
        return less, f"{e.many}, range over K: {', '.join(words)}"

    rest = tuple(norm for norm in MAIN if norm != "weighted_mean")

    def slightly() -> Decision:
        leads = {d: e.overall("weighted_mean", "ari", d) - max(e.overall(n, "ari", d) for n in rest) for d in e.sets}
        return all(0 < lead <= NOTICEABLE for lead in leads.values()), ", ".join(
            f"{d} {v:+.3f}" for d, v in leads.items()
        )

    yield "ARI depends less on K than trained with (10, 11)", less_dependent
    yield "the baseline is slightly best overall", slightly


@claim(
    18, "movi-6-11",
    "the proposed are above the others in F-ARI, most at high K, and at least equal for every object "
    "count",
)  # fmt: skip
def _movi_6_11(e: Evidence) -> Iterator[Part]:
    def most_at_high() -> Decision:
        more, words = True, []
        for dataset in e.sets:
            start, end = e.excess("f_ari", dataset, MAIN)
            gaps = []
            for k in (start, end):
                values = {norm: e.median(norm, "f_ari", dataset, k) for norm in MAIN}
                gaps.append(min(values[n] for n in PROPOSED) - max(values[n] for n in OTHERS))
            more &= gaps[1] > gaps[0]
            words.append(f"{dataset}: gap {gaps[0]:+.3f} at K {start}, {gaps[1]:+.3f} at K {end}")
        return more, "; ".join(words)

    yield "the proposed are above the others overall", lambda: above_overall(e, PROPOSED, OTHERS, "f_ari")
    yield "most at high K", most_at_high
    yield "and at least equal for every object count", lambda: by_objects(e, PROPOSED, margin=NOTICEABLE)


@claim(19, "movi-6-11", "ARI falls with K; weighted sum best, large spread")
def _movi_6_11_ari(e: Evidence) -> Iterator[Part]:
    rest = tuple(norm for norm in MAIN if norm != "weighted_sum")
    yield "ARI falls with K", lambda: falls(e, MAIN, "ari")
    yield "weighted sum is best overall", lambda: above_overall(e, ("weighted_sum",), rest, "ari")
    yield "with a large spread", lambda: large_spread(e, ("weighted_sum",), "ari")
