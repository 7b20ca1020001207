"""Everything a report shows, as plain data: what the files of a report and its page are drawn from.

collection = read(paths)                  # runs and what was left out
report = compose(collection, ...)         # figures, tables, claims, pictures
write(report, folder)                   # writing.py: files;  page.py: the one page
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotnorm import experiments
from slotnorm.report.appearance import looks
from slotnorm.report.background_figure import Background, background
from slotnorm.report.claims.checking import Outcome, check_claims
from slotnorm.report.count_figure import Counting, counting
from slotnorm.report.curves import Figure, figures, runs_of
from slotnorm.report.diagnostics import Diagnostics
from slotnorm.report.effects import Effect, effects
from slotnorm.report.pictures import Illustration
from slotnorm.report.reading import RunCollection
from slotnorm.report.safe_names import file_name
from slotnorm.report.scores import RunScores
from slotnorm.report.sections import Section
from slotnorm.report.tables import Table, study_table, zero_shot
from slotnorm.training.runs import Objection


@dataclass(frozen=True)
class SectionResults:
    """Figures and a table of a section with all runs, and without the failed ones: None if none failed."""

    figures: tuple[Figure, ...]
    table: Table | None
    figures_without_failed: tuple[Figure, ...] | None = None
    table_without_failed: Table | None = None
    background: Background | None = None
    background_without_failed: Background | None = None
    counting: Counting | None = None
    counting_without_failed: Counting | None = None

    def all_figures(self) -> tuple[tuple[str, Figure], ...]:
        """Every figure with the runs that it shows: "all" or "without failed"."""
        held = [
            ("all", self.background), ("without failed", self.background_without_failed),
            ("all", self.counting), ("without failed", self.counting_without_failed),
        ]  # fmt: skip
        return (
            *(("all", figure) for figure in self.figures),
            *(("without failed", figure) for figure in self.figures_without_failed or ()),
            *((which, shown.figure) for which, shown in held if shown is not None),
        )

    def all_tables(self) -> tuple[Table, ...]:
        """Every table, with and without failed runs."""
        several = (
            self.background, self.background_without_failed, self.counting, self.counting_without_failed,
        )  # fmt: skip
        held = (shown.table for shown in several if shown is not None)
        return tuple(table for table in (self.table, self.table_without_failed, *held) if table is not None)


@dataclass(frozen=True)
class ExcludedScenes:
    """Scenes that headline numbers leave out, for one normalization on one set at the training K."""

    norm: str
    dataset: str
    scored: int
    """Scenes behind the headline numbers, per run."""
    undefined: int
    """Among them without foreground pixels: no F-ARI."""
    few: int
    """Scenes with fewer than two visible objects."""
    f_ari_of_few: float


@dataclass(frozen=True)
class SectionContents:
    """One section of the report."""

    section: Section
    stem: str
    """What its files are called."""
    results: SectionResults
    failures: Mapping[str, str]
    """By normalization: "3 of 5 runs" that did not fail, or "5 runs"."""
    excluded: tuple[ExcludedScenes, ...]
    illustration: Illustration | None = None
    diagnostics: Diagnostics | None = None
    notes: tuple[str, ...] = ()

    def figure_file(self, figure: Figure, suffix: str = "svg") -> str:
        """Where a figure is drawn to, below the report's folder; without an ending where `suffix` is empty."""
        return f"figures/{self.stem}-{self._rest(figure.name)}{'.' * bool(suffix)}{suffix}"

    def diagnostics_file(self, suffix: str = "svg") -> str:
        """Where the diagnostics are drawn to."""
        return f"figures/{self.stem}-diagnostics{'.' * bool(suffix)}{suffix}"

    def table_file(self, table: Table, suffix: str = "md") -> str:
        """Where a table is written to."""
        rest = self._rest(table.name) if table.name != self.section.title else ""
        return f"tables/{self.stem}{'-' * bool(rest)}{rest}{'.' * bool(suffix)}{suffix}"

    def picture_slots(self) -> list[int]:
        """The K of its visual tables: the training K and a high one."""
        available = set(self.illustration.slots) if self.illustration else set()
        return sorted({self.section.train_slots, self.section.high_slots} & available)

    def picture_file(self, slots: int | None) -> str:
        """Where a visual table is drawn to, or with None the table over K."""
        return f"pictures/{self.stem}-{'over-slots' if slots is None else f'{slots}-slots'}.png"

    def _rest(self, name: str) -> str:
        return file_name(name.removeprefix(self.section.title).strip())


@dataclass(frozen=True)
class Report:
    """All of it."""

    sections: tuple[SectionContents, ...]
    zero_shot: tuple[tuple[Table, Table | None], ...]
    """Each transfer's table with all runs, and without the failed ones where some failed."""
    effects: tuple[Effect, ...]
    """How scores change from the training K to three times it."""
    outcomes: tuple[Outcome, ...]
    left_out: tuple[Objection, ...]
    notes: tuple[str, ...]
    provenance: tuple[Mapping[str, Any], ...]
    """One entry per run: name, path, weights, scenes, versions, command, and what the failed-run rule said."""
    damaged: tuple[Objection, ...] = ()
    """Runs that something happened to since their rows, which are used, were made."""

    @property
    def runs(self) -> list[RunScores]:
        return [run for contents in self.sections for run in contents.section.runs]


Illustrate = Callable[[Section], tuple[Illustration | None, Sequence[str]]]
Diagnose = Callable[[Section], tuple[Diagnostics | None, Sequence[str]]]


def compose(
    collection: RunCollection,
    illustrate: Illustrate = lambda section: (None, ()),
    diagnose: Diagnose = lambda section: (None, ()),
    with_theory: bool = True,
) -> Report:
    """Figures, tables and claims of the runs; pictures and diagnostics come from the two functions, which may have to
    run models, and say in notes what they could not make."""
    sections = []
    stems = _stems(collection.sections)
    for number, section in enumerate(collection.sections):
        illustration, missing = illustrate(section)
        diagnostics, missing_too = diagnose(section)
        failures = {norm: runs_of(section, norm, leave_out=True) for norm in section.norms}
        sections.append(
            SectionContents(
                section,
                stems[number],
                _results(section, diagnostics),
                failures,
                _excluded_scenes(section),
                illustration,
                diagnostics,
                (*missing, *missing_too),
            )
        )
    outcomes = tuple(check_claims(collection.sections, with_theory))
    tables = tuple(_transfer_tables(collection.sections))
    provenance = tuple(_provenance(run) for run in collection.runs)
    changes = effects(collection.sections)
    left_out, notes, damaged = collection.left_out, collection.notes, collection.damaged
    return Report(tuple(sections), tables, changes, outcomes, left_out, notes, provenance, damaged)


def _stems(sections: Sequence[Section]) -> list[str]:
    """A section's files are called after its study, numbered where several sections share it."""
    stems: list[str] = []
    for section in sections:
        name, number = file_name(section.study), 1
        while (stem := name if number == 1 else f"{name}-{number}") in stems:
            number += 1
        stems.append(stem)
    return stems


def _results(section: Section, diagnostics: Diagnostics | None) -> SectionResults:
    everything = tuple(figures(section)), study_table(section)
    held, counted = background(section, diagnostics), counting(section)
    if not section.failures:
        return SectionResults(*everything, background=held, counting=counted)
    without_failed = tuple(figures(section, section.without_failed())), study_table(section, leave_out_failed=True)
    held_without = background(section, diagnostics, leave_out_failed=True)
    return SectionResults(
        *everything, *without_failed, held, held_without, counted, counting(section, leave_out_failed=True)
    )  # fmt: skip


def _transfer_tables(sections: Sequence[Section]) -> list[tuple[Table, Table | None]]:
    pairs = []
    for transfer in experiments.transfers().values():
        if (table := zero_shot(sections, transfer)) is not None:
            failed = any(section.failures for section in sections if section.study in transfer.studies)
            pairs.append((table, zero_shot(sections, transfer, leave_out_failed=True) if failed else None))
    return pairs


def _excluded_scenes(section: Section) -> tuple[ExcludedScenes, ...]:
    excluded = []
    source = section.source("f_ari")
    for dataset in section.sets:
        for norm in looks(section.norms):
            runs = [run for run in section.of(norm) if section.train_slots in run.slots(dataset, "f_ari", source)]
            if runs:
                many = [run.mean(dataset, "f_ari", section.train_slots, source=source) for run in runs]
                few = [run.mean(dataset, "f_ari", section.train_slots, source=source, few=True) for run in runs]
                values = [of_run.value for of_run in few if of_run.scored]
                mean = sum(values) / len(values) if values else float("nan")
                excluded.append(
                    ExcludedScenes(norm, dataset, max(of_run.scored + of_run.undefined for of_run in many),
                          max(of_run.undefined for of_run in (*many, *few)), max(of_run.scored for of_run in few), mean)
                )  # fmt: skip
    return tuple(excluded)


def _provenance(run: RunScores) -> dict[str, Any]:
    facts = run.facts
    return {
        "run": run.name, "norm": run.norm, "seed": run.seed, "protocol": run.protocol, "failed": run.failed,
        **{name: facts.get(name) for name in (
            "path", "command", "step", "seconds", "weights", "scenes", "data", "versions", "noise_seed", "binding",
        )},
    }  # fmt: skip
