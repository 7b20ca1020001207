"""The feature autoencoder: DINOSAUR's MLPs around Slot Attention, on the patch features of a frozen ViT.

The decoder's MLP is evaluated in a form that needs a third fewer operations and is equal in exact arithmetic: its first
layer is W·slot + W·position, K + N rows instead of K·N; and since masks sum to one, Σ_k m_k (W h_k + b) is
W (Σ_k m_k h_k) + b, so that the last layer sees the N mixed tokens. Only row 0 of it, alpha, is made for every slot.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from slotnorm.initialization import Initialization
from slotnorm.models.feature_mixing import mix_features
from slotnorm.models.mixing import SlotDecoding, mix, needs_graph
from slotnorm.models.parts import Decomposition, Encoder, SlotModel, check_input, check_positive, multilayer
from slotnorm.normalization import Normalization
from slotnorm.slot_attention import SlotAttention


class FeatureAutoencoder(SlotModel):
    """Features (B, tokens, features) -> masks (B, K, tokens) and reconstruction: the paper's MOVi model.

    The defaults are the paper's tables: 28x28 tokens of a ViT-B/8, `decoder` the width of the decoder's hidden layers.
    `recompute` trades time for memory that does not grow with K in training; it may be set at any time.
    """

    input, predicts = "features", "reconstruction"
    encoder: "FeatureEncoder"

    def __init__(
        self,
        tokens: int = 784,
        features: int = 768,
        dim: int = 128,
        decoder: int = 1024,
        hidden: int = 512,
        normalization: str | Normalization = "weighted_sum",
        *,
        iterations: int = 3,
        protocol: str = "paper",
        initialization: str | Initialization = "gaussian",
        num_slots: int | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        check_positive(tokens=tokens, features=features, dim=dim, decoder=decoder, hidden=hidden)
        self.recompute = recompute
        self.encoder = FeatureEncoder(tokens, features, dim)
        self.slot_attention = SlotAttention(
            dim, normalization, dim, hidden, iterations, protocol, initialization=initialization,
            num_slots=num_slots,
        )  # fmt: skip
        self.decoder = FeatureDecoder(tokens, features, dim, decoder)

    def read(self, slots: Tensor, attention: Tensor, reconstruct: bool = True) -> Decomposition:
        masks, reconstruction = self.decoder(slots, reconstruct, self.recompute)
        return Decomposition(slots, attention, masks, reconstruction)


class FeatureEncoder(Encoder):
    """Features (B, tokens, features) -> tokens (B, tokens, dim), each by itself."""

    def __init__(self, tokens: int, features: int, dim: int) -> None:
        super().__init__()
        self.input_shape, self.num_tokens = (tokens, features), tokens
        self.norm = nn.LayerNorm(features)
        self.mlp = multilayer(features, features, dim)

    def forward(self, features: Tensor) -> Tensor:
        check_input(
            features, self.input_shape, "features",
            "build the model with their number of tokens and width, or extract them with the ViT it was made for",
        )  # fmt: skip
        return self.mlp(self.norm(features.to(self.norm.weight.dtype)))  # type: ignore[no-any-return]


class FeatureDecoder(nn.Module):
    """Slots (B, K, dim) -> masks (B, K, tokens), reconstruction (B, tokens, features)."""

    def __init__(self, tokens: int, features: int, dim: int, width: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.empty(tokens, dim))
        if not self.position.is_meta:
            nn.init.normal_(self.position)
        self.mlp = multilayer(dim, width, width, width, 1 + features)

    def forward(self, slots: Tensor, reconstruct: bool = True, recompute: bool = False) -> tuple[Tensor, Tensor | None]:
        first, second, third, last = (layer for layer in self.mlp if isinstance(layer, nn.Linear))
        from_slots = first(slots)
        from_positions = linear(self.position, first.weight)
        weights = (second.weight, second.bias, third.weight, third.bias, last.weight[:1], last.bias[:1])
        decoding = SlotDecoding(
            decode_features,
            (from_positions, *(weight.to(from_slots.dtype) for weight in weights)),  # half precision under autocast
            channel_axis=-1,
            row_bytes=from_positions.numel() * from_slots.element_size(),
        )
        mixed: Tensor | None
        keeps = needs_graph(from_slots, *decoding.weights) and not recompute
        if keeps and reconstruct and not torch.compiler.is_compiling():
            masks, mixed = mix_features(decoding, from_slots)
        else:
            masks, mixed = mix(decoding, from_slots, reconstruct=reconstruct, recompute=recompute)
        reconstruction = None if mixed is None else linear(mixed, last.weight[1:], last.bias[1:])
        return masks.to(slots.dtype), reconstruction


def decode_features(rows: Tensor, weights: Sequence[Tensor], values: bool) -> tuple[Tensor, Tensor | None]:
    """Rows (R, width), the first layer of slots -> mask logits (R, N), third layer (R, N, width)."""
    from_positions, weight2, bias2, weight3, bias3, alpha_weight, alpha_bias = weights
    hidden = (rows[:, None] + from_positions).relu_()
    hidden = linear(hidden, weight2, bias2).relu_()
    hidden = linear(hidden, weight3, bias3).relu_()
    logits = linear(hidden, alpha_weight, alpha_bias)[..., 0]
    return logits, hidden if values else None
