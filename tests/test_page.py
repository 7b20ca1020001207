"""The one HTML page, parsed: everything inline, everything escaped, the slider's data complete."""

import base64
import dataclasses
import hashlib
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from made_up_page import NASTY, SLOTS, made_up_examples, made_up_report, renamed
from slotnorm.errors import UserError
from slotnorm.evaluation.diagnosis import OCCUPIED
from slotnorm.experiments import MAIN
from slotnorm.report import background_figure
from slotnorm.report.appearance import looks
from slotnorm.report.contents import compose
from slotnorm.report.diagnostics import Diagnostics
from slotnorm.report.page.markup import element, embedded
from slotnorm.report.page.page import LARGEST, render
from slotnorm.report.page.panels import ticks_between
from slotnorm.report.page.slider import Slider, encode
from slotnorm.report.pictures import illustrate
from slotnorm.report.reading import Material

EMPTY = {"br", "col", "hr", "img", "input", "link", "meta"}


class Parsed(HTMLParser):
    """Elements in order, with their texts; refuses what is not properly nested."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.inside: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"an attribute twice in <{tag}>"
        self.elements.append((tag, dict(attributes)))
        if tag not in EMPTY:
            self._open.append(tag)
            self.inside.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        for tag in set(self._open):
            self.inside[tag][-1] += data

    def all(self, tag: str, **wanted: str) -> list[dict]:
        return [
            attributes for name, attributes in self.elements
            if name == tag and all(attributes.get(key.rstrip("_")) == value for key, value in wanted.items())
        ]  # fmt: skip

    @property
    def data(self) -> dict:
        return json.loads(self.inside["script"][0])


@pytest.fixture(scope="module")
def report():
    return made_up_report()


@pytest.fixture(scope="module")
def html(report):
    return render(report, lead="A sentence.")


@pytest.fixture(scope="module")
def page(html):
    return Parsed(html)


def pixels(address: str) -> np.ndarray:
    assert address.startswith("data:image/png;base64,")
    with Image.open(io.BytesIO(base64.b64decode(address.split(",")[1], validate=True))) as image:
        return np.asarray(image.convert("RGB"))


def test_it_refers_to_nothing_outside_itself(html, page):
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "poster", "data", "xlink:href"):
            if name in attributes:
                assert attributes[name].startswith(("data:", "#")), (tag, attributes)
        assert tag not in ("iframe", "object", "embed", "base", "form")
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
    code = page.inside["style"][0] + page.inside["script"][1]
    assert not re.search(r"url\(|@import|https?:|//|fetch\(|XMLHttp|import\(", code.replace("// ", "")), "asks outside"
    assert "http" not in re.sub(r"http-equiv", "", html)


def test_every_link_inside_leads_somewhere_and_no_id_is_there_twice(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        for name in ("for", "aria-labelledby", "list"):
            assert attributes.get(name) is None or attributes[name] in ids
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in ids
        for reference in re.findall(r"url\(#([^)]*)\)", attributes.get("clip-path", "")):
            assert reference in ids


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
    assert all(canvas["role"] == "img" and canvas["aria-label"] for canvas in page.all("canvas"))
    assert all(
        plot["role"] == "img" and plot["aria-label"] and plot["tabindex"] == "0"
        for plot in page.all("svg", class_="plot")
    )
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    labelled = {attributes.get("for") for attributes in page.all("label")}
    for box in page.all("input", type="range"):
        assert box["id"] in labelled
        assert box["aria-valuetext"] == "5 slots"


def test_names_with_markup_stay_text():
    nasty = renamed(made_up_report(scenes=2), NASTY)
    parsed = Parsed(render(nasty, NASTY, NASTY))
    assert parsed.inside["h1"] == [NASTY]
    assert parsed.inside["h2"][0] == NASTY
    assert parsed.inside["title"] == [NASTY]
    assert len(parsed.all("script")) == 2
    assert [text for text in parsed.texts if "<script>alert" in text]
    assert len(parsed.data) > 4
    assert any(NASTY in text for text in parsed.inside["dd"])


def test_a_normalization_with_an_odd_name_is_drawn():
    """A plugin's name that is not registered here."""
    odd = "x\"><b>' 😀"
    made = made_up_report(norms=["weighted_mean"], scenes=1, failed=())
    section = made.sections[0].section
    runs = tuple(dataclasses.replace(run, norm=odd) for run in section.runs)
    again = compose(Material((dataclasses.replace(section, runs=runs),), (), ()), with_theory=False)
    parsed = Parsed(render(again))
    assert any(odd in text for text in parsed.inside["li"]), "in the legend"
    assert odd in parsed.inside["th"]
    names = {name for _, attributes in parsed.elements for name in attributes.get("class", "").split()}
    (own,) = [name for name in names if name.startswith("norm-")]
    assert re.fullmatch(r"[\w-]+", own)
    assert f".{own}{{--own:#" in parsed.inside["style"][0]
    assert odd in [curve["label"] for panel in parsed.data.values() for curve in panel["curves"]]


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
    parsed = Parsed(element("script", embedded(data), type="application/json"))
    assert json.loads(parsed.inside["script"][0]) == data
    assert "<" not in embedded({"</script>": "<!--"})


def test_the_slider_has_every_variant_slot_and_scene(report, page):
    (name,) = [name for name in page.data if name.startswith("slider-")]
    content, illustration = page.data[name], report.sections[0].illustration
    assert content["slots"] == list(SLOTS)
    assert content["norms"] == list(MAIN)
    assert len(content["scenes"]) == 12
    for place, scene in enumerate(content["scenes"]):
        assert np.array_equal(pixels(scene["input"]), illustration.any.images[place])
        assert np.array_equal(pixels(scene["truth"]), illustration.truth()[place])
        for norm, strips in zip(content["norms"], scene["variants"], strict=True):
            segmented = pixels(strips["segmentation"]).reshape(len(SLOTS), 16, 16, 3).astype(int)
            rebuilt = pixels(strips["reconstruction"]).reshape(len(SLOTS), 16, 16, 3).astype(int)
            for row, k in enumerate(SLOTS):
                expected = illustration.segmentation(norm, k)[place]
                assert np.abs(segmented[row] - expected).mean() < 6, "128 colours are near enough"
                assert np.abs(rebuilt[row] - illustration.examples[norm].reconstructions[k][place]).mean() < 8
    assert len(page.all("input", type="radio")) == 12
    assert [figure["data-variant"] for figure in page.all("figure") if "data-variant" in figure] == ["0", "1", "2", "3"]
    table = report.sections[0].both.table
    part = next(part for part in table.parts if part.title.startswith("toy4, 5 slots"))
    told = dict(zip(content["norms"], content["scores"], strict=True))
    assert told["batch_norm"]["f_ari"][0] == f"F-ARI {part.lines[3].cells[0].spread.median:.3f}"


def test_sharp_masks_are_shown_exactly():
    examples = [made_up_examples("weighted_sum", scenes=1)]
    slider = Slider(illustrate(examples, 5), 5, {"weighted_sum": {}})
    (scene,) = encode(slider)["scenes"]
    segmented = pixels(scene["variants"][0]["segmentation"]).reshape(len(SLOTS), 16, 16, 3)
    for row, k in enumerate(SLOTS):
        assert np.array_equal(segmented[row], slider.illustration.segmentation("weighted_sum", k)[0])


@pytest.mark.parametrize("lacking", ["images", "labels", "reconstructions", "some reconstructions"])
def test_what_a_model_or_set_lacks_is_left_out_of_the_slider(report, lacking):
    examples = [made_up_examples(norm, scenes=2) for norm in ("weighted_mean", "weighted_sum")]
    if lacking == "some reconstructions":
        changes = {"reconstructions": {7: examples[0].reconstructions[7]}}
    else:
        changes = {lacking: {} if lacking == "reconstructions" else None}
    illustration = illustrate([dataclasses.replace(one, **changes) for one in examples], 5)
    sections = (dataclasses.replace(report.sections[0], illustration=illustration),)
    parsed = Parsed(render(dataclasses.replace(report, sections=sections)))
    kinds = {canvas["class"] for canvas in parsed.all("canvas")}
    everything = {"input", "truth", "segmentation", "reconstruction"}
    missing = {"images": {"input"}, "labels": {"truth"}, "reconstructions": {"reconstruction"}}.get(lacking, set())
    assert kinds == everything - missing
    if lacking == "some reconstructions":
        assert any("Reconstructions were kept with 7 slots." in text for text in parsed.inside["p"])


def test_curves_read_out_the_medians_of_the_figures(report, page):
    panels = [panel for figure in report.sections[0].both.figures for row in figure.rows for panel in row]
    told = [content for name, content in page.data.items() if name.startswith("panel-")]
    held = [panel for row in report.sections[0].both.background.figure.rows for panel in row]
    assert len(told) == 2 * (len(panels) + len(held)), "with and without failed runs"
    for panel, content in zip(panels, told, strict=False):
        labels = [look.label for look in looks(panel.curves).values()]
        assert [curve["label"] for curve in content["curves"]] == labels
        for curve, spoken in zip(panel.curves.values(), content["curves"], strict=True):
            assert content["points"] == curve.x.tolist()
            decimals = 4 if panel.metric == "l2" else 3
            for place in range(len(curve.x)):
                numbers = [f"{getattr(curve, name)[place]:.{decimals}f}" for name in ("median", "low", "high")]
                assert spoken["values"][place] == f"{numbers[0]} ({numbers[1]} to {numbers[2]})"


def test_the_figure_on_the_background_is_there_with_its_words_numbers_and_readings(report, page):
    held = report.sections[0].both.background
    assert page.inside["h3"].count(background_figure.TITLE) == 2, "with and without failed runs"
    for paragraph in held.words:
        assert paragraph in page.inside["p"]
    titles = [panel.title for row in held.figure.rows for panel in row]
    assert [title for title in page.inside["h4"] if title in titles] == 2 * titles
    assert page.inside["caption"].count(f"{held.table.caption} Underlined: the best of a part.") == 2
    told = [content for content in page.data.values() if "spots" in content.get("curves", [{}])[0]]
    assert [content["points"] for content in told] == 4 * [list(range(5, 16))]
    panel, content = held.figure.rows[0][0], told[0]
    for norm, spoken in zip(panel.curves, content["curves"], strict=True):
        for place in range(11):
            up, across = (one[norm].median[place] for one in (panel.curves, panel.across))
            assert spoken["values"][place] == f"F-ARI {up:.3f}, ARI {across:.3f}"
    spots = np.array([curve["spots"] for curve in content["curves"]]).reshape(-1, 2)
    for axis, curves in ((0, panel.across), (1, panel.curves)):
        values = np.concatenate([one.median for one in curves.values()])
        line = np.polyfit(values, spots[:, axis], 1)
        assert np.abs(np.polyval(line, values) - spots[:, axis]).max() < 0.1, "a place is a score"
        assert (line[0] > 0) == (axis == 0), "better is to the right and up"
    assert len(page.all("path", class_="mark hollow")) == 4 * len(MAIN), "the training K of every path"
    divided = [content for content in page.data.values() if content.get("name") == "divided by"]
    assert [content["points"] for content in divided] == 4 * [[1, 2, 3, 10]]
    assert len(set(np.diff(divided[0]["places"]).round(1))) == 1, "at equal distances"
    rows = [attributes for attributes in page.all("tr") if attributes.get("class") == "part"]
    assert len(rows) == 2 * (len(report.sections[0].both.table.parts) + len(held.table.parts))


def test_a_curve_is_drawn_where_its_values_are(report, page):
    """The median's path, read back through the axis labels of the drawing."""
    panel = report.sections[0].both.figures[0].rows[0][0]
    places = [i for i, (tag, attributes) in enumerate(page.elements) if attributes.get("class") == "plot"]
    drawing = page.elements[places[0] : places[1]]
    grid = [float(a["y1"]) for tag, a in drawing if a.get("class") == "grid"]
    line = next(a["d"] for tag, a in drawing if a.get("class", "").startswith("line"))
    drawn = [tuple(map(float, point.split())) for point in re.split("[ML]", line) if point]
    curve = next(iter(panel.curves.values()))
    values = curve.median
    assert len(drawn) == len(values)
    slope = np.polyfit(values, [y for _, y in drawn], 1)
    assert np.abs(np.polyval(slope, values) - [y for _, y in drawn]).max() < 0.1
    assert slope[0] < 0, "more is higher"
    assert [x for x, _ in drawn] == sorted(x for x, _ in drawn)
    assert grid == sorted(grid, reverse=True)


def test_diagnostics_are_drawn_where_they_were_measured(report):
    curves = report.sections[0].both.figures[0].rows[0][0].curves
    measured = {"occupied": curves, "update_norm_ratio": {}}
    found = Diagnostics("toy", "toy4", 5, measured, {}, {}, {}, dict.fromkeys(MAIN, "3 runs"))
    sections = (dataclasses.replace(report.sections[0], diagnostics=found, illustration=None),)
    parsed = Parsed(render(dataclasses.replace(report, sections=sections)))
    assert "Inside the models" in parsed.inside["summary"]
    titles = [title for title in parsed.inside["h4"] if title.startswith("Slots that hold")]
    assert titles == [f"Slots that hold {OCCUPIED:.0%} of the tokens or more, on toy4"]
    assert "Inside the models" not in Parsed(render(report)).inside["summary"]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.913, 0.961), (-0.2, 1.04), (0.0021, 0.0046), (3, 3000), (0, 1e-7)]
)
def test_ticks_are_a_few_round_numbers_inside(low, high):
    ticks = ticks_between(low, high)
    assert 3 <= len(ticks) <= 6
    assert low - 1e-12 <= ticks[0] < ticks[-1] <= high + 1e-12
    steps = np.diff(ticks)
    assert np.allclose(steps, steps[0])
    assert f"{steps[0]:.2g}".strip("0.").rstrip("0").split("e")[0] in ("1", "2", "2.5", "5", "25")


def test_failed_runs_are_counted_and_every_table_is_there_twice(page):
    texts = " ".join(page.texts)
    assert "Leave out failed runs (1 of 12, by a rule that sees no labels)" in texts
    assert len(page.all("div", class_="all")) == len(page.all("div", class_="kept")) == 3
    assert "2 of 3 runs" in texts
    assert "failed: noise masks" in texts
    assert page.all("input", type="checkbox")[0]["id"] == "without-failed"


def test_where_no_run_failed_there_is_nothing_to_choose():
    parsed = Parsed(render(made_up_report(failed=(), scenes=1)))
    assert not parsed.all("input", type="checkbox")
    assert not parsed.all("div", class_="kept")
    assert any("None of 12 runs failed by the rule." in text for text in parsed.texts)


def test_best_numbers_are_marked_as_in_the_tables(report, page):
    table = report.sections[0].both.table_without_failed
    marked = sum(cell.best_in_section for part in table.parts for line in part.lines for cell in line.cells)
    both = report.sections[0].both
    for other in (both.table, both.background.table, both.background_without_failed.table):
        marked += sum(cell.best_in_section for part in other.parts for line in part.lines for cell in line.cells)
    assert len(page.all("u")) == marked > 0


def test_claims_and_provenance_are_there(report, page):
    texts = " ".join(page.texts)
    for outcome in report.outcomes:
        assert outcome.claim.statement in texts
    assert "slotnorm train toy --norm batch_norm" in texts
    assert "a" * 64 in texts
    assert "b" * 64 in texts
    assert "versions.torch" in texts
    assert "A note." in texts


def test_it_stays_below_its_limit_by_showing_fewer_scenes(report, html):
    assert len(html.encode()) < LARGEST
    smaller = render(report, largest=len(html.encode()) - 20_000)
    assert len(smaller.encode()) <= len(html.encode()) - 20_000
    parsed = Parsed(smaller)
    shown = len(parsed.all("input", type="radio"))
    assert 0 < shown < 12
    assert any(f"Only {shown} scenes" in text for text in parsed.texts)
    with pytest.raises(UserError, match="the page of 1 study would have .* more than 1000: give fewer runs"):
        render(report, largest=1000)


@pytest.mark.slow
def test_large_pictures_fit():
    """A dozen scenes of 96 x 96 pixels with noise, the most that is kept beside runs, and 22 numbers of slots."""
    report = made_up_report(failed=(), scenes=12, size=96, slots=range(3, 25), norms=("weighted_mean",))
    html = render(report)
    assert len(html.encode()) <= LARGEST
    assert Parsed(html).all("input", type="radio")


def test_the_same_report_gives_the_same_bytes(report, html):
    assert render(report, lead="A sentence.") == html


def test_a_study_whose_every_run_failed_is_still_shown():
    everyone = [(norm, seed) for norm in ("weighted_mean", "batch_norm") for seed in (1, 2, 3)]
    parsed = Parsed(render(made_up_report(failed=everyone, norms=("weighted_mean", "batch_norm"), scenes=1)))
    assert any("Leave out failed runs (6 of 6" in text for text in parsed.texts)
    assert len(parsed.all("div", class_="kept")) == 3
    assert parsed.inside["h3"].count(background_figure.TITLE) == 1
