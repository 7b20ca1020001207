"""The models written down plainly, as the oracles of tests and the peers of benchmarks.

They have the state-dict names of `slotnorm.models`, so that weights are shared, and nothing of their ways: keys and
values are formed, all slots are decoded at once, every layer sees every slot and token.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from oracle import PlainSlotAttention
from slotnorm import SlotAttention


class _Position(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(channels, 4)), nn.Parameter(torch.zeros(channels))

    def forward(self, grids: Tensor) -> Tensor:
        height, width = grids.shape[-2:]
        rows, columns = torch.meshgrid(
            torch.linspace(0, 1, height, dtype=grids.dtype),
            torch.linspace(0, 1, width, dtype=grids.dtype),
            indexing="ij",
        )
        ramps = torch.stack([rows, columns, 1 - rows, 1 - columns], dim=-1)
        return grids + nn.functional.linear(ramps, self.weight, self.bias).permute(2, 0, 1)


class PlainImageEncoder(nn.Module):
    def __init__(self, channels: int, kernel: int, strides: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, stride in enumerate(strides):
            layers += [nn.Conv2d(channels if number else 3, channels, kernel, stride, kernel // 2), nn.ReLU()]
        self.cnn, self.position = nn.Sequential(*layers), _Position(channels)
        self.norm = nn.LayerNorm(channels, eps=1e-3)
        self.mlp = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels))

    def forward(self, images: Tensor) -> Tensor:
        return self.mlp(self.norm(self.position(self.cnn(images)).flatten(2).transpose(1, 2)))


class PlainBroadcastDecoder(nn.Module):
    def __init__(self, size: int, channels: int, dim: int, kernel: int, strides: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, stride in enumerate(strides):
            width = channels if number else dim
            layers += [nn.ConvTranspose2d(width, channels, kernel, stride, kernel // 2, stride - 1), nn.ReLU()]
        self.cnn = nn.Sequential(*layers, nn.ConvTranspose2d(channels, 4, 3, 1, 1))
        self.position, self.start = _Position(dim), size // math.prod(strides)

    def forward(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        grids = slots.flatten(0, 1)[:, :, None, None].expand(-1, -1, self.start, self.start)
        painted = self.cnn(self.position(grids)).unflatten(0, slots.shape[:2])
        colours, alpha = painted.split([3, 1], dim=2)
        masks = alpha.softmax(dim=1)
        return masks[:, :, 0], (masks * colours).sum(dim=1)


class PlainDenseDecoder(nn.Module):
    def __init__(self, size: int, dim: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.size, self.mlp = size, _multilayer(dim, *hidden, 4 * size**2)

    def forward(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        painted = self.mlp(slots).unflatten(2, (4, self.size, self.size))
        colours, alpha = painted.split([3, 1], dim=2)
        masks = alpha.softmax(dim=1)
        return masks[:, :, 0], (masks * colours).sum(dim=1)


class PlainFeatureEncoder(nn.Module):
    def __init__(self, features: int, dim: int) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(features), _multilayer(features, features, dim)

    def forward(self, features: Tensor) -> Tensor:
        return self.mlp(self.norm(features))


class PlainFeatureDecoder(nn.Module):
    def __init__(self, tokens: int, features: int, dim: int, width: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(tokens, dim))
        self.mlp = _multilayer(dim, width, width, width, 1 + features)

    def forward(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        decoded = self.mlp(slots[:, :, None] + self.position)
        alpha, features = decoded.split([1, decoded.shape[-1] - 1], dim=-1)
        masks = alpha.softmax(dim=1)
        return masks[..., 0], (masks * features).sum(dim=1)


def _multilayer(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number in range(len(widths) - 1):
        layers += [nn.Linear(widths[number], widths[number + 1]), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class PlainAutoencoder(nn.Module):
    """Images or features with initial slots -> slots, attention, masks, reconstruction."""

    def __init__(self, encoder: nn.Module, slot_attention: SlotAttention, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.slot_attention, self.decoder = encoder, slot_attention, decoder

    def forward(self, inputs: Tensor, slots: Tensor, iterations: int = 3) -> tuple[Tensor, ...]:
        slots, attention = PlainSlotAttention(self.slot_attention)(self.encoder(inputs), slots, iterations)
        return slots, attention, *self.decoder(slots)


def plain_images(
    size: int, channels: int, dim: int, hidden: int, normalization: str = "weighted_sum", *, kernel: int = 5,
    strides: Sequence[int] = (1, 1, 1, 1), decoder: str = "broadcast", decoder_channels: int | None = None,
    decoder_kernel: int = 5, decoder_strides: Sequence[int] = (2, 2, 2, 2, 1),
    decoder_hidden: Sequence[int] = (256, 256),
) -> PlainAutoencoder:  # fmt: skip
    """The peer of an ImageAutoencoder with ramps, made by the same arguments."""
    plain_decoder: nn.Module = PlainDenseDecoder(size, dim, decoder_hidden)
    if decoder == "broadcast":
        plain_decoder = PlainBroadcastDecoder(size, decoder_channels or channels, dim, decoder_kernel, decoder_strides)
    attention = SlotAttention(dim, normalization, channels, hidden)
    return PlainAutoencoder(PlainImageEncoder(channels, kernel, strides), attention, plain_decoder)


def plain_features(
    tokens: int, features: int, dim: int, decoder: int, hidden: int, normalization: str = "weighted_sum"
) -> PlainAutoencoder:
    """The peer of a FeatureAutoencoder, made by the same arguments."""
    attention = SlotAttention(dim, normalization, dim, hidden)
    plain_decoder = PlainFeatureDecoder(tokens, features, dim, decoder)
    return PlainAutoencoder(PlainFeatureEncoder(features, dim), attention, plain_decoder)
