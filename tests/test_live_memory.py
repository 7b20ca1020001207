"""The measure of memory that tests and benchmarks share."""

import torch

from live_memory import peak_bytes


def test_freeing_what_was_there_before_takes_nothing_from_the_peak():
    """A step that replaces the gradient of the step before, as training does, costs the same every time."""
    kept = [torch.ones(1 << 18)]

    def step() -> None:
        kept.clear()
        twice = torch.ones(1 << 18)
        kept.append(twice + 1)

    assert [peak_bytes(step) // 2**20 for _ in range(3)] == [2, 2, 2]
