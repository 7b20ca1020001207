"""What the page's article is put together from: parts with a heading each, and what they are drawn from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from slotnorm.report.appearance import measure, ordered
from slotnorm.report.contents import Report
from slotnorm.report.curves import Panel
from slotnorm.report.page.finding import leading
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

    def by_study(self, shown: Sequence[tuple[Section, Sequence[object]]]) -> list[object]:
        """What studies have to show, where there are several below the name of each; all but one are folded.

        Open is the study that the page opens with, or the first where that one has nothing to show.
        """
        if len(self.report.sections) == 1:
            return [child for _, children in shown for child in children]
        first = leading(self.report)
        named = [section for section, _ in shown]
        unfolded = next((section for section in named if first is not None and section is first.section), named[0])
        drawn: list[object] = []
        for section, children in shown:
            heading = element("h3", section.title, " ", element("small", study_in_short(section)))
            if section is unfolded:
                drawn += [heading, *children]
            else:
                drawn.append(element("details", element("summary", heading), *children, class_="folded"))
        return drawn


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
    plain = score.label.split()[0].islower()  # "count error" is; mAP@0.5 is a name
    label = score.label[:1].upper() + score.label[1:] if plain else score.label
    name = "Squared error" if panel.metric == "l2" else label
    if panel.against == "objects":
        return f"{name} {score.arrow} with {panel.slots} slots"
    return f"{name} {score.arrow} with {set_in_words(section, panel.datasets[-1])}"


def own_title(section: Section, panel: Panel) -> str:
    """A panel's own title, with its set in plain words."""
    (dataset,) = panel.datasets
    plain = objects_in_words(section, dataset)
    return panel.title.replace(f"on {dataset}", f"with {plain}").replace(dataset, plain)
