"""Publish results from the rows in results/: the tables of README.md and docs/results*, figures and their numbers.

    python docs/make_results.py         # pages, docs/images/results, results/curves.csv

Runs come into results/ by `docs/publish.py`.

What is made stands in the pages between `<!-- made: NAME -->` and `<!-- end -->`; all other words are written by hand.
"""

import dataclasses
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from slotnorm import experiments
from slotnorm.config import SLOTS_FACTOR
from slotnorm.experiments import MAIN
from slotnorm.report.appearance import fixed, looks, signed
from slotnorm.report.claims.checking import claims, in_short
from slotnorm.report.claims.vocabulary import WORDS
from slotnorm.report.contents import Report, SectionContents, compose
from slotnorm.report.curves import figures
from slotnorm.report.drawing.curve_figures import draw
from slotnorm.report.effects import ALL, DEFINITION, PROPOSED_LESS_OTHERS, shown_interval
from slotnorm.report.effects import to_markdown as effects_table
from slotnorm.report.model_views import Inspector
from slotnorm.report.pictures import scene_strip
from slotnorm.report.prose import claims_table
from slotnorm.report.reading import read
from slotnorm.report.scores import RunScores, spread
from slotnorm.report.tables import at_slots, to_markdown
from slotnorm.report.writing import write_report

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PICTURES = ROOT / "docs" / "images" / "results"
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("results.md", "claims.md")),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
)
CURVES = RESULTS / "curves.csv"
EFFECT = RESULTS / "effect.csv"
MAIN_STUDY = "toy"  # whose pictures open the README
STRIP, STRIP_SCENES = ("weighted_mean", "weighted_sum"), 6  # of the proposed the one whose median run finds objects
TOLD = {
    "toy-features-4-5": "On frozen features ([12 runs](docs/results/features.md))",
    "toy-properties": "In [property prediction](docs/results/properties.md)",
}
SUMMARIZED = (("F-ARI", "f_ari", 3), ("ARI", "ari", 3), ("ℓ²", "l2", 4), ("AP∞", "ap@inf", 3))  # decimals


def studies(results: Path = RESULTS) -> list[Path]:
    """The folders of published runs, one per study; results/unfinished holds runs that are still in training."""
    return sorted(path for path in results.iterdir() if path.is_dir() and path.name != "unfinished")


def rebuild(out: Path, results: Path = RESULTS) -> Report:
    """The report of everything published, without models."""
    return write_report(studies(results), out, models=False, rows=False)


def recompute(results: Path = RESULTS) -> Report:
    """The same numbers, with nothing drawn and nothing written."""
    return compose(read(studies(results)), diagnose=Inspector(run_models=False).diagnose)


def made(report: Report) -> dict[str, str]:
    """Every made part of the pages, by name."""
    parts = {"claims": _claims(report), "full scale": _full_scale(), "rules": _rules(), "words": WORDS}
    parts["claims in short"] = f"Of the paper's 30 claims, at each scale that was run: {in_short(report.outcomes)}."
    told = [effect for effect in report.effects if (effect.place, effect.which) == (0, ALL)]
    parts["effect"] = f"{DEFINITION}\n\n{effects_table(told)}".rstrip()
    parts["effect in words"] = " ".join(_effect_in_words(report, study, words) for study, words in TOLD.items())
    for contents in report.sections:
        name = contents.section.study
        parts[f"{name} summary"] = _summary(contents)
        main = [norm for norm in MAIN if norm in contents.section.norms]
        parts[f"{name} in short"] = _summary(contents, main, factors=(1, 3))
        parts[f"{name} runs"] = _runs(contents)
        for table in contents.results.all_tables():
            parts[f"{name} {Path(contents.table_file(table)).stem}"] = to_markdown(table).rstrip()
    for pair in report.zero_shot:
        for transferred in pair:
            if transferred is not None:
                parts[transferred.name] = to_markdown(transferred).rstrip()
    return parts


def fill(page: str, parts: dict[str, str]) -> str:
    """The page with its made parts put in; a part that nobody makes is an error."""

    def put(found: re.Match[str]) -> str:
        return f"<!-- made: {found[1]} -->\n{parts[found[1]]}\n<!-- end -->"

    return re.sub(r"<!-- made: ([^>]+) -->\n.*?<!-- end -->", put, page, flags=re.DOTALL)


def _summary(contents: SectionContents, norms: Sequence[str] | None = None, factors: Sequence[int] = (1, 2, 3)) -> str:
    """Medians over runs, of means over scenes, at multiples of the training K; few objects; and how far F-ARI moved."""
    section = contents.section
    dataset, source = section.sets[0], section.source("f_ari")
    numbers = sorted({factor * section.train_slots for factor in factors} & set(section.slots()))
    columns: list[tuple[str, str, int, int]] = []
    for label, metric, decimals in SUMMARIZED:
        if metric in section.metrics():
            columns += [(f"{label}, K {number}", metric, number, decimals) for number in numbers]
    first, last = numbers[0], numbers[-1]
    moved = f"change of F-ARI from K {first} to {last}: median of the runs' (range)"
    lines = [[dataset, "runs", *(title for title, *_ in columns), moved]]
    for norm, look in looks(norms or section.norms).items():
        runs = section.of(norm)
        medians = [at_slots(section, norm, metric, dataset, number).median for _, metric, number, _ in columns]
        cells = [fixed(median, decimals) for median, (*_, decimals) in zip(medians, columns, strict=True)]
        changes = spread(_f_ari(run, dataset, last, source) - _f_ari(run, dataset, first, source) for run in runs)
        span = f" ({signed(changes.low)} to {signed(changes.high)})" if len(runs) > 1 else ""
        lines.append([look.label, str(len(runs)), *cells, f"{signed(changes.median)}{span}"])
    return _table(lines)


def _f_ari(run: RunScores, dataset: str, slots: int, source: str) -> float:
    return run.mean(dataset, "f_ari", slots, source=source).value


def _effect_in_words(report: Report, study: str, words: str) -> str:
    """A sentence on one study: each normalization's change of F-ARI, and how much more the others lose."""
    (effect,) = (
        effect
        for effect in report.effects
        if (effect.study, effect.metric, effect.place, effect.which) == (study, "f_ari", 0, ALL)
    )
    told = [f"{signed(change.median)} ({change.label})" for change in effect.changes if change.norm in MAIN]
    gap = next(pair for pair in effect.differences if (pair.norm, pair.than) == PROPOSED_LESS_OTHERS)
    return (
        f"{words} from {effect.slots[0]} to {effect.slots[1]} slots F-ARI changes by {', '.join(told[:-1])} and "
        f"{told[-1]}; the proposed two minus the others: {signed(gap.value)} {shown_interval(gap.interval)}."
    )


def _runs(contents: SectionContents) -> str:
    """Each run at the training K, with the statistics of the failed-run rule."""
    section = contents.section
    dataset, number = section.sets[0], section.train_slots
    metrics = [(label, name) for label, name in (("F-ARI", "f_ari"), ("ARI", "ari")) if name in section.metrics()]
    scored = [f"{label}, K {number}" for label, _ in metrics]
    lines = [[f"on {dataset}", *scored, "moving", "sharing", "coherence", "slots"]]
    for norm in section.norms:
        for run in sorted(section.of(norm), key=lambda member: member.seed):
            scores = [run.mean(dataset, name, number, source=section.source(name)).value for _, name in metrics]
            judged = run.facts["binding"]
            statistics = [f"{judged[name]:.2f}" for name in ("moving", "sharing", "coherence")]
            verdict = f"FAILED: {judged['reason']}" if judged["failed"] else "follow objects"
            lines.append([f"`{run.name}`", *map(fixed, scores), *statistics, verdict])
    return _table(lines)


def main_figure(contents: SectionContents) -> bytes:
    """F-ARI against the number of slots on the set with few objects, the main normalizations alone, as PNG."""
    section = contents.section
    chosen = dataclasses.replace(section, runs=tuple(run for run in section.runs if run.norm in MAIN))
    figure = figures(chosen)[0]
    return draw(dataclasses.replace(figure, rows=((figure.rows[0][0],),)))["png"]


def main_strip(contents: SectionContents) -> bytes:
    """The first scenes with three times the training K: the baseline beside batch norm, as PNG."""
    assert contents.illustration is not None
    return scene_strip(contents.illustration, STRIP, SLOTS_FACTOR * contents.section.train_slots, range(STRIP_SCENES))


def _claims(report: Report) -> str:
    """Of the paper's claims those that some run can speak to."""
    told = [outcome for outcome in report.outcomes if outcome.scale]
    return "\n".join([f"Of the paper's 30 claims: {in_short(report.outcomes)}.", "", *claims_table(told)])


def _rules() -> str:
    """Each claim: the paper's sentence, and beside it how it is read."""
    lines = [["no.", "paper's study", "the paper's words", "read as"]]
    lines += [[str(claim.number), claim.study, f"“{claim.sentence}”", claim.rule] for claim in claims()]
    return _table(lines)


def _full_scale() -> str:
    """What the paper's own studies would take: runs, estimated hours on one GPU, and the command."""
    lines = [["study", "in the paper", "runs", "GPU hours per run", "all runs, days", "command"]]
    for study in experiments.studies().values():
        if study.basis == experiments.ESTIMATE:
            runs = len(study.seeds) * len(study.norms)
            days, command = f"{runs * study.hours / 24:.0f}", f"`slotnorm reproduce {study.name}`"
            lines.append([study.name, study.where, str(runs), f"{study.hours:g}", days, command])
    return _table(lines)


def _table(lines: Sequence[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([rows[0], f"|{'---|' * len(lines[0])}", *rows[1:]])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report"
        report = rebuild(out)
        shutil.copy(out / "curves.csv", CURVES)
        shutil.copy(out / "effect.csv", EFFECT)
        shutil.rmtree(PICTURES, ignore_errors=True)
        PICTURES.mkdir(parents=True)
        for picture in sorted([*out.glob("figures/*.png"), *out.glob("pictures/*.png")]):
            if any(f"results/{picture.name}" in page.read_text(encoding="utf-8") for page in PAGES):
                shutil.copy(picture, PICTURES / picture.name)
    (opening,) = (contents for contents in report.sections if contents.section.study == MAIN_STUDY)
    (PICTURES / f"{MAIN_STUDY}-main.png").write_bytes(main_figure(opening))
    (PICTURES / f"{MAIN_STUDY}-strip.png").write_bytes(main_strip(opening))
    parts = made(report)
    for page in PAGES:
        page.write_text(fill(page.read_text(encoding="utf-8"), parts), encoding="utf-8")


if __name__ == "__main__":
    main()
