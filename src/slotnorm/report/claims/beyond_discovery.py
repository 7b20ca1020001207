"""Claims 20 to 30: MOVi-D without training on it, reconstruction, properties, ablation, theory."""

from collections.abc import Iterator

from slotnorm.experiments import MAIN, OTHERS, PROPOSED
from slotnorm.report.appearance import AVERAGE_PRECISIONS
from slotnorm.report.claims.comparisons import above_overall, alike, falls, holds
from slotnorm.report.claims.vocabulary import (
    LARGE,
    NOTICEABLE,
    Decision,
    Evidence,
    NotRun,
    Part,
    TransferEvidence,
    claim,
    fall,
    label,
    listed,
    noticeable,
)


@claim(
    20, "movi-d",
    "batch norm has the best F-ARI in each section and overall, weighted sum slightly below, both far "
    "above the others",
)  # fmt: skip
def _best_on_transfer(e: TransferEvidence) -> Iterator[Part]:
    def values() -> dict[str, dict[str, float]]:
        return {study: e.medians(study, "f_ari") for study in e.studies}

    def shown() -> str:
        return "; ".join(f"{study}: {listed(one)}" for study, one in values().items())

    def best() -> Decision:
        found = values()
        in_sections = all(max(one, key=lambda norm: one[norm]) == "batch_norm" for one in found.values())
        return in_sections, shown()

    def slightly_below() -> Decision:
        gaps = {study: one["batch_norm"] - one["weighted_sum"] for study, one in values().items()}
        words = ", ".join(f"{study} {gap:.3f}" for study, gap in gaps.items())
        return all(0 <= gap <= NOTICEABLE for gap in gaps.values()), f"below by {words}"

    def far_above() -> Decision:
        gaps = {
            study: min(one[norm] for norm in PROPOSED) - max(one[norm] for norm in OTHERS)
            for study, one in values().items()
        }
        return all(gap > LARGE for gap in gaps.values()), ", ".join(
            f"{study} {gap:+.3f}" for study, gap in gaps.items()
        )

    yield "batch norm has the best F-ARI in each section, and so overall", best
    yield "weighted sum is slightly below", slightly_below
    yield "both are far above the others", far_above


@claim(21, "movi-d", "no variant is always best in ARI")
def _no_best_ari(e: TransferEvidence) -> Iterator[Part]:
    def decide() -> Decision:
        table = {study: e.medians(study, "ari") for study in e.studies}
        best = {study: max(values, key=values.__getitem__) for study, values in table.items()}
        if len(best) < 2:
            raise NotRun("only one section was run")
        return len(set(best.values())) > 1, ", ".join(f"{study}: {label(norm)}" for study, norm in best.items())

    yield "no variant is best in every section", decide


@claim(22, "movi-d", "for each normalization (6, 7) is above (10, 11) and (6, 11) in F-ARI")
def _few_slots_train_best(e: TransferEvidence) -> Iterator[Part]:
    def decide() -> Decision:
        if len(e.studies) < 2:
            raise NotRun("only one section was run")
        table = {study: e.medians(study, "f_ari") for study in e.studies}
        winner = min(e.studies, key=lambda study: e.train_factors(study))
        rest = [study for study in e.studies if study != winner]
        ahead = all(table[winner][norm] > table[study][norm] for study in rest for norm in MAIN)
        return ahead, "; ".join(f"{study}: {listed(one)}" for study, one in table.items())

    yield "trained with the fewest objects and slots, each normalization has the highest F-ARI", decide


@claim(
    23, "clevr-6-7",
    "l2 grows with excess slots for all; layer norm lowest; baseline and weighted sum alike; grows with "
    "objects fastest for the baseline, slowest for batch norm",
)  # fmt: skip
def _l2_clevr_6_7(e: Evidence) -> Iterator[Part]:
    def speed() -> Decision:
        slopes = {norm: e.trend(norm, "l2") for norm in MAIN}
        fastest, slowest = max(slopes, key=lambda n: slopes[n]), min(slopes, key=lambda n: slopes[n])
        grows = all(slope > 0 for slope in slopes.values())
        return grows and (fastest, slowest) == ("weighted_mean", "batch_norm"), f"slope an object: {listed(slopes)}"

    yield "l2 grows with excess slots for all", lambda: grows_with_slots(e, MAIN)
    yield "layer norm is lowest overall", lambda: lowest(e, "layer_norm")
    yield "baseline and weighted sum are alike", lambda: alike(e, ("weighted_mean", "weighted_sum"), "l2")
    yield "it grows with objects, fastest for the baseline, slowest for batch norm", speed


def grows_with_slots(e: Evidence, norms: tuple[str, ...]) -> Decision:
    """Whether each one's l2 grows noticeably from the training K to the largest."""
    larger, words = True, []
    for dataset in e.sets:
        start, end = e.excess("l2", dataset, norms)
        pairs = {norm: [e.median(norm, "l2", dataset, k) for k in (start, end)] for norm in norms}
        larger &= all(-fall(before, after, "l2") > noticeable("l2") for before, after in pairs.values())
        shown = ", ".join(f"{label(norm)} {before:.3g} → {after:.3g}" for norm, (before, after) in pairs.items())
        words.append(f"{dataset}, K {start} → {end}: {shown}")
    return larger, "; ".join(words)


def lowest(e: Evidence, norm: str) -> Decision:
    """Whether one normalization has the lowest overall l2 on every set."""
    return above_overall(e, tuple(other for other in MAIN if other != norm), (norm,), "l2")


def highest(e: Evidence, norm: str) -> Decision:
    """Whether it has the highest."""
    return above_overall(e, (norm,), tuple(other for other in MAIN if other != norm), "l2")


@claim(
    24, "clevr-6-11",
    "l2 depends less on K; weighted sum highest, layer norm lowest, baseline and batch norm alike",
)  # fmt: skip
def _l2_clevr_6_11(e: Evidence) -> Iterator[Part]:
    def less_dependent() -> Decision:
        before, less, words = e.related("clevr-6-7"), True, []
        for norm in MAIN:
            pair = [
                one.range_over_slots(norm, "l2", one.many) / one.overall(norm, "l2", one.many) for one in (e, before)
            ]
            less &= pair[0] < pair[1]
            words.append(f"{label(norm)} {pair[0]:.2f} against {pair[1]:.2f}")
        return less, f"{e.many}, range over K as a share of the mean: {', '.join(words)}"

    yield "l2 depends less on K than in (6, 7)", less_dependent
    yield "weighted sum is highest overall", lambda: highest(e, "weighted_sum")
    yield "layer norm is lowest", lambda: lowest(e, "layer_norm")
    yield "baseline and batch norm are alike", lambda: alike(e, ("weighted_mean", "batch_norm"), "l2")


@claim(25, "movi-10-11", "l2 on MOVi falls as K grows; weighted sum highest, the other three alike")
def _l2_movi(e: Evidence) -> Iterator[Part]:
    rest = tuple(norm for norm in MAIN if norm != "weighted_sum")

    def decreases(one: Evidence) -> Decision:
        smaller, words = True, []
        for dataset in one.sets:
            slots = one.slots("l2", dataset, MAIN)
            pairs = {norm: [one.median(norm, "l2", dataset, k) for k in (slots[0], slots[-1])] for norm in MAIN}
            smaller &= len(slots) > 1 and all(
                fall(before, after, "l2") > noticeable("l2") for before, after in pairs.values()
            )
            shown = ", ".join(f"{label(norm)} {before:.3g} → {after:.3g}" for norm, (before, after) in pairs.items())
            words.append(f"{dataset}, K {slots[0]} → {slots[-1]}: {shown}")
        return smaller, "; ".join(words)

    for study in ("movi-10-11", "movi-6-7", "movi-6-11"):
        yield f"{study}: l2 falls as K grows", lambda study=study: decreases(e.related(study))  # type: ignore[misc]
        yield f"{study}: weighted sum is highest", lambda study=study: highest(e.related(study), "weighted_sum")  # type: ignore[misc]
        yield f"{study}: the other three are alike", lambda study=study: alike(e.related(study), rest, "l2")  # type: ignore[misc]


@claim(26, "properties", "F-ARI: the others suffer from excess slots, the proposed do not; batch norm best")
def _properties_f_ari(e: Evidence) -> Iterator[Part]:
    rest = tuple(norm for norm in MAIN if norm != "batch_norm")

    def best() -> Decision:
        values = {norm: e.overall(norm, "f_ari", e.few) for norm in MAIN}
        return values["batch_norm"] > max(values[norm] for norm in rest), f"{e.few}: {listed(values)}"

    yield "the others suffer from excess slots", lambda: falls(e, OTHERS, "f_ari", (e.few,))
    yield "the proposed do not", lambda: holds(e, PROPOSED, "f_ari", (e.few,))
    yield "batch norm is best overall", best


@claim(
    27, "properties",
    "average precision: the proposed hold at high K, the others do not; weighted mean best at low K",
)  # fmt: skip
def _properties_precision(e: Evidence) -> Iterator[Part]:
    def at_low_slots() -> Decision:
        values = {}
        for norm in MAIN:
            medians = [
                e.median(norm, metric, e.few, k)
                for metric in AVERAGE_PRECISIONS
                for k in e.slots(metric, e.few, MAIN)
                if k <= e.train_slots
            ]
            if not medians:
                raise NotRun(f"{e.few} was not evaluated with {e.train_slots} slots or fewer")
            values[norm] = sum(medians) / len(medians)
        best = max(values, key=lambda norm: values[norm])
        return best == "weighted_mean", f"{e.few}, mean over distances and K up to {e.train_slots}: {listed(values)}"

    for metric in AVERAGE_PRECISIONS:
        yield f"{metric}: the proposed hold at high K", lambda metric=metric: holds(e, PROPOSED, metric, (e.few,))  # type: ignore[misc]
        yield f"{metric}: the others do not", lambda metric=metric: falls(e, OTHERS, metric, (e.few,))  # type: ignore[misc]
    yield "weighted mean is best at low K", at_low_slots


@claim(28, "ablation", "unnormalized does not become object-centric: low F-ARI at every K, low average precision")
def _unnormalized(e: Evidence) -> Iterator[Part]:
    others = (*MAIN, "kd_layer_norm")

    def low_everywhere() -> Decision:
        ratios = {}
        for k in e.slots("f_ari", e.few, ("unnormalized", *others)):
            mine = e.median("unnormalized", "f_ari", e.few, k)
            ratios[k] = (mine, min(e.median(norm, "f_ari", e.few, k) for norm in others))
        low = all(mine < rest / 2 for mine, rest in ratios.values())
        worst = max(ratios, key=lambda k: ratios[k][0] - ratios[k][1] / 2)
        mine, rest = ratios[worst]
        return low, f"{e.few}: nearest at K {worst}, {mine:.3f} against {rest:.3f} of the lowest other"

    def low_precision() -> Decision:
        low, words = True, []
        for metric in AVERAGE_PRECISIONS:
            mine = e.median("unnormalized", metric, e.few, e.train_slots)
            rest = min(e.median(norm, metric, e.few, e.train_slots) for norm in others)
            low &= mine < rest
            words.append(f"{metric} {mine:.3f} against {rest:.3f}")
        return low, f"{e.few}, K {e.train_slots}, the lowest other: {', '.join(words)}"

    yield "unnormalized has low F-ARI at every K", low_everywhere
    yield "and lower average precision than all others", low_precision


@claim(
    29, "ablation",
    "K-D layer norm is object-centric but not robust to many slots, and below the other object-centric "
    "variants in average precision",
)  # fmt: skip
def _kd_layer_norm(e: Evidence) -> Iterator[Part]:
    def object_centric() -> Decision:
        mine = e.median("kd_layer_norm", "f_ari", e.few, e.train_slots)
        rest = [e.median(norm, "f_ari", e.few, e.train_slots) for norm in MAIN]
        return mine >= min(
            rest
        ) / 2, f"{e.few}, K {e.train_slots}: {mine:.3f}, the main variants {min(rest):.3f} or more"

    def below() -> Decision:
        values = {
            norm: sum(e.overall(norm, metric, e.few) for metric in AVERAGE_PRECISIONS) / len(AVERAGE_PRECISIONS)
            for norm in (*MAIN, "kd_layer_norm")
        }
        return values["kd_layer_norm"] < min(
            values[norm] for norm in MAIN
        ), f"{e.few}, mean over distances: {listed(values)}"

    yield "K-D layer norm is object-centric", object_centric
    yield "but falls with excess slots", lambda: falls(e, ("kd_layer_norm",), "f_ari", (e.few,))
    yield "and is below the main variants in average precision", below


@claim(
    30, "theory",
    "the proposed keep the mass in the update codes; weighted mean and layer norm cannot (Propositions 1 "
    "and 2)",
)  # fmt: skip
def _theory(_: None) -> Iterator[Part]:
    from slotnorm.theory.checks import check_theory
    from slotnorm.theory.layers import train_layer

    layer, _losses = train_layer()
    for check in check_theory(layer):
        if check.where in ("Prop. 1", "Prop. 2", "Sec. 4.2"):
            trained = "not measured" if check.trained is None else check.form.format(check.trained)
            numbers = f"largest error {check.form.format(check.random)} on random layers, {trained} on a trained one"
            yield check.statement, lambda check=check, numbers=numbers: (check.holds, numbers)  # type: ignore[misc]
