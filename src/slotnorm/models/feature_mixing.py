"""The feature decoder's mixing in training, with a backward of its own.

It keeps the second and third layer of every slot and token, and nothing else of that size: the first layer is one sum
away, and gradients are made tile by tile, as `mixing` tiles them.
"""

from typing import Any

import torch
from torch import Tensor

from slotnorm.models.mixing import SlotDecoding, Upstream, differentiate_kept, rows_at_once, tiles, wide


def mix_features(decoding: SlotDecoding, from_slots: Tensor) -> tuple[Tensor, Tensor]:
    """Masks (B, K, N) and mixture (B, N, width) of the first layer of slots (B, K, width)."""
    at_once = rows_at_once(decoding.row_bytes, from_slots.device)
    masks, mixed = _MixFeatures.apply(from_slots, decoding, at_once, *decoding.weights)
    return masks, mixed


class _MixFeatures(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, from_slots: Tensor, decoding: SlotDecoding, at_once: int, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        from_positions, weight2, bias2, weight3, bias3, alpha_weight, alpha_bias = weights
        batch, num_slots, width = from_slots.shape
        logits = from_slots.new_empty(batch, num_slots, from_positions.shape[0])
        second = from_slots.new_empty(*logits.shape, width)
        third = torch.empty_like(second)
        for tile in tiles(from_slots, at_once):
            first = _first_layer(from_slots[tile], from_positions)
            torch.addmm(bias2, first, weight2.t(), out=_rows(second[tile])).relu_()
            torch.addmm(bias3, _rows(second[tile]), weight3.t(), out=_rows(third[tile])).relu_()
            logits[tile] = torch.addmm(alpha_bias, _rows(third[tile]), alpha_weight.t()).view_as(logits[tile])
        masks = wide(logits).softmax(1)
        mixed = masks.new_zeros(batch, from_positions.shape[0], width)
        for slot in range(num_slots):  # each in place: the product of all would be as large as a layer
            mixed.addcmul_(masks[:, slot, :, None], third[:, slot])
        masks, mixed = masks.to(from_slots.dtype), mixed.to(from_slots.dtype)
        ctx.set_materialize_grads(False)
        ctx.decoding, ctx.at_once = decoding._replace(weights=()), at_once
        ctx.save_for_backward(from_slots, masks, mixed, second, third, *weights)
        return masks, mixed

    @staticmethod
    def backward(ctx: Any, for_masks: Tensor | None, for_mixed: Tensor | None) -> tuple[Tensor | None, ...]:
        from_slots, masks, mixed, second, third, *weights = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiate_kept(ctx, from_slots, weights, for_masks, for_mixed)
        from_positions, weight2, _, weight3, _, alpha_weight, _ = weights
        upstream = Upstream(masks, mixed, for_masks, for_mixed, channel_axis=-1)
        for_slots = torch.empty_like(from_slots)
        sums = [torch.zeros_like(wide(weight)) for weight in weights]
        for_positions, for_weight2, for_bias2, for_weight3, for_bias3, for_alpha_weight, for_alpha_bias = sums
        for tile in tiles(from_slots, ctx.at_once):
            layer1 = _first_layer(from_slots[tile], from_positions)
            layer2, layer3 = _rows(second[tile]), _rows(third[tile])
            for_logits, for_values = upstream.gradients(tile, third[tile])
            for_logits, gradient = for_logits.reshape(-1, 1).to(layer3.dtype), _rows(for_values)
            _add_product(for_alpha_weight, for_logits, layer3)
            for_alpha_bias += for_logits.sum()
            gradient.addcmul_(for_logits, alpha_weight)
            _stop_where_zero(gradient, layer3)
            _add_product(for_weight3, gradient, layer2)
            for_bias3 += gradient.sum(0)
            gradient = gradient @ weight3
            _stop_where_zero(gradient, layer2)
            _add_product(for_weight2, gradient, layer1)
            for_bias2 += gradient.sum(0)
            gradient = gradient @ weight2
            _stop_where_zero(gradient, layer1)
            for_first = gradient.view_as(third[tile])
            for_slots[tile] = for_first.sum(2)
            for_positions += for_first.sum((0, 1))
        return for_slots, None, None, *(total.to(weight.dtype) for total, weight in zip(sums, weights, strict=True))


def _first_layer(from_slots: Tensor, from_positions: Tensor) -> Tensor:
    """(b, k, width) and (N, width) -> (b * k * N, width)."""
    return _rows((from_slots[:, :, None] + from_positions).relu_())


def _rows(layer: Tensor) -> Tensor:
    """(b, k, N, width) -> (b * k * N, width), the same memory."""
    return layer.view(-1, layer.shape[-1])


def _stop_where_zero(gradient: Tensor, layer: Tensor) -> None:
    """Backward of ReLU, in place, from its result."""
    torch.ops.aten.threshold_backward.grad_input(gradient, layer, 0, grad_input=gradient)


def _add_product(total: Tensor, gradient: Tensor, layer: Tensor) -> None:
    """Add a weight's gradient, gradientᵀ layer; half precision is summed in float32."""
    if total.dtype == layer.dtype:
        total.addmm_(gradient.t(), layer)
    else:
        total += gradient.t() @ layer
