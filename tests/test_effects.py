"""The change from the training K to three times it: numbers against plain computations, and what is said of them."""

import csv
import io
import itertools
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import pytest

from made_up_rows import SHAPES, made_up
from slotnorm.evaluation.rows import Rows
from slotnorm.report import resampling
from slotnorm.report.appearance import signed
from slotnorm.report.drawing import fonts, forest_figure
from slotnorm.report.drawing.choice import Choice
from slotnorm.report.drawing.forest_figure import draw_forest, forests
from slotnorm.report.drawing.sheet import Block, Words
from slotnorm.report.drawing.style import STYLES
from slotnorm.report.effects import ALL, PROPOSED_LESS_OTHERS, WITHOUT_FAILED, Effect, effects, to_csv, to_markdown
from slotnorm.report.scores import summarize
from slotnorm.report.sections import Section

SLOTS = (7, 14, 21)


def section_of(rows: Rows, failed: tuple[str, ...] = ()) -> Section:
    runs = tuple(replace(run, failed=run.name in failed) for run in summarize(rows))
    return Section("clevr-6-7", "clevr-6-7", runs, sets=tuple(sorted(rows.unique("dataset"), key=len)))


@pytest.fixture(scope="module")
def rows() -> Rows:
    return made_up(slots=SLOTS, images=30)


@pytest.fixture(scope="module")
def measured(rows: Rows) -> tuple[Effect, ...]:
    return effects([section_of(rows)])


def of(measured: tuple[Effect, ...], dataset: str = "clevr6", metric: str = "f_ari", which: str = ALL) -> Effect:
    (effect,) = (
        effect for effect in measured if (effect.dataset, effect.metric, effect.which) == (dataset, metric, which)
    )
    return effect


def test_a_change_is_the_median_of_the_runs_differences_of_means(rows: Rows, measured: tuple[Effect, ...]) -> None:
    effect = of(measured)
    assert effect.slots == (7, 21)
    change = effect.change("layer_norm")
    assert change is not None
    own = {}
    for (run,), part in rows.where(norm="layer_norm", dataset="clevr6", metric="f_ari").groups("run"):
        own[run] = part.where(slots=21)["value"].mean() - part.where(slots=7)["value"].mean()
    assert change.runs == pytest.approx(own)
    assert change.median == pytest.approx(median(own.values()))
    assert change.difference_of_medians == change.after - change.before


def test_a_median_of_differences_and_a_difference_of_medians_are_told_apart() -> None:
    values = {1: (0.9, 0.5), 2: (0.5, 0.45), 3: (0.6, 0.57)}  # differences -0.4, -0.05, -0.03; medians 0.6 and 0.5
    rows = Rows.concat(
        Rows(run=f"clevr-6-7-layer_norm-{seed}", norm="layer_norm", train_objects=6, train_slots=7, seed=seed,
             dataset="clevr6", protocol="paper", image=np.arange(4), objects=3, slots=k, iterations=5, source="masks",
             metric="f_ari", value=np.full(4, value))
        for seed, pair in values.items() for k, value in zip((7, 21), pair, strict=True)
    )  # fmt: skip
    change = of(effects([section_of(rows)])).change("layer_norm")
    assert change is not None
    assert change.median == pytest.approx(-0.05)
    assert change.difference_of_medians == pytest.approx(-0.1)
    lower = [line for line in to_csv(effects([section_of(rows)])).splitlines() if "median of changes" in line]
    assert ",layer_norm,,-0.05000," in lower[0]
    assert "0.60000,0.50000,-0.10000,-0.40000 -0.05000 -0.03000" in lower[0]


def test_intervals_are_those_of_a_plain_bootstrap(rows: Rows, measured: tuple[Effect, ...]) -> None:
    """The same statistic, resample by resample in a loop with other draws, gives the same interval within noise."""
    random, scored = np.random.default_rng(3), {}
    for norm in ("weighted_mean", "batch_norm"):
        part = rows.where(norm=norm, dataset="clevr10", metric="f_ari")
        scored[norm] = [
            some.where(slots=21)["value"] - some.where(slots=7)["value"] for (_,), some in part.groups("run")
        ]
    draws = []
    for _ in range(4000):
        scenes, medians = random.integers(30, size=30), {}
        for norm, runs in scored.items():
            medians[norm] = median(runs[run][scenes].mean() for run in random.integers(3, size=3))
        draws.append(medians["batch_norm"] - medians["weighted_mean"])
    plain = np.percentile(draws, [2.5, 97.5])
    (pair,) = (
        difference
        for difference in of(measured, "clevr10").differences
        if (difference.norm, difference.than) == ("batch_norm", "weighted_mean")
    )
    assert pair.interval is not None
    assert np.allclose(pair.interval, plain, atol=0.002)
    assert pair.interval.excludes(0)
    assert pair.interval.low < pair.value < pair.interval.high


def test_normalizations_are_compared_on_the_same_scenes() -> None:
    """Scenes that are hard for both make each one's change unsure, but not the difference of the two."""
    hard = np.linspace(0, 0.5, 40)
    rows = Rows.concat(
        Rows(run=f"clevr-6-7-{norm}-1", norm=norm, train_objects=6, train_slots=7, seed=1, dataset="clevr6",
             protocol="paper", image=np.arange(40), objects=3, slots=k, iterations=5, source="masks", metric="f_ari",
             value=0.9 - (hard + lost if k == 21 else 0))
        for norm, lost in (("weighted_mean", 0.1), ("batch_norm", 0.05)) for k in (7, 21)
    )  # fmt: skip
    effect = of(effects([section_of(rows)]))
    (pair,) = effect.differences
    change = effect.change("batch_norm")
    assert change is not None
    assert change.interval is not None
    assert pair.interval is not None
    assert change.interval.high - change.interval.low > 0.05
    assert pair.interval.high - pair.interval.low < 1e-9
    assert pair.value == pytest.approx(0.05)


def test_one_run_is_over_scenes_only_and_three_are_rough() -> None:
    norms = ("weighted_mean", "batch_norm")
    for seeds, over, hedge in (((1,), "scenes", "scenes only"), ((1, 2, 3), "scenes and runs", "rough")):
        measured = effects([section_of(made_up(norms=norms, seeds=seeds, slots=SLOTS, images=8))])
        change = of(measured).change("batch_norm")
        assert change is not None
        assert (change.over, change.rough) == (over, True)
        for words in (f"| Batch Norm | {len(seeds)} ({hedge}) |", f"| Batch Norm − Baseline ({hedge}) |"):
            assert words in to_markdown(measured)
        (*_, differences) = forests(measured)
        assert [row.label for row in differences.groups[0].rows] == [f"Batch Norm − Baseline ({hedge})"]
    five = of(effects([section_of(made_up(norms=("batch_norm",), seeds=range(5), slots=SLOTS, images=8))]))
    assert not five.changes[0].rough


def test_a_metric_of_a_whole_set_has_an_interval_over_runs_and_none_of_one_run(rows: Rows) -> None:
    def precision(seeds: tuple[int, ...]) -> Effect:
        several = Rows.concat(
            Rows(run=f"clevr-6-7-batch_norm-{seed}", norm="batch_norm", train_objects=6, train_slots=7, seed=seed,
                 dataset="clevr6", protocol="paper", slots=k, iterations=5, source="masks", metric="ap@inf",
                 value=np.array([0.5 + 0.01 * seed * (k == 21)]))
            for seed in seeds for k in (7, 21)
        )  # fmt: skip
        return of(effects([section_of(several)]), metric="ap@inf")

    alone, several = precision((1,)).changes[0], precision((1, 2, 3)).changes[0]
    assert (alone.interval, alone.over) == (None, "")
    assert several.over == "runs"
    assert several.interval == pytest.approx((0.01, 0.03))


def test_failed_runs_count_and_are_left_out_beside_it(rows: Rows) -> None:
    failed = ("clevr-6-7-weighted_mean-1", "clevr-6-7-weighted_mean-2", "clevr-6-7-weighted_mean-3")
    measured = effects([section_of(rows, failed)])
    assert of(measured).change("weighted_mean") is not None
    kept = of(measured, which=WITHOUT_FAILED)
    assert kept.change("weighted_mean") is None
    assert {pair.than for pair in kept.differences} == {"layer_norm"}
    with pytest.raises(ValueError, match="f_ari of all and of without failed runs"):
        to_markdown(measured)  # one would take the other's place


def test_the_groups_are_compared_where_all_four_were_run(measured: tuple[Effect, ...]) -> None:
    effect = of(measured)
    changes = {change.norm: change.median for change in effect.changes}
    pair = effect.differences[-1]
    assert (pair.norm, pair.than) == PROPOSED_LESS_OTHERS
    proposed, others = (
        (changes["weighted_sum"] + changes["batch_norm"]) / 2,
        (changes["weighted_mean"] + changes["layer_norm"]) / 2,
    )
    assert pair.value == pytest.approx(proposed - others)


def test_without_more_slots_than_in_training_there_is_no_effect() -> None:
    assert effects([section_of(made_up(slots=(5, 7), images=4))]) == ()


def test_scenes_that_have_no_score_are_left_out_of_each_mean() -> None:
    rows = made_up(norms=("batch_norm",), seeds=(1,), slots=(7, 21), images=20)
    values = rows["value"].copy()
    values[(rows["image"] < 5) & (rows["slots"] == 21)] = np.nan
    section = section_of(rows.with_columns(value=values))
    (run,) = section.runs
    parts = resampling.run_means([run], "clevr6", "f_ari", "masks", (7, 21))
    means = np.concatenate([values for _, values in parts])
    assert means.shape == (resampling.RESAMPLES, 1, 2)
    assert not np.isnan(means).any()
    assert means[:, 0, 1].mean() == pytest.approx(run.mean("clevr6", "f_ari", 21).value, abs=0.002)


def test_the_same_runs_give_the_same_numbers_to_the_last_byte(rows: Rows) -> None:
    resampling._scene_weights.cache_clear()
    first = to_csv(effects([section_of(rows)]))
    resampling._scene_weights.cache_clear()
    resampling._run_draws.cache_clear()
    assert to_csv(effects([section_of(rows)])) == first
    lines = list(csv.DictReader(io.StringIO(first)))
    assert {line["kind"] for line in lines} == {"median of changes", "difference of medians of changes"}
    assert "-0.00000" not in first


def test_runs_beside_are_compared_with_and_not_told_twice() -> None:
    own = section_of(made_up("ablation", ("unnormalized", "kd_layer_norm"), (1, 2), (10, 21), 8, shapes=SHAPES))
    beside = summarize(made_up("properties", seeds=(1, 2), slots=(10, 21), images=8))
    effect = effects([replace(own, reference_runs=tuple(beside))])[0]
    assert [change.norm for change in effect.changes] == ["unnormalized", "kd_layer_norm"]


def test_the_forest_plot_has_a_row_for_each_and_is_drawn_alike_twice(measured: tuple[Effect, ...]) -> None:
    drawn = forests(measured)
    assert [forest.name for forest in drawn] == ["effect", "effect with more objects", "effect differences"]
    assert drawn[0].groups[0].rows[0].label == "Baseline (3 runs, rough)"
    assert [row.label for row in drawn[0].groups[0].rows][-1] == "Proposed − others (rough)"
    assert len(drawn[2].groups[0].rows) == 5
    assert drawn[0].key.endswith("right of 0 they keep more")
    (alone, *_) = forests(effects([section_of(made_up(norms=("batch_norm",), slots=SLOTS, images=4))]))
    assert alone.key.endswith("rough with fewer than 5 runs"), "a line that is not there is not explained"
    assert len(drawn[0].groups[0].rows[0].marks["f_ari"].dots) == 3
    assert draw_forest(drawn[0]) == draw_forest(drawn[0])


def test_where_the_high_k_is_less_than_three_times_the_plot_says_so() -> None:
    few, many = (effects([section_of(made_up(f"clevr-6-{k}", slots=(k, 21), images=4))]) for k in (7, 11))
    titles = [forests([*some])[0].title for some in (few, many, [*few, *many])]
    assert titles[0] == "From the training K to three times it"
    assert titles[1] == titles[2] == "From the training K to up to three times it"


def test_every_study_of_the_forest_plot_stands_on_its_own_ground(
    measured: tuple[Effect, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forest_figure, "files", lambda sheet, form: {"sheet": sheet})
    (first, *_) = forests(measured)
    many = replace(first, groups=first.groups * 6)
    sheet: Any = draw_forest(many)["sheet"]
    blocks = [item.box for item in sheet.items if isinstance(item, Block)]
    widest = max(box.width for box in blocks)
    grounds = [box for box in blocks if box.width == widest]
    assert len(grounds) == 3
    behind_titles = [box for box in blocks if box not in grounds]
    assert len(behind_titles) == 6, "no line of a panel goes through a study's name"
    titles = [item for item in sheet.items if isinstance(item, Words) and item.text == first.groups[0].title]
    for number, (title, following) in enumerate(itertools.pairwise([*titles, None])):
        assert title is not None
        shaded = [box for box in grounds if box.top < title.y < box.bottom]
        assert len(shaded) == (number % 2 == 0), "every other study is shaded"
        if shaded and following is not None:
            assert shaded[0].bottom < following.y


@pytest.mark.parametrize("width", ["page", "column"])
@pytest.mark.parametrize("style", STYLES)
def test_words_of_the_forest_plot_stay_on_its_sheet_and_apart(
    measured: tuple[Effect, ...], monkeypatch: pytest.MonkeyPatch, style: str, width: str
) -> None:
    monkeypatch.setattr(forest_figure, "files", lambda sheet, form: {"sheet": sheet})
    for forest in forests(measured):
        sheet: Any = draw_forest(forest, Choice(style, width).form)["sheet"]  # type: ignore[arg-type]
        edges: dict[float, list[tuple[float, float]]] = {}
        for item in sheet.items:
            if isinstance(item, Words):
                wide = fonts.width(item.text, item.size, item.bold)
                left = item.x - wide / 2 * (item.anchor == "middle")
                assert left >= 0, item.text
                assert left + wide <= sheet.width + 0.01, item.text
                if item.anchor == "middle":
                    edges.setdefault(item.y, []).append((left, left + wide))
        for line in edges.values():
            assert len(line) > 1, "one number alone is no scale"
            assert all(right < left for (_, right), (left, _) in itertools.pairwise(sorted(line)))


def test_a_study_without_a_metric_has_no_empty_rows_below_it(
    measured: tuple[Effect, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forest_figure, "files", lambda sheet, form: {"sheet": sheet})
    (forest, *_) = forests(measured)
    group = forest.groups[0]
    alone = [replace(row, marks={"f_ari": row.marks["f_ari"]}) for row in group.rows]
    two = replace(forest, groups=(group, replace(group, title="F-ARI alone", rows=tuple(alone))))
    sheet: Any = draw_forest(two, Choice("slides", "column").form)["sheet"]
    titles = [item.text for item in sheet.items if isinstance(item, Words)]
    assert titles.count(group.title) == 2, "below each other: F-ARI, ARI"
    assert titles.count("F-ARI alone") == 1


@pytest.mark.parametrize(("value", "words"), [(0.0, "0.000"), (-0.0002, "0.000"), (-0.1, "−0.100"), (0.02, "+0.020")])
def test_a_difference_is_written_with_its_sign_and_zero_without(value: float, words: str) -> None:
    assert signed(value) == words
