"""From folders of runs to what a report is made of; what cannot be used is named, and nothing is dropped in silence."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotnorm import experiments
from slotnorm.config import Experiment
from slotnorm.errors import DamagedFile, UserError, printable
from slotnorm.evaluation import failed_runs
from slotnorm.evaluation.row_files import FOLDER, load_rows, row_files, scenes_of
from slotnorm.evaluation.rows import Rows
from slotnorm.metrics import all_metrics
from slotnorm.report.scores import RowsTwice, RunScores, summarize
from slotnorm.report.sections import Section, divide
from slotnorm.storage.aside import Aside
from slotnorm.storage.fingerprints import fingerprint
from slotnorm.storage.schemas import check_document
from slotnorm.storage.seals import RECORD, read_json, read_sealed
from slotnorm.storage.serialization import from_document, newer, to_document
from slotnorm.training.runs import Objection, Run, Standing, folders_below, looks_like_run, none_left, refusal_of_model

Keep = Callable[[str, Rows], None]
"""What is done with a run's rows as they are read: (the run's folder, its rows)."""


@dataclass(frozen=True)
class RunCollection:
    """The runs of a report, in sections."""

    sections: tuple[Section, ...]
    left_out: tuple[Objection, ...]
    notes: tuple[str, ...]
    """What a reader should know: runs scored on other scenes than the rest, rows left aside, rules not asked."""
    damaged: tuple[Objection, ...] = ()
    """Runs that something happened to since their rows were made; these are used, and `notes` says so."""

    @property
    def runs(self) -> list[RunScores]:
        return [run for section in self.sections for run in section.runs]


def read(paths: Iterable[str | Path], keep: Keep | None = None) -> RunCollection:
    """Everything in these folders, each a run or a folder of runs (at any depth that makes sense).

    Every file of rows is read once, and a run's rows are let go when its scores are made; `keep` is given them before.
    A run whose rows are damaged, or not of its last step, is left out with its reason, and the others are reported.
    """
    runs: list[RunScores] = []
    left_out: list[Objection] = []
    notes: list[str] = []
    damaged: list[Objection] = []
    aside = Aside()
    for folder in find_folders(paths):
        own_notes: list[str] = []
        own_damage: list[Objection] = []
        try:
            outcome = _read_run(folder, own_notes, own_damage)
        except UserError as error:
            outcome = Objection(folder, str(error), is_damaged=True)
        except OSError as error:
            reason = f"cannot read {error.filename or folder}: {error.strerror or error}"
            outcome = Objection(folder, reason, is_damaged=True)
        if isinstance(outcome, Objection):
            left_out.append(outcome)
            continue
        scores, rows = outcome
        if keep is not None:
            keep(scores.facts["path"], rows)
        runs.append(scores.set_aside(aside))
        damaged += own_damage
        notes += [f"{folder.name} {run.reason}." for run in own_damage] + own_notes
        del outcome, rows  # before the next run's are read
    if not runs:
        raise none_left(left_out, "reported")
    _require_one_protocol(runs)
    sections = divide(runs)
    for section in sections:
        _require_same_scenes(section)
        notes += _notes(section)
    return RunCollection(tuple(sections), tuple(left_out), tuple(dict.fromkeys(notes)), tuple(damaged))


def find_folders(paths: Iterable[str | Path]) -> list[Path]:
    """The folders of runs at or below the paths, in order, each once; a path without any is refused."""
    each_once: dict[Path, Path] = {}
    given = [Path(path) for path in paths]
    if not given:
        raise UserError("there is nothing to report; give folders of runs, as in `slotnorm report runs/*`")
    for path in given:
        if not path.is_dir():
            raise UserError(
                refusal_of_model(path)
                or f"{path} is not a folder; give folders of runs, as `slotnorm train` and `slotnorm eval` make them"
            )
        folders = folders_below(path, _is_run)
        if not folders:
            raise UserError(
                f"{path} is not a run and holds none: there is neither experiment.json nor a folder of {FOLDER}"
            )
        for folder in folders:
            each_once.setdefault(folder.resolve(), folder)
    return list(each_once.values())


def _is_run(folder: Path) -> bool:
    try:
        return looks_like_run(folder) or bool(row_files(folder / FOLDER))
    except OSError:  # nobody may look into them
        return True


def _read_run(folder: Path, notes: list[str], damaged: list[Objection]) -> tuple[RunScores, Rows] | Objection:
    """A run's scores and the rows they were made of, or why there are none; damaged rows raise.

    Whole rows of the last step are used whatever happened to the rest since: what did is added to `damaged`.
    """
    if os.path.lexists(folder / FOLDER) and not (folder / FOLDER).is_dir():
        raise UserError(f"{folder / FOLDER} is not a folder; move it away, and evaluate the run again")
    has_rows = bool(row_files(folder / FOLDER))
    try:
        run = Run.open(folder) if looks_like_run(folder) else None  # rows alone are enough
    except UserError as error:
        if not has_rows:
            raise
        run, standing = None, None
        damaged.append(Objection(folder, f"is known by its rows alone: {error}", is_damaged=True))
    else:
        # where there are no checkpoints, nor a link to nothing in their place, rows are what was published
        standing = None if run is None or (has_rows and not os.path.lexists(run.checkpoints)) else Standing.of(run)
    facts: dict[str, Any] = {"path": str(folder)}
    if run is not None:
        facts |= {"experiment": to_document(run.experiment), "command": run.command, "data": run.data}
    if not has_rows:
        if standing is not None and not standing.finished:
            return _objection(folder, standing)
        return Objection(folder, f"not evaluated yet; `slotnorm eval {folder}` does it")
    parts = load_rows(folder / FOLDER)
    if not any(map(len, parts)):
        return Objection(folder, f"its files hold no rows; `slotnorm eval {folder}` makes them again")
    rows = _joined(parts, folder, facts, notes).with_columns(run=printable(folder.name))
    if run is not None and standing is not None:
        step = facts.pop("step") or run.step  # older rows do not say theirs
        if not standing.finished and step < standing.steps:
            return _objection(folder, standing)
        if not standing.finished:
            reason = f"is {standing}, and its rows of step {step} were made before; {standing.way_out}"
            damaged.append(Objection(folder, reason, is_damaged=True))
        else:
            record = run.record()
            facts |= {"step": record.step, "seconds": record.seconds}
            if facts["weights"] not in ("", fingerprint(run.weights().tensors)):
                return Objection(
                    folder,
                    f"its rows are of other weights than it has at step {record.step}; `slotnorm eval {folder}` makes "
                    "them anew",
                )
    _require_own(rows, folder, facts)
    try:
        (scores,) = summarize(rows)
    except RowsTwice:
        raise UserError(
            f"{folder / FOLDER} holds rows twice for the same image, slots and metric; delete the copies, or the "
            f"folder, and run `slotnorm eval {folder}` again"
        ) from None
    judged = _read_judgement(folder)
    if run is not None and not any(metric == "f_ari" for _, _, metric in scores.tallies):
        facts["validation"] = run.validation()  # what was measured without labels
    return dataclasses.replace(scores, failed=judged.get("failed"), facts={**facts, "binding": judged}), rows


def _objection(folder: Path, standing: Standing) -> Objection:
    """Against a run whose last step is not there to be reported."""
    reason = f"{standing}; {standing.way_out}" if standing.damage else str(standing)
    return Objection(folder, reason, bool(standing.damage), standing.exit_code)


def _require_own(rows: Rows, folder: Path, facts: dict[str, Any]) -> None:
    """Refuse rows of another run, which somebody has copied into this one's folder."""
    experiment = facts.get("experiment", {})
    for column, field in (("norm", "norm"), ("seed", "seed"), ("train_slots", "slots")):
        others = [entry for entry in rows.unique(column) if entry != experiment.get(field, entry)]
        if others:
            raise UserError(
                f"{folder / FOLDER} holds rows of a run with {field} {others[0]}, but this run has "
                f"{experiment[field]}; delete that folder and run `slotnorm eval {folder}` again"
            )


def _joined(parts: Sequence[Rows], folder: Path, facts: dict[str, Any], notes: list[str]) -> Rows:
    """All rows of a run, and in `facts` where they come from."""
    headers = [part.header for part in parts]
    weights = list(dict.fromkeys(str(header.get("weights", "")) for header in headers))
    if len(weights) > 1:
        raise UserError(
            f"{folder / FOLDER} holds rows of different weights ({weights[0][:12]} and {weights[1][:12]}); delete that "
            f"folder and run `slotnorm eval {folder}` again"
        )
    rows = Rows.concat(parts)
    experiment = next((header["experiment"] for header in headers if isinstance(header.get("experiment"), dict)), None)
    if experiment is not None:
        facts.setdefault("experiment", experiment)
    rows = _of_one_iterations(rows, folder, facts, notes)
    scenes: dict[str, dict[str, Any]] = {}
    for part in parts:
        for dataset in part.unique("dataset"):
            described = {name: part.header.get(name) for name in ("scenes", "images", "num_scenes")}
            known = scenes.setdefault(dataset, described)
            if known["scenes"] != described["scenes"]:
                raise UserError(
                    f"{folder / FOLDER} holds rows on different scenes that are both called {dataset}; delete that "
                    f"folder and run `slotnorm eval {folder}` again"
                )
            if known["images"] != described["images"] or len(scenes_of(part)) > 1:
                notes.append(f"{folder.name}: not every number of slots is scored on the same scenes of {dataset}.")
    facts |= {
        "weights": weights[0], "scenes": scenes, "versions": headers[0].get("versions", {}),
        "noise_seed": headers[0].get("noise_seed"), "step": headers[0].get("step"),
    }  # fmt: skip
    return rows


def _of_one_iterations(rows: Rows, folder: Path, facts: dict[str, Any], notes: list[str]) -> Rows:
    """Rows with the experiment's own number of iterations, where several numbers were evaluated."""
    iterations = sorted(rows.unique("iterations"))
    if len(iterations) < 2:
        return rows
    own = facts.get("experiment", {}).get("recipe", {}).get("evaluation_iterations")
    if own not in iterations:
        raise UserError(
            f"{folder / FOLDER} holds rows of {' and '.join(map(str, iterations))} iterations, and the experiment does "
            "not say which is its own; keep one of them"
        )
    others = ", ".join(str(number) for number in iterations if number != own)
    notes.append(f"{folder.name}: rows with {others} iterations are left aside; its own for evaluation are {own}.")
    return rows.where(iterations=own)


@dataclass(frozen=True)
class _Verdict:
    """What a report takes from a judgement; the rest it only shows."""

    failed: bool
    reason: str = newer("")


def _read_judgement(folder: Path) -> dict[str, Any]:
    """What the failed-run rule said of the run; empty when it was not asked."""
    path = folder / FOLDER / failed_runs.FILE
    if not os.path.lexists(path):
        return {}
    try:
        judged = read_json(path, RECORD.most_bytes)
        if isinstance(judged, dict) and RECORD.key in judged:
            judged = read_sealed(path)
        verdict = (
            {name: judged[name] for name in ("failed", "reason") if name in judged} if isinstance(judged, dict) else {}
        )
        check_document(_Verdict, verdict, path, "a judgement")
        return dict(judged)
    except DamagedFile as damage:
        raise DamagedFile(
            f"{path} does not say whether the run failed ({damage}); delete it and evaluate again"
        ) from damage


def _require_one_protocol(runs: Sequence[RunScores]) -> None:
    by_protocol: dict[str, RunScores] = {}
    for run in runs:
        by_protocol.setdefault(run.protocol, run)
    if len(by_protocol) > 1:
        (protocol, first), (other, second) = list(by_protocol.items())[:2]
        raise UserError(
            f"{first.facts['path']} follows the protocol {protocol!r} and {second.facts['path']} {other!r}: their "
            "numbers cannot be compared; report them apart"
        )


def _require_same_scenes(section: Section) -> None:
    """Runs that are compared were evaluated on the same set under the same name."""
    for dataset in section.sets:
        seen: dict[str, RunScores] = {}
        for run in section.all_runs:
            if (fingerprint := run.facts["scenes"].get(dataset, {}).get("scenes")) is not None:
                seen.setdefault(fingerprint, run)
        if len(seen) > 1:
            first, second = list(seen.values())[:2]
            raise UserError(
                f"{first.facts['path']} and {second.facts['path']} were evaluated on different scenes that are both "
                f"called {dataset}; evaluate them on the same, or report them apart"
            )


def _notes(section: Section) -> list[str]:
    notes = []
    for dataset in section.sets:
        numbers = {
            run.facts["scenes"][dataset]["num_scenes"] for run in section.all_runs if dataset in run.facts["scenes"]
        }
        chosen = {run.facts["scenes"][dataset]["images"] for run in section.all_runs if dataset in run.facts["scenes"]}
        if len(chosen) > 1:
            span = " to ".join(str(number) for number in sorted({min(numbers), max(numbers)}))
            notes.append(f"{section.title}: not all runs are scored on the same scenes of {dataset} (numbers: {span}).")
    for run in section.runs:
        scored, trained = run.facts["scenes"].get(experiments.OWN, {}).get("scenes"), run.facts.get("data")
        if scored is not None and trained is not None and scored != trained:
            notes.append(f"{run.name}: scored on other data ({scored[:12]}) than it was trained on ({trained[:12]}).")
    unjudged = [run.name for run in section.runs if run.failed is None]
    if unjudged:
        runs = "its only run" if len(section.runs) == 1 else f"{len(unjudged)} of {len(section.runs)} runs"
        notes.append(f"{section.title}: the failed-run rule was not asked for {runs}.")
    if unknown := sorted(section.metrics().difference(all_metrics())):
        notes.append(
            f"{section.title}: the rows' {', '.join(unknown)} is not a metric that is known and is not shown; give its "
            "--plugin."
        )
    planned = experiments.studies().get(section.study)
    if planned and section.study != experiments.OWN:
        missing = [norm for norm in planned.norms if norm not in {run.norm for run in section.runs}]
        if missing:
            notes.append(f"{section.title}: no runs of {', '.join(missing)} yet.")
    return notes


def experiment_of(run: RunScores) -> Experiment | None:
    """The run's experiment, where it is known."""
    document = run.facts.get("experiment")
    return from_document(Experiment, document) if isinstance(document, dict) else None
