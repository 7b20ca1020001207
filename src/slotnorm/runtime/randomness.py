"""Stateless randomness: every draw is keyed by (seed, purpose, indices), so nothing random is ever saved or shared.

The same key gives the same bits whatever was drawn before, on any number of workers or ranks, and after any
interruption.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """A fresh generator for the key (seed, purpose, indices)."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(seed, purpose, indices), "little")))


def coins(seed: int, purpose: str, keys: Sequence[tuple[int, ...]]) -> NDArray[np.bool_]:
    """One fair coin per key, (len(keys),): row b depends on (seed, purpose, keys[b]) alone.

    A bit of the key's hash: a generator for each key would take ten times longer.
    """
    return np.array([_digest(seed, purpose, key)[0] & 1 for key in keys], dtype=np.bool_)


def _digest(seed: int, purpose: str, indices: tuple[int, ...]) -> bytes:
    words = ",".join(str(int(word)) for word in (seed, *indices))
    return hashlib.blake2b(f"{purpose}:{words}".encode(), digest_size=16).digest()


def slot_noise(seed: int, purpose: str, keys: list[tuple[int, ...]], slots: int, dim: int) -> NDArray[np.float32]:
    """Standard normal (len(keys), slots, dim): row b depends on (seed, purpose, keys[b]) alone."""
    noise = np.empty((len(keys), slots, dim), dtype=np.float32)
    for row, key in zip(noise, keys, strict=True):
        generator(seed, purpose, *key).standard_normal(out=row, dtype=np.float32)
    return noise
