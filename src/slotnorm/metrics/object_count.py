"""How many objects masks show, without labels: slots that hold something, and something that is not background.

A slot holds the pixels of which it explains more than half. One that keeps its mass and is not needed holds nothing: it
shares the background with others like it. One that holds much of the image's border is background itself.
"""

from typing import Any

import torch
from torch import Tensor

from slotnorm.errors import UserError
from slotnorm.metrics.segmentation import as_maps

# Fixed on validation scenes of the toy study alone: benchmarks/count_rule.py
SMALLEST = 0.005
"""Share of the image that an object's slot holds at least."""
MOST_BORDER = 0.2
"""Share of the image's border from which on a slot is background."""


def count_objects(decomposition: Any) -> Tensor:
    """The number of objects in each image, (B,) int64: of a model's `Decomposition`, or of masks (B, K, H, W).

    Masks over tokens (B, K, N) are taken as a square map. The rule and how well it counts: docs/your-images.md.
    """
    masks: Tensor = getattr(decomposition, "masks", decomposition)
    return holds_object(masks).sum(dim=1)


def holds_object(masks: Tensor, smallest: float = SMALLEST, most_border: float = MOST_BORDER) -> Tensor:
    """Whether each slot of masks (B, K, H, W) or (B, K, N) holds an object, (B, K) bool."""
    if not isinstance(masks, Tensor) or masks.dim() not in (3, 4):
        shape = tuple(masks.shape) if isinstance(masks, Tensor) else type(masks).__name__
        raise UserError(f"objects are counted of masks (B, K, H, W) or (B, K, N), not of {shape}; give a Decomposition")
    masks = as_maps(masks)
    held = masks > 0.5
    border = torch.ones(masks.shape[-2:], dtype=torch.bool, device=masks.device)
    border[1:-1, 1:-1] = False
    enough = held.flatten(2).float().mean(dim=2) >= smallest
    return enough & (held[:, :, border].float().mean(dim=2) < most_border)


def needed(masks: Tensor) -> Tensor:
    """Whether each slot of masks (B, K, H, W) is needed, (B, K) bool: it holds something, be it background.

    Where no slot holds background, which all then share, the one that explains most of what nobody holds stands for it.
    """
    held = masks > 0.5
    holds = held.flatten(2).float().mean(dim=2) >= SMALLEST
    free = ~held.any(dim=1, keepdim=True)
    left = (masks * free).flatten(2).sum(dim=2)
    stands_in = torch.zeros_like(holds).scatter_(1, left.argmax(dim=1, keepdim=True), True)
    much_is_free = free.flatten(1).float().mean(dim=1, keepdim=True) >= SMALLEST
    return holds | (stands_in & much_is_free & ~(holds & ~holds_object(masks)).any(dim=1, keepdim=True))
