"""What the models share: the result, the facade, position embeddings and initial values."""

import functools
import logging
import math
import warnings
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from slotnorm.config import Experiment
from slotnorm.data.batches import to_images
from slotnorm.errors import UserError, nearest
from slotnorm.initialization import refusal
from slotnorm.metrics import squared_error
from slotnorm.slot_attention import SlotAttention

_log = logging.getLogger(__name__)


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


class Encoder(nn.Module):
    """A batch of inputs -> tokens (B, N, channels)."""

    input_shape: tuple[int, ...]
    """Of one scene's input, as `Scenes` hold it."""
    num_tokens: int
    """N."""


class SlotModel(nn.Module):
    """A facade over `encoder`, `slot_attention` and what reads the slots.

    `model(inputs, num_slots=7)` is `model.decompose(model.encode(inputs), num_slots=7)`; a sweep over the number of
    slots encodes once and decomposes many times. A model says what it takes (`input`, `input_shape`, `num_tokens`) and
    what it is trained for (`predicts`, `loss`): training, evaluation and segmentation ask it, and know no kinds. How
    slots start is an argument `initialization` of every model, and `num_slots` their number in training where the
    start depends on it.
    """

    input: ClassVar[Literal["images", "features"]]
    """Which field of scenes it takes."""
    predicts: ClassVar[Literal["reconstruction", "properties"]]
    """What it is trained to give: its input again, with masks of its own; or the properties of objects."""
    encoder: Encoder
    slot_attention: SlotAttention
    experiment: Experiment | None = None
    """What the model was built for, where `build` made it."""
    rounded_from: str | None = None
    """The hash of its weights before they were rounded to half precision, where its file holds rounded ones."""
    trained: tuple[int, dict[str, Any]] | None = None
    """For how many steps, and what else its file says of it, where it was read from one."""

    @classmethod
    def from_pretrained(cls, source: str | Path) -> "SlotModel":
        """A trained model, in evaluation mode: a bundled name, a .safetensors file, or a hub id (extra `hub`)."""
        from slotnorm.models.pretrained import load_pretrained

        return load_pretrained(source)

    def push_to_hub(self, hub_id: str, private: bool = False) -> str:
        """Upload the weights and a model card to the Hugging Face hub (extra `hub`); returns the address."""
        from slotnorm.models.pretrained import push

        return push(self, hub_id, private)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one scene's input, as `Scenes` hold it: (size, size, 3), or (tokens, features)."""
        return self.encoder.input_shape

    @property
    def num_tokens(self) -> int:
        """N: the tokens of one scene."""
        return self.encoder.num_tokens

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of scenes that its loss needs."""
        return (self.input, "properties") if self.predicts == "properties" else (self.input,)

    @property
    def sources(self) -> tuple[str, ...]:
        """What it segments by: the masks of its decoder, where it has one, and the attention."""
        return ("masks", "attention") if self.predicts == "reconstruction" else ("attention",)

    def takes(self, num_slots: int) -> bool:
        """Whether it can be asked for so many slots: any number, unless how they start says otherwise."""
        return self.slot_attention.initialization.takes(num_slots)

    def require_slots(self, numbers: Iterable[int]) -> None:
        """Refuse numbers of slots that it cannot be asked for, in one sentence."""
        for number in numbers:
            if sentence := refusal(self.slot_attention.initialization, number):
                raise UserError(sentence)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.parameters()).device

    def prepare(self, stored: Tensor) -> Tensor:
        """What scenes store, images (B, H, W, 3) uint8 or features (B, N, F) float16, as the model takes it."""
        if self.input == "images":
            return to_images(stored, self.device)
        return stored.to(self.device, non_blocking=True).float()

    def targets(self, properties: Mapping[str, Tensor], at_least: int = 1) -> Tensor:
        """What predictions are compared with: properties (B, O) by name -> (B, O', outputs), O' at least `at_least`."""
        raise TypeError(f"model {type(self).__name__} predicts {self.predicts} and has no targets among properties")

    def loss(self, decomposition: Decomposition, inputs: Tensor, properties: Mapping[str, Tensor]) -> Tensor:
        """The mean loss of a batch, a scalar: here the squared error of the reconstruction.

        `inputs` are what was decomposed and `properties` its scenes', by name (B, O), empty where nobody needs them.
        """
        if decomposition.reconstruction is None:
            raise TypeError(f"model {type(self).__name__} reconstructs nothing and defines no loss of its own")
        return squared_error(decomposition.reconstruction, inputs).mean()

    def forward(self, inputs: Tensor, num_slots: int | None = None, **arguments: Any) -> Decomposition:
        """The decomposition of a batch; arguments as for `decompose`."""
        return self.decompose(self.encode(inputs), num_slots, **arguments)

    if TYPE_CHECKING:
        __call__ = forward  # that of nn.Module takes and returns Any

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
        final, attention = self.slot_attention(tokens, num_slots, iterations=iterations, slots=slots, noise=noise)
        return self.read(final, attention, reconstruct)

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
        with torch.device("cpu"):  # where shapes alone are made, computing them on "meta" would load a compiler
            num_features = POSITIONS[kind](1).shape[0]
        self.weight = nn.Parameter(torch.empty(dim, num_features))
        self.bias = nn.Parameter(torch.zeros(dim))
        if scale is None:
            nn.init.xavier_uniform_(self.weight)
        elif not self.weight.is_meta:
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


_EDGE = 1.01  # what rounding and the overshoot of a resize filter may give
_FAR = 5.0  # of values that should lie in [-1, 1]: beyond what any usual way to standardise images gives


def warn_of_range(images: Tensor) -> None:
    """Warn of images with values outside [-1, 1], as those of 0 to 255; only where looking costs nothing.

    Those a little outside, as of images that were standardised, are logged, and once.
    """
    if torch.compiler.is_compiling() or images.device.type != "cpu":
        return
    least, most = (float(value) for value in images.detach().aminmax())
    if max(-least, most) > _FAR:
        warnings.warn(
            f"images go from {least:g} to {most:g}, but the model was trained on [-1, 1]: scale them, as by "
            "images / 127.5 - 1 where they are bytes", stacklevel=2,
        )  # fmt: skip
    elif max(-least, most) > _EDGE:
        _mention_range()


@functools.cache
def _mention_range() -> None:
    """Once in a process."""
    _log.warning(
        "note: images have values outside [-1, 1], the range that models are trained on: scale them, as by "
        "2 * images - 1 where they lie in [0, 1]; this is said once"
    )
