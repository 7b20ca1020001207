"""Arrays that are set aside: in a temporary file rather than in memory, until they are asked for."""

import tempfile
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Aside:
    """A file that nothing else can see; it is gone when no array in it is referred to."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed when nothing refers to this)
        weakref.finalize(self, self._file.close)
        self._shared: dict[tuple[str, bytes], NDArray[Any]] = {}

    def put(self, array: NDArray[Any]) -> "ArrayAside":
        """Write an array to the file."""
        start = self._file.seek(0, 2)
        self._file.write(np.ascontiguousarray(array).tobytes())
        return ArrayAside(self, start, array.shape, array.dtype)

    def read(self, start: int, size: int) -> bytearray:
        """So many bytes of the file."""
        content = bytearray(size)
        self._file.seek(start)
        self._file.readinto(content)
        return content

    def share(self, array: NDArray[Any]) -> NDArray[Any]:
        """The same column of numbers, held in memory once however many runs have an equal one."""
        return self._shared.setdefault((array.dtype.str, array.tobytes()), array)


@dataclass(frozen=True)
class ArrayAside:
    """Where an array is; `load` reads it."""

    aside: Aside
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def load(self) -> NDArray[Any]:
        """The array, as it was."""
        size = int(np.prod(self.shape)) * self.dtype.itemsize
        return np.frombuffer(self.aside.read(self.start, size), self.dtype).reshape(self.shape)
