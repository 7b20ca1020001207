"""Command lines made from experiments: `train NAME` and `sweep NAME` take every field of it as an option."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from slotnorm.config import Experiment
from slotnorm.errors import UserError, nearest
from slotnorm.experiments import command_line, listing, study

# which model, and whether scenes are generated, is the experiment's name's to say: no subcommands for these
_CONFIG = (tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff)


@dataclasses.dataclass(frozen=True)
class Training:
    """How a run is trained, besides its experiment."""

    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    into: Path = Path("runs")
    """Folder of runs; this one's is NAME-NORM-SEED."""
    data: Path | None = None
    """Folder of the built set, or of its splits, when it is not in the cache."""
    workers: int = 0
    """Processes that read batches ahead."""
    validate_slots: tuple[int, ...] | None = None
    """Numbers of slots that validation scores; None is K and three times it."""


@dataclasses.dataclass(frozen=True)
class _SweepOptions:
    """Which runs of an experiment are trained, and how many at once."""

    norms: tuple[str, ...]
    """Normalizations; `all` is every one that is registered."""
    seeds: tuple[int, ...]
    """Seeds."""
    jobs: int = 1
    """Single-threaded processes side by side."""
    into: Path = Path("runs")
    """Folder of runs."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The runs to train, and how many at once."""

    trainings: tuple[Training, ...]
    jobs: int


def parse_training(arguments: Sequence[str], prog: str) -> Training | None:
    """`NAME [--norm ... --recipe.steps ...]` -> what to train; None when only help was wanted."""
    if not arguments or arguments[0].startswith("-"):
        print(_usage(prog))
        return None
    name, *options = arguments
    return _parse(Training(study(name).experiment), options, f"{prog} {name}")


def parse_sweep(arguments: Sequence[str], prog: str) -> Sweep | None:
    """`NAME [--norms ... --seeds ... --recipe.steps ...]` -> what to train; None when only help was wanted."""
    if not arguments or arguments[0].startswith("-"):
        print(_usage(prog))
        return None
    name, *words = arguments
    default = _SweepOptions(study(name).norms, study(name).seeds)
    asked, options = tyro.cli(
        _SweepOptions, args=words, default=default, prog=f"{prog} {name}", config=_CONFIG, return_unknown_args=True,
        description=f"Train {name} with several normalizations and seeds; other options go to each `slotnorm train`.",
    )  # fmt: skip
    for option in ("--norm", "--seed"):
        if option in (word.partition("=")[0] for word in options):
            raise UserError(f"a sweep takes {option}s, with one or more values, instead of {option}")
    require_seeds(asked.seeds)
    template = _parse(Training(study(name).experiment, into=asked.into), options, f"{prog} {name}")
    experiments = [
        dataclasses.replace(template.experiment, norm=norm, seed=seed)
        for seed in asked.seeds
        for norm in chosen_norms(asked.norms)
    ]
    trainings = tuple(dataclasses.replace(template, experiment=experiment) for experiment in experiments)
    return Sweep(trainings, asked.jobs)


def words(training: Training) -> list[str]:
    """The command line of a training, after `slotnorm train`."""
    options = ["--into", str(training.into), "--workers", str(training.workers)]
    if training.data is not None:
        options += ["--data", str(training.data)]
    if training.validate_slots is not None:
        options += ["--validate-slots", *map(str, training.validate_slots)]
    return [*command_line(training.experiment), *options]


def _parse(default: Training, options: Sequence[str], prog: str) -> Training:
    parsed, unknown = tyro.cli(
        Training, args=list(options), default=default, prog=prog, config=_CONFIG, return_unknown_args=True,
        description="Start a run, or go on with it where it was interrupted.",
    )  # fmt: skip
    if unknown:
        known = [f"--{name}" for name in _option_names(default)]
        word = unknown[0].partition("=")[0]
        raise UserError(
            f"{prog} has no option {word}; {nearest(word, known).split('known are')[0]}{prog} --help lists them"
        )
    return parsed


def _option_names(value: Any, prefix: str = "") -> list[str]:
    """The options that tyro makes of a dataclass."""
    names: list[str] = []
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        name = f"{prefix}{field.name}".replace("_", "-")
        if dataclasses.is_dataclass(inner):
            names += _option_names(inner, "" if field.name == "experiment" else f"{name}.")
        else:
            names.append(name)
    return names


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


def _usage(prog: str) -> str:
    return f"usage: {prog} EXPERIMENT [OPTIONS]   ({prog} toy --help lists the options)\n\n{listing()}"


def reads_arguments(verb: Callable[[list[str], str], None]) -> Callable[[list[str], str], None]:
    """Mark a verb that parses its own arguments, given as a list, and its name."""
    verb.reads_arguments = True  # type: ignore[attr-defined]
    return verb
