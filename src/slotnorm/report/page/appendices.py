"""The appendices of the article: failed runs, claims, tables, what is inside the models, provenance, notes."""

from slotnorm import __version__
from slotnorm.evaluation.diagnosis import OCCUPIED
from slotnorm.report.contents import SectionContents
from slotnorm.report.curves import Figure, TitledPanel
from slotnorm.report.page import words
from slotnorm.report.page.markup import Markup, element
from slotnorm.report.page.panels import Shown, draw_panels, shown_panels
from slotnorm.report.page.parts import Draft, Part, folded, listing, own_title, panel_title, part, prose
from slotnorm.report.page.tables import draw_claims, draw_excluded, draw_judged, draw_provenance, draw_with_and_without

_RULE = (
    "The rule looks at three numbers: moving, how many segments follow the content of an image and are not at the same "
    "place in all; sharing, among which share of all slots a pixel is divided; coherence, how often neighbours belong "
    "to the same slot. It fails below 1 moving segment, above 0.5 sharing, or below 0.25 coherence."
)
_CLAIMS = (
    f"The paper ({words.PAPER}) makes statements that can be checked. Each is written as a rule in code and applied to "
    "the runs of this report, failed ones left out, as there. A comparison is decided only when its whole 95 % "
    "interval lies on one side, else the claim is undecided. Unfold a claim for the paper's sentence, how it is read, "
    "and the numbers.",
    "Behind each stands the scale of the runs: full is the paper's own, clevr-mini has CLEVR pictures of 32x32 pixels, "
    "small and toy have scenes that this program made, and exact needs no run. K is the number of slots; the proposed "
    "are weighted sum and batch norm; (6, 7) are models trained on at most 6 objects with 7 slots; CLEVR10 are scenes "
    "of CLEVR with at most 10 objects; l2 is the squared error of what is rebuilt.",
)
_TABLES = "Medians over runs of the mean over a set's scenes, with the largest deviation of a run from them."
_INSIDE = (
    "What was measured inside the models: how long the normalized sums become, how many slots hold anything, and the "
    "scores when segments are read from the attention instead of the decoder's masks."
)
_MEASURED = {
    "update_norm_ratio": "Length of the normalized sums, 1 with as many slots as in training",
    "occupied": f"Slots that hold {OCCUPIED:.0%} of the image or more",
}


def failed_runs(draft: Draft) -> Part:
    judged = [run for run in draft.report.runs if run.failed is not None]
    sentence = "No run of this report was judged."
    if judged:
        sentence = f"Of {words.counted(len(judged), 'run')} judged {draft.failures or 'none'} failed."
    return part(
        "failed-runs", "Appendix: failed runs", *prose(words.FAILED_RUN, _RULE, sentence),
        folded("Every run, and what the rule says of it", draw_judged(draft.report.provenance)),
    )  # fmt: skip


def claims(draft: Draft) -> Part:
    return part("claims", "Appendix: claims of the paper", *prose(*_CLAIMS), draw_claims(draft.report.outcomes))


def tables(draft: Draft) -> Part:
    children: list[object] = []
    for contents in draft.report.sections:
        results = contents.results
        pairs = [(results.table, results.table_without_failed)]
        if results.background is not None:
            without_failed = results.background_without_failed
            pairs.append((results.background.table, None if without_failed is None else without_failed.table))
        if results.counting is not None:
            without = results.counting_without_failed
            pairs.append((results.counting.table, None if without is None else without.table))
        drawn, excluded = draw_with_and_without(pairs), draw_excluded(contents)
        if drawn or excluded is not None:
            children.append(folded(contents.section.title, *drawn, excluded))
    if not children:
        children = [element("p", "No run was scored, so there is no table.", class_="lacks")]
    return part("tables", "Appendix: all tables", *prose(_TABLES), *children)


def inside(draft: Draft) -> Part | None:
    """Diagnostics of the models, and scores read from attention instead of masks."""
    drawn = []
    for contents in draft.report.sections:
        section, results = contents.section, contents.results
        panels = [(own_title(section, shown.panel), shown) for shown in _diagnosed(contents)]
        panels += [
            (f"{panel_title(section, shown.panel)}, from attention", shown)
            for shown in shown_panels(results.figures, results.figures_without_failed)
            if shown.panel.metric in ("f_ari", "ari") and shown.panel.source != section.source(shown.panel.metric)
        ]
        if panels:
            drawn.append((section, [draw_panels(panels, draft.panels)]))
    return part("inside", "Appendix: inside the models", *prose(_INSIDE), *draft.by_study(drawn)) if drawn else None


def _diagnosed(contents: SectionContents) -> list[Shown]:
    measured = contents.diagnostics
    if measured is None:
        return []
    panels = tuple(
        (TitledPanel(
            metric, "", "slots", (measured.dataset,), None, measured.curves[metric], measured.train_slots,
            contents.section.train_objects, f"{title}, on {measured.dataset}",
        ),)
        for metric, title in _MEASURED.items()
        if any(curve.count.any() for curve in measured.curves.get(metric, {}).values())
    )  # fmt: skip
    return shown_panels([Figure("", "", "", panels, measured.counts)], None)


def provenance(draft: Draft) -> Part:
    sentence = f"Made by slotnorm {__version__}. Unfold a run for its command, versions and hashes."
    return part("provenance", "Appendix: provenance", *prose(sentence), *_provenance(draft))


def _provenance(draft: Draft) -> list[Markup]:
    """Runs as they are, or where there are several studies those of each folded."""
    if len(draft.report.sections) == 1:
        return [draw_provenance(draft.report.provenance)]
    left = {(run["run"], run["path"]): run for run in draft.report.provenance}
    parts = []
    for contents in draft.report.sections:
        names = [(run.name, run.facts.get("path")) for run in contents.section.runs]
        own = [left.pop(name) for name in names if name in left]
        heading = f"{contents.section.title}: {words.counted(len(own), 'run')}"
        parts += [folded(heading, draw_provenance(own))] if own else []
    return [*parts, draw_provenance(left.values())]


def notes(draft: Draft) -> Part | None:
    sentences = [f"Left out: {run.path}: {run.reason}" for run in draft.report.left_out]
    sentences += [*draft.report.notes, *(note for contents in draft.report.sections for note in contents.notes)]
    return part("notes", "Appendix: notes", listing(sentences)) if sentences else None
