"""Layers for the theory to be measured on: random, trained on the spot, or taken from saved weights."""

import math

import torch
from torch import Tensor, nn

from slotnorm.errors import UserError
from slotnorm.runtime.randomness import generator
from slotnorm.slot_attention import SlotAttention

DIM, IMAGES, TOKENS = 16, 4, 48
_PREFIX = "slot_attention."


def random_layer(dim: int, seed: int, dim_in: int | None = None) -> SlotAttention:
    """A layer in float64 whose every parameter is drawn, LayerNorm's too."""
    layer = SlotAttention(dim, dim_in=dim_in, hidden=2 * dim).double().eval()
    draws = generator(seed, "theory layer")
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            values = torch.from_numpy(draws.standard_normal(tuple(parameter.shape)))
            is_scale = name.startswith("norm_") and name.endswith("weight")
            parameter.copy_(1 + 0.3 * values if is_scale else values / math.sqrt(parameter.shape[-1]))
    return layer


def random_tokens(dim: int, seed: int) -> Tensor:
    """(B, N, dim) tokens with an offset and unequal scales, in float64."""
    draws = generator(seed, "theory tokens")
    tokens = draws.standard_normal((IMAGES, TOKENS, dim)) * draws.uniform(0.5, 2.0, dim) + draws.standard_normal(dim)
    return torch.from_numpy(tokens)


def train_layer(seed: int = 0, steps: int = 80) -> tuple[SlotAttention, list[float]]:
    """A layer trained for a second or two to explain clustered tokens by its slots, and the loss of each step."""
    draws = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer, decoder = SlotAttention(DIM, hidden=32), nn.Linear(DIM, DIM)
    optimizer = torch.optim.Adam([*layer.parameters(), *decoder.parameters()], lr=1e-2)
    losses = []
    for _ in range(steps):
        centres = 2 * torch.randn(8, 4, DIM, generator=draws)
        members = torch.randint(0, 4, (8, TOKENS, 1), generator=draws).expand(-1, -1, DIM)
        tokens = centres.gather(1, members) + 0.3 * torch.randn(8, TOKENS, DIM, generator=draws)
        slots, attention = layer(tokens, noise=torch.randn(8, 6, DIM, generator=draws))
        loss = (attention.mT @ decoder(slots) - tokens).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return layer.eval(), losses


def layer_from_state(state: dict[str, Tensor]) -> SlotAttention:
    """The Slot Attention layer in a state dict, its own or that of a model with a `slot_attention`.

    The parameters of its normalization are left out: the theory puts every normalization in.
    """
    inside = {name.removeprefix(_PREFIX): tensor for name, tensor in state.items() if name.startswith(_PREFIX)}
    wanted = {name: tensor for name, tensor in (inside or state).items() if not name.startswith("normalization.")}
    for name in ("slots_mu", "key.weight", "mlp.0.weight"):
        if name not in wanted:
            raise UserError(f"these weights have no Slot Attention ({name} is missing); give those of a slotnorm model")
    dim, dim_in = wanted["key.weight"].shape
    layer = SlotAttention(dim, "unnormalized", dim_in=dim_in, hidden=len(wanted["mlp.0.weight"]))
    layer.to(wanted["slots_mu"].dtype)
    try:
        layer.load_state_dict(wanted)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"these weights do not fit one Slot Attention layer: {reason}") from error
    return layer.eval()
