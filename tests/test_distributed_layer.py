"""Batch scaling over ranks: two real processes give what one process with the whole batch gives, in float64."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch

from test_slot_attention import draw, make_layer

WORKER = """
import sys
import torch
import torch.distributed as dist
sys.path.insert(0, {tests!r})
from test_slot_attention import draw, make_layer

dist.init_process_group("gloo")
rank = dist.get_rank()
inputs, start = draw(5, 9, 4, 12)
share = slice(0, 2) if rank == 0 else slice(2, 5)      # unequal shares weigh by what they hold
layer = make_layer("batch_norm")
tokens = inputs[share].clone().requires_grad_()
slots, attention = layer(tokens, slots=start[share])
slots.square().sum().backward()
for parameter in layer.parameters():
    if parameter.grad is not None:
        dist.all_reduce(parameter.grad)
gradients = {{key: value.grad for key, value in layer.named_parameters() if value.grad is not None}}
buffers = dict(layer.normalization.named_buffers())
torch.save((slots.detach(), attention.detach(), tokens.grad, gradients, buffers), sys.argv[1] + str(rank))
dist.destroy_process_group()
"""


def test_two_ranks_give_the_slots_gradients_and_buffers_of_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(tests=str(Path(__file__).parent)))
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "rank")],
            env=environment | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
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
