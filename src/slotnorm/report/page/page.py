"""The report as one HTML file: curves, slider, tables, claims and provenance; it asks the network for nothing.

Everything is inline, and a policy in its head forbids the rest: no request, no script or style but its own, by hash.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

from slotnorm import __version__
from slotnorm.errors import UserError
from slotnorm.evaluation.diagnosis import OCCUPIED
from slotnorm.report import background_figure
from slotnorm.report.appearance import looks
from slotnorm.report.contents import Report, SectionContents
from slotnorm.report.curves import Figure, TitledPanel
from slotnorm.report.page.markup import Markup, element, embedded, joined
from slotnorm.report.page.panels import css_class, draw_figure
from slotnorm.report.page.slider import MOST_SCENES, Slider, draw_slider, encode
from slotnorm.report.page.tables import draw_apart, draw_claims, draw_glance, draw_list, draw_runs, draw_table
from slotnorm.report.sections import Section
from slotnorm.report.tables import Table, at_slots

NAME = "index.html"
LARGEST = 8_000_000  # bytes
TITLE = "Slot Attention with more slots than in training"
_MARKUP_OF_A_SCENE = 400  # bytes around its thumbnail, at most
_MARKUP_OF_A_SLIDER = 20_000
_INSIDE = {
    "update_norm_ratio": "Length of the update codes, 1 at the training K",
    "occupied": f"Slots that hold {OCCUPIED:.0%} of the tokens or more",
}
_SCORES = ("f_ari", "ari", "l2")  # beside the slider


def render(report: Report, title: str = TITLE, lead: str = "", largest: int = LARGEST) -> str:
    """The page as HTML of at most `largest` bytes, with fewer scenes in its sliders where it would be larger."""
    encoded = {one.stem: (slider, encode(slider)) for one in report.sections if (slider := _slider(one)) is not None}
    bare = len(_Writer(report, title, lead, {}, 0).html().encode())
    if bare > largest:
        studies = f"{len(report.sections)} stud{'y' if len(report.sections) == 1 else 'ies'}"
        raise UserError(
            f"the page of {studies} would have {bare} bytes, more than {largest}: give fewer runs to one report"
        )
    scenes = MOST_SCENES
    while scenes and bare + sum(_size(data, scenes) for _, data in encoded.values()) > largest:
        scenes -= 1
    return _Writer(report, title, lead, encoded if scenes else {}, scenes).html()


def _slider(contents: SectionContents) -> Slider | None:
    illustration, section = contents.illustration, contents.section
    if illustration is None:
        return None
    scores = {
        norm: {
            metric: {k: at_slots(section, norm, metric, illustration.dataset, k).median for k in illustration.slots}
            for metric in _SCORES
            if metric in section.metrics()
        }
        for norm in illustration.examples
    }
    return Slider(illustration, section.train_slots, scores)


def _size(encoded: dict[str, Any], scenes: int) -> int:
    """Bytes that a slider with this many scenes adds, at most."""
    kept = encoded["scenes"][:scenes]
    thumbnails = sum(len(scene["thumbnail"]) + _MARKUP_OF_A_SCENE for scene in kept)
    return len(json.dumps({**encoded, "scenes": kept})) + thumbnails + _MARKUP_OF_A_SLIDER


class _Writer:
    """One page being put together; `data` grows with what its script needs."""

    def __init__(
        self, report: Report, title: str, lead: str, sliders: Mapping[str, tuple[Slider, Any]], scenes: int
    ) -> None:
        self.report, self.title, self.lead, self.sliders, self.scenes = report, title, lead, sliders, scenes
        self.data: dict[str, Any] = {}
        self.failures = sum(one.section.failures for one in report.sections)

    def html(self) -> str:
        parts = [self._section(number, one) for number, one in enumerate(self.report.sections, 1)]
        main = element("main", *parts, self._transfers(), self._claims(), self._provenance(), id="results")
        script, style = _resource("page.js"), _resource("page.css") + self._colors()
        head = element(
            "head", element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=_policy(script, style)),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("title", self.title), element("link", rel="icon", href="data:,"), element("style", Markup(style)),
        )  # fmt: skip
        body = element(
            "body", element("a", "Skip to the results", href="#results", class_="skip"), self._head(), main,
            element("script", embedded(self.data), type="application/json", id="data"),
            element("script", Markup(script)),
        )  # fmt: skip
        return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"

    def _head(self) -> Markup:
        places = [(f"section-{number}", one.section.title) for number, one in enumerate(self.report.sections, 1)]
        places += [("transfer", "Transfer")] if self.report.zero_shot else []
        places += [("claims", "Claims"), ("provenance", "Provenance")]
        links = [element("li", element("a", words, href=f"#{place}")) for place, words in places]
        nav = element("nav", element("ul", *links), aria_label="Contents")
        lead = element("p", self.lead, class_="lead") if self.lead else None
        left_out = [f"Left out: {one.path}: {one.reason}" for one in self.report.left_out]
        notes = draw_list([*left_out, *self.report.notes])
        return element("header", element("h1", self.title), lead, nav, self._toggle(), notes)

    def _toggle(self) -> Markup:
        """Whether failed runs count; where none failed there is nothing to choose."""
        judged = sum(run.failed is not None for run in self.report.runs)
        if self.failures:
            box = element("input", type="checkbox", id="without-failed", autocomplete="off")
            words = f" Leave out failed runs ({self.failures} of {judged}, by a rule that sees no labels)"
            return element("p", element("label", box, words), class_="toggle")
        words = f"None of {judged} runs failed by the rule." if judged else "No run was judged by the failed-run rule."
        return element("p", words, class_="quiet")

    def _section(self, number: int, contents: SectionContents) -> Markup:
        section, both, name = contents.section, contents.both, f"section-{number}"

        def curves(figures: Sequence[Figure], shown: Section) -> Markup:
            return joined([draw_glance(section, shown), *(draw_figure(figure, self.data) for figure in figures)])

        kept = section.without_failed()
        curves_twice = self._twice(
            lambda: curves(both.figures, section), lambda: curves(both.figures_without_failed or (), kept), section
        )
        tables_twice = self._twice(lambda: _scores(both.table), lambda: _scores(both.table_without_failed), section)
        held_twice = self._twice(
            lambda: self._background(both.background),
            lambda: self._background(both.background_without_failed),
            section,
        )
        return element(
            "section", element("h2", section.title, id=name), element("p", _about(section), class_="quiet"),
            curves_twice, self._slider(contents), tables_twice, held_twice, self._inside(contents),
            draw_apart(contents),
            draw_list(contents.notes),
            aria_labelledby=name,
        )  # fmt: skip

    def _twice(self, everything: Callable[[], Markup], kept: Callable[[], Markup], section: Section) -> Markup:
        """One part, or where runs failed two, with and without them, of which one is shown."""
        if not section.failures:
            return everything()
        return joined([element("div", everything(), class_="all"), element("div", kept(), class_="kept")])

    def _background(self, held: background_figure.Background | None) -> Markup:
        """F-ARI beside ARI, and who holds the background: words, figure, numbers."""
        if held is None:
            return Markup()
        words = [element("p", paragraph, class_="quiet") for paragraph in held.words]
        table = draw_table(held.table) if held.table is not None else None
        return joined([element("h3", background_figure.TITLE), *words, draw_figure(held.figure, self.data), table])

    def _slider(self, contents: SectionContents) -> Markup | None:
        if contents.stem not in self.sliders:
            return None
        slider, encoded = self.sliders[contents.stem]
        words = (
            "One scene, more and more slots. A slot has the colour of what it covers; grey is the background's. "
            "Scores are medians over all runs and scenes."
        )
        if slider.reconstructed and slider.reconstructed != slider.slots:
            words += f" Reconstructions were kept with {', '.join(map(str, slider.reconstructed))} slots."
        if self.scenes < MOST_SCENES:
            words += f" Only {self.scenes} scenes, so that the page stays below {LARGEST // 1_000_000} MB."
        head = element("h3", "What the slots take"), element("p", words, class_="quiet")
        return joined([*head, draw_slider(slider, f"slider-{len(self.data)}", encoded, self.scenes, self.data)])

    def _inside(self, contents: SectionContents) -> Markup | None:
        """Diagnostics of the models, folded."""
        found = contents.diagnostics
        if found is None:
            return None
        panels = [
            TitledPanel(
                metric, "", "slots", (found.dataset,), None, found.curves[metric], found.train_slots,
                contents.section.train_objects, f"{words}, on {found.dataset}",
            )
            for metric, words in _INSIDE.items()
            if any(curve.count.any() for curve in found.curves.get(metric, {}).values())
        ]  # fmt: skip
        if not panels:
            return None
        figure = Figure("", "", "Measured on the models themselves.", tuple((one,) for one in panels), found.counts)
        return element("details", element("summary", "Inside the models"), draw_figure(figure, self.data))

    def _transfers(self) -> Markup | None:
        if not self.report.zero_shot:
            return None
        parts: list[Markup | None] = []
        for everything, kept in self.report.zero_shot:
            parts.append(element("div", draw_table(everything), class_=None if kept is None else "all"))
            parts.append(None if kept is None else element("div", draw_table(kept), class_="kept"))
        return element("section", element("h2", "Transfer", id="transfer"), *parts, aria_labelledby="transfer")

    def _claims(self) -> Markup:
        words = "What the paper's text says, checked in code on these runs; failed runs are left out, as there."
        head = [element("h2", "Claims", id="claims"), element("p", words, class_="quiet")]
        return element("section", *head, draw_claims(self.report.outcomes), aria_labelledby="claims")

    def _provenance(self) -> Markup:
        words = f"Made by slotnorm {__version__}. Unfold a run for its command, versions and hashes."
        head = [element("h2", "Provenance", id="provenance"), element("p", words, class_="quiet")]
        return element("section", *head, draw_runs(self.report.provenance), aria_labelledby="provenance")

    def _colors(self) -> str:
        norms = {norm for one in self.report.sections for norm in one.section.norms}
        return "\n".join(f".{css_class(norm)}{{--own:{look.color}}}" for norm, look in looks(norms).items())


def _scores(table: Table | None) -> Markup:
    return joined([element("h3", "Scores"), draw_table(table)]) if table else Markup()


def _about(section: Section) -> str:
    objects = f" on at most {section.train_objects} objects" if section.train_objects > 0 else ""
    words = [f"Trained{objects} with {section.train_slots} slots."]
    words += [f"Evaluated on {', '.join(section.sets)}."] if section.sets else []
    words += [f"In the paper: {section.where}."] if section.where else []
    words += [f"Not as registered: {'; '.join(section.changes)}."] if section.changes else []
    return " ".join(words)


def _resource(name: str) -> str:
    return resources.files("slotnorm.report.page").joinpath(name).read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
