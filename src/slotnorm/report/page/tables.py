"""Tables of the page: scores, claims, failed runs and provenance as HTML."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slotnorm.report.appearance import fixed, looks, measure
from slotnorm.report.claims.checking import Outcome
from slotnorm.report.claims.checking import counted as counted_verdicts
from slotnorm.report.contents import SectionContents
from slotnorm.report.label_free import COLUMNS, Verdict
from slotnorm.report.page.markup import Markup, element, joined
from slotnorm.report.page.panels import css_class, number
from slotnorm.report.page.words import counted
from slotnorm.report.tables import Cell, Table, decimals_of

_VERDICTS = {"agrees": "yes", "undecided": "partly", "differs": "no", "not run": "open"}  # -> css class


def draw_table(table: Table) -> Markup:
    """Median ± maximal deviation; a part's best underlined, the best of all bold, the paper's numbers below ours."""
    heads = [element("th", measure(m).label, " ", measure(m).arrow, scope="col") for m in table.metrics]
    head = element("tr", element("th", "", scope="col"), element("th", "runs", scope="col"), *heads)
    bodies = []
    for part in table.parts:
        rows = [
            element("tr", element("th", part.title, scope="colgroup", colspan=2 + len(table.metrics)), class_="part")
        ]
        for line in part.lines:
            cells = [element("td", _cell(cell, decimals_of(table, i))) for i, cell in enumerate(line.cells)]
            name = element("th", line.label, scope="row", class_=css_class(line.norm))
            rows.append(element("tr", name, element("td", line.runs), *cells))
        bodies.append(element("tbody", *rows))
    words = table.caption + (" Below them the paper's numbers." if table.has_paper else "")
    words += " Underlined: the best of a part" + ("; bold: the best of all." if table.bold else ".")
    return wide(element("table", element("caption", words), element("thead", head), *bodies), table.caption)


def draw_with_and_without(pairs: Iterable[tuple[Table | None, Table | None]]) -> list[Markup]:
    """Tables of all runs, and where runs failed without them, of which one is shown."""
    parts: list[Markup] = []
    for everything, without_failed in pairs:
        if everything is not None:
            parts.append(element("div", draw_table(everything), class_=None if without_failed is None else "all"))
        if without_failed is not None:
            kept = draw_table(without_failed) if without_failed.has_runs else element("p", "No run is left.")
            parts.append(element("div", kept, class_="kept"))
    return parts


def _cell(cell: Cell, decimals: int) -> Markup:
    if not cell.spread.runs:
        shown = joined(["–"])
    else:
        shown = joined([fixed(cell.spread.median, decimals)])
        shown = element("b", shown) if cell.best_of_all else shown
        if cell.spread.runs > 1:
            shown = joined([shown, element("small", f" ± {cell.spread.deviation:.{decimals}f}")])
        shown = element("u", shown) if cell.best_in_section else shown
    if cell.paper is None:
        return shown
    return joined([shown, element("br"), element("small", f"{cell.paper.median:.3f} ± {cell.paper.deviation:.3f}")])


def draw_claims(outcomes: Sequence[Outcome]) -> Markup:
    """Every claim of the paper with what became of it; those that were not run together at the end."""
    badges = []
    for scale, counts in counted_verdicts(outcomes).items():
        shown = [joined([" ", _badge(verdict), f" {count}"]) for verdict, count in counts.items() if count]
        badges.append(element("li", f"{scale}:", *shown))
    ran = [outcome for outcome in outcomes if outcome.verdict != "not run"]
    parts: list[Markup] = [element("ul", *badges, class_="verdicts"), *map(_claim, ran)]
    for of_theory, words in ((False, "that no run speaks to"), (True, "that needs no run and was not checked here")):
        missing = [
            outcome.claim
            for outcome in outcomes
            if outcome.verdict == "not run" and (outcome.claim.study == "theory") == of_theory
        ]
        if missing:
            names = [element("li", f"{claim.number}. {claim.statement}") for claim in missing]
            summary = element("summary", _badge("not run"), f" {counted(len(missing), 'claim')} {words}")
            parts.append(element("details", summary, element("ul", *names, class_="findings")))
    return joined(parts)


def _claim(outcome: Outcome) -> Markup:
    scale = f"Runs: {outcome.section}."
    scale += f" Undecided: {', '.join(outcome.reasons)}." if outcome.reasons else ""
    statement = element("span", f"{outcome.claim.number}. {outcome.claim.statement}")
    head = [_badge(outcome.verdict), " ", statement, " ", element("small", outcome.scale)]
    findings = []
    for finding in outcome.findings:
        verdict = {True: "agrees", False: "differs", None: "undecided"}[finding.holds]
        findings.append(
            element("li", _badge(verdict), f" {finding.words}: ", element("span", finding.numbers, class_="numbers"))
        )
    with_failed = None
    if outcome.with_failed is not None:
        with_failed = element("p", "With failed runs kept: ", _badge(outcome.with_failed))
    claim = outcome.claim
    read = [element("p", f"The paper: “{claim.sentence}”"), element("p", f"Read as: {claim.rule}")]
    body = [*read, element("p", scale, class_="quiet"), element("ul", *findings, class_="findings"), with_failed]
    return element("details", element("summary", *head), *body, class_="claim")


def _badge(verdict: str) -> Markup:
    return element("span", verdict, class_=f"badge {_VERDICTS[verdict]}")


def draw_excluded(contents: SectionContents) -> Markup | None:
    """Scenes that the headline numbers leave out, where there are any."""
    shown = [scenes for scenes in contents.excluded if scenes.few or scenes.undefined]
    if not shown:
        return None
    labels, rows = looks(scenes.norm for scenes in shown), []
    for scenes in shown:
        cells = (scenes.dataset, scenes.scored, scenes.undefined, scenes.few, number(scenes.f_ari_of_few, "f_ari"))
        name = element("th", labels[scenes.norm].label, scope="row", class_=css_class(scenes.norm))
        rows.append(element("tr", name, *(element("td", cell) for cell in cells)))
    heads = ("", "set", "scenes in the scores", "without F-ARI", "fewer than two visible objects", "F-ARI of those")
    head = element("tr", *(element("th", words, scope="col") for words in heads))
    caption = f"Scenes apart, at {contents.section.train_slots} slots"
    table = element("table", element("caption", caption), element("thead", head), element("tbody", *rows))
    return element("details", element("summary", "Scenes that the scores leave out"), wide(table, caption))


def draw_judged(provenance: Iterable[Mapping[str, Any]]) -> Markup:
    """What the failed-run rule says of every run, on which statistics."""
    rows = []
    for run in provenance:
        judged = {None: "not judged", False: "follow objects", True: "failed"}[run["failed"]]
        verdict = run.get("binding") or {}
        reason = f": {verdict['reason']}" if run["failed"] and verdict.get("reason") else ""
        statistics = ", ".join(f"{name} {value:.3g}" for name, value in verdict.items() if isinstance(value, float))
        rows.append(element(
            "tr", element("th", run["run"], scope="row", class_=css_class(run["norm"])), element("td", run["seed"]),
            element("td", judged, reason, class_="failed" if run["failed"] else None), element("td", statistics),
        ))  # fmt: skip
    heads = [element("th", words, scope="col") for words in ("run", "seed", "slots", "what the rule looked at")]
    caption = "Every run, and what the rule says of it"
    head = element("thead", element("tr", *heads))
    return wide(element("table", element("caption", caption), head, element("tbody", *rows)), caption)


def draw_verdicts(verdicts: Sequence[Verdict]) -> Markup:
    """What masks alone tell of each run."""
    rows = [
        element(
            "tr", element("th", verdict.run, scope="row", class_=css_class(verdict.norm)),
            *(element("td", cell) for cell in verdict.cells),
        )
        for verdict in verdicts
    ]  # fmt: skip
    head = element("tr", *(element("th", words, scope="col") for words in ("run", *COLUMNS)))
    caption = "What masks tell without labels"
    return wide(element("table", element("caption", caption), element("thead", head), element("tbody", *rows)), caption)


def draw_provenance(provenance: Iterable[Mapping[str, Any]]) -> Markup:
    """Runs with where their rows come from, folded."""
    return joined(element("details", element("summary", run["run"]), draw_facts(run)) for run in provenance)


def draw_facts(facts: Mapping[str, Any]) -> Markup:
    """Names and values, nested ones by dotted names."""
    pairs = [(element("dt", name), element("dd", value)) for name, value in _flat(facts)]
    return element("dl", *(part for pair in pairs for part in pair))


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for name, value in facts.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            lines += _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            lines.append((f"{prefix}{name}", ", ".join(map(str, value))))
        else:
            lines.append((f"{prefix}{name}", str(value)))
    return lines


def wide(table: Markup, label: str) -> Markup:
    """A table that scrolls by itself where the screen is narrow, also by keyboard."""
    return element("div", table, class_="wide", tabindex="0", role="region", aria_label=label)
