"""Adam as PyTorch computes it, with all of its state as named tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor

from slotnorm.runtime.torch_internals import adam_

_BETAS = (0.9, 0.999)


class Adam:
    """`torch.optim.Adam` (the fused kernel where there is one: the same bits every time), less its constructor.

    That one imports PyTorch's compiler, which takes every process two seconds and more.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.param_groups = [{"params": list(parameters.values())}]  # what a GradScaler asks an optimizer for
        self.parameters = dict(parameters)
        self.state: dict[str, Tensor] = {}
        for name, parameter in parameters.items():
            self.state[f"exp_avg/{name}"] = torch.zeros_like(parameter, requires_grad=False)
            self.state[f"exp_avg_sq/{name}"] = torch.zeros_like(parameter, requires_grad=False)
            self.state[f"step/{name}"] = torch.zeros((), device=parameter.device)

    @torch.no_grad()
    def step(self, learning_rate: float, epsilon: float) -> None:
        """Move every parameter that has a gradient."""
        moved = {name: parameter for name, parameter in self.parameters.items() if parameter.grad is not None}
        adam_(
            list(moved.values()),
            [parameter.grad for parameter in moved.values() if parameter.grad is not None],
            [self.state[f"exp_avg/{name}"] for name in moved],
            [self.state[f"exp_avg_sq/{name}"] for name in moved],
            [self.state[f"step/{name}"] for name in moved],
            learning_rate,
            epsilon,
            _BETAS,
        )
