"""Batches in an order that only (seed, epoch) decides: the same bits for any number of workers, ranks and restarts.

Samples are numbered through all epochs: row r of step s is sample g = s * batch_size + r, which is entry g mod n of the
order of epoch g div n; so no scene is left out, and a batch may span two epochs. Its flip depends on (seed, step, g). A
rank takes its contiguous share of each batch's rows.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slotnorm.data.conversion import in_threads
from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError, nearest
from slotnorm.runtime import randomness

_FIELDS = ("images", "features", "labels", "properties")


@dataclass(frozen=True)
class Batch:
    """What one step trains on; fields that were not asked for are None (or empty)."""

    step: int
    scene: Tensor  # (B,) int64: each scene's number in its container
    sample: Tensor  # (B,) int64: number through all steps, step * batch_size + row
    counts: Tensor  # (B,) int64
    images: Tensor | None  # (B, H, W, 3) uint8
    features: Tensor | None  # (B, N, F) float16
    labels: Tensor | None  # (B, H, W) uint8
    properties: dict[str, Tensor]  # name -> (B, O, ...)

    def __len__(self) -> int:
        return len(self.scene)


def batches(
    scenes: Scenes,
    *,
    seed: int,
    batch_size: int,
    start: int = 0,
    stop: int | None = None,
    flip: bool = False,
    fields: Sequence[str] | None = None,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
) -> Iterator[Batch]:
    """The batches of steps `start` to `stop` (exclusive; None is endless), with this rank's share of `batch_size` rows.

    `fields` are any of images, features, labels, properties (None: images, or features where there are no images);
    `flip` mirrors image and labels of half the samples; `workers` threads read ahead, 0 reads when asked.
    """
    if fields is None:
        fields = ("images",) if "images" in scenes.fields else ("features",)
    _check(scenes, fields, flip)
    if batch_size < 1 or start < 0 or workers < 0 or not 0 <= rank < world_size:
        raise UserError(
            f"batch size {batch_size}, start {start}, workers {workers}, rank {rank} of {world_size}: the size must be "
            "at least 1, start and workers at least 0, and the rank below the number of ranks"
        )
    if batch_size % world_size:
        raise UserError(
            f"a batch of {batch_size} cannot be shared by {world_size} ranks; choose a multiple of {world_size}"
        )
    steps = _Steps(scenes, seed, batch_size, flip, tuple(fields), rank, world_size)
    numbers = itertools.count(start) if stop is None else range(start, stop)
    # not processes: reading and copying happen outside the interpreter's lock, and handing a batch over takes longer
    # than making it
    return in_threads(steps.batch, numbers, workers, ahead=workers) if workers else map(steps.batch, numbers)


def to_images(images: Tensor, device: torch.device | str = "cpu") -> Tensor:
    """uint8 (B, H, W, 3) -> float32 (B, 3, H, W) in [-1, 1]; the device gets bytes and scales them."""
    on_device = images.to(device, non_blocking=True)
    return on_device.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).div_(127.5).sub_(1.0)


def _check(scenes: Scenes, fields: Sequence[str], flip: bool) -> None:
    if not len(scenes):
        raise UserError(f"there are no scenes to take batches from in this part of {scenes.directory}")
    for field in fields:
        if field not in _FIELDS:
            raise UserError(f"a batch has no field {field!r}; {nearest(field, _FIELDS)}")
        if field not in scenes.fields and not (field == "properties" and scenes.properties):
            raise UserError(f"{scenes.directory} has no {field}; it has {', '.join(scenes.fields)}")
    for field in ("features", "properties"):
        if flip and field in fields:
            reason = (
                "their tokens would have to be computed anew" if field == "features" else "positions are in 3-D space"
            )
            raise UserError(f"{field} cannot be flipped with the image ({reason}); leave out flip or {field}")


class _Steps:
    """Step -> batch, a pure function of its arguments."""

    def __init__(
        self,
        scenes: Scenes,
        seed: int,
        batch_size: int,
        flip: bool,
        fields: tuple[str, ...],
        rank: int,
        world_size: int,
    ) -> None:
        self.scenes, self.seed, self.batch_size, self.flip, self.fields = scenes, seed, batch_size, flip, fields
        share = batch_size // world_size
        self.rows = np.arange(rank * share, (rank + 1) * share, dtype=np.int64)
        self._orders: dict[int, NDArray[np.int64]] = {}

    def batch(self, step: int) -> Batch:
        samples = step * self.batch_size + self.rows
        epochs, places = np.divmod(samples, len(self.scenes))
        positions = np.empty_like(samples)
        for epoch in np.unique(epochs).tolist():
            positions[epochs == epoch] = self._order(epoch)[places[epochs == epoch]]
        flipped = self._flipped(step, samples)
        columns = {name: self._tensor(name, positions, flipped) for name in self.fields if name != "properties"}
        properties = {}
        if "properties" in self.fields:
            properties = {name: torch.from_numpy(array[positions]) for name, array in self.scenes.properties.items()}
        return Batch(
            step=step,
            scene=torch.from_numpy(self.scenes.index[positions]),
            sample=torch.from_numpy(samples),
            counts=torch.from_numpy(self.scenes.counts[positions]),
            images=columns.get("images"),
            features=columns.get("features"),
            labels=columns.get("labels"),
            properties=properties,
        )

    def _order(self, epoch: int) -> NDArray[np.int64]:
        order = self._orders.get(epoch)  # threads share the dictionary: one look, no second
        if order is None:
            order = randomness.generator(self.seed, "order", epoch).permutation(len(self.scenes))
            if len(self._orders) > 2:
                self._orders.clear()
            self._orders[epoch] = order
        return order

    def _flipped(self, step: int, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows to mirror."""
        if not self.flip:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(randomness.coins(self.seed, "flip", [(step, sample) for sample in samples.tolist()]))

    def _tensor(self, name: str, positions: NDArray[np.int64], flipped: NDArray[np.int64]) -> Tensor:
        array = self.scenes.read(name, positions)
        for row in flipped.tolist():
            original = array[row].copy()
            # channel by channel: 6 times faster than mirroring whole pixels; image by image: both stay in the cache
            for channel in np.ndindex(array.shape[3:]):
                array[(row, ..., *channel)] = original[(slice(None), slice(None, None, -1), *channel)]
        return torch.from_numpy(array)
