"""Who holds the background, and what that does to F-ARI.

F-ARI looks at the pixels of objects alone. A background that is spread over many slots has no strong one among them, so
that objects keep the pixels at their borders; a slot that holds all of it wins some of these. How much of an F-ARI is
only that is seen by making the background's slot weaker before the argmax.
"""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from slotnorm.evaluation.label_maps import comparable_labels
from slotnorm.metrics import adjusted_rand_index
from slotnorm.metrics.segmentation import as_maps

SHARE = "background_share"
TAKEN = "foreground_taken"
DIVISORS = (1, 2, 3, 10)


def divided_name(divisor: int) -> str:
    """The metric that is F-ARI with the background's slot divided by this number."""
    return f"f_ari/{divisor}"


def measure_background(masks: Tensor, true: Tensor) -> dict[str, Tensor]:
    """Of each image, by name, (B,) float64: masks (B, K, h, w) or (B, K, N), true (B, H, W), 0 is background.

    The background's slot is the one with the largest sum of its mask over true background.

    - `background_share`: its part of what all slots have there; NaN without background;
    - `foreground_taken`: the part of the objects' pixels that it wins; NaN without objects;
    - `f_ari/2`: F-ARI when its mask is divided by 2 before the argmax, and so for every divisor; NaN without objects.

    Masks and labels are compared as in evaluation, see `comparable_labels`; `f_ari/1` is its F-ARI.
    """
    compared, labels = comparable_labels(masks, true)
    mass = _mass_on_background(masks, compared)
    slot = mass.argmax(dim=1)
    foreground = compared != 0
    won = (labels == slot[:, None, None].to(labels.dtype)) & foreground
    measured = {
        SHARE: mass.amax(dim=1) / mass.sum(dim=1),  # 0 / 0 is NaN
        TAKEN: won.sum(dim=(1, 2)).double() / foreground.sum(dim=(1, 2)),
    }
    for divisor in DIVISORS:
        weaker = masks.clone()
        weaker[torch.arange(len(masks), device=masks.device), slot] /= divisor
        measured[divided_name(divisor)] = adjusted_rand_index(compared, comparable_labels(weaker, true)[1])
    return measured


def _mass_on_background(masks: Tensor, compared: Tensor) -> Tensor:
    """The sum of every slot's mask over true background, labels (B, H, W) as they are compared: (B, K) float64."""
    background, size = (compared == 0).double(), tuple(compared.shape[-2:])
    maps, sums = as_maps(masks), []
    for slot in range(maps.shape[1]):  # one at a time, as in `scaled_labels`: all of them scaled are large
        mask = maps[:, slot : slot + 1]
        if tuple(mask.shape[-2:]) != size:
            mask = interpolate(mask, size, mode="bilinear", align_corners=False)
        sums.append((mask[:, 0].double() * background).sum(dim=(1, 2)))
    return torch.stack(sums, dim=1)
