"""The layer: what goes in is checked, slots start, and iterations follow one another."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from slotnorm.initialization import Initialization, make_initialization, refusal
from slotnorm.normalization import Aggregate, Normalization, make_normalization, normalize
from slotnorm.slot_attention.iteration import Attending, Steps, Updating, without_autocast


class Iteration(NamedTuple):
    """What one iteration did, for diagnostics and theory."""

    slots: Tensor
    """(B, K, D): the slots it started from."""
    queries: Tensor
    """(B, K, D): q(LayerNorm(slots))."""
    attention: Tensor
    """(B, K, N): γ, which sums to one over the slots."""
    aggregate: Aggregate
    """The unnormalised update codes and the mass."""
    updates: Tensor
    """(B, K, D): the normalised update codes u."""


class SlotAttention(nn.Module):
    """Slot Attention with a chosen normalization of its update codes.

        attend = SlotAttention(dim=64)
        slots, attention = attend(tokens, num_slots=7)     # tokens (B, N, 64) -> (B, 7, 64), (B, 7, N)

    `dim` is the width D of slots, keys, queries and values; `dim_in` that of the tokens (None: the same); `hidden` that
    of the residual MLP. `initialization` is how slots start; `num_slots` is their number in training, which `learned`
    ones need. `protocol` chooses the initial spread of the slots (docs/fidelity.md).
    """

    slots_mu: nn.Parameter
    slots_log_sigma: nn.Parameter
    """(D,) each, where the initialization is gaussian."""

    def __init__(
        self,
        dim: int,
        normalization: str | Normalization = "weighted_sum",
        dim_in: int | None = None,
        hidden: int = 128,
        iterations: int = 3,
        protocol: str = "paper",
        *,
        initialization: str | Initialization = "gaussian",
        num_slots: int | None = None,
    ) -> None:
        """The layer, with its initial values drawn; the class says what the arguments are."""
        super().__init__()
        for name, number in (("dim", dim), ("dim_in", dim_in), ("hidden", hidden), ("iterations", iterations)):
            if number is not None and number < 1:
                raise ValueError(f"{name} is {number}; it must be at least 1")
        self.dim, self.dim_in, self.iterations = dim, dim if dim_in is None else dim_in, iterations
        self.norm_input = nn.LayerNorm(self.dim_in)
        self.norm_slots = nn.LayerNorm(dim)
        self.norm_mlp = nn.LayerNorm(dim)
        self.key = nn.Linear(self.dim_in, dim, bias=False)
        self.query = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(self.dim_in, dim, bias=False)
        self.gru = nn.GRUCell(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.initialization = make_initialization(initialization, dim, num_slots)
        for name, parameter in self.initialization.make_parameters().items():
            self.register_parameter(name, parameter)
        self.normalization = make_normalization(normalization, dim)
        self.initialize(protocol)

    def initialize(self, protocol: str = "paper") -> None:
        """Draw the initial values: Glorot for the maps, an orthogonal recurrent kernel, biases zero."""
        if protocol not in ("paper", "authors"):
            raise ValueError(f"protocol is {protocol!r}; it must be 'paper' or 'authors'")
        if self.query.weight.is_meta:  # shapes alone: there are no numbers to draw
            return
        for linear in (self.key, self.query, self.value, self.mlp[0], self.mlp[2]):
            nn.init.xavier_uniform_(linear.weight)  # type: ignore[arg-type]
        nn.init.xavier_uniform_(self.gru.weight_ih)
        nn.init.orthogonal_(self.gru.weight_hh)
        for bias in (self.gru.bias_ih, self.gru.bias_hh, self.mlp[0].bias, self.mlp[2].bias):
            nn.init.zeros_(bias)  # type: ignore[arg-type]
        self.initialization.draw(self, protocol)

    def forward(
        self,
        tokens: Tensor,
        num_slots: int | None = None,
        *,
        iterations: int | None = None,
        noise: Tensor | None = None,
        slots: Tensor | None = None,
        token_mask: Tensor | None = None,
        trace: list[Iteration] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Slots (B, K, D) and attention (B, K, N) of tokens (B, N, D_in).

        The initial slots are `slots` (B, K, D) when given, else those of `initialization`, the Gaussian's being mu +
        exp(log_sigma) noise with standard normal `noise` (B, K, D), drawn when it is not given. Tokens where
        `token_mask` (B, N) is False take no part. A list given as `trace` receives an `Iteration` for each one.
        Computed in float32 at least, returned in the layer's own dtype.
        """
        iterations = self.iterations if iterations is None else iterations
        num_slots = self._check(tokens, num_slots, iterations, noise, slots, token_mask)
        dtype = self.query.weight.dtype
        if dtype in (torch.float16, torch.bfloat16):  # sums over many tokens leave the range of half precision
            wide = {name: parameter.float() for name, parameter in self.named_parameters()}
            given = {"iterations": iterations, "noise": noise, "slots": slots, "token_mask": token_mask, "trace": trace}
            results = torch.func.functional_call(self, wide, (tokens.float(), num_slots), given)
            return results[0].to(dtype), results[1].to(dtype)
        with without_autocast(tokens):
            if slots is None:
                if noise is None:
                    noise = torch.randn(tokens.shape[0], num_slots, self.dim, device=tokens.device, dtype=dtype)
                slots = self.initialization.start(self, noise.to(dtype))
            return self._iterate(tokens.to(dtype), slots.to(dtype), iterations, token_mask, trace)

    if TYPE_CHECKING:
        __call__ = forward  # that of nn.Module takes and returns Any

    def trace(self, tokens: Tensor, num_slots: int | None = None, **arguments: Any) -> list[Iteration]:
        """What each iteration did; arguments as for the call."""
        steps: list[Iteration] = []
        self(tokens, num_slots, **arguments, trace=steps)
        return steps

    def _iterate(
        self, tokens: Tensor, slots: Tensor, iterations: int, token_mask: Tensor | None, trace: list[Iteration] | None
    ) -> tuple[Tensor, Tensor]:
        num_tokens: int | Tensor = tokens.shape[1]
        present = None
        if token_mask is not None:
            tokens = tokens.masked_fill(~token_mask[..., None], 0)  # padding may hold anything, NaN too
            num_tokens = token_mask.sum(1)[:, None, None].to(tokens.dtype)
            present = token_mask[:, None].to(tokens.dtype)
        norm = self.norm_input
        tokens = layer_norm(tokens, (self.dim_in,), norm.weight, norm.bias, norm.eps)
        steps = self._make_steps(tokens, present)

        attention, sums, mass = steps.attend(slots)
        total = sums.sum(1, keepdim=True)  # attention sums to one over slots, so that of every iteration
        carry = None
        for remaining in reversed(range(iterations)):
            aggregate = Aggregate(sums, mass, num_tokens, total)
            updates, carry = normalize(self.normalization, aggregate, carry)
            if trace is not None:
                trace.append(Iteration(slots, self.query(self.norm_slots(slots)), attention, aggregate, updates))
            if remaining:
                slots, (attention, sums, mass) = steps.advance(slots, updates)
        return steps.update(slots, updates), attention

    def _make_steps(self, tokens: Tensor, present: Tensor | None) -> Steps:
        norm, key = self.norm_slots, self.key.weight / math.sqrt(self.dim)
        attending = Attending(norm.weight, norm.bias, self.query.weight, key, self.value.weight)
        norm_mlp, gru, widen, narrow = self.norm_mlp, self.gru, self.mlp[0], self.mlp[2]
        updating = Updating(
            norm_mlp.weight, norm_mlp.bias, gru.weight_ih, gru.bias_ih, gru.weight_hh, gru.bias_hh,
            widen.weight, widen.bias, narrow.weight, narrow.bias,  # type: ignore[arg-type]
        )  # fmt: skip
        return Steps(tokens, present, attending, updating, (norm.eps, norm_mlp.eps))

    def _check(
        self, tokens: Tensor, num_slots: int | None, iterations: int,
        noise: Tensor | None, slots: Tensor | None, token_mask: Tensor | None,
    ) -> int:  # fmt: skip
        """Refuse what cannot be meant, each in one sentence; the number of slots."""
        if not isinstance(tokens, Tensor):
            raise TypeError(f"tokens are of the type {_type(tokens)}; give a tensor, as torch.as_tensor makes one")
        if isinstance(num_slots, bool | float | str):
            raise TypeError(f"num_slots is {num_slots!r}; it must be a whole number")
        if tokens.dim() != 3 or tokens.shape[2] != self.dim_in:
            raise ValueError(
                f"tokens have shape {_shape(tokens)}; it must be (batch, tokens, {self.dim_in}), or set dim_in"
            )
        if tokens.shape[1] < 1:
            raise ValueError(f"tokens have shape {_shape(tokens)}; there must be at least one token")
        for name, given in (("slots", slots), ("noise", noise)):
            if given is None:
                continue
            if given.dim() != 3 or given.shape[0] != tokens.shape[0] or given.shape[2] != self.dim:
                raise ValueError(
                    f"the shape of {name} is {_shape(given)}; it must be ({tokens.shape[0]}, slots, {self.dim})"
                )
            if num_slots is None:
                num_slots = given.shape[1]
            if given.shape[1] != num_slots:
                raise ValueError(
                    f"num_slots is {num_slots}, but the shape of {name} says {given.shape[1]}; leave num_slots out"
                )
        if num_slots is None:
            raise ValueError(
                "the number of slots is missing; give num_slots, noise or slots with every call (the layer's own "
                "num_slots is for learned initial slots alone)"
            )
        if num_slots < 1:
            raise ValueError(f"num_slots is {num_slots}; there must be at least one slot")
        if slots is None and (sentence := refusal(self.initialization, num_slots)):
            raise ValueError(sentence)
        if iterations < 1:
            raise ValueError(f"iterations is {iterations}; there must be at least one")
        if token_mask is not None:
            if token_mask.dtype != torch.bool or token_mask.shape != tokens.shape[:2]:
                mask = f"{_shape(token_mask)} {token_mask.dtype}"
                raise ValueError(f"token_mask is {mask}; it must be torch.bool of shape {_shape(tokens)[:2]}")
            if not torch.compiler.is_compiling() and not (seen := token_mask.any(1)).all():
                image = int(seen.int().argmin())
                raise ValueError(
                    f"token_mask hides every token of image {image}; leave that image out or show one token"
                )
        return num_slots


def _type(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
