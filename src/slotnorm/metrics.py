"""Scores of segmentations, reconstructions and property predictions: pure functions on whole batches of tensors."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from slotnorm.errors import UserError

_CELLS_AT_ONCE = 1 << 24  # contingency tables are counted in parts of at most this many cells, 128 MB
_CELLS_OF_AN_IMAGE = 1 << 27  # and an image whose own table is larger than 1 GB is refused
_PIXELS_AT_ONCE = 1 << 18  # labels are narrowed and counted in blocks of 1 MB, which stay in the processor's cache

_PLAIN = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

# property vectors: shape 3, size 2, material 2, colour 8 (one-hot each), x y z, real-object flag
_ATTRIBUTES = (3, 2, 2, 8)
_POSITION = slice(sum(_ATTRIBUTES), sum(_ATTRIBUTES) + 3)
_PROPERTIES = sum(_ATTRIBUTES) + 4
_POSITION_SCALE = 6.0  # positions are stored as (c + 3) / 6, distances are meant in scene units


def adjusted_rand_index(true: Tensor, predicted: Tensor, ignore_background: bool = True) -> Tensor:
    """Adjusted Rand index of each image; F-ARI when background is ignored: (B, ...), (B, ...) integer -> (B,) float64.

    With `ignore_background` only the pixels whose true label is not 0 count, and an image without any is NaN. Labels
    are names: their order and gaps do not matter. Degenerate cases are scikit-learn's: two segmentations that agree
    on every pair of pixels score 1, also when there is nothing but one segment.
    """
    return _score_tables(true, predicted, _foreground_rand_index if ignore_background else _rand_index)


def foreground_ari(true: Tensor, predicted: Tensor) -> Tensor:
    """F-ARI: the adjusted Rand index over the pixels whose true label is not 0, of each image; see above."""
    return adjusted_rand_index(true, predicted, ignore_background=True)


def mean_best_overlap(true: Tensor, predicted: Tensor) -> Tensor:
    """Mean over an image's objects of the best intersection over union (mBO): (B, ...) integer twice -> (B,) float64.

    Background (true label 0) is no object, but its pixels count in the size of the segments that cover it. NaN for an
    image without objects.
    """
    return _score_tables(true, predicted, _best_overlap)


def mean_iou(true: Tensor, predicted: Tensor) -> Tensor:
    """Mean over an image's objects of the IoU with the segment matched to it: (B, ...) integer twice -> (B,) float64.

    The matching is one to one and maximises the sum (Hungarian); an object left without a segment scores 0. Background
    (true label 0) is no object and is not matched. NaN for an image without objects.
    """
    return _score_tables(true, predicted, _matched_overlap)


def segmentation_scores(true: Tensor, predicted: Tensor) -> dict[str, Tensor]:
    """f_ari, ari, mbo and miou of each image, counted once for all: (B, ...) integer twice -> (B,) float64 each.

    An image's scores are the same to the last bit whatever else is in the batch.
    """
    scores = {"f_ari": _foreground_rand_index, "ari": _rand_index, "mbo": _best_overlap, "miou": _matched_overlap}
    found = _score_tables(true, predicted, lambda table: torch.stack([of(table) for of in scores.values()], dim=1))
    return dict(zip(scores, found.unbind(1), strict=True))


def labels_from_masks(masks: Tensor) -> Tensor:
    """The slot with the largest mask at each place: (B, K, ...) -> (B, ...), uint8 up to 256 slots, int64 above.

    The first of equal masks wins.
    """
    if masks.dim() < 2 or masks.shape[1] == 0:
        raise UserError(f"masks have shape {tuple(masks.shape)}, but (B, K, ...) with at least one slot is needed")
    labels = masks.max(dim=1).indices  # on CPU three to five times faster than argmax
    return labels.to(torch.uint8) if masks.shape[1] <= 256 else labels


def squared_error(reconstruction: Tensor, target: Tensor) -> Tensor:
    """The l2 loss of each image, its mean squared error over places and channels: (B, ...) twice -> (B,)."""
    if reconstruction.shape != target.shape:
        raise UserError(
            f"the reconstruction has shape {tuple(reconstruction.shape)} and the target {tuple(target.shape)}; "
            "they must be equal"
        )
    precise = torch.promote_types(torch.promote_types(reconstruction.dtype, target.dtype), torch.float32)
    return (reconstruction.to(precise) - target.to(precise)).square_().flatten(1).mean(dim=1)


def average_precision(predictions: Tensor, targets: Tensor, distance: float = 0.25) -> Tensor:
    """Average precision of predicted properties over a whole set: (n, K, 19), (n, O, 19) -> scalar, float64.

    All predictions of all images are ranked by confidence (the last number; equal ones keep the order of image, then
    slot). One is a true positive when the nearest object of its image that agrees in shape, size, material and colour
    is closer than `distance` (in scene units, 6 times the stored ones; `float("inf")` is no limit) and no prediction
    ranked before has taken that object. Precision is interpolated at all points. NaN when the set has no object.
    """
    _check_properties(predictions, targets, distance)
    predictions, targets = predictions.detach().double(), targets.detach().double()
    images, slots = predictions.shape[:2]
    objects = targets.shape[1]
    real = targets[..., -1] > 0.5
    if not real.any():
        return targets.new_tensor(math.nan)
    agrees = _attributes(predictions)[:, :, None] == _attributes(targets)[:, None]  # (n, K, O, 4)
    agrees = agrees.all(dim=-1) & real[:, None]
    offsets = predictions[:, :, None, _POSITION] - targets[:, None, :, _POSITION]
    distances = (offsets * _POSITION_SCALE).norm(dim=-1).masked_fill(~agrees, math.inf)
    nearest = distances.min(dim=2)  # the first of equally near ones
    hits = agrees.any(dim=2) & ((nearest.values < distance) | (distance == math.inf))

    order = predictions[..., -1].flatten().argsort(descending=True, stable=True)
    object_ids = nearest.indices + objects * torch.arange(images, device=hits.device)[:, None]
    object_ids = object_ids.flatten()[order]
    ranks = torch.arange(images * slots, device=hits.device)
    # a hit is true when it is the first in the ranking on its object
    claims = torch.where(hits.flatten()[order], ranks, images * slots)
    first = torch.full((images * objects,), images * slots, device=hits.device)
    first.scatter_reduce_(0, object_ids, claims, "amin")
    true_positive = claims == first[object_ids]
    true_positive &= claims < images * slots
    found = true_positive.cumsum(0).double()
    # both in single precision, as in the evaluation that published numbers come from: equal to it to the last digit
    precision, recall = (found / (ranks + 1)).float().double(), (found / real.sum()).float().double()
    best_from_here = precision.flip(0).cummax(0).values.flip(0)
    return (best_from_here * recall.diff(prepend=recall.new_zeros(1))).sum()


def _attributes(properties: Tensor) -> Tensor:
    """The most probable shape, size, material and colour: (..., 19) -> (..., 4)."""
    parts = torch.split(properties[..., : sum(_ATTRIBUTES)], list(_ATTRIBUTES), dim=-1)
    return torch.stack([part.max(dim=-1).indices for part in parts], dim=-1)


def _check_properties(predictions: Tensor, targets: Tensor, distance: float) -> None:
    for name, properties in (("predictions", predictions), ("targets", targets)):
        if properties.dim() != 3 or properties.shape[-1] != _PROPERTIES:
            raise UserError(f"{name} have shape {tuple(properties.shape)}, but (n, number, {_PROPERTIES}) is needed")
        if not properties.isfinite().all():
            raise UserError(f"{name} hold NaN or infinite numbers, which cannot be ranked; check the model's output")
    if len(predictions) != len(targets):
        raise UserError(f"there are predictions of {len(predictions)} images and targets of {len(targets)}; pair them")
    if predictions.shape[1] == 0 or targets.shape[1] == 0:
        raise UserError("predictions and targets need at least one row an image; pad targets with rows of flag 0")
    if not distance > 0:
        raise UserError(f"distance is {distance}, but must be positive; float('inf') is no limit")


def _foreground_rand_index(table: Tensor) -> Tensor:
    return torch.where(table[:, 1:].sum(dim=(1, 2)) == 0, math.nan, _rand_index(table[:, 1:]))


def _rand_index(table: Tensor) -> Tensor:
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


def _best_overlap(table: Tensor) -> Tensor:
    return _mean_over_objects(_overlap(table).amax(dim=2), table)


def _matched_overlap(table: Tensor) -> Tensor:
    from scipy.optimize import linear_sum_assignment

    overlap = _overlap(table).cpu()
    matched = torch.zeros(overlap.shape[:2], dtype=overlap.dtype)
    for best, ratios in zip(matched.numpy(), overlap.numpy(), strict=True):
        present = ratios.any(axis=1)  # of equal matchings the same is found with or without what other images have
        within = ratios[present][:, ratios.any(axis=0)]
        objects, segments = linear_sum_assignment(within, maximize=True)
        found = np.zeros(len(within))
        found[objects] = within[objects, segments]
        best[present] = found
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


def _score_tables(true: Tensor, predicted: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `score` to the contingency tables (B, T, S) of label maps, where row 0 is background: -> (B,) or (B, m)."""
    _check_labels(true, predicted)
    if true.numel() == 0:
        return score(torch.zeros(len(true), 1, 1, dtype=torch.int64, device=true.device))
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
    parts = zip(torch.split(true, images_at_once), torch.split(predicted, images_at_once), strict=True)
    return torch.cat([score(_contingency(*part, rows, columns)) for part in parts])


def _contingency(true: Tensor, predicted: Tensor, rows: int, columns: int) -> Tensor:
    """Pixels with each pair of labels: (B, P) twice -> (B, T, S) int64. Of wide labels no second copy is made."""
    images_at_once = max(1, _PIXELS_AT_ONCE // true.shape[1])
    blocks = zip(torch.split(true, images_at_once), torch.split(predicted, images_at_once), strict=True)
    table = torch.cat([_count_pairs(*block, rows, columns) for block in blocks])
    return table.cpu() if table.device.type == "mps" else table  # no float64 there, and the table is small


def _count_pairs(true: Tensor, predicted: Tensor, rows: int, columns: int) -> Tensor:
    """One count over (image, true label, predicted label): (B, P) twice -> (B, T, S) int64."""
    images, cells = len(true), rows * columns
    # 32 bits hold every index, since the table is bounded; adding int64 in place would be ten times slower
    index = torch.empty(true.shape, dtype=torch.int32, device=true.device)
    index.copy_(true).mul_(columns).add_(predicted.to(torch.int32))
    index.add_(torch.arange(0, images * cells, cells, dtype=torch.int32, device=true.device)[:, None])
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
