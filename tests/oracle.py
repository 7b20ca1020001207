"""Slot Attention as the paper's pseudocode has it, with keys and values formed: the oracle of tests and benchmarks.

It takes the parameters of a `SlotAttention` by their names and knows nothing else of the package.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, relu


class PlainSlotAttention(nn.Module):
    """The pseudocode of Appendix G in plain operations, with every normalization of the paper."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.name = layer.normalization.name

    def forward(
        self, inputs: Tensor, slots: Tensor, iterations: int = 3, codes: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        layer = self.layer
        dim, num_tokens = slots.shape[-1], inputs.shape[1]
        inputs = layer.norm_input(inputs)
        k, v = layer.key(inputs), layer.value(inputs)
        var = mean = None
        for index in range(iterations):
            slots_prev = slots
            slots_normed = layer.norm_slots(slots)
            q = layer.query(slots_normed)
            dots = torch.einsum("bid,bjd->bij", q, k) / math.sqrt(dim)
            attn = dots.softmax(dim=1)
            weights = attn
            if self.name == "weighted_mean":
                weights = (attn + 1e-8) / (attn + 1e-8).sum(dim=-1, keepdim=True)
            updates = torch.einsum("bjd,bij->bid", v, weights)
            if self.name == "layer_norm":
                norm = layer.normalization
                updates = layer_norm(updates, (dim,), norm.weight, norm.bias, 1e-5)
            elif self.name == "weighted_sum":
                updates = updates / (num_tokens if layer.normalization.scale is None else layer.normalization.scale)
            elif self.name == "batch_norm":
                if index == 0:
                    var, mean = self._statistics(updates)
                updates = (
                    layer.normalization.weight * (updates - mean) / torch.sqrt(var + 1e-5) + layer.normalization.bias
                )
            elif self.name == "kd_layer_norm":
                var, mean = torch.var_mean(updates, dim=(1, 2), correction=0, keepdim=True)
                updates = (
                    layer.normalization.weight * (updates - mean) / torch.sqrt(var + 1e-5) + layer.normalization.bias
                )
            if codes is not None:
                codes.append(updates)
            slots = layer.gru(updates.reshape(-1, dim), slots_prev.reshape(-1, dim)).reshape(slots_prev.shape)
            hidden = relu(linear(layer.norm_mlp(slots), layer.mlp[0].weight, layer.mlp[0].bias))
            slots = slots + linear(hidden, layer.mlp[2].weight, layer.mlp[2].bias)
        return slots, attn

    def _statistics(self, updates: Tensor) -> tuple[Tensor, Tensor]:
        norm = self.layer.normalization
        if not self.layer.training:
            return norm.running_var, norm.running_mean
        var, mean = torch.var_mean(updates, correction=0)
        with torch.no_grad():
            norm.running_mean.copy_(0.1 * mean + 0.9 * norm.running_mean)
            norm.running_var.copy_(0.1 * var + 0.9 * norm.running_var)
        return var, mean
