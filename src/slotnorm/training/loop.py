"""The loop: step, log, validate, save; it starts or resumes, and loses no step when it is stopped."""

import contextlib
import logging
import platform
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from slotnorm import __version__
from slotnorm.config import Experiment, Recipe
from slotnorm.data.batches import batches
from slotnorm.data.scenes import Scenes, data_fingerprint
from slotnorm.errors import LostFolder, UserError
from slotnorm.evaluation import label_free
from slotnorm.evaluation.validation import decompose, validate, validated_slots
from slotnorm.models import SlotModel
from slotnorm.models.building import outline
from slotnorm.models.weights import Weights
from slotnorm.runtime.devices import choose_device
from slotnorm.runtime.progress import Progress
from slotnorm.runtime.ranks import Ranks, joined
from slotnorm.runtime.signals import Stop
from slotnorm.storage import files
from slotnorm.storage.locks import NAME as LOCK
from slotnorm.storage.locks import Lock
from slotnorm.storage.serialization import differences, to_document
from slotnorm.training import checkpoints, records, runs
from slotnorm.training.experiment_scenes import training_scenes, validation_scenes
from slotnorm.training.learner import Learner, Step
from slotnorm.training.metrics_file import METRICS, MetricsFile
from slotnorm.training.observers import Observer, Observers, make_observers
from slotnorm.training.pictures import Picture
from slotnorm.training.runs import Run, is_run

_log = logging.getLogger(__name__)

# what a process left that lost its power; not a sweep's, which may be writing its note of the job just now
_TEMPORARIES = (".experiment.json.*.tmp", ".metrics*.tmp", ".lock.*.tmp")

_PICTURED = 6  # scenes in a picture


class Interrupted(UserError):
    """Stopped by a signal after saving; the exit code is the shell's for that signal."""

    def __init__(self, number: signal.Signals, run: Run, step: int) -> None:
        super().__init__(f"stopped by {number.name} and saved at step {step} in {run.path}; the same command continues")
        self.exit_code = 128 + number


def train(
    experiment: Experiment,
    into: str | Path = "runs",
    *,
    data: str | Path | None = None,
    workers: int = 0,
    observers: Sequence[str | Observer] = (),
    validate_slots: Sequence[int] | None = None,
    device: str | torch.device = "auto",
) -> Run:
    """Train an experiment in `into/NAME-NORM-SEED`, from the start or its newest whole checkpoint; returns the run.

    `data` is a folder of pictures, of a built set, or of its splits, when it is not in the cache; the run remembers it.
    `workers` read batches ahead; `observers`, by name or as instances, are told how it goes (training/observers.py).
    `validate_slots` are the K that are validated; None is the training K and three times it, as far as the model takes
    them (a search that must not see other K gives its own). `device` is auto, cpu, cuda or mps (runtime/devices.py).
    Under torchrun every process calls this and the first one writes. A signal that asks for the end
    (`runtime/signals.py`) saves at the step in progress and raises `Interrupted`.
    """
    if not isinstance(experiment, Experiment):
        raise UserError(f"an experiment is needed, not {experiment!r}; slotnorm.experiment(NAME) makes one")
    for number in validate_slots or ():
        if number < 1:
            raise UserError(f"--validate-slots has {number}, but a model needs one slot or more")
    outline(experiment).require_slots(validate_slots or ())  # before scenes are made and the folder is claimed
    if workers < 0:
        raise UserError(f"--workers is {workers}, but must not be negative; 0 reads batches when they are needed")
    listeners, chosen = make_observers(observers), choose_device(device)
    path = Path(into) / experiment.run_name
    if finished := _finished(path, experiment, data, chosen):
        return finished
    if data is None and is_run(path):
        data = Run.open(path).source
    with contextlib.ExitStack() as stack:
        ranks = stack.enter_context(joined(chosen))
        if ranks.first:
            stack.callback(_remove_if_empty, path)
            lock = stack.enter_context(Lock(path))
            checkpoints.remove_temporaries(path, *_TEMPORARIES)
            if (path / "checkpoints").is_dir():  # before scenes are made, and steps taken that cannot be saved
                files.require_no_link(path / "checkpoints")
            if lock.left_by:
                _log.info(f"note: {path} was left by {lock.left_by}, which has died; taking over")
        else:
            lock = None
            ranks.wait_for_first()
        scenes, run = _open(path, experiment, data, ranks.device, lock)
        if ranks.first:
            ranks.wait_for_first()
        validated = validation_scenes(experiment, data, ranks.device)
        training = Trainer(run, scenes, validated, ranks, listeners, validate_slots, lock)
        if ranks.first:
            _warn_of_too_few_slots(scenes, training.learner.model, experiment.slots)
            _note_unfinished_warmup(experiment.recipe)
        stop = stack.enter_context(
            Stop()
        )  # not before: making the scenes can be interrupted at once, and continues too
        training.resume()
        training.run_to_end(stop, workers)
    return run


class Trainer:
    """One process's part in training a run."""

    def __init__(
        self,
        run: Run,
        scenes: Scenes,
        validated: Scenes,
        ranks: Ranks,
        observers: Sequence[Observer] = (),
        validate_slots: Sequence[int] | None = None,
        lock: Lock | None = None,
    ) -> None:
        self.run, self.ranks = run, ranks
        self.lock = lock  # the first rank's
        self.scenes, self.validated = scenes.compute_on(ranks.device), validated.compute_on(ranks.device)
        self.experiment, self.recipe = run.experiment, run.experiment.recipe
        self.learner = Learner(run.experiment, ranks)
        self.validate_slots = tuple(validate_slots or validated_slots(self.learner.model, run.experiment))
        self.learner.model.require_slots(self.validate_slots)
        self.metrics: MetricsFile | None = None  # the first rank's, once it is known where to continue
        self.observers = Observers(observers if ranks.first else ())
        self.step = 0
        self.seconds = 0.0
        self.scores: dict[str, float] = {}
        self.warned = False  # that slots do not follow what is in the images

    def resume(self) -> None:
        """Continue from the newest whole checkpoint, if there is one; all ranks take the first one's state."""
        step = torch.zeros(1, dtype=torch.int64, device=self.ranks.device)
        if self.ranks.first:
            record = checkpoints.newest(self.run.checkpoints, self.experiment.identity, self.run.data)
            obstacle = checkpoints.obstacle(self.run.checkpoints, record.step if record else 0)
            if obstacle:  # before steps are taken that cannot be saved
                raise UserError(obstacle)
            self.metrics = MetricsFile(self.run.path / METRICS, record.metrics if record else None)
            self.observers.put_first(self.metrics)
            if record is not None:
                saved, optimizer = checkpoints.load(self.run.checkpoints, record.step)
                self.learner.restore(saved.tensors, optimizer, self.run.checkpoints / f"step-{record.step}.json")
                step[0], self.seconds, self.scores = record.step, record.seconds, self.metrics.validation
                self._note_changes(record)
        self.ranks.copy_from_first_([step])
        self.step = int(step)
        self.learner.take_from_first()

    def run_to_end(self, stop: Stop, workers: int) -> None:
        """Train to the recipe's last step, or until a signal comes; observers hear of start and end."""
        self.observers.tell("start", self.run, self.step)
        try:
            self._loop(stop, workers)
        except LostFolder:
            if self.lock:
                self.lock.check(thoroughly=True)  # which can say who took the folder, if somebody did
            raise
        finally:
            self.observers.tell("end", self.step, self.step == self.recipe.steps)

    def _loop(self, stop: Stop, workers: int) -> None:
        last = time.monotonic()
        steps = batches(
            self.scenes,
            seed=self.experiment.seed,
            batch_size=self.recipe.batch_size,
            start=self.step,
            stop=self.recipe.steps,
            flip=self.recipe.flip,
            fields=self.learner.model.fields,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
            workers=workers,
        )
        with self._progress() as progress:
            for batch in steps:
                outcome = self.learner.learn(batch, stop.signal)
                if self.lock:
                    self.lock.check()
                self.step = batch.step + 1
                now = time.monotonic()
                self.seconds += max(now - last, 0.0)  # a clock that is set back, or faked, takes no time away
                last = now
                self._after(outcome)
                if progress:
                    progress.advance(note=self._note(outcome))
                if outcome.stop and self.step < self.recipe.steps:
                    raise Interrupted(outcome.stop, self.run, self.step)

    def _after(self, outcome: Step) -> None:
        """What a step may bring: a line of metrics, a validation with its picture, a checkpoint; in this order."""
        last = self.step == self.recipe.steps
        if last or self.step % self.recipe.log_every == 0:
            self.observers.tell("step", self.step, outcome.numbers)
        if last or self.step % self.recipe.validate_every == 0:
            self.scores = validate(self.learner.model, self.validated, self.experiment, self.ranks, self.validate_slots)
            if self.ranks.first and self.validated.labels is None and len(self.validated) > 1:
                self.scores |= self._look_without_labels()
            self.observers.tell("validation", self.step, self.scores)
            if self.observers.want_pictures:
                self.observers.tell("picture", self.step, self._picture())
        if self.metrics and (last or outcome.stop or self.step % self.recipe.checkpoint_every == 0):
            self._save(self.metrics)

    def _look_without_labels(self) -> dict[str, float]:
        """What masks alone tell of the model; from a quarter of the steps on, a sentence where they follow nothing."""
        judgement, in_use = label_free.measure(self.learner.model, self.validated, self.experiment)
        if judgement.failed and not self.warned and 4 * self.step >= self.recipe.steps:
            self.warned = True
            _log.warning(
                f"note: at step {self.step} slots do not follow what is in the images ({judgement.reason}): "
                f"if it stays so, {label_free.ADVICE[judgement.reason]} (docs/failed-runs.md)"
            )
        return label_free.as_scores(judgement, in_use, self.experiment.slots)

    def _save(self, metrics: MetricsFile) -> None:
        if self.lock:
            self.lock.check(thoroughly=True)
        if not is_run(self.run.path):
            raise LostFolder(f"{self.run.path / 'experiment.json'} was removed while it was trained; nothing is saved")
        facts = {"data": self.run.data, "scenes": self.run.scenes}
        weights = Weights(self.learner.model.state_dict(), self.experiment, self.step, facts)
        progress = records.Progress(
            run=self.experiment.run_name, identity=self.experiment.identity, data=self.run.data,
            steps=self.recipe.steps, metrics=metrics.flush(self.step), seconds=round(self.seconds, 3),
        )  # fmt: skip
        state, keep = self.learner.optimizer_tensors(), self.recipe.keep_checkpoints
        try:
            checkpoints.save(self.run.checkpoints, weights, state, progress, _environment(self.ranks), keep)
        except (OSError, UserError):
            if self.lock:
                self.lock.check(thoroughly=True)  # the reason may be that the folder is gone
            raise
        self.observers.tell("checkpoint", self.step, self.run.checkpoints / f"step-{self.step}.safetensors")

    def _picture(self) -> Picture:
        """A few validation scenes at the largest K that is validated, where normalizations differ most."""
        model, positions = self.learner.model, np.arange(min(_PICTURED, len(self.validated)))
        slots = max(self.validate_slots)
        decomposition = decompose(model, self.validated, positions, self.experiment, slots)
        images = None if self.validated.images is None else self.validated.read("images", positions).copy()
        reconstruction = None
        if model.input == "images" and decomposition.reconstruction is not None:
            reconstruction = decomposition.reconstruction.float().cpu().numpy()
        return Picture(images, decomposition.masks.float().cpu().numpy(), reconstruction)

    def _progress(self) -> contextlib.AbstractContextManager[Progress | None]:
        if self.ranks.first:
            return Progress(self.experiment.run_name, self.recipe.steps, self.step, "images", self.recipe.batch_size)
        return contextlib.nullcontext()

    def _note(self, outcome: Step) -> str:
        f_ari = self.scores.get(f"f_ari@{self.experiment.slots}")
        moving = self.scores.get(f"moving@{self.experiment.slots}")
        shown = "" if f_ari is None else f" F-ARI {f_ari:.3f}"
        return f"loss {outcome.loss:.3g}{shown}" + ("" if moving is None else f" moving {moving:.2f}")

    def _note_changes(self, record: records.Record) -> None:
        """Say what differs from the environment that saved: the numbers may then differ in the last bits."""
        _log.info(f"resuming {self.run.path} at step {record.step} of {self.recipe.steps}")
        before, now = to_document(record.environment), to_document(_environment(self.ranks))
        for name, was, value in differences(before, now):
            _log.warning(f"note: {name} was {was} and is {value}: the weights need not equal an unbroken run's bits")
        if record.steps != self.recipe.steps and self.recipe.cosine_to is not None:
            _log.info(f"note: the cosine schedule now ends at step {self.recipe.steps} instead of {record.steps}")


def _environment(ranks: Ranks) -> records.Environment:
    return records.Environment(
        slotnorm=__version__,
        torch=torch.__version__,
        numpy=np.__version__,
        python=platform.python_version(),
        threads=torch.get_num_threads(),
        world_size=ranks.world_size,
        device=ranks.device.type,
    )


def _finished(path: Path, experiment: Experiment, data: str | Path | None, device: torch.device) -> Run | None:
    """The run, if it holds this experiment and is finished; it is refused if it was trained on other data."""
    if not is_run(path):
        return None
    run = Run.open(path)
    if run.experiment != experiment or not run.finished:
        return None
    if data is not None and Path(data).is_dir() and run.source is not None:
        _open(path, experiment, data, device)
    _tidy(run)
    return run


def _tidy(run: Run) -> None:
    """Remove what a process left in a finished run that died behind its last commit: its lock, old checkpoints."""
    steps, keep = run.experiment.recipe.steps, run.experiment.recipe.keep_checkpoints
    with contextlib.suppress(UserError, OSError):  # it lives, or the folder can only be read: nothing is amiss
        left = [path for pattern in (LOCK, *_TEMPORARIES) for path in run.path.glob(pattern)]
        if left or checkpoints.has_leftovers(run.checkpoints, steps, keep):
            with Lock(run.path):
                checkpoints.remove_temporaries(run.path, *_TEMPORARIES)
                checkpoints.prune(run.checkpoints, steps, keep)


def _open(
    path: Path, experiment: Experiment, data: str | Path | None, device: torch.device, lock: Lock | None = None
) -> tuple[Scenes, Run]:
    """The scenes and the run; a run that exists keeps its number of scenes even when its steps grow."""
    known = Run.open(path).scenes if (path / "experiment.json").exists() else None
    scenes = training_scenes(experiment, data, known, device)
    if lock:
        lock.check(thoroughly=True)  # making scenes may take minutes: what was removed meanwhile is not made again
    source = None if data is None else Path(data).resolve()
    return scenes, runs.start(path, experiment, len(scenes), data_fingerprint(scenes), source)


def _remove_if_empty(path: Path) -> None:
    """A run that was refused before it began leaves no folder."""
    with contextlib.suppress(OSError):
        path.rmdir()


def _note_unfinished_warmup(recipe: Recipe) -> None:
    if recipe.steps < recipe.warmup_steps:
        _log.warning(
            f"note: training ends at step {recipe.steps}, before the warm-up of {recipe.warmup_steps} steps does, so "
            "that the learning rate never reaches its peak: give more --recipe.steps, or fewer warm-up steps, as in "
            f"--recipe.warmup-steps {recipe.steps // 10}"
        )


def _warn_of_too_few_slots(scenes: Scenes, model: SlotModel, slots: int) -> None:
    """Who reconstructs needs a slot for the background; who predicts properties does not."""
    crowded = int((scenes.counts >= slots).sum())
    if crowded and model.predicts == "reconstruction":
        _log.warning(
            f"WARNING: {crowded} of {len(scenes)} training scenes have {slots} or more objects (up to "
            f"{int(scenes.counts.max())}), but there are only {slots} slots, and the background needs one too: use "
            "more --slots or fewer --max-objects"
        )
