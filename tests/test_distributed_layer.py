"""Batch scaling over ranks: two real processes give what one process with the whole batch gives, in float64."""

from pathlib import Path

import torch
import torch.distributed as dist

import processes
from test_slot_attention import draw, make_layer

SHARES = (slice(0, 2), slice(2, 5))  # unequal shares weigh by what they hold


def run_share(folder: Path) -> None:
    """Leave this rank's slots, attention and gradients of tokens, the summed gradients and the buffers in a file."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    inputs, start = draw(5, 9, 4, 12)
    layer = make_layer("batch_norm")
    tokens = inputs[SHARES[rank]].clone().requires_grad_()
    slots, attention = layer(tokens, slots=start[SHARES[rank]])
    slots.square().sum().backward()
    for parameter in layer.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
    gradients = {key: value.grad for key, value in layer.named_parameters() if value.grad is not None}
    buffers = dict(layer.normalization.named_buffers())
    torch.save((slots.detach(), attention.detach(), tokens.grad, gradients, buffers), folder / f"rank{rank}")
    dist.destroy_process_group()


def test_two_ranks_give_the_slots_gradients_and_buffers_of_one(tmp_path):
    started = [
        processes.call(run_share, tmp_path, environment=environment) for environment in processes.rank_environments(2)
    ]
    assert [process.wait() for process in started] == [0, 0], [process.said for process in started]
    parts = [torch.load(tmp_path / f"rank{rank}", weights_only=True) for rank in range(2)]

    layer = make_layer("batch_norm")
    inputs, start = draw(5, 9, 4, 12)
    tokens = inputs.requires_grad_()
    slots, attention = layer(tokens, slots=start)
    slots.square().sum().backward()
    for index, whole in enumerate((slots, attention, tokens.grad)):
        torch.testing.assert_close(torch.cat([part[index] for part in parts]), whole.detach(), rtol=1e-10, atol=1e-10)
    for part in parts:
        for key, gradient in part[3].items():
            torch.testing.assert_close(gradient, layer.get_parameter(key).grad, rtol=1e-10, atol=1e-10)
        for key, buffer in part[4].items():
            torch.testing.assert_close(buffer, layer.normalization.get_buffer(key), rtol=1e-10, atol=1e-10)
