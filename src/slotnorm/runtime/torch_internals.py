"""PyTorch's private names that slotnorm uses, each with what takes its place in a version that lacks it.

Everything here is about speed: without a private name the results are the same up to rounding. Nothing outside this
file names a private part of torch; a test removes each name in turn. The file needs torch alone: it is carried away
with the layer.
"""

import importlib
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

_VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
if _VERSION < (2, 6):
    raise ImportError(f"slotnorm needs torch 2.13, this is {torch.__version__}: pip install 'torch>=2.13,<2.14'")
if _VERSION != (2, 13):  # installed past the bounds; the layer will most likely do
    logging.getLogger(__name__).warning(
        f"torch {torch.__version__} is not 2.13, the version that slotnorm is tested with; if something fails: "
        "pip install 'torch>=2.13,<2.14'"
    )

ADAM = importlib.import_module("torch.optim.adam")  # torch.optim deletes the attribute


def backward_passes_have_numbers() -> bool:
    """Whether `number_of_this_backward_pass` can be asked; without it the layer leaves its gradients to torch."""
    return hasattr(torch._C, "_current_graph_task_id")


def number_of_this_backward_pass() -> int:
    """That of the backward pass under way, in this thread; ask `backward_passes_have_numbers` first."""
    return torch._C._current_graph_task_id()


def transforms_are_active() -> bool:
    """Whether a transform of torch.func is under way; True where that cannot be told: it is the careful answer."""
    ask: Callable[[], bool] | None = getattr(torch._C, "_are_functorch_transforms_active", None)
    return ask is None or ask()


def quick_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` without its own look for transforms of torch.func: where `transforms_are_active` was asked."""
    return getattr(super(torch.autograd.Function, function), "apply", function.apply)


def beneath_autograd() -> AbstractContextManager[Any]:
    """Where gradients are off, a region whose operators automatic differentiation does not even look at.

    For the inside of a Function, where it would take a step in every call and keep a record of every view in vain.
    """
    region: Callable[[], AbstractContextManager[Any]] | None
    region = getattr(torch._C, "_AutoDispatchBelowADInplaceOrView", None)
    return nullcontext() if region is None or torch.is_grad_enabled() else region()


def softmax_backward(gradient: Tensor, softmax: Tensor, dim: int) -> Tensor:
    """The gradient of the logits, from that of a softmax over `dim` and the softmax itself."""
    if hasattr(torch, "_softmax_backward_data"):
        return torch._softmax_backward_data(gradient, softmax, dim, gradient.dtype)
    return softmax * (gradient - (softmax * gradient).sum(dim, keepdim=True))


@cache
def nnpack_is_there() -> bool:
    """Whether `nnpack_convolution` can be called; without it convolutions go the usual way."""
    # asking also initialises it: without, every convolution is refused
    return hasattr(torch, "_nnpack_spatial_convolution") and torch.backends.nnpack.is_available()


def nnpack_convolution(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A float32 convolution of stride 1 by NNPACK; zero padding keeps the size. Ask `nnpack_is_there` first."""
    return torch._nnpack_spatial_convolution(images, weight, bias, padding=weight.shape[2] // 2)


def divide_(tensors: Sequence[Tensor], divisor: float) -> None:
    """Divide every tensor in place."""
    if hasattr(torch, "_foreach_div_"):
        torch._foreach_div_(list(tensors), divisor)
        return
    for tensor in tensors:
        tensor.div_(divisor)


def adam_(
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    learning_rate: float,
    epsilon: float,
    betas: tuple[float, float],
) -> None:
    """One step of Adam in place, as `torch.optim.Adam` takes it: the fused kernel where there is one.

    `means` and `squares` are the running averages of the gradients and of their squares, `steps` scalars that count.
    """
    # the function below torch.optim.Adam: its module lists it, no page documents it
    function: Callable[..., None] | None = getattr(ADAM, "adam", None)
    if function is not None:
        fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
        function(
            parameters, gradients, means, squares, [], steps,
            fused=fused, amsgrad=False, beta1=betas[0], beta2=betas[1], lr=learning_rate, weight_decay=0.0, eps=epsilon,
            maximize=False,
        )  # fmt: skip
        return
    for parameter, gradient, mean, square, step in zip(parameters, gradients, means, squares, steps, strict=True):
        step += 1
        mean.lerp_(gradient, 1.0 - betas[0])
        square.mul_(betas[1]).addcmul_(gradient, gradient, value=1.0 - betas[1])
        count = float(step)
        scale = (square.sqrt() / math.sqrt(1.0 - betas[1] ** count)).add_(epsilon)
        parameter.addcdiv_(mean, scale, value=-learning_rate / (1.0 - betas[0] ** count))
