"""Tables: median ± maximal deviation over seeds, the best of each section underlined, the best of all bold.

A `Table` is plain data; `to_markdown` and `to_csv` write it down, and latex.py. One run alone has no deviation.
"""

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slotnorm import experiments
from slotnorm.metrics import all_metrics
from slotnorm.report import safe_names
from slotnorm.report.appearance import fixed, looks, measure
from slotnorm.report.curves import runs_of
from slotnorm.report.paper_numbers import Printed, printed
from slotnorm.report.scores import Spread, spread
from slotnorm.report.sections import Section

ZERO_SHOT_METRICS = ("f_ari", "l2", "ari")  # in the paper's order


@dataclass(frozen=True)
class Cell:
    """One number of the table."""

    spread: Spread
    paper: Printed | None = None
    best_in_section: bool = False
    best_of_all: bool = False


@dataclass(frozen=True)
class Line:
    """One normalization."""

    norm: str
    label: str
    runs: str
    """How many, "3 of 5 runs" where failed ones are left out."""
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Part:
    """Lines that are compared with each other."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Table:
    """What is written down as Markdown, LaTeX and CSV."""

    name: str
    """For files."""
    caption: str
    metrics: tuple[str, ...]
    parts: tuple[Part, ...]
    bold: bool = True
    """Whether parts are compared with each other, too."""

    @property
    def has_runs(self) -> bool:
        """False where every run failed and failed ones are left out."""
        return any(cell.spread.runs for part in self.parts for line in part.lines for cell in line.cells)

    @property
    def has_paper(self) -> bool:
        return any(cell.paper for part in self.parts for line in part.lines for cell in line.cells)


def zero_shot(
    sections: Sequence[Section], transfer: experiments.Transfer, leave_out_failed: bool = False
) -> Table | None:
    """The paper's table of a transfer: a part for each study, on the transfer's set with its K; None without rows."""
    test, parts = transfer.test.name, []
    paper = transfer if transfer.paper is None else experiments.transfers()[transfer.paper]
    for study, paper_study in zip(transfer.studies, paper.studies, strict=True):
        stands_for = "" if paper is transfer else f", as the paper's {_factors(paper_study)}"
        for section in (section for section in sections if section.study == study):
            shown = section.without_failed() if leave_out_failed else section
            lines = _lines(section, shown, ZERO_SHOT_METRICS, test, transfer.slots, leave_out_failed)
            lines = [
                replace(line, cells=tuple(
                    replace(cell, paper=printed(paper.name, paper_study, line.norm, metric))
                    for cell, metric in zip(line.cells, ZERO_SHOT_METRICS, strict=True)
                ))
                for line in lines
            ]  # fmt: skip
            if lines:
                parts.append(Part(f"{section.title} {section.factors}{stands_for}", tuple(lines)))
    if not parts:
        return None
    fewest, most = transfer.test.objects
    caption = f"Zero-shot on {test} ({fewest} to {most} objects) with {transfer.slots} slots."
    caption += " Median ± maximal deviation over runs."
    if paper is not transfer:
        caption += f" The paper's table is on {paper.test.name} with {paper.slots} slots."
    name = f"{transfer.name} zero-shot{' without failed runs' * leave_out_failed}"
    return mark(Table(name, caption, ZERO_SHOT_METRICS, tuple(parts)))


def _factors(study: str) -> str:
    experiment = experiments.study(study).experiment
    return f"({experiment.max_objects}, {experiment.slots})"


def study_table(section: Section, leave_out_failed: bool = False) -> Table | None:
    """A study's own table: each test set at the training K, at that of the object panels and at a high K."""
    metrics = tuple(
        name for name, metric in all_metrics().items() if metric.in_study_table and name in section.metrics()
    )
    shown = section.without_failed() if leave_out_failed else section
    parts = []
    for dataset in section.sets:
        known = set(section.slots(dataset))
        for slots in sorted({section.train_slots, section.object_slots, section.high_slots} & known):
            lines = _lines(section, shown, metrics, dataset, slots, leave_out_failed)
            trained = " (training K)" if slots == section.train_slots else ""
            if lines:
                parts.append(Part(f"{dataset}, {slots} slots{trained}", tuple(lines)))
    if not parts:
        return None
    caption = f"{section.title} {section.factors}. Median ± maximal deviation over runs."
    return mark(
        Table(f"{section.title}{' without failed runs' * leave_out_failed}", caption, metrics, tuple(parts), bold=False)
    )


def mark(table: Table) -> Table:
    """The same table with its best cells marked; numbers that look the same are marked alike, a line alone is not."""
    parts = list(table.parts)
    for column, metric in enumerate(table.metrics):
        decimals, higher = decimals_of(table, column), measure(metric).higher_is_better

        def best(lines: Sequence[Line], column: int = column, decimals: int = decimals, higher: bool = higher) -> float:
            medians = [round(line.cells[column].spread.median, decimals) for line in lines]
            known = [median for median in medians if median == median]
            compared = known and len(lines) > 1  # a line alone is not the best of anything
            return (max(known) if higher else min(known)) if compared else math.nan

        of_all = best([line for part in parts for line in part.lines])
        for index, part in enumerate(parts):
            of_part = best(part.lines)
            lines = []
            for line in part.lines:
                cell, value = line.cells[column], round(line.cells[column].spread.median, decimals)
                marked = replace(cell, best_in_section=value == of_part, best_of_all=table.bold and value == of_all)
                lines.append(replace(line, cells=(*line.cells[:column], marked, *line.cells[column + 1 :])))
            parts[index] = replace(part, lines=tuple(lines))
    return replace(table, parts=tuple(parts))


def decimals_of(table: Table, column: int) -> int:
    """How many decimals a column shows: three, and more where the smallest number would lose its digits."""
    medians = [abs(line.cells[column].spread.median) for part in table.parts for line in part.lines]
    least = min((median for median in medians if median > 0), default=1.0)
    shown = measure(table.metrics[column])
    if shown.higher_is_better or shown.is_share:
        return 3
    return max(3, 2 - math.floor(math.log10(least)))


def to_markdown(table: Table) -> str:
    """A Markdown table; the section's best underlined, the best of all bold, the paper's number in brackets."""

    def shown(cell: Cell, decimals: int) -> str:
        if not cell.spread.runs:
            return with_paper("–", cell, str)
        median = fixed(cell.spread.median, decimals)
        median = f"**{median}**" if cell.best_of_all else median
        text = f"{median} ± {cell.spread.deviation:.{decimals}f}" if cell.spread.runs > 1 else median
        return with_paper(f"<u>{text}</u>" if cell.best_in_section else text, cell, str)

    heads = [f"{measure(metric).label} {measure(metric).arrow}" for metric in table.metrics]
    lines = [f"{safe_names.markdown(table.caption)}{brackets(table)}", "", f"| | runs | {' | '.join(heads)} |"]
    lines.append(f"|---|---|{'---|' * len(heads)}")
    for part in table.parts:
        lines.append(f"| *{safe_names.markdown(part.title)}* | |{' |' * len(heads)}")
        for line in part.lines:
            cells = [shown(cell, decimals_of(table, column)) for column, cell in enumerate(line.cells)]
            lines.append(f"| {safe_names.markdown(line.label)} | {line.runs} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def without_failed_to_markdown(table: Table) -> list[str]:
    """Lines of a table that leaves out failed runs, or that there is none without them."""
    if not table.has_runs:
        return ["Without failed runs none is left.", ""]
    return ["Without failed runs:", "", to_markdown(table)]


def to_csv(table: Table) -> str:
    """The table's numbers in full, one line per cell."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([
        "section", "norm", "runs", "metric", "median", "deviation", "low", "high", "scored_runs", "best_in_section",
        "best_of_all", "paper_median", "paper_deviation",
    ])  # fmt: skip
    for part in table.parts:
        for line in part.lines:
            for metric, cell in zip(table.metrics, line.cells, strict=True):
                numbers = ["" if value != value else repr(value) for value in cell.spread[:4]]
                paper = cell.paper or ("", "")
                marks = (int(cell.best_in_section), int(cell.best_of_all))
                writer.writerow([part.title, line.norm, line.runs, metric, *numbers, cell.spread.runs, *marks, *paper])
    return buffer.getvalue()


def _lines(
    section: Section, shown: Section, metrics: Sequence[str], dataset: str, slots: int, leave_out: bool
) -> list[Line]:
    lines = []
    for norm, appearance in looks(section.norms).items():
        cells = tuple(Cell(at_slots(shown, norm, metric, dataset, slots)) for metric in metrics)
        evaluated = any(
            run.slots(dataset, metric, section.source(metric)) for run in section.of(norm) for metric in metrics
        )
        if evaluated:
            lines.append(Line(norm, appearance.label, runs_of(section, norm, leave_out), cells))
    return lines


def at_slots(section: Section, norm: str, metric: str, dataset: str, slots: int) -> Spread:
    """One number of a table: over all scenes of a set, at one K."""
    source = section.source(metric)
    return spread(run.mean(dataset, metric, slots, source=source).value for run in section.of(norm))


def with_paper(text: str, cell: Cell, form: Callable[[str], str]) -> str:
    """A cell's text, and behind it the paper's number where it prints one."""
    if cell.paper is None:
        return text
    return f"{text} ({form(f'{cell.paper.median:.3f} ± {cell.paper.deviation:.3f}')})"


def brackets(table: Table) -> str:
    """What a caption says of the paper's numbers."""
    return " In brackets the paper's numbers." if table.has_paper else ""
