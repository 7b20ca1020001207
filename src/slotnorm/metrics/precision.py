"""Scores of predicted properties over a whole set."""

import math

import torch
from torch import Tensor

from slotnorm.errors import UserError

ATTRIBUTES = {"shape": 3, "size": 2, "material": 2, "color": 8}
"""Property vectors have these, one-hot each, then x y z and the real-object flag."""
_POSITION = slice(sum(ATTRIBUTES.values()), sum(ATTRIBUTES.values()) + 3)
_PROPERTIES = _POSITION.stop + 1
_POSITION_SCALE = 6.0  # positions are stored as (c + 3) / 6, distances are meant in scene units


def average_precision(predictions: Tensor, targets: Tensor, distance: float = 0.25) -> Tensor:
    """Average precision of predicted properties over a whole set: (n, K, 19), (n, O, 19) -> scalar, float64.

    All predictions of all images are ranked by confidence (the last number; equal ones keep the order of image, then
    slot). One is a true positive when the nearest object of its image that agrees in shape, size, material and colour
    is closer than `distance` (in scene units, 6 times the stored ones; `float("inf")` sets no limit) and no prediction
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
    hits_so_far = true_positive.cumsum(0).double()
    # both in single precision, as in the evaluation that published numbers come from: equal to it to the last digit
    precision, recall = (hits_so_far / (ranks + 1)).float().double(), (hits_so_far / real.sum()).float().double()
    best_from_here = precision.flip(0).cummax(0).values.flip(0)
    return (best_from_here * recall.diff(prepend=recall.new_zeros(1))).sum()


def _attributes(properties: Tensor) -> Tensor:
    """The most probable shape, size, material and colour: (..., 19) -> (..., 4)."""
    parts = torch.split(properties[..., : _POSITION.start], list(ATTRIBUTES.values()), dim=-1)
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
        raise UserError("predictions and targets need at least one row per image; pad targets with rows of flag 0")
    if not distance > 0:
        raise UserError(f"distance is {distance}, but must be positive; float('inf') sets no limit")
