"""Scores of a model on scenes while the number of slots varies: one row per image, number of slots and metric.

A group of scenes is encoded once and decomposed with every number of slots. A row depends on the weights, the scene,
the number of slots, the iterations and the noise seed, and on nothing else: see `decomposer.py`.
"""

import dataclasses
import hashlib
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slotnorm import __version__
from slotnorm.data.scenes import Scenes, data_fingerprint
from slotnorm.errors import DamagedFile, NonFinite, UserError, nearest
from slotnorm.evaluation.decomposer import Decomposer, evaluating
from slotnorm.evaluation.measurement import Column, Measurement
from slotnorm.evaluation.rows import MISSING, Rows
from slotnorm.experiments import TEST_SLOTS
from slotnorm.metrics import Metric, all_metrics
from slotnorm.models import SlotModel
from slotnorm.storage import archives
from slotnorm.storage.fingerprints import fingerprint
from slotnorm.storage.seals import digest
from slotnorm.storage.serialization import to_document

SLOTS = range(TEST_SLOTS[0], TEST_SLOTS[1] + 1)
SOURCES = ("masks", "attention")
_VERSION = 1  # of what rows mean: raised when any value changes, so that old ones are not mixed with new ones
_SECONDS_A_PART = 20.0  # what an interruption may cost

Advance = Callable[[int], object]


def score(
    model: SlotModel,
    scenes: Scenes,
    slots: Iterable[int] = SLOTS,
    iterations: int | None = None,
    *,
    source: str | Sequence[str] = SOURCES,
    seed: int = 0,
    batch_size: int = 64,
    dataset: str = "",
    run: str = "",
    advance: Advance | None = None,
) -> Rows:
    """Score a model on scenes with every number of slots: one row per image, K, source and metric.

    `iterations` None is the experiment's own for evaluation. `source` is what is segmented by: masks (the decoder's),
    attention, or both; a set predictor has its attention only, and average precision on top, in rows without image.
    `seed` is the slot noise's. `batch_size` scenes are read and scored at a time, which changes no bit of any row.
    `dataset` and `run` are names to put in the rows; `advance` is called with the number of scenes that are done.
    """
    evaluation = Evaluation(model, scenes, slots, iterations, source, seed)
    everything = np.arange(len(scenes), dtype=np.int64)
    parts = evaluation.parts(everything, evaluation.slots, batch_size, advance)
    return evaluation.rows(Scores.concat(list(parts)), dataset, run)


@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores of p pairs of a scene and a number of slots: what an interrupted sweep keeps."""

    images: NDArray[np.int64]
    """(p,): the scene's number in its container."""
    slots: NDArray[np.int64]
    """(p,)."""
    values: NDArray[np.float32]
    """(p, columns), the columns as `Evaluation.columns` names them."""
    predictions: dict[int, NDArray[np.float32]]
    """A set predictor's, (pairs with K slots, K, outputs) by K."""

    @classmethod
    def concat(cls, parts: Sequence["Scores"]) -> "Scores":
        """All pairs of the parts (one or more), one after another."""
        numbers = sorted({number for part in parts for number in part.predictions})
        return cls(
            np.concatenate([part.images for part in parts]),
            np.concatenate([part.slots for part in parts]),
            np.concatenate([part.values for part in parts]),
            {
                number: np.concatenate([part.predictions[number] for part in parts if number in part.predictions])
                for number in numbers
            },
        )

    def save(self, path: Path) -> None:
        """Write them sealed."""
        predictions = {f"predictions-{number}": array for number, array in self.predictions.items()}
        arrays: dict[str, NDArray[Any]] = {"images": self.images, "slots": self.slots, "values": self.values}
        archives.write_arrays(path, {**arrays, **predictions})

    @classmethod
    def load(cls, path: Path) -> "Scores":
        """Read a file of `save`."""
        arrays = archives.read_arrays(path)
        named = {name.removeprefix("predictions-"): array for name, array in arrays.items() if "-" in name}
        images, slots, values = (arrays.get(name, np.zeros(0)) for name in ("images", "slots", "values"))
        kinds = [(array.ndim, array.dtype.kind) for array in (images, slots, values)]
        fits = kinds == [(1, "i"), (1, "i"), (2, "f")] and len(images) == len(slots) == len(values)
        for number, array in named.items():
            fits &= number.isdecimal() and len(number) < 10 and (array.ndim, array.dtype.kind) == (3, "f")
        if not fits:
            raise DamagedFile(f"{path} is sealed but holds no scores; delete it and evaluate the run again")
        return cls(images, slots, values, {int(number): array for number, array in named.items()})


class Evaluation:
    """What is asked of a model: which scenes, numbers of slots, iterations, sources and noise; arguments as `score`.

    `metrics` None is all that there are.
    """

    def __init__(
        self,
        model: SlotModel,
        scenes: Scenes,
        slots: Iterable[int] = SLOTS,
        iterations: int | None = None,
        source: str | Sequence[str] = SOURCES,
        seed: int = 0,
        metrics: Iterable[type[Metric]] | None = None,
    ) -> None:
        self.model, self.scenes, self.seed = model, scenes, seed
        self.slots = _checked_slots(slots)
        self.decomposer = Decomposer(model, scenes, iterations)
        model.require_slots(self.slots)
        self.decomposer.require_memory(max(self.slots))
        self.sources = _checked_sources(source, model)
        asked = all_metrics().values() if metrics is None else metrics
        self.measurement = Measurement(model, scenes, self.sources, asked, self.decomposer.iterations)
        if not self.metrics:
            raise UserError(
                f"{scenes.directory} has neither masks nor properties to compare with, and {', '.join(self.sources)} "
                "is all that is asked: give a set with masks"
            )

    def without_newer_metrics(self) -> "Evaluation":
        """The same, of the metrics that rows have had from the first."""
        metrics = [metric for metric in all_metrics().values() if not metric.is_newer]
        return Evaluation(
            self.model, self.scenes, self.slots, self.decomposer.iterations, self.sources, self.seed, metrics
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        """What every image has a value of: (source, metric)."""
        return self.measurement.columns

    @property
    def metrics(self) -> list[str]:
        """The names in the rows' column `metric`."""
        return sorted({metric for _, metric in self.columns} | {metric.name for metric in self.measurement.of_set})

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that the values of a pair of scene and number of slots depend on."""
        experiment = self.model.experiment
        return {
            "version": _VERSION,
            "weights": fingerprint(self.model.state_dict()),
            "scenes": data_fingerprint(self.scenes),
            "protocol": "paper" if experiment is None else experiment.recipe.protocol,
            "iterations": self.decomposer.iterations,
            "noise_seed": self.seed,
            "sources": list(self.sources),
            "metrics": sorted({metric for _, metric in self.columns}),
        }

    @property
    def header(self) -> dict[str, Any]:
        """What rows say of where they come from."""
        experiment = self.model.experiment
        images = np.sort(self.scenes.index).astype("<i8").tobytes()
        identity = self.identity
        return {
            **identity,
            "identity": digest(identity),
            "num_scenes": len(self.scenes),
            "images": hashlib.sha256(images).hexdigest(),
            "experiment": None if experiment is None else to_document(experiment),
            "step": None if self.model.trained is None else self.model.trained[0],
            "versions": {
                "slotnorm": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "threads": torch.get_num_threads(),
            "device": self.decomposer.device.type,
        }

    def parts(
        self,
        positions: NDArray[np.int64],
        slots: Sequence[int],
        batch_size: int = 64,
        advance: Advance | None = None,
    ) -> Iterator[Scores]:
        """Score the scenes at `positions`, about `batch_size` scenes or 20 seconds at a time."""
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; it must be at least 1")
        groups = self.decomposer.groups(positions)
        while groups:
            part, started, scored = [], time.monotonic(), 0
            while groups and scored < batch_size and time.monotonic() - started < _SECONDS_A_PART:
                group = groups.pop(0)
                part.append(self._score_group(group, slots))
                scored += (many := int((group >= 0).sum()))
                if advance is not None:
                    advance(many)
            yield Scores.concat(part)

    def rows(self, scores: Scores, dataset: str = "", run: str = "", slots: Sequence[int] | None = None) -> Rows:
        """The rows of these scenes for some numbers of slots (None: all), from scores that hold every pair."""
        parts = [self._rows_of(scores, number) for number in (self.slots if slots is None else slots)]
        experiment = self.model.experiment
        factors: dict[str, Any] = {"norm": self.model.slot_attention.normalization.name}
        if experiment is not None:
            most = MISSING if experiment.max_objects is None else experiment.max_objects
            factors = {
                "norm": experiment.norm,
                "train_objects": most,
                "train_slots": experiment.slots,
                "seed": experiment.seed,
            }
        together = Rows.concat(parts, self.header)
        return together.with_columns(
            run=run,
            dataset=dataset,
            protocol=self.identity["protocol"],
            iterations=self.decomposer.iterations,
            **factors,
        )

    def _rows_of(self, scores: Scores, number: int) -> Rows:
        chosen = np.flatnonzero(scores.slots == number)
        order = np.argsort(scores.images[chosen], kind="stable")
        places = order[np.searchsorted(scores.images[chosen][order], self.scenes.index)]
        counts = self.scenes.counts if self.scenes.are_counted else np.full(len(self.scenes), MISSING)
        many, width = len(self.scenes), len(self.columns)
        rows = Rows(
            image=np.repeat(self.scenes.index, width),
            objects=np.repeat(counts, width),
            slots=np.full(many * width, number),
            source=[source for source, _ in self.columns] * many,
            metric=[metric for _, metric in self.columns] * many,
            value=scores.values[chosen[places]].reshape(-1),
        )
        if not self.measurement.of_set:
            return rows
        order = np.argsort(self.scenes.index, kind="stable")  # of equal confidences the first counts first
        predictions = torch.from_numpy(scores.predictions[number][places][order])
        of_set = self.measurement.score_set(predictions, order)
        # predictions come from the slots, as the attention does, and from no mask
        return Rows.concat([
            rows, Rows(slots=number, source="attention", metric=list(of_set), value=list(of_set.values())),
        ])  # fmt: skip

    def _score_group(self, group: NDArray[np.int64], slots: Sequence[int]) -> Scores:
        present = group >= 0
        images = self.scenes.index[group[present]]
        shape = (len(slots), len(images), len(self.columns))
        values = np.empty(shape, np.float32)  # seven digits: files of half the size
        predictions: dict[int, NDArray[np.float32]] = {}
        with evaluating(self.model):
            inputs, tokens = self.decomposer.encode(group)
            labels = None
            if self.scenes.labels is not None:
                labels = self.decomposer.read("labels", group).to(inputs.device)
            objects = torch.from_numpy(np.where(present, self.scenes.counts[group], 0)).to(inputs.device)
            for row, number in zip(values, slots, strict=True):
                noise = self.decomposer.scene_noise(self.seed, group, number)
                measured = self.measurement.measure(inputs, tokens, labels, objects, noise)
                for place, column in enumerate(self.columns):
                    row[:, place] = measured.values[column].cpu().double().numpy()[present]
                if measured.predictions is not None:
                    predictions[number] = measured.predictions.float().cpu().numpy()[present]
        required = [place for place, column in enumerate(self.columns) if column in self.measurement.finite]
        if not np.isfinite(values[..., required]).all():
            raise NonFinite(f"the reconstruction of a scene among {images.tolist()} is not finite; check the weights")
        return Scores(
            np.tile(images, len(slots)),
            np.repeat(np.asarray(slots, dtype=np.int64), len(images)),
            values.reshape(-1, len(self.columns)),
            predictions,
        )


def _checked_slots(slots: int | Iterable[int]) -> tuple[int, ...]:
    numbers = dict.fromkeys([slots] if isinstance(slots, int) else slots)
    if not numbers or any(number != int(number) or number < 1 for number in numbers):
        raise UserError(f"slots are {list(numbers)}; give one whole number or more, each at least 1, as range(3, 25)")
    return tuple(int(number) for number in numbers)


def _checked_sources(source: str | Sequence[str], model: SlotModel) -> tuple[str, ...]:
    asked = (source,) if isinstance(source, str) else tuple(source)
    for name in asked:
        if name not in SOURCES:
            raise UserError(f"there is no source {name!r}; {nearest(name, SOURCES)}")
    kept = tuple(name for name in model.sources if name in asked)
    if not kept:
        raise UserError(f"a model that predicts {model.predicts} has no {', '.join(asked)}; ask for attention")
    return kept
