"""The set predictor: the properties of every object in a scene, matched to the true ones by the Hungarian method."""

from collections.abc import Sequence

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import huber_loss

from slotnorm.errors import UserError
from slotnorm.models.image_autoencoder import ImageEncoder
from slotnorm.models.parts import Decomposition, SlotModel, check_positive, draw_glorot, multilayer
from slotnorm.normalization import Normalization
from slotnorm.slot_attention import SlotAttention

_HEAD = 64  # the width of the head's hidden layer, whatever the slots' is


class SetPredictor(SlotModel):
    """Images (B, 3, size, size) in [-1, 1] -> predictions (B, K, outputs) in (0, 1): the paper's property model.

    Its masks are the attention at the tokens' grid, (B, K, size / 4, size / 4); it reconstructs nothing.
    """

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
        protocol: str = "paper",
    ) -> None:
        super().__init__()
        check_positive(size=size, channels=channels, dim=dim, outputs=outputs, hidden=hidden)
        self.size = size
        self.encoder = ImageEncoder(size, channels, kernel, strides, positions, position_scale)
        self.slot_attention = SlotAttention(dim, normalization, channels, hidden, iterations, protocol)
        self.head = multilayer(dim, _HEAD, outputs)
        draw_glorot(self.head)
        self.grid = self.encoder.grid

    def read(self, slots: Tensor, attention: Tensor, reconstruct: bool = True) -> Decomposition:
        masks = attention.unflatten(2, (self.grid, self.grid))
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
    # a cost that is not finite must reach the loss, where it is noticed, and not stop the matching
    table = costs.detach().double().nan_to_num(nan=1e30, posinf=1e30, neginf=1e30).cpu().numpy()
    pairs = [linear_sum_assignment(image) for image in table]
    index = [(torch.as_tensor(slots), torch.as_tensor(objects)) for slots, objects in pairs]
    matched = torch.stack([costs[image, slots, objects] for image, (slots, objects) in enumerate(index)])
    return matched.mean()
