"""Mixing of slot-wise decodings: masks are the softmax of the slots' logits, the mixture their weighted values.

A decoder turns rows, one for each pair of image and slot, into logits and values, and the rows are taken in tiles. On a
CPU a tile is what fits its cache (at 128x128 that is slot by slot), elsewhere a batch that fills the device: chosen in
`rows_at_once` and nowhere else. There are three ways, equal in exact arithmetic:

- without gradients: a softmax that is updated tile by tile, so that working memory does not grow with K;
- with gradients: the graph of each tile is kept;
- with gradients and `recompute`: only masks and mixture are kept, and backward decodes each tile again.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

_CACHE_BYTES = 6 * 2**20  # of the widest activation in a tile on a CPU; a row of the paper's 128x128 decoder has 4 MB
_DEVICE_BYTES = 256 * 2**20  # elsewhere: 64 such rows

Tile = tuple[slice, slice]


# rows (R, D), weights, whether values are wanted -> logits (R, *space), values with their channels or None
Decode = Callable[[Tensor, Sequence[Tensor], bool], tuple[Tensor, Tensor | None]]


class SlotDecoding(NamedTuple):
    """How a decoder decodes, for `mix`."""

    decode: Decode
    weights: tuple[Tensor, ...]
    """All tensors that `decode` depends on, so that gradients reach them."""
    channel_axis: int
    """Where values (R, ...) have their channels: 1 or -1."""
    row_bytes: int
    """Of a row's widest activation."""


def mix(
    decoding: SlotDecoding, slots: Tensor, *, reconstruct: bool = True, recompute: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Masks (B, K, *space) of slots (B, K, D), and the mixture (B, *values) unless only masks are asked for."""
    at_once = rows_at_once(decoding.row_bytes, slots.device)
    if torch.compiler.is_compiling():
        return _mix_kept(decoding, slots, at_once, reconstruct)
    if not needs_graph(slots, *decoding.weights):
        if at_once < slots.shape[1]:
            return _mix_online(decoding, slots, at_once, reconstruct)
        # whole images fit a tile: fewer and larger operations
        parts = [_mix_kept(decoding, some, at_once, reconstruct) for some in slots.split(at_once // slots.shape[1])]
        mixed = join([part for _, part in parts if part is not None]) if reconstruct else None
        return join([masks for masks, _ in parts]), mixed
    if recompute and reconstruct:
        masks, mixed = _MixRecomputed.apply(slots, decoding, at_once, *decoding.weights)
        return masks, mixed
    return _mix_kept(decoding, slots, at_once, reconstruct)


def needs_graph(*tensors: Tensor) -> bool:
    """Whether a gradient can be asked for."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def rows_at_once(row_bytes: int, device: torch.device) -> int:
    """How many rows a tile has: the one place where CPU and other devices differ."""
    return max(1, (_CACHE_BYTES if device.type == "cpu" else _DEVICE_BYTES) // row_bytes)


def split(rows: Tensor, at_once: int) -> Sequence[Tensor]:
    """Rows in tiles. A compiled or exported graph has none: its number of rows stays free."""
    return (rows,) if torch.compiler.is_compiling() else rows.split(at_once)


def tiles(slots: Tensor, at_once: int) -> Iterator[Tile]:
    """Blocks (images, slots) of (B, K, D), at most `at_once` rows each: whole images if they fit, else slots of one."""
    num_images, num_slots, _ = slots.shape
    images_at_once, slots_at_once = max(1, at_once // num_slots), min(num_slots, at_once)
    for image in range(0, num_images, images_at_once):
        for slot in range(0, num_slots, slots_at_once):
            yield slice(image, image + images_at_once), slice(slot, slot + slots_at_once)


def join(parts: list[Tensor]) -> Tensor:
    """The parts one after another, without a copy if there is one alone."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _mix_kept(decoding: SlotDecoding, slots: Tensor, at_once: int, reconstruct: bool) -> tuple[Tensor, Tensor | None]:
    decoded = [decoding.decode(rows, decoding.weights, reconstruct) for rows in split(slots.flatten(0, 1), at_once)]
    masks = wide(join([logits for logits, _ in decoded]).unflatten(0, slots.shape[:2])).softmax(dim=1)
    if not reconstruct:
        return masks.to(slots.dtype), None
    values = join([some for _, some in decoded if some is not None]).unflatten(0, slots.shape[:2])
    mixed = (masks.unsqueeze(_after_slots(decoding.channel_axis)) * values).sum(1)
    return masks.to(slots.dtype), mixed.to(slots.dtype)


def _mix_online(decoding: SlotDecoding, slots: Tensor, at_once: int, reconstruct: bool) -> tuple[Tensor, Tensor | None]:
    """The running highest logit, sum of exponentials and weighted values; the logits stand where masks will."""
    masks = mixed = highest = total = torch.empty(0)
    for number, (images, some) in enumerate(tiles(slots, at_once)):
        block = slots[images, some]
        decoded, values = decoding.decode(block.flatten(0, 1), decoding.weights, reconstruct)
        logits = wide(decoded.unflatten(0, block.shape[:2]))
        if number == 0:
            masks = logits.new_empty(*slots.shape[:2], *logits.shape[2:])
            highest = logits.new_full((slots.shape[0], *logits.shape[2:]), -torch.inf)
            total = torch.zeros_like(highest)
            if values is not None:
                mixed = logits.new_zeros(slots.shape[0], *values.shape[1:])
        masks[images, some] = logits
        before = highest[images].clone()
        torch.maximum(before, logits.amax(1), out=highest[images])
        shrink = (before - highest[images]).exp_()
        weights = (logits - highest[images][:, None]).exp_()
        total[images].mul_(shrink).add_(weights.sum(1))
        if values is not None:
            sums = mixed[images].mul_(shrink.unsqueeze(decoding.channel_axis))
            values = values.unflatten(0, block.shape[:2])
            for slot in range(block.shape[1]):  # each in place: the product of all would be a second tile
                sums.addcmul_(weights[:, slot].unsqueeze(decoding.channel_axis), values[:, slot])
    masks.sub_(highest[:, None]).exp_().div_(total[:, None])
    if not reconstruct:
        return masks.to(slots.dtype), None
    return masks.to(slots.dtype), mixed.div_(total.unsqueeze(decoding.channel_axis)).to(slots.dtype)


class _MixRecomputed(torch.autograd.Function):
    """Backward decodes each tile again: memory of the graph is that of one tile, whatever K is."""

    @staticmethod
    def forward(
        ctx: Any, slots: Tensor, decoding: SlotDecoding, at_once: int, *weights: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        masks, mixed = _mix_online(decoding, slots, at_once, reconstruct=True)
        ctx.set_materialize_grads(False)
        ctx.decoding, ctx.at_once = decoding._replace(weights=()), at_once
        device = slots.device.type
        ctx.autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        ctx.save_for_backward(slots, masks, mixed, *weights)
        return masks, mixed

    @staticmethod
    def backward(ctx: Any, for_masks: Tensor | None, for_mixed: Tensor | None) -> tuple[Tensor | None, ...]:
        slots, masks, mixed, *weights = ctx.saved_tensors
        device, dtype, enabled = ctx.autocast
        with torch.autocast(device, dtype, enabled, cache_enabled=False):  # a cached cast has another tile's graph
            if torch.is_grad_enabled():
                return differentiate_kept(ctx, slots, weights, for_masks, for_mixed)
            upstream = Upstream(masks, mixed, for_masks, for_mixed, ctx.decoding.channel_axis)
            leaves = [weight.detach().requires_grad_(weight.requires_grad) for weight in weights]
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            sums = [torch.zeros_like(leaf) for leaf in wanted]
            for_slots = torch.empty_like(slots)
            for tile in tiles(slots, ctx.at_once):
                shape = slots[tile].shape[:2]
                rows = slots[tile].flatten(0, 1).detach().requires_grad_()
                with torch.enable_grad():
                    logits, values = ctx.decoding.decode(rows, leaves, True)
                gradients = upstream.gradients(tile, values.detach().unflatten(0, shape))
                given = [gradient.flatten(0, 1).to(logits.dtype) for gradient in gradients]
                for_rows, *for_weights = torch.autograd.grad((logits, values), (rows, *wanted), given)
                for_slots[tile] = for_rows.unflatten(0, shape)
                for total, part in zip(sums, for_weights, strict=True):
                    total += part
        summed = iter(sums)
        return for_slots, None, None, *(next(summed) if weight.requires_grad else None for weight in weights)


class Upstream:
    """The gradients that reach the masks and the mixture, passed on through the softmax tile by tile.

    With pull_k = values_k · ∂mixture + ∂mask_k, a logit's gradient is mask_k (pull_k - Σ_j mask_j pull_j), and the
    sum is mixture · ∂mixture + Σ_j mask_j ∂mask_j: no other tile's values are needed.
    """

    def __init__(
        self, masks: Tensor, mixed: Tensor, for_masks: Tensor | None, for_mixed: Tensor | None, channel_axis: int
    ) -> None:
        self.masks, self.for_masks = masks, for_masks
        self.for_mixed = torch.zeros_like(mixed) if for_mixed is None else for_mixed
        self.after_slots = _after_slots(channel_axis)
        self.dtype = torch.promote_types(mixed.dtype, torch.float32)  # of logits' gradients: differences of large sums
        self.mean_pull = (self.for_mixed * mixed).sum(channel_axis, dtype=self.dtype)
        if for_masks is not None:
            self.mean_pull += (for_masks * masks).sum(1)

    def gradients(self, tile: Tile, values: Tensor) -> tuple[Tensor, Tensor]:
        """Those of a tile's logits (b, k, *space) and of its values, which are given with their (b, k, ...)."""
        images, _ = tile
        mask, for_mixed = self.masks[tile], self.for_mixed[images, None]
        pull = (values * for_mixed).sum(self.after_slots, dtype=self.dtype).sub_(self.mean_pull[images, None])
        if self.for_masks is not None:
            pull += self.for_masks[tile]
        return pull.mul_(mask), mask.unsqueeze(self.after_slots) * for_mixed


def differentiate_kept(
    ctx: Any, slots: Tensor, weights: list[Tensor], for_masks: Tensor | None, for_mixed: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated again, from the kept graph; ctx of a function (slots, _, _, *weights)."""
    # each a variable of its own: one may have been computed from another, whose gradient is not to come twice
    slots, *weights = (tensor.view_as(tensor) for tensor in (slots, *weights))
    outputs = _mix_kept(ctx.decoding._replace(weights=tuple(weights)), slots, ctx.at_once, reconstruct=True)
    pairs = zip(outputs, (for_masks, for_mixed), strict=True)
    used, gradients = zip(*((output, gradient) for output, gradient in pairs if gradient is not None), strict=True)
    needed = (ctx.needs_input_grad[0], *ctx.needs_input_grad[3:])
    wanted = [tensor for tensor, is_needed in zip((slots, *weights), needed, strict=True) if is_needed]
    computed = iter(torch.autograd.grad(used, wanted, gradients, create_graph=True, allow_unused=True))
    for_slots, *for_weights = (next(computed) if is_needed else None for is_needed in needed)
    return for_slots, None, None, *for_weights


def wide(tensor: Tensor) -> Tensor:
    """Float32 at least: the softmax of many slots needs it."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _after_slots(channel_axis: int) -> int:
    """The channel axis once rows (R, ...) are (B, K, ...)."""
    return channel_axis if channel_axis < 0 else channel_axis + 1
