"""The report as one HTML file: an article with its slider, curves, tables and claims; it asks the network for nothing.

Everything is inline, and a policy in its head forbids the rest: no request, no script or style but its own, by hash.
"""

import base64
import hashlib
from importlib import resources
from typing import Any

from slotnorm.errors import UserError
from slotnorm.report.appearance import looks
from slotnorm.report.contents import Report
from slotnorm.report.page.article import article
from slotnorm.report.page.finding import leading
from slotnorm.report.page.markup import Markup, element, embedded
from slotnorm.report.page.panels import css_class, looks_data
from slotnorm.report.page.parts import Draft
from slotnorm.report.page.slider import Slider, encode, slider_of
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
    encoded = [encode(slider) for slider in sliders]
    bare = len(_html(report, title, lead, [], []).encode())
    if bare > largest:
        studies = counted(len(report.sections), "study")
        raise UserError(
            f"the page of {studies} would have {bare} bytes, more than {largest}: give fewer runs to one report"
        )
    around = len(_html(report, title, lead, sliders, [_with_scenes(study, 0) for study in encoded]).encode())
    kept = _affordable(encoded, largest - around)
    shown = [place for place, scenes in enumerate(kept) if scenes]
    return _html(
        report, title, lead, [sliders[place] for place in shown],
        [_with_scenes(encoded[place], kept[place]) for place in shown],
    )  # fmt: skip


def _affordable(encoded: list[dict[str, Any]], room: int) -> list[int]:
    """How many scenes of each study fit into so many bytes; one is taken from the largest until they do."""
    sizes = [[len(embedded(scene)) + 1 for scene in study["scenes"]] for study in encoded]
    kept = [len(study) for study in sizes]

    def size(place: int) -> int:
        return sum(sizes[place][: kept[place]])

    while kept and sum(map(size, range(len(kept)))) > room:
        largest = max(range(len(kept)), key=size)
        if not kept[largest]:
            break
        kept[largest] -= 1
    return kept


def _with_scenes(study: dict[str, Any], scenes: int) -> dict[str, Any]:
    """The study with its first scenes; the one that is shown first is among them."""
    kept = study["scenes"][:scenes]
    first = study["first"]
    if kept and first >= scenes:
        kept[-1], first = study["scenes"][first], scenes - 1
    return {**study, "scenes": kept, "first": first, "fewer": len(kept) < len(study["scenes"])}


def _html(report: Report, title: str, lead: str, sliders: list[Slider], studies: list[dict[str, Any]]) -> str:
    draft = Draft(report, sliders)
    body = article(draft, title, lead)
    data = {"looks": looks_data(draft.norms), "panels": draft.panels, "studies": studies}
    script, style = "\n".join(map(_resource, SCRIPTS)), _resource("page.css") + _colors(draft.norms)
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
