"""The peak of live tensor bytes while a function runs, from the allocator's own record."""

from collections.abc import Callable, Iterator
from typing import Any

import torch


def peak_bytes(function: Callable[[], object]) -> int:
    """The most bytes that `function` held at once of those that it allocated; scratch space of libraries is not seen.

    What was there before and is freed meanwhile does not count, since the profiler remembers only some of it.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    record = _allocations(profile.profiler.kineto_results.experimental_event_tree())
    live: dict[int, int] = {}
    total = peak = 0
    for _, address, size in sorted(record, key=lambda allocation: allocation[0]):
        if size > 0:
            live[address] = size
            total += size
            peak = max(peak, total)
        else:
            total -= live.pop(address, 0)
    return peak


def _allocations(events: list[Any]) -> Iterator[tuple[int, int, int]]:
    """When, at which address, and how many bytes, negative where they are freed."""
    remaining = list(events)
    while remaining:
        event = remaining.pop()
        remaining += event.children
        if event.tag == torch._C._profiler._EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size
