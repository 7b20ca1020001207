"""Runs that may be compared: a section holds those that differ in normalization and seed alone."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slotnorm import experiments
from slotnorm.config import SLOTS_FACTOR, Experiment
from slotnorm.errors import UserError
from slotnorm.report.appearance import ordered
from slotnorm.report.scores import RunScores
from slotnorm.storage.serialization import differences, from_document, to_document

_PAPER_HIGH_SLOTS = 21  # of the paper's pictures


@dataclass(frozen=True)
class Section:
    """One study's runs, and what its figures show."""

    title: str
    """The study's name, with what tells it apart where two sections share the name."""
    study: str
    runs: tuple[RunScores, ...]
    reference_runs: tuple[RunScores, ...] = ()
    """Runs of another study that are drawn in the same figures."""
    sets: tuple[str, ...] = ()
    """Test sets, few objects first."""
    where: str = ""
    """In the paper."""
    changes: tuple[str, ...] = ()
    """Where its experiment is not the registered one: "recipe.steps 20 instead of 6000"."""

    @property
    def all_runs(self) -> tuple[RunScores, ...]:
        """Those of the other study that are drawn with them, and its own."""
        return (*self.reference_runs, *self.runs)

    @cached_property
    def norms(self) -> list[str]:
        """Normalizations of all runs, in the registry's order."""
        return ordered(run.norm for run in self.all_runs)

    def of(self, norm: str) -> list[RunScores]:
        """The runs with a normalization."""
        return [run for run in self.all_runs if run.norm == norm]

    @property
    def train_slots(self) -> int:
        return self.all_runs[0].train_slots

    @property
    def train_objects(self) -> int:
        return self.all_runs[0].train_objects

    @property
    def factors(self) -> str:
        """(O, K), the paper's annotation; the slots alone where nobody counted the objects."""
        return (
            f"({self.train_objects}, {self.train_slots})" if self.train_objects > 0 else f"({self.train_slots} slots)"
        )

    @cached_property
    def object_slots(self) -> int:
        """K of the panels over object counts: one slot more than the most objects, as the paper's 11 on CLEVR10.

        Where objects are not counted it is the training K.
        """
        counts = self.object_counts()
        return self.nearest_slots(max(counts) + 1 if counts else self.train_slots)

    @cached_property
    def high_slots(self) -> int:
        """K of pictures and tables with many slots: three times the training K, at most the paper's 21."""
        highest = SLOTS_FACTOR * self.train_slots
        return self.nearest_slots(min(highest, max(_PAPER_HIGH_SLOTS, self.train_slots)))

    def slots(self, dataset: str | None = None) -> list[int]:
        """Every K that some run was evaluated with, on a set or on all of the section's."""
        sets = self.sets if dataset is None else (dataset,)
        numbers = {
            slots
            for run in self.all_runs
            for (name, _, _), tally in run.tallies.items()
            if name in sets
            for slots in tally.all_slots
        }
        return sorted(numbers)

    def nearest_slots(self, wanted: int) -> int:
        """`wanted`, or the next larger K that was evaluated, or the largest one."""
        known = self.slots() or [wanted]
        return min((slots for slots in known if slots >= wanted), default=known[-1])

    def object_counts(self) -> list[int]:
        """Object counts of the scenes of its sets."""
        counts = {
            count
            for run in self.all_runs
            for dataset, source, metric in run.tallies
            if dataset in self.sets
            for count in run.objects(dataset, metric, source)
        }
        return sorted(counts)

    def metrics(self) -> set[str]:
        return {metric for run in self.all_runs for dataset, _, metric in run.tallies if dataset in self.sets}

    def source(self, metric: str) -> str:
        """Where the metric's headline values are read from: masks, or attention where there are no masks."""
        sources = self._sources.get(metric, ())
        return "masks" if "masks" in sources or not sources else sorted(sources)[0]

    @cached_property
    def _sources(self) -> dict[str, set[str]]:
        """By metric."""
        sources: dict[str, set[str]] = {}
        for run in self.all_runs:
            for _, source, metric in run.tallies:
                sources.setdefault(metric, set()).add(source)
        return sources

    @cached_property
    def failures(self) -> int:
        """How many runs failed by the rule."""
        return sum(run.failed is True for run in self.all_runs)

    def on_usual_scenes(self) -> "Section":
        """The same on the sets whose objects have the sizes of training: others are beyond what the paper tries."""
        study = experiments.studies().get(self.study)
        resized = {test.name for test in study.tests if test.radius is not None} if study else set()
        return dataclasses.replace(self, sets=tuple(name for name in self.sets if name not in resized))

    def without_failed(self) -> "Section":
        """The same with the runs that did not fail."""
        return dataclasses.replace(
            self,
            runs=tuple(run for run in self.runs if not run.failed),
            reference_runs=tuple(run for run in self.reference_runs if not run.failed),
        )


def divide(runs: Iterable[RunScores]) -> list[Section]:
    """Sections of runs whose experiments are the same but for normalization and seed, in the order of the registry.

    A run says its experiment in `facts["experiment"]`, a document; rows that come without are told apart by what the
    columns say.
    """
    groups: list[tuple[dict[str, Any], list[RunScores]]] = []
    for run in runs:
        shared = _shared(run)
        members = next((members for known, members in groups if known == shared), None)
        if members is None:
            groups.append((shared, [run]))
        else:
            members.append(run)
    known = list(experiments.studies())
    groups.sort(
        key=lambda group: (known.index(group[0]["name"]) if group[0]["name"] in known else len(known), group[0]["name"])
    )
    sections = [_section(shared, members, groups) for shared, members in groups]
    return [_with_runs_beside(section, sections) for section in sections]


def _shared(run: RunScores) -> dict[str, Any]:
    """What the run has in common with those it may be compared with."""
    document = run.facts.get("experiment")
    if not isinstance(document, dict):
        name = run.name.removesuffix(f"-{run.norm}-{run.seed}")
        return {"name": name, "max_objects": run.train_objects, "slots": run.train_slots}
    return {name: value for name, value in document.items() if name not in ("norm", "seed")}


def _section(shared: dict[str, Any], runs: list[RunScores], groups: Sequence[tuple[dict[str, Any], Any]]) -> Section:
    twins: dict[tuple[str, int], RunScores] = {}
    for run in runs:
        if (other := twins.setdefault((run.norm, run.seed), run)) is not run:
            places = " and ".join(str(twin.facts.get("path", twin.name)) for twin in (other, run))
            raise UserError(f"{places} are both {shared['name']} with {run.norm} and seed {run.seed}; give one of them")
    name = str(shared["name"])
    others = [other for other, _ in groups if other["name"] == name and other is not shared]
    apart = {field: old for other in others for field, old, _ in _differences(shared, other)}
    title = name + (f" ({', '.join(f'{field} {value}' for field, value in apart.items())})" if apart else "")
    study = experiments.studies().get(name)
    order = ordered(run.norm for run in runs)
    runs = sorted(runs, key=lambda run: (order.index(run.norm), run.seed))
    where, changes = (study.where, _changes(study, shared)) if study else ("", ())
    if name == experiments.OWN:  # no study of the paper, and its pictures decide how it is trained
        where, changes = "", ()
    return Section(title, name, tuple(runs), sets=_sets(name, runs), where=where, changes=changes)


def _changes(study: experiments.Study, shared: dict[str, Any]) -> tuple[str, ...]:
    """How these runs were trained otherwise than the registered study."""
    registered = to_document(study.experiment)
    if shared.keys() < registered.keys() - {"norm", "seed"}:  # rows that do not say their experiment
        registered = {name: registered[name] for name in shared}
    changed = [change for change in _differences(registered, shared) if change[0] not in ("norm", "seed")]
    return tuple(f"{field} {new} instead of {old}" for field, old, new in changed)


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Where two experiments differ; what a document leaves out, since it is at its default, is said."""
    try:
        pair = [from_document(Experiment, {"norm": "weighted_mean", "seed": 0, **document}) for document in (old, new)]
    except UserError:  # rows say less than an experiment, or name what only a plugin knows
        return differences(old, new)
    return differences(*(to_document(experiment, complete=True) for experiment in pair))


def _sets(name: str, runs: Sequence[RunScores]) -> tuple[str, ...]:
    """The study's test sets that were evaluated, then others by the number of objects; not those of a transfer."""
    study = experiments.studies().get(name)
    evaluated = {dataset for run in runs for dataset in run.datasets}
    own = [test.name for test in study.tests if test.name in evaluated] if study else []
    elsewhere = {transfer.test.name for transfer in experiments.transfers().values()}

    def most_objects(dataset: str) -> int:
        counts = [
            run.objects(dataset, metric, source) for run in runs for d, source, metric in run.tallies if d == dataset
        ]
        return max((max(count) for count in counts if count), default=0)

    rest = sorted(evaluated.difference(own, elsewhere), key=lambda dataset: (most_objects(dataset), dataset))
    return (*own, *rest)


def _with_runs_beside(section: Section, sections: Sequence[Section]) -> Section:
    study = experiments.studies().get(section.study)
    wanted = study.shown_with if study else None
    runs = [run for other in sections if other.study == wanted for run in other.runs]
    return dataclasses.replace(section, reference_runs=tuple(runs))
