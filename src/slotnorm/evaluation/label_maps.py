"""From a model's masks to label maps that can be compared with the true ones, at the protocol's resolution."""

import math

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from slotnorm.errors import UserError
from slotnorm.metrics import labels_from_masks


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


def as_maps(masks: Tensor) -> Tensor:
    """Masks over tokens as maps: (B, K, N), N a square in row-major order -> (B, K, √N, √N); maps stay as they are."""
    if masks.dim() == 4:
        return masks
    side = math.isqrt(masks.shape[-1])
    if side * side != masks.shape[-1]:
        raise UserError(
            f"masks over {masks.shape[-1]} tokens are no square map; features must come from a square image"
        )
    return masks.reshape(*masks.shape[:2], side, side)


def count_visible(labels: Tensor) -> Tensor:
    """How many objects have a pixel: (B, H, W) uint8 -> (B,)."""
    flat = labels.flatten(1).long()
    seen = torch.zeros(len(flat), 256, dtype=torch.bool, device=labels.device).scatter_(1, flat, value=True)
    return seen[:, 1:].sum(1)
