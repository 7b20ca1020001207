"""The paper's thirty claims: all agree in a world as it describes, none without differences, each differs somewhere."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from made_up_rows import made_up
from slotnorm.evaluation.rows import Rows
from slotnorm.experiments import ABLATED, MAIN, studies, transfers
from slotnorm.report.claims import theory
from slotnorm.report.claims.checking import (
    SCALES,
    Finding,
    Outcome,
    check_claims,
    claims,
    counted,
    in_short,
    verdict,
)
from slotnorm.report.claims.estimates import StudyScores, loss
from slotnorm.report.claims.vocabulary import (
    GENERALLY,
    LARGE,
    NOTICEABLE,
    Decision,
    Undecided,
    claim,
    every,
    exceeds,
    generally,
    within,
)
from slotnorm.report.paper_numbers import printed
from slotnorm.report.prose import claims_page
from slotnorm.report.resampling import RESAMPLES, Estimate
from slotnorm.report.scores import RunScores, summarize
from slotnorm.report.sections import Section, divide

pytestmark = pytest.mark.usefixtures("few_resamples")

SLOTS = (3, 7, 9, 10, 11, 15, 24)
OTHERS, PROPOSED = MAIN[:2], MAIN[2:]
# which runs fail where: (study, norm) -> seeds
FAILED = {
    ("clevr-6-7", "weighted_sum"): (4, 5),
    ("clevr-6-7", "batch_norm"): (4, 5),
    ("clevr-6-11", "batch_norm"): (3,),
}

Score = Callable[[str, int, int, int], float]  # norm, seed, K, objects


def pick(norm: str, *values: float) -> float:
    """One value for each of baseline, layer norm, weighted sum, batch norm."""
    return dict(zip(MAIN, values, strict=True))[norm]


def clevr_6_7() -> dict[str, Score]:
    def f_ari(norm: str, seed: int, k: int, o: int) -> float:
        loss = 0.006 if norm in OTHERS else 0.0
        return pick(norm, 0.93, 0.92, 0.94, 0.95) - loss * max(0, k - 9) - 0.004 * (o - 3)

    def ari(norm: str, seed: int, k: int, o: int) -> float:
        return pick(norm, 0.5, 0.5, 0.8, 0.8) + (0.08 * (seed - 2) if norm in PROPOSED else 0)

    def l2(norm: str, seed: int, k: int, o: int) -> float:
        level = pick(norm, 4.0, 3.0, 4.03, 4.5) + pick(norm, 0.3, 0.2, 0.29, 0.1) * (o - 3)
        return 1e-3 * level * (1 + 0.02 * max(0, k - 7))

    return {"f_ari": f_ari, "ari": ari, "l2": l2}


def clevr_6_11() -> dict[str, Score]:
    def f_ari(norm: str, seed: int, k: int, o: int) -> float:
        return pick(norm, 0.88, 0.88, 0.885, 0.885) - (0.003 if norm in OTHERS else 0.0005) * max(0, k - 11)

    def ari(norm: str, seed: int, k: int, o: int) -> float:
        one_slot = norm in PROPOSED or (norm, seed) == ("weighted_mean", 1)
        return 0.9 if one_slot else 0.4

    def l2(norm: str, seed: int, k: int, o: int) -> float:
        return 1e-3 * (pick(norm, 3.0, 2.0, 4.0, 3.05) + 0.1 * (o - 3)) * (1 + 0.001 * max(0, k - 11))

    return {"f_ari": f_ari, "ari": ari, "l2": l2}


def movi(level: float, loss: tuple[float, float], ari: Score, start: int) -> dict[str, Score]:
    def f_ari(norm: str, seed: int, k: int, o: int) -> float:
        ahead = (0.08 if o <= 6 else 0.02) if norm in PROPOSED else 0.0
        return level + ahead - loss[norm in PROPOSED] * max(0, k - start)

    def l2(norm: str, seed: int, k: int, o: int) -> float:
        return pick(norm, 2.1, 2.1, 2.3, 2.11) * (1 - 0.01 * k)

    return {"f_ari": f_ari, "ari": ari, "l2": l2}


def movi_10_11_ari(norm: str, seed: int, k: int, o: int) -> float:
    return pick(norm, 0.3, 0.3, 0.35, 0.31) - 0.005 * max(0, k - 11)


def movi_6_7_ari(norm: str, seed: int, k: int, o: int) -> float:
    return pick(norm, 0.30, 0.29, 0.285, 0.295) - 0.001 * max(0, k - 7)


def movi_6_11_ari(norm: str, seed: int, k: int, o: int) -> float:
    return pick(norm, 0.3, 0.3, 0.45, 0.3) - 0.005 * max(0, k - 11) + 0.1 * (norm == "weighted_sum") * (seed - 2)


def properties() -> dict[str, Score]:
    def f_ari(norm: str, seed: int, k: int, o: int) -> float:
        if norm == "unnormalized":
            return 0.1
        kept = {"weighted_mean": 0.8, "layer_norm": 0.8, "weighted_sum": 0.82, "batch_norm": 0.9, "kd_layer_norm": 0.75}
        return kept[norm] - (0.0 if norm in PROPOSED else 0.01) * max(0, k - 10)

    def precision(norm: str, seed: int, k: int, o: int) -> float:
        if norm in ABLATED:
            return 0.05 if norm == "unnormalized" else 0.3 - 0.005 * max(0, k - 10)
        return pick(norm, 0.9, 0.8, 0.8, 0.8) - (0.0 if norm in PROPOSED else 0.02) * max(0, k - 10)

    return {"f_ari": f_ari, **{f"ap@{distance}": precision for distance in ("inf", "1", "0.5", "0.25", "0.125")}}


def as_the_paper_says() -> dict[str, dict[str, Score]]:
    return {
        "clevr-6-7": clevr_6_7(),
        "clevr-6-11": clevr_6_11(),
        "movi-10-11": movi(0.6, (0.006, 0.003), movi_10_11_ari, 11),
        "movi-6-7": movi(0.7, (0.006, 0.001), movi_6_7_ari, 7),
        "movi-6-11": movi(0.6, (0.006, 0.003), movi_6_11_ari, 11),
        "properties": properties(),
        "ablation": properties(),
    }


def rows_of(study: str, scores: dict[str, Score], norms: Iterable[str], seeds: Iterable[int]) -> Rows:
    """One image for every object count, and metrics of the whole set without an image."""
    experiment, parts = studies()[study].experiment, []
    for norm in norms:
        for seed in seeds:
            for test in studies()[study].tests:
                counts = np.arange(test.objects[0], test.objects[1] + 1)
                for k in SLOTS:
                    for metric, score in scores.items():
                        whole = metric.startswith("ap@")
                        images = [-1] if whole else counts
                        parts.append(Rows(
                            run=f"{study}-{norm}-{seed}", norm=norm, seed=seed, train_objects=experiment.max_objects,
                            train_slots=experiment.slots, dataset=test.name, image=images, objects=images,
                            slots=k, iterations=3, protocol="paper", source="masks", metric=metric,
                            value=[score(norm, seed, k, int(o)) for o in images],
                        ))  # fmt: skip
    return Rows.concat(parts)


def on_movi_d(number: Callable[[str, str, str], float]) -> Rows:
    parts = []
    for study in transfers()["movi-d"].studies:
        experiment = studies()[study].experiment
        for norm in MAIN:
            for metric, seed in ((metric, seed) for metric in ("f_ari", "l2", "ari") for seed in (1, 2, 3)):
                parts.append(Rows(
                    run=f"{study}-{norm}-{seed}", norm=norm, seed=seed, train_objects=experiment.max_objects,
                    train_slots=experiment.slots, dataset="movi-d", protocol="paper", image=0, objects=12, slots=24,
                    iterations=3, source="masks", metric=metric, value=number(study, norm, metric),
                ))  # fmt: skip
    return Rows.concat(parts)


def world(scores: dict[str, dict[str, Score]], transfer: Rows, failures: bool) -> list[Section]:
    parts = [transfer]
    for study, some in scores.items():
        seeds = range(1, 6) if study == "clevr-6-7" else range(1, 4)
        parts.append(rows_of(study, some, studies()[study].norms, seeds))
    runs = [
        dataclasses.replace(run, failed=failures and run.seed in FAILED.get((study_of(run), run.norm), ()))
        for run in summarize(Rows.concat(parts))
    ]
    return divide(runs)


def study_of(run: RunScores) -> str:
    return run.name.removesuffix(f"-{run.norm}-{run.seed}")


def paper_number(study: str, norm: str, metric: str) -> float:
    number = printed("movi-d", study, norm, metric)
    assert number is not None
    return number.median


@pytest.fixture(scope="module")
def described() -> list[Section]:
    return world(as_the_paper_says(), on_movi_d(paper_number), failures=True)


@pytest.fixture(scope="module")
def agreeing(described: list[Section]) -> dict[int, Outcome]:
    return by_number(check_claims(described, with_theory=False))


def swapped() -> list[Section]:
    """The paper's world with the proposed and the others in each other's place; one variant always best in ARI."""
    other = dict(zip(MAIN, MAIN[::-1], strict=True)) | dict(zip(ABLATED, ABLATED[::-1], strict=True))
    scores = {
        study: {metric: lambda norm, *at, score=score: score(other[norm], *at) for metric, score in some.items()}
        for study, some in as_the_paper_says().items()
    }

    def number(study: str, norm: str, metric: str) -> float:
        return 0.1 * MAIN.index(norm) if metric == "ari" else paper_number(study, other[norm], metric)

    return world(scores, on_movi_d(number), failures=False)


def negated() -> list[Section]:
    """The paper's world upside down: what falls rises, and what was best is worst."""
    scores = {
        study: {
            metric: lambda *at, score=score, metric=metric: (10 if metric == "l2" else 1) - score(*at)
            for metric, score in some.items()
        }
        for study, some in as_the_paper_says().items()
    }
    return world(scores, on_movi_d(lambda *at: 1 - paper_number(*at)), failures=False)


@pytest.fixture(scope="module")
def alike() -> dict[int, Outcome]:
    flat = {study: dict.fromkeys(scores, lambda *_: 0.5) for study, scores in as_the_paper_says().items()}
    return by_number(check_claims(world(flat, on_movi_d(lambda *_: 0.5), failures=False), with_theory=False))


@pytest.fixture(scope="module")
def contrary() -> list[dict[int, Outcome]]:
    return [by_number(check_claims(sections, with_theory=False)) for sections in (swapped(), negated())]


def by_number(outcomes: Iterable[Outcome]) -> dict[int, Outcome]:
    return {outcome.claim.number: outcome for outcome in outcomes}


def test_there_are_thirty_claims() -> None:
    assert [claim.number for claim in claims()] == list(range(1, 31))
    assert len({claim.statement for claim in claims()}) == 30
    assert {claim.study for claim in claims()} == {*SCALES["full"], "theory"}


def test_every_stand_in_is_a_registered_experiment_or_transfer() -> None:
    known = {**studies(), **transfers()}
    for scale, stands_for in SCALES.items():
        assert set(stands_for) <= set(SCALES["full"]), scale
        assert set(stands_for.values()) <= set(known), scale


@pytest.mark.parametrize("number", range(1, 30))
def test_a_claim_agrees_where_the_world_is_as_the_paper_says(agreeing: dict[int, Outcome], number: int) -> None:
    outcome = agreeing[number]
    assert outcome.verdict == "agrees", [finding for finding in outcome.findings if not finding.holds]
    assert outcome.scale == "full"
    assert outcome.findings
    assert all(finding.numbers for finding in outcome.findings)


@pytest.mark.parametrize("number", range(1, 30))
def test_no_claim_agrees_where_nothing_differs(alike: dict[int, Outcome], number: int) -> None:
    outcome = alike[number]
    assert outcome.verdict in ("differs", "undecided")
    assert outcome.verdict == "differs" or outcome.reasons == ("within noise",)
    assert outcome.with_failed is None  # no run failed


@pytest.mark.parametrize("number", range(1, 30))
def test_a_claim_differs_where_the_world_is_otherwise(
    alike: dict[int, Outcome], contrary: list[dict[int, Outcome]], number: int
) -> None:
    assert "differs" in {outcomes[number].verdict for outcomes in (alike, *contrary)}


def test_the_theory_claim_rests_on_the_propositions_own_checks() -> None:
    (outcome,) = [outcome for outcome in check_claims([]) if outcome.claim.number == 30]
    assert (outcome.verdict, outcome.scale) == ("agrees", "exact")
    assert any("Baseline" in finding.words for finding in outcome.findings)
    assert any("Weighted Sum" in finding.words for finding in outcome.findings)
    assert any("Batch Norm" in finding.words for finding in outcome.findings)


def test_no_layer_is_trained_for_the_theory_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    def train_layer() -> None:
        raise AssertionError("a layer is trained")

    monkeypatch.setattr("slotnorm.theory.layers.train_layer", train_layer)
    theory._checks.cache_clear()  # another test may have asked before
    (outcome,) = [outcome for outcome in check_claims([]) if outcome.claim.number == 30]
    assert (outcome.verdict, outcome.section) == ("agrees", "random layers")
    assert all("trained" not in finding.numbers for finding in outcome.findings)


def test_without_runs_nothing_is_claimed() -> None:
    outcomes = check_claims([], with_theory=False)
    assert len(outcomes) == 30
    assert {outcome.verdict for outcome in outcomes} == {"not run"}
    assert counted(outcomes) == {}
    assert in_short(outcomes) == "none was run"


def test_a_number_that_a_claim_has_is_refused_for_another() -> None:
    taken = claims()[0]
    with pytest.raises(TypeError, match=f"^claim {taken.number} is taken by .*; give yours another number$"):
        claim(taken.number, "mine", "mine", sentence="mine", rule="mine")
    assert claims()[0] is taken


def test_every_claim_has_the_papers_sentence_and_a_rule() -> None:
    for described in claims():
        assert described.sentence
        assert described.rule.endswith(".")


def test_counts_are_for_each_scale(described: list[Section]) -> None:
    toy = divide(summarize(made_up("toy", slots=(2, 5, 7, 8, 11, 15), images=8)))
    counts = counted(check_claims([*described, *toy]))
    assert list(counts) == ["full", "toy", "exact"]
    assert counts["full"] == {"agrees": 29, "differs": 0, "undecided": 0, "not run": 0}
    assert sum(counts["toy"].values()) == 29
    assert counts["toy"]["not run"] == 22  # seven have runs, of which claim 6 also needs the failed-run rule
    assert in_short(check_claims(described)) == "full: 29 agree; exact: 1 agrees"


def test_failed_runs_are_left_out_as_in_the_paper_and_the_verdict_with_them_is_given_beside(
    agreeing: dict[int, Outcome],
) -> None:
    assert agreeing[2].with_failed == "agrees"
    assert agreeing[11].with_failed is None  # no run of MOVi-C failed
    failing = as_the_paper_says()
    good = failing["clevr-6-7"]["f_ari"]
    broken = {("weighted_sum", 4), ("weighted_sum", 5), ("weighted_sum", 3)}
    failing["clevr-6-7"]["f_ari"] = lambda norm, seed, k, o: good(norm, seed, k, o) - 0.5 * ((norm, seed) in broken)
    sections = world({"clevr-6-7": failing["clevr-6-7"]}, on_movi_d(paper_number), failures=True)
    runs = [dataclasses.replace(run, failed=(run.norm, run.seed) in broken) for run in sections[0].runs]
    sections = [dataclasses.replace(sections[0], runs=tuple(runs))]
    outcome = by_number(check_claims(sections, with_theory=False))[2]
    assert (outcome.verdict, outcome.with_failed) == ("agrees", "undecided")  # three of five broken runs: within noise


def test_a_claim_of_which_only_a_part_was_run_is_undecided() -> None:
    sections = world({"clevr-6-11": clevr_6_11()}, on_movi_d(paper_number), failures=True)
    outcome = by_number(check_claims(sections, with_theory=False))[7]
    assert (outcome.verdict, outcome.reasons) == ("undecided", ("only a part was run",))
    closer = outcome.findings[0]
    assert (closer.holds, closer.numbers) == (None, "no runs that stand for clevr-6-7 at this scale")


def test_a_missing_normalization_is_named() -> None:
    rows = rows_of("clevr-6-7", clevr_6_7(), ("weighted_mean", "weighted_sum"), [1])
    outcomes = by_number(check_claims(divide(summarize(rows)), with_theory=False))
    assert (outcomes[2].verdict, outcomes[2].reasons) == ("undecided", ("only a part was run",))
    assert outcomes[2].findings[0].numbers == "no run of batch_norm"
    of_another = divide(summarize(made_up("toy", ("unnormalized",), (1,), (5, 15), 4)))
    assert by_number(check_claims(of_another, with_theory=False))[2].verdict == "not run"
    assert outcomes[6].findings[0].numbers == "no run of weighted_sum was judged by the failed-run rule"


@pytest.mark.parametrize(
    ("seeds", "words"), [([1, 2], "all 2 runs of batch_norm failed"), ([1], "the one run of batch_norm failed")]
)
def test_when_all_runs_of_a_variant_failed_that_is_said(seeds: list[int], words: str) -> None:
    rows = rows_of("clevr-6-7", clevr_6_7(), MAIN, seeds)
    runs = [dataclasses.replace(run, failed=run.norm == "batch_norm") for run in summarize(rows)]
    outcome = by_number(check_claims(divide(runs), with_theory=False))[2]
    assert outcome.findings[0].numbers == words
    assert (outcome.verdict, outcome.reasons) == ("undecided", ("all runs failed",))
    assert outcome.with_failed == ("agrees" if len(seeds) > 1 else "undecided")


def test_when_all_runs_of_a_part_of_a_transfer_failed_nothing_takes_its_place(described: list[Section]) -> None:
    sections = []
    for section in described:
        failed = section.study == "movi-6-7"
        runs = tuple(dataclasses.replace(run, failed=failed) for run in section.runs)
        sections.append(dataclasses.replace(section, runs=runs))
    outcomes = by_number(check_claims(sections, with_theory=False))
    for number in (20, 21, 22):
        assert (outcomes[number].verdict, outcomes[number].with_failed) == ("undecided", "agrees")
        assert outcomes[number].reasons == ("all runs failed",)


def test_one_seed_decides_no_comparison() -> None:
    rows = rows_of("clevr-6-7", clevr_6_7(), MAIN, [2])
    outcomes = by_number(check_claims(divide(summarize(rows)), with_theory=False))
    for number in (1, 2, 3, 4, 5, 23):
        assert (outcomes[number].verdict, outcomes[number].reasons) == ("undecided", ("too few seeds",))


def test_two_seeds_do_not_show_how_much_seeds_differ() -> None:
    rows = rows_of("clevr-6-7", clevr_6_7(), MAIN, [1, 3])
    finding = by_number(check_claims(divide(summarize(rows)), with_theory=False))[5].findings[1]
    assert (finding.holds, finding.reason) == (None, "too few seeds")


@pytest.mark.parametrize(
    ("seeds", "failed", "holds"),
    [([1], False, (None, None)), ([1], True, (True, None)), ([1, 2], False, (None, None)),
     (range(5), False, (False, True)), (range(5), True, (True, True))],
)  # fmt: skip
def test_one_failed_run_is_an_example_and_none_takes_as_many_as_the_papers(
    seeds: Iterable[int], failed: bool, holds: tuple[bool | None, bool | None]
) -> None:
    rows = rows_of("clevr-6-7", clevr_6_7(), MAIN, seeds)
    runs = [dataclasses.replace(run, failed=failed and run.norm in PROPOSED) for run in summarize(rows)]
    outcome = by_number(check_claims(divide(runs), with_theory=False))[6]
    assert tuple(finding.holds for finding in outcome.findings) == holds


def test_small_studies_stand_for_the_papers_and_say_so() -> None:
    rows = made_up("toy", slots=(2, 5, 7, 8, 11, 15, 20), images=60)
    outcomes = check_claims(divide(summarize(rows)), with_theory=False)
    by_number = {outcome.claim.number: outcome for outcome in outcomes if outcome.scale}
    assert {outcome.scale for outcome in by_number.values()} == {"toy"}
    assert set(by_number) == {1, 2, 3, 4, 5, 6, 23}
    first = by_number[1].findings[0]
    assert first.holds
    assert "toy4, lost from K 7 to 20: Baseline" in first.numbers
    assert "toy10, lost from K 11 to 20" in first.numbers  # fewer are not enough for 10 objects and a background


def test_claims_are_read_on_scenes_as_the_papers_and_not_on_those_beyond_it() -> None:
    rows = made_up("small-6-7", slots=(7, 9, 11, 17, 21, 24), images=40)
    (section,) = divide(summarize(rows))
    assert section.sets[-1] == "small16-shrunk"
    outcomes = {outcome.claim.number: outcome for outcome in check_claims([section], with_theory=False)}
    assert "small10, lost from K 11 to 24: Baseline" in outcomes[1].findings[0].numbers
    assert "small10, K 11: Weighted Sum − Baseline" in outcomes[2].findings[0].numbers
    assert outcomes[3].findings[0].numbers.startswith("K 11: ")
    assert not [finding for outcome in outcomes.values() for finding in outcome.findings if "shrunk" in finding.numbers]


def test_the_page_of_claims_has_every_claim_its_sentence_its_numbers_the_words_and_the_stand_ins(
    agreeing: dict[int, Outcome],
) -> None:
    page = claims_page([agreeing[number] for number in sorted(agreeing)])
    assert page.count("**agrees**") == 29
    assert f"by more than {NOTICEABLE}" in page
    assert f"by more than {LARGE}" in page
    assert f"in at least {GENERALLY:.0%} of the cases" in page
    assert "| clevr-6-7 | clevr-6-7 | clevr-mini-6-7 | small-6-7 | toy |" in page
    assert "batch norm has the best F-ARI in each section" in page
    assert "The paper: “both of our proposed normalizations outperform the baseline when" in page
    assert "Read as: At 11 slots (the most objects plus one)" in page
    assert "Batch Norm − Baseline +0.068" in page
    assert "claims.md" not in page  # it does not link to itself


def test_verdicts() -> None:
    def of(*holds: bool | None, reason: Any = "within noise") -> str:
        return verdict([Finding("", truth, "", reason if truth is None else "") for truth in holds])

    assert of(True, True) == "agrees"
    assert of(True, None) == of(None, None) == "undecided"
    assert of(True, None, reason="not run") == "undecided"
    assert of(True, False, None) == "differs"
    assert of(None, reason="not run") == of() == "not run"
    assert verdict([Finding("", None, "", "not run")], partly=True) == "undecided"


def estimate(value: float, noise: float = 0.01, runs: int = 3) -> Estimate:
    return Estimate(value, value + noise * np.linspace(-1, 1, RESAMPLES), runs, True)


@pytest.mark.parametrize(
    ("value", "runs", "holds", "reason"),
    [(0.02, 3, True, ""), (-0.02, 3, False, ""), (0.005, 3, None, "within noise"), (0.02, 1, None, "too few seeds")],
)
def test_a_comparison_is_decided_only_beyond_its_noise(value: float, runs: int, holds: Any, reason: str) -> None:
    decision = exceeds(estimate(value, runs=runs), "")
    assert (decision.holds, decision.reason) == (holds, reason)


@pytest.mark.parametrize(("value", "holds"), [(0.0, True), (0.005, True), (0.015, None), (-0.04, False), (0.04, False)])
def test_what_is_alike_is_so_with_all_its_noise(value: float, holds: bool | None) -> None:
    assert within(estimate(value), "", 0.02).holds is holds


def test_generally_is_a_share_and_open_cases_may_tip_it() -> None:
    def cases(held: int, against: int, open_ones: int) -> bool | None:
        some = [Decision(True, "")] * held + [Decision(False, "")] * against
        return generally([*some, *[Decision(None, "", "within noise")] * open_ones], "cases").holds

    assert GENERALLY == 0.75
    assert cases(75, 25, 0) is True
    assert cases(74, 26, 0) is False
    assert cases(74, 20, 6) is None
    assert cases(0, 26, 74) is False


def test_all_of_several_needs_each() -> None:
    yes, no, maybe = Decision(True, "a"), Decision(False, "b"), Decision(None, "c", "too few seeds")
    assert every([yes, yes]) == Decision(True, "a, a")
    assert every([yes, maybe, no]).holds is False
    assert every([yes, maybe]) == Decision(None, "a, c", "too few seeds")


def test_a_loss_is_compared_as_a_share_and_a_score_as_a_difference() -> None:
    assert loss(estimate(0.9, 0), estimate(0.8, 0), "f_ari").value == pytest.approx(0.1)
    assert loss(estimate(0.002, 0), estimate(0.001, 0), "l2").value == pytest.approx(1.0)
    assert loss(estimate(0.001, 0), estimate(0.002, 0), "l2").value == pytest.approx(-1.0)


def test_excess_slots_begin_at_the_training_number_and_at_the_objects_plus_one() -> None:
    section = divide(summarize(rows_of("clevr-6-7", clevr_6_7(), MAIN, [1])))[0]
    assert StudyScores(section, {}).excess("f_ari", "clevr6", MAIN) == [7, 9, 10, 11, 15, 24]
    assert StudyScores(section, {}).excess("f_ari", "clevr6", MAIN, beyond=2) == [9, 10, 11, 15, 24]
    assert StudyScores(section, {}).excess("f_ari", "clevr10", MAIN) == [11, 15, 24]


def test_excess_slots_need_two_numbers_of_them() -> None:
    rows = rows_of("clevr-6-7", clevr_6_7(), MAIN, [1])
    section = divide(summarize(rows.where(slots=(3, 7))))[0]
    with pytest.raises(Undecided, match="clevr6 was not evaluated with two numbers of slots from 7 on"):
        StudyScores(section, {}).excess("f_ari", "clevr6", MAIN)


def ablation(unnormalized: Score, precision: float) -> Outcome:
    """Claim 28 where the unnormalized variant scores so, and every variant's average precision is this."""
    scores = properties()
    good = scores["f_ari"]
    scores = dict.fromkeys(scores, lambda *_: precision)
    scores["f_ari"] = lambda norm, *at: unnormalized(norm, *at) if norm == "unnormalized" else good(norm, *at)
    sections = world({"properties": scores, "ablation": scores}, on_movi_d(paper_number), failures=False)
    return by_number(check_claims(sections, with_theory=False))[28]


def test_few_slots_do_not_count_against_the_unnormalized_variant() -> None:
    """With 3 slots for 10 objects it may score as high as the others; it is low from 11 on."""
    outcome = ablation(lambda norm, seed, k, o: 0.1 if k > 10 else 0.9, 0.0)
    assert outcome.findings[0].holds is True
    assert ablation(lambda norm, seed, k, o: 0.1 if k < 15 else 0.9, 0.0).findings[0].holds is False


def test_an_average_precision_that_nobody_has_decides_nothing() -> None:
    outcome = ablation(lambda *_: 0.1, 0.0)
    assert (outcome.findings[1].holds, outcome.findings[1].reason) == (None, "shows nothing")
    assert (outcome.verdict, outcome.reasons) == ("undecided", ("shows nothing",))


@pytest.mark.parametrize("residue", [1e-16, -1e-16])
def test_what_rounding_leaves_decides_nothing(residue: float) -> None:
    decision = exceeds(Estimate(residue, np.full(RESAMPLES, residue), runs=3, scenes=True), "")
    assert decision.holds is None
    assert decision.reason == "within noise"
