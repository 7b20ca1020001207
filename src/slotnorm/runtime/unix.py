"""What only Unix has: the kernel's lock on a file, and most signals; each with what takes its place elsewhere.

Nothing outside this file names `fcntl` or a signal that Windows lacks; a test removes them all.
"""

import errno
import signal
from types import ModuleType
from typing import Literal

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

Flock = Literal["taken", "held elsewhere", "not supported"]
# what flock says where it does not work; the last one on NFS, of a file that is only read
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)

_ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
ENDING: tuple[signal.Signals, ...] = tuple(getattr(signal, name) for name in _ENDING if hasattr(signal, name))
"""Those that ask a process to end; the last three are sent by clusters before a job's time is over."""
NEARLY_OVER: signal.Signals = getattr(signal, "SIGUSR2", signal.SIGTERM)
"""What SLURM's jobs are sent before their time is over."""
KILL: signal.Signals = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows SIGTERM ends a process at once
"""Ends a process without asking it."""


def try_flock(descriptor: int) -> Flock:
    """Take the kernel's lock on an open file, without waiting; it ends with the process that holds it."""
    if fcntl is None:
        return "not supported"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "held elsewhere"
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return "not supported"
        raise
    return "taken"
