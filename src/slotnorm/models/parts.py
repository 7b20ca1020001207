"""What the models share: the result, the facade, position embeddings and initial values."""

import math
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from slotnorm.config import Experiment
from slotnorm.errors import UserError, nearest
from slotnorm.slot_attention import SlotAttention


class Decomposition(NamedTuple):
    """What a model makes of a batch of B inputs with K slots."""

    slots: Tensor
    """(B, K, D)."""
    attention: Tensor
    """(B, K, N): Slot Attention's, which sums to one over the slots."""
    masks: Tensor
    """(B, K, H, W), or (B, K, N) for features: who explains what; sums to one over the slots."""
    reconstruction: Tensor | None = None
    """As the input, where the model has a decoder and was asked for it."""
    predictions: Tensor | None = None
    """(B, K, outputs), where the model predicts properties."""


class SlotModel(nn.Module):
    """A facade over `encoder`, `slot_attention` and what reads the slots.

    `model(inputs, num_slots=7)` is `model.decompose(model.encode(inputs), num_slots=7)`; a sweep over the number of
    slots encodes once and decomposes many times.
    """

    encoder: nn.Module
    slot_attention: SlotAttention
    experiment: Experiment | None = None
    """What the model was built for, where `build` made it."""

    def forward(self, inputs: Tensor, num_slots: int | None = None, **arguments: Any) -> Decomposition:
        """The decomposition of a batch; arguments as for `decompose`."""
        return self.decompose(self.encode(inputs), num_slots, **arguments)

    def encode(self, inputs: Tensor) -> Tensor:
        """The tokens (B, N, channels) of a batch: all that does not depend on the slots."""
        return self.encoder(inputs)  # type: ignore[no-any-return]

    def decompose(
        self,
        tokens: Tensor,
        num_slots: int | None = None,
        *,
        iterations: int | None = None,
        slots: Tensor | None = None,
        noise: Tensor | None = None,
        reconstruct: bool = True,
    ) -> Decomposition:
        """The decomposition of encoded tokens into K slots.

        K is `num_slots`, or what the initial `slots` (B, K, D) or the standard normal `noise` (B, K, D) say. Without
        `reconstruct` the masks are made alone, which is cheaper.
        """
        found, attention = self.slot_attention(tokens, num_slots, iterations=iterations, slots=slots, noise=noise)
        return self.read(found, attention, reconstruct)

    def read(self, slots: Tensor, attention: Tensor, reconstruct: bool) -> Decomposition:
        """What the slots (B, K, D) say, with the attention (B, K, N) that made them."""
        raise TypeError(f"model {type(self).__name__} defines no read(slots, attention, reconstruct)")


class PositionEmbedding(nn.Module):
    """An affine map of every grid point's position to channels: () -> (dim, size, size).

    `kind` "ramps" gives a point its row, its column and their reverses, from 0 to 1; "fourier" its row and column with
    sines and cosines of them, each standardised over the grid. With `scale` the weights are drawn such that the
    embedding of standardised positions has this standard deviation; without, as all others.
    """

    def __init__(self, size: int, dim: int, kind: str = "ramps", scale: float | None = None) -> None:
        super().__init__()
        if kind not in POSITIONS:
            raise UserError(f"there are no positions {kind!r}; {nearest(kind, POSITIONS)}")
        if scale is not None and not 0 <= scale < math.inf:
            raise UserError(f"position_scale is {scale}; it must be zero or positive and finite, or None for Glorot's")
        self.size, self.kind = size, kind
        self._points: Tensor | None = None
        num_features = POSITIONS[kind](size).shape[0]
        self.weight = nn.Parameter(torch.empty(dim, num_features))
        self.bias = nn.Parameter(torch.zeros(dim))
        if scale is None:
            nn.init.xavier_uniform_(self.weight)
        else:
            nn.init.normal_(self.weight, std=scale / math.sqrt(num_features))

    def forward(self) -> Tensor:
        points = self._find_points().flatten(1)
        return torch.addmm(self.bias[:, None], self.weight, points).view(-1, self.size, self.size)

    def _find_points(self) -> Tensor:
        """The grid's position features, kept in the weights' type; made in float64: a cast buffer would lose bits."""
        points = self._points
        if torch.compiler.is_compiling():
            return POSITIONS[self.kind](self.size).to(self.weight)
        if points is None or (points.dtype, points.device) != (self.weight.dtype, self.weight.device):
            with torch.inference_mode(False):  # training may come after
                self._points = points = POSITIONS[self.kind](self.size).to(self.weight)
        return points

    def extra_repr(self) -> str:
        return f"size={self.size}, kind={self.kind!r}, features={self.weight.shape[1]}, dim={self.weight.shape[0]}"


def _ramps(size: int) -> Tensor:
    """(4, size, size) float64: rows 0..1, columns 0..1, and both reversed."""
    rows, columns = _rows_and_columns(size)
    return torch.stack([rows, columns, 1 - rows, 1 - columns])


_FREQUENCIES = (1, 2, 4, 8)  # half periods over the image; a grid of 16 still resolves the last


def _fourier(size: int) -> Tensor:
    """(18, size, size) float64: rows, columns, and four frequencies of each, all of mean 0 and variance 1."""
    axes = _rows_and_columns(size)
    waves = [
        wave(math.pi * frequency * axis)
        for frequency in _FREQUENCIES
        for axis in axes
        for wave in (torch.sin, torch.cos)
    ]
    points = torch.stack([*axes, *waves])
    spread, mean = torch.std_mean(points, dim=(1, 2), correction=0, keepdim=True)
    return (points - mean) / spread.clamp(min=1e-6)  # sin(8 pi x) vanishes on a coarse grid


def _rows_and_columns(size: int) -> tuple[Tensor, Tensor]:
    ramp = torch.linspace(0, 1, size, dtype=torch.float64)
    return ramp[:, None].expand(size, size), ramp.expand(size, size)


POSITIONS = {"ramps": _ramps, "fourier": _fourier}


def draw_glorot(module: nn.Module) -> None:
    """Glorot's uniform weights and zero biases for every convolution and linear map inside, as the paper's images."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def multilayer(*widths: int) -> nn.Sequential:
    """Linear maps between the widths, with ReLU between them; names 0, 2, 4, ..."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def check_positive(**numbers: int) -> None:
    """Refuse a width or size below one, by its name."""
    for name, number in numbers.items():
        if number < 1:
            raise UserError(f"{name} is {number}; it must be at least 1")


def check_input(inputs: Tensor, shape: tuple[int, ...], kind: str, way_out: str) -> None:
    """Refuse inputs that are not floating point of (batch, *shape)."""
    if inputs.dim() != len(shape) + 1 or tuple(inputs.shape[1:]) != shape or inputs.shape[0] < 1:
        wanted = ", ".join(map(str, shape))
        raise UserError(f"{kind} have shape {tuple(inputs.shape)}; this model takes (batch, {wanted}): {way_out}")
    if not inputs.is_floating_point():
        raise UserError(f"{kind} are {inputs.dtype}; this model takes floating point: {way_out}")
