"""What the converters share: work on several cores in the file's order, and what identifies the source files.

CLEVR is parsed on threads: unpacking and array copies run outside Python's lock, and sending a scene of 3.2 MB to
another process costs as much as parsing it. MOVi is decoded in processes: decoding a PNG holds the lock, and a packed
clip is small. `benchmarks/datasets.py` measures both.
"""

import contextlib
import hashlib
import os
import pickle
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from slotnorm.errors import UserError
from slotnorm.storage.files import open_to_read

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_WORKERS = 8  # the one thread that reads feeds no more than this, and memory stays bounded
_AHEAD = 2  # items a thread has waiting: 8 threads then hold 17 records, 55 MB of CLEVR


def in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, ahead: int | None = None
) -> Generator[Result, None, None]:
    """`function` of each item, in order; `workers` threads compute while this one reads the next items.

    `ahead` is how many items are read before the first result is taken; None is two for each thread.
    """
    ahead = _AHEAD * workers if ahead is None else ahead
    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def in_processes(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int | None
) -> Generator[Result, None, None]:
    """`function` of each item, in order, computed by `workers` processes (1 is this one); pickle must know it by name.

    The processes are started anew and know nothing of this one: a script needs no `if __name__ == "__main__"`, and
    threads or a GPU in use here do no harm.
    """
    workers = number_of_workers(workers)
    if workers == 1:
        yield from map(function, items)
        return
    with contextlib.ExitStack() as stack:
        crew = [stack.enter_context(_Process(function)) for _ in range(workers)]
        waiting: deque[_Process] = deque()
        for item in items:
            process = crew.pop() if crew else waiting.popleft()
            if process.busy:
                yield process.receive()
            process.send(item)
            waiting.append(process)
        for process in waiting:
            yield process.receive()


def number_of_workers(workers: int | None) -> int:
    """As many as are asked for, or one per core; more than are of use are refused."""
    if workers is None:
        return min(_MOST_WORKERS, os.cpu_count() or 1)
    if not 1 <= workers <= _MOST_WORKERS:
        raise UserError(f"{workers} workers cannot be used: choose 1 to {_MOST_WORKERS}")
    return workers


class _Process:
    """One `worker.py`; it has at most one item, so that neither side ever waits for the other to empty a pipe."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        # one thread each: the processes share the cores already
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        environment["OPENBLAS_NUM_THREADS"] = "1"
        command = [sys.executable, "-m", "slotnorm.data.worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.busy = False
        self._write(function)

    def __enter__(self) -> "_Process":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # between items it holds nothing, and an item in work is not wanted any more
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # closing flushes what the killed process did not take
                pipe.close()

    def send(self, item: Any) -> None:
        self._write(item)
        self.busy = True

    def receive(self) -> Any:
        assert self._process.stdout is not None
        try:
            answer = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise self._ended() from None
        self.busy = False
        if isinstance(answer, UserError):
            raise answer
        return answer

    def _write(self, value: Any) -> None:
        assert self._process.stdin is not None
        try:
            pickle.dump(value, self._process.stdin, protocol=5)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def _ended(self) -> UserError:
        code = self._process.wait()
        return UserError(f"a worker process ended with code {code}; if memory ran out, try fewer --workers")


def stack(rows: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    """Scenes, each a dictionary of arrays, as one chunk: name -> (m, ...)."""
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def identity(*paths: Path) -> dict[str, Any]:
    """Names, bytes, and a hash over names, sizes and beginnings: what a set's provenance says of its source files.

    Not over whole files: that would take as long as half the conversion, and every record carries its own checksums.
    """
    digest = hashlib.sha256()
    total = 0
    for path in paths:
        try:
            with open_to_read(path) as file:
                head = file.read(1 << 16)
            size = path.stat().st_size
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}; give a file that exists") from error
        digest.update(f"{path.name} {size} ".encode() + hashlib.sha256(head).digest())
        total += size
    names = paths[0].name if len(paths) == 1 else f"{paths[0].name} to {paths[-1].name}"
    return {"files": names, "bytes": total, "sha256_of_beginnings": digest.hexdigest()}


def check_space(folder: Path, needed: int) -> None:
    """Refuse to begin what the disk cannot hold."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"about {needed / 1e9:.1f} GB are needed and {folder} has {free / 1e9:.1f} GB free; use another disk"
        )
