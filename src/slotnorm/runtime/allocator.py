"""glibc's allocator, told to keep what it was given: page faults cost 20 to 70 % of a training step otherwise.

By default glibc maps every large tensor afresh and unmaps it when freed, so each step touches thousands of new pages.
The command line's verbs that train or evaluate call `keep_freed_memory` when they start; importing slotnorm never does.
"""

import ctypes
import os
import platform

# mallopt's parameters in glibc's malloc.h, with the environment variables that set the same
_TRIM_THRESHOLD = (-1, "MALLOC_TRIM_THRESHOLD_")
_MMAP_THRESHOLD = (-3, "MALLOC_MMAP_THRESHOLD_")
_LIMITS = (2**31 - 1, 2**25)  # the largest int, else the largest that a glibc with limited heaps takes


def keep_freed_memory() -> bool:
    """Have freed memory kept for the next tensor instead of handed back; whether it was done.

    Only glibc is spoken to, and what the user set in the environment stands.
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for _, name in (_TRIM_THRESHOLD, _MMAP_THRESHOLD)):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    thresholds = (_MMAP_THRESHOLD, _TRIM_THRESHOLD)
    return all(any(mallopt(parameter, limit) == 1 for limit in _LIMITS) for parameter, _ in thresholds)
