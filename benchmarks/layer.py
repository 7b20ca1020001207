"""Time and memory of a forward and backward pass of the layer, as ratios to others, on one thread.

    python benchmarks/layer.py [--rounds 15] [--quick] [--tokens 256] [--dim 48] [--batch 4]

Against (a) the paper's pseudocode in plain operations (tests/oracle.py) and (b) the PyPI package `slot-attention`; all
of them run in every round, in an order drawn anew, and processor time is taken, which other programs on the machine
disturb less. A time ratio above 1 says that slotnorm is faster (median of the rounds' ratios, and their quartiles), a
memory ratio below 1 that it needs less. Memory is the peak of live tensor bytes that the pass allocates.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from slotnorm import SlotAttention
from slotnorm.runtime.allocator import keep_freed_memory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from live_memory import peak_bytes
from oracle import PlainSlotAttention


def contestants(batch: int, tokens: int, dim: int, slots: int) -> dict[str, Callable[[], None]]:
    """A forward and backward pass of each, on the same inputs, all with the baseline's weighted mean."""
    from slot_attention import SlotAttention as Peer

    torch.manual_seed(0)
    inputs = torch.randn(batch, tokens, dim, requires_grad=True)
    noise = torch.randn(batch, slots, dim)
    ours = SlotAttention(dim, normalization="weighted_mean")
    plain = PlainSlotAttention(ours)
    peer = Peer(num_slots=slots, dim=dim, iters=3)

    def run(forward: Callable[[], torch.Tensor], module: torch.nn.Module) -> Callable[[], None]:
        def work() -> None:
            inputs.grad = None
            module.zero_grad(set_to_none=True)
            forward().sum().backward()

        return work

    return {
        "ours": run(lambda: ours(inputs, noise=noise)[0], ours),
        "plain": run(lambda: plain(inputs, ours.slots_mu + ours.slots_log_sigma.exp() * noise)[0], ours),
        "peer": run(lambda: peer(inputs), peer),
    }


def measure(rivals: dict[str, Callable[[], None]], rounds: int) -> dict[str, str]:
    """Median and quartiles of the rounds' ratios of time to ours."""
    for work in rivals.values():
        work()
        work()
    ratios: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        seconds = {}
        for name in random.sample(list(rivals), len(rivals)):
            start = time.process_time()
            rivals[name]()
            seconds[name] = time.process_time() - start
        for name in rivals:
            ratios[name].append(seconds[name] / seconds["ours"])
    quartiles = {name: statistics.quantiles(values, n=4) for name, values in ratios.items()}
    return {name: f"{middle:.2f} ({low:.2f}-{high:.2f})" for name, (low, middle, high) in quartiles.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="only three sizes")
    for size in ("tokens", "dim", "batch"):
        parser.add_argument(f"--{size}", type=int, help="only sizes with so many")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    sizes = [(256, d, k, b) for d in (48, 64) for k in (5, 7) for b in (4, 16, 32)]
    sizes += [(256, d, k, 4) for d, k in ((64, 11), (64, 21), (128, 7), (128, 11), (128, 21))]
    sizes += [(n, d, k, 4) for n in (784, 4096) for d in (64, 128) for k in (7, 11, 21)]
    sizes += [(16384, d, k, 2) for d in (64, 128) for k in (7, 11, 21)]
    if arguments.quick:
        sizes = [(256, 64, 7, 4), (784, 128, 11, 4), (16384, 64, 7, 2)]
    print("| N | D | K | B | time: plain / ours | slot-attention / ours | memory: ours / plain | / slot-attention |")
    print("|---|---|---|---|---|---|---|---|")
    for tokens, dim, slots, batch in sizes:
        asked = (arguments.tokens, tokens), (arguments.dim, dim), (arguments.batch, batch)
        if any(wanted not in (None, size) for wanted, size in asked):
            continue
        rivals = contestants(batch, tokens, dim, slots)
        rounds = arguments.rounds * (1 if tokens > 1000 else 5)
        ratio = measure(rivals, rounds)
        memory = {name: peak_bytes(work) for name, work in rivals.items()}
        print(
            f"| {tokens} | {dim} | {slots} | {batch} | {ratio['plain']} | {ratio['peer']} "
            f"| {memory['ours'] / memory['plain']:.2f} | {memory['ours'] / memory['peer']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
