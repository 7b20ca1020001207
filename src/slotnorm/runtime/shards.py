"""Ranges of scenes that jobs work on side by side."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from slotnorm.errors import UserError


@dataclasses.dataclass(frozen=True)
class Shard:
    """One of several ranges of scenes, counted from 0."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if self.of < 1:
            raise UserError(f"--shards is {self.of}, but must be at least 1")
        if not 0 <= self.number < self.of:
            raise UserError(f"--shard is {self.number}, but the {self.of} shards are counted from 0")

    def positions(self, num: int, multiple: int = 1) -> NDArray[np.int64]:
        """Which of `num` scenes it has; it begins at a multiple, so that batches are those of one process."""
        first, last = (-(-num * step // (self.of * multiple)) * multiple for step in (self.number, self.number + 1))
        return np.arange(min(first, num), min(last, num))

    def __str__(self) -> str:
        return f"shard-{self.number:04}-of-{self.of:04}"
