"""Time and memory of a forward and backward pass of the layer, as ratios to others, on one thread.

    python benchmarks/layer.py [--rounds 15] [--quick]

Against (a) the paper's pseudocode in plain operations (tests/oracle.py) and (b) the PyPI package `slot-attention`; all
of them run in every round, back to back. A time ratio above 1 says that slotnorm is faster, a memory ratio below 1 that
it needs less. Memory is the peak of live tensor bytes that the pass allocates, from torch.profiler's allocation events.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from slotnorm import SlotAttention
from slotnorm.runtime.allocator import keep_freed_memory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracle import PlainSlotAttention


def peak_bytes(work: Callable[[], None]) -> int:
    """The largest number of tensor bytes that `work` has allocated and not yet freed."""
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


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

    start = noise * ours.slots_log_sigma.detach().exp() + ours.slots_mu.detach()
    return {
        "ours": run(lambda: ours(inputs, noise=noise)[0], ours),
        "plain": run(lambda: plain(inputs, start)[0], ours),
        "peer": run(lambda: peer(inputs), peer),
    }


def measure(rivals: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median of the per-round ratios of time to ours; every round runs all of them, back to back."""
    for work in rivals.values():
        work()
        work()
    ratios: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        seconds = {}
        for name, work in rivals.items():
            start = time.perf_counter()
            work()
            seconds[name] = time.perf_counter() - start
        for name in rivals:
            ratios[name].append(seconds[name] / seconds["ours"])
    return {name: statistics.median(values) for name, values in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="only the three sizes of the paper's models")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    sizes = [(n, d, k) for n in (256, 784, 4096, 16384) for d in (64, 128) for k in (7, 11, 21)]
    if arguments.quick:
        sizes = [(16384, 64, 7), (16384, 64, 21), (784, 128, 11)]
    print("| N | D | K | B | time: plain / ours | slot-attention / ours | memory: ours / plain | / slot-attention |")
    print("|---|---|---|---|---|---|---|---|")
    for tokens, dim, slots in sizes:
        batch = 2 if tokens == 16384 else 4
        rivals = contestants(batch, tokens, dim, slots)
        rounds = arguments.rounds * (1 if tokens > 1000 else 5)
        ratio = measure(rivals, rounds)
        memory = {name: peak_bytes(work) for name, work in rivals.items()}
        print(
            f"| {tokens} | {dim} | {slots} | {batch} | {ratio['plain']:.2f} | {ratio['peer']:.2f} "
            f"| {memory['ours'] / memory['plain']:.2f} | {memory['ours'] / memory['peer']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
