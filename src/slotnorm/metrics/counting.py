"""Contingency tables: how many pixels have each pair of a true and a predicted label, for a whole batch at once."""

from collections.abc import Iterator

import torch
from torch import Tensor

from slotnorm.errors import UserError

_CELLS_AT_ONCE = 1 << 24  # contingency tables are counted in parts of at most this many cells, 128 MB
_CELLS_OF_AN_IMAGE = 1 << 27  # and an image whose own table is larger than 1 GB is refused
_PIXELS_AT_ONCE = 1 << 18  # labels are narrowed and counted in blocks of 1 MB, which stay in the processor's cache

_PLAIN = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def count_tables(true: Tensor, predicted: Tensor) -> Iterator[Tensor]:
    """The tables (b, T, S) int64 of label maps (B, ...), row 0 is background, in parts that are all images together."""
    _check_labels(true, predicted)
    if true.numel() == 0:
        yield torch.zeros(len(true), 1, 1, dtype=torch.int64, device=true.device)
        return
    true, predicted = _plain(true.flatten(1)), _plain(predicted.flatten(1))
    rows, columns = _number_of_labels(true, "true"), _number_of_labels(predicted, "predicted")
    if len(true) * rows * columns > _CELLS_AT_ONCE:
        true, predicted = _compact(true), _compact(predicted)
        rows, columns = int(true.max()) + 1, int(predicted.max()) + 1
        if rows * columns > _CELLS_OF_AN_IMAGE:
            raise UserError(
                f"an image has {rows - 1} true and {columns - 1} predicted segments, but their table may have at most "
                f"{_CELLS_OF_AN_IMAGE} cells; merge segments or reduce the resolution"
            )
    images_at_once = max(1, _CELLS_AT_ONCE // (rows * columns))
    for part in zip(torch.split(true, images_at_once), torch.split(predicted, images_at_once), strict=True):
        yield _contingency(*part, rows, columns)


def _contingency(true: Tensor, predicted: Tensor, rows: int, columns: int) -> Tensor:
    """Pixels with each pair of labels: (B, P) twice -> (B, T, S) int64. Of wide labels no second copy is made."""
    images_at_once = max(1, _PIXELS_AT_ONCE // true.shape[1])
    blocks = zip(torch.split(true, images_at_once), torch.split(predicted, images_at_once), strict=True)
    table = torch.cat([_count_pairs(*block, rows, columns) for block in blocks])
    return table.cpu() if table.device.type == "mps" else table  # no float64 there, and the table is small


def _count_pairs(true: Tensor, predicted: Tensor, rows: int, columns: int) -> Tensor:
    """One count over (image, true label, predicted label): (B, P) twice -> (B, T, S) int64."""
    images, cells = len(true), rows * columns
    # 16 bits mostly, and 32 always, hold every index, since the table is bounded: the narrower, the more at once
    width = torch.int16 if images * cells < 1 << 15 else torch.int32
    index = torch.empty(true.shape, dtype=width, device=true.device)
    index.copy_(true).mul_(columns).add_(predicted.to(width))
    index.add_(torch.arange(0, images * cells, cells, dtype=width, device=true.device)[:, None])
    return torch.bincount(index.flatten(), minlength=images * cells).view(images, rows, columns)


def _compact(labels: Tensor) -> Tensor:
    """Labels renamed to 0, 1, 2, ... within each image, in their order; 0 stays 0 whether or not it occurs: (B, P)."""
    labels = torch.unique(labels, return_inverse=True)[1] + (labels.min() > 0)
    with_background = torch.cat([labels.new_zeros(len(labels), 1), labels], dim=1)
    image = torch.arange(len(labels), device=labels.device)[:, None]
    names: Tensor = torch.unique(with_background + image * (labels.max() + 1), return_inverse=True)[1]
    return (names - names[:, :1])[:, 1:]  # an image's background is its first name


def _plain(labels: Tensor) -> Tensor:
    """Booleans and wide unsigned integers have few operations in torch: as int64."""
    return labels if labels.dtype in _PLAIN else labels.to(torch.int64)


def _number_of_labels(labels: Tensor, name: str) -> int:
    least, greatest = (int(value) for value in labels.aminmax())
    if least < 0:
        raise UserError(f"a {name} label is {least}, but labels are not negative; 0 is background, objects follow")
    return greatest + 1


def _check_labels(true: Tensor, predicted: Tensor) -> None:
    if true.shape != predicted.shape:
        raise UserError(
            f"true labels have shape {tuple(true.shape)} and predicted ones {tuple(predicted.shape)}; they must be "
            "equal, so scale one of the label maps"
        )
    if true.dim() < 2:
        raise UserError(f"labels have shape {tuple(true.shape)}, but (B, H, W) is needed; add a batch dimension")
    for name, labels in (("true", true), ("predicted", predicted)):
        if labels.is_floating_point() or labels.is_complex():
            raise UserError(f"{name} labels are {labels.dtype}, but must be integers; for masks use labels_from_masks")
