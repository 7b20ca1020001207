"""The paper's studies and their experiments by name, and small ones of the same kind that train on two cores.

An *experiment* is what one run trains, its normalization and seed included. Experiments that differ in these two alone
are a *study*, with the sets that their runs are tested on, and share its name, as `toy`.
"""

import dataclasses
from typing import Any

from slotnorm.config import Experiment, FeatureModel, GeneratedScenes, ImageModel, Recipe, SetModel
from slotnorm.errors import UserError, nearest
from slotnorm.runtime.columns import in_columns
from slotnorm.storage.serialization import differences, to_document

OTHERS = ("weighted_mean", "layer_norm")
PROPOSED = ("weighted_sum", "batch_norm")  # by the paper
MAIN = (*OTHERS, *PROPOSED)
ABLATED = ("unnormalized", "kd_layer_norm")
# the protocol's, for all that does not say its own
TEST_SCENES = 1280
TEST_SLOTS = (3, 24)  # fewest and most
ANY_NUMBER = (0, 255)  # of objects: also where nobody counted them

# One training step's floating-point operations (3 times the forward pass, counted from the layers), at this rate:
ESTIMATE = "estimated, one GPU at 40 TFLOP/s"
_MEASURED = "measured, CPU time of one thread"
_SCALED = "CPU time per step x steps, one thread"


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Scenes to evaluate on: the test split of `dataset` with this many objects."""

    name: str
    """As in rows and figures: clevr6, movi-d."""
    dataset: str
    objects: tuple[int, int]
    """Fewest and most."""
    radius: tuple[float, float] | None = None
    """Of small and of large objects, where generated scenes are not to have the usual ones."""


@dataclasses.dataclass(frozen=True)
class Study:
    """Which normalizations and seeds are trained, how the runs are tested, where in the paper, at what cost."""

    experiment: Experiment
    """With the default normalization and the first seed; `dataclasses.replace` makes the others."""
    where: str
    """Figures and section of the paper, or what it stands for."""
    seeds: tuple[int, ...]
    hours: float
    """Of one run."""
    basis: str
    """How the hours are known."""
    tests: tuple[EvaluationSet, ...]
    norms: tuple[str, ...] = MAIN
    shown_with: str | None = None
    """The study whose runs are shown in the same figures."""
    test_scenes: int = TEST_SCENES
    test_slots: tuple[int, int] = TEST_SLOTS
    """Fewest and most slots that it is evaluated with."""
    quick_steps: int | None = None
    """Steps after which the effect can be seen already, where that is known: `reproduce --quick`."""

    @property
    def name(self) -> str:
        return self.experiment.name


@dataclasses.dataclass(frozen=True)
class GeneratedFeatures:
    """A set of features that is made when it is needed: those of a trained encoder of ours, for generated scenes."""

    scenes: GeneratedScenes
    encoder: str
    """Which of the bundled models has it."""


@dataclasses.dataclass(frozen=True)
class Transfer:
    """An evaluation without training of its own: the runs of other studies on another set."""

    name: str
    where: str
    studies: tuple[str, ...]
    """Whose runs are evaluated, in the order of the table's sections."""
    test: EvaluationSet
    slots: int
    paper: str | None = None
    """The paper's transfer that it stands for, section by section; None if it is one of the paper's."""


_CLEVR_RATE = 4e-4 * 0.5**0.1

_CLEVR = Recipe(
    model=ImageModel(),
    learning_rate=_CLEVR_RATE,
    warmup_from=1e-3,
    evaluation_iterations=5,
    flip=True,
)
_MOVI = Recipe(model=FeatureModel(), learning_rate=4e-4, warmup_from=1e-8, clip=1.0)
_PROPERTIES = Recipe(model=SetModel(), batch_size=512, learning_rate=_CLEVR_RATE, warmup_from=1e-3)

# Chosen by F-ARI on validation scenes at the training K alone, one recipe for all normalizations: docs/results/toy.md.
_TOY_SCENES = GeneratedScenes(style="clevr", objects=(2, 4), test_objects=(5, 7), size=32, num=20_000)
# Objects this large: with smaller ones weighted sum does not learn them within the steps.
_TOY_PROPERTIES_SCENES = GeneratedScenes(
    style="flat", objects=(2, 4), test_objects=(5, 7), size=24, materials=("solid", "outlined"), radius=(0.16, 0.22),
    num=60_000,
)  # fmt: skip
_TOY_SCHEDULE: dict[str, Any] = {
    "learning_rate": 4e-3, "warmup_steps": 500, "warmup_from": 0.002, "half_life": None, "cosine_to": 0.02, "clip": 1.0,
    "checkpoint_every": 500, "log_every": 50, "validate_every": 1000,
}  # fmt: skip
_TOY = Recipe(
    model=ImageModel(
        size=32, channels=32, dim=48, hidden=96, strides=(2, 1), positions="fourier", position_scale=0.3,
        decoder_channels=16, decoder_strides=(2, 2),
    ),
    steps=8_000, batch_size=32, evaluation_iterations=5, **(_TOY_SCHEDULE | {"learning_rate": 1e-3}),
)  # fmt: skip
# At three times this rate no normalization that was tried learns.
_TOY_PROPERTIES = Recipe(
    model=SetModel(size=24, channels=32, dim=32, hidden=64, kernel=5, strides=(2, 1), positions="fourier"),
    steps=12_000, batch_size=32, **(_TOY_SCHEDULE | {"learning_rate": 1e-3, "validate_every": 2000}),
)  # fmt: skip
# The paper trains on up to 10 or 6 objects with 11 or 7 slots and transfers to up to 23 with 24. Here up to 4 or 2 with
# 5 or 3, and up to 10 with 24. Steps and rate by F-ARI at 5 slots alone: docs/results/features.md.
_TOY_FEATURES_SCENES = dataclasses.replace(_TOY_SCENES, objects=(1, 4), test_objects=(1, 4))
_TOY_FEATURES_ENCODER = "toy-weighted_sum"
_FEATURE_SETS = {
    "toy-features": GeneratedFeatures(_TOY_FEATURES_SCENES, _TOY_FEATURES_ENCODER),
    "toy-features-many": GeneratedFeatures(
        dataclasses.replace(_TOY_FEATURES_SCENES, objects=(5, 10), test_objects=(5, 10)), _TOY_FEATURES_ENCODER
    ),
}
_TOY_FEATURES = Recipe(
    model=FeatureModel(tokens=256, features=32, dim=48, decoder=64, hidden=96),
    steps=3_000, batch_size=32, **(_TOY_SCHEDULE | {"learning_rate": 1e-3}),
)  # fmt: skip

# The toy study's recipe as it is, on more objects: no search of its own.
_SMALL_SCENES = dataclasses.replace(_TOY_SCENES, objects=(3, 6), test_objects=(3, 10))
_SMALL = _TOY
# The same recipe again, mirrored as the paper's: 4,000 renders are few.
_CLEVR_MINI = dataclasses.replace(_TOY, flip=True)


# Pictures of anyone's. Whatever the size, there are 16 x 16 tokens and the decoder starts from 8 x 8.
OWN = "own"
OWN_SIZES = (32, 64, 128)


def own_model(size: int) -> ImageModel:
    """The image autoencoder for pictures of anyone's at one of `OWN_SIZES`: as wide as the toy study's."""
    halvings = OWN_SIZES.index(size) + 1
    strides = (2,) * halvings + (1,) * (halvings == 1)
    return ImageModel(
        size=size, channels=32, dim=48, hidden=96, strides=strides, positions="fourier", decoder_channels=16,
        decoder_strides=(2,) * (halvings + 1),
    )  # fmt: skip


# Chosen on 64x64 CLEVR renders by F-ARI on validation scenes at the training K: docs/results/clevr-renders.md.
_OWN = Recipe(
    model=own_model(64),
    steps=15_000, batch_size=16, learning_rate=1e-3, warmup_steps=1_000, half_life=None, cosine_to=0.02, clip=1.0,
    evaluation_iterations=5, flip=True, checkpoint_every=1_000, validate_every=500, validation_scenes=128,
)  # fmt: skip
OWN_TEST = EvaluationSet(OWN, OWN, ANY_NUMBER)
"""What a run is evaluated on that was trained on a folder without test scenes: those that training left out."""


def _generated(
    name: str, dataset: str, scenes: GeneratedScenes, slots: int, recipe: Recipe, norm: str = "weighted_sum"
) -> Experiment:
    return Experiment(name, dataset, slots, recipe, scenes.objects[1], norm, scenes=scenes)


def _tests(dataset: str, *objects: tuple[int, int]) -> tuple[EvaluationSet, ...]:
    """A test set for each (fewest, most) objects: first as many as in training at most, then more."""
    return tuple(EvaluationSet(f"{dataset}{most}", dataset, (fewest, most)) for fewest, most in objects)


_FEW, _MANY = (3, 6), (3, 10)
_CLEVR_TESTS = _tests("clevr", _FEW, _MANY)
# Beyond the paper: so many objects find their places only when they are smaller, so that fewer of that size are beside.
_SHRUNK = (0.28, 0.55)
_SMALL_TESTS = (
    *_tests("small", _FEW, _MANY),
    EvaluationSet("small10-shrunk", "small", _MANY, _SHRUNK),
    EvaluationSet("small16-shrunk", "small", (11, 16), _SHRUNK),
)
_MOVI_SET = "movi-c-features"
_MOVI_TESTS = (EvaluationSet("movi-c6", _MOVI_SET, _FEW), EvaluationSet("movi-c10", _MOVI_SET, _MANY))
_TOY_PROPERTIES_OBJECTS = _TOY_PROPERTIES_SCENES.objects, _TOY_PROPERTIES_SCENES.test_objects
_TOY_TESTED: dict[str, Any] = {"test_scenes": 320, "test_slots": (2, 16)}

_FIVE, _THREE = (1, 2, 3, 4, 5), (1, 2, 3)
_PUBLISHED = (11, 12, 13, 14, 15)  # none of them was used in a search for a recipe

_PAPER = (
    Study(Experiment("clevr-6-7", "clevr", 7, _CLEVR, 6), "Fig. 1, 2, 7; Sec. 5.1", _FIVE, 28, ESTIMATE, _CLEVR_TESTS),
    Study(Experiment("clevr-6-11", "clevr", 11, _CLEVR, 6), "Fig. 3, 8; Sec. 5.1", _THREE, 40, ESTIMATE, _CLEVR_TESTS),
    Study(Experiment("movi-10-11", _MOVI_SET, 11, _MOVI, 10), "Fig. 4, 9; Sec. 5.2", _FIVE, 35, ESTIMATE, _MOVI_TESTS),
    Study(Experiment("movi-6-7", _MOVI_SET, 7, _MOVI, 6), "Fig. 5, 10; Sec. 5.2", _THREE, 23, ESTIMATE, _MOVI_TESTS),
    Study(Experiment("movi-6-11", _MOVI_SET, 11, _MOVI, 6), "Fig. 6, 11; Sec. 5.2", _THREE, 35, ESTIMATE, _MOVI_TESTS),
    Study(
        Experiment("properties", "clevr", 10, _PROPERTIES, 10),
        "Fig. 12, 13; App. I", _THREE, 8, ESTIMATE, _CLEVR_TESTS[1:],
    ),
    Study(
        Experiment("ablation", "clevr", 10, _PROPERTIES, 10, ABLATED[0]),
        "Fig. 14, 15; App. J", _THREE, 8, ESTIMATE, _CLEVR_TESTS[1:], ABLATED, shown_with="properties",
    ),
)  # fmt: skip

_SMALL_ONES = (
    Study(
        _generated("toy", "toy", _TOY_SCENES, 5, _TOY),
        "as Fig. 1, 32x32 pixels", _PUBLISHED, 0.16, _MEASURED, _tests("toy", (2, 4), (5, 7), (8, 10)),
        quick_steps=4_000, **_TOY_TESTED,
    ),
    Study(
        _generated("toy-properties", "toy-properties", _TOY_PROPERTIES_SCENES, 5, _TOY_PROPERTIES),
        "as Fig. 12, 13", _THREE, 0.08, _SCALED, _tests("toy-properties", *_TOY_PROPERTIES_OBJECTS), **_TOY_TESTED,
    ),
    Study(
        _generated("toy-ablation", "toy-properties", _TOY_PROPERTIES_SCENES, 5, _TOY_PROPERTIES, ABLATED[0]),
        "as Fig. 14, 15", _THREE, 0.08, _SCALED, _tests("toy-properties", *_TOY_PROPERTIES_OBJECTS), ABLATED,
        shown_with="toy-properties", **_TOY_TESTED,
    ),
    *(
        Study(
            Experiment(f"toy-features-{most}-{slots}", "toy-features", slots, _TOY_FEATURES, most),
            f"as {where}", _PUBLISHED[:3], hours, _SCALED, _tests("toy-features", (1, 2), (1, 4)), **_TOY_TESTED,
        )
        for most, slots, where, hours in (
            (4, 5, "Fig. 4, 9", 0.05), (2, 3, "Fig. 5, 10", 0.04), (2, 5, "Fig. 6, 11", 0.05),
        )
    ),
    Study(
        _generated("small-6-7", "small", _SMALL_SCENES, 7, _SMALL),
        "as Fig. 1, 32x32 pixels", _PUBLISHED[:3], 0.3, _MEASURED, _SMALL_TESTS, test_scenes=320,
    ),
    Study(
        _generated("small-6-11", "small", _SMALL_SCENES, 11, _SMALL),
        "as Fig. 3, 32x32 pixels", _PUBLISHED[:3], 0.45, _SCALED, _SMALL_TESTS, test_scenes=320,
    ),
    Study(
        Experiment("clevr-mini-6-7", "clevr-mini", 7, _CLEVR_MINI, 6),
        "as Fig. 1, 32x32 pixels", _PUBLISHED[:3], 0.3, _SCALED, _tests("clevr-mini", _FEW, _MANY), test_scenes=320,
    ),
    Study(
        Experiment(OWN, OWN, 8, _OWN),
        "your pictures: --data FOLDER", (1,), 0.9, _SCALED, (OWN_TEST,), test_scenes=128,
    ),
)  # fmt: skip

_TRANSFERS = (
    Transfer(
        "movi-d", "Tab. 1; Sec. 5.2", ("movi-10-11", "movi-6-11", "movi-6-7"),
        EvaluationSet("movi-d", "movi-d-features", (1, 23)), slots=24,
    ),
    Transfer(
        "toy-features-many", "as Tab. 1", ("toy-features-4-5", "toy-features-2-5", "toy-features-2-3"),
        EvaluationSet("toy-features-many", "toy-features-many", (5, 10)), slots=24, paper="movi-d",
    ),
)  # fmt: skip


def studies() -> dict[str, Study]:
    """Every study by name."""
    return {study.name: study for study in (*_PAPER, *_SMALL_ONES)}


def transfers() -> dict[str, Transfer]:
    """Evaluations of other studies' runs, by name: the paper's MOVi-D table, and a small one of its kind."""
    return {transfer.name: transfer for transfer in _TRANSFERS}


def feature_sets() -> dict[str, GeneratedFeatures]:
    """The sets of features that need not be built: they are made when they are needed, by dataset."""
    return dict(_FEATURE_SETS)


def evaluation_sets() -> dict[str, EvaluationSet]:
    """The test sets of all studies and transfers, by name."""
    tests = [test for entry in studies().values() for test in entry.tests]
    return {test.name: test for test in (*tests, *(transfer.test for transfer in transfers().values()))}


def evaluation_set(name: str, objects: tuple[int, int] | None = None) -> EvaluationSet:
    """The set of that name (clevr6), or a dataset's widest (clevr); with other numbers of objects, a set of its own."""
    sets = evaluation_sets()
    of_dataset = [test for test in sets.values() if test.dataset == name]
    if name not in sets and not of_dataset:
        known = dict.fromkeys([*sets, *(test.dataset for test in sets.values())])
        raise UserError(
            f"there is no dataset {name!r}; {nearest(name, known)}; a set of your own is given by its folder, --data"
        )
    chosen = sets[name] if name in sets else max(of_dataset, key=lambda test: test.objects[1] - test.objects[0])
    if objects in (None, chosen.objects):
        return chosen
    alike = [test for test in sets.values() if (test.dataset, test.objects) == (chosen.dataset, objects)]
    return alike[0] if alike else EvaluationSet(f"{chosen.dataset}{objects[0]}-{objects[1]}", chosen.dataset, objects)


def study(name: str) -> Study:
    """The study of that name; an unknown one is refused with the nearest."""
    if name in transfers():
        trained = ", ".join(transfers()[name].studies)
        raise UserError(f"{name} is not trained: it evaluates the runs of {trained}; train those")
    if name not in studies():
        raise UserError(f"there is no experiment {name!r}; {nearest(str(name), [*studies(), *transfers()])}")
    return studies()[name]


def experiment(name: str, **factors: Any) -> Experiment:
    """The experiment of that name, with other factors: experiment("clevr-6-7", norm="batch_norm", seed=3)."""
    known = [field.name for field in dataclasses.fields(Experiment)]
    for factor in factors:
        if factor in (field.name for field in dataclasses.fields(Recipe)):
            raise UserError(
                f"{factor} is a field of the recipe, not of the experiment; change it by "
                f"dataclasses.replace(experiment, recipe=dataclasses.replace(experiment.recipe, {factor}=...))"
            )
        if factor not in known:
            raise UserError(f"an experiment has no field {factor!r}; {nearest(factor, known)}")
    return dataclasses.replace(study(name).experiment, **factors)


def command_line(wanted: Experiment) -> list[str]:
    """The words after `slotnorm train` that make this experiment from the registered one that is most like it."""
    documents = {name: to_document(entry.experiment) for name, entry in studies().items()}
    changes = {name: differences(document, to_document(wanted)) for name, document in documents.items()}
    alike = [name for name, entry in studies().items() if _alike(entry, wanted)] or list(changes)
    nearest_study = wanted.name if wanted.name in changes else min(alike, key=lambda name: len(changes[name]))
    words = [nearest_study]
    for field, _, value in changes[nearest_study]:
        values = value if isinstance(value, list) else [value]
        words += [f"--{field.replace('_', '-')}", *map(str, values)]
    return words


def _alike(study: Study, wanted: Experiment) -> bool:
    """Whether the study's experiment has the same options: a model of the same kind, and scenes or none."""
    own = study.experiment
    return type(own.recipe.model) is type(wanted.recipe.model) and (own.scenes is None) == (wanted.scenes is None)


def listing() -> str:
    """All experiments as a table for people."""
    rows = [("experiment", "in the paper", "dataset", "(O, K)", "steps", "seeds", "hours per run")]
    for entry in studies().values():
        factors = entry.experiment
        rows.append((
            entry.name, entry.where, factors.dataset, f"({factors.max_objects or '-'}, {factors.slots})",
            f"{factors.recipe.steps:,}", str(len(entry.seeds)), f"{entry.hours:g} ({entry.basis})",
        ))  # fmt: skip
    for transfer in transfers().values():
        source = f"runs of {', '.join(transfer.studies)} at K {transfer.slots}"
        rows.append((transfer.name, transfer.where, transfer.test.dataset, "-", "-", "-", source))
    return "\n".join(in_columns(rows))
