"""The sentence that opens the page: it says what the numbers show, and no more."""

import dataclasses

import pytest

from made_up_page import made_up_report
from slotnorm.report.effects import Change
from slotnorm.report.page import finding
from slotnorm.report.page.finding import find, leading, over_studies
from slotnorm.report.page.words import counted, listed, study_in_words
from slotnorm.report.resampling import Interval
from slotnorm.report.scores import Spread

pytestmark = pytest.mark.usefixtures("few_resamples")


def changed(report, changes: dict[str, tuple[float, float, float]], metric: str = "f_ari", **facts):
    """The report with other changes of a metric: median and interval of each normalization, and no other."""
    effects = []
    for effect in report.effects:
        if effect.metric == metric:
            kept = [change for change in effect.changes if change.norm in changes]
            changes_made = tuple(_with(change, *changes[change.norm], **facts) for change in kept)
            effects.append(dataclasses.replace(effect, changes=changes_made))
        else:
            effects.append(effect)
    return dataclasses.replace(report, effects=tuple(effects))


def _with(change: Change, median: float, low: float, high: float, **facts) -> Change:
    return dataclasses.replace(change, median=median, interval=Interval(low, high), **facts)


@pytest.fixture(scope="module")
def report():
    return made_up_report(failed=(), scenes=2)


CASES = [
    (
        {"weighted_mean": (-0.26, -0.3, -0.2), "batch_norm": (-0.01, -0.02, -0.005)},
        "With 15 slots instead of 5, the baseline loses 0.26 of its F-ARI and batch norm 0.01.",
    ),
    (
        {"weighted_mean": (-0.26, -0.3, -0.2), "weighted_sum": (0.0, -0.1, 0.1), "batch_norm": (-0.03, -0.1, 0.01)},
        "With 15 slots instead of 5, the baseline loses 0.26 of its F-ARI, while weighted sum and batch norm keep it.",
    ),
    (
        {"weighted_mean": (0.002, 0.001, 0.003), "batch_norm": (0.05, 0.02, 0.07)},
        "With 15 slots instead of 5, batch norm gains 0.05 F-ARI, while the baseline keeps it.",
    ),
    (
        {"weighted_mean": (-0.1, -0.2, -0.05), "weighted_sum": (0.1, 0.05, 0.2), "batch_norm": (0.0, 0.0, 0.0)},
        "With 15 slots instead of 5, the baseline loses 0.10 of its F-ARI, weighted sum gains 0.10, while batch norm "
        "keeps it.",
    ),
    (
        {"weighted_mean": (0.0, -0.1, 0.1), "batch_norm": (0.0, -0.1, 0.1)},
        "With 15 slots instead of 5, the baseline and batch norm keep their F-ARI.",
    ),
    (
        {"layer_norm": (-0.1, -0.2, -0.05)},
        "With 15 slots instead of 5, Layer Norm loses 0.10 of its F-ARI.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), CASES)
def test_the_finding_follows_the_numbers(report, changes, sentence):
    assert find(changed(report, changes)).sentence == sentence


def test_a_change_that_may_be_noise_is_not_called_one(report):
    sure = find(changed(report, {"weighted_mean": (-0.05, -0.08, -0.02), "batch_norm": (0.0, -0.1, 0.1)}))
    unsure = find(changed(report, {"weighted_mean": (-0.05, -0.12, 0.02), "batch_norm": (0.0, -0.1, 0.1)}))
    assert "the baseline loses 0.05" in sure.sentence
    assert "loses" not in unsure.sentence


def test_who_finds_no_objects_has_nothing_to_keep(report):
    still = {"weighted_mean": (-0.2, -0.3, -0.1), "batch_norm": (0.0, -0.01, 0.01)}
    low = changed(report, still)
    effects = tuple(
        dataclasses.replace(effect, changes=tuple(
            dataclasses.replace(change, before=0.01) if change.norm == "batch_norm" else change
            for change in effect.changes
        ))
        for effect in low.effects
    )  # fmt: skip
    some = dataclasses.replace(low, effects=effects)
    words = "the baseline loses 0.20 of its F-ARI, while batch norm has next to none to lose."
    assert find(some).sentence == f"With 15 slots instead of 5, {words}"
    alone = changed(some, {"batch_norm": (0.0, -0.01, 0.01)})
    assert find(alone).sentence == "With 15 slots instead of 5, batch norm has next to no F-ARI to lose."


def test_it_says_what_it_rests_on(report):
    hedges = find(report).hedges
    assert hedges[0].startswith(
        "Slot Attention takes a scene apart into slots, at best one for each object. F-ARI says"
    )
    assert hedges[0].endswith(
        "The baseline is the usual Slot Attention; the others differ from it in one line, a normalization."
    )
    assert not any("baseline" in hedge for hedge in find(made_up_report(norms=("batch_norm",), scenes=1)).hedges)
    assert hedges[1] == "From 3 runs of each normalization on scenes with 2 to 4 objects, as in training."
    assert hedges[2].startswith(
        "95 % intervals over scenes and runs, rough with so few runs: the baseline +0.05 to +0.07,"
    )


def test_an_interval_shows_on_which_side_of_zero_it_lies(report):
    some = changed(report, {"weighted_mean": (-0.04, -0.063, -0.003), "batch_norm": (-0.01, -0.063, 0.003)})
    assert find(some).sentence.endswith("the baseline loses 0.04 of its F-ARI, while batch norm keeps it.")
    assert any("the baseline −0.063 to −0.003 and batch norm −0.06 to 0.00." in hedge for hedge in find(some).hedges)


def test_one_run_each_says_so():
    report = made_up_report(failed=(), scenes=1, seeds=(1,))
    hedges = find(report).hedges
    assert hedges[1].startswith("From one run of each normalization")
    assert "over scenes alone: another training of the same model may come out differently" in hedges[2]


def test_ari_speaks_where_it_tells_another_story(report):
    quiet = changed(report, dict.fromkeys(("weighted_mean", "batch_norm"), (-0.01, -0.02, 0.0)), "ari")
    assert not any("ARI, which counts" in hedge for hedge in find(quiet).hedges)
    changes = {"weighted_mean": (0.004, -0.1, 0.1), "batch_norm": (-0.55, -0.6, -0.5)}
    words = "ARI, which counts the background too, tells another story: −0.55 for batch norm and 0.00 for the baseline."
    assert find(changed(report, changes, "ari")).hedges[-1] == words


def test_ari_that_falls_where_f_ari_does_is_the_same_story(report):
    falling = {"weighted_mean": (-0.2, -0.25, -0.15), "batch_norm": (0.01, -0.02, 0.03)}
    both = changed(changed(report, falling, "f_ari"), falling, "ari")
    words = "ARI, which counts the background too, changes by −0.20 for the baseline and +0.01 for batch norm."
    assert find(both).hedges[-1] == words


def test_failed_runs_are_told_with_what_is_left_without_them():
    (hedge,) = [hedge for hedge in find(made_up_report(scenes=1)).hedges if "failed" in hedge]
    assert "; 1 of these runs failed to follow objects and counts here. Without it the baseline gains 0.06" in hedge
    report = made_up_report(scenes=1)
    same = tuple(dataclasses.replace(effect, changes=report.effects[0].changes) for effect in report.effects)
    (hedge,) = [hedge for hedge in find(dataclasses.replace(report, effects=same)).hedges if "failed" in hedge]
    assert hedge.endswith("and counts here; the sentence is the same without it.")
    norms = ("weighted_mean", "batch_norm")
    every_run = tuple((norm, seed) for norm in norms for seed in (1, 2, 3))
    report = made_up_report(failed=every_run, norms=norms, scenes=1)
    assert any("6 of these runs failed" in hedge and "None is left" in hedge for hedge in find(report).hedges)


def test_with_several_studies_the_sentence_says_of_which_it_is(report):
    other = dataclasses.replace(report.sections[0], section=dataclasses.replace(report.sections[0].section, title="b"))
    several = dataclasses.replace(report, sections=(*report.sections, other))
    assert find(several).hedges[1].startswith("From 3 runs of each normalization of the study toy on scenes with")


def test_the_study_with_pictures_and_more_slots_leads(report):
    bare = dataclasses.replace(
        report.sections[0], illustration=None, section=dataclasses.replace(report.sections[0].section, title="bare")
    )
    assert leading(dataclasses.replace(report, sections=(bare, report.sections[0]))) is report.sections[0]
    assert leading(dataclasses.replace(report, sections=(bare,))) is bare
    assert leading(dataclasses.replace(report, sections=())) is None


def test_over_all_studies_it_is_counted_where_the_proposed_keep_more(report):
    assert over_studies(report).startswith(
        "Taken together, Weighted Sum and Batch Norm keep 0.07 more of their F-ARI than Baseline and Layer Norm "
        "(95 % interval +0.0"
    )
    twice = dataclasses.replace(report, effects=(*report.effects, *report.effects))
    assert "in 2 of 2 studies, beyond the noise of scenes and runs, and less in 0." in over_studies(twice)
    noise = dataclasses.replace(report, effects=tuple(_noisy(effect) for effect in report.effects))
    assert "by no more than can be noise (95 % interval −1.00 to +1.00" in over_studies(noise)
    assert over_studies(dataclasses.replace(report, effects=())) == ""
    lone = tuple(
        dataclasses.replace(
            effect, differences=tuple(dataclasses.replace(pair, over="scenes") for pair in effect.differences)
        )
        for effect in report.effects
    )
    mixed = over_studies(dataclasses.replace(report, effects=(*twice.effects, *lone)))
    assert "in 2 of 2 studies, beyond the noise of scenes and runs, and less in 0; they keep more" in mixed
    assert mixed.endswith("in 1 of 1 study with one run each, beyond the noise of scenes alone, and less in 0.")


def test_who_had_less_to_lose_is_named(report, monkeypatch):
    assert not any("to lose" in hedge for hedge in find(report).hedges)
    low = {"batch_norm": 0.6}
    monkeypatch.setattr(
        finding, "at_slots", lambda section, norm, *place: Spread(low.get(norm, 0.82), 0.0, 0.0, 0.0, 1)
    )
    hedge = "Not all had as much to lose: with 5 slots batch norm 0.60, but the baseline 0.82 and weighted sum 0.82."
    assert hedge in find(report).hedges


def _noisy(effect):
    pairs = tuple(dataclasses.replace(pair, interval=Interval(-1, 1)) for pair in effect.differences)
    return dataclasses.replace(effect, differences=pairs)


def test_words_are_listed_and_counted_as_people_do():
    assert [listed(list("abc"[:n])) for n in (0, 1, 2, 3)] == ["", "a", "a and b", "a, b and c"]
    assert [counted(n, "study") for n in (0, 1, 2)] == ["0 studies", "1 study", "2 studies"]
    assert counted(1234, "run") == "1,234 runs"


def test_pictures_of_other_scenes_than_the_sentence_are_named(report):
    (contents,) = report.sections
    sentence = "The pictures are of scenes with 5 to 7 objects, more than in training."
    for dataset, is_told in (("toy7", True), ("toy4", False)):
        illustration = dataclasses.replace(contents.illustration, dataset=dataset)
        pictured = dataclasses.replace(contents, illustration=illustration)
        assert (sentence in find(dataclasses.replace(report, sections=(pictured,))).hedges) is is_told


def test_a_study_says_three_settings_that_are_not_its_own_and_how_many_more():
    (contents,) = made_up_report().sections
    changes = ("steps 2 instead of 6", "size 64 instead of 32", "strides [2, 2] instead of [2, 1]")

    def words(*several: str) -> str:
        return study_in_words(dataclasses.replace(contents.section, changes=several))

    assert "settings" not in words()
    assert words(*changes[:1]).endswith(" Trained with other settings than this study has now: steps 2 instead of 6.")
    assert words(*changes).endswith(f": {'; '.join(changes)}.")
    assert words(*changes, "a 1 instead of 2", "b 1 instead of 2").endswith(
        f": {'; '.join(changes)}; and 2 more, which report.md lists."
    )
