"""A run's directory: experiment, metrics and checkpoints; everything in it is verified when it is read."""

import dataclasses
import functools
import logging
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slotnorm import __version__
from slotnorm.config import Experiment, dataset_label
from slotnorm.errors import DamagedFile, NewerFile, NoUsableCheckpoint, UserError, printable, refused
from slotnorm.experiments import command_line
from slotnorm.models import SlotModel, weights
from slotnorm.models.pretrained import is_pretrained
from slotnorm.runtime.plugins import loaded_plugins, plugin_words
from slotnorm.runtime.source import source_commit
from slotnorm.storage.files import sha256, sync_folder
from slotnorm.storage.seals import write_sealed
from slotnorm.storage.serialization import differences, to_document
from slotnorm.training import checkpoints, experiment_file
from slotnorm.training.metrics_file import METRICS, last_step, newest_validation, read_metrics
from slotnorm.training.records import Record

_log = logging.getLogger(__name__)

_DEPTH = 4  # folders below a given one that are searched for runs


class Run:
    """One training's folder: `experiment.json`, `metrics.jsonl`, `checkpoints/`, `pictures/`."""

    def __new__(cls, *facts: Any, **named: Any) -> "Run":
        """Refuse `Run(path)`, which is easily typed, with the way to open a run."""
        if len(facts) + len(named) == 1:
            (path,) = (*facts, *named.values())
            raise UserError(f"a run in a folder is opened by Run.open({str(path)!r}), not by Run({str(path)!r})")
        return super().__new__(cls)

    def __init__(
        self, path: Path, experiment: Experiment, scenes: int, data: str, source: Path | None = None,
        plugins: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.path, self.experiment = path, experiment
        self.scenes, self.data, self.source = scenes, data, source
        """How many scenes it is trained on, the fingerprint of the set they come from, and its folder, if given."""
        self.plugins = dict(plugins or {})
        """The files of `--plugin` that it is trained with, and the SHA-256 of each."""

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Open a run that was started; its experiment is read and checked, its weights only when they are asked for."""
        path = Path(path)
        if not is_run(path):
            refusal = f"{path} is not a run: it has no experiment.json"
            if os.path.lexists(path / "experiment.json"):
                raise UserError(f"{refusal}, but something else of that name, which is not a file; move it away")
            if looks_like_run(path):
                raise UserError(f"{refusal} any more; put that back, or the command that trained it writes it again")
            raise UserError(f"{refusal}; `slotnorm train` makes one")
        try:
            document = experiment_file.read_run_document(path / "experiment.json")
        except NewerFile:
            raise
        except DamagedFile as damage:
            way_out = "put a copy back or, without one, delete it: the command that trained the run writes it again"
            raise DamagedFile(f"{damage}; {way_out}") from damage
        source = None if document.source is None else Path(document.source)
        return cls(path, document.experiment, document.scenes, document.data, source, document.plugins)

    def write(self) -> None:
        """Write experiment.json."""
        content = {
            "format": experiment_file.FORMAT, "slotnorm": __version__, "experiment": to_document(self.experiment),
            "scenes": self.scenes, "data": self.data, "commit": source_commit(),
            **({} if self.source is None else {"source": str(self.source)}),
            **({"plugins": self.plugins} if self.plugins else {}),
        }  # fmt: skip
        write_sealed(self.path / "experiment.json", content)

    @property
    def name(self) -> str:
        """Its folder's name as text, which rows carry."""
        return printable(self.path.name)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def step(self) -> int:
        """The newest saved step, 0 when there is none."""
        return next(iter(checkpoints.committed(self.checkpoints)), 0)

    @property
    def finished(self) -> bool:
        """Whether the checkpoint of its recipe's last step is there and whole: the one definition, for every verb."""
        return self.standing().finished

    def standing(self) -> "Standing":
        """How far it is, as its files prove: every byte of the newest checkpoint is looked at."""
        steps, examination = self.experiment.recipe.steps, checkpoints.examine(self.checkpoints)
        record, damage = examination.record, "; ".join(examination.damage)
        if record is not None and (foreign := record.foreign(self.experiment.identity, self.data)):
            reason = f"{self.checkpoints / f'step-{record.step}.json'} {foreign}"
            return Standing(0, steps, reason, checkpoints.MOVE_AWAY)
        if record is None and damage:
            return Standing(0, steps, damage, checkpoints.RESTORE, NoUsableCheckpoint.exit_code)
        step = 0 if record is None else record.step
        if step >= steps:
            return Standing(step, steps, damage, "")
        way_out = f"`{self.command}` repairs it" if damage else "train it to the end"
        obstacle = checkpoints.obstacle(self.checkpoints, step)
        return Standing(step, steps, damage, f"{obstacle}; then {way_out}" if obstacle else way_out)

    def record(self) -> Record:
        """The record of the newest whole checkpoint: step, hashes, versions, threads, seconds of training."""
        record = checkpoints.newest(self.checkpoints, self.experiment.identity, self.data)
        if record is None:
            raise UserError(f"{self.path} has no checkpoint yet; continue it with `{self.command}`")
        return record

    def weights(self) -> weights.Weights:
        """The newest whole checkpoint's weights."""
        return weights.unpack(self.checkpoints / f"step-{self.record().step}.safetensors")

    def model(self) -> SlotModel:
        """The model with the newest whole checkpoint's weights, in evaluation mode; `model.experiment` is the run's."""
        return weights.restore(self.weights(), self.path)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; where what the newest checkpoint knows of them is damaged, none of these.

        Lines that were written since the newest checkpoint are among them, as far as they are whole.
        """
        saved, later = self._rows()
        return [*saved, *later]

    @property
    def logged_step(self) -> int:
        """The step of the newest line of metrics.jsonl, 0 when there is none: for bars, so nothing is verified."""
        return last_step(self.path / METRICS)

    def validation(self) -> dict[str, float]:
        """The newest saved validation's scores, empty before the first and where metrics.jsonl is damaged."""
        saved, _ = self._rows()
        return newest_validation(saved)

    def _rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        examination = checkpoints.examine(self.checkpoints)
        known = None if examination.record is None else examination.record.metrics
        try:
            return read_metrics(self.path / METRICS, known)
        except DamagedFile as damage:
            _warn(f"{damage}; none of it is used, and the weights are not concerned")
            return [], []

    def summary(self) -> str:
        """Where it is, how far it came, its newest validation scores and the time it took, in one line."""
        scores = "  ".join(f"{name} {value:.4g}" for name, value in self.validation().items())
        record = self.record()
        minutes = f"{record.seconds / 60:.1f} min"
        return f"{printable(str(self.path))}: step {record.step} of {self.experiment.recipe.steps}  {scores}  {minutes}"

    @property
    def command(self) -> str:
        """The command line that trains this run."""
        words = [*command_line(self.experiment), *([] if self.source is None else ["--data", str(self.source)])]
        return shlex.join(["slotnorm", "train", *words, *plugin_words(self.plugins), "--into", str(self.path.parent)])

    def export(self, path: str | Path, half: bool = False) -> Path:
        """Write the newest weights as one safetensors file with its experiment inside, and a model card beside it.

        With `half` matrices are rounded to half precision: half the room; mean scores change in the fourth decimal.
        """
        path = Path(path)
        if path.suffix != ".safetensors":
            raise UserError(f"{path} does not end in .safetensors, which is what is written; rename it")
        record, newest = self.record(), self.weights()
        versions = {name: getattr(record, name) for name in ("slotnorm", "torch", "numpy", "python")}
        facts = {"data": self.data, "scenes": self.scenes, "versions": versions, "validation": self.validation()}
        exported = weights.Weights(newest.tensors, self.experiment, newest.step, facts)
        if half:
            exported = weights.halve(exported)
        weights.export(exported, path, _card(self, exported, path.name))
        return path


@dataclasses.dataclass(frozen=True)
class Standing:
    """How far a run is."""

    step: int
    """Of the newest whole checkpoint, 0 when there is none."""
    steps: int
    """All of its recipe."""
    damage: str
    """What is wrong with newer checkpoints; empty when there are none."""
    way_out: str
    """What brings it to its end; empty when it is there."""
    exit_code: int = UserError.exit_code
    """What a command ends with that needs this run."""

    @classmethod
    def of(cls, run: Run) -> "Standing":
        """A run's, also of one whose checkpoints nobody may look into, for those who go on without them."""
        try:
            return run.standing()
        except OSError as error:
            return cls(0, run.experiment.recipe.steps, refused(error), "let this user read it")

    @property
    def finished(self) -> bool:
        return self.step >= self.steps

    def __str__(self) -> str:
        if self.finished:
            return f"finished, at step {self.step}"
        where = f"at step {self.step} of {self.steps}"
        if not self.damage:
            return f"still training, {where}"
        return f"damaged ({self.damage}), {f'whole {where}' if self.step else 'and no checkpoint can be used'}"


def start(path: Path, experiment: Experiment, scenes: int, data: str, source: Path | None = None) -> Run:
    """The run at `path`, made if it is new; refused when it holds another experiment, except that steps may grow.

    `scenes` is how many it learns from, `data` the fingerprint of their set and `source` its folder, if one was given.
    """
    plugins = {str(file): sha256(file) for file in loaded_plugins()}
    if not (path / "experiment.json").exists():
        checkpoints.newest(path / "checkpoints", experiment.identity, data)  # of one that has lost its experiment.json
        run = Run(path, experiment, scenes, data, source, plugins)
        run.write()
        sync_folder(path.parent)
        return run
    run = Run.open(path)
    if refusal := _difference(run, experiment, scenes, data, source):
        way_out = "or train into another folder with --into"
        if not any(path.rglob("*.safetensors")) and not any(path.rglob("*.npz")):  # perhaps started with what cannot be
            way_out = f"train into another folder with --into, or delete {path}, which has saved nothing yet"
        raise UserError(f"{path} was started {refusal}, {way_out}")
    _note_changed_plugins(run, plugins)
    plugins = plugins or run.plugins  # without them the modules were imported
    if (run.experiment, run.source, run.plugins) != (experiment, source, plugins):
        run = Run(path, experiment, scenes, data, source, plugins)
        run.write()
    return run


def _note_changed_plugins(run: Run, plugins: Mapping[str, str]) -> None:
    """Say which files are not what the run was trained with so far; one of the same name may lie elsewhere now."""
    before = {Path(file).name: content for file, content in run.plugins.items()}
    for file, content in plugins.items():
        if before.get(Path(file).name, content) != content:
            _log.warning(
                f"note: {file} has changed since {run.path} was trained with it: its steps are those of two programs"
            )


def _difference(run: Run, experiment: Experiment, scenes: int, data: str, source: Path | None) -> str:
    """What a run was started with that is not given now, and what to give; empty where it may go on."""
    other_data = f"on {run.scenes} scenes of the data {run.data[:12]}, but now there are {scenes} of {data[:12]}"
    if run.source is not None and run.data != data:  # first: other pictures may well ask for another size
        changed = f"for {source} has changed" if source == run.source else f"in {source}, not in {run.source}"
        return f"{other_data}, {changed}: give the same data"
    for field, old, new in differences(
        to_document(run.experiment, complete=True), to_document(experiment, complete=True)
    ):
        if field != "recipe.steps":
            return f"with {field} {old}, not {new}: a run keeps its experiment; give that value"
        if new < old:
            return f"with recipe.steps {old}, and {new} are fewer: steps may only grow; give {old} or more"
    return "" if (run.scenes, run.data) == (scenes, data) else f"{other_data}: give the same data"


@dataclasses.dataclass(frozen=True)
class Objection:
    """What is to be said against a run that is not used with the others, or only in part."""

    path: Path
    reason: str
    is_damaged: bool = False
    """Whether something happened to it, as against a run that only lacks steps or rows."""
    exit_code: int = UserError.exit_code
    """What a command ends with that has no other run."""


class SomeDamaged(UserError):
    """The other runs were used, and what there was to say of them is said."""

    exit_code = 1


def require_none_damaged(left_out: Iterable[Objection], used: Iterable[Objection] = ()) -> None:
    """Raise `SomeDamaged` if something happened to any of them: they were named, but a script reads no notes.

    Of those that are `used` something else than what is damaged was.
    """
    left_out = list(left_out)
    used = [run for run in used if run.path not in {other.path for other in left_out}]
    sentences = []
    for runs, fate in ((left_out, "could not be used"), (used, "{be} damaged, and what is whole of {it} was used")):
        names = [path.name for path in dict.fromkeys(run.path for run in runs if run.is_damaged)]
        if names:
            number, be, it = ("1 run", "is", "it") if len(names) == 1 else (f"{len(names)} runs", "are", "them")
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            sentences.append(f"{number} {fate.format(be=be, it=it)}: {shown}")
    if sentences:
        raise SomeDamaged(f"{'; '.join(sentences)}; the lines above say why, and the others are done")


def none_left(left_out: Sequence[Objection], verb: str) -> UserError:
    """That there is no run to be evaluated, reported, ... (the `verb`), and what is to be said against each."""
    reasons = "; ".join(f"{run.path}: {run.reason}" for run in left_out[:3])
    more = f"; and {len(left_out) - 3} more" if len(left_out) > 3 else ""
    none = "the only run cannot" if len(left_out) == 1 else f"none of the {len(left_out)} runs can"
    error = UserError(f"{none} be {verb}: {reasons}{more}")
    codes = {run.exit_code for run in left_out}
    error.exit_code = codes.pop() if len(codes) == 1 else UserError.exit_code
    return error


def find(paths: Iterable[str | Path], left_out: list[Objection] | None = None) -> list[Run]:
    """The runs at `paths`, each a run or a folder of runs, by name; a path without any is refused.

    One that cannot be opened is named and left out, and added to `left_out`; where none can, all are refused.
    """
    runs: dict[Path, Run] = {}
    refusals: dict[Path, Objection] = {}
    for path in map(Path, paths):
        folders = folders_below(path, looks_like_run)
        if not folders:
            raise UserError(
                refusal_of_model(path)
                or f"{path} is not a run and holds none: there is no experiment.json; `slotnorm train` makes one"
            )
        for folder in folders:
            try:
                runs.setdefault(folder.resolve(), Run.open(folder))
            except UserError as error:
                refusals.setdefault(folder.resolve(), Objection(folder, str(error), is_damaged=True))
            except OSError as error:
                reason = f"cannot read {folder}: {error.strerror or error}"
                refusals.setdefault(folder.resolve(), Objection(folder, reason, is_damaged=True))
    if refusals and not runs:
        raise none_left(list(refusals.values()), "used")
    for refusal in refusals.values():
        _log.warning(f"warning: {refusal.reason}; that run is left out")
        if left_out is not None:
            left_out.append(refusal)
    return list(runs.values())


def refusal_of_model(path: Path) -> str:
    """What to say of a model without a run's folder to a verb that keeps or reads something there, "" of all else."""
    if path.is_dir() or not (path.suffix == ".safetensors" or is_pretrained(path)):
        return ""
    return (
        f"{path} names a model without a run's folder, where rows and progress are kept; `slotnorm judge` and "
        f"`slotnorm segment --run` take it, and sn.score(sn.load({str(path)!r}), scenes) scores it in Python"
    )


def is_run(folder: Path) -> bool:
    return (folder / "experiment.json").is_file()


def looks_like_run(folder: Path) -> bool:
    """Whether it is a run, or was one before something happened to it: whoever searches hears of these, too."""
    try:
        names = os.listdir(folder) if folder.is_dir() else ()
        return not {"experiment.json", METRICS}.isdisjoint(names) or bool(checkpoints.committed(folder / "checkpoints"))
    except OSError:  # nobody may look into it
        return True


def folders_below(path: Path, wanted: Callable[[Path], bool], depth: int = _DEPTH) -> list[Path]:
    """`path` itself if it is wanted, else what is wanted among the folders in it, and in these, by name."""
    if wanted(path):
        return [path]
    if depth == 0 or not path.is_dir():
        return []
    children = sorted(child for child in path.iterdir() if child.is_dir() and not child.is_symlink())
    return [folder for child in children for folder in folders_below(child, wanted, depth - 1)]


@functools.cache
def _warn(sentence: str) -> None:
    """Once: a sweep reads the metrics of its runs again and again."""
    _log.warning(f"warning: {sentence}")


def _card(run: Run, exported: weights.Weights, name: str) -> str:
    """The model card of the file `name`: what it is, what it learned from, how, and what it scored while training."""
    experiment, recipe = exported.experiment, exported.experiment.recipe
    fields = _flat(to_document(recipe))
    scores = [f"| {name} | {value:.4g} |" for name, value in exported.facts["validation"].items() if value is not None]
    plugins = {Path(file).name: content for file, content in run.plugins.items()}
    modules = [stem for file in plugins if (stem := Path(file).stem).isidentifier()]
    command = ["slotnorm", "train", *command_line(experiment), *plugin_words(plugins)]
    return "\n".join([
        f"# {experiment.run_name}",
        "",
        f"The {recipe.model.kind.replace('_', ' ')} with Slot Attention whose update codes are normalized by "
        f"`{experiment.norm}`, after {exported.step} of {recipe.steps} training steps.",
        "",
        "```python",
        "import slotnorm as sn",
        *(f"import {module}  # first: the model may need its classes" for module in modules),
        f'model = sn.load("{name}")  # this file; model.experiment says the rest',
        f"decomposition = model(images, num_slots={experiment.slots}, iterations={recipe.evaluation_iterations})",
        "```",
        "",
        f"- Data: `{dataset_label(experiment.dataset, experiment.max_objects)}`, {run.scenes} scenes, fingerprint "
        f"`{run.data}`; {experiment.slots} slots in training.",
        f"- Trained by `{shlex.join(command)}`.",
        *(
            f"- Needs the file `{file}` (SHA-256 `{content}`), which is not part of this one: import it first, or give "
            f"`--plugin {file}` on the command line."
            for file, content in plugins.items()
        ),
        f"- Versions: {', '.join(f'{name} {version}' for name, version in exported.facts['versions'].items())}.",
        *weights.describe_rounding(exported),
        "",
        "| validation during training | |", "|---|---|", *(scores or ["| none yet | |"]),
        "",
        "| recipe | |", "|---|---|", *(f"| {name} | {value} |" for name, value in fields.items()),
        "",
    ])  # fmt: skip


def _flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A document's values by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
