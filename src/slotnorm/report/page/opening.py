"""The first screen and what the words mean: finding and slider, slots, scores, normalizations."""

from collections.abc import Sequence

from slotnorm.report.page import finding, words
from slotnorm.report.page.lacking import lacking
from slotnorm.report.page.markup import Markup, element
from slotnorm.report.page.panels import draw_legend
from slotnorm.report.page.parts import Draft, Part, listing, part, prose, unbroken
from slotnorm.report.page.slider import draw_explorer

_NO_PICTURES = (
    "There are no pictures here: none were kept beside the runs, and no model was run to make them. `slotnorm report` "
    "makes them where a run's weights and the scenes are there, unless it is told --no-models."
)
_SLOT = (
    "Slot Attention reads an image into a handful of vectors, called slots. Each slot comes with a mask, which says "
    "how much of every pixel is its own; at each pixel the masks of all slots add up to one. When all goes well, every "
    "object ends up in a slot of its own, and one more takes the background.",
    "How many slots there are is chosen anew each time the model is used. A scene rarely has as many objects as there "
    "were in training, so one gives more slots than needed and hopes that the spare ones stay empty. Whether they do "
    "is what this page is about.",
)
_SLOT_HINT = (
    "Point at a slot, tap it or give it the focus to see its mask alone; point at the large picture to find the slot "
    "that holds the most there."
)
_SCORES = (
    "Take two pixels of the scene. They belong to the same object or they do not, and the model puts them into the "
    "same slot or it does not. The Rand index is the share of all such pairs on which the two agree. Adjusted for "
    "chance it is 1 where all agree and 0 where no more do than by accident: the adjusted Rand index, ARI.",
    "F-ARI asks only about pixels of objects, the foreground; ARI asks about every pixel. A model that cuts the "
    "background to pieces loses ARI and keeps its F-ARI; one that splits an object loses both.",
)
_SCORES_HINT = (
    "The same scene. Every pixel is the redder the more of its pairs the model gets wrong; hatched pixels do not "
    "count. Point at a pixel, tap it, or use the arrow keys, to see its pairs one by one."
)
_NORMS = (
    "Before a slot is updated, it gathers a sum over all places of the image, each weighted by how much of it the slot "
    "was given. The models here differ in one line only: in how this sum is normalized. A slot that was given much has "
    "a long sum and one that was given little a short one; some normalizations keep this, some lose it. With more "
    "slots than in training each is given less, and where the amount was lost, a slot cannot know that it is spare.",
    f"Weighted sum and batch norm are proposed by the paper behind these models ({words.PAPER}). "
    "Solid lines are normalizations that keep the amount, dashed lines those that lose it.",
)
_FORMULAS = (
    "In the formulas ũ_k is the sum of slot k, γ_nk how much of place n it was given, and N the number of places; "
    "other letters are fixed or learned in training."
)


def first_screen(draft: Draft, title: str, lead: str) -> Markup:
    """The finding, and beside it the slider; below, what the finding rests on."""
    opening = finding.find(draft.report)
    headline = element("div", element("h1", title), unbroken(opening.sentence, class_="finding"), class_="told")
    leading = element("p", lead, class_="lead") if lead else None
    hedges = element("div", leading, *(unbroken(hedge) for hedge in opening.hedges), class_="hedges")
    empty = element("div", element("p", _NO_PICTURES, class_="lacks"), class_="explorer without")
    return element(
        "header", headline, draw_explorer(draft.sliders) if draft.sliders else empty, hedges, class_="first"
    )  # fmt: skip


def table_of_contents(chapters: Sequence[Part], appendices: Sequence[Part]) -> Markup:
    """Links to every part, the appendices apart."""

    def entries(parts: Sequence[Part]) -> list[Markup]:
        return [element("li", element("a", chapter.heading, href=f"#{chapter.name}")) for chapter in parts]

    rest = element("ol", *entries(appendices), class_="appendices")
    return element("nav", element("ol", *entries(chapters)), rest, aria_label="Contents", class_="contents")


def what_is_lacking(draft: Draft) -> Markup | None:
    """What a reader might miss, or nothing."""
    sentences = lacking(draft.report)
    if not sentences:
        return None
    words = "What these numbers lack"
    return element("aside", element("h2", words, class_="minor"), listing(sentences), class_="lacks", aria_label=words)


def what_is_a_slot(draft: Draft) -> Part:
    view = [element("p", _SLOT_HINT, class_="quiet"), element("div", class_="into", id="into-slots")]
    return part("what-is-a-slot", "What is a slot?", *prose(*_SLOT), *(view if draft.sliders else []))


def what_is_scored(draft: Draft) -> Part:
    marked = any(slider.illustration.any.labels is not None for slider in draft.sliders)
    view = [element("p", _SCORES_HINT, class_="quiet"), element("div", class_="into", id="into-scores")]
    return part("scores", "What are F-ARI and ARI?", *prose(*_SCORES), *(view if marked else []))


def what_is_compared(draft: Draft) -> Part:
    """The page's one legend, the choice to leave out failed runs, and the studies."""
    runs = {run.name: run for run in draft.report.runs}
    counts = {norm: sum(run.norm == norm for run in runs.values()) for norm in draft.norms}
    studies = [
        element("li", element("strong", contents.section.title), ": ", words.study_in_words(contents.section))
        for contents in draft.report.sections
    ]
    return part(
        "normalizations", "What is compared", *prose(*_NORMS), draw_legend(draft.norms, counts),
        element("p", _FORMULAS, class_="quiet"), _toggle(draft),
        element("h3", "The study" if len(studies) == 1 else "The studies"), element("ul", *studies, class_="studies"),
    )  # fmt: skip


def _toggle(draft: Draft) -> Markup | None:
    """Whether failed runs count; where none failed there is nothing to choose."""
    if not draft.failures:
        return None
    judged = sum(run.failed is not None for run in draft.report.runs)
    box = element("input", type="checkbox", id="without-failed", autocomplete="off")
    label = element("label", box, f" Leave out the {words.counted(draft.failures, 'run')} of {judged} that failed")
    return element("div", element("p", words.FAILED_RUN, class_="quiet"), element("p", label), class_="toggle")
