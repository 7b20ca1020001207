"""Scores of segmentations: label maps against true ones, from one count of pixels for all of them."""

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from slotnorm.errors import UserError
from slotnorm.metrics.counting import count_tables


def adjusted_rand_index(true: Tensor, predicted: Tensor, ignore_background: bool = True) -> Tensor:
    """Adjusted Rand index of each image; F-ARI when background is ignored: (B, ...), (B, ...) integer -> (B,) float64.

    With `ignore_background` only the pixels whose true label is not 0 count, and an image without any is NaN. Labels
    are names: their order and gaps do not matter. Degenerate cases are scikit-learn's: two segmentations that agree
    on every pair of pixels score 1, also when there is nothing but one segment.
    """
    return _score(true, predicted, foreground_rand_index if ignore_background else rand_index)


def foreground_ari(true: Tensor, predicted: Tensor) -> Tensor:
    """F-ARI: the adjusted Rand index over the pixels whose true label is not 0, of each image; see above."""
    return adjusted_rand_index(true, predicted, ignore_background=True)


def mean_best_overlap(true: Tensor, predicted: Tensor) -> Tensor:
    """Mean over an image's objects of the best intersection over union (mBO): (B, ...) integer twice -> (B,) float64.

    Background (true label 0) is not an object, but its pixels count in the size of the segments that cover it. NaN for
    an image without objects.
    """
    return _score(true, predicted, best_overlap)


def mean_iou(true: Tensor, predicted: Tensor) -> Tensor:
    """Mean over an image's objects of the IoU with the segment matched to it: (B, ...) integer twice -> (B,) float64.

    The matching is one to one and maximises the sum (Hungarian); an object left without a segment scores 0. Background
    (true label 0) is not an object and is not matched. NaN for an image without objects.
    """
    return _score(true, predicted, matched_overlap)


def labels_from_masks(masks: Tensor) -> Tensor:
    """The slot with the largest mask at each place: (B, K, ...) -> (B, ...), uint8 up to 256 slots, int64 above.

    The first of equal masks wins.
    """
    if masks.dim() < 2 or masks.shape[1] == 0:
        raise UserError(f"masks have shape {tuple(masks.shape)}, but (B, K, ...) with at least one slot is needed")
    labels = masks.max(dim=1).indices  # on CPU three to five times faster than argmax
    return labels.to(torch.uint8) if masks.shape[1] <= 256 else labels


def as_maps(masks: Tensor) -> Tensor:
    """Masks over tokens as maps: (B, K, N), N a square in row-major order -> (B, K, √N, √N); maps stay as they are."""
    if masks.dim() == 4:
        return masks
    side = math.isqrt(masks.shape[-1])
    if side * side != masks.shape[-1]:
        raise UserError(
            f"masks over {masks.shape[-1]} tokens are not a square map; features must come from a square image"
        )
    return masks.reshape(*masks.shape[:2], side, side)


def _score(true: Tensor, predicted: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
    return over_tables(count_tables(true, predicted), score)


def over_tables(tables: Iterable[Tensor], score: Callable[[Tensor], Tensor]) -> Tensor:
    """`score` of every image's table, (B,)."""
    return torch.cat([score(table) for table in tables])


def foreground_rand_index(table: Tensor) -> Tensor:
    """Counts (B, T, S) -> adjusted Rand index (B,) over all rows but the first, NaN where they are empty."""
    return torch.where(table[:, 1:].sum(dim=(1, 2)) == 0, math.nan, rand_index(table[:, 1:]))


def rand_index(table: Tensor) -> Tensor:
    """Counts (B, T, S) -> adjusted Rand index (B,)."""
    pixels = table.sum(dim=(1, 2))
    both = table.square().sum(dim=(1, 2))
    same_true = table.sum(dim=2).square().sum(dim=1)
    same_predicted = table.sum(dim=1).square().sum(dim=1)
    # ordered pairs of pixels, in whole numbers: together in both segmentations, in one of them, in neither
    together, split, merged = both - pixels, same_true - both, same_predicted - both
    apart = pixels.square() - same_true - same_predicted + both
    together, split, merged, apart = (pairs.double() for pairs in (together, split, merged, apart))
    above = 2.0 * (together * apart - split * merged)
    below = (together + split) * (split + apart) + (together + merged) * (merged + apart)
    return torch.where((split == 0) & (merged == 0), 1.0, above / below)


def best_overlap(table: Tensor) -> Tensor:
    """Counts (B, T, S) -> mBO (B,)."""
    return _mean_over_objects(_overlap(table).amax(dim=2), table)


def matched_overlap(table: Tensor) -> Tensor:
    """Counts (B, T, S) -> mIoU (B,)."""
    from scipy.optimize import linear_sum_assignment

    overlap = _overlap(table).cpu()
    matched = torch.zeros(overlap.shape[:2], dtype=overlap.dtype)
    for best, ratios in zip(matched.numpy(), overlap.numpy(), strict=True):
        present = ratios.any(axis=1)  # of equal matchings the same is found with or without what other images have
        within = ratios[present][:, ratios.any(axis=0)]
        objects, segments = linear_sum_assignment(within, maximize=True)
        of_objects = np.zeros(len(within))
        of_objects[objects] = within[objects, segments]
        best[present] = of_objects
    return _mean_over_objects(matched.to(table.device), table)


def _overlap(table: Tensor) -> Tensor:
    """Intersection over union of each object with each segment: (B, T, S) counts -> (B, T - 1, S)."""
    objects = table[:, 1:].double()
    union = objects.sum(dim=2, keepdim=True) + table.sum(dim=1, keepdim=True) - objects
    return objects / union.clamp(min=1)  # 0 for an object or segment that this image does not have


def _mean_over_objects(scores: Tensor, table: Tensor) -> Tensor:
    """The mean of (B, T - 1) over the objects that an image has, NaN where it has none: -> (B,)."""
    present = table[:, 1:].sum(dim=2) > 0
    total = scores.new_zeros(len(scores))
    for score, is_present in zip(scores.unbind(1), present.unbind(1), strict=True):
        total = total + score * is_present  # one after the other: objects that only other images have change no bit
    return total / present.sum(dim=1)
