"""Slot Attention's iteration beside an iteration of expectation maximization on the sphere (Sec. 3.1).

The keys lie in an affine space a + V. So the attention splits into a weight for each slot, whatever the token, and a
density of the token's key given the slot: with q_k the query and τ = √D the temperature,

    γ_nk ∝ exp(aᵀq_k / τ) exp(p_V(k_n)ᵀ p_V(q_k) / τ)     beside     γ_nk ∝ π_k exp(κ_k θ_kᵀ x_n)
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from slotnorm.errors import UserError
from slotnorm.slot_attention import SlotAttention
from slotnorm.theory.mass import affine_hull


class ExpectationStep(NamedTuple):
    """The attention of one iteration in the words of a mixture."""

    weights: Tensor
    """(B, K): the implied mixture weights π_k, which sum to one over slots."""
    directions: Tensor
    """(B, K, D): θ_k, unit vectors in V."""
    concentrations: Tensor
    """(B, K): κ_k = |p_V(q_k)| / √D. Slot Attention divides by no Z(κ_k): a larger κ_k draws weight."""
    points: Tensor
    """(B, N, D): p_V(k_n) in place of x_n; they lie on an ellipsoid instead of a sphere."""

    @property
    def attention(self) -> Tensor:
        """(B, K, N): γ_nk = π_k exp(κ_k θ_kᵀ x_n) / Σ_k' ..., equal to the layer's."""
        scores = self.concentrations[..., None] * (self.directions @ self.points.mT)
        return (self.weights.log()[..., None] + scores).softmax(dim=1)


class MaximizationStep(NamedTuple):
    """What EM would estimate from the attention of one iteration; `weighted_sum` codes hold both (theory.mass)."""

    weights: Tensor
    """(B, K): π_k = Σ_n γ_nk / N."""
    directions: Tensor
    """(B, K, D): θ_k = Σ_n γ_nk v_n / |Σ_n γ_nk v_n|."""


def implied_mixture_weights(attend: SlotAttention, slots: Tensor) -> Tensor:
    """exp(aᵀ p_a(q_k) / √D), normalised over slots: slots (B, K, D) -> (B, K); uniform where `a` vanishes."""
    queries = attend.query(attend.norm_slots(slots))
    offset = affine_hull(attend.norm_input, attend.key).offset.to(queries.dtype)
    weights: Tensor = (queries @ offset / math.sqrt(attend.dim)).softmax(dim=-1)
    return weights


def expectation_step(attend: SlotAttention, tokens: Tensor, slots: Tensor) -> ExpectationStep:
    """The E-step that the layer's attention is: tokens (B, N, D_in), slots (B, K, D) before the iteration."""
    hull = affine_hull(attend.norm_input, attend.key)
    hull = hull._replace(basis=hull.basis.to(tokens.dtype))
    queries = hull.project(attend.query(attend.norm_slots(slots)))
    lengths = queries.norm(dim=-1)
    directions = queries / lengths.clamp(min=torch.finfo(queries.dtype).tiny)[..., None]
    points = hull.project(attend.key(attend.norm_input(tokens)))
    return ExpectationStep(implied_mixture_weights(attend, slots), directions, lengths / math.sqrt(attend.dim), points)


def maximization_step(attend: SlotAttention, tokens: Tensor, attention: Tensor) -> MaximizationStep:
    """The M-step on the values of tokens (B, N, D_in), given attention (B, K, N)."""
    sums = attention @ attend.value(attend.norm_input(tokens))
    return MaximizationStep(attention.mean(dim=-1), nn.functional.normalize(sums, dim=-1))


def mixture_layer(dim: int, tau: float = 1.0) -> SlotAttention:
    """A float64 layer whose iteration is one of EM with equal weights and fixed τ; tokens and slots go to the sphere.

    Key, query and value maps are the identity and LayerNorm takes each vector, less its mean, to unit length. Then the
    attention is the E-step, and the codes of `weighted_sum` are N times shorter than the sums of the M-step.
    """
    if not 0 < tau < math.inf:
        raise UserError(f"tau is {tau}, but must be positive and finite; 1 is the paper's")
    layer = SlotAttention(dim=dim, normalization="weighted_sum", hidden=1, iterations=1).double()
    with torch.no_grad():
        for norm in (layer.norm_input, layer.norm_slots):
            norm.weight.fill_(1 / math.sqrt(dim))
            norm.eps = 0.0
        nn.init.eye_(layer.key.weight).mul_(math.sqrt(dim) / tau)  # in place of the temperature √D
        nn.init.eye_(layer.query.weight)
        nn.init.eye_(layer.value.weight)
    return layer
