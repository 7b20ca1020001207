"""How long `slotnorm train own` takes: CPU time of a step of its recipe at each size, and of all steps.

python benchmarks/own_rate.py

Forward, loss, backward and optimizer on a batch of noise, one thread, the mean of a few steps after the first.
Validation comes on top: every 500 steps, of 128 pictures at most.
"""

import dataclasses
import time

import torch

from slotnorm import experiments
from slotnorm.models.building import build

STEPS = 4


def seconds_per_step(size: int) -> float:
    """CPU time of one step at a size."""
    experiment = experiments.study(experiments.OWN).experiment
    experiment = dataclasses.replace(
        experiment, recipe=dataclasses.replace(experiment.recipe, model=experiments.own_model(size))
    )
    model = build(experiment).train()
    optimizer = torch.optim.Adam(model.parameters())
    images = 2 * torch.rand(experiment.recipe.batch_size, 3, size, size) - 1
    for step in range(STEPS + 1):
        if step == 1:
            started = time.process_time()
        optimizer.zero_grad()
        noise = torch.randn(len(images), experiment.slots, model.slot_attention.dim)
        model.loss(model(images, noise=noise), images, {}).backward()
        optimizer.step()
    return (time.process_time() - started) / STEPS


if __name__ == "__main__":
    torch.set_num_threads(1)
    steps = experiments.study(experiments.OWN).experiment.recipe.steps
    for size in experiments.OWN_SIZES:
        seconds = seconds_per_step(size)
        print(f"{size}x{size}: {seconds:.2f} s per step, {seconds * steps / 3600:.1f} h for {steps} steps")
