"""The words of a report: the Markdown page that ties its files together, and the page of claims."""

from collections.abc import Sequence
from typing import Any

from slotnorm.report import count_figure, label_free
from slotnorm.report.appearance import fixed, looks
from slotnorm.report.background_figure import TITLE, Background
from slotnorm.report.claims import vocabulary
from slotnorm.report.claims.checking import SCALES, Finding, Outcome, in_short
from slotnorm.report.contents import Report, SectionContents
from slotnorm.report.count_figure import Counting
from slotnorm.report.curves import Figure
from slotnorm.report.drawing.choice import Choice
from slotnorm.report.drawing.forest_figure import forests
from slotnorm.report.effects import ALL, DEFINITION, WITHOUT_FAILED, Effect, as_many
from slotnorm.report.effects import to_markdown as effects_to_markdown
from slotnorm.report.safe_names import markdown as escaped
from slotnorm.report.safe_names import one_line
from slotnorm.report.tables import to_markdown, without_failed_to_markdown


def report_page(report: Report, choice: Choice = Choice()) -> str:  # noqa: B008 (frozen)
    """report.md: sections with their figures and tables, the claims in short, what was left out, provenance."""
    lines = ["# Report", "", _opening(report), "", *_effects(report.effects, choice)]
    for contents in report.sections:
        lines += _section(contents, choice)
    for everything, without_failed in report.zero_shot:
        lines += ["## Zero-shot transfer", "", to_markdown(everything)]
        if without_failed is not None:
            lines += without_failed_to_markdown(without_failed)
    lines += [
        "## Claims of the paper",
        "",
        f"{_claims_in_short(report.outcomes)}. All of them: [claims.md](claims.md).",
        "",
    ]
    lines += ["## Provenance", "", *_provenance(report), ""]
    return "\n".join(lines).rstrip() + "\n"


def headline(report: Report) -> str:
    """What a report is of, in one line: "84 runs in 7 sections; claims: toy: 3 agree, ..."."""
    return f"{_amount(report)}; claims: {in_short(report.outcomes)}"


def _amount(report: Report) -> str:
    runs, sections = len(report.runs), len(report.sections)
    return f"{runs} run{'s' * (runs != 1)} in {sections} section{'s' * (sections != 1)}"


def claims_page(outcomes: Sequence[Outcome]) -> str:
    """claims.md: every claim, what the paper says, what our runs say, at which scale, on which numbers."""
    lines = ["# What the paper claims, and what our runs say", "", f"{_claims_in_short(outcomes)}.", ""]
    lines += claims_table(outcomes)
    lines += ["", "## What each verdict rests on", ""]
    for outcome in outcomes:
        if outcome.findings:
            where = f"{outcome.scale}, {escaped(outcome.section)}"
            claim = outcome.claim
            lines += [
                f"### {claim.number}. {escaped(claim.statement)} ({where}): {verdict_in_words(outcome)}",
                "",
                f"The paper: \u201c{escaped(claim.sentence)}\u201d",
                "",
                f"Read as: {escaped(claim.rule)}",
                "",
            ]
            lines += [
                f"- {escaped(finding.words)}: **{_held(finding)}**. {escaped(finding.numbers)}"
                for finding in outcome.findings
            ]
            lines.append("")
    lines += ["## What the words mean", "", vocabulary.WORDS, ""]
    lines += ["## Which runs stand for which of the paper's studies", "", *_stand_ins()]
    return "\n".join(lines).rstrip() + "\n"


def claims_table(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each claim and scale: what the paper says, what our runs say, and how many parts of it hold."""
    lines = [
        "| no. | paper | claim | scale, runs | ours | with failed runs | parts that hold |",
        "|---|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        held = [finding.holds for finding in outcome.findings]
        parts = f"{held.count(True)} of {len(held)}" if held else ""
        where = f"{outcome.scale}: {escaped(outcome.section)}" if outcome.scale else "–"
        claim = outcome.claim
        words = (claim.number, escaped(claim.study), escaped(claim.statement), where)
        verdicts = (verdict_in_words(outcome, "**"), outcome.with_failed or "", parts)
        lines.append(f"| {' | '.join(map(str, (*words, *verdicts)))} |")
    return lines


def verdict_in_words(outcome: Outcome, mark: str = "") -> str:
    """The verdict, and why where it is undecided: "undecided: within noise, too few seeds"."""
    return f"{mark}{outcome.verdict}{mark}" + (f": {', '.join(outcome.reasons)}" if outcome.reasons else "")


def _held(finding: Finding) -> str:
    return {True: "holds", False: "does not hold", None: f"not decided ({finding.reason})"}[finding.holds]


def _stand_ins() -> list[str]:
    scales = list(SCALES)
    lines = [f"| paper | {' | '.join(scales)} |", f"|---|{'---|' * len(scales)}"]
    for study in SCALES["full"]:
        lines.append(f"| {study} | {' | '.join(SCALES[scale].get(study, '–') for scale in scales)} |")
    return lines


def _opening(report: Report) -> str:
    runs, failed = report.runs, [run.name for run in report.runs if run.failed]
    words = [f"{_amount(report)}."]
    if failed:
        words.append(
            f"{len(failed)} of them failed by the failed-run rule ({', '.join(escaped(name) for name in failed)}); "
            "figures and tables of each study are given with all runs and without these, and so are the numbers of the "
            "effect."
        )
    elif all(run.failed is False for run in runs):
        words.append("None failed by the failed-run rule.")
    if report.left_out:
        words.append(f"{len(report.left_out)} left out:")
    lines = [" ".join(words), ""]
    lines += [f"- {escaped(run.path)}: {escaped(run.reason)}" for run in report.left_out]
    lines += ["", *(f"- {escaped(note)}" for note in report.notes)] if report.notes else []
    counted = any(contents.section.object_counts() for contents in report.sections)
    scenes = "images with two or more visible objects" if counted else "all images"
    undefined = " Undefined scores (no foreground) are left out and counted." if counted else ""
    lines += [
        "",
        f"A run's score is the mean over {scenes}; over runs the median and the maximal deviation from it are "
        f"given.{undefined}",
    ]
    return "\n".join(lines).strip()


def _effects(effects: Sequence[Effect], choice: Choice) -> list[str]:
    """How scores change with three times the training K: figures, then the numbers."""
    if not effects:
        return []
    lines = [f"## The effect: {as_many(effects)} as many slots as in training", ""]
    for forest in forests(choice.of_effects(effects)):
        lines += [f"![{forest.caption}]({forest.file}.svg)", "", f"*{forest.caption}*", ""]
    lines += [DEFINITION, "", effects_to_markdown([effect for effect in effects if effect.which == ALL])]
    without_failed = [effect for effect in effects if effect.which == WITHOUT_FAILED]
    if not without_failed:
        return lines
    words = "Of the studies in which runs failed, the same without these:"
    return [*lines, "### Without failed runs", "", words, "", effects_to_markdown(without_failed)]


def _section(contents: SectionContents, choice: Choice) -> list[str]:
    section = contents.section
    lines = [f"## {escaped(section.title)} {section.factors}", ""]
    if section.where:
        stands = "In the paper" if section.study in SCALES["full"] else "A small stand-in"
        lines += [f"{stands}: {escaped(section.where)}.", ""]
    if section.changes:
        lines += [f"Not as registered: {escaped('; '.join(section.changes))}.", ""]
    labels = looks(section.norms)
    shown = ", ".join(f"{escaped(labels[norm].label)} {count}" for norm, count in contents.failures.items())
    lines += [f"Runs that did not fail: {shown}.", ""]
    lines += _label_free(contents)
    results = contents.results
    for which, some in (("", results.figures), (" (without failed runs)", results.figures_without_failed or ())):
        for figure in some:
            lines += _figure(contents, figure, which, choice)
    if results.table is not None:
        lines.append(to_markdown(results.table))
    if results.table_without_failed is not None:
        lines += without_failed_to_markdown(results.table_without_failed)
    for which, held in (("", results.background), (" (without failed runs)", results.background_without_failed)):
        if held is not None:
            lines += _background(contents, held, which, choice)
    for which, counted in (("", results.counting), (" (without failed runs)", results.counting_without_failed)):
        if counted is not None:
            lines += _counting(contents, counted, which, choice)
    if contents.illustration is not None:
        for k in (*contents.picture_slots(), None):
            words = "over K" if k is None else f"with {k} slots"
            words = f"Segmentations of {escaped(contents.illustration.dataset)} {words}"
            lines += [f"![{words}]({contents.picture_file(k)})", "", f"*{words}*", ""]
    if contents.diagnostics is not None:
        if choice.of_diagnostics(contents.diagnostics) is not None:
            lines += [f"![Inside the models]({contents.diagnostics_file()})", ""]
        lines += [*_diagnostics(contents), ""]
    lines += _excluded_scenes(contents)
    lines += [*(f"- {escaped(note)}" for note in contents.notes), ""] if contents.notes else []
    return lines


def _label_free(contents: SectionContents) -> list[str]:
    """What masks alone tell, where the scenes have no true ones."""
    verdicts = label_free.verdicts(contents.section)
    if not verdicts:
        return []
    lines = [f"### {label_free.TITLE}", "", label_free.WORDS, "", f"| run | {' | '.join(label_free.COLUMNS)} |"]
    lines.append("|---" * (1 + len(label_free.COLUMNS)) + "|")
    lines += [f"| {' | '.join(map(escaped, (verdict.run, *verdict.cells)))} |" for verdict in verdicts]
    return [*lines, "", *(f"- {escaped(verdict.advice)}" for verdict in verdicts if verdict.advice), ""]


def _figure(contents: SectionContents, figure: Figure, which: str, choice: Choice) -> list[str]:
    """A figure with its caption, and what is not drawn of it."""
    chosen, words = choice.of(figure), escaped(figure.caption) + which
    note = f" {escaped(chosen.left_out)}" if chosen.noise else ""
    if chosen.figure is None:
        return [f"*{words}*{note}", ""] if note else []
    return [f"![{words}]({contents.figure_file(figure)})", "", f"*{words}*{note}", ""]


def _background(contents: SectionContents, held: Background, which: str, choice: Choice) -> list[str]:
    """The figure on F-ARI and the background, what it says, and its numbers."""
    lines = [f"### {TITLE}{which}", ""]
    lines += [line for paragraph in held.words for line in (escaped(paragraph), "")] if not which else []
    lines += _figure(contents, held.figure, which, choice)
    return [*lines, to_markdown(held.table)] if held.table is not None else lines


def _counting(contents: SectionContents, counted: Counting, which: str, choice: Choice) -> list[str]:
    """The figure on the number of objects, what it says, and its numbers."""
    words = [] if which else [escaped(count_figure.WORDS), ""]
    figure = _figure(contents, counted.figure, which, choice)
    return [f"### {count_figure.TITLE}{which}", "", *words, *figure, to_markdown(counted.table)]


def _diagnostics(contents: SectionContents) -> list[str]:
    measured = contents.diagnostics
    if measured is None:
        return []
    labels = looks(measured.counts)
    lines = []
    if measured.mass_errors:
        errors = ", ".join(f"{escaped(labels[norm].label)} {error:.1e}" for norm, error in measured.mass_errors.items())
        lines.append(f"Largest error of the mass read off the codes, as a share of the tokens: {errors}.")
    for norm, reason in measured.refused.items():
        lines.append(f"{escaped(labels[norm].label)}: {escaped(reason)}.")
    return lines


def _excluded_scenes(contents: SectionContents) -> list[str]:
    """Scenes that the headline numbers leave out."""
    shown = [scenes for scenes in contents.excluded if scenes.few or scenes.undefined]
    if not shown:
        return []
    labels = looks(scenes.norm for scenes in shown)
    heads = ("set", "", "scenes in the headline", "without F-ARI", "fewer than two visible", "F-ARI of those")
    lines = [f"Scenes apart, at {contents.section.train_slots} slots:", ""]
    lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for scenes in shown:
        value = "–" if scenes.f_ari_of_few != scenes.f_ari_of_few else fixed(scenes.f_ari_of_few)
        cells = (
            escaped(scenes.dataset),
            escaped(labels[scenes.norm].label),
            scenes.scored,
            scenes.undefined,
            scenes.few,
            value,
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return [*lines, ""]


def _claims_in_short(outcomes: Sequence[Outcome]) -> str:
    claims = len({outcome.claim.number for outcome in outcomes})
    return f"Of {claims} claims, at each scale that was run: {in_short(outcomes)}"


def _provenance(report: Report) -> list[str]:
    lines = ["| run | steps | weights | scenes | failed | command |", "|---|---|---|---|---|---|"]
    for entry in report.provenance:
        scenes: dict[str, Any] = entry["scenes"] or {}
        sets = ", ".join(
            f"{escaped(name)} {str(facts['scenes'])[:12]} ({facts['num_scenes']} scenes)"
            for name, facts in scenes.items()
        )
        reason = (entry["binding"] or {}).get("reason", "")
        judged = {True: f"yes: {reason}", False: "no", None: "not asked"}[entry["failed"]]
        command = one_line(entry["command"] or "").replace("`", "").replace("|", "")
        cells = [escaped(entry["run"]), entry["step"] or "", str(entry["weights"])[:12], sets, escaped(judged)]
        lines.append(f"| {' | '.join(map(str, cells))} | {f'`{command}`' if command else ''} |")
    versions = {json_like for entry in report.provenance if (json_like := _versions(entry["versions"] or {}))}
    return [*lines, "", *(f"Evaluated with {escaped(words)}." for words in sorted(versions))]


def _versions(versions: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
