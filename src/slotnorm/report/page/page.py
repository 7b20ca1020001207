"""The report as one HTML file: an article with its slider, curves, tables and claims; it asks the network for nothing.

Everything is inline, and a policy in its head forbids the rest: no request, no script or style but its own, by hash.
"""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from slotnorm.errors import UserError
from slotnorm.report.appearance import GUESS, looks
from slotnorm.report.contents import Report
from slotnorm.report.page.article import article
from slotnorm.report.page.finding import leading
from slotnorm.report.page.markup import Markup, element, embedded
from slotnorm.report.page.panels import css_class, looks_data
from slotnorm.report.page.parts import Draft
from slotnorm.report.page.pixels import Sprites
from slotnorm.report.page.slider import encode, numbers_in, slider_of
from slotnorm.report.page.words import counted

NAME = "index.html"
LARGEST = 8_000_000  # bytes
TITLE = "Slot Attention with more slots than in training"
SCRIPTS = ("page.js", "curves.js", "explorer.js", "slots.js", "pairs.js")  # one after another, as one


def render(report: Report, title: str = TITLE, lead: str = "", largest: int = LARGEST) -> str:
    """The page as HTML of at most `largest` bytes, with fewer scenes in its slider where it would be larger."""
    sliders = [slider for contents in report.sections if (slider := slider_of(contents)) is not None]
    first = leading(report)
    sliders.sort(key=lambda slider: slider.contents is not first)
    sprites = Sprites()
    encoded = [encode(slider, sprites) for slider in sliders]
    draft = Draft(report, sliders)
    body = article(draft, title, lead)
    around = len(_html(draft, body, title, [_with_scenes(study, 0) for study in encoded], Sprites()).encode())
    kept = _affordable(encoded, sprites, largest - around)
    if not all(kept):  # a study without one picture has no place in the slider
        draft = Draft(report, [slider for slider, scenes in zip(sliders, kept, strict=True) if scenes])
        body = article(draft, title, lead)
    shown = [_with_scenes(study, scenes) for study, scenes in zip(encoded, kept, strict=True) if scenes]
    html = _html(draft, body, title, shown, sprites)
    if (size := len(html.encode())) > largest:
        studies = counted(len(report.sections), "study")
        raise UserError(
            f"the page of {studies} would have {size} bytes, more than {largest}: give fewer runs to one report"
        )
    return html


def _affordable(encoded: list[dict[str, Any]], sprites: Sprites, room: int) -> list[int]:
    """How many scenes of each study fit into so many bytes; one is taken from the largest study until they do."""
    kept = [len(study["scenes"]) for study in encoded]

    def size(places: Sequence[int]) -> int:
        scenes = [scene for place in places for scene in _with_scenes(encoded[place], kept[place])["scenes"]]
        numbers = {number for scene in scenes for number in numbers_in(scene)}
        return sum(len(embedded(scene)) + 1 for scene in scenes) + sum(len(sprites.texts[n]) + 3 for n in numbers)

    everything = range(len(kept))
    while any(kept) and size(everything) > room:
        kept[max(everything, key=lambda place: size([place]))] -= 1
    return kept


def _with_scenes(study: dict[str, Any], scenes: int) -> dict[str, Any]:
    """The study with so many of its scenes, among them the one that is shown first."""
    first, every = study["first"], range(len(study["scenes"]))
    places = sorted([first, *(place for place in every if place != first)][:scenes])
    kept = [study["scenes"][place] for place in places]
    return {**study, "scenes": kept, "first": places.index(first) if places else 0, "fewer": len(kept) < len(every)}


def _html(draft: Draft, body: Markup, title: str, studies: list[dict[str, Any]], sprites: Sprites) -> str:
    used = {number for study in studies for scene in study["scenes"] for number in numbers_in(scene)}
    pictures = [text if number in used else "" for number, text in enumerate(sprites.texts)]
    guessed = any(contents.results.counting is not None for contents in draft.report.sections)
    drawn = [*draft.norms, GUESS] if guessed else draft.norms
    data = {"looks": looks_data(drawn), "panels": draft.panels, "studies": studies, "pictures": pictures}
    script, style = "\n".join(map(_resource, SCRIPTS)), _resource("page.css") + _colors(drawn)
    head = element(
        "head", element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script, style)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title), element("link", rel="icon", href="data:,"), element("style", Markup(style)),
    )  # fmt: skip
    page = element(
        "body", body, element("script", embedded(data), type="application/json", id="data"),
        element("script", Markup(script)),
    )  # fmt: skip
    return f"<!doctype html>\n{element('html', head, page, lang='en')}\n"


def _colors(norms: list[str]) -> str:
    return "\n".join(f".{css_class(norm)}{{--own:{look.color}}}" for norm, look in looks(norms).items())


def _resource(name: str) -> str:
    return resources.files("slotnorm.report.page").joinpath(name).read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
