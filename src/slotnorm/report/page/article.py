"""The page's article, in its order: first screen, what the words mean, results, appendices."""

from slotnorm.report.page import appendices, opening, results
from slotnorm.report.page.markup import Markup, element, joined
from slotnorm.report.page.parts import Draft

_CHAPTERS = (
    opening.what_is_a_slot, opening.what_is_scored, opening.what_is_compared, results.working, results.more_slots,
    results.effect, results.more_objects, results.reconstruction, results.properties, results.background,
    results.counting, results.other_measures, results.transfers,
)  # fmt: skip
_APPENDICES = (
    appendices.failed_runs, appendices.claims, appendices.tables, appendices.inside, appendices.provenance,
    appendices.notes,
)  # fmt: skip
_NO_SCRIPT = "The slider and the curves of this page need JavaScript; its words and tables do not."


def article(draft: Draft, title: str, lead: str) -> Markup:
    """Everything that is read."""
    chapters = [chapter for make in _CHAPTERS if (chapter := make(draft)) is not None]
    behind = [chapter for make in _APPENDICES if (chapter := make(draft)) is not None]
    return joined([
        element("a", "Skip to the article", href="#top", class_="skip"),
        element(
            "main", opening.first_screen(draft, title, lead), element("noscript", element("p", _NO_SCRIPT)),
            opening.table_of_contents(chapters, behind), opening.what_is_lacking(draft),
            *(chapter.drawn() for chapter in (*chapters, *behind)), id="top",
        ),
    ])  # fmt: skip
