"""Pictures and diagnostics need models: they are run once, and what they gave is kept beside the run.

`RUN/examples/SET.npz` and `RUN/diagnosis/SET.npz` are used when they belong to the weights that were evaluated; else
they are made, if the run's weights (its newest checkpoint, or an exported file in its folder) and the scenes are there.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from slotnorm.data.scenes import Scenes
from slotnorm.errors import DamagedFile, UserError
from slotnorm.evaluation.diagnosis import VERSION, diagnose, with_ratios
from slotnorm.evaluation.examples import Examples, make_examples
from slotnorm.evaluation.rows import Rows
from slotnorm.experiments import evaluation_sets
from slotnorm.models import SlotModel
from slotnorm.report.diagnostics import DRAWN, Diagnostics, diagnostics
from slotnorm.report.pictures import Illustration, illustrate
from slotnorm.report.reading import experiment_of
from slotnorm.report.scores import RunScores
from slotnorm.report.sections import Section
from slotnorm.storage.fingerprints import fingerprint
from slotnorm.training.loading import load
from slotnorm.training.run_data import scenes_of
from slotnorm.training.runs import Objection, Run, Standing, is_run

_log = logging.getLogger(__name__)

EXAMPLES, DIAGNOSIS = "examples", "diagnosis"
_PICTURED = 12
_DIAGNOSED = 64  # scenes: means over them are steady to a few percent, and little is decoded
_DIAGNOSED_SMALL = 320  # of small images, which are quick: all that were evaluated, so that F-ARI is that of the tables
_SMALL_SIDE = 32
_DIAGNOSED_SLOTS = 8  # numbers of slots, evenly over those evaluated

T = TypeVar("T")


@dataclass(frozen=True)
class Inspector:
    """Makes what a report shows of models themselves; `run_models` False only reads what was kept."""

    run_models: bool = True
    data: Path | None = None
    """Folder of the built set, or of its splits, when it is not in the cache."""
    device: str | torch.device = "cpu"
    """Where models run."""
    damaged: list[Objection] = field(default_factory=list)
    """Runs that what was kept beside them could not be read of; their rows are reported all the same."""

    def illustrate(self, section: Section) -> tuple[Illustration | None, list[str]]:
        """Examples of the median run of each normalization, and what is missing.

        They are of the set that the finding is told of, the one with as few objects as in training; where more runs
        have pictures of another set, of that one.
        """
        best: tuple[list[Examples], list[str]] = [], []
        runs = [median_run(section, norm) for norm in section.norms] if section.sets else []
        for dataset in section.sets:
            pictured, notes = self._pictured(section, runs, dataset)
            if len(pictured) > len(best[0]) or dataset == section.sets[0]:
                best = pictured, notes
            if not notes:
                break
        pictured, notes = best
        return (illustrate(pictured, section.train_slots) if pictured else None), notes

    def _pictured(self, section: Section, runs: Sequence[RunScores], dataset: str) -> tuple[list[Examples], list[str]]:
        """The runs' examples on a set, and what is missing; none where they are not of the same scenes."""
        slots, notes, pictured = section.slots(dataset), [], []
        for run in runs:
            try:
                pictured.append(self._examples(run, dataset, slots, section))
            except UserError as error:
                notes.append(self._note("pictures", run, error))
        labelled = [() if examples.labels is None else examples.labels.shape for examples in pictured]
        if len({(*of_run.scenes.tolist(), shape) for of_run, shape in zip(pictured, labelled, strict=True)}) > 1:
            return [], [*notes, f"No pictures of {section.title}: its runs' examples are of different scenes."]
        return pictured, notes

    def diagnose(self, section: Section) -> tuple[Diagnostics | None, list[str]]:
        """Measurements of every run on the set with the fewest objects, and what is missing."""
        if not section.sets:
            return None, []
        dataset, notes, diagnosed = section.sets[0], [], []
        slots = spaced(section.slots(dataset), _DIAGNOSED_SLOTS)
        for run in section.all_runs:
            try:
                diagnosed.append(self._diagnosis(run, dataset, slots))
            except UserError as error:
                notes.append(self._note("diagnostics", run, error))
        return (diagnostics(section.title, diagnosed) if diagnosed else None), notes

    def _note(self, what: str, run: RunScores, error: UserError) -> str:
        """That there is none of a run; where its files are damaged it is marked as such."""
        objection = Objection(Path(run.facts["path"]), f"has no {what}: {error}", is_damaged=True)
        if isinstance(error, DamagedFile) and objection not in self.damaged:  # a folder holds those of every set
            self.damaged.append(objection)
        return f"No {what} of {run.name}: {error}."

    def _examples(self, run: RunScores, dataset: str, slots: Sequence[int], section: Section) -> Examples:
        _require_tested(run, dataset)
        path = Path(run.facts["path"]) / EXAMPLES / f"{dataset}.npz"
        shown = {section.train_slots, section.object_slots, section.high_slots} & set(slots)

        def make() -> Examples:
            model = self._model(run)
            facts = {"weights": run.facts["weights"], "scenes": run.facts["scenes"][dataset]["scenes"]}
            names: dict[str, Any] = {"run": run.name, "norm": run.norm, "dataset": dataset, "facts": facts}
            examples = make_examples(model, self._scenes(run, dataset, _PICTURED), slots, shown, **names)
            return self._keep(path, examples, examples.save)

        def stale(kept: Examples) -> str:
            if (kept.facts.get("weights"), kept.norm, kept.dataset) != (run.facts["weights"], run.norm, dataset):
                return "belongs to other weights or another set"
            return "" if set(kept.slots).intersection(slots) else f"is of K {kept.slots}, none of which was scored"

        return self._kept(path, Examples.load, stale, make)

    def _diagnosis(self, run: RunScores, dataset: str, slots: Sequence[int]) -> Rows:
        _require_tested(run, dataset)
        path = Path(run.facts["path"]) / DIAGNOSIS / f"{dataset}.npz"

        def make() -> Rows:
            model = self._model(run)
            factors: dict[str, Any] = {
                "run": run.name, "norm": run.norm, "seed": run.seed, "train_objects": run.train_objects,
                "dataset": dataset, "protocol": run.protocol,
            }  # fmt: skip
            scenes = self._scenes(run, dataset, _DIAGNOSED_SMALL)
            if scenes.images is None or max(scenes.images.shape[1:3]) > _SMALL_SIDE:
                scenes = scenes[:_DIAGNOSED]
            rows = diagnose(model, scenes, slots, run.train_slots, **factors)
            rows = rows.with_header({**rows.header, "weights": run.facts["weights"]})
            return self._keep(path, rows, rows.save)

        def stale(kept: Rows) -> str:
            told = {"norm": [run.norm], "seed": [run.seed], "train_slots": [run.train_slots], "dataset": [dataset]}
            own = {name: kept.unique(name) for name in told}
            if (kept.header.get("weights"), own) != (run.facts["weights"], told):
                return "belongs to other weights or another set"
            version = _version(kept)
            return "" if version == VERSION else f"is a diagnosis of version {version}, this slotnorm makes {VERSION}"

        return self._kept(path, _load_diagnosis, stale, make)

    def _kept(self, path: Path, load: Callable[[Path], T], stale: Callable[[T], str], make: Callable[[], T]) -> T:
        """What is kept at `path`, if it is whole and `stale` has nothing to say against it; made anew otherwise, where
        models may be run."""
        refusal: type[UserError] = DamagedFile
        try:
            if path.name not in os.listdir(path.parent):
                raise FileNotFoundError
            kept = load(path)
            if not (objection := stale(kept)):
                return kept
            refusal, reason = UserError, f"{path} {objection}"
        except DamagedFile as error:
            reason = str(error)
        except FileNotFoundError:
            refusal, reason = UserError, f"{path} was not made yet"
        except OSError as error:  # of the folder; the file's are put into words by those who read it
            reason = (
                f"cannot look into {path.parent}: {error.strerror or error}; let this user read it, or move it away"
            )
        if not self.run_models:
            raise refusal(f"{reason}, and models are not run")
        return make()

    def _keep(self, path: Path, view: T, save: Callable[[Path], None]) -> T:
        """Keep what was made for the next report; it is shown also where the folder cannot be written to."""
        try:
            save(path)
        except UserError as error:
            _log.warning(f"note: {error}; it is shown all the same, and made again next time")
        return view

    def _model(self, run: RunScores) -> SlotModel:
        """The run's model, of the weights that its rows were made with."""
        folder = Path(run.facts["path"])
        if is_run(folder) and os.path.lexists(folder / "checkpoints"):  # else its weights are those exported into it
            standing = Standing.of(Run.open(folder))
            if not standing.finished:
                raise UserError(f"the weights that were evaluated are not there: it is {standing}; {standing.way_out}")
        model = load(folder, self.device)
        # published weights are rounded, but say what they were rounded from; pictures show no difference
        if (model.rounded_from or fingerprint(model.state_dict())) != run.facts["weights"]:
            raise UserError(
                f"the weights in {folder} are not those that were evaluated; run `slotnorm eval {folder}` again"
            )
        return model

    def _scenes(self, run: RunScores, dataset: str, num: int) -> Scenes:
        """The first scenes of those that the run was evaluated on."""
        if experiment_of(run) is None:
            raise UserError(f"the rows of {run.name} do not say its experiment")
        if (test := evaluation_sets().get(dataset)) is None:
            raise UserError(f"{dataset} is not a registered test set, so its scenes cannot be found again")
        total = run.facts["scenes"][dataset]["num_scenes"] or num
        return scenes_of(Run.open(run.facts["path"]), test, total, self.data, self.device)[:num]


def _load_diagnosis(path: Path) -> Rows:
    """A diagnosis that was kept, of which curves and pairs of masses can be made; or one of another version, unread."""
    kept = Rows.load(path)
    if _version(kept) != VERSION:
        return kept
    try:
        rows = with_ratios(kept)
        if missing := set(DRAWN).difference(rows.unique("metric")):
            raise LookupError(f"there is no {', '.join(sorted(missing))}")
        diagnostics(path.stem, [rows])
    except (UserError, LookupError, TypeError) as error:
        raise DamagedFile(f"{path} is sealed but holds no diagnosis ({error}); delete it and make it again") from error
    return rows


def _require_tested(run: RunScores, dataset: str) -> None:
    """What is shown of a run was scored, too."""
    if dataset not in run.datasets:
        raise UserError(f"it was not evaluated on {dataset}")


def median_run(section: Section, norm: str) -> RunScores:
    """The run with the median F-ARI at the training K on the first set, of those that did not fail: not the best."""
    runs = [run for run in section.of(norm) if not run.failed] or section.of(norm)
    source = section.source("f_ari")

    def f_ari(run: RunScores) -> float:
        value = run.mean(section.sets[0], "f_ari", section.train_slots, source=source).value
        return value if value == value else -1.0

    return sorted(runs, key=f_ari)[(len(runs) - 1) // 2]


def spaced(numbers: Sequence[int], most: int) -> list[int]:
    """At most `most` of the numbers, evenly, the first and the last among them."""
    if len(numbers) <= most:
        return list(numbers)
    return [numbers[round(index * (len(numbers) - 1) / (most - 1))] for index in range(most)]


def _version(diagnosis: Rows) -> object:
    return diagnosis.header.get("version", 1)  # the first did not say
