"""The one engine of validation and evaluation: what a model scores on a batch of scenes, by source and metric."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError, blaming
from slotnorm.evaluation.label_maps import comparable_labels, count_visible
from slotnorm.metrics import Comparison, Metric
from slotnorm.models import SlotModel

VISIBLE = "visible"  # not a score: how many objects of an image can be seen, by which scenes are told apart

Column = tuple[str, str]
"""A source (masks or attention) and what is measured from it."""


class Measured(NamedTuple):
    """What a batch of B scenes scores with K slots."""

    values: dict[Column, Tensor]
    """(B,) each."""
    predictions: Tensor | None
    """(B, K, outputs), where metrics of the whole set will need them."""


class Measurement:
    """What can be measured of a model on scenes, among some metrics and by some sources.

    `columns` are those of every image, `of_set` the metrics of the whole set. Where the scenes have masks the number of
    visible objects is among the columns, unless `visible` is False.
    """

    def __init__(
        self,
        model: SlotModel,
        scenes: Scenes,
        sources: Sequence[str],
        metrics: Iterable[type[Metric]],
        iterations: int,
        visible: bool = True,
    ) -> None:
        self.model, self.scenes, self.sources, self.iterations = model, scenes, tuple(sources), iterations
        several = list(metrics)
        labelled = scenes.labels is not None
        self._by_labels = [metric() for metric in several if metric.needs == "labels" and labelled]
        self._by_objects = [metric() for metric in several if metric.needs == "objects" and scenes.are_counted]
        self._by_nothing = [metric() for metric in several if metric.needs == "nothing"]
        decoded = "masks" in self.sources
        self._by_reconstruction = [metric() for metric in several if metric.needs == "reconstruction" and decoded]
        predicted = model.predicts == "properties" and bool(scenes.properties)
        self.of_set = [metric() for metric in several if metric.of == "set" and predicted]
        counted = [VISIBLE] if labelled and visible else []
        self.columns: tuple[Column, ...] = (
            *((source, name) for source in self.sources for name in (*counted, *_names(self._by_labels))),
            *(("masks", name) for name in _names(self._by_reconstruction)),
            *((source, name) for source in self.sources for name in _names([*self._by_objects, *self._by_nothing])),
        )

    @property
    def finite(self) -> list[Column]:
        """The columns that must be finite: a reconstruction that is not, is none."""
        return [("masks", name) for name in _names(self._by_reconstruction)]

    def measure(
        self, inputs: Tensor, tokens: Tensor, labels: Tensor | None, objects: Tensor, noise: Tensor
    ) -> Measured:
        """Every column of a batch: its inputs, their tokens (B, N, channels), labels (B, H, W), numbers of objects
        (B,), noise (B, K, D)."""
        values: dict[Column, Tensor] = {}
        predictions = None
        for source, comparison in self._compare(inputs, tokens, labels, objects, noise).items():
            if (source, VISIBLE) in self.columns:
                assert comparison.true is not None  # the scenes have labels
                values[source, VISIBLE] = count_visible(comparison.true)
            metrics = [*self._by_labels, *self._by_objects, *self._by_nothing]
            for metric in (*metrics, *self._by_reconstruction) if source == "masks" else metrics:
                values[source, metric.name] = _score(metric, comparison, len(inputs))
            predictions = comparison.predictions
        return Measured(values, predictions if self.of_set else None)

    def score_set(self, predictions: Tensor, positions: NDArray[np.int64]) -> dict[str, float]:
        """The metrics of the whole set by name: predictions (n, K, outputs) of the scenes at `positions`."""
        properties = {name: torch.from_numpy(values[positions]) for name, values in self.scenes.properties.items()}
        comparison = Comparison(predictions=predictions, targets=self.model.targets(properties))
        return {metric.name: float(_score(metric, comparison, None)) for metric in self.of_set}

    def _compare(
        self, inputs: Tensor, tokens: Tensor, labels: Tensor | None, objects: Tensor, noise: Tensor
    ) -> dict[str, Comparison]:
        """What metrics look at, by source; nothing is decoded where the attention is all that is asked for."""
        reconstruction = predictions = None
        if "masks" in self.model.sources and "masks" not in self.sources:
            slots, attention = self.model.slot_attention(tokens, iterations=self.iterations, noise=noise)
            masks = {"attention": attention}
        else:
            decomposition = self.model.decompose(
                tokens, iterations=self.iterations, noise=noise, reconstruct="masks" in self.sources
            )
            slots, attention, reconstruction, predictions = (
                decomposition.slots, decomposition.attention, decomposition.reconstruction, decomposition.predictions,
            )  # fmt: skip
            # a model without a decoder gives its attention as masks, on the grid of its tokens
            of_attention = decomposition.attention if "masks" in self.model.sources else decomposition.masks
            masks = {"attention": of_attention, "masks": decomposition.masks}
        comparisons = {}
        for source in self.sources:
            true, predicted = (None, None) if labels is None else comparable_labels(masks[source], labels)
            comparisons[source] = Comparison(
                inputs, slots, attention, masks[source], true, predicted, reconstruction, predictions, objects=objects
            )
        return comparisons


def _names(metrics: Iterable[Metric]) -> list[str]:
    return [metric.name for metric in metrics]


def _score(metric: Metric, comparison: Comparison, images: int | None) -> Tensor:
    """A metric's score; one that raises, or is not a number for each image or one for the set, is refused."""
    with blaming(f"the metric {metric.name} fails with"):
        values = metric.score(comparison)
    shape = () if images is None else (images,)
    if not isinstance(values, Tensor) or tuple(values.shape) != shape or values.is_complex() or values.is_meta:
        gave = _described(values) if isinstance(values, Tensor) else type(values).__name__
        wanted = "a scalar" if images is None else f"one number for each of {images} images, shape {shape}"
        raise UserError(f"the metric {metric.name} gave {gave}, but must give a tensor with {wanted}")
    if metric.needs != "reconstruction" and values.isinf().any():  # what is rebuilt is looked at by `finite`
        raise UserError(f"the metric {metric.name} gave an infinite score; of an image without one it must be NaN")
    return values


def _described(values: Tensor) -> str:
    """What a tensor is, as far as it is unlike a score's."""
    dtype = f" {values.dtype}" if values.is_complex() or values.is_meta else ""
    return f"{tuple(values.shape)}{dtype}{' on meta' if values.is_meta else ''}"
