"""How a run is trained besides its experiment, and which runs a study has: choices that are checked."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slotnorm import experiments
from slotnorm.config import Experiment
from slotnorm.errors import UserError


@dataclasses.dataclass(frozen=True)
class Training:
    """How a run is trained, besides its experiment."""

    experiment: Experiment
    into: Path = Path("runs")
    """Folder of runs; this one's is NAME-NORM-SEED."""
    data: Path | None = None
    """Folder of pictures, of a built set, or of its splits, when it is not in the cache; the run remembers it."""
    workers: int = 0
    """Threads that read batches ahead."""
    validate_slots: tuple[int, ...] | None = None
    """Numbers of slots that validation scores, as 5 15 or 3:7 (default: K and three times it)."""
    device: str = "auto"
    """Where it computes: auto (a GPU if there is one), cpu, cuda or mps."""
    log: tuple[str, ...] = ()
    """Who is told of the training, besides metrics.jsonl and pictures."""

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.into / self.experiment.run_name

    def absolute(self) -> "Training":
        """The same from whatever folder it is started in."""
        data = None if self.data is None else self.data.absolute()
        return dataclasses.replace(self, into=self.into.absolute(), data=data)


def words(training: Training, file: Path) -> list[str]:
    """The words after `slotnorm train` for a training whose experiment is in a file."""
    options = ["--experiment", str(file), "--into", str(training.into), "--workers", str(training.workers)]
    if training.data is not None:
        options += ["--data", str(training.data)]
    if training.validate_slots is not None:
        options += ["--validate-slots", *map(str, training.validate_slots)]
    if training.device != "auto":
        options += ["--device", training.device]
    if training.log:
        options += ["--log", *training.log]
    return options


def evaluation_words(
    dataset: str | None = None,
    slots: Sequence[int] | None = None,
    objects: tuple[int, int] | None = None,
    scenes: int | None = None,
    data: Path | None = None,
    unfinished: bool = False,
    batch_size: int = 64,
    device: str = "auto",
) -> list[str]:
    """The words after `slotnorm eval RUN` for an evaluation, from whatever folder it is started in."""
    given = {
        "--dataset": dataset, "--slots": None if slots is None else ",".join(map(str, slots)),
        "--objects": None if objects is None else ":".join(map(str, objects)), "--scenes": scenes,
        "--data": None if data is None else data.absolute(), "--batch-size": batch_size, "--device": device,
    }  # fmt: skip
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return [*words, "--unfinished"] if unfinished else words


def experiment(name: str, **factors: Any) -> Experiment:
    """The experiment of that name, with other factors: experiment("clevr-6-7", norm="batch_norm", seed=3)."""
    chosen = experiments.experiment(name, **factors)
    if chosen.norm not in (*experiments.MAIN, *experiments.ABLATED):  # these need not be looked up, which needs torch
        from slotnorm.models.building import require_normalization

        require_normalization(chosen.norm)
    return chosen


def chosen_norms(names: Sequence[str]) -> list[str]:
    """The normalizations that `--norms` names, each once; `all` is every one that is registered."""
    from slotnorm.models.building import require_normalization
    from slotnorm.normalization import normalizations

    if "all" in names:
        return list(normalizations())
    if not names:
        raise UserError("--norms needs one normalization or more, or all")
    for name in names:
        require_normalization(name)
    return list(dict.fromkeys(names))


def require_seeds(seeds: Sequence[int]) -> None:
    """Refuse a list of seeds that is empty or has one twice."""
    if not seeds or len(set(seeds)) < len(seeds):
        given = " ".join(map(str, seeds)) or "missing"
        raise UserError(f"--seeds are {given}; name one or more, each once")
