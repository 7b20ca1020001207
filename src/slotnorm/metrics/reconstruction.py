"""Scores of reconstructions."""

import torch
from torch import Tensor

from slotnorm.errors import UserError


def squared_error(reconstruction: Tensor, target: Tensor) -> Tensor:
    """The l2 loss of each image, its mean squared error over places and channels: (B, ...) twice -> (B,)."""
    if reconstruction.shape != target.shape:
        raise UserError(
            f"the reconstruction has shape {tuple(reconstruction.shape)} and the target {tuple(target.shape)}; "
            "they must be equal"
        )
    precise = torch.promote_types(torch.promote_types(reconstruction.dtype, target.dtype), torch.float32)
    return (reconstruction.to(precise) - target.to(precise)).square_().flatten(1).mean(dim=1)
