"""What iterations of Slot Attention do to slots, with an own backward: slots attend to tokens, and are updated.

Plain operations under automatic differentiation would give the same numbers; here

- keys and values are never formed: q_k · W_k x_n = (W_kᵀ q_k) · x_n and Σ_n γ_nk W_v x_n = W_v Σ_n γ_nk x_n, so the
  products of N tokens with two matrices become products of K slots;
- the gradients of tokens and parameters are added up in one place for all iterations, `_Common`, and handed over by
  the backward of `_Share`, which runs last;
- operators are called outside of automatic differentiation, whose bookkeeping is most of the time where tokens are few.

The backward is written in operations that can be differentiated. Where a gradient is to be differentiated again, the
forward is done again in view of automatic differentiation, and the backward after it.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear, relu

from slotnorm.runtime.torch_internals import (
    backward_passes_have_numbers,
    beneath_autograd,
    number_of_this_backward_pass,
    quick_apply,
    softmax_backward,
    transforms_are_active,
)


class Attending(NamedTuple):
    """The parameters of attending: the LayerNorm of the slots, and the maps."""

    scale: Tensor
    """(D,)"""
    shift: Tensor
    """(D,)"""
    query: Tensor
    """(D, D)"""
    key: Tensor
    """(D, D_in), divided by √D"""
    value: Tensor
    """(D, D_in)"""


class Updating(NamedTuple):
    """The parameters of updating: the LayerNorm of the MLP, the GRU as nn.GRUCell has it, and the MLP."""

    scale: Tensor
    """(D,)"""
    shift: Tensor
    """(D,)"""
    from_updates: Tensor
    """(3 D, D): update codes -> reset gate, keep gate and candidate, the GRU's r, z and n"""
    from_updates_bias: Tensor
    from_slots: Tensor
    """(3 D, D): slots -> the same"""
    from_slots_bias: Tensor
    widen: Tensor
    """(hidden, D)"""
    widen_bias: Tensor
    narrow: Tensor
    """(D, hidden)"""
    narrow_bias: Tensor


Gathered = tuple[Tensor, Tensor, Tensor]
"""What slots find in the tokens: attention (B, K, N), sums of values (B, K, D), mass (B, K, 1)."""


class Steps:
    """The steps of one call of the layer, on its tokens (B, N, D_in); slots and update codes are (B, K, D).

    `present` (B, 1, N) is 0 where a token takes no part; `epsilons` are those of the two LayerNorms.
    """

    def __init__(
        self, tokens: Tensor, present: Tensor | None, attending: Attending, updating: Updating,
        epsilons: tuple[float, float],
    ) -> None:  # fmt: skip
        self._attending, self._updating = _Common(attending, epsilons[0], present), _Common(updating, epsilons[1])
        self._has_own_backward = torch.is_grad_enabled() and own_backward_is_possible()
        self._tokens = tokens
        if self._has_own_backward:
            self._tokens = quick_apply(_Share)((self._attending, self._updating), tokens, *attending, *updating)

    def attend(self, slots: Tensor) -> Gathered:
        """What slots find in the tokens."""
        if not self._has_own_backward:
            return _attend(slots.flatten(0, 1), slots.shape, self._tokens, self._attending)[0]
        return quick_apply(_Step)(slots, None, self._tokens, self._attending, None)[1:]  # type: ignore[no-any-return]

    def update(self, slots: Tensor, updates: Tensor) -> Tensor:
        """The next slots: a GRU, then a residual MLP."""
        if not self._has_own_backward:
            return _plain_update(slots, updates, self._updating)
        return quick_apply(_Step)(slots, updates, self._tokens, None, self._updating)[0]  # type: ignore[no-any-return]

    def advance(self, slots: Tensor, updates: Tensor) -> tuple[Tensor, Gathered]:
        """The next slots, and what they find: one step of automatic differentiation instead of two."""
        if not self._has_own_backward:
            slots = self.update(slots, updates)
            return slots, self.attend(slots)
        new, *gathered = quick_apply(_Step)(slots, updates, self._tokens, self._attending, self._updating)
        return new, (gathered[0], gathered[1], gathered[2])


def own_backward_is_possible() -> bool:
    """Whether nobody traces the layer, and this torch can tell its backward passes apart.

    A compiler or a transform of torch.func sees plain operations only.
    """
    return backward_passes_have_numbers() and not (torch.compiler.is_compiling() or transforms_are_active())


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Where autocast is on, a region without it: sums over many tokens need their own precision."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


_Parameters = TypeVar("_Parameters", Attending, Updating)
_Factors = tuple[Tensor, Tensor]
_NUMBERS_AT_ONCE = 1 << 20  # the tokens' gradient is added up in blocks of 4 MB, which stay in the processor's cache


class _Common(Generic[_Parameters]):
    """What the iterations of one call have in common, and the parts of its gradients that their backward adds.

    A part is itself added to the gradient of a shared tensor; or its factors are given, (rows, outputs) and (rows,
    inputs); or, for the tokens, a list of factors (B, K, N) and (B, K, D_in), which are multiplied in the end. Parts
    belong to one backward pass: one that is not asked for these gradients never collects them, and the next must not
    find them.
    """

    def __init__(self, parameters: _Parameters, epsilon: float, present: Tensor | None = None) -> None:
        self.parameters: _Parameters = parameters
        self.epsilon, self.present = epsilon, present
        self._backward_pass = -1
        self._gradients: list[Any] = []

    def add(self, *parts: Tensor | _Factors | list[_Factors]) -> None:
        """One iteration's part of the gradient of each shared tensor."""
        self._turn_to_this_pass()
        if not self._gradients:
            self._gradients = [part[0].mT @ part[1] if isinstance(part, tuple) else part for part in parts]
            return
        for number, part in enumerate(parts):
            if isinstance(part, tuple):
                self._gradients[number].addmm_(part[0].mT, part[1])
            else:
                self._gradients[number] += part

    def collect(self) -> list[Any]:
        """What was added up for each shared tensor, which is then forgotten."""
        self._turn_to_this_pass()
        gradients, self._gradients = self._gradients, []
        return gradients

    def _turn_to_this_pass(self) -> None:
        current = number_of_this_backward_pass()
        if current != self._backward_pass:
            self._backward_pass, self._gradients = current, []


class _Share(torch.autograd.Function):
    """The identity on the tokens; its backward runs after the iterations', for all that they share."""

    @staticmethod
    def forward(
        ctx: Any, commons: tuple[_Common[Attending], _Common[Updating]], tokens: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.commons = commons
        return tokens

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        attending, updating = ctx.commons
        pairs, *for_attending = attending.collect() or [None] * (1 + len(attending.parameters))
        for_updating = updating.collect() or [None] * len(updating.parameters)
        for_tokens = None
        if pairs is not None and ctx.needs_input_grad[1]:
            with without_autocast(pairs[0][0]), beneath_autograd():
                for_tokens = _add_products(pairs)
        if gradient is not None:  # what operations on the tokens left, when a gradient is differentiated again
            for_tokens = gradient if for_tokens is None else for_tokens + gradient
        return None, for_tokens, *for_attending, *for_updating


def _add_products(pairs: list[_Factors]) -> Tensor:
    """Σ leftᵀ right of (B, K, N) and (B, K, D_in): (B, N, D_in).

    Block by block, so that a block stays in the processor's cache while all products are added to it.
    """
    left, right = pairs[0]
    images, tokens, dim = len(left), left.shape[2], right.shape[2]
    if torch.is_grad_enabled() or images * tokens * dim <= _NUMBERS_AT_ONCE:
        gradient = torch.bmm(left.mT, right)
        for left, right in pairs[1:]:
            gradient.baddbmm_(left.mT, right)
        return gradient
    gradient = left.new_empty(images, tokens, dim)
    images_at_once, tokens_at_once = max(1, _NUMBERS_AT_ONCE // (tokens * dim)), max(1, _NUMBERS_AT_ONCE // dim)
    for image in range(0, images, images_at_once):
        some = slice(image, image + images_at_once)
        for token in range(0, tokens, tokens_at_once):
            these = slice(token, token + tokens_at_once)
            block = gradient[some, these]
            left, right = pairs[0]
            torch.bmm(left[some, :, these].mT, right[some], out=block)
            for left, right in pairs[1:]:
                block.baddbmm_(left[some, :, these].mT, right[some])
    return gradient


class _Step(torch.autograd.Function):
    """`_update` where that is asked, then `_attend` where that is; the tokens also order the backward."""

    @staticmethod
    def forward(
        ctx: Any, slots: Tensor, updates: Tensor | None, tokens: Tensor,
        attending: _Common[Attending] | None, updating: _Common[Updating] | None,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.attending, ctx.updating = attending, updating
        with beneath_autograd():
            new, gathered, *ctx.remembered = _step(slots, updates, tokens, attending, updating)
        # those that `remembered` has in rows, too: it is here that one that was changed in place is noticed
        ctx.save_for_backward(slots, updates, tokens, new, gathered[0])
        return new, *gathered

    @staticmethod
    def backward(ctx: Any, for_new: Tensor | None, *for_gathered: Tensor | None) -> tuple[Tensor | None, ...]:
        slots, updates, tokens, _, attention = ctx.saved_tensors
        remembered, ctx.remembered = ctx.remembered, None  # to be freed; a second backward does the step again
        for_slots = None if for_new is None else for_new.flatten(0, 1)
        for_updates = None
        with without_autocast(slots), beneath_autograd():  # the loss may be differentiated inside of autocast
            if remembered is None or torch.is_grad_enabled():
                _, (attention, _, _), *remembered = _step(slots, updates, tokens, ctx.attending, ctx.updating)
            of_update, of_attention = remembered
            if any(part is not None for part in for_gathered):
                for_seen = _attend_backward(tokens, attention, of_attention, ctx.attending, *for_gathered)
                for_slots = for_seen if for_slots is None else for_slots + for_seen
            if of_update is not None and for_slots is not None:
                for_slots, for_updates = _update_backward(of_update, ctx.updating, for_slots)
                for_updates = for_updates.view_as(slots)
        return None if for_slots is None else for_slots.view_as(slots), for_updates, None, None, None


def _step(
    slots: Tensor, updates: Tensor | None, tokens: Tensor,
    attending: _Common[Attending] | None, updating: _Common[Updating] | None,
) -> tuple[Tensor | None, Any, Any, Any]:  # fmt: skip
    """The new slots, what was gathered, and what the backward of each needs besides; None where it was not asked."""
    new = of_update = of_attention = None
    gathered: Any = (None, None, None)
    rows = slots.flatten(0, 1)
    if updates is not None and updating is not None:
        rows, of_update = _update(rows, updates.flatten(0, 1), updating)
        new = rows.view_as(slots)
    if attending is not None:
        gathered, of_attention = _attend(rows, slots.shape, tokens, attending)
    return new, gathered, of_update, of_attention


# from here on slots and update codes are rows (B · K, D)


def _attend(
    slots: Tensor, shape: torch.Size, tokens: Tensor, common: _Common[Attending]
) -> tuple[Gathered, tuple[Tensor, ...]]:
    """What slots of `shape` (B, K, D) find in the tokens, and what the backward needs besides."""
    scale, shift, query, key, value = common.parameters
    standard, mean, deviation = torch.native_layer_norm(slots, scale.shape, scale, shift, common.epsilon)
    queries = linear(standard, query)
    probes = (queries @ key).view(shape[0], shape[1], tokens.shape[2])
    attention = torch.bmm(probes, tokens.mT).softmax(dim=1)
    if common.present is not None:
        attention = attention * common.present
    gathered = torch.bmm(attention, tokens).flatten(0, 1)
    outcome = attention, linear(gathered, value).view(shape), attention.sum(-1, keepdim=True)
    return outcome, (slots, standard, mean, deviation, queries, probes, gathered)


def _attend_backward(
    tokens: Tensor, attention: Tensor, remembered: tuple[Tensor, ...], common: _Common[Attending],
    for_attention: Tensor | None, for_sums: Tensor | None, for_mass: Tensor | None,
) -> Tensor:  # fmt: skip
    """The gradient of the slots; what tokens and parameters get is added to what is common."""
    scale, shift, query, key, value = common.parameters
    slots, standard, mean, deviation, queries, probes, gathered = remembered
    for_sums = torch.zeros_like(slots) if for_sums is None else for_sums.flatten(0, 1)
    for_gathered = (for_sums @ value).view_as(probes)
    if for_mass is None:
        gradient = torch.bmm(for_gathered, tokens.mT)
    else:
        gradient = torch.baddbmm(for_mass, for_gathered, tokens.mT)
    if for_attention is not None:
        gradient = gradient + for_attention
    logits = softmax_backward(gradient, attention, dim=1)
    for_probes = torch.bmm(logits, tokens).flatten(0, 1)
    for_queries = linear(for_probes, key)
    for_slots, for_scale, for_shift = _standardize_backward(for_queries @ query, slots, mean, deviation, scale, shift)
    common.add(
        [(logits, probes), (attention, for_gathered)], for_scale, for_shift,
        (for_queries, standard), (queries, for_probes), (for_sums, gathered),
    )  # fmt: skip
    return for_slots


def _plain_update(slots: Tensor, updates: Tensor, common: _Common[Updating]) -> Tensor:
    """The next slots (B, K, D), in as few calls as torch has for it: on a GPU its GRU is one."""
    scale, shift, from_updates, update_bias, from_slots, slot_bias, widen, widen_bias, narrow, narrow_bias = (
        common.parameters
    )
    rows = updates.flatten(0, 1), slots.flatten(0, 1)
    new = torch.gru_cell(*rows, from_updates, from_slots, update_bias, slot_bias)
    wide = relu(linear(layer_norm(new, scale.shape, scale, shift, common.epsilon), widen, widen_bias))
    return (new + linear(wide, narrow, narrow_bias)).view_as(slots)


def _update(slots: Tensor, updates: Tensor, common: _Common[Updating]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The next slots, and what the backward needs besides."""
    scale, shift, from_updates, update_bias, from_slots, slot_bias, widen, widen_bias, narrow, narrow_bias = (
        common.parameters
    )
    dim = slots.shape[1]
    of_updates = linear(updates, from_updates, update_bias).split_with_sizes((2 * dim, dim), 1)
    of_slots = linear(slots, from_slots, slot_bias).split_with_sizes((2 * dim, dim), 1)
    gates = (of_updates[0] + of_slots[0]).sigmoid_()
    reset, keep = gates.chunk(2, 1)
    candidate = torch.addcmul(of_updates[1], reset, of_slots[1]).tanh_()
    change = slots - candidate
    new = torch.addcmul(candidate, keep, change)
    standard, mean, deviation = torch.native_layer_norm(new, scale.shape, scale, shift, common.epsilon)
    wide = linear(standard, widen, widen_bias).relu_()
    of_mlp = new, standard, mean, deviation, wide
    return new + linear(wide, narrow, narrow_bias), (
        slots, updates, gates, reset, keep, of_slots[1], candidate, change, *of_mlp,
    )  # fmt: skip


def _update_backward(
    remembered: tuple[Tensor, ...], common: _Common[Updating], gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of slots and update codes; what the parameters get is added to what is common."""
    scale, shift, from_updates, _, from_slots, _, widen, _, narrow, _ = common.parameters
    slots, updates, gates, reset, keep, slot_candidate, candidate, change, *of_mlp = remembered
    new, standard, mean, deviation, wide = of_mlp
    for_wide = (gradient @ narrow).mul_(wide.sign())
    for_new, for_scale, for_shift = _standardize_backward(for_wide @ widen, new, mean, deviation, scale, shift)
    for_new = for_new + gradient
    kept = for_new * keep
    for_candidate = for_new - kept
    for_candidate = torch.addcmul(for_candidate, for_candidate * candidate, candidate, value=-1)  # tanh' = 1 - tanh²
    for_gates = torch.cat([for_candidate * slot_candidate, for_new * change], 1)
    for_gates.mul_(torch.addcmul(gates, gates, gates, value=-1))  # σ' = σ - σ²
    from_update = torch.cat([for_gates, for_candidate], 1)
    from_slot = torch.cat([for_gates, for_candidate * reset], 1)
    common.add(
        for_scale, for_shift,
        (from_update, updates), from_update.sum(0), (from_slot, slots), from_slot.sum(0),
        (for_wide, standard), for_wide.sum(0), (gradient, wide), gradient.sum(0),
    )  # fmt: skip
    return torch.addmm(kept, from_slot, from_slots), from_update @ from_updates


def _standardize_backward(
    gradient: Tensor, inputs: Tensor, mean: Tensor, deviation: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a LayerNorm's inputs, scale and shift."""
    wanted = [True, True, True]
    return torch.ops.aten.native_layer_norm_backward.default(  # type: ignore[no-any-return]
        gradient, inputs, scale.shape, mean, deviation, scale, shift, wanted
    )
