"""What a run makes of a dozen test scenes at every K, kept beside the run: the material of pictures and pages."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from slotnorm.data.scenes import Scenes
from slotnorm.errors import DamagedFile, UserError
from slotnorm.evaluation.decomposer import Decomposer, evaluating
from slotnorm.metrics.segmentation import as_maps
from slotnorm.models import SlotModel
from slotnorm.storage import archives
from slotnorm.storage.schemas import check_document

LARGEST_SIDE = 96  # pixels of what is kept: pictures are for the eye, and 24 slots of a dozen scenes add up
_FORMAT = 1
_SMALL_SIDE = 32  # up to this size reconstructions are kept for every K, above only where they are asked for
_STEP = 5  # of 255: shares are kept in steps of two percent, which no eye can see, and the file stays small


@dataclasses.dataclass(frozen=True)
class _Record:
    """What a file of examples says besides its arrays."""

    format: int
    run: str
    norm: str
    dataset: str
    facts: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Examples:
    """Some scenes of a set as one run sees them; pixels are uint8."""

    run: str
    norm: str
    dataset: str
    scenes: NDArray[np.int64]
    """(n,): their numbers in the set."""
    images: NDArray[np.uint8] | None
    """(n, H, W, 3), where the set has images."""
    labels: NDArray[np.uint8] | None
    """(n, H, W), 0 is background; where the set has masks."""
    masks: Mapping[int, NDArray[np.uint8]]
    """K -> (n, K, h, w), in 255ths."""
    reconstructions: Mapping[int, NDArray[np.uint8]]
    """K -> (n, H, W, 3), for the K that have one."""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Hashes of weights and scenes, and whatever else was given."""

    @property
    def slots(self) -> list[int]:
        return sorted(self.masks)

    def save(self, path: Path) -> None:
        """Write them sealed, as one .npz."""
        record = _Record(_FORMAT, self.run, self.norm, self.dataset, dict(self.facts))
        arrays: dict[str, Any] = {"record": archives.as_text(dataclasses.asdict(record)), "scenes": self.scenes}
        arrays |= {"images": self.images, "labels": self.labels}
        arrays |= {f"masks-{k}": masks for k, masks in self.masks.items()}
        arrays |= {f"reconstruction-{k}": pixels for k, pixels in self.reconstructions.items()}
        archives.write_arrays(path, {name: array for name, array in arrays.items() if array is not None})

    def _require_shapes(self) -> None:
        """Refuse arrays that are not of the same scenes and sizes, or not pixels, and what has no masks."""
        n = len(self.scenes)
        if self.scenes.ndim != 1 or self.scenes.dtype.kind != "i" or n == 0:
            raise ValueError("its scenes are not numbered")
        if not self.masks or not set(self.masks).issuperset(self.reconstructions):
            raise ValueError(f"its masks are those of K {sorted(self.masks)}")
        frame = _sides(self.labels if self.images is None else self.images, 1)
        mask = _sides(next(iter(self.masks.values())), 2)
        rebuilt = _sides(next(iter(self.reconstructions.values()), None), 1)
        arrays: list[tuple[NDArray[Any] | None, tuple[int, ...]]] = [
            (self.images, (n, *frame, 3)), (self.labels, (n, *frame)),
            *((masks, (n, k, *mask)) for k, masks in self.masks.items()),
            *((pixels, (n, *rebuilt, 3)) for pixels in self.reconstructions.values()),
        ]  # fmt: skip
        for array, shape in arrays:
            if array is not None and (array.dtype != np.uint8 or array.shape != shape or array.size == 0):
                raise ValueError(f"an array is {array.shape} {array.dtype}, not {shape} uint8, or it is empty")

    @classmethod
    def load(cls, path: Path) -> "Examples":
        """Read a file of `save`; anything else than what was written is a DamagedFile."""
        arrays = archives.read_arrays(path)
        try:
            record = archives.from_text(arrays["record"], path)
            if record["format"] != _FORMAT:
                raise UserError(
                    f"{path} has examples in format {str(record['format'])[:40]}, this slotnorm reads {_FORMAT}; "
                    "install a newer one, or delete it and make it again"
                )
            facts = check_document(_Record, record, path, "the record of examples", "delete it and make it again")
            by_slots: dict[str, dict[int, NDArray[np.uint8]]] = {"masks": {}, "reconstruction": {}}
            for name, array in arrays.items():
                kind, dash, number = name.partition("-")
                if dash:
                    by_slots[kind][int(number)] = array
            examples = cls(
                facts.run, facts.norm, facts.dataset, arrays["scenes"], arrays.get("images"),
                arrays.get("labels"), by_slots["masks"], by_slots["reconstruction"], facts.facts,
            )  # fmt: skip
            examples._require_shapes()
            return examples
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, UserError):
                raise
            raise DamagedFile(
                f"{path} is sealed but holds no examples ({error}); delete it and make it again"
            ) from error


def _sides(array: NDArray[Any] | None, first: int) -> tuple[int, ...]:
    """Height and width of pictures, the `first` of which is that axis; 0 for what is not there."""
    return () if array is None else (*array.shape, 0, 0, 0)[first : first + 2]


def make_examples(
    model: SlotModel,
    scenes: Scenes,
    slots: Iterable[int],
    reconstruct_at: Iterable[int],
    iterations: int | None = None,
    **names: Any,
) -> Examples:
    """The masks of all the scenes for every K, and reconstructions at some (of small images at all).

    `names` are run, norm, dataset and facts. The slots start from the noise of the evaluation.
    """
    decomposer = Decomposer(model, scenes, iterations)
    groups = decomposer.groups()
    in_colour = model.input == "images"
    wanted, small = set(reconstruct_at), model.input_shape[0] <= _SMALL_SIDE
    masks: dict[int, Any] = {k: [] for k in sorted({*slots, *wanted})}
    reconstructions: dict[int, Any] = {k: [] for k in masks if in_colour and (small or k in wanted)}
    with evaluating(model):
        for group in groups:
            _, tokens = decomposer.encode(group)
            present = torch.from_numpy(group >= 0)
            for k in masks:
                noise = decomposer.scene_noise(0, group, k)
                decomposition = decomposer.decompose(tokens, noise, reconstruct=k in reconstructions)
                masks[k].append(_bytes(_shrunk(as_maps(decomposition.masks[present]))))
                if k in reconstructions and decomposition.reconstruction is not None:
                    pixels = (_shrunk(decomposition.reconstruction[present]) + 1) / 2
                    reconstructions[k].append(_bytes(pixels).transpose(0, 2, 3, 1))
    order = np.argsort(np.concatenate([group[group >= 0] for group in groups]))

    def gathered(parts: dict[int, Any]) -> dict[int, NDArray[np.uint8]]:
        return {k: np.concatenate(part)[order] for k, part in parts.items() if part}

    everything = np.arange(len(scenes))
    images = None if scenes.images is None else _shrunk_images(scenes.read("images", everything))
    labels = None if scenes.labels is None else _shrunk_labels(scenes.read("labels", everything))
    kept = {k: (np.rint(shares / _STEP) * _STEP).astype(np.uint8) for k, shares in gathered(masks).items()}
    return Examples(
        scenes=scenes.index.copy(), images=images, labels=labels, masks=kept,
        reconstructions=gathered(reconstructions), **names,
    )  # fmt: skip


def _bytes(shares: torch.Tensor) -> NDArray[np.uint8]:
    values: NDArray[np.uint8] = (shares.float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    return values


def _shrunk(maps: torch.Tensor) -> torch.Tensor:
    """Maps (n, C, h, w) with sides of at most LARGEST_SIDE, by the mean over what falls together."""
    side = max(maps.shape[-2:])
    if side <= LARGEST_SIDE:
        return maps
    size = [max(1, round(length * LARGEST_SIDE / side)) for length in maps.shape[-2:]]
    return interpolate(maps.float(), size, mode="area")


def _shrunk_images(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return _bytes(_shrunk(torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255)).transpose(0, 2, 3, 1)


def _shrunk_labels(labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Every so-many-th pixel, since labels have no mean."""
    side = max(labels.shape[-2:])
    if side <= LARGEST_SIDE:
        return labels
    rows, columns = (
        np.linspace(0, length - 1, max(1, round(length * LARGEST_SIDE / side))).round().astype(int)
        for length in labels.shape[-2:]
    )
    return labels[:, rows][:, :, columns]
