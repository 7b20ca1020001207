"""What a set predictor should say of each object: 19 numbers from a scene's properties, by protocol."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from slotnorm.config import Protocol
from slotnorm.errors import UserError

_ATTRIBUTES = {"shape": 3, "size": 2, "material": 2, "color": 8}
_COORDINATES = ("x", "y", "z")


def property_targets(properties: Mapping[str, Tensor], protocol: Protocol = "paper", at_least: int = 1) -> Tensor:
    """One-hot shape 3, size 2, material 2, colour 8, then x y z and the real-object flag: (B, O) each -> (B, O', 19).

    O' is O, or `at_least` if that is more: the rest is padding, which predictors learn to call empty. Positions are
    (c + 3) / 6 and padding is all zero; the authors scale z by its own range [0.35, 0.7], padding included.
    """
    if missing := [name for name in (*_ATTRIBUTES, *_COORDINATES) if name not in properties]:
        raise UserError(
            f"these scenes have no property {missing[0]!r}; a set predictor needs shape, size, material, color, x, y, z"
        )
    missing_rows = max(at_least - properties["shape"].shape[1], 0)
    properties = {name: pad(properties[name], (0, missing_rows)) for name in (*_ATTRIBUTES, *_COORDINATES)}
    real = (properties["shape"] > 0)[..., None]
    # code 0 is padding and becomes a row of zeros
    attributes = [one_hot(properties[name].long(), classes + 1)[..., 1:] for name, classes in _ATTRIBUTES.items()]
    x, y, z = (properties[name].float() for name in _COORDINATES)
    if protocol == "paper":
        position = torch.stack([(x + 3) / 6, (y + 3) / 6, (z + 3) / 6], dim=-1) * real
    else:
        position = torch.stack([(x + 3) / 6, (y + 3) / 6, (z - 0.35) / 0.35], dim=-1)
    return torch.cat([*attributes, position, real], dim=-1).float()
