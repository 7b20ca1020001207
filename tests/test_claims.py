"""The paper's thirty claims: all agree in a world as it describes, and none in a world without differences."""

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from made_up_rows import made_up
from slotnorm.evaluation.rows import Rows
from slotnorm.experiments import ABLATED, MAIN, studies, transfers
from slotnorm.report.claims.checking import SCALES, Outcome, check_claims, claims, counted, verdict
from slotnorm.report.claims.vocabulary import LARGE, NOTICEABLE, Evidence, NotRun, fall
from slotnorm.report.paper_numbers import printed
from slotnorm.report.prose import claims_page
from slotnorm.report.scores import RunScores, summarize
from slotnorm.report.sections import Section, divide

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
        level = pick(norm, 4.0, 3.0, 4.2, 4.5) + pick(norm, 0.3, 0.2, 0.2, 0.1) * (o - 3)
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
            for metric in ("f_ari", "l2", "ari"):
                parts.append(Rows(
                    run=f"{study}-{norm}-1", norm=norm, seed=1, train_objects=experiment.max_objects,
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


@pytest.fixture(scope="module")
def differing() -> dict[int, Outcome]:
    flat = {study: dict.fromkeys(scores, lambda *_: 0.5) for study, scores in as_the_paper_says().items()}
    return by_number(check_claims(world(flat, on_movi_d(lambda *_: 0.5), failures=False), with_theory=False))


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
    assert outcome.verdict == "agrees", [one for one in outcome.findings if not one.holds]
    assert outcome.scale == "full"
    assert outcome.findings
    assert all(finding.numbers for finding in outcome.findings)


@pytest.mark.parametrize("number", range(1, 30))
def test_a_claim_differs_where_nothing_differs(differing: dict[int, Outcome], number: int) -> None:
    outcome = differing[number]
    assert outcome.verdict == "differs"
    assert outcome.with_failed is None  # no run failed


def test_the_theory_claim_rests_on_the_propositions_own_checks() -> None:
    (outcome,) = [one for one in check_claims([]) if one.claim.number == 30]
    assert (outcome.verdict, outcome.scale) == ("agrees", "exact")
    assert any("Baseline" in finding.words for finding in outcome.findings)
    assert any("Weighted Sum" in finding.words for finding in outcome.findings)
    assert any("Batch Norm" in finding.words for finding in outcome.findings)


def test_without_runs_nothing_is_claimed() -> None:
    outcomes = check_claims([], with_theory=False)
    assert len(outcomes) == 30
    assert {outcome.verdict for outcome in outcomes} == {"not run"}
    assert counted(outcomes)["not run"] == 30


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
    assert (outcome.verdict, outcome.with_failed) == ("agrees", "differs")


def test_a_part_that_was_not_run_decides_nothing() -> None:
    sections = world({"clevr-6-11": clevr_6_11()}, on_movi_d(paper_number), failures=True)
    outcome = by_number(check_claims(sections, with_theory=False))[7]
    assert outcome.verdict == "agrees as far as run"
    closer = outcome.findings[0]
    assert (closer.holds, closer.numbers) == (None, "no runs that stand for clevr-6-7 at this scale")


def test_a_missing_normalization_is_named() -> None:
    rows = rows_of("clevr-6-7", clevr_6_7(), ("weighted_mean", "weighted_sum"), [1])
    outcomes = by_number(check_claims(divide(summarize(rows)), with_theory=False))
    assert outcomes[2].verdict == "not run"
    assert outcomes[2].findings[0].numbers == "no run of batch_norm"
    assert outcomes[6].findings[0].numbers == "no run of weighted_sum was judged by the failed-run rule"


def test_when_all_runs_of_a_variant_failed_that_is_said() -> None:
    rows = rows_of("clevr-6-7", clevr_6_7(), MAIN, [1, 2])
    runs = [dataclasses.replace(run, failed=run.norm == "batch_norm") for run in summarize(rows)]
    outcome = by_number(check_claims(divide(runs), with_theory=False))[2]
    assert outcome.findings[0].numbers == "all 2 runs of batch_norm failed"
    assert (outcome.verdict, outcome.with_failed) == ("not run", "agrees")


def test_when_all_runs_of_a_part_of_a_transfer_failed_nothing_takes_its_place(described: list[Section]) -> None:
    sections = []
    for section in described:
        failed = section.study == "movi-6-7"
        runs = tuple(dataclasses.replace(run, failed=failed) for run in section.runs)
        sections.append(dataclasses.replace(section, runs=runs))
    outcomes = by_number(check_claims(sections, with_theory=False))
    for number in (20, 21, 22):
        assert (outcomes[number].verdict, outcomes[number].with_failed) == ("not run", "agrees")


def test_one_seed_cannot_show_a_spread() -> None:
    rows = rows_of("clevr-6-7", clevr_6_7(), MAIN, [2])
    outcome = by_number(check_claims(divide(summarize(rows)), with_theory=False))[5]
    assert outcome.verdict == "agrees as far as run"
    assert outcome.findings[1].numbers == "a spread needs two runs of a normalization"


@pytest.mark.parametrize(("seeds", "failed", "holds"), [([1], False, None), ([1], True, True), ([1, 2], False, False)])
def test_one_seed_that_binds_cannot_show_that_none_fails(seeds: list[int], failed: bool, holds: bool | None) -> None:
    rows = rows_of("clevr-6-7", clevr_6_7(), MAIN, seeds)
    runs = [dataclasses.replace(run, failed=failed and run.norm in PROPOSED) for run in summarize(rows)]
    outcome = by_number(check_claims(divide(runs), with_theory=False))[6]
    assert outcome.findings[0].holds is holds
    assert outcome.findings[1].holds is True


def test_small_studies_stand_for_the_papers_and_say_so() -> None:
    rows = made_up("toy", slots=(2, 5, 7, 8, 15), images=60)
    outcomes = check_claims(divide(summarize(rows)), with_theory=False)
    found = {outcome.claim.number: outcome for outcome in outcomes if outcome.scale}
    assert {outcome.scale for outcome in found.values()} == {"toy"}
    assert set(found) == {1, 2, 3, 4, 5, 6, 23}
    first = found[1].findings[0]
    assert first.holds
    assert "toy4, K 7 → 15: Baseline" in first.numbers


def test_the_page_of_claims_has_every_claim_its_numbers_the_thresholds_and_the_stand_ins(
    agreeing: dict[int, Outcome],
) -> None:
    page = claims_page([agreeing[number] for number in sorted(agreeing)])
    assert page.count("**agrees**") == 29
    assert f"by more than {NOTICEABLE}" in page
    assert f"by more than {LARGE}" in page
    assert "| clevr-6-7 | clevr-6-7 | clevr-mini-6-7 | small-6-7 | toy |" in page
    assert "batch norm has the best F-ARI in each section" in page
    assert "Batch Norm 0.809" in page


def test_verdicts() -> None:
    def outcome(*holds: bool | None) -> str:
        from slotnorm.report.claims.checking import Finding

        return verdict([Finding("", one, "") for one in holds])

    assert outcome(True, True) == "agrees"
    assert outcome(True, None) == "agrees as far as run"
    assert outcome(True, False, None) == "differs"
    assert outcome(None) == outcome() == "not run"


def test_a_loss_is_compared_as_a_share_and_a_score_as_a_difference() -> None:
    assert fall(0.9, 0.8, "f_ari") == pytest.approx(0.1)
    assert fall(0.002, 0.001, "l2") == pytest.approx(1.0)
    assert fall(0.001, 0.002, "l2") == pytest.approx(-1.0)


def test_evidence_needs_more_slots_than_in_training_to_speak_of_excess(described: list[Section]) -> None:
    rows = rows_of("clevr-6-7", clevr_6_7(), MAIN, [1])
    section = divide(summarize(rows.where(slots=(3, 7))))[0]
    with pytest.raises(NotRun, match="clevr6 was not evaluated with more than 7 slots"):
        Evidence(section, {}).excess("f_ari", "clevr6", MAIN)
