"""Rows of runs: which are there, which are missing, and making those; they live in RUN/rows, a file per set.

An evaluation goes through the scenes once for all numbers of slots, and keeps what it has every few seconds in
RUN/rows/.unfinished: a killed one goes on from there. Finished rows are sealed files; what is there is not made again.
"""

import dataclasses
import logging
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slotnorm.data.scenes import Scenes
from slotnorm.errors import DamagedFile, UserError, printable, refused
from slotnorm.evaluation import failed_runs, row_files
from slotnorm.evaluation.measurement import VISIBLE
from slotnorm.evaluation.rows import MISSING, Rows
from slotnorm.evaluation.scoring import Evaluation, Scores
from slotnorm.experiments import EvaluationSet
from slotnorm.metrics import all_metrics
from slotnorm.runtime.columns import in_columns, num_fitting
from slotnorm.runtime.devices import choose_device
from slotnorm.runtime.progress import Progress
from slotnorm.storage.files import make_subfolder
from slotnorm.storage.locks import Lock
from slotnorm.storage.schemas import read_document
from slotnorm.storage.seals import write_sealed
from slotnorm.studies.test_sets import find_tests, open_scenes, slots_of, study_of
from slotnorm.training.runs import Objection, Run, Standing, find, none_left

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class RunEvaluation:
    """One run on one set."""

    run: Run
    test: EvaluationSet
    evaluation: Evaluation
    """What is asked of the run's model, which all sets of the run share."""
    batch_size: int = 64

    @property
    def folder(self) -> Path:
        return self.run.path / row_files.FOLDER

    @property
    def scenes(self) -> Scenes:
        return self.evaluation.scenes

    @property
    def slots(self) -> tuple[int, ...]:
        return self.evaluation.slots

    @property
    def path(self) -> Path:
        """Where the rows of all numbers of slots are."""
        return self.folder / f"{self.test.name}.npz"

    @property
    def parts_folder(self) -> Path:
        """Where an evaluation keeps what it has until all rows are there."""
        return self.folder / ".unfinished" / f"{self.test.name}@{self.evaluation.header['identity'][:16]}"

    def made(self) -> Rows | None:
        """The rows with every number of slots, if all are there; nothing is computed, written or removed."""
        header = self.evaluation.header
        try:
            on_disk = row_files.load_file(self.path)
        except UserError:
            return None
        kept = self._usable({self.path: on_disk}) if on_disk.header["weights"] == header["weights"] else {}
        rows = {number: kept[number] for number in self.slots if self._suffices(kept.get(number), header)}
        return Rows.concat(list(rows.values()), header) if len(rows) == len(set(self.slots)) else None

    def require_no_later_rows(self) -> None:
        """Refuse to evaluate an earlier step than rows are of: the weights of those may be lost, and they would be."""
        header = self.evaluation.header
        now = header["step"] or self.run.experiment.recipe.steps
        for path, step, weights in _later_rows(self.run, now):
            if weights != header["weights"]:
                raise UserError(
                    f"{path} has rows of step {step}, and the newest whole checkpoint is of step {now}: they would be "
                    f"lost; `{self.run.command}` trains to there again, or move {self.folder} away"
                )

    def score_part(self, positions: NDArray[np.int64], folder: Path) -> None:
        """Score these scenes alone and keep them in `folder`, below `parts_folder`, where `evaluate` looks first."""
        self.require_no_later_rows()
        number = max((int(path.stem) for path in folder.glob("*.npz")), default=0)
        for lacking, numbers in self.lacking(positions, folder):
            for part in self.evaluation.parts(lacking, numbers, self.batch_size):
                number += 1
                part.save(folder / f"{number:06}.npz")

    def lacking(self, positions: NDArray[np.int64], folder: Path) -> list[tuple[NDArray[np.int64], tuple[int, ...]]]:
        """Which of these scenes the parts in `folder` lack, and with which numbers of slots."""
        work = self._work(list(_load_parts(folder)), self.slots)
        inside = [(lacking[np.isin(lacking, positions)], numbers) for lacking, numbers in work]
        return [(lacking, numbers) for lacking, numbers in inside if len(lacking)]

    def evaluate(self) -> Rows:
        """The rows with every number of slots: those that are there, and the others made."""
        if (begun := self._begun_before()) is not None:
            return begun.evaluate()
        make_subfolder(self.folder)
        with Lock(self.folder) as lock:
            header = self.evaluation.header
            self.require_no_later_rows()
            on_disk = self._read(header)
            kept = self._usable(on_disk)
            rows = {number: kept[number] for number in self.slots if self._suffices(kept.get(number), header)}
            if missing := [number for number in self.slots if number not in rows]:
                scores = self._score(missing, lock)
                for number in missing:
                    rows[number] = self.evaluation.rows(scores, self.test.name, self.run.name, [number])
            lock.check(thoroughly=True)
            self._save({**kept, **rows}, header, on_disk, bool(missing))
            self._remove_parts()
            self._judge(header)
        return Rows.concat([rows[number] for number in self.slots], header)

    def _begun_before(self) -> "RunEvaluation | None":
        """The same without newer metrics, where one is half-written that was begun before there were any."""
        own, halves = self.parts_folder, (self.folder / ".unfinished").glob(f"{self.test.name}@*")
        if own.is_dir() or not any(halves):
            return None
        before = dataclasses.replace(self, evaluation=self.evaluation.without_newer_metrics())
        return before if before.parts_folder != own and before.parts_folder.is_dir() else None

    def _save(
        self, rows: dict[int, Rows], header: dict[str, Any], on_disk: dict[Path, Rows | None], is_new: bool
    ) -> None:
        """Write all rows of the set as one file; then the files of the first form that they came from can go."""
        first_form = [
            path
            for path, old in on_disk.items()
            if path != self.path and (old is None or set(old.unique("slots")) <= rows.keys())
        ]
        if is_new or first_form:
            row_files.put_together(rows, header).save(self.path)
        for path in first_form:
            path.unlink()

    def _remove_parts(self) -> None:
        """Also those of an interrupted evaluation that asked for something else: they would never be used."""
        parts = self.folder / ".unfinished"
        for leftover in parts.glob(f"{self.test.name}@*") if not parts.is_symlink() else ():
            leftover.unlink() if leftover.is_symlink() else shutil.rmtree(leftover)
        if parts.is_dir() and not any(parts.iterdir()):
            parts.rmdir()

    def _read(self, header: dict[str, Any]) -> dict[Path, Rows | None]:
        """What is on disk of this set, by file; None is damaged. Rows of other weights are removed, of every set.

        Rows of another training step would be mixed with the new ones in a report.
        """
        own: dict[Path, Rows | None] = {}
        for path in row_files.row_files(self.folder):
            try:
                rows = row_files.load_file(path)
            except DamagedFile as damage:
                if path in (self.path, *(self.folder / f"{self.test.name}-{number:02}.npz" for number in self.slots)):
                    _log.warning(f"note: {damage}: making it now")
                    own[path] = None
                continue  # another set's is named when that is evaluated or reported
            if (old := rows.header.get("weights", "")) != header["weights"]:
                _log.info(f"note: {path} has rows of other weights ({old[:12]}) and is removed")
                path.unlink()
            elif rows.unique("dataset") == [self.test.name]:
                own[path] = rows
        return own

    def _usable(self, on_disk: dict[Path, Rows | None]) -> dict[int, Rows]:
        """The rows by number of slots that were made as they would be made now, whatever scenes they are of."""
        kept: dict[int, Rows] = {}
        for path, rows in sorted(on_disk.items(), key=lambda entry: entry[0] == self.path):  # the new form counts
            if rows is None:
                continue
            identity = {name: value for name, value in self.evaluation.identity.items() if name != "metrics"}
            newer = {name for name, metric in all_metrics().items() if metric.is_newer}
            lacking = set(self.evaluation.metrics).difference(rows.unique("metric"), newer)
            if any(rows.header.get(name) != value for name, value in identity.items()):
                objection = "was made otherwise (protocol, iterations or scenes)"
            elif lacking:
                objection = f"has no {', '.join(sorted(lacking))}"
            else:
                kept |= dict(row_files.split_by_slots(rows))
                continue
            if not set(rows.unique("slots")).isdisjoint(self.slots):
                _log.info(f"note: {path} {objection}; making it anew")
        return kept

    def _suffices(self, rows: Rows | None, header: dict[str, Any]) -> bool:
        """Whether rows are of the scenes that are asked for, or of more."""
        if rows is None or rows.header.get("images") == header["images"]:
            return rows is not None
        if not np.isin(self.scenes.index, rows["image"]).all():
            return False
        number, asked = rows.header.get("num_scenes"), len(self.scenes)
        _log.info(f"note: {self.path} has {number} scenes, with the {asked} asked for: kept")
        return True

    def _score(self, missing: Sequence[int], lock: Lock) -> Scores:
        """Score what is missing, going on from what an interrupted evaluation has left."""
        folder = self.parts_folder
        make_subfolder(folder.parent)
        make_subfolder(folder)
        parts = list(_load_parts(folder))
        number = max((int(path.stem) for path in folder.glob("*.npz")), default=0)
        work = list(self._work(parts, missing))
        total = len(missing) * len(self.scenes)
        left = sum(len(positions) * len(numbers) for positions, numbers in work)
        with Progress(f"{self.run.name} on {self.test.name}, K {_span(missing)}", total, total - left) as progress:
            for positions, numbers in work:
                advance = _Advance(progress, len(numbers))
                for part in self.evaluation.parts(positions, numbers, self.batch_size, advance):
                    number += 1
                    lock.check(thoroughly=True)
                    part.save(folder / f"{number:06}.npz")
                    parts.append(part)
        return Scores.concat(parts)

    def _work(
        self, parts: Sequence[Scores], missing: Sequence[int]
    ) -> Iterator[tuple[NDArray[np.int64], tuple[int, ...]]]:
        """Positions of scenes and the numbers of slots they lack."""
        lacking = np.ones((len(self.scenes), len(missing)), dtype=bool)
        for part in parts:
            for column, number in enumerate(missing):
                lacking[:, column] &= ~np.isin(self.scenes.index, part.images[part.slots == number])
        for pattern in np.unique(lacking, axis=0):
            if pattern.any():
                numbers = tuple(number for number, lacks in zip(missing, pattern, strict=True) if lacks)
                yield np.flatnonzero((lacking == pattern).all(axis=1)), numbers

    def _judge(self, header: dict[str, Any]) -> None:
        """Judge the run by the failed-run rule, on its own set with few objects where that is evaluated."""
        planned = study_of(self.run)
        own = planned.tests[0].name if planned else ""
        known = read_judgement(self.run.path)
        current = known is not None and (known["rule"], known["weights"]) == (failed_runs.RULE, header["weights"])
        if known is not None and current and (known["dataset"] == own or self.test.name != own):
            return
        if len(self.scenes) < 2:
            _log.info(f"note: one scene is too few to judge {self.run.name} by the failed-run rule")
            return
        judgement = failed_runs.judge(self.evaluation.model, self.scenes)
        document = {
            "rule": failed_runs.RULE, "failed": judgement.failed, "reason": judgement.reason,
            **dataclasses.asdict(judgement),
            "dataset": self.test.name, "num_scenes": min(len(self.scenes), failed_runs.SCENES),
            "slots": self.run.experiment.slots, "weights": header["weights"],
        }  # fmt: skip
        write_sealed(self.folder / failed_runs.FILE, document)


def plan_evaluations(
    paths: Iterable[str | Path],
    dataset: str | None = None,
    *,
    slots: Iterable[int] | None = None,
    objects: tuple[int, int] | None = None,
    scenes: int | None = None,
    data: str | Path | None = None,
    unfinished: bool = False,
    batch_size: int = 64,
    device: str | torch.device = "auto",
    left_out: list[Objection] | None = None,
    used: list[Objection] | None = None,
) -> list[RunEvaluation]:
    """What to evaluate: the runs at `paths` (each a run or a folder of runs) on a set; nothing is computed yet.

    `dataset` None is the test sets of the run's study; else a set's name (clevr6), or a dataset's (clevr: its widest
    set); with `data`, a folder, any name will do. `objects` (fewest, most) filters. `scenes` is how many are scored
    and `slots` the numbers of slots; None is what the study says. Runs that are still training are left out,
    unless `unfinished`, and so are damaged ones; each is named, and added to `left_out`. Of a damaged one `unfinished`
    takes what is whole; it is added to `used`. Models are moved to `device` (auto, cpu, cuda or mps).
    """
    if batch_size < 1:
        raise UserError(f"--batch-size is {batch_size}, but must be at least 1")
    chosen = choose_device(device)
    asked = None if slots is None else tuple(slots)
    left_out = [] if left_out is None else left_out
    planned: list[RunEvaluation] = []
    errors: list[UserError] = []
    for run in _finished_runs(find(paths, left_out), unfinished, left_out, [] if used is None else used):
        try:  # an Evaluation refuses what cannot be, before hours are spent
            tests = find_tests(run, dataset, objects, data)
            model = run.model().to(chosen)
            numbers = asked if asked is not None else tuple(k for k in slots_of(run) if model.takes(k)) or slots_of(run)
            own = []
            for test in tests:
                evaluation = Evaluation(model, open_scenes(run, test, objects, scenes, data, chosen), numbers)
                own.append(RunEvaluation(run, test, evaluation, batch_size))
            own[0].require_no_later_rows()
            planned += own
        except (UserError, OSError) as error:
            errors.append(error if isinstance(error, UserError) else UserError(refused(error)))
            left_out.append(Objection(run.path, str(errors[-1]), is_damaged=True, exit_code=errors[-1].exit_code))
    if errors and not planned:
        raise errors[0] if len({str(error) for error in errors}) == 1 else none_left(left_out, "evaluated")
    for objection in left_out[len(left_out) - len(errors) :]:
        _log.warning(f"warning: {objection.reason}; {objection.path} is left out")
    return planned


def evaluate_all(planned: Sequence[RunEvaluation], left_out: list[Objection]) -> Iterator[tuple[RunEvaluation, Rows]]:
    """The rows of each, as they are made; one that cannot be is named and added to `left_out`, and the others go on.

    Where none can be, the first one's reason is raised.
    """
    first: Exception | None = None
    done = 0
    for evaluation in planned:
        try:
            rows = evaluation.evaluate()
        except (UserError, OSError) as error:
            first = first or error
            reason = refused(error) if isinstance(error, OSError) else str(error)
            if len(planned) > 1:
                _log.warning(f"warning: {evaluation.run.path} on {evaluation.test.name} was not evaluated: {reason}")
            left_out.append(Objection(evaluation.run.path, reason, is_damaged=True))
            continue
        done += 1
        yield evaluation, rows
    if first is not None and not done:
        raise first


def describe(rows: Rows, judged: dict[str, Any] | None, room: int | None = None) -> str:
    """The rows of one run on one set, for people: means over the scenes with two or more visible objects, by K.

    Masks come first; columns that do not fit into lines of `room` letters are counted instead.
    """
    names = [(source, metric) for (source, metric), _ in rows.groups("source", "metric") if metric != VISIBLE]
    order = list(all_metrics())
    names.sort(key=lambda name: (name[0] != "masks", order.index(name[1]) if name[1] in order else len(order), name[1]))
    lines = [("K", *(f"{metric} ({source})" for source, metric in names))]
    for (number,), part in rows.groups("slots"):
        lines.append((str(number), *(f"{_mean(part, *name):.4f}" for name in names)))
    run, dataset = rows.unique("run")[0], rows.unique("dataset")[0]
    shown = len(lines[0]) if room is None else min(len(lines[0]), num_fitting(lines, room))
    rest = len(lines[0]) - shown
    note = (
        f"{rest} more in a wider window or through a pipe; all rows: {printable(run)}/{row_files.FOLDER}, or --csv FILE"
    )
    table = in_columns([line[:shown] for line in lines], left=0)
    told = f"{printable(run)} on {dataset}: {_counts(rows)}{_verdict(judged)}"
    return "\n".join([told, *table, *([note] if rest else [])])


def _mean(rows: Rows, source: str, metric: str) -> float:
    """Over the scenes with two or more visible objects; scenes without a value are left out."""
    chosen = rows.where(source=source, metric=metric)
    visible = rows.where(source=source, metric=VISIBLE)
    few = visible["image"][visible["value"] < 2]
    values = chosen["value"][~np.isin(chosen["image"], few) & ~np.isnan(chosen["value"])]
    return float(values.mean()) if len(values) else math.nan


def _counts(rows: Rows) -> str:
    scenes = len(set(rows["image"].tolist()) - {MISSING})
    source = "masks" if "masks" in rows.unique("source") else "attention"
    visible = rows.where(metric=VISIBLE, source=source, slots=rows.unique("slots")[0])["value"]
    single, none = int((visible == 1).sum()), int((visible == 0).sum())
    apart = f"; apart: {single} with one visible object, {none} without any" if single + none else ""
    return f"{scenes} scenes{apart}"


def _verdict(judged: dict[str, Any] | None) -> str:
    if judged is None:
        return ""
    numbers = ", ".join(f"{name} {judged[name]:.2f}" for name in ("moving", "sharing", "coherence"))
    return f"; {'FAILED, ' + judged['reason'] if judged['failed'] else 'follows objects'} ({numbers})"


def read_judgement(path: Path) -> dict[str, Any] | None:
    """What the failed-run rule said of the run in this folder; None when it was not asked, or the file is damaged."""
    file = path / row_files.FOLDER / failed_runs.FILE
    if not file.is_file():
        return None
    try:
        return dataclasses.asdict(read_document(failed_runs.JudgementDocument, file, "a judgement"))
    except DamagedFile as damage:
        _log.warning(f"note: {damage}: judging again")
        return None


class _Advance:
    """Counts pairs of scene and number of slots."""

    def __init__(self, progress: Progress, numbers: int) -> None:
        self.progress, self.numbers = progress, numbers

    def __call__(self, scenes: int) -> None:
        self.progress.advance(scenes * self.numbers)


def _load_parts(folder: Path) -> Iterator[Scores]:
    """What is left of an interrupted evaluation; a damaged part is named and made again."""
    for path in sorted(folder.rglob("*.npz")):
        try:
            yield Scores.load(path)
        except DamagedFile as damage:
            _log.warning(f"note: {damage}: making it again")
            path.unlink()


def _later_rows(run: Run, now: int) -> Iterator[tuple[Path, int, str]]:
    """Files of whole rows that were made of a later step than this: the step, and the hash of its weights."""
    for path in row_files.row_files(run.path / row_files.FOLDER):
        try:
            header = row_files.load_file(path).header
        except UserError:
            continue
        # rows that do not say their step are of a finished run
        if (step := header.get("step") or run.experiment.recipe.steps) > now:
            yield path, step, header.get("weights", "")


def _has_later_rows(run: Run, now: int) -> bool:
    """Whether rows would be lost by an evaluation of this step; also where nobody may look at them."""
    try:
        return any(_later_rows(run, now))
    except OSError:
        return True


def _finished_runs(
    runs: Sequence[Run], unfinished: bool, left_out: list[Objection], used: list[Objection]
) -> list[Run]:
    """Those that have what is to be evaluated; the others are named, and so are damaged ones."""
    kept: list[Run] = []
    remarks: list[tuple[Objection, str]] = []
    for run in runs:
        standing = Standing.of(run)
        is_kept = standing.finished or (unfinished and standing.step > 0)
        way_out = standing.way_out
        if standing.step and not is_kept and not _has_later_rows(run, standing.step):
            way_out += ", or evaluate its newest whole checkpoint with --unfinished"
        objection = Objection(run.path, f"{standing}; {way_out}", bool(standing.damage), standing.exit_code)
        if is_kept:
            kept.append(run)
        if not is_kept or (standing.damage and not standing.finished):
            (used if is_kept else left_out).append(objection)
            remarks.append((objection, "evaluated as far as it is whole" if is_kept else "left out"))
    if not kept:
        raise none_left(left_out, "evaluated")
    for objection, fate in remarks:
        level = logging.WARNING if objection.is_damaged else logging.INFO
        _log.log(level, f"note: {objection.path} is {objection.reason}; it is {fate}")
    return kept


def _span(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"
