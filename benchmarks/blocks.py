"""Whether blocks of tokens that stay in the cache pay, where tokens are many, on one thread.

    python benchmarks/blocks.py [--rounds 21]

Two parts of an iteration, each for all tokens at once and in blocks of tokens, in an order drawn anew in every round;
other work in between takes the cache, as a network around the layer does. *gather* is logits, softmax and sums of a
forward pass: in blocks, tokens are read once instead of twice. It is not in the layer, this is what was tried.
*gradient* is the tokens' gradient, six products for three iterations: in blocks it is written once instead of six
times. That is in the layer. A ratio above 1 says that blocks are faster: median and quartiles, in processor time.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from slotnorm.runtime.allocator import keep_freed_memory
from slotnorm.slot_attention import iteration

SIZES = [(2, 16384, 64, 7), (2, 16384, 64, 21), (2, 16384, 128, 7), (8, 16384, 64, 7), (4, 4096, 64, 7)]


def gather(queries: Tensor, tokens: Tensor, tokens_at_once: int) -> tuple[Tensor, Tensor]:
    """Attention (B, K, N) and sums of tokens (B, K, D)."""
    parts, sums = [], torch.zeros_like(queries)
    for block in tokens.split(tokens_at_once, 1):
        parts.append(torch.bmm(queries, block.mT).softmax(dim=1))
        sums.baddbmm_(parts[-1], block)
    return torch.cat(parts, 2) if len(parts) > 1 else parts[0], sums


def add_products(pairs: list[tuple[Tensor, Tensor]], numbers_at_once: int) -> Tensor:
    """The layer's own function, with blocks of another size."""
    usual, iteration._NUMBERS_AT_ONCE = iteration._NUMBERS_AT_ONCE, numbers_at_once
    try:
        return iteration._add_products(pairs)
    finally:
        iteration._NUMBERS_AT_ONCE = usual


def ratio(whole: Callable[[], object], blocks: Callable[[], object], rounds: int) -> str:
    other_work = torch.zeros(4 << 20)
    ratios = []
    for _ in range(rounds):
        seconds = {}
        for way in random.sample((whole, blocks), 2):
            other_work.add_(1)
            start = time.process_time()
            way()
            seconds[way] = time.process_time() - start
        ratios.append(seconds[whole] / seconds[blocks])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    keep_freed_memory()
    print("| B | N | D | K | gather, 512 tokens | 1024 | 4096 | gradient, blocks of 4 MB |")
    print("|---|---|---|---|---|---|---|---|")
    for batch, num_tokens, dim, slots in SIZES:
        tokens, queries = torch.randn(batch, num_tokens, dim), torch.randn(batch, slots, dim) / dim
        pairs = [(torch.rand(batch, slots, num_tokens), torch.randn(batch, slots, dim)) for _ in range(6)]
        whole = partial(gather, queries, tokens, num_tokens)
        cells = [ratio(whole, partial(gather, queries, tokens, size), rounds) for size in (512, 1024, 4096)]
        cells.append(ratio(partial(add_products, pairs, 1 << 40), partial(add_products, pairs, 1 << 20), rounds))
        print(f"| {batch} | {num_tokens} | {dim} | {slots} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
