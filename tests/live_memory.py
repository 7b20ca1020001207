"""The peak of live tensor bytes while a function runs, from the allocator's own record."""

from collections.abc import Callable
from itertools import accumulate

import torch


def peak_bytes(function: Callable[[], object]) -> int:
    """Bytes that `function` held at most, beyond what was there before; scratch space of libraries is not seen."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    results = profile.profiler.kineto_results
    record = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    return max(accumulate((size for _, size in record), initial=0))
