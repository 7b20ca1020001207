"""Time and memory of the models' training steps and evaluations, as ratios to plain versions, on one thread.

    python benchmarks/models.py [--rounds 7] [--only image]

The plain versions (tests/plain_models.py) have the same weights, form keys and values, decode all slots at once and
give every layer every slot and token. Both run in every round, back to back, with the same allocator settings, and
processor time is taken, which other programs on the machine disturb less. A time ratio above 1 says that slotnorm is
faster, a memory ratio below 1 that it needs less. Memory is the peak of live tensor bytes; libraries' scratch space is
not in it.
"""

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from slotnorm.config import ImageModel
from slotnorm.models import FeatureAutoencoder, ImageAutoencoder, SlotModel
from slotnorm.runtime.allocator import keep_freed_memory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from live_memory import peak_bytes
from plain_models import PlainAutoencoder, plain_features, plain_images

SMALL = {"size": 64, "channels": 32, "dim": 32, "hidden": 64, "strides": (2, 1, 1, 1), "decoder_strides": (2, 2, 2, 1)}
NARROW = ImageModel(size=64, channels=32, strides=(2, 1, 1), decoder_channels=16, decoder_strides=(2, 2, 2))
TOY = {
    "size": 16, "channels": 32, "dim": 32, "hidden": 64, "kernel": 3, "strides": (1, 1), "decoder": "dense",
    "decoder_hidden": (256, 256),
}  # fmt: skip
OURS_ALONE = ("positions", "position_scale", "recompute")  # what the plain model has no choice of, and takes no time


class Case(NamedTuple):
    """One row of the table: the same work, done by slotnorm and plainly."""

    name: str
    ours: Callable[[], object]
    plain: Callable[[], object]


class Peers(NamedTuple):
    """A model and its plain version with the same weights."""

    name: str
    ours: SlotModel
    plain: PlainAutoencoder
    inputs: Tensor

    def training(self, num_slots: int, recompute: bool = False) -> Case:
        """A forward and backward pass of the reconstruction's loss."""
        slots = torch.randn(len(self.inputs), num_slots, self.ours.slot_attention.dim)

        def learn(model: nn.Module, reconstruct: Callable[[], Tensor]) -> None:
            model.zero_grad(set_to_none=True)
            (reconstruct() - self.inputs).square().mean().backward()

        def ours() -> None:
            self.ours.recompute = recompute
            learn(self.ours, lambda: self.ours(self.inputs, slots=slots).reconstruction)

        name = f"{self.name}, training step, K {num_slots}" + (", recomputed" if recompute else "")
        return Case(name, ours, lambda: learn(self.plain, lambda: self.plain(self.inputs, slots)[3]))

    def evaluation(self, num_slots: int, reconstruct: bool = True) -> Case:
        """Masks and reconstruction without gradients, or masks alone."""
        slots = torch.randn(len(self.inputs), num_slots, self.ours.slot_attention.dim)
        name = f"{self.name}, evaluation, K {num_slots}" + ("" if reconstruct else ", masks alone")
        return Case(
            name,
            torch.no_grad()(lambda: self.ours(self.inputs, slots=slots, reconstruct=reconstruct)),
            torch.no_grad()(lambda: self.plain(self.inputs, slots)),
        )


def image_cases() -> Iterator[Case]:
    """The paper's 128x128 model, one image."""
    peers = Peers("128x128", ImageAutoencoder(), plain_images(128, 64, 64, 128), torch.rand(1, 3, 128, 128) * 2 - 1)
    peers.plain.load_state_dict(peers.ours.state_dict())
    yield peers.training(7)
    yield peers.training(7, recompute=True)
    yield peers.training(21, recompute=True)
    yield peers.evaluation(7)
    yield peers.evaluation(24)
    yield peers.evaluation(24, reconstruct=False)


def feature_cases() -> Iterator[Case]:
    """The paper's model of 784 features of 768, one image."""
    ours, plain = FeatureAutoencoder(), plain_features(784, 768, 128, 1024, 512)
    peers = Peers("784x768", ours, plain, torch.randn(1, 784, 768))
    peers.plain.load_state_dict(peers.ours.state_dict())
    yield peers.training(11)
    yield peers.training(11, recompute=True)
    yield peers.training(24, recompute=True)
    yield peers.evaluation(11)
    yield peers.evaluation(24)
    yield peers.evaluation(24, reconstruct=False)


def small_cases() -> Iterator[Case]:
    """Models that train on a laptop's processor."""
    narrow = {name: size for name, size in dataclasses.asdict(NARROW).items() if name not in OURS_ALONE}
    cases = (("narrow, 64x64", narrow, 16, 7), ("64x64", SMALL, 8, 7), ("16x16", TOY, 32, 5))
    for name, arguments, batch, num_slots in cases:
        size = arguments["size"]
        inputs = torch.rand(batch, 3, size, size) * 2 - 1
        peers = Peers(f"{name}, batch {batch}", ImageAutoencoder(**arguments), plain_images(**arguments), inputs)
        peers.plain.load_state_dict(peers.ours.state_dict())
        yield peers.training(num_slots)
        yield peers.evaluation(3 * num_slots)


CASES = {"image": image_cases, "features": feature_cases, "small": small_cases}


def time_ratios(case: Case, rounds: int) -> list[float]:
    """Plain time over ours of every round, after one that warms up."""
    ratios = []
    for _ in range(rounds + 1):
        seconds = []
        for work in (case.ours, case.plain):
            start = time.process_time()
            work()
            seconds.append(time.process_time() - start)
        ratios.append(seconds[1] / seconds[0])
    return sorted(ratios[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=CASES)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()
    print(f"torch {torch.__version__}, one thread, {arguments.rounds} rounds\n")
    print("| case | times as fast (quartiles) | memory | plain MB | ours MB |")
    print("|---|---|---|---|---|")
    for name, cases in CASES.items():
        if arguments.only not in (None, name):
            continue
        for case in cases():
            ratios = time_ratios(case, arguments.rounds)
            plain, ours = peak_bytes(case.plain) / 1e6, peak_bytes(case.ours) / 1e6
            low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
            speed = f"{statistics.median(ratios):.2f} ({low:.2f}-{high:.2f})"
            print(f"| {case.name} | {speed} | {ours / plain:.2f} | {plain:.0f} | {ours:.0f} |", flush=True)


if __name__ == "__main__":
    main()
