"""From a model's masks to label maps that can be compared with the true ones, at the protocol's resolution."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from slotnorm.errors import UserError
from slotnorm.metrics import labels_from_masks
from slotnorm.metrics.segmentation import as_maps


def comparable_labels(masks: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """True and predicted labels on one grid: masks (B, K, h, w) or (B, K, N) and true (B, H, W) -> twice (B, ., .).

    Masks as large as the labels are compared pixel by pixel. Masks over tokens (B, K, N), N a square, a feature
    autoencoder's or an attention, are scaled bilinearly to (H, W) before the argmax (half-pixel centres); a set
    predictor's (B, K, h, w) stay, and of the true labels every (H / h)-th pixel is taken (docs/fidelity.md).
    """
    height, width = true.shape[-2:]
    if masks.dim() == 3:
        return true, scaled_labels(as_maps(masks), height, width)
    if height % masks.shape[-2] or width % masks.shape[-1]:
        raise UserError(
            f"labels of {height}x{width} cannot be compared with masks of {masks.shape[-2]}x{masks.shape[-1]}: "
            "the labels' size must be a multiple of the masks'"
        )
    return true[:, :: height // masks.shape[-2], :: width // masks.shape[-1]], labels_from_masks(masks)


def scaled_labels(masks: Tensor, height: int, width: int) -> Tensor:
    """The slot with the largest of the masks (B, K, h, w) scaled bilinearly: (B, height, width), the first of equals.

    One slot at a time: the scaled masks of all slots would be the largest tensor of an evaluation.
    """
    if tuple(masks.shape[-2:]) == (height, width):
        return labels_from_masks(masks)
    highest = interpolate(masks[:, :1], (height, width), mode="bilinear", align_corners=False)
    labels = torch.zeros_like(highest, dtype=torch.uint8 if masks.shape[1] <= 256 else torch.int64)
    for slot in range(1, masks.shape[1]):
        scaled = interpolate(masks[:, slot : slot + 1], (height, width), mode="bilinear", align_corners=False)
        labels[scaled > highest] = slot
        torch.maximum(highest, scaled, out=highest)
    return labels[:, 0]


def labels_in_tiles(masks: Tensor, height: int, width: int) -> Tensor:
    """`scaled_labels` of one image's masks (K, h, w), for pictures that are much larger: (height, width) uint8.

    Between four places of the masks a slot that another exceeds at all four cannot win: of each such tile only the few
    slots that can are scaled. Values are rounded otherwise than there, so that labels on a boundary may differ.
    """
    rows, columns = _Places(masks.shape[1], height), _Places(masks.shape[2], width)
    labels = torch.empty(height, width, dtype=torch.uint8)
    for top, (first_row, last_row) in rows.tiles():
        below = min(top + 1, masks.shape[1] - 1)
        for left, (first, last) in columns.tiles():
            right = min(left + 1, masks.shape[2] - 1)
            corners = masks[:, (top, top, below, below), (left, right, left, right)]  # (K, 4)
            slots = _contenders(corners)
            tile = labels[first_row:last_row, first:last]
            if len(slots) == 1:
                tile.fill_(int(slots[0]))
                continue
            down, across = rows.share[first_row:last_row, None], columns.share[first:last]
            upper_left, upper_right, lower_left, lower_right = corners[slots].unbind(1)
            upper = torch.lerp(upper_left[:, None], upper_right[:, None], across)[:, None]
            lower = torch.lerp(lower_left[:, None], lower_right[:, None], across)[:, None]
            for part in range(0, len(tile), _TILE_ROWS):
                values = torch.lerp(upper, lower, down[part : part + _TILE_ROWS])
                tile[part : part + _TILE_ROWS] = slots[values.max(dim=0).indices]
    return labels


_TILE_ROWS = 256  # of a tile that are scaled at once: memory stays small however large the picture is


class _Places:
    """Where `length` pixels lie among `size` places of a mask, with half-pixel centres: place and share of the next."""

    def __init__(self, size: int, length: int) -> None:
        place = ((torch.arange(length, dtype=torch.float64) + 0.5) * size / length - 0.5).clamp(0, size - 1)
        self.first = place.floor().long()
        self.share = (place - self.first).float()

    def tiles(self) -> list[tuple[int, tuple[int, int]]]:
        """Each place with the pixels, first and behind the last, that lie between it and the next."""
        places, counts = torch.unique_consecutive(self.first, return_counts=True)
        ends = counts.cumsum(0)
        return list(zip(places.tolist(), zip((ends - counts).tolist(), ends.tolist(), strict=True), strict=True))


def _contenders(corners: Tensor) -> Tensor:
    """The slots, of values (K, 4) at the corners of a tile, that may be largest somewhere in it; ascending."""
    winners = corners.max(dim=0).indices.unique()
    exceeded = (corners[:, None] <= corners[winners]).all(dim=2)
    exceeded[winners, torch.arange(len(winners))] = False
    return (~exceeded.any(dim=1)).nonzero()[:, 0]


def count_visible(labels: Tensor) -> Tensor:
    """How many objects have a pixel: (B, H, W) uint8 -> (B,)."""
    flat = labels.flatten(1).long()
    seen = torch.zeros(len(flat), 256, dtype=torch.bool, device=labels.device).scatter_(1, flat, value=True)
    return seen[:, 1:].sum(1)
