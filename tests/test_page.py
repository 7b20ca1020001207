"""The one HTML page, parsed: everything inline, everything escaped, the data of slider and curves complete."""

import base64
import dataclasses
import hashlib
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_up_page import NASTY, SLOTS, made_up_examples, made_up_report, renamed
from parsed_page import Parsed, pixels, unpacked
from slotnorm.errors import UserError
from slotnorm.evaluation.diagnosis import OCCUPIED
from slotnorm.experiments import MAIN
from slotnorm.report import background_figure
from slotnorm.report.appearance import AVERAGE_PRECISIONS, fixed, looks, measure
from slotnorm.report.contents import compose
from slotnorm.report.diagnostics import Diagnostics
from slotnorm.report.drawing.axes import round_numbers
from slotnorm.report.page import results
from slotnorm.report.page.markup import element, embedded
from slotnorm.report.page.page import LARGEST, render
from slotnorm.report.page.parts import panel_title
from slotnorm.report.page.pixels import Sprites
from slotnorm.report.page.slider import LARGEST_MASK, encode, slider_of
from slotnorm.report.page.words import objects_in_words
from slotnorm.report.pictures import illustrate
from slotnorm.report.reading import RunCollection

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def report():
    return made_up_report()


@pytest.fixture(scope="module")
def html(report):
    return render(report, lead="A sentence.")


@pytest.fixture(scope="module")
def page(html):
    return Parsed(html)


def test_it_refers_to_nothing_outside_itself(html, page):
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "poster", "data", "xlink:href"):
            if name in attributes:
                assert attributes[name].startswith(("data:", "#")), (tag, attributes)
        assert tag not in ("iframe", "object", "embed", "base", "form")
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
    code = page.inside["style"][0] + page.inside["script"][1]
    asking = r"url\((?!#)|@import|https?:|//|fetch\(|XMLHttp|import\(|innerHTML|insertAdjacentHTML|eval\("
    assert not re.search(asking, code.replace("// ", "")), "asks outside, or makes code of text"
    assert "http" not in re.sub(r"http-equiv", "", html)


def test_every_link_inside_leads_somewhere_and_no_id_is_there_twice(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        for name in ("for", "aria-labelledby", "list"):
            assert attributes.get(name) is None or attributes[name] in ids
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in ids


def test_the_policy_allows_its_own_script_and_style_by_hash_and_nothing_else(page):
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    rules = dict(rule.strip().split(" ", 1) for rule in policy["content"].split(";"))

    def source(text):
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert rules["script-src"] == source(page.inside["script"][1])
    assert rules["style-src"] == source(page.inside["style"][0])
    assert page.all("script") == [{"type": "application/json", "id": "data"}, {}]
    names = [name for name, _ in page.elements]
    assert names.index("meta") < names.index("style")


def test_language_title_and_texts_for_those_who_do_not_see(page):
    assert page.all("html") == [{"lang": "en"}]
    assert page.inside["title"] == ["Slot Attention with more slots than in training"]
    assert page.inside["h1"] == page.inside["title"]
    assert all(image.get("alt") for image in page.all("img"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    labelled = {attributes.get("for") for attributes in page.all("label")}
    (box,) = page.all("input", type="range")
    assert box["id"] in labelled
    assert box["aria-valuetext"] == "15 slots"


def test_the_finding_and_the_slider_come_first_then_the_contents_then_the_article(page):
    places = {name: place for place, (_, attributes) in enumerate(page.elements) for name in attributes.values()}
    order = ("finding", "explorer", "hedges", "contents", "what-is-a-slot", "scores", "normalizations", "more-slots")
    order += ("effect", "more-objects", "reconstruction", "background", "failed-runs", "claims", "tables", "provenance")
    positions = [places[name] for name in order]
    assert positions == sorted(positions)
    listed = [attributes["href"][1:] for attributes in page.all("a") if attributes["href"] != "#top"]
    headings = [attributes["id"] for attributes in page.all("h2") if "id" in attributes]
    assert listed == headings, "everything is in the table of contents"


def test_there_is_one_legend(page):
    assert len(page.all("dl", class_="legend")) == 1
    for norm, look in looks(MAIN).items():
        assert any(text.startswith(f"{look.label} ") for text in page.inside["dt"]), norm
    assert any("divides by one constant for all" in text for text in page.inside["dd"])


def test_words_of_this_project_are_explained_where_they_come_first(page):
    text = page.text
    assert not re.search(r"\bbinds?\b|by the rule|\brule that sees\b", text)
    assert text.index("toy4 (2 to 4 objects, as in training)") == text.index("toy4"), "a set's name with what it is"
    assert text.index("F-ARI says how well the slots tell the objects apart") < text.index("ARI, which counts")
    assert text.index("A run counts as failed when its slots do not follow the objects") < text.index("that failed")


def test_names_with_markup_stay_text():
    nasty = renamed(made_up_report(scenes=2), NASTY)
    parsed = Parsed(render(nasty, NASTY, NASTY))
    assert parsed.inside["h1"] == [NASTY]
    assert parsed.inside["title"] == [NASTY]
    assert any(text.startswith(NASTY) for text in parsed.inside["li"]), "the study's name"
    assert len(parsed.all("script")) == 2
    assert [text for text in parsed.texts if "<script>alert" in text]
    assert parsed.data["studies"][0]["title"] == NASTY
    assert any(NASTY in text for text in parsed.inside["dd"])


def test_a_normalization_with_an_odd_name_is_drawn():
    """A plugin's name that is not registered here."""
    odd = "x\"><b>' 😀"
    whole_report = made_up_report(norms=("weighted_mean",), scenes=1, failed=())
    section = whole_report.sections[0].section
    runs = tuple(dataclasses.replace(run, norm=odd) for run in section.runs)
    again = compose(RunCollection((dataclasses.replace(section, runs=runs),), (), ()), with_theory=False)
    parsed = Parsed(render(again))
    assert any(odd in text for text in parsed.inside["dt"]), "in the legend"
    assert odd in parsed.inside["th"]
    names = {name for _, attributes in parsed.elements for name in attributes.get("class", "").split()}
    (own,) = [name for name in names if name.startswith("norm-")]
    assert re.fullmatch(r"[\w-]+", own)
    assert f".{own}{{--own:#" in parsed.inside["style"][0]
    assert parsed.data["looks"][odd]["label"] == odd
    assert {curve["norm"] for panel in parsed.data["panels"].values() for curve in panel["all"]["curves"]} == {odd}


@settings(max_examples=50)
@given(st.text())
def test_any_text_comes_back_as_text(text):
    parsed = Parsed(element("p", text, title=text))
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    assert parsed.inside["p"] == [shown]
    assert parsed.elements == [("p", {"title": shown})]


@settings(max_examples=50)
@given(st.dictionaries(st.text(), st.one_of(st.text(), st.floats(allow_nan=False, allow_infinity=False), st.none())))
def test_any_data_comes_back_from_its_script_element(data):
    import json

    parsed = Parsed(element("script", embedded(data), type="application/json"))
    assert json.loads(parsed.inside["script"][0]) == data
    assert "<" not in embedded({"</script>": "<!--"})


def test_the_slider_has_every_normalization_slot_and_scene(report, page):
    (content,), pictures = page.data["studies"], page.data["pictures"]
    illustration = report.sections[0].illustration
    assert (content["stem"], content["trained"], content["slots"]) == ("toy", 5, list(SLOTS))
    assert SLOTS[content["start"]] == 15, "it stands at three times the training K"
    assert content["norms"] == list(MAIN)
    assert len(content["scenes"]) == 12
    for place, scene in enumerate(content["scenes"]):
        assert np.array_equal(pixels(pictures[scene["input"]]), illustration.any.images[place])
        assert np.array_equal(pixels(pictures[scene["truth"]]), illustration.truth()[place])
        for norm, variant in zip(content["norms"], scene["variants"], strict=True):
            segmented = pixels(pictures[variant["segmentation"]]).reshape(len(SLOTS), 16, 16, 3).astype(int)
            rebuilt = pixels(pictures[variant["reconstruction"]]).reshape(len(SLOTS), 16, 16, 3).astype(int)
            for row, k in enumerate(SLOTS):
                expected = illustration.segmentation(norm, k)[place]
                assert np.abs(segmented[row] - expected).mean() < 6, "128 colours are near enough"
                assert np.abs(rebuilt[row] - illustration.examples[norm].reconstructions[k][place]).mean() < 8


def test_scores_beside_the_pictures_are_those_of_the_rows(report, page):
    (content,) = page.data["studies"]
    section, table = report.sections[0].section, report.sections[0].results.table
    part = next(part for part in table.parts if part.title.startswith("toy4, 15 slots"))
    means = dict(zip(content["norms"], content["means"], strict=True))
    assert means["batch_norm"]["f_ari"][3] == pytest.approx(part.lines[3].cells[0].spread.median, abs=1e-6)
    for norm, variant in zip(content["norms"], content["scenes"][4]["variants"], strict=True):
        (run,) = [run for run in section.runs if (run.norm, run.seed) == (norm, 1)]
        values = run.scenes["toy4", "masks", "ari"]
        expected = [float(values.at(k)[values.images == 4][0]) for k in SLOTS]
        assert variant["here"]["ari"] == pytest.approx(expected, abs=1e-6)


def test_the_scene_that_is_shown_first_is_the_most_typical_one_at_the_slots_that_are_shown(report):
    slider = slider_of(report.sections[0])

    def most_typical(*slots):
        def distance(place):
            pairs = [(norm, k) for norm in MAIN for k in slots]
            return sum(abs(slider.here(norm, "f_ari", k, place) - slider.mean(norm, "f_ari", k)) for norm, k in pairs)

        return min(range(12), key=distance)

    encoded = encode(slider, Sprites())
    assert slider.slots[encoded["start"]] == 15
    assert encoded["first"] == most_typical(15)
    assert len({most_typical(15), most_typical(5, 15), most_typical(5)}) == 3, "this report could not tell them apart"


def test_masks_are_kept_at_the_training_k_and_three_times_it_in_the_order_of_their_colours(report, page):
    (content,), pictures = page.data["studies"], page.data["pictures"]
    illustration = report.sections[0].illustration
    assert content["looked_into"] == [5, 15]
    assert content["grid"] == [16, 16]
    scene, place, cells = content["scenes"][2], 2, 16 * 16
    assert np.array_equal(unpacked(pictures[scene["labels"]]).reshape(16, 16), illustration.any.labels[place])
    for norm, variant in zip(content["norms"], scene["variants"], strict=True):
        assert variant["size"] == [16, 16]
        content_bytes = unpacked(pictures[variant["masks"]])
        assert len(content_bytes) == 2 * cells + (5 + 15) * cells
        start = 2 * cells
        for number, k in enumerate((5, 15)):
            colors = variant["colors"][number]
            assert colors == sorted(illustration.colors[norm][k][place].tolist())
            masks = content_bytes[start : start + k * cells].reshape(k, 16, 16)
            start += k * cells
            order = np.argsort(illustration.colors[norm][k][place], kind="stable")
            kept = illustration.examples[norm].masks[k][place][order]
            assert np.abs(masks * 5.0 - kept).max() <= 2.5
            labels = content_bytes[number * cells : (number + 1) * cells].reshape(16, 16)
            assert np.array_equal(np.take_along_axis(kept, labels[None].astype(int), 0)[0], kept.max(axis=0))
            assert max(colors) < len(scene["palette"])


def test_large_masks_are_made_smaller_for_looking_at_them_alone():
    report = made_up_report(failed=(), scenes=1, size=64, norms=("weighted_sum",))
    sprites = Sprites()
    (scene,) = encode(slider_of(report.sections[0]), sprites)["scenes"]
    (variant,) = scene["variants"]
    assert max(variant["size"]) <= LARGEST_MASK
    assert variant["size"] == [32, 32]
    assert len(unpacked(sprites.texts[variant["masks"]])) == 2 * 64 * 64 + 20 * 32 * 32, (
        "labels stay as large as the truth"
    )


def test_sharp_masks_are_shown_exactly(report):
    illustration = illustrate([made_up_examples("weighted_sum", scenes=1)], 5)
    slider = slider_of(dataclasses.replace(report.sections[0], illustration=illustration))
    sprites = Sprites()
    (scene,) = encode(slider, sprites)["scenes"]
    segmented = pixels(sprites.texts[scene["variants"][0]["segmentation"]]).reshape(len(SLOTS), 16, 16, 3)
    for row, k in enumerate(SLOTS):
        assert np.array_equal(segmented[row], slider.illustration.segmentation("weighted_sum", k)[0])


def test_curves_hold_the_medians_of_the_figures_once(report, page):
    panels = [panel for figure in report.sections[0].results.figures for row in figure.rows for panel in row]
    told = list(page.data["panels"].values())
    for panel in panels:
        drawn = [
            content["all"]["curves"] for content in told
            if content["all"]["curves"] and content["all"]["curves"][0]["median"] == _rounded(panel, MAIN[0])
        ]  # fmt: skip
        assert len(drawn) == 1, panel.title
        decimals = measure(panel.metric).decimals
        for curve in drawn[0]:
            own = panel.curves[curve["norm"]]
            assert curve["at"] == own.x.tolist()
            for edge in ("low", "high"):
                read_out = [fixed(value, decimals) for value in getattr(own, edge)]
                assert [fixed(value, decimals) for value in curve[edge]] == read_out
            assert len(curve["runs"]) == len(own.runs)
    kept = [
        panel for figure in report.sections[0].results.figures_without_failed for row in figure.rows for panel in row
    ]
    assert told[0]["kept"]["curves"][2]["median"] == _rounded(kept[0], "weighted_sum")
    assert told[0]["kept"]["curves"][0] == {"norm": MAIN[0]}, "none of its runs failed: the curve is among all"
    assert all("kept" in panel for panel in told if panel["trained"] is not None)
    assert {attributes["data-panel"] for attributes in page.all("div") if "data-panel" in attributes} == set(
        page.data["panels"]
    )


def _rounded(panel, norm: str) -> list[float]:
    """As they are in the page: four decimals, or more where four would not round to those of the tables."""
    decimals = measure(panel.metric).decimals

    def short(value: float) -> float:
        several = (round(value, places) for places in range(4, 8))
        return next(near for near in several if fixed(near, decimals) == fixed(value, decimals))

    return [short(value) for value in panel.curves[norm].median.tolist()]


def test_the_figure_on_the_background_is_there_with_its_words_and_readings(report, page):
    held = report.sections[0].results.background
    assert background_figure.TITLE in page.inside["h2"]
    for paragraph in held.words:
        assert paragraph in page.inside["p"]
    paths = [content for content in page.data["panels"].values() if "marked" in content]
    assert [content["title"] for content in paths] == [
        f"F-ARI against ARI with {objects} objects" for objects in ("2 to 4", "5 to 7", "8 to 10")
    ]  # fmt: skip
    panel, content = held.figure.rows[0][0], paths[0]
    assert content["points"] == list(range(5, 16))
    assert content["marked"] == [5, 10, 15]
    for curve in content["all"]["curves"]:
        assert curve["median"] == pytest.approx(panel.curves[curve["norm"]].median.tolist(), abs=1e-4)
        assert curve["across"] == pytest.approx(panel.across[curve["norm"]].median.tolist(), abs=1e-4)
        low, high = content["all"]["across_limits"]
        assert low < min(curve["across"]) <= max(curve["across"]) < high
    divided = [content for content in page.data["panels"].values() if content["even"]]
    assert [content["points"] for content in divided] == 2 * [[1, 2, 3, 10]]


def test_diagnostics_are_drawn_where_they_were_measured(report):
    curves = report.sections[0].results.figures[0].rows[0][0].curves
    measured = {"occupied": curves, "update_norm_ratio": {}}
    diagnosis = Diagnostics("toy", "toy4", 5, measured, {}, {}, {}, dict.fromkeys(MAIN, "3 runs"))
    sections = (dataclasses.replace(report.sections[0], diagnostics=diagnosis, illustration=None),)
    parsed = Parsed(render(dataclasses.replace(report, sections=sections)))
    assert "Appendix: inside the models" in parsed.inside["h2"]
    titles = [title for title in parsed.inside["h4"] if title.startswith("Slots that hold")]
    assert titles == [f"Slots that hold {OCCUPIED:.0%} of the image or more, with 2 to 4 objects"]
    bare = (dataclasses.replace(report.sections[0], diagnostics=None),)
    assert "Appendix: inside the models" not in Parsed(render(dataclasses.replace(report, sections=bare))).inside["h2"]


def test_the_effect_of_every_study_is_drawn_where_its_numbers_are(report, page):
    (effect,) = [e for e in report.effects if (e.metric, e.which, e.place) == ("f_ari", "all", 0)]
    heads = [text for text in page.inside["th"] if text == "toy: 5 to 15 slots, 2 to 4 objects"]
    assert heads
    strips = [place for place, (_, a) in enumerate(page.elements) if a.get("class", "").startswith("spread norm-")]
    for change, strip in zip(effect.changes, strips, strict=False):
        drawn = page.elements[strip : strip + 8]
        dots = [float(a["cx"].rstrip("%")) for tag, a in drawn if tag == "circle"]
        assert len(dots) == len(change.runs) == 3
        ((low, high),) = [
            (float(a["x1"].rstrip("%")), float(a["x2"].rstrip("%"))) for _, a in drawn if a.get("class") == "interval"
        ]
        (median,) = [float(a["x"].rstrip("%")) for tag, a in drawn[1:] if tag == "svg"][:1]
        slope = np.polyfit([*change.runs.values(), *change.interval, change.median], [*dots, low, high, median], 1)
        assert slope[0] > 0, "less of the score is to the left"
        assert np.polyval(slope, change.median) == pytest.approx(median, abs=0.1)
        assert low <= median <= high
    assert "How these numbers are made" in page.inside["summary"]
    beside = [text for text in page.inside["td"] if text.endswith(" (rough)")]
    assert {"3 (rough)", " (rough)"} <= set(beside), "of three runs the differences are rough as well"


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.913, 0.961), (-0.2, 1.04), (0.0021, 0.0046), (3, 3000), (0, 1e-7)]
)
def test_ticks_are_a_few_round_numbers_inside(low, high):
    ticks = round_numbers(low, high, 3)
    assert 2 <= len(ticks) <= 4
    assert low - 1e-12 <= ticks[0] < ticks[-1] <= high + 1e-12
    steps = np.diff(ticks)
    assert np.allclose(steps, steps[0])
    assert f"{steps[0]:.2g}".strip("0.").rstrip("0").split("e")[0] in ("1", "2", "2.5", "5", "25")


def test_failed_runs_are_counted_and_tables_are_there_twice(page):
    assert "Leave out the 1 run of 12 that failed" in page.text
    assert "Of 12 runs judged 1 failed." in page.text
    assert len(page.all("div", class_="all")) == len(page.all("div", class_="kept")) == 3, "effect and two tables"
    assert "2 of 3 runs" in page.text
    assert "failed: noise masks" in page.inside["td"]
    assert "follow objects" in page.inside["td"]
    assert page.all("input", type="checkbox")[0]["id"] == "without-failed"


def test_where_no_run_failed_there_is_nothing_to_choose():
    parsed = Parsed(render(made_up_report(failed=(), scenes=1)))
    assert not parsed.all("input", type="checkbox")
    assert not parsed.all("div", class_="kept")
    assert "Of 12 runs judged none failed." in parsed.text
    assert not any("kept" in panel for panel in parsed.data["panels"].values())


def test_best_numbers_are_marked_as_in_the_tables(report, page):
    both = report.sections[0].results
    marked = 0
    for table in (both.table, both.table_without_failed, both.background.table, both.background_without_failed.table):
        marked += sum(cell.best_in_section for part in table.parts for line in part.lines for cell in line.cells)
    assert len(page.all("u")) == marked > 0


def test_claims_and_provenance_are_there(report, page):
    for outcome in report.outcomes:
        assert outcome.claim.statement in page.text
        if outcome.verdict != "not run":
            assert f"The paper: “{outcome.claim.sentence}”" in page.text
            assert f"Read as: {outcome.claim.rule}" in page.text
    missing = [outcome for outcome in report.outcomes if outcome.verdict == "not run"]
    assert f"{len(missing) - 1} claims that no run speaks to" in page.text
    assert "1 claim that needs no run and was not checked here" in page.text
    assert page.text.index("Krimmel") < page.text.index("the paper's Fig. 1, 32x32 pixels")
    assert "slotnorm train toy --norm batch_norm" in page.text
    assert "a" * 64 in page.text
    assert "b" * 64 in page.text
    assert "versions.torch" in page.text
    assert "A note." in page.text


def test_a_claim_says_its_scale_and_a_study_what_it_is(report):
    (contents,) = report.sections
    second = dataclasses.replace(contents, stem="second", section=dataclasses.replace(contents.section, title="second"))
    claim = next(outcome for outcome in report.outcomes if outcome.verdict != "not run" and outcome.scale == "toy")
    scales = [dataclasses.replace(claim, scale=scale) for scale in ("clevr-mini", "toy")]
    page = Parsed(render(dataclasses.replace(report, sections=(contents, second), outcomes=tuple(scales))))
    for scale in ("clevr-mini", "toy"):
        assert f"{claim.claim.number}. {claim.claim.statement} {scale}" in page.text
    assert "toy trained with 5 slots on scenes of at most 4 objects" in page.text
    assert f"toy: {len(contents.section.runs)} runs" in page.text  # whose provenance is folded below


def test_panels_without_anything_to_see_are_named_and_not_drawn(report, monkeypatch):
    everything = Parsed(render(report))
    monkeypatch.setattr(results, "is_flat", lambda panel: panel.metric == "ari")
    page = Parsed(render(report))
    assert "the same to two decimals: ARI ↑ with 2 to 4 objects, as in training; ARI" in page.text
    assert 0 < len(page.data["panels"]) < len(everything.data["panels"])


def test_it_stays_below_its_limit_by_showing_fewer_scenes(report, html):
    assert len(html.encode()) < LARGEST
    smaller = render(report, largest=len(html.encode()) - 20_000)
    assert len(smaller.encode()) <= len(html.encode()) - 20_000
    (study,) = Parsed(smaller).data["studies"]
    assert 0 < len(study["scenes"]) < 12
    assert study["fewer"]
    assert study["first"] < len(study["scenes"])
    first = next(iter(Parsed(html).data["studies"]))
    assert study["scenes"][study["first"]] == first["scenes"][first["first"]], "the typical scene stays"
    with pytest.raises(UserError, match="the page of 1 study would have .* more than 1000: give fewer runs"):
        render(report, largest=1000)


def test_where_not_one_scene_fits_the_page_has_no_slider(report):
    bare = dataclasses.replace(report, sections=(dataclasses.replace(report.sections[0], illustration=None),))
    parsed = Parsed(render(report, largest=len(render(bare).encode()) + 2_000))
    assert parsed.data["studies"] == []
    assert not parsed.all("input", type="range")


def test_the_largest_study_gives_up_scenes_first(report):
    small = dataclasses.replace(
        report.sections[0], stem="small", illustration=illustrate([made_up_examples(n, scenes=3) for n in MAIN], 5)
    )
    both = dataclasses.replace(report, sections=(report.sections[0], small))
    whole = render(both)
    shown = Parsed(render(both, largest=len(whole.encode()) - 60_000)).data["studies"]
    assert [study["stem"] for study in shown] == ["toy", "small"]
    assert len(shown[0]["scenes"]) < 12
    assert len(shown[1]["scenes"]) == 3


def test_a_picture_that_two_studies_show_is_there_once(report, html):
    twin = dataclasses.replace(report.sections[0], stem="twin")
    both = render(dataclasses.replace(report, sections=(report.sections[0], twin)))
    studies = Parsed(both).data["studies"]
    assert studies[0]["scenes"] == studies[1]["scenes"]
    pictures = [text for text in Parsed(both).data["pictures"] if text]
    assert len(set(pictures)) == len(pictures) == len([text for text in Parsed(html).data["pictures"] if text])


@pytest.mark.slow
def test_large_pictures_fit():
    """A dozen scenes of 96 x 96 pixels with noise, the most that is kept beside runs, and 22 numbers of slots."""
    report = made_up_report(failed=(), scenes=12, size=96, slots=range(3, 25), norms=("weighted_mean",))
    html = render(report)
    assert len(html.encode()) <= LARGEST
    assert Parsed(html).data["studies"][0]["scenes"]


def test_the_same_report_gives_the_same_bytes(report, html):
    assert render(report, lead="A sentence.") == html


def test_a_set_with_smaller_objects_is_told_from_the_one_with_as_many(report):
    section = dataclasses.replace(report.sections[0].section, study="small-6-7")
    assert objects_in_words(section, "small10") == "3 to 10 objects"
    assert objects_in_words(section, "small10-shrunk") == "3 to 10 smaller objects"


def test_a_panel_begins_with_a_capital_unless_its_metric_is_a_name(report):
    section, panel = report.sections[0].section, report.sections[0].results.figures[0].rows[0][0]
    panels = [dataclasses.replace(panel, metric=metric) for metric in (AVERAGE_PRECISIONS[0], "count")]
    titles = [panel_title(section, panel) for panel in panels]
    assert [title[:3] for title in titles] == ["mAP", "Cou"]


def test_of_several_studies_one_is_open_and_the_others_are_folded_in_every_part(report):
    (own,) = report.sections
    other = dataclasses.replace(own, stem="b", section=dataclasses.replace(own.section, title="b"))
    html = render(dataclasses.replace(report, sections=(other, own), effects=report.effects))
    parts = [part for part in html.split("<section ")[1:] if 'class="plot"' in part]
    assert len(parts) > 3
    for part in parts:
        assert part.count("<h3>") == 2
        assert part.count('<details class="folded">') == 1
    assert render(report).count('class="folded"') == 0
