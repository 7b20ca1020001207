"""`sn.segment`: pictures in, what a model makes of them out; many pictures in bounded memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from slotnorm.data.any_picture import is_batch
from slotnorm.data.backbones import FrozenBackbone
from slotnorm.errors import UserError
from slotnorm.models import SlotModel
from slotnorm.report.segmentation import Segmentation
from slotnorm.report.segmenter import Segmenter


class Segmentations(Sequence[Segmentation]):
    """The segmentations of several pictures, each made when it is asked for and not kept."""

    def __init__(self, pictures: Sequence[Any], segmenter: Segmenter) -> None:
        self.pictures, self.segmenter = pictures, segmenter

    def __len__(self) -> int:
        return len(self.pictures)

    @overload
    def __getitem__(self, index: int) -> Segmentation: ...
    @overload
    def __getitem__(self, index: slice) -> "Segmentations": ...
    def __getitem__(self, index: int | slice) -> "Segmentation | Segmentations":
        if isinstance(index, slice):
            return Segmentations(self.pictures[index], self.segmenter)
        return self.segmenter(self.pictures[index])

    def __iter__(self) -> Iterator[Segmentation]:
        return map(self.segmenter, self.pictures)

    def __repr__(self) -> str:
        return f"Segmentations of {len(self)} pictures, each made when it is asked for"


@overload
def segment(
    image: list[Any] | tuple[Any, ...],
    model: str | Path | SlotModel,
    slots: int | str | None = None,
    seed: int = 0,
    *,
    backbone: FrozenBackbone | None = None,
    device: str | torch.device = "auto",
) -> Segmentations: ...
@overload
def segment(
    image: str | Path | Image.Image,
    model: str | Path | SlotModel,
    slots: int | str | None = None,
    seed: int = 0,
    *,
    backbone: FrozenBackbone | None = None,
    device: str | torch.device = "auto",
) -> Segmentation: ...
@overload
def segment(
    image: NDArray[Any] | Tensor,
    model: str | Path | SlotModel,
    slots: int | str | None = None,
    seed: int = 0,
    *,
    backbone: FrozenBackbone | None = None,
    device: str | torch.device = "auto",
) -> Segmentation | Segmentations: ...
def segment(
    image: Any,
    model: str | Path | SlotModel,
    slots: int | str | None = None,
    seed: int = 0,
    *,
    backbone: FrozenBackbone | None = None,
    device: str | torch.device = "auto",
) -> Segmentation | Segmentations:
    """Segment a picture, or several: labels, soft masks, count and `plot()` of each (`Segmentation`).

    `image` is a path, a PIL image, an array (H, W, 3) of bytes or of floats in [0, 1] or [-1, 1], a tensor (3, H, W),
    or a list or batch of them; of several the results are a sequence whose members are made when they are asked for.
    A type checker cannot tell a batch from one array: for it, `Segmenter(model)(array)` is always one picture.
    `model` is a bundled name, a run's folder, a .safetensors file, or a model; `slots` is K, None that of training, or
    "auto". The same `seed` gives the same masks. Models of features need the `backbone` that makes them.
    """
    segmenter = Segmenter(model, slots, seed, backbone, device=device)
    if not isinstance(image, list | tuple) and not is_batch(image):
        return segmenter(image)
    for path in image if isinstance(image, list | tuple) else ():
        if isinstance(path, str | Path) and not Path(path).is_file():
            raise UserError(f"there is no file {path}; all pictures must be there before the first is segmented")
    return Segmentations(image, segmenter)
