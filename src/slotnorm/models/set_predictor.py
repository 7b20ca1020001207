"""The set predictor: the properties of every object in a scene, 19 numbers each, matched by the Hungarian method."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import huber_loss, one_hot, pad

from slotnorm.config import Protocol
from slotnorm.errors import UserError
from slotnorm.initialization import Initialization
from slotnorm.metrics.precision import ATTRIBUTES
from slotnorm.models.image_autoencoder import ImageEncoder
from slotnorm.models.parts import Decomposition, SlotModel, check_positive, draw_glorot, multilayer
from slotnorm.normalization import Normalization
from slotnorm.slot_attention import SlotAttention

_HEAD = 64  # the width of the head's hidden layer, whatever the slots' is
_COORDINATES = ("x", "y", "z")


class SetPredictor(SlotModel):
    """Images (B, 3, size, size) in [-1, 1] -> predictions (B, K, outputs) in (0, 1): the paper's property model.

    Its masks are the attention at the tokens' grid, (B, K, size / 4, size / 4); it reconstructs nothing.
    `protocol` also decides how positions are scaled in what it should predict: see `property_targets`.
    """

    input, predicts = "images", "properties"
    encoder: ImageEncoder

    def __init__(
        self,
        size: int = 128,
        channels: int = 64,
        dim: int = 64,
        outputs: int = 19,
        hidden: int = 128,
        normalization: str | Normalization = "weighted_sum",
        *,
        iterations: int = 3,
        kernel: int = 5,
        strides: Sequence[int] = (1, 2, 2, 1),
        positions: str = "ramps",
        position_scale: float | None = None,
        protocol: Protocol = "paper",
        initialization: str | Initialization = "gaussian",
        num_slots: int | None = None,
    ) -> None:
        super().__init__()
        check_positive(size=size, channels=channels, dim=dim, outputs=outputs, hidden=hidden)
        self.size, self.protocol = size, protocol
        self.encoder = ImageEncoder(size, channels, kernel, strides, positions, position_scale)
        self.slot_attention = SlotAttention(
            dim, normalization, channels, hidden, iterations, protocol, initialization=initialization,
            num_slots=num_slots,
        )  # fmt: skip
        self.head = multilayer(dim, _HEAD, outputs)
        draw_glorot(self.head)

    def targets(self, properties: Mapping[str, Tensor], at_least: int = 1) -> Tensor:
        return property_targets(properties, self.protocol, at_least)

    def loss(self, decomposition: Decomposition, inputs: Tensor, properties: Mapping[str, Tensor]) -> Tensor:
        """The matching loss; slots without an object learn to predict emptiness."""
        assert decomposition.predictions is not None  # of `read` above
        targets = self.targets(properties, at_least=decomposition.predictions.shape[1])
        return matching_loss(decomposition.predictions, targets.to(inputs.device))

    def read(self, slots: Tensor, attention: Tensor, reconstruct: bool = True) -> Decomposition:
        masks = attention.unflatten(2, (self.encoder.grid, self.encoder.grid))
        return Decomposition(slots, attention, masks, predictions=self.head(slots).sigmoid())


def matching_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    """The mean Huber cost (delta 1) of the best matching of predictions (B, K, P) to targets (B, O, P).

    min(K, O) pairs are matched in each image, such that their cost, the mean over the P outputs, is least; the loss is
    the mean over all pairs. Where predictions outnumber targets, those left over cost nothing: pad the targets with
    empty objects up to K, as the paper does, to have them predict emptiness.
    """
    if (
        predictions.dim() != 3
        or targets.dim() != 3
        or (predictions.shape[0], predictions.shape[2]) != (targets.shape[0], targets.shape[2])
        or 0 in predictions.shape
        or 0 in targets.shape
    ):
        raise UserError(
            f"predictions have shape {tuple(predictions.shape)} and targets {tuple(targets.shape)}; they must be "
            "(batch, slots, outputs) and (batch, objects, outputs), none of them empty"
        )
    predictions = predictions.to(torch.promote_types(predictions.dtype, torch.float32))  # half would round the costs
    targets = targets.to(predictions.dtype)
    shape = (predictions.shape[0], predictions.shape[1], *targets.shape[1:])
    costs = huber_loss(predictions[:, :, None].expand(shape), targets[:, None].expand(shape), reduction="none").mean(-1)
    slots, objects = _match(costs.detach())
    images = torch.arange(len(costs), device=costs.device)[:, None]
    return costs[images, slots, objects].mean()


@torch.library.custom_op("slotnorm::match", mutates_args=())
def _match(costs: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs of slots and objects whose costs (B, K, O) add up to the least, (B, min(K, O)) each.

    An operator of its own, so that a compiled graph is not broken by it.
    """
    from scipy.optimize import linear_sum_assignment

    # a cost that is not finite must reach the loss, where it is noticed, and not stop the matching
    table = costs.cpu().double().nan_to_num(nan=1e30, posinf=1e30, neginf=1e30).numpy()
    pairs = np.stack([linear_sum_assignment(image) for image in table], axis=1)
    slots, objects = torch.from_numpy(pairs).to(costs.device)
    return slots.clone(), objects.clone()


@_match.register_fake
def _(costs: Tensor) -> tuple[Tensor, Tensor]:
    pairs = costs.new_empty((len(costs), min(costs.shape[1:])), dtype=torch.int64)
    return pairs, torch.empty_like(pairs)


def property_targets(properties: Mapping[str, Tensor], protocol: Protocol = "paper", at_least: int = 1) -> Tensor:
    """One-hot shape 3, size 2, material 2, colour 8, then x y z and the real-object flag: (B, O) each -> (B, O', 19).

    O' is O, or `at_least` if that is more: the rest is padding, which predictors learn to call empty. Positions are
    (c + 3) / 6 and padding is all zero; the authors scale z by its own range [0.35, 0.7], padding included.
    """
    if missing := [name for name in (*ATTRIBUTES, *_COORDINATES) if name not in properties]:
        raise UserError(
            f"these scenes have no property {missing[0]!r}; a set predictor needs shape, size, material, color, x, y, z"
        )
    missing_rows = max(at_least - properties["shape"].shape[1], 0)
    properties = {name: pad(properties[name], (0, missing_rows)) for name in (*ATTRIBUTES, *_COORDINATES)}
    real = (properties["shape"] > 0)[..., None]
    # code 0 is padding and becomes a row of zeros
    attributes = [one_hot(properties[name].long(), classes + 1)[..., 1:] for name, classes in ATTRIBUTES.items()]
    x, y, z = (properties[name].float() for name in _COORDINATES)
    if protocol == "paper":
        position = torch.stack([(x + 3) / 6, (y + 3) / 6, (z + 3) / 6], dim=-1) * real
    else:
        position = torch.stack([(x + 3) / 6, (y + 3) / 6, (z - 0.35) / 0.35], dim=-1)
    return torch.cat([*attributes, position, real], dim=-1).float()
