"""Decompositions of scenes that are the same to the last bit whatever else is asked for.

Products and convolutions may round differently when the batch has another size or an image another place in it, and one
bit can turn a pixel over. So a model always sees groups of the same number of scenes, the place of a scene in its group
is its number in the container modulo that, and places that nobody needs are filled with blank inputs. What shares a
group then changes nothing: not the batch size, not an interruption, not which part of the scenes is asked for.
"""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError
from slotnorm.models import SlotModel
from slotnorm.models.parts import Decomposition
from slotnorm.runtime import randomness

_GROUP_BYTES = 4 * 2**20  # of the encoder's widest activation: what a core's cache holds
_MOST_SCENES = 16  # more would leave too many places blank where scenes are a sample of a large set
_SPARE = 0.9  # of the memory that is free
_COPIES = 4  # of masks and attention that are alive at once, at most


class Decomposer:
    """A model and scenes: encodes them in fixed groups, and decomposes tokens with noise that belongs to each scene."""

    def __init__(self, model: SlotModel, scenes: Scenes, iterations: int | None = None) -> None:
        if not isinstance(model, SlotModel):
            raise UserError(
                f"a {type(model).__name__} cannot be scored: give a model of slotnorm.models or run.model()"
            )
        self.model, self.scenes = model, scenes.compute_on(model.device)
        self.iterations = model.slot_attention.iterations if iterations is None else iterations
        if self.iterations < 1:
            raise UserError(f"iterations is {self.iterations}; there must be at least one")
        self.device = model.device
        self._check_scenes()
        self.at_once = _scenes_at_once(model)

    def groups(self, positions: NDArray[np.int64] | None = None) -> list[NDArray[np.int64]]:
        """The scenes at `positions` (None: all) in groups: positions (at_once,), -1 for a blank."""
        if positions is None:
            positions = np.arange(len(self.scenes), dtype=np.int64)
        places = self.scenes.index[positions] % self.at_once
        order = np.argsort(places, kind="stable")
        firsts = np.searchsorted(places[order], np.arange(self.at_once))
        group_of = np.empty(len(positions), dtype=np.int64)
        group_of[order] = np.arange(len(positions)) - firsts[places[order]]  # the g-th scene of its place: group g
        groups = np.full((int(group_of.max()) + 1 if len(positions) else 0, self.at_once), -1, dtype=np.int64)
        groups[group_of, places] = positions
        return list(groups)

    def read(self, field: str, group: NDArray[np.int64]) -> Tensor:
        """One field of a group, (at_once, ...), as it is stored; zero where the group is blank."""
        present = group >= 0
        # one by one: features may be computed when they are read, and then their bits depend on what is read with them
        stored = np.concatenate([self.scenes.read(field, group[[place]]) for place in np.flatnonzero(present)])
        padded = np.zeros((self.at_once, *stored.shape[1:]), dtype=stored.dtype)
        padded[present] = stored
        return torch.from_numpy(padded)

    def encode(self, group: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The model's inputs for a group, and their tokens (at_once, N, channels)."""
        inputs = self.model.prepare(self.read(self.model.input, group))
        return inputs, self.model.encode(inputs)

    def scene_noise(self, seed: int, group: NDArray[np.int64], num_slots: int) -> Tensor:
        """Standard normal (at_once, K, D), each scene's own: keyed by (seed, its number in the container, K)."""
        scenes = np.where(group >= 0, self.scenes.index[group], -1).tolist()
        keys: list[tuple[int, ...]] = [(scene, num_slots) for scene in scenes]
        noise = randomness.slot_noise(seed, "evaluation", keys, num_slots, self.model.slot_attention.dim)
        return torch.from_numpy(noise).to(self.device)

    def common_noise(self, seed: int, num_slots: int) -> Tensor:
        """Standard normal (at_once, K, D), the same for every scene: keyed by (seed, K), for the failed-run rule."""
        noise = randomness.slot_noise(seed, "binding", [(num_slots,)], num_slots, self.model.slot_attention.dim)
        return torch.from_numpy(noise).to(self.device).expand(self.at_once, -1, -1)

    def decompose(self, tokens: Tensor, noise: Tensor, *, reconstruct: bool) -> Decomposition:
        """What the model makes of a group's tokens with K slots, K being the noise's (at_once, K, D)."""
        return self.model.decompose(tokens, iterations=self.iterations, noise=noise, reconstruct=reconstruct)

    def require_memory(self, num_slots: int, num_scenes: int | None = None, beside: int = 0) -> None:
        """Refuse a number of slots whose masks and attention do not fit in memory, with `beside` other bytes.

        They are those of one group, or of `num_scenes` at once.
        """
        decoded = _places(self.model) if "masks" in self.model.sources else 0
        num_scenes = self.at_once if num_scenes is None else num_scenes
        needed = _COPIES * num_scenes * num_slots * (self.model.num_tokens + decoded) * 4 + beside
        free = _free_bytes(self.device)
        if needed > _SPARE * free:
            possible = int(num_slots * _SPARE * free / needed)
            raise UserError(
                f"{num_slots} slots need about {needed / 2**30:.3g} GiB and {free / 2**30:.3g} GiB are free; "
                f"ask for at most {possible}"
            )

    def _check_scenes(self) -> None:
        scenes, field, shape = self.scenes, self.model.input, self.model.input_shape
        if not len(scenes):
            raise UserError(f"there are no scenes to score in this part of {scenes.directory}")
        rows = scenes.features if field == "features" else scenes.images
        if rows is None:
            raise UserError(
                f"{scenes.directory} has no {field}, which the model takes; it has {', '.join(scenes.fields)}"
            )
        if rows.shape[1:] != shape:
            raise UserError(
                f"{scenes.directory} holds {field} of shape {rows.shape[1:]}, but the model takes "
                f"{shape}: build the set with that size, or choose another set or run"
            )


@contextlib.contextmanager
def evaluating(model: SlotModel) -> Iterator[None]:
    """The model in evaluation mode and without gradients; afterwards as it was."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def _places(model: SlotModel) -> int:
    """Pixels, or tokens of features, of one scene."""
    return math.prod(model.input_shape[:-1])


def _scenes_at_once(model: SlotModel) -> int:
    """A power of two that depends on the model's sizes alone, not on the device: so neither do the groups."""
    channels = max(model.input_shape[-1], model.slot_attention.dim_in)
    fitting = max(1, _GROUP_BYTES // (4 * channels * _places(model)))
    return min(_MOST_SCENES, 1 << (fitting.bit_length() - 1))


def _free_bytes(device: torch.device) -> int:
    """Memory that can still be had; a container's limit counts too."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, StopIteration, ValueError):  # only Linux tells
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with contextlib.suppress(OSError, ValueError):  # only in a container with a limit is it a number
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        free.append(limit - int(used["anon"]))
    return max(0, min(free))
