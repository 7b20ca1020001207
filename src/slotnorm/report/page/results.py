"""The results of the article: curves of all studies by subject, the effect over all of them, the background."""

from collections.abc import Callable, Sequence

from slotnorm.report import background_figure, count_figure, label_free
from slotnorm.report.appearance import AVERAGE_PRECISIONS
from slotnorm.report.background_figure import Background
from slotnorm.report.count_figure import Counting
from slotnorm.report.curves import Panel
from slotnorm.report.drawing.choice import is_flat
from slotnorm.report.effects import DEFINITION, METRICS, as_many
from slotnorm.report.page.finding import over_studies
from slotnorm.report.page.forest import draw_effects
from slotnorm.report.page.markup import Markup, element
from slotnorm.report.page.panels import Shown, draw_panels, shown_panels
from slotnorm.report.page.parts import Draft, Part, folded, listing, own_title, panel_title, part, prose
from slotnorm.report.page.slider import Slider
from slotnorm.report.page.tables import draw_verdicts, draw_with_and_without
from slotnorm.report.sections import Section

_SLOTS = (
    "Each curve is the score of one normalization while the number of slots grows; the dotted line is where it was "
    "trained. A strong line is the median over runs, each thin one a single run. An arrow up says that more is better, "
    "one down that less is. Point at a panel, or use the arrow keys on it, to read the numbers."
)
_OBJECTS = (
    "Now the slots stay and the objects grow: one slot more than the most objects of any scene. To the right of the "
    "dotted line are scenes with more objects than any in training."
)
_RECONSTRUCTION = (
    "The models were never told what an object is. They were trained to rebuild their input from the slots, and this "
    "is how far off they are: the mean squared error, smaller is better."
)
_PROPERTIES = (
    "In these studies the model tells shape, colour, material, size and place of every object, one slot each. Average "
    "precision counts an object as found when all of it is right and its place is off by less than a distance: mAP@0.5 "
    "allows 0.5 in the units of the scene, mAP@∞ any."
)
_EFFECT = (
    "What {} as many slots do to a score. Hollow: each run. Filled: the median of their changes. Line: its "
    "95 % interval. Left of zero the score is lost. Last in a study: how much more of it the two normalizations that "
    "the paper proposes, weighted sum and batch norm, keep than baseline and layer norm."
)
_FLAT = "Not drawn, since all numbers are the same to two decimals:"
_NO_EFFECT = "No study was tested both with as many slots as in training and with three times as many."
_NO_SCORES = "Nothing was compared with true objects, so nobody knows what more slots do to a score."
_TRANSFER = (
    "The same models on scenes of another kind, which they were never trained on (zero-shot). In brackets: the most "
    "objects of a scene in training, and the slots."
)

_SPOKEN_OF = ("f_ari", "ari", "l2", *AVERAGE_PRECISIONS)

Wanted = Callable[[Section, Panel], bool]


def working(draft: Draft) -> Part | None:
    """What masks alone tell of runs on scenes without true ones."""
    shown = []
    for contents in draft.report.sections:
        if verdicts := label_free.verdicts(contents.section):
            advice = listing(verdict.advice for verdict in verdicts if verdict.advice)
            shown.append((contents.section, [draw_verdicts(verdicts), advice]))
    return part("working", label_free.TITLE, *prose(label_free.WORDS), *draft.by_study(shown)) if shown else None


def more_slots(draft: Draft) -> Part | None:
    return _curves(draft, "more-slots", "More slots than in training", _SLOTS, _segmentation("slots"))


def more_objects(draft: Draft) -> Part | None:
    return _curves(draft, "more-objects", "More objects than in training", _OBJECTS, _segmentation("objects"))


def reconstruction(draft: Draft) -> Part | None:
    pictures = element("div", class_="into", id="into-reconstruction") if any(map(_rebuilds, draft.sliders)) else None
    heading = "How well is the scene rebuilt?"
    return _curves(draft, "reconstruction", heading, _RECONSTRUCTION, lambda _, panel: panel.metric == "l2", pictures)


def properties(draft: Draft) -> Part | None:
    heading = "Properties of objects"
    return _curves(draft, "properties", heading, _PROPERTIES, lambda _, panel: panel.metric in AVERAGE_PRECISIONS)


def other_measures(draft: Draft) -> Part | None:
    """Figures of metrics that no part above speaks of: mBO, mIoU, those of plugins."""
    drawn = []
    for contents in draft.report.sections:
        results, section, children = contents.results, contents.section, list[object]()
        for number, figure in enumerate(results.figures):
            without_failed = results.figures_without_failed
            same = (
                None
                if without_failed is None
                else [other for other in without_failed if other.caption == results.figures[number].caption]
            )
            panels = [
                (panel_title(section, shown.panel), shown)
                for shown in shown_panels([figure], same)
                if shown.panel.metric not in _SPOKEN_OF
            ]
            if panels:
                children += [*prose(figure.caption), draw_panels(panels, draft.panels)]
        drawn += [(section, children)] if children else []
    return part("other-measures", "Other measures", *draft.by_study(drawn)) if drawn else None


def _segmentation(against: str) -> Wanted:
    """F-ARI and ARI, from where a study's headline values are read."""

    def wanted(section: Section, panel: Panel) -> bool:
        of_slots = panel.metric in ("f_ari", "ari") and panel.source == section.source(panel.metric)
        return of_slots and panel.against == against

    return wanted


def _rebuilds(slider: Slider) -> bool:
    return any(examples.reconstructions for examples in slider.illustration.examples.values())


def _curves(
    draft: Draft, name: str, heading: str, words: str, wanted: Wanted, pictures: Markup | None = None
) -> Part | None:
    """The panels of all studies that are wanted; None where no study has any."""
    drawn = []
    for contents in draft.report.sections:
        results, section = contents.results, contents.section
        panels = [
            shown
            for shown in shown_panels(results.figures, results.figures_without_failed)
            if wanted(section, shown.panel)
        ]  # fmt: skip
        flat = [panel_title(section, shown.panel) for shown in panels if is_flat(shown.panel)]
        panels = [shown for shown in panels if not is_flat(shown.panel)]
        if panels or flat:
            titled = [[(panel_title(section, shown.panel), shown) for shown in group] for group in _groups(panels)]
            children = [draw_panels(group, draft.panels) for group in titled]
            children += [element("p", f"{_FLAT} {'; '.join(flat)}.", class_="quiet")] if flat else []
            drawn.append((section, children))
    return part(name, heading, *prose(words), pictures, *draft.by_study(drawn)) if drawn else None


def _groups(panels: Sequence[Shown]) -> list[list[Shown]]:
    """Panels that stand side by side: those of a metric; of average precisions those of a set."""
    metrics = dict.fromkeys(shown.panel.metric for shown in panels)
    if len(metrics) > 2:
        sets = dict.fromkeys(shown.panel.datasets for shown in panels)
        return [[shown for shown in panels if shown.panel.datasets == datasets] for datasets in sets]
    if len(panels) == len(metrics):
        return [list(panels)]
    return [[shown for shown in panels if shown.panel.metric == metric] for metric in metrics]


def effect(draft: Draft) -> Part:
    several = len(draft.report.sections) > 1
    name, heading = "effect", "The effect, in every study" if several else "The effect"
    drawn = draw_effects(draft.report)
    if drawn is None:
        scored = any(contents.section.metrics().intersection(METRICS) for contents in draft.report.sections)
        return part(name, heading, element("p", _NO_EFFECT if scored else _NO_SCORES, class_="lacks"))
    definition = folded("How these numbers are made", element("p", DEFINITION))
    return part(
        name,
        heading,
        *prose(over_studies(draft.report), _EFFECT.format(as_many(draft.report.effects))),
        drawn,
        definition,
    )


def background(draft: Draft) -> Part | None:
    """F-ARI beside ARI, and who holds the background."""
    words: list[Markup] = []
    drawn = []
    for section, results in ((contents.section, contents.results) for contents in draft.report.sections):
        if (held := results.background) is not None:
            words = words or prose(*held.words)
            drawn.append((section, [_panels_of(draft, section, held, results.background_without_failed, own_title)]))
    return part("background", background_figure.TITLE, *words, *draft.by_study(drawn)) if drawn else None


def counting(draft: Draft) -> Part | None:
    """How many objects are counted, beside the guess."""
    drawn = []
    for section, results in ((contents.section, contents.results) for contents in draft.report.sections):
        if (counted := results.counting) is not None:
            drawn.append((section, [_panels_of(draft, section, counted, results.counting_without_failed, panel_title)]))
    return part("counting", count_figure.TITLE, *prose(count_figure.WORDS), *draft.by_study(drawn)) if drawn else None


def _panels_of(
    draft: Draft,
    section: Section,
    everything: Background | Counting,
    without_failed: Background | Counting | None,
    title: Callable[[Section, Panel], str],
) -> Markup:
    """The panels of a study's figure; where runs failed, also those without them."""
    without = None if not section.failures else [] if without_failed is None else [without_failed.figure]
    panels = [(title(section, shown.panel), shown) for shown in shown_panels([everything.figure], without)]
    return draw_panels(panels, draft.panels)


def transfers(draft: Draft) -> Part | None:
    if not draft.report.zero_shot:
        return None
    return part("transfer", "Other scenes", *prose(_TRANSFER), *draw_with_and_without(draft.report.zero_shot))
