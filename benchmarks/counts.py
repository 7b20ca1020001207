"""What a training step of each model costs whatever runs it: operations, operator calls and bytes moved, counted.

    python benchmarks/counts.py [--only image]

A training step is a forward and backward pass of the loss, of slotnorm's model and of the plain one with the same
weights (tests/plain_models.py). Counted are floating-point operations of products and convolutions
(`torch.utils.flop_counter`), calls to operators that compute (not views), and the bytes of the tensors that these read
and write, as if nothing stayed in a cache. Compiled graphs and the ways that a GPU takes are counted as the plain ones:
with `is_compiling` pretended, slotnorm does what `torch.compile` would see.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from models import CASES, Case


def _convolution_flop(
    images: Sequence[int], weight: Sequence[int], *_: Any, out_shape: Sequence[int], **__: Any
) -> int:
    return 2 * math.prod(out_shape) * math.prod(weight[1:])


def _product_flop(_: Any, left: Sequence[int], right: Sequence[int], **__: Any) -> int:
    return 2 * math.prod(left) * right[-1]


# what torch's counter does not know; a convolution by fewer multiplications (Winograd's) counts as the usual one
ALSO_COUNTED = {
    torch.ops.aten.addmm_: _product_flop,
    torch.ops.aten.baddbmm_: _product_flop,
    torch.ops.aten._nnpack_spatial_convolution: _convolution_flop,
}


class Counter(TorchDispatchMode):
    """Calls to operators that are no views, and the bytes of the tensors that they take and give."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = function(*args, **(kwargs or {}))
        if not function.is_view and not _is_view(function):
            self.calls += 1
            tensors = [leaf for leaf in tree_leaves((args, kwargs, given)) if isinstance(leaf, Tensor)]
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return given


def _is_view(function: Any) -> bool:
    """Of operators that hand on memory without a copy, but are not declared as views."""
    return function.overloadpacket in (torch.ops.aten.detach, torch.ops.aten._unsafe_view, torch.ops.aten.empty)


def count(step: Callable[[], object]) -> tuple[float, int, int]:
    """Floating-point operations, calls and bytes of a step, after one that warms up."""
    step()
    with FlopCounterMode(display=False, custom_mapping=ALSO_COUNTED) as operations:
        step()
    with Counter() as counter:
        step()
    return operations.get_total_flops(), counter.calls, counter.bytes


def count_as_compiled(step: Callable[[], object]) -> tuple[float, int, int]:
    """The same of the operations that `torch.compile` would see."""
    asked = torch.compiler.is_compiling
    torch.compiler.is_compiling = lambda: True
    try:
        return count(step)
    finally:
        torch.compiler.is_compiling = asked


def cases(only: str | None) -> Iterator[Case]:
    """The training steps among the benchmark's cases, without recomputation."""
    for name, make in CASES.items():
        if only in (None, name):
            yield from (case for case in make() if "training step" in case.name and "recomputed" not in case.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| training step | | GFLOP | calls | GB moved |")
    print("|---|---|---|---|---|")
    for case in cases(arguments.only):
        counted = {"plain": count(case.plain), "slotnorm": count(case.ours)}
        counted["slotnorm, as a compiler sees it"] = count_as_compiled(case.ours)
        for who, (operations, calls, moved) in counted.items():
            print(f"| {case.name} | {who} | {operations / 1e9:.2f} | {calls:,} | {moved / 1e9:.3f} |", flush=True)


if __name__ == "__main__":
    main()
