"""What the page's article is put together from: parts with a heading each, and what they are drawn from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from slotnorm.report.appearance import measure, ordered
from slotnorm.report.contents import Report
from slotnorm.report.curves import Panel
from slotnorm.report.page.markup import Markup, element
from slotnorm.report.page.slider import Slider
from slotnorm.report.page.words import objects_in_words, set_in_words, study_in_short
from slotnorm.report.sections import Section


@dataclass(frozen=True)
class Draft:
    """A page in the making; `panels` grows with the numbers of every curve that is drawn."""

    report: Report
    sliders: Sequence[Slider]
    """The leading study's first."""
    panels: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def norms(self) -> list[str]:
        return ordered({norm for contents in self.report.sections for norm in contents.section.norms})

    @property
    def failures(self) -> int:
        """How many runs failed."""
        return sum(contents.section.failures for contents in self.report.sections)

    def heading_of(self, section: Section) -> Markup | None:
        """The study's name above its figures, where there are several studies."""
        if len(self.report.sections) == 1:
            return None
        return element("h3", section.title, " ", element("small", study_in_short(section)))


@dataclass(frozen=True)
class Part:
    """One part of the article."""

    name: str
    """What links lead to."""
    heading: str
    children: tuple[object, ...]

    def drawn(self) -> Markup:
        head = unbroken(self.heading, "h2", id=self.name)
        return element("section", head, *self.children, aria_labelledby=self.name)


def part(name: str, heading: str, *children: object) -> Part:
    """A part of these children, of which None ones are nothing."""
    return Part(name, heading, children)


def prose(*paragraphs: str) -> list[Markup]:
    """Paragraphs; empty ones are left out."""
    return [element("p", paragraph) for paragraph in paragraphs if paragraph]


def unbroken(sentence: str, tag: str = "p", **attributes: str) -> Markup:
    """A paragraph or heading in which no line ends inside F-ARI."""
    parts = [part for word in sentence.split("F-ARI") for part in (element("span", "F-ARI", class_="word"), word)][1:]
    return element(tag, *parts, **attributes)


def folded(summary: str, *content: object) -> Markup:
    """What is shown when it is asked for."""
    return element("details", element("summary", summary), *content)


def listing(sentences: Iterable[str]) -> Markup | None:
    """Sentences below each other, or nothing."""
    entries = [element("li", sentence) for sentence in sentences]
    return element("ul", *entries, class_="notes quiet") if entries else None


def panel_title(section: Section, panel: Panel) -> str:
    """ "F-ARI ↑ with 2 to 4 objects, as in training"."""
    score = measure(panel.metric)
    name = "Squared error" if panel.metric == "l2" else score.label[:1].upper() + score.label[1:]
    if panel.against == "objects":
        return f"{name} {score.arrow} with {panel.slots} slots"
    return f"{name} {score.arrow} with {set_in_words(section, panel.datasets[-1])}"


def own_title(section: Section, panel: Panel) -> str:
    """A panel's own title, with its set in plain words."""
    (dataset,) = panel.datasets
    plain = objects_in_words(section, dataset)
    return panel.title.replace(f"on {dataset}", f"with {plain}").replace(dataset, plain)
