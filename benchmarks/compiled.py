"""A training step of each model under `torch.compile`, on one thread of a CPU: inductor's graph beside ours as it is.

    python benchmarks/compiled.py [--rounds 15]

The small models of benchmarks/growth.py with 8 images each; a step is the loss and its backward pass, compiled as one
graph (`fullgraph=True`). Needs a C++ compiler. Both run in every round; the ratio of processor time is the median of
the rounds' ratios, and above 1 says that the compiled step is faster. Compiling is timed by the clock, once.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from slotnorm.models import FeatureAutoencoder, ImageAutoencoder, SetPredictor, SlotModel, matching_loss
from slotnorm.runtime.allocator import keep_freed_memory

BATCH, SLOTS = 8, 7

Loss = Callable[[Tensor, Tensor], Tensor]


def losses() -> dict[str, tuple[SlotModel, Tensor, Loss]]:
    """For each model itself, a batch of inputs, and the loss of inputs and initial slots."""
    images = ImageAutoencoder(32, 16, 32, 64, strides=(2, 1), decoder_strides=(2, 2))
    features = FeatureAutoencoder(256, 64, 32, 128, 64)
    properties = SetPredictor(32, 16, 32, hidden=64, strides=(2, 1))
    targets = torch.rand(BATCH, 5, 19)

    def reconstruct(model: SlotModel) -> Loss:
        return lambda inputs, slots: (model(inputs, slots=slots).reconstruction - inputs).square().mean()

    pictures = torch.rand(BATCH, 3, 32, 32)
    return {
        "images": (images, pictures, reconstruct(images)),
        "features": (features, torch.randn(BATCH, 256, 64), reconstruct(features)),
        "properties": (
            properties, pictures,
            lambda inputs, slots: matching_loss(properties(inputs, slots=slots).predictions, targets),
        ),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()
    print("| training step | inductor: ours as it is / compiled | seconds to compile |")
    print("|---|---|---|")
    for name, (model, inputs, loss) in losses().items():
        slots = torch.randn(BATCH, SLOTS, model.slot_attention.dim)
        compiled = torch.compile(loss, fullgraph=True)

        def step(loss: Loss, model: SlotModel = model, inputs: Tensor = inputs, slots: Tensor = slots) -> float:
            model.zero_grad(set_to_none=True)
            start = time.process_time()
            loss(inputs, slots).backward()
            return time.process_time() - start

        started = time.monotonic()
        step(compiled)
        waited = time.monotonic() - started
        for each in (loss, compiled):
            step(each)
        ratios = [step(loss) / step(compiled) for _ in range(arguments.rounds)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"| {name} | {middle:.2f} ({low:.2f}-{high:.2f}) | {waited:.0f} |", flush=True)


if __name__ == "__main__":
    main()
