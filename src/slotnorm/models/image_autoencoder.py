"""The image autoencoder: a CNN encoder, Slot Attention, and a decoder that paints each slot with its own alpha mask."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from slotnorm.errors import UserError, nearest
from slotnorm.initialization import Initialization
from slotnorm.models.convolution import Convolution, TransposedConvolution, lay_out, reach_of_taps, spread
from slotnorm.models.mixing import SlotDecoding, join, mix, rows_at_once, split
from slotnorm.models.parts import (
    Decomposition,
    Encoder,
    PositionEmbedding,
    SlotModel,
    check_input,
    check_positive,
    draw_glorot,
    multilayer,
    warn_of_range,
)
from slotnorm.normalization import Normalization
from slotnorm.slot_attention import SlotAttention

_ALPHA = 3  # the decoders' output channels are red, green, blue and the mask's logit


class ImageAutoencoder(SlotModel):
    """Images (B, 3, size, size) in [-1, 1] -> masks (B, K, size, size) and reconstruction: the paper's CLEVR model.

    The defaults are the paper's tables. The same family is made smaller by `size`, `channels`, `dim`, and by

    - `kernel`, `strides`: the encoder's convolutions, one for each stride; tokens are the last one's grid points;
    - `positions` "ramps" or "fourier" with `position_scale`: see `PositionEmbedding`;
    - `decoder` "broadcast": a slot spread over a grid of size / (product of `decoder_strides`), a transposed
      convolution of `decoder_channels` (None: `channels`) for each stride, and one of 3x3 to colour and mask;
      "dense": linear maps of widths `decoder_hidden` to all pixels, for small images.

    `recompute` trades time for memory that does not grow with K in training; it may be set at any time.
    """

    input, predicts = "images", "reconstruction"
    encoder: "ImageEncoder"

    def __init__(
        self,
        size: int = 128,
        channels: int = 64,
        dim: int = 64,
        hidden: int = 128,
        normalization: str | Normalization = "weighted_sum",
        *,
        iterations: int = 3,
        kernel: int = 5,
        strides: Sequence[int] = (1, 1, 1, 1),
        positions: str = "ramps",
        position_scale: float | None = None,
        decoder: str = "broadcast",
        decoder_channels: int | None = None,
        decoder_kernel: int = 5,
        decoder_strides: Sequence[int] = (2, 2, 2, 2, 1),
        decoder_hidden: Sequence[int] = (256, 256),
        protocol: str = "paper",
        initialization: str | Initialization = "gaussian",
        num_slots: int | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        check_positive(size=size, channels=channels, dim=dim, hidden=hidden)
        self.size, self.recompute = size, recompute
        self.encoder = ImageEncoder(size, channels, kernel, strides, positions, position_scale)
        self.slot_attention = SlotAttention(
            dim, normalization, channels, hidden, iterations, protocol, initialization=initialization,
            num_slots=num_slots,
        )  # fmt: skip
        self.decoder: BroadcastDecoder | DenseDecoder
        if decoder == "broadcast":
            decoder_channels = channels if decoder_channels is None else decoder_channels
            self.decoder = BroadcastDecoder(
                size, decoder_channels, dim, decoder_kernel, decoder_strides, positions, position_scale
            )
        elif decoder == "dense":
            self.decoder = DenseDecoder(size, dim, decoder_hidden)
        else:
            raise UserError(f"there is no decoder {decoder!r}; {nearest(decoder, ('broadcast', 'dense'))}")

    def read(self, slots: Tensor, attention: Tensor, reconstruct: bool = True) -> Decomposition:
        masks, reconstruction = mix(self.decoder.decoding(), slots, reconstruct=reconstruct, recompute=self.recompute)
        return Decomposition(slots, attention, masks, reconstruction)


class ImageEncoder(Encoder):
    """Images (B, 3, size, size) -> tokens (B, grid * grid, channels) in row-major order."""

    def __init__(
        self,
        size: int,
        channels: int,
        kernel: int = 5,
        strides: Sequence[int] = (1, 1, 1, 1),
        positions: str = "ramps",
        position_scale: float | None = None,
    ) -> None:
        super().__init__()
        _check_layers("kernel", kernel, "strides", strides)
        self.size, self.grid = size, size
        layers: list[nn.Module] = []
        for number, stride in enumerate(strides):
            layers += [Convolution(channels if number else 3, channels, kernel, stride), nn.ReLU(inplace=True)]
            self.grid = math.ceil(self.grid / stride)
        self.input_shape, self.num_tokens = (size, size, 3), self.grid**2
        self.cnn = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(channels, eps=1e-3)
        self.mlp = multilayer(channels, channels, channels)
        draw_glorot(self)
        self.position = PositionEmbedding(self.grid, channels, positions, position_scale)

    def forward(self, images: Tensor) -> Tensor:
        check_input(
            images, (3, self.size, self.size), "images",
            f"convert them to floats in [-1, 1] of {self.size}x{self.size}, or build the model with their size",
        )  # fmt: skip
        if not self.training:
            warn_of_range(images)
        images = images.to(self.norm.weight.dtype)
        at_once = rows_at_once(self.norm.weight.numel() * self.size**2 * images.element_size(), images.device)
        grids = join([self.cnn(rows) for rows in split(images, at_once)])
        tokens = (grids + self.position()).flatten(2).mT
        return self.mlp(self.norm(tokens))  # type: ignore[no-any-return]


class BroadcastDecoder(nn.Module):
    """A slot, spread over a small grid with positions added, grows to size x size by transposed convolutions."""

    def __init__(
        self,
        size: int,
        channels: int,
        dim: int,
        kernel: int = 5,
        strides: Sequence[int] = (2, 2, 2, 2, 1),
        positions: str = "ramps",
        position_scale: float | None = None,
    ) -> None:
        super().__init__()
        _check_layers("decoder_kernel", kernel, "decoder_strides", strides)
        check_positive(decoder_channels=channels)
        growth = math.prod(strides)
        if size % growth:
            raise UserError(
                f"size is {size}, which decoder_strides {tuple(strides)} cannot reach; it must be a multiple of their "
                f"product {growth}: give other strides"
            )
        layers: list[nn.Module] = []
        for number, stride in enumerate(strides):
            layers += [
                TransposedConvolution(channels if number else dim, channels, kernel, stride),
                nn.ReLU(inplace=True),
            ]
        self.cnn = nn.Sequential(*layers, TransposedConvolution(channels, 4, 3))
        draw_glorot(self)
        self.position = PositionEmbedding(size // growth, dim, positions, position_scale)
        self.reach: Tensor
        self.register_buffer("reach", reach_of_taps(size // growth, kernel, strides[0]), persistent=False)
        self.widest = channels * size**2

    def decoding(self) -> SlotDecoding:
        """How to decode rows of slots, for `mix`. The first layer is linear: positions go through it once for all."""
        first, *others = self.cnn.children()
        later = nn.Sequential(*others)
        start = first(self.position()[None])
        names = [name for name, _ in later.named_parameters()]

        def decode(rows: Tensor, weights: Sequence[Tensor], values: bool) -> tuple[Tensor, Tensor | None]:
            start, weight, *weights = weights
            if not values:  # the last layer's colours are not needed
                weights[-2:] = weights[-2][:, _ALPHA:], weights[-1][_ALPHA:]
            grown = lay_out(spread(rows, weight, self.reach) + start, later)
            painted = torch.func.functional_call(later, dict(zip(names, weights, strict=True)), (grown,))
            painted = painted.contiguous()  # each channel is mixed by itself
            return painted[:, -1], painted[:, :_ALPHA] if values else None

        weights = (start, next(first.parameters()), *later.parameters())
        return SlotDecoding(decode, weights, channel_axis=1, row_bytes=self.widest * start.element_size())


class DenseDecoder(nn.Module):
    """Linear maps from a slot to all pixels at once: for small images, where it trains fastest."""

    def __init__(self, size: int, dim: int, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__()
        check_positive(**{f"decoder_hidden[{number}]": width for number, width in enumerate(hidden)})
        self.size = size
        self.mlp = multilayer(dim, *hidden, 4 * size**2)
        draw_glorot(self)

    def decoding(self) -> SlotDecoding:
        """How to decode rows of slots, for `mix`."""
        names = [name for name, _ in self.mlp.named_parameters()]
        pixels = self.size**2

        def decode(rows: Tensor, weights: Sequence[Tensor], values: bool) -> tuple[Tensor, Tensor | None]:
            if not values:
                weights = (*weights[:-2], weights[-2][_ALPHA * pixels :], weights[-1][_ALPHA * pixels :])
            flat = torch.func.functional_call(self.mlp, dict(zip(names, weights, strict=True)), (rows,))
            painted = flat.unflatten(1, (-1, self.size, self.size))
            return painted[:, -1], painted[:, :_ALPHA] if values else None

        weights = tuple(self.mlp.parameters())
        return SlotDecoding(decode, weights, channel_axis=1, row_bytes=4 * pixels * weights[0].element_size())


def _check_layers(kernel_name: str, kernel: int, strides_name: str, strides: Sequence[int]) -> None:
    if kernel < 1 or kernel % 2 == 0:
        raise UserError(f"{kernel_name} is {kernel}; it must be odd, as 3 or 5, so that it has a centre")
    if not strides or any(stride not in (1, 2) for stride in strides):
        raise UserError(f"{strides_name} are {tuple(strides)}; there must be at least one, each 1 or 2")
