"""What an experiment is: `Experiment` holds what differs between runs, `Recipe` what is fixed. Frozen; no torch."""

import dataclasses
import math
import re
from typing import Any, ClassVar, Literal

from slotnorm.errors import UserError
from slotnorm.storage.seals import digest
from slotnorm.storage.serialization import newer, to_document

Protocol = Literal["paper", "authors"]
Fit = Literal["stretch", "crop", "pad"]
"""How a picture becomes a square: scaled whatever its proportions; its largest centred square; whole, between bars."""

SLOTS_FACTOR = 3  # times the training K: the most slots that training is watched at and reports look at, the question

_LARGEST = 1_000_000_000  # of a number in a recipe; more is a typing error, and nothing could hold or count it
_LARGEST_SIZE = 1 << 24  # of a layer
_MOST_LAYERS = 64  # that a list of sizes may say; those of the paper have up to four
_MOST = {"size": 2048, "tokens": 1 << 16, "slots": 4096, "iterations": 1000, "evaluation_iterations": 1000}
"""Of what no weight bears out: a small file could ask for any memory and time with it."""
_MOST_SHARES = 1 << 26  # of pixels or features among slots: one picture's masks, 256 MB; 64 slots of 1024 x 1024
_LONGEST_NAME = 100  # letters of a study, a set or a class
_LARGEST_SEED = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class _PictureModel:
    """Sizes that the models of pictures share: those of the encoder and of Slot Attention."""

    input: ClassVar[Literal["images", "features"]] = "images"

    size: int = 128
    """Side of the image, in pixels."""
    channels: int = 64
    """Width of the convolutions."""
    dim: int = 64
    """Width of the slots."""
    hidden: int = 128
    """Width of Slot Attention's residual MLP."""
    kernel: int = 5
    """Side of the encoder's convolutions."""
    strides: tuple[int, ...] = (1, 1, 1, 1)
    """One convolution of the encoder each."""
    positions: Literal["ramps", "fourier"] = "ramps"
    """What the position embedding is a map of."""
    position_scale: float | None = None
    """Standard deviation of the position embedding at the start; None is Glorot's."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one scene's input, as `Scenes` hold it."""
        return (self.size, self.size, 3)

    def __post_init__(self) -> None:
        _require_sizes(self)


@dataclasses.dataclass(frozen=True)
class ImageModel(_PictureModel):
    """Sizes of the image autoencoder; the defaults are the paper's tables."""

    kind: ClassVar[str] = "image_autoencoder"
    authors_adam: ClassVar[Literal["torch", "tensorflow"]] = "tensorflow"
    """Whose form of Adam the authors train it with."""

    decoder: Literal["broadcast", "dense"] = "broadcast"
    """A slot spread over a small grid that grows by transposed convolutions, or linear maps to all pixels."""
    decoder_channels: int | None = None
    """Width of the transposed convolutions; None is `channels`."""
    decoder_kernel: int = 5
    """Side of the transposed convolutions."""
    decoder_strides: tuple[int, ...] = (2, 2, 2, 2, 1)
    """One transposed convolution each; the grid starts at size / their product."""
    decoder_hidden: tuple[int, ...] = (256, 256)
    """Widths of the dense decoder."""
    recompute: bool = False
    """Whether training decodes twice to need less memory."""


@dataclasses.dataclass(frozen=True)
class FeatureModel:
    """Sizes of the feature autoencoder; the defaults are the paper's tables."""

    kind: ClassVar[str] = "feature_autoencoder"
    input: ClassVar[Literal["images", "features"]] = "features"
    authors_adam: ClassVar[Literal["torch", "tensorflow"]] = "torch"
    """Whose form of Adam the authors train it with."""

    tokens: int = 784
    """Features per image."""
    features: int = 768
    """Width of a feature."""
    dim: int = 128
    """Width of the slots."""
    decoder: int = 1024
    """Width of the decoder's hidden layers."""
    hidden: int = 512
    """Width of Slot Attention's residual MLP."""
    recompute: bool = False
    """Whether training decodes twice to need less memory."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one scene's input, as `Scenes` hold it."""
        return (self.tokens, self.features)

    def __post_init__(self) -> None:
        _require_sizes(self)


@dataclasses.dataclass(frozen=True)
class SetModel(_PictureModel):
    """Sizes of the set predictor; the defaults are the protocol's."""

    kind: ClassVar[str] = "set_predictor"
    authors_adam: ClassVar[Literal["torch", "tensorflow"]] = "torch"
    """Whose form of Adam the authors train it with."""

    strides: tuple[int, ...] = (1, 2, 2, 1)
    """One convolution of the encoder each."""


@dataclasses.dataclass(frozen=True)
class SceneSpec:
    """Which scenes `data.generator` draws: None is the style's default."""

    objects: tuple[int, int] = (3, 6)
    """Fewest and most objects in a scene; every number between them is equally likely."""
    size: int = 64
    """Side of the image, in pixels."""
    seed: int = 0
    """Scenes of different seeds have nothing in common; every run of an experiment sees the same ones."""
    style: Literal["clevr", "flat"] = "clevr"
    """Ray-traced CLEVR-like scenes, or solid shapes on a plain background."""
    shapes: tuple[str, ...] | None = None
    """Those that are used; None is all of the style."""
    materials: tuple[str, ...] | None = None
    """Those that are used; None is the style's usual ones."""
    colors: tuple[str, ...] | None = newer(None)
    """Those that are used; None is all of the style."""
    radius: tuple[float, float] | None = None
    """clevr: of small and of large objects, where the ground is 6 x 6. flat: least and largest share of the side.
    None depends on the number of objects."""
    margin: float | None = newer(None)
    """Least gap between two objects as a share of the sum of their radii; negative lets flat ones overlap."""
    min_visible: int | None = None
    """Pixels of each object that nothing hides; None is the style's rule."""


SPLITS = ("train", "val", "test")


@dataclasses.dataclass(frozen=True)
class GeneratedScenes(SceneSpec):
    """An experiment's scenes, which are made when they are needed: `objects` and `num` are those of training."""

    test_objects: tuple[int, int] = (3, 10)
    """Fewest and most objects in the test set with many objects."""
    num: int = 20_000
    """Training scenes, or steps x batch size if that is less."""

    def spec(self, split: str, objects: tuple[int, int]) -> SceneSpec:
        """The scenes of a split with `objects` (fewest, most); no two splits of any two seeds share a scene."""
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(SceneSpec)}
        seed = len(SPLITS) * self.seed + SPLITS.index(split)
        return SceneSpec(**{**shared, "objects": objects, "seed": seed})


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that stays the same between the runs that are compared."""

    model: ImageModel | FeatureModel | SetModel
    steps: int = 500_000
    """Optimizer steps; the one field that may grow when a run is resumed."""
    batch_size: int = 64
    """Images per step, over all processes."""
    learning_rate: float = 4e-4
    """The learning rate's peak."""
    warmup_steps: int = 10_000
    """Steps of linear increase to the peak."""
    warmup_from: float = 1e-3
    """Share of the peak at step 0."""
    half_life: int | None = 100_000
    """After the warm-up, steps in which the learning rate halves; or None, and `cosine_to` is given."""
    cosine_to: float | None = None
    """Share of the peak at the last step, reached along a cosine; or None."""
    clip: float | None = None
    """Largest norm of the gradient; None means that it is not clipped."""
    iterations: int = 3
    """Slot Attention iterations in training."""
    evaluation_iterations: int = 3
    """The same in evaluation."""
    flip: bool = False
    """Whether half of the images, with their masks, are flipped left to right."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of convolutions and products; the two halves by autocast, and only worth it on a GPU."""
    protocol: Protocol = "paper"
    """Whether the paper or the authors' code is followed where they differ (docs/fidelity.md)."""
    checkpoint_every: int = 5_000
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """How many of the newest are kept."""
    log_every: int = 100
    """Steps between lines of training loss in metrics.jsonl."""
    validate_every: int = 10_000
    """Steps between validations, which also draw a picture."""
    validation_scenes: int = 320
    """How many scenes are validated on."""
    initialization: str = newer("gaussian")
    """How slots start: gaussian, or learned, a vector each, and then only as many slots as in training."""

    def __post_init__(self) -> None:
        _require_positive(
            self, "recipe", "steps", "batch_size", "learning_rate", "iterations", "evaluation_iterations", "half_life",
            "clip", "checkpoint_every", "keep_checkpoints", "log_every", "validate_every", "validation_scenes",
        )  # fmt: skip
        if (self.half_life is None) == (self.cosine_to is None):
            raise UserError(
                f"recipe.half-life is {self.half_life} and recipe.cosine-to {self.cosine_to}; exactly one of them is "
                "given, the other is None"
            )
        if self.warmup_steps < 0:
            raise UserError(f"recipe.warmup-steps is {self.warmup_steps}, but must not be negative; 0 means no warm-up")
        for name in ("warmup_from", "cosine_to"):
            if (share := getattr(self, name)) is not None and not 0 <= share <= 1:
                raise UserError(f"recipe.{_option(name)} is {share}, but is a share of the peak, between 0 and 1")
        _require_name(self, "initialization")


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What a run trains: on which scenes, with how many slots, which normalization and seed, by which recipe."""

    name: str
    """Shared by all runs of its study; with norm and seed it names the run's folder."""
    dataset: str
    """Name of the set, as `slotnorm data` builds it, or of generated scenes."""
    slots: int
    """K in training."""
    recipe: Recipe
    """What all runs of the study share."""
    max_objects: int | None = None
    """Scenes with more objects are left out of training; None keeps all."""
    norm: str = "weighted_sum"
    """Normalization of the update codes; `slotnorm norms` lists them."""
    seed: int = 1
    """Of initial weights, order of scenes, augmentation and slot noise."""
    scenes: GeneratedScenes | None = None
    """How the scenes are generated; None reads the built set `dataset`."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", self.name):
            given = f"{self.name!r:.80}"
            raise UserError(f"{given} cannot name an experiment: use letters, digits, '-', '_' and '.'")
        _require_name(self, "name", "dataset", "norm")
        _require_positive(self, "", "slots", "max_objects")
        require_seed(self.seed)
        _require_shares(self.recipe.model.input_shape[:-1], self.slots)

    @property
    def run_name(self) -> str:
        """The name of the run's folder."""
        return f"{self.name}-{self.norm}-{self.seed}"

    @property
    def identity(self) -> str:
        """A hash of all that makes the run what it is; `steps` may grow, so it takes no part."""
        document = to_document(self)
        del document["recipe"]["steps"]
        return digest(document)


def dataset_label(dataset: str, max_objects: int | None) -> str:
    """The name of a set with its filter, as rows and figures have it: clevr6, movi-c10, toy."""
    return dataset if max_objects is None else f"{dataset}{max_objects}"


def _require_positive(owner: Any, prefix: str, *names: str) -> None:
    kinds = {field.name: field.type for field in dataclasses.fields(owner)}
    for name in names:
        value, shown = getattr(owner, name), f"{prefix}.{_option(name)}".lstrip(".")
        if value is None:
            continue
        if kinds[name] in (int, int | None) and not _is_whole(value):
            raise UserError(f"{shown} is {value!r}, but must be a whole number")
        if not (isinstance(value, int | float) and value > 0 and (isinstance(value, int) or math.isfinite(value))):
            raise UserError(f"{shown} is {value!r}, but must be a positive number")
        if value > (most := _MOST.get(name, _LARGEST)):
            raise UserError(f"{shown} is {value}, but must be at most {most:,}")


def _require_sizes(model: Any) -> None:
    """Refuse sizes that would take all memory or for ever, before a single layer is built."""
    for field in dataclasses.fields(model):
        name, value = field.name, getattr(model, field.name)
        several, most = value if isinstance(value, tuple) else (value,), _MOST.get(name, _LARGEST_SIZE)
        if len(several) > _MOST_LAYERS:
            raise UserError(f"model.{name} has {len(several)} entries, but a model has at most {_MOST_LAYERS}")
        for size in several:
            if isinstance(size, int) and size > most:
                raise UserError(f"model.{name} is {size}, but must be at most {most:,}")


def _require_shares(places: tuple[int, ...], slots: int) -> None:
    """Refuse more slots for inputs of a size than one picture's masks may take; the model refuses wrong sizes."""
    if all(map(_is_whole, places)) and math.prod(places) * slots > _MOST_SHARES:
        shape = " x ".join(map(str, places))
        raise UserError(
            f"slots is {slots}, but must be at most {_MOST_SHARES // math.prod(places):,} for a model of {shape}: take "
            "fewer slots or a smaller model.size"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def require_seed(seed: int) -> None:
    """Refuse what is not a seed of a run, of slot noise or of the theory's parameters."""
    if not _is_whole(seed):
        raise UserError(f"seed is {seed!r:.80}, but must be a whole number")
    if seed < 0:
        raise UserError(f"seed is {seed}, but must not be negative")
    if seed > _LARGEST_SEED:
        raise UserError(f"seed is {seed}, but must be at most {_LARGEST_SEED:,}: rows hold no larger one")


def _require_name(owner: Any, *names: str) -> None:
    """Refuse texts that name nothing: they become parts of files' names, and of sentences.

    What is not a text at all is refused by the registry that lacks it.
    """
    for name in names:
        text = getattr(owner, name)
        if isinstance(text, str) and (len(text) > _LONGEST_NAME or not text.isprintable()):
            raise UserError(f"{name} is {text[:80]!r}, but must have at most {_LONGEST_NAME} letters, all printable")


def _option(name: str) -> str:
    return name.replace("_", "-")
