"""A trained layer of the package `slot-attention` (lucidrains) becomes a layer of ours that computes the same slots.

Its maps to queries, keys and values have biases; ours have none, as in the paper, and need none. The query's bias adds
the same to the logits of all slots of a token, which the softmax over slots does not see. The key's goes into the shift
of the tokens' LayerNorm as W_k⁻¹ b_k. That, and the value's bias, add a constant to the update codes, because with the
weighted mean a slot's weights sum to one; the bias of the GRU's input takes it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from slotnorm.errors import UserError
from slotnorm.normalization import WeightedMean
from slotnorm.slot_attention import SlotAttention

_NAMES = {
    "norm_input": "norm_input", "norm_slots": "norm_slots", "norm_pre_ff": "norm_mlp",
    "to_q": "query", "to_k": "key", "to_v": "value", "gru": "gru", "mlp": "mlp",
}  # fmt: skip
_MOST_ERROR = 1e-4  # of a key whose bias a rounded shift stands for, relative to the bias


def carry_over(state: Mapping[str, Tensor], iterations: int = 3, eps: float = 1e-8) -> SlotAttention:
    """The layer whose `state_dict()` this is, as one of ours with the weighted mean.

    `iterations` and `eps`, theirs called `iters` and `eps`, are not in the state. Its widths are the state's; half
    precision becomes float32, in which ours computes. The slots are the same to rounding errors: to 1e-5 in float32.
    """
    dim, hidden = _widths(state)
    theirs = {name: tensor.detach().double() for name, tensor in state.items()}
    ours = {f"{_NAMES[name.split('.')[0]]}.{name.split('.', 1)[1]}": theirs[name] for name in theirs if "." in name}
    ours["slots_mu"], ours["slots_log_sigma"] = theirs["slots_mu"].flatten(), theirs["slots_logsigma"].flatten()
    dtype = torch.promote_types(state["to_k.weight"].dtype, torch.float32)
    shift = _shift_for_keys(theirs, dtype)
    ours["norm_input.bias"] = ours["norm_input.bias"] + shift
    constant = theirs["to_v.bias"] - theirs["to_v.weight"] @ shift
    ours["gru.bias_ih"] = ours["gru.bias_ih"] + theirs["gru.weight_ih"] @ constant
    normalization = WeightedMean(dim)
    normalization.eps = eps
    layer = SlotAttention(dim, normalization, hidden=hidden, iterations=iterations)
    layer.to(state["to_k.weight"].device, dtype)
    layer.load_state_dict({name: ours[name] for name in layer.state_dict()})
    return layer


def _shift_for_keys(theirs: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """(D,): what the tokens' LayerNorm adds so that keys need no bias, as small as it can be.

    Keys may also gain any multiple of w with W_qᵀ w = 1 / g, where g is the scale of the slots' LayerNorm: standardised
    slots sum to zero, so the logits of all slots gain the same. Where W_k is nearly singular this keeps the shift, and
    with it the rounding errors, small.
    """
    key, bias = theirs["to_k.weight"], theirs["to_k.bias"]
    if not bias.any():
        return torch.zeros_like(bias)
    shift: Tensor = torch.linalg.solve_ex(key, bias)[0]
    gain = torch.linalg.solve_ex(theirs["to_q.weight"].mT, 1 / theirs["norm_slots.weight"])[0]
    unseen = torch.linalg.solve_ex(key, gain)[0]
    share = (shift @ unseen) / (unseen @ unseen)
    if share.isfinite():
        shift, bias = shift - share * unseen, bias - share * gain
    error = (key @ shift.to(dtype).double() - bias).abs().max()
    if not error <= _MOST_ERROR * bias.abs().max():
        raise UserError(
            "to_k.weight is singular, so to_k.bias cannot be carried over: keys have no bias here, and no shift before "
            "the map can stand for it; set to_k.bias to zero and train a little more"
        )
    return shift


def _widths(state: Mapping[str, Tensor]) -> tuple[int, int]:
    """D and the width of the MLP; a state of anything else than that layer is refused."""
    if not isinstance(state, Mapping):
        raise UserError(f"a layer is carried over by its state, not as {type(state).__name__}; give layer.state_dict()")
    dim, hidden = _last_side(state.get("slots_mu")), _last_side(state.get("mlp.0.bias"))
    expected = _shapes(dim, hidden)
    if other := [name for name in [*expected, *state] if name not in state or name not in expected]:
        has = "has no" if other[0] in expected else "also has"
        raise UserError(
            f"this is not the state of slot_attention.SlotAttention: it {has} {other[0]}; give layer.state_dict() of "
            "such a layer, under the names that it has there"
        )
    for name, shape in expected.items():
        if not isinstance(state[name], Tensor):
            raise UserError(f"{name} is {type(state[name]).__name__}, but must be a tensor; give layer.state_dict()")
        if (given := tuple(state[name].shape)) != shape:
            raise UserError(
                f"{name} is {given}, but with slots of width {dim} and an MLP of width {hidden} it must be {shape}; "
                "carry over the whole state of one layer"
            )
        if not state[name].isfinite().all():
            raise UserError(f"{name} has values that are not finite; carry over a checkpoint from before they were so")
    return dim, hidden


def _last_side(tensor: object) -> int:
    """The last side of a tensor; 0 for anything that has none."""
    return tensor.shape[-1] if isinstance(tensor, Tensor) and tensor.dim() else 0


def _shapes(dim: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Every tensor in the state of their layer."""
    shapes: dict[str, tuple[int, ...]] = {"slots_mu": (1, 1, dim), "slots_logsigma": (1, 1, dim)}
    for name in ("to_q", "to_k", "to_v"):
        shapes |= {f"{name}.weight": (dim, dim), f"{name}.bias": (dim,)}
    for name in ("norm_input", "norm_slots", "norm_pre_ff"):
        shapes |= {f"{name}.weight": (dim,), f"{name}.bias": (dim,)}
    for name in ("ih", "hh"):
        shapes |= {f"gru.weight_{name}": (3 * dim, dim), f"gru.bias_{name}": (3 * dim,)}
    return shapes | {
        "mlp.0.weight": (hidden, dim), "mlp.0.bias": (hidden,), "mlp.2.weight": (dim, hidden), "mlp.2.bias": (dim,),
    }  # fmt: skip
