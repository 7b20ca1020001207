"""Who is told of a training, one class each: a class here, or in a plugin, is what `--log NAME` names.

Observers see copies of numbers and pictures, never the model: none of them can change a bit of the weights, and one
that raises does not end a training. This page needs no torch.
"""

import contextlib
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from slotnorm.errors import UserError, blaming, describe, nearest, place_of, printable
from slotnorm.runtime.registry import Registry
from slotnorm.storage import files
from slotnorm.storage.seals import digest
from slotnorm.storage.serialization import to_document

if TYPE_CHECKING:
    from slotnorm.training.pictures import Picture
    from slotnorm.training.runs import Run

_log = logging.getLogger(__name__)
_registry: Registry["Observer"] = Registry("observer")


class Observer:
    """Told of a training as it goes; subclasses register themselves by `name` and define what they want to hear.

    Only the first rank has observers. After a resume they hear again of the steps that were trained since the
    checkpoint.
    """

    name: ClassVar[str]
    """What `--log` calls it."""
    package: ClassVar[str | None] = None
    """What it imports, if that need not be installed."""
    install: ClassVar[str | None] = None
    """What pip installs for that; None is the package itself."""
    is_essential: ClassVar[bool] = False
    """Whether a training must end when it raises, since what comes later relies on it."""

    def __init_subclass__(cls, registered: bool = True, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if registered:
            _registry.add(cls)

    def on_start(self, run: "Run", step: int) -> None:
        """Training begins, or goes on behind `step`."""

    def on_step(self, step: int, numbers: dict[str, float]) -> None:
        """Every `log_every` steps, and at the last: loss, gradient norm, learning rate."""

    def on_validation(self, step: int, scores: dict[str, float]) -> None:
        """Every `validate_every` steps, and at the last: scores by name and number of slots, as f_ari@7."""

    def on_picture(self, step: int, picture: "Picture") -> None:
        """After each validation: a few scenes as the model sees them; made only where somebody listens."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """A checkpoint was saved: its weights are in `path`."""

    def on_end(self, step: int, finished: bool) -> None:
        """Training ends: at its last step (`finished`), by a signal or by an error."""


class Observers:
    """All who observe one training; one that raises is named and told nothing more."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)

    def put_first(self, observer: Observer) -> None:
        """Add one that is told before all others."""
        self._observers.insert(0, observer)

    @property
    def want_pictures(self) -> bool:
        """Whether anybody listens to pictures, which take time to make."""
        return any(type(observer).on_picture is not Observer.on_picture for observer in self._observers)

    def tell(self, event: str, *facts: Any) -> None:
        """Call `on_EVENT` of each, in order."""
        for observer in list(self._observers):
            own = [dict(fact) if isinstance(fact, dict) else fact for fact in facts]
            try:
                with _settings_kept():
                    getattr(observer, f"on_{event}")(*own)
            except (Exception, SystemExit) as error:
                if observer.is_essential:
                    raise
                self._observers.remove(observer)
                sentence = (
                    f"warning: the observer {observer.name} fails at on_{event} ({describe(error)}) and is told "
                    f"nothing more; the training goes on{place_of(error)}"
                )
                _log.warning(printable(sentence))


@contextlib.contextmanager
def _settings_kept() -> Iterator[None]:
    """What torch computes with is afterwards as it was: each of these would change bits of the weights, or end it."""
    import torch

    settings: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
        (torch.get_num_threads, torch.set_num_threads),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    )
    before = [ask() for ask, _ in settings]
    try:
        yield
    finally:
        for (ask, change), value in zip(settings, before, strict=True):
            if ask() != value:
                change(value)


def observers() -> dict[str, type[Observer]]:
    """Every observer by name."""
    return _registry.all()


def describe_observers() -> str:
    """All observers in one line, for help."""
    return _registry.described()


def make_observers(asked: Sequence[str | Observer]) -> list[Observer]:
    """The observers asked for, by name or as instances, each name once; one whose package is missing is refused."""
    observers = []
    for wanted in dict.fromkeys(asked):
        if not isinstance(wanted, str | Observer):
            raise UserError(f"{wanted!r} is neither an Observer nor the name of one; {nearest('', _registry.all())}")
        kind = _registry.find(wanted) if isinstance(wanted, str) else type(wanted)
        _require_package(kind)
        with blaming(f"the observer {kind.name} cannot be made:"):
            observers.append(kind() if isinstance(wanted, str) else wanted)
    return observers


def require_observers(names: Sequence[str]) -> None:
    """Refuse names that nobody has, and observers whose package is missing."""
    for name in names:
        _require_package(_registry.find(name))


def _require_package(observer: type[Observer]) -> None:
    top = (observer.package or "").partition(".")[0]  # a part of a package is there where the package is
    if top and importlib.util.find_spec(top) is None:
        raise UserError(
            f"the observer {observer.name} needs the package {observer.package}, which is not installed: "
            f"pip install '{observer.install or observer.package}'"
        )


class Pictures(Observer):
    """RUN/pictures/step-N.png: validation scenes, reconstructions and soft masks."""

    name = "pictures"

    def on_start(self, run: "Run", step: int) -> None:
        self.folder = run.path / "pictures"

    def on_picture(self, step: int, picture: "Picture") -> None:
        from slotnorm.training.pictures import to_png

        files.make_subfolder(self.folder)
        files.write(self.folder / f"step-{step}.png", to_png(picture.sheet()))


class CommaSeparated(Observer):
    """RUN/metrics.csv with the columns step, metric, value."""

    name = "csv"

    def on_start(self, run: "Run", step: int) -> None:
        """Keep the lines up to the checkpoint; those behind it are told again."""
        self.path = run.path / "metrics.csv"
        lines = self.path.read_text().splitlines()[1:] if step and self.path.is_file() else []
        kept = [line for line in lines if line.partition(",")[0].isdecimal() and int(line.partition(",")[0]) <= step]
        files.write(self.path, "\n".join(["step,metric,value", *kept, ""]).encode())

    def on_step(self, step: int, numbers: dict[str, float]) -> None:
        self._append(step, _tagged("training", numbers))

    def on_validation(self, step: int, scores: dict[str, float]) -> None:
        self._append(step, _tagged("validation", scores))

    def _append(self, step: int, numbers: dict[str, float]) -> None:
        with open(files.open_in_place(self.path, os.O_WRONLY | os.O_APPEND), "a") as file:
            file.writelines(f"{step},{name},{value!r}\n" for name, value in numbers.items())


class TensorBoard(Observer):
    """Event files in RUN/tensorboard, for `tensorboard --logdir`."""

    name, package, install = "tensorboard", "tensorboard", "slotnorm[tensorboard]"

    def on_start(self, run: "Run", step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        files.make_subfolder(run.path / "tensorboard")
        # what was written behind the checkpoint is hidden: it is told again
        self.writer = SummaryWriter(str(run.path / "tensorboard"), purge_step=step + 1 if step else None)

    def on_step(self, step: int, numbers: dict[str, float]) -> None:
        self._write(step, _tagged("training", numbers))

    def on_validation(self, step: int, scores: dict[str, float]) -> None:
        self._write(step, _tagged("validation", scores))

    def on_picture(self, step: int, picture: "Picture") -> None:
        import numpy as np

        self.writer.add_image("validation/picture", np.asarray(picture.sheet()), step, dataformats="HWC")

    def on_checkpoint(self, step: int, path: Path) -> None:
        self.writer.flush()

    def on_end(self, step: int, finished: bool) -> None:
        self.writer.close()

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)


class WeightsAndBiases(Observer):
    """A Weights & Biases run in RUN/wandb, offline unless WANDB_MODE is online."""

    name, package, install = "wandb", "wandb", "slotnorm[wandb]"

    def __init__(self, project: str = "slotnorm", mode: str | None = None) -> None:
        self.project = project
        self.mode: Any = mode or os.environ.get("WANDB_MODE", "offline")  # wandb's own words, which it checks

    def on_start(self, run: "Run", step: int) -> None:
        import wandb

        files.make_subfolder(run.path / "wandb")
        settings = wandb.Settings(  # neither the screen nor the source of whoever trains is recorded
            silent=True, console="off", disable_git=True, disable_code=True, save_code=False
        )
        self.run = wandb.init(
            project=self.project,
            name=run.name,
            id=digest({"run": run.experiment.identity, "path": str(run.path.resolve())})[:16],
            resume="allow",
            mode=self.mode,
            dir=str(run.path),
            config=to_document(run.experiment),
            settings=settings,
        )

    def on_step(self, step: int, numbers: dict[str, float]) -> None:
        self.run.log(_tagged("training", numbers), step=step)

    def on_validation(self, step: int, scores: dict[str, float]) -> None:
        self.run.log(_tagged("validation", scores), step=step)

    def on_picture(self, step: int, picture: "Picture") -> None:
        import wandb

        self.run.log({"validation/picture": wandb.Image(picture.sheet())}, step=step)

    def on_end(self, step: int, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


def _tagged(group: str, numbers: dict[str, float]) -> dict[str, float]:
    """The names by which all loggers call numbers: training/loss, validation/f_ari@7."""
    return {f"{group}/{name}": value for name, value in numbers.items()}
