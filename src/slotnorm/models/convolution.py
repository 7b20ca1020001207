"""Convolutions on a CPU: by fast Fourier transforms of tiles at stride 1, and with channels last in decoders.

PyTorch ships NNPACK, which convolves float32 by transforms, at 5x5 three times as fast as the direct way and with less
rounding, but takes it up by itself only where oneDNN is switched off. It is asked here directly, for the values and for
the gradient of the input; the weights' gradient, and everything it cannot do, goes the usual way.

Strided transposed convolutions of few channels are up to half as fast again when a pixel's channels lie side by side,
and a convolution's result lies as its input does: `lay_out` decides for a decoder's first map, and so for all.

All this is for float32; other types, other devices and compiled graphs have the usual ways.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d, pad

from slotnorm.runtime.torch_internals import nnpack_convolution, nnpack_is_there

_FEWEST_CHANNELS = 8  # below, the transforms cost more than they save
_LANES = 8  # numbers in a vector register: with fewer output channels some are idle


class Convolution(nn.Conv2d):
    """nn.Conv2d with zero padding that keeps the size at stride 1; the fast way where it can be taken."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> None:
        super().__init__(channels_in, channels_out, kernel, stride, padding=kernel // 2)

    def forward(self, images: Tensor) -> Tensor:
        if self.stride == (1, 1) and _is_fast(images, self.weight):
            return _Convolve.apply(images, self.weight, self.bias)  # type: ignore[no-any-return]
        return conv2d(images, self.weight, self.bias, self.stride, self.padding)


class TransposedConvolution(nn.ConvTranspose2d):
    """nn.ConvTranspose2d that multiplies the size by its stride; at stride 1, a convolution with turned weights."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> None:
        super().__init__(channels_in, channels_out, kernel, stride, padding=kernel // 2, output_padding=stride - 1)

    def forward(self, images: Tensor, output_size: list[int] | None = None) -> Tensor:
        if self.stride == (1, 1) and _is_fast(images, self.weight):
            return _Convolve.apply(images, _turn(self.weight), self.bias)  # type: ignore[no-any-return]
        padding, beyond = self.kernel_size[0] // 2, self.output_padding
        if self.bias is not None and _has_channels_last(images):
            if torch.is_grad_enabled():
                # oneDNN's gradient of the bias takes as long as that of the weights in this layout, a sum does not
                outputs = conv_transpose2d(images, self.weight, None, self.stride, padding, beyond)
                return outputs.add_(self.bias[:, None, None])
            if self.stride == (1, 1) and 2 * self.weight.shape[1] <= _LANES and images.shape[3] % 2 == 0:
                return _convolve_pairs(images, _turn(self.weight), self.bias)
        return conv_transpose2d(images, self.weight, self.bias, self.stride, padding, beyond)


def reach_of_taps(size: int, kernel: int, stride: int) -> Tensor:
    """Where each tap of a transposed convolution reaches from a map of `size`: (kernel², (stride · size)²), 0 or 1."""
    if torch.get_default_device().type == "meta":  # shapes alone: computing them there would load a compiler
        return torch.empty(kernel**2, (stride * size) ** 2)
    places = torch.arange(stride * size) + kernel // 2 - torch.arange(kernel)[:, None]  # stride times the input's place
    reach = (places % stride == 0) & (places >= 0) & (places < stride * size)
    reach = reach.to(torch.get_default_dtype())  # that of the weights it is multiplied with
    return torch.kron(reach, reach)


def spread(vectors: Tensor, weight: Tensor, reach: Tensor) -> Tensor:
    """A transposed convolution, without bias, of maps that hold one vector everywhere: (R, I) -> (R, O, S, S).

    Every tap gives the same value wherever it reaches, so that it is a product with `reach_of_taps`: no map is formed.
    """
    taps = (vectors @ weight.flatten(1)).unflatten(1, (weight.shape[1], -1))
    side = math.isqrt(reach.shape[1])
    maps: Tensor = (reach.mT @ taps.mT).mT.unflatten(2, (side, side))
    return maps


def lay_out(images: Tensor, layers: nn.Sequential) -> Tensor:
    """Maps (B, C, H, W) in the layout that is fastest for the layers: channels last, unless one goes by transforms."""
    weights = [layer.weight for layer in layers if isinstance(layer, TransposedConvolution) and layer.stride == (1, 1)]
    if _can_be_fast(images) and not any(_is_fast(images, weight) for weight in weights):
        laid_out = images.contiguous(memory_format=torch.channels_last)
        if len(images) > 1:
            return laid_out
        # a single image is contiguous whatever its first stride is, but without the right one oneDNN takes it for usual
        rows = laid_out.permute(0, 2, 3, 1).flatten(0, 1)
        return rows.view(1, *images.shape[2:], -1).permute(0, 3, 1, 2)
    return images.contiguous()


def _has_channels_last(images: Tensor) -> bool:
    return (
        images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous() and _can_be_fast(images)
    )


def _is_fast(images: Tensor, weight: Tensor) -> bool:
    """Whether a convolution of stride 1 goes by transforms."""
    return (
        _can_be_fast(images)
        and weight.dtype == torch.float32
        and weight.shape[2] == 5  # at 3x3 the gain is small and only found with many channels
        and min(weight.shape[:2]) >= _FEWEST_CHANNELS
        and nnpack_is_there()
    )


def _can_be_fast(images: Tensor) -> bool:
    return (
        images.device.type == "cpu"
        and images.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _turn(weight: Tensor) -> Tensor:
    """The weights of the transposed map: channels exchanged, both axes reversed."""
    return weight.transpose(0, 1).flip(2, 3)


def _convolve_pairs(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Stride 1 with channels last: two neighbouring pixels are made as one of twice the channels, where they lie."""
    pairs = torch.cat([pad(weight, (0, 1)), pad(weight, (1, 0))])
    outputs = conv2d(images, pairs, bias.repeat(2), stride=(1, 2), padding=weight.shape[2] // 2)
    pixels: Tensor = outputs.permute(0, 2, 3, 1).unflatten(3, (2, -1)).flatten(2, 3)
    return pixels.permute(0, 3, 1, 2)


class _Convolve(torch.autograd.Function):
    """Stride 1, odd square kernel, zero padding that keeps the size."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(images, weight, bias)
        return nnpack_convolution(images, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, weight, bias = ctx.saved_tensors
        padding = weight.shape[2] // 2
        needed = ctx.needs_input_grad
        if torch.is_grad_enabled():  # the gradient will be differentiated again: the plain operation can be
            outputs = conv2d(images, weight, bias, padding=padding)
            wanted = [tensor for tensor, is_needed in zip((images, weight, bias), needed, strict=True) if is_needed]
            computed = iter(torch.autograd.grad(outputs, wanted, gradient, create_graph=True))
            return tuple(next(computed) if is_needed else None for is_needed in needed)
        for_images = for_weight = for_bias = None
        if needed[1] or needed[2]:
            _, for_weight, for_bias = torch.ops.aten.convolution_backward(
                gradient, images, weight, [weight.shape[0]], [1, 1], [padding] * 2, [1, 1], False, [0, 0], 1,
                [False, needed[1], needed[2]],
            )  # fmt: skip
        if needed[0]:  # last: what the weights' gradient needed in between is free again
            for_images = nnpack_convolution(gradient, _turn(weight), None)
        return for_images, for_weight, for_bias
