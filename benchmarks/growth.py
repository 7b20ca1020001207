"""How time and memory grow as one size doubles at a time, ours beside the pseudocode, with fitted exponents.

    OMP_NUM_THREADS=1 python benchmarks/growth.py [--rounds 5] [--only layer] [--figure docs/images/growth.png]
    OMP_NUM_THREADS=1 python benchmarks/growth.py --working-memory

The layer (forward and backward pass) and the three models (training step, evaluation) at a base size, and with one of
N, K, D, batch or image size doubled again and again. Ours and the plain version (in tests/oracle.py, plain_models.py)
run in turns in every round, processor time is taken, and the median of the rounds counts; memory is the peak of live
tensor bytes. An exponent p says that the cost grows as the size to the power of p over the last doublings: p = 1 is
proportional, 0 flat.
"""

import argparse
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slotnorm import SlotAttention
from slotnorm.models import FeatureAutoencoder, ImageAutoencoder, SetPredictor, SlotModel
from slotnorm.runtime.allocator import keep_freed_memory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from live_memory import peak_bytes
from oracle import PlainSlotAttention
from plain_models import plain_features, plain_images

Work = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Point:
    """One size: seconds and bytes, of ours and of the plain version."""

    size: int
    seconds: Mapping[str, float]
    bytes: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Growth:
    """What happens as one size doubles."""

    what: str
    varied: str
    sizes: tuple[int, ...]
    make: Callable[[int], dict[str, Work]]

    def measure(self, rounds: int) -> list[Point]:
        points = []
        for size in self.sizes:
            rivals = self.make(size)
            taken: dict[str, list[float]] = {who: [] for who in rivals}
            for _ in range(rounds + 1):
                for who, work in rivals.items():
                    start = time.process_time()
                    work()
                    taken[who].append(time.process_time() - start)
            seconds = {who: statistics.median(each[1:]) for who, each in taken.items()}
            points.append(Point(size, seconds, {who: peak_bytes(work) for who, work in rivals.items()}))
        return points


def layer(batch: int = 4, tokens: int = 1024, dim: int = 64, slots: int = 7) -> dict[str, Work]:
    """A forward and backward pass of the layer and of the paper's pseudocode."""
    torch.manual_seed(0)
    ours = SlotAttention(dim, normalization="weighted_mean")
    plain = PlainSlotAttention(ours)
    inputs, noise = torch.randn(batch, tokens, dim, requires_grad=True), torch.randn(batch, slots, dim)

    def work(forward: Callable[[], Tensor]) -> Work:
        def step() -> None:
            inputs.grad = None
            ours.zero_grad(set_to_none=True)
            forward().sum().backward()

        return step

    start = (ours.slots_mu + ours.slots_log_sigma.exp() * noise).detach()
    return {"ours": work(lambda: ours(inputs, slots=start)[0]), "plain": work(lambda: plain(inputs, start)[0])}


def model(ours: SlotModel, plain: Any, inputs: Tensor, slots: int, is_training: bool) -> dict[str, Work]:
    """A training step, or an evaluation with masks and reconstruction, of a model and its plain version."""
    start = torch.randn(len(inputs), slots, ours.slot_attention.dim)
    if plain is not None:
        plain.load_state_dict(ours.state_dict())
    if not is_training:
        rivals: dict[str, Work] = {"ours": torch.no_grad()(lambda: ours(inputs, slots=start))}
        if plain is not None:
            rivals["plain"] = torch.no_grad()(lambda: plain(inputs, start))
        return rivals

    def step(module: torch.nn.Module, make: Callable[[], Tensor], target: Tensor) -> None:
        module.zero_grad(set_to_none=True)
        (make() - target).square().mean().backward()

    if plain is None:
        return {"ours": lambda: step(ours, lambda: ours(inputs, slots=start).predictions, torch.zeros(()))}
    return {
        "ours": lambda: step(ours, lambda: ours(inputs, slots=start).reconstruction, inputs),
        "plain": lambda: step(plain, lambda: plain(inputs, start)[3], inputs),
    }


def image(size: int = 32, batch: int = 2, slots: int = 7, *, is_training: bool) -> dict[str, Work]:
    arguments: dict[str, Any] = {
        "size": size, "channels": 16, "dim": 32, "hidden": 64, "strides": (2, 1), "decoder_strides": (2, 2),
    }  # fmt: skip
    return model(
        ImageAutoencoder(**arguments), plain_images(**arguments), torch.rand(batch, 3, size, size), slots, is_training
    )


def features(tokens: int = 256, batch: int = 2, slots: int = 7, *, is_training: bool) -> dict[str, Work]:
    ours, plain = FeatureAutoencoder(tokens, 64, 32, 128, 64), plain_features(tokens, 64, 32, 128, 64)
    return model(ours, plain, torch.randn(batch, tokens, 64), slots, is_training)


def properties(size: int = 32, batch: int = 2, slots: int = 7, *, is_training: bool) -> dict[str, Work]:
    ours = SetPredictor(size, 16, 32, hidden=64, strides=(2, 1))
    return model(ours, None, torch.rand(batch, 3, size, size), slots, is_training)


def growths() -> Iterator[Growth]:
    """What is measured; the first word is the name for `--only`."""
    yield Growth("layer", "N", (256, 512, 1024, 2048, 4096, 8192), lambda tokens: layer(tokens=tokens))
    yield Growth("layer", "K", (5, 10, 20, 40, 80, 160), lambda slots: layer(slots=slots))
    yield Growth("layer", "D", (32, 64, 128, 256), lambda dim: layer(dim=dim))
    yield Growth("layer", "batch", (1, 2, 4, 8, 16, 32), lambda batch: layer(batch=batch))
    for name, make, first in (
        ("images", image, "size"),
        ("features", features, "tokens"),
        ("properties", properties, "size"),
    ):
        sizes = (16, 32, 64, 128) if first == "size" else (128, 256, 512, 1024)
        for is_training in (True, False):
            what = f"{name}, {'training step' if is_training else 'evaluation'}"

            def vary(
                varied: str, make: Any = make, is_training: bool = is_training
            ) -> Callable[[int], dict[str, Work]]:
                return lambda number: make(**{varied: number}, is_training=is_training)

            yield Growth(what, "image size" if first == "size" else "N", sizes, vary(first))
            yield Growth(what, "batch", (1, 2, 4, 8), vary("batch"))
            yield Growth(what, "K", (6, 12, 25, 50, 100, 200), vary("slots"))


def show_working_memory() -> None:
    """Print what evaluation holds at its peak apart from what it returns, in MB, for more and more slots."""
    numbers = (6, 12, 25, 50, 100, 200)
    print(f"| working memory in MB | | {' | '.join(f'K {number}' for number in numbers)} |")
    print(f"|---|---|{'---|' * len(numbers)}")
    for what, make in (
        ("images, 128x128", lambda number: image(size=128, slots=number, is_training=False)),
        ("features, 1,024", lambda number: features(tokens=1024, slots=number, is_training=False)),
    ):
        held: dict[str, list[str]] = {"ours": [], "plain": []}
        for number in numbers:
            rivals = make(number)
            made: Any = rivals["ours"]()
            kept = sum(tensor.nbytes for tensor in made if tensor is not None)
            for who, cells in held.items():
                cells.append(f"{(peak_bytes(rivals[who]) - kept) / 2**20:.0f}")
        for who, cells in held.items():
            print(f"| {what} | {who} | {' | '.join(cells)} |", flush=True)


def exponent(points: list[Point], value: Callable[[Point], float]) -> float:
    """The slope of a line through the last three points, both axes logarithmic."""
    last = points[-3:]
    return statistics.linear_regression([math.log(p.size) for p in last], [math.log(value(p)) for p in last]).slope


def draw(measured: list[tuple[Growth, list[Point]]], path: Path) -> None:
    """Time of ours and plain against each size, both axes logarithmic, as multiples of ours at the smallest size."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter, NullLocator, StrMethodFormatter

    compared = [(growth, points) for growth, points in measured if "plain" in points[0].seconds]
    rows = math.ceil(len(compared) / 4)
    figure, axes = plt.subplots(rows, 4, figsize=(12, 2.4 * rows), squeeze=False)
    for axis, (growth, points) in zip(axes.flat, compared, strict=False):
        sizes, smallest = [point.size for point in points], points[0].seconds["ours"]
        for who, style in (("ours", "o-"), ("plain", "s--")):
            axis.loglog(sizes, [point.seconds[who] / smallest for point in points], style, ms=3, label=who)
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}x"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_title(f"{growth.what}: {growth.varied}", fontsize=9)
        axis.tick_params(labelsize=7)
    for axis in list(axes.flat)[len(compared) :]:
        axis.remove()
    axes.flat[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="first word of what is measured: layer, images, features, properties")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--working-memory", action="store_true", help="only evaluation's, over K")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    if arguments.working_memory:
        show_working_memory()
        return
    measured = []
    columns = ("what", "size", "from, to", "time grows as: ours (plain)", "memory grows as: ours (plain)")
    print(f"| {' | '.join(columns)} | plain / ours, time at the largest | ours / plain, memory |")
    print("|---|---|---|---|---|---|---|")
    for growth in growths():
        if arguments.only and not growth.what.startswith(arguments.only):
            continue
        points = growth.measure(arguments.rounds)
        measured.append((growth, points))
        last, rivals = points[-1], list(points[0].seconds)
        times = [exponent(points, lambda p, who=who: p.seconds[who]) for who in rivals]
        memory = [exponent(points, lambda p, who=who: p.bytes[who]) for who in rivals]
        shown = [f"{each[0]:.2f}" + (f" ({each[1]:.2f})" if len(each) > 1 else "") for each in (times, memory)]
        ratios = ["–", "–"]
        if "plain" in rivals:
            ratios = [
                f"{last.seconds['plain'] / last.seconds['ours']:.2f}",
                f"{last.bytes['ours'] / last.bytes['plain']:.2f}",
            ]
        span = f"{points[0].size}, {last.size}"
        print(
            f"| {growth.what} | {growth.varied} | {span} | {shown[0]} | {shown[1]} | {ratios[0]} | {ratios[1]} |",
            flush=True,
        )
    if arguments.figure:
        draw(measured, arguments.figure)


if __name__ == "__main__":
    main()
