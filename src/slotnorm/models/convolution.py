"""Convolutions of stride 1 on a CPU by fast Fourier transforms of tiles: three times as fast as the direct way at 5x5.

PyTorch ships NNPACK, which does this for float32 with less rounding than the direct sum, but takes it up by itself only
where oneDNN is switched off. It is asked here directly, for the values and for the gradient of the input; the weights'
gradient, and everything it cannot do (other devices, types and strides), goes the usual way.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d

_FEWEST_CHANNELS = 8  # below, the transforms cost more than they save


class Convolution(nn.Conv2d):
    """nn.Conv2d with zero padding that keeps the size at stride 1; the fast way where it can be taken."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> None:
        super().__init__(channels_in, channels_out, kernel, stride, padding=kernel // 2)

    def forward(self, images: Tensor) -> Tensor:
        if self.stride == (1, 1) and _is_fast(images, self.weight):
            return _convolve(images, self.weight, self.bias)
        return conv2d(images, self.weight, self.bias, self.stride, self.padding)


class TransposedConvolution(nn.ConvTranspose2d):
    """nn.ConvTranspose2d that multiplies the size by its stride; at stride 1, a convolution with turned weights."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> None:
        super().__init__(channels_in, channels_out, kernel, stride, padding=kernel // 2, output_padding=stride - 1)

    def forward(self, images: Tensor, output_size: list[int] | None = None) -> Tensor:
        if self.stride == (1, 1) and _is_fast(images, self.weight):
            return _convolve(images, _turn(self.weight), self.bias)
        padding, beyond = self.kernel_size[0] // 2, self.output_padding
        return conv_transpose2d(images, self.weight, self.bias, self.stride, padding, beyond)


def _is_fast(images: Tensor, weight: Tensor) -> bool:
    return (
        images.device.type == "cpu"
        and images.dtype == weight.dtype == torch.float32
        and weight.shape[2] == 5  # at 3x3 the gain is small and only found with many channels
        and min(weight.shape[:2]) >= _FEWEST_CHANNELS
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and _nnpack_is_there()
    )


@cache
def _nnpack_is_there() -> bool:
    # asking also initialises it: without, every convolution is refused
    return hasattr(torch, "_nnpack_spatial_convolution") and torch.backends.nnpack.is_available()


def _turn(weight: Tensor) -> Tensor:
    """The weights of the transposed map: channels exchanged, both axes reversed."""
    return weight.transpose(0, 1).flip(2, 3)


def _convolve(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _Convolve.apply(images, weight, bias)  # type: ignore[no-any-return]


class _Convolve(torch.autograd.Function):
    """Stride 1, odd square kernel, zero padding that keeps the size."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(images, weight, bias)
        return torch._nnpack_spatial_convolution(images, weight, bias, padding=weight.shape[2] // 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, weight, bias = ctx.saved_tensors
        padding = weight.shape[2] // 2
        needed = ctx.needs_input_grad
        if torch.is_grad_enabled():  # the gradient will be differentiated again: the plain operation can be
            made = conv2d(images, weight, bias, padding=padding)
            wanted = [tensor for tensor, is_needed in zip((images, weight, bias), needed, strict=True) if is_needed]
            found = iter(torch.autograd.grad(made, wanted, gradient, create_graph=True))
            return tuple(next(found) if is_needed else None for is_needed in needed)
        for_images = for_weight = for_bias = None
        if needed[1] or needed[2]:
            _, for_weight, for_bias = torch.ops.aten.convolution_backward(
                gradient, images, weight, [weight.shape[0]], [1, 1], [padding] * 2, [1, 1], False, [0, 0], 1,
                [False, needed[1], needed[2]],
            )  # fmt: skip
        if needed[0]:  # last: what the weights' gradient needed in between is free again
            for_images = torch._nnpack_spatial_convolution(gradient, _turn(weight), None, padding=padding)
        return for_images, for_weight, for_bias
