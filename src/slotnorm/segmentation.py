"""From a model's masks to label maps that can be compared with the true ones, at the protocol's resolution."""

import math

from torch import Tensor
from torch.nn.functional import interpolate

from slotnorm.errors import UserError
from slotnorm.metrics import labels_from_masks


def comparable_labels(masks: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """True and predicted labels on one grid: masks (B, K, h, w) or (B, K, N) and true (B, H, W) -> twice (B, ., .).

    Masks as large as the labels are compared pixel by pixel. A feature autoencoder's (B, K, N), N a square, are scaled
    bilinearly to (H, W) before the argmax (half-pixel centres); a set predictor's (B, K, h, w) stay, and of the true
    labels every (H / h)-th pixel is taken (docs/fidelity.md).
    """
    height, width = true.shape[-2:]
    if masks.dim() == 3:
        return true, labels_from_masks(
            interpolate(as_maps(masks), (height, width), mode="bilinear", align_corners=False)
        )
    if height % masks.shape[-2] or width % masks.shape[-1]:
        raise UserError(
            f"labels of {height}x{width} cannot be compared with masks of {masks.shape[-2]}x{masks.shape[-1]}: "
            "the labels' size must be a multiple of the masks'"
        )
    return true[:, :: height // masks.shape[-2], :: width // masks.shape[-1]], labels_from_masks(masks)


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
