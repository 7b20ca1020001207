"""The metrics, one class each: a class here, or in a plugin, is in rows, tables, figures, pages and lists.

Evaluation, validation and reports know no metric by name that they could ask here.
"""

import dataclasses
import inspect
import math
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from slotnorm.metrics.counting import count_tables
from slotnorm.metrics.object_count import count_objects
from slotnorm.metrics.precision import average_precision
from slotnorm.metrics.reconstruction import squared_error
from slotnorm.metrics.segmentation import (
    best_overlap,
    foreground_rand_index,
    matched_overlap,
    over_tables,
    rand_index,
)

Direction = Literal["higher", "lower"]
Needs = Literal["labels", "reconstruction", "properties", "objects", "nothing"]

_registry: dict[str, type["Metric"]] = {}
_TAKEN = ("visible", "loss")  # rows call so how many objects are seen, and a training what it lowers


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What a model made of B scenes with K slots beside what is true of them: all that a metric may look at.

    Metrics of images see a batch, once for its masks and once for its attention; metrics of a set see all predictions.
    What the metric does not need may be None.
    """

    inputs: Tensor | None = None
    """(B, 3, H, W) in [-1, 1], or features (B, N, F)."""
    slots: Tensor | None = None
    """(B, K, D)."""
    attention: Tensor | None = None
    """(B, K, N): Slot Attention's, which sums to one over the slots."""
    masks: Tensor | None = None
    """(B, K, h, w) or (B, K, N): the decoder's masks, or the attention; sums to one over the slots."""
    true: Tensor | None = None
    """(B, h, w) integers: 0 is background."""
    predicted: Tensor | None = None
    """(B, h, w) integers: the slot with the largest mask, on the grid of `true`."""
    reconstruction: Tensor | None = None
    """As the inputs."""
    predictions: Tensor | None = None
    """(B, K, outputs): of the slots."""
    targets: Tensor | None = None
    """(B, O, outputs): of the objects."""
    objects: Tensor | None = None
    """(B,) integers: how many objects the scenes have."""

    @cached_property
    def tables(self) -> tuple[Tensor, ...]:
        """Pixels with each pair of a true and a predicted label, (b, T, S) in parts; row 0 is background."""
        return tuple(count_tables(given(self.true), given(self.predicted)))


class Metric:
    """A score `score(comparison) -> (B,)` of each image; subclasses register themselves by `name`."""

    name: ClassVar[str]
    """How rows call it."""
    label: ClassVar[str]
    """What figures and tables call it."""
    direction: ClassVar[Direction]
    """Whether higher or lower is better."""
    needs: ClassVar[Needs]
    """What it compares with: the scenes' masks, the input, the objects' properties, their number, or nothing."""
    bounds: ClassVar[tuple[float, float]]
    """The least and the largest value that it can have."""
    of: ClassVar[Literal["image", "set"]] = "image"
    """Whether every image has a value, or the whole set one: then `score` gives a scalar."""
    decimals: ClassVar[int] = 3
    """How many are shown."""
    figure: ClassVar[str | None] = ""
    """The figure that its curves are drawn in; empty is one of its own, None is none."""
    in_study_table: ClassVar[bool] = True
    """Whether it is a column of a study's table."""
    is_newer: ClassVar[bool] = False
    """Whether it came after the first format of rows, which are whole without it and not made again for it."""
    validated_as: ClassVar[str] = ""
    """Its name in the validation scores of a training; empty where only evaluation measures it."""

    def __init_subclass__(cls, registered: bool = True, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if registered:
            _check(cls)
            _registry[cls.name] = cls

    def score(self, comparison: Comparison) -> Tensor:
        """The value of each image (B,), NaN where it has none; of a set, a scalar."""
        raise TypeError(f"metric {type(self).__name__} defines no score(comparison)")


def given(tensor: Tensor | None) -> Tensor:
    """A part of a comparison that the metric's `needs` promises."""
    if tensor is None:
        raise TypeError("this comparison does not hold what the metric looks at; its `needs` must say so")
    return tensor


def _check(cls: type[Metric]) -> None:
    """Refuse a class that does not say all of itself, or whose name is taken, in one sentence."""
    for attribute in ("name", "label", "direction", "needs", "bounds"):
        if not hasattr(cls, attribute):
            raise TypeError(
                f"metric {cls.__name__} has no {attribute!r}; each says name, label, direction, needs and bounds"
            )
    for attribute, known in (("direction", Direction), ("needs", Needs)):
        if getattr(cls, attribute) not in get_args(known):
            choices = ", ".join(map(repr, get_args(known)))
            raise TypeError(
                f"{attribute} of metric {cls.__name__} is {getattr(cls, attribute)!r}; it must be one of {choices}"
            )
    if (cls.of == "set") != (cls.needs == "properties"):
        raise TypeError(
            f"metric {cls.__name__} is one of a {cls.of} and needs {cls.needs}; of 'set' are those that need "
            "'properties', and no others"
        )
    if cls.name in _registry:
        taken = _registry[cls.name]
        raise TypeError(f"metric name {cls.name!r} of {cls.__name__} is taken by {taken.__module__}.{taken.__name__}")
    _check_kinds(cls)


def _check_kinds(cls: type[Metric]) -> None:
    """Refuse what rows, files and axes cannot hold."""
    if not isinstance(cls.name, str) or not re.fullmatch("[a-z][a-z0-9_.@-]*", cls.name) or cls.name in _TAKEN:
        raise TypeError(
            f"metric {cls.__name__} has the name {cls.name!r}; it takes small letters, digits and - _ . @, and none of "
            f"{', '.join(_TAKEN)}"
        )
    if not isinstance(cls.label, str) or not cls.label.strip():
        raise TypeError(f"label of metric {cls.__name__} is {cls.label!r}; it must be a text")
    numbers = cls.bounds if isinstance(cls.bounds, tuple) and len(cls.bounds) == 2 else ()
    if not all(isinstance(bound, int | float) for bound in numbers) or not numbers or not numbers[0] < numbers[1]:
        raise TypeError(
            f"bounds of metric {cls.__name__} are {cls.bounds!r}; they must be the least value and the largest, as in "
            "(0.0, math.inf)"
        )
    watched = [known for known in _registry.values() if cls.validated_as and known.validated_as == cls.validated_as]
    if watched:
        raise TypeError(
            f"metric {cls.__name__} is validated as {cls.validated_as!r}, as {watched[0].name} is; choose another name"
        )


class _OfTables(Metric, registered=False):
    """A score of label maps that their contingency table tells; it is counted once for all such."""

    direction, needs = "higher", "labels"
    of_table: ClassVar[Callable[[Tensor], Tensor]]
    """Counts (B, T, S) -> (B,)."""

    def score(self, comparison: Comparison) -> Tensor:
        return over_tables(comparison.tables, type(self).of_table)


class ForegroundARI(_OfTables):
    """Adjusted Rand index over the pixels of objects: whether objects are told apart."""

    name, label, bounds = "f_ari", "F-ARI", (-0.5, 1.0)
    figure, validated_as = "segmentation", "f_ari"
    of_table = foreground_rand_index


class ARI(_OfTables):
    """Adjusted Rand index over all pixels; the background is a segment like the others."""

    name, label, bounds = "ari", "ARI", (-0.5, 1.0)
    figure, validated_as = "segmentation", "ari"
    of_table = rand_index


class MeanBestOverlap(_OfTables):
    """Mean over objects of the best intersection over union."""

    name, label, bounds, figure = "mbo", "mBO", (0.0, 1.0), None  # no figure of the paper shows it
    of_table = best_overlap


class MeanIoU(_OfTables):
    """Mean over objects of the intersection over union with the matched segment (Hungarian)."""

    name, label, bounds, figure = "miou", "mIoU", (0.0, 1.0), None  # nor this
    of_table = matched_overlap


class ReconstructionLoss(Metric):
    """Mean squared error of the reconstruction over places and channels."""

    name, label, direction, needs, bounds = "l2", "ℓ² loss", "lower", "reconstruction", (0.0, math.inf)
    decimals, figure, validated_as = 4, "reconstruction", "l2"

    def score(self, comparison: Comparison) -> Tensor:
        return squared_error(given(comparison.reconstruction), given(comparison.inputs))


class CountError(Metric):
    """How far the number of objects that masks show, counted without labels, is from the number in the scene."""

    name, label, direction, needs, bounds = "count", "count error", "lower", "objects", (0.0, math.inf)
    decimals, figure, in_study_table = 2, None, False  # report/count_figure.py shows it, beside a trivial guess
    is_newer = True

    def score(self, comparison: Comparison) -> Tensor:
        return (count_objects(given(comparison.masks)) - given(comparison.objects)).abs().float()


class _AveragePrecision(Metric, registered=False):
    direction, needs, bounds, of, figure = "higher", "properties", (0.0, 1.0), "set", "precision"
    distance: ClassVar[float]

    def score(self, comparison: Comparison) -> Tensor:
        return average_precision(given(comparison.predictions), given(comparison.targets), self.distance)


class AveragePrecisionAnywhere(_AveragePrecision):
    """Average precision of predicted properties, wherever the object is."""

    name, label, distance = "ap@inf", "mAP@∞", math.inf


class AveragePrecision1(_AveragePrecision):
    """Average precision of predicted properties within a distance of 1."""

    name, label, distance = "ap@1", "mAP@1.0", 1.0


class AveragePrecision05(_AveragePrecision):
    """Average precision of predicted properties within a distance of 0.5."""

    name, label, distance = "ap@0.5", "mAP@0.5", 0.5


class AveragePrecision025(_AveragePrecision):
    """Average precision of predicted properties within a distance of 0.25."""

    name, label, distance, validated_as = "ap@0.25", "mAP@0.25", 0.25, "average_precision"


class AveragePrecision0125(_AveragePrecision):
    """Average precision of predicted properties within a distance of 0.125."""

    name, label, distance = "ap@0.125", "mAP@0.125", 0.125


def all_metrics() -> dict[str, type[Metric]]:
    """Every metric by name: the paper's, and those of plugins, in the order in which they are shown."""
    return dict(_registry)


def description(metric: type[Metric]) -> str:
    """The first line of its docstring."""
    return (inspect.getdoc(metric) or "").partition("\n")[0]
