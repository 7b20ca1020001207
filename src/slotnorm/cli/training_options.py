"""`train` and `sweep`: every field of an experiment is an option; the experiment itself is a name or a file."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from slotnorm import experiments
from slotnorm.cli.data_verbs import open_backbone
from slotnorm.cli.launching import device_here, launcher_options, require_distinct, take_on, take_value
from slotnorm.cli.parsing import describe, entry, parse, wants_help
from slotnorm.cli.signatures import Option, of_dataclass, rebuilt
from slotnorm.cli.values import read_words
from slotnorm.config import Experiment
from slotnorm.errors import UserError
from slotnorm.studies.launchers import RETRIES, Launcher, Local, find_launcher
from slotnorm.studies.options import Training, chosen_norms, require_seeds
from slotnorm.training.experiment_file import read_experiment
from slotnorm.training.observers import describe_observers, require_observers

# typed often, so without the name of the dataclass
SHORT = {"recipe.steps": "--steps", "recipe.batch_size": "--batch-size", "recipe.learning_rate": "--lr"}

_FILE = Option(
    "experiment", Path, default=None,
    help="A file instead of NAME: a run's experiment.json, or the document of an experiment; other options change it",
)  # fmt: skip

# of own pictures: what decides the model
_OWN_OPTIONS = [
    Option("size", int, default=None, help="Side that pictures are learned at: 32, 64 or 128 (default: by them)"),
    Option(
        "features", str, default=None,
        help="Learn features of this network instead of pixels: a name of timm, a bundled name, run:FOLDER, a "
        ".safetensors file or hub:OWNER/NAME",
    ),
    Option("weights", str, default=None, help="Of --features, a file or hub; a slotnorm model has its own"),
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _SweepOptions:
    """Which runs of a study are trained."""

    norms: tuple[str, ...]
    """Normalizations; `all` is every one that is registered"""
    seeds: tuple[int, ...]
    """Seeds, as 1 2 3 or 1:5"""
    retries: int = RETRIES
    """How often a run that its launcher lost, e.g. with a machine, is submitted again"""
    plan: bool = False
    """Only print what would be trained, and what is finished"""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The runs to train, and where."""

    trainings: tuple[Training, ...]
    launcher: Launcher
    retries: int
    plan: bool = False


def parse_training(words: Sequence[str], prog: str) -> Training | None:
    """`NAME [--norm ... --steps ...]` -> what to train; None when only help on the verb was wanted."""
    chosen = _choose(words, prog)
    if chosen is None:
        return None
    default = Training(chosen.experiment)
    summary = f"Train {chosen.shown}: start a run, or go on with it where it was interrupted."
    given = parse([_FILE, *chosen.more, *_options(default)], chosen.words, chosen.prog, summary)
    return chosen.with_data(rebuilt(default, given))


def parse_sweep(words: Sequence[str], prog: str) -> Sweep | None:
    """`NAME [--norms ... --seeds ... --steps ...]` -> what to train; None when only help on the verb was wanted."""
    on, words = take_on(words)
    launcher = find_launcher(on or Local.name)()
    chosen = _choose(words, prog, launcher)
    if chosen is None:
        return None
    default, several = Training(chosen.experiment), _default_runs(chosen.experiment)
    for option in ("--norm", "--seed"):
        if any(word.partition("=")[0] == option for word in chosen.words):
            raise UserError(f"a sweep takes {option}s, with one or more values, instead of {option}")
    single = [option for option in _options(default) if option.key not in ("norm", "seed")]
    summary = f"Train {chosen.shown} with several normalizations and seeds: plan, skip what is finished, run."
    options = [*of_dataclass(several), *launcher_options(launcher), _FILE, *chosen.more, *single]
    require_distinct(options, launcher)
    given = parse(options, chosen.words, chosen.prog, summary)
    template = chosen.with_data(rebuilt(default, given))
    several, launcher = rebuilt(several, given), rebuilt(launcher, given)
    require_seeds(several.seeds)
    require_observers(template.log)
    device_here(template.device, launcher)  # refused once, and not in every run
    factors = [(norm, seed) for seed in several.seeds for norm in chosen_norms(several.norms)]
    trainings = [
        dataclasses.replace(template, experiment=dataclasses.replace(template.experiment, norm=norm, seed=seed))
        for norm, seed in factors
    ]
    return Sweep(tuple(trainings), launcher, several.retries, several.plan)


def _default_runs(experiment: Experiment) -> _SweepOptions:
    """The study's normalizations and seeds; of an experiment with a name of its own, the paper's four and its seed."""
    study = experiments.studies().get(experiment.name)
    if study is None:
        return _SweepOptions(experiments.MAIN, (experiment.seed,))
    return _SweepOptions(study.norms, study.seeds)


def _options(training: Training) -> list[Option]:
    """Every field of a training; help says who may be told of it."""
    options = {option.key: option for option in of_dataclass(training)}
    log = options["log"]
    options["log"] = dataclasses.replace(log, help=f"{log.help}: {describe_observers()}")
    return [dataclasses.replace(option, short=SHORT.get(option.key)) for option in options.values()]


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """The experiment that is asked for, and the words that change it."""

    experiment: Experiment
    words: list[str]
    prog: str
    shown: str
    more: Sequence[Option] = ()
    """Options that this experiment has beside those of every one."""
    data: Path | None = None
    """Where its data is, if not where --data says."""

    def with_data(self, training: Training) -> Training:
        return training if self.data is None else dataclasses.replace(training, data=self.data)


def _choose(words: Sequence[str], prog: str, launcher: Launcher | None = None) -> _Chosen | None:
    """The experiment by `--experiment FILE` or by NAME, and the other words; None when there is neither but help."""
    names = [*experiments.studies(), *experiments.transfers()]
    file, rest = take_value(list(words), "--experiment", "a file: a run's experiment.json, or a document like it")
    at = _position_of_name(rest, names)
    if file is not None:
        if at is not None:
            raise UserError(f"give an experiment by its name, {rest[at]}, or by --experiment {file}, not both")
        return _Chosen(read_experiment(Path(file)), rest, f"{prog} --experiment {file}", file)
    if at is None:
        if rest and not wants_help(rest):
            raise UserError(f"{prog} needs an experiment: its name, as in {prog} toy, or --experiment FILE")
        print(_usage(prog, launcher))
        return None
    name = rest.pop(at)
    chosen = _Chosen(experiments.study(name).experiment, rest, f"{prog} {name}", name)
    return _fit_to_pictures(chosen) if name == experiments.OWN else chosen


def _fit_to_pictures(chosen: _Chosen) -> _Chosen:
    """Own pictures decide the size of the model, and a network that sees them its kind."""
    chosen = dataclasses.replace(chosen, more=_OWN_OPTIONS)
    if wants_help(chosen.words):
        return chosen
    asked = {key: take_value(chosen.words, f"--{key}", "a value")[0] for key in ("data", "size", "features", "weights")}
    if asked["data"] is None:
        raise UserError(f"{chosen.prog} needs --data FOLDER: a folder of your pictures, or a set made of them")
    from slotnorm.studies.own_pictures import fit_to_features, fit_to_images

    data = Path(asked["data"])
    if asked["features"] is not None:
        backbone = open_backbone(asked["features"], asked["weights"])
        experiment, folder = fit_to_features(chosen.experiment, data, backbone)
        return dataclasses.replace(chosen, experiment=experiment, data=folder)
    size = None if asked["size"] is None else read_words(int, [asked["size"]], "--size")
    return dataclasses.replace(chosen, experiment=fit_to_images(chosen.experiment, data, size))


def _position_of_name(words: list[str], names: Sequence[str]) -> int | None:
    """Where the experiment's name is: in front, or behind options and their values."""
    if words and not words[0].startswith("-"):
        return 0
    for at in range(1, len(words)):
        is_a_value = words[at - 1].startswith("--") and "=" not in words[at - 1]
        if words[at] in names and not is_a_value:
            return at
    return None


def _usage(prog: str, launcher: Launcher | None) -> str:
    """Help without an experiment: which there are, and what can be said of each."""
    every = [_common(study.experiment, launcher) for study in experiments.studies().values()]
    shared = [len({repr(option.default) for option in same}) == 1 for same in zip(*every, strict=True)]
    return "\n".join([
        f"usage: {prog} EXPERIMENT [OPTIONS]",
        f"       {prog} --experiment FILE [OPTIONS]", "",
        *experiments.listing().splitlines(), "",
        "options of every experiment:",
        *(line for option, same in zip(every[0], shared, strict=True) for line in describe(option, default=same)),
        *entry("--recipe. --scenes.", f"{prog} toy --help lists all that can be changed of toy, with its values"),
    ])  # fmt: skip


def _common(experiment: Experiment, launcher: Launcher | None) -> list[Option]:
    """The options that every experiment has, with this one's defaults; those of a sweep where there is a launcher."""
    options = [_FILE, *_options(Training(experiment))]
    common = [option for option in options if option.group in ("", "experiment") or option.short]
    if launcher is None:
        return common
    single = [option for option in common if option.key not in ("norm", "seed")]
    return [*of_dataclass(_default_runs(experiment)), *launcher_options(launcher), *single]
