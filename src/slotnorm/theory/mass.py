"""Propositions 1 and 2 made executable: which update codes tell how much of the input a slot holds.

LayerNorm's outputs lie in diag(α) 1^⊥ + β, so the values v_n = B LayerNorm(x̃_n) lie in an affine space a + V with `a`
orthogonal to V, the origin's projection on it. Hence aᵀv_n = |a|² for every token, and of the sums ũ_k = Σ_n γ_nk v_n
one reads off the mass: aᵀũ_k / |a|² = Σ_n γ_nk.
"""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from slotnorm.errors import UserError
from slotnorm.normalization import BatchNorm, Normalization, Unnormalized, WeightedMean, WeightedSum, make_normalization
from slotnorm.slot_attention import SlotAttention


class AffineHull(NamedTuple):
    """The affine space a + V that holds every output of a linear map after a LayerNorm (Lemmas 1 and 2), in float64."""

    offset: Tensor
    """a (D,): the origin projected on the space, orthogonal to V."""
    basis: Tensor
    """(D, dim V): an orthonormal basis of V."""
    spread: float
    """Root mean square length of the outputs for tokens with independent entries: the scale `a` is to be seen on."""

    def project(self, vectors: Tensor) -> Tensor:
        """p_V: the part of (..., D) that lies in V."""
        return vectors @ self.basis @ self.basis.mT


class Counterexample(NamedTuple):
    """One zero slot and two of them on the same tokens (the proof of Proposition 1)."""

    codes: tuple[Tensor, Tensor]
    """u_1 (B, D) for K = 1 and for K = 2."""
    mass: tuple[Tensor, Tensor]
    """Σ_n γ_n1 / N (B,): 1 and 1/2."""

    @property
    def difference(self) -> float:
        """How far the two codes are apart, relative to their size; nothing can tell the masses when it is 0."""
        alone, shared = self.codes
        return float(((alone - shared).norm(dim=-1) / torch.maximum(alone.norm(dim=-1), shared.norm(dim=-1))).max())


def affine_hull(norm: nn.LayerNorm, linear: nn.Linear) -> AffineHull:
    """a + V for the outputs of `linear` (without bias) after `norm`."""
    scale, shift, matrix = (p.detach().to("cpu", torch.float64) for p in (norm.weight, norm.bias, linear.weight))
    spanning = matrix * scale
    spanning = spanning - spanning.mean(dim=1, keepdim=True)  # the image of 1^⊥
    left, sizes, _ = torch.linalg.svd(spanning, full_matrices=False)
    left, sizes = left[:, : norm.weight.numel() - 1], sizes[: norm.weight.numel() - 1]  # no more than 1^⊥ has
    tolerance = max(spanning.shape) * torch.finfo(torch.float64).eps * spanning.norm()
    basis = left[:, sizes > tolerance]
    image = matrix @ shift
    offset = image
    for _ in range(2):  # once more, since the first projection leaves rounding errors of the size of `image`
        offset = offset - basis @ (basis.mT @ offset)
    spread = float((sizes.square().sum() + image.square().sum()).sqrt())
    device = linear.weight.device
    return AffineHull(offset.to(device), basis.to(device), spread)


def recover_mass(attend: SlotAttention, updates: Tensor, num_tokens: int | Tensor) -> Tensor:
    """Proposition 2: sums of the attention over tokens (B, K), adding up to N, from update codes (B, K, D) alone.

    f(u) = C aᵀu / |a|², from the layer's own parameters, for `weighted_sum` (C = N or its `scale`), `unnormalized` and,
    in evaluation, `batch_norm`. `num_tokens` is N, or (B,) where a token mask leaves each image its own.
    """
    sums = unnormalize(attend, updates, num_tokens=num_tokens)
    offset = value_offset(attend, updates.dtype)
    mass: Tensor = sums @ offset / offset.square().sum()
    return mass.to(torch.promote_types(updates.dtype, torch.float32))


def recover_weighted_mean(attend: SlotAttention, updates: Tensor, num_tokens: int | Tensor) -> Tensor:
    """The codes (B, K, D) that `weighted_mean` would give, from those of `weighted_sum` (or the others) alone."""
    sums = unnormalize(attend, updates, num_tokens=num_tokens)
    mass = recover_mass(attend, updates.double(), num_tokens=num_tokens)[..., None]
    eps = WeightedMean.eps
    means = (sums + eps * sums.sum(dim=-2, keepdim=True)) / (mass + eps * mass.sum(dim=-2, keepdim=True))
    return means.to(updates.dtype)


def recover_direction(attend: SlotAttention, updates: Tensor, num_tokens: int | Tensor) -> Tensor:
    """The M-step's directions Σ_n γ_nk v_n / |Σ_n γ_nk v_n| (B, K, D) from update codes alone."""
    sums = unnormalize(attend, updates, num_tokens=num_tokens)
    return nn.functional.normalize(sums, dim=-1).to(updates.dtype)


def unnormalize(attend: SlotAttention, updates: Tensor, num_tokens: int | Tensor) -> Tensor:
    """The sums ũ (B, K, D) in float64 from update codes, where the normalization is an invertible map of each code."""
    if updates.dim() != 3 or updates.shape[-1] != attend.dim:
        raise UserError(f"updates have shape {tuple(updates.shape)}, but (B, K, {attend.dim}) is needed for this layer")
    codes, norm = updates.double(), attend.normalization  # exact types below: a subclass may do anything
    if type(norm) is WeightedSum:
        scale = num_tokens if norm.scale is None else norm.scale
        return codes * (scale.double().reshape(-1, 1, 1) if isinstance(scale, Tensor) else scale)
    if type(norm) is Unnormalized:
        return codes
    if type(norm) is BatchNorm:
        if norm.training:
            raise UserError("batch_norm's statistics in training are those of the batch; call attend.eval() first")
        deviation = (norm.running_var.double() + norm.eps).sqrt()
        return (codes - norm.bias.double()) / norm.weight.double() * deviation + norm.running_mean.double()
    reason = "how to undo it is not known here" if norm.keeps_mass else "its codes do not tell the mass (Proposition 1)"
    raise UserError(f"{norm.name} cannot be undone: {reason}; use weighted_sum, unnormalized or batch_norm instead")


def value_offset(attend: SlotAttention, dtype: torch.dtype = torch.float64) -> Tensor:
    """The vector a (D,) of the values; refused where it vanishes or is too short for codes of this dtype to show it."""
    hull = affine_hull(attend.norm_input, attend.value)
    if hull.offset.norm() > 100 * torch.finfo(dtype).eps * hull.spread:  # the mass is then good to a hundredth of N
        return hull.offset
    if hull.basis.shape[1] == attend.dim:
        reason = f"tokens of width {attend.dim_in} fill all {attend.dim} dimensions of the values; use dim_in <= dim"
    elif not attend.norm_input.bias.any():
        reason = "norm_input.bias is 0, as it is before training; train the layer or set that bias"
    else:
        ratios = "sum(norm_input.bias / norm_input.weight)"
        reason = f"{ratios} is 0 or too small for {dtype} codes; use attend.double() or train longer"
    raise UserError(
        f"the mass cannot be read off the codes, since the values' affine hull contains the origin: {reason}"
    )


def counterexample(attend: SlotAttention, tokens: Tensor) -> Counterexample:
    """Proposition 1: the codes and masses of K = 1 and K = 2 zero slots on tokens (B, N, D_in), in evaluation mode.

    Equal codes with masses 1 and 1/2 prove that no function of the code gives the mass; so it is for `weighted_mean`,
    and up to LayerNorm's eps for `layer_norm` and `kd_layer_norm`.
    """
    layer = with_normalization(attend, attend.normalization)
    codes, masses = [], []
    for num_slots in (1, 2):
        slots = tokens.new_zeros(len(tokens), num_slots, attend.dim)
        with torch.no_grad():
            (step,) = layer.trace(tokens, slots=slots, iterations=1)
        codes.append(step.updates[:, 0])
        masses.append(step.attention[:, 0].mean(dim=-1))
    return Counterexample((codes[0], codes[1]), (masses[0], masses[1]))


def update_bound(attend: SlotAttention, tokens: Tensor) -> Tensor:
    """max_n |v_nd| (B, D) of tokens (B, N, D_in): codes of `weighted_sum` with C = N stay within, for any N."""
    values: Tensor = attend.value(attend.norm_input(tokens))
    return values.abs().amax(dim=1)


def with_normalization(attend: SlotAttention, normalization: str | Normalization) -> SlotAttention:
    """A copy of the layer in evaluation mode with another normalization and the same other parameters."""
    layer = copy.deepcopy(attend)
    norm = make_normalization(copy.deepcopy(normalization), attend.dim)
    layer.normalization = norm.to(device=attend.key.weight.device, dtype=attend.key.weight.dtype)
    return layer.eval()
